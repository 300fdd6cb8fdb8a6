"""Turns a bfloat16 checkpoint's linears into float8 e4m3 with one factor per block, as DeepSeek-V3 and R1 are released, and
into a twin that holds what those numbers mean in float32."""
import struct

import braid


def _decode(code):
    """The value of an e4m3 number: sign, four exponent bits of bias 7, three of fraction; no infinities."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0**(exponent - 7))


DECODED = [_decode(code) for code in range(256)]
LARGEST = 448.0
# A step from one number to the next; code 0x7f is no number.
_POSITIVE = DECODED[:0x7f]


def encode(x):
    """The nearest e4m3 number; of two that are equally near the even one."""
    low, high = 0, len(_POSITIVE) - 1
    a = min(abs(x), LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _POSITIVE[middle] <= a else (low, middle)
    below, above = a - _POSITIVE[low], _POSITIVE[high] - a
    code = low if below < above or (below == above and low % 2 == 0) else high
    return code | (0x80 if x < 0 else 0)


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def quantise(tensor, block_rows, block_columns):
    """(codes, factors, float32 twin) of a matrix."""
    rows, columns = tensor.shape
    values = tensor.values()
    codes, twin = bytearray(rows * columns), [0.0] * (rows * columns)
    n_rows, n_columns = -(-rows // block_rows), -(-columns // block_columns)
    factors = []
    for i in range(n_rows):
        for j in range(n_columns):
            cells = [r * columns + c for r in range(i * block_rows, min(rows, (i + 1) * block_rows))
                     for c in range(j * block_columns, min(columns, (j + 1) * block_columns))]
            factor = float32(max(abs(values[k]) for k in cells) / LARGEST)
            factors.append(factor)
            for k in cells:
                codes[k] = encode(values[k] / factor)
                twin[k] = float32(DECODED[codes[k]] * factor)  # exact in double, then rounded once
    return (braid.Stored("F8_E4M3", [rows, columns], bytes(codes)),
            braid.Stored("F32", [n_rows, n_columns], struct.pack(f"<{len(factors)}f", *factors)),
            braid.Stored("F32", [rows, columns], struct.pack(f"<{len(twin)}f", *twin)))


def is_linear(name, tensor):
    """What the released checkpoints hold in fp8: every product but the head's, the router's and the embedding's."""
    return len(tensor.shape) == 2 and "_proj" in name and name.endswith(".weight")


def convert(tensors, block_rows=128, block_columns=128):
    """(fp8 checkpoint, its float32 twin)."""
    narrow, twin = {}, {}
    for name, tensor in tensors.items():
        if is_linear(name, tensor):
            narrow[name], narrow[name + "_scale_inv"], twin[name] = quantise(tensor, block_rows, block_columns)
        else:
            narrow[name] = twin[name] = tensor
    return narrow, twin
