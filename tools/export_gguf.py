#!/usr/bin/env python3
"""Writes a DeepSeek-V2/V3 checkpoint as a GGUF file, for comparing with llama.cpp on the same weights.

    tools/export_gguf.py CHECKPOINT OUT.gguf [--form mla|legacy]
    tools/export_gguf.py CONFIG_FOLDER OUT.gguf --random SEED --checkpoint NEW_FOLDER

The two forms are llama.cpp's for architecture deepseek2: `mla` keeps the key and value halves of kv_b_proj apart
(attn_k_b, attn_v_b; the cache holds one latent row per token), `legacy` keeps attn_kv_b whole (the cache holds keys and
values of all heads). Weights keep their type (float32 or bfloat16); vectors and the router become float32. With
--random the weights are drawn here, and written as safetensors too, so that both programs read the same ones. The
vocabulary is a stand-in: bytes and numbered words; compare on token ids.

Needs numpy.
"""

import argparse
import json
import os
import struct

import numpy as np

F32, BF16 = 0, 30  # GGUF's numbers
ALIGNMENT = 32


def read_safetensors(folder):
    """name -> (dtype, array); bfloat16 as uint16."""
    types = {"F32": np.float32, "BF16": np.uint16}
    tensors = {}
    for file in sorted(f for f in os.listdir(folder) if f.startswith("model") and f.endswith(".safetensors")):
        data = np.memmap(os.path.join(folder, file), dtype=np.uint8, mode="r")
        n = int.from_bytes(data[:8].tobytes(), "little")
        for name, t in json.loads(data[8:8 + n].tobytes()).items():
            if name == "__metadata__":
                continue
            if t["dtype"] not in types:
                raise SystemExit(f"{file}: tensor '{name}' is {t['dtype']}; only F32 and BF16 can be exported")
            begin, end = t["data_offsets"]
            tensors[name] = data[8 + n + begin:8 + n + end].view(types[t["dtype"]]).reshape(t["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "BF16" if x.dtype == np.uint16 else "F32", "shape": list(x.shape),
                        "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_f32(x):
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)


def is_v3(c):  # whose router is sigmoid with a correction bias, said or not
    return c["model_type"] == "deepseek_v3"


def is_moe(c, layer):
    return layer >= c.get("first_k_dense_replace", 0) and c.get("n_routed_experts", 0) > 0


def shapes(c):
    """Every tensor that the model reads, as the checkpoint spells it."""
    h, n = c["hidden_size"], c["num_attention_heads"]
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    r, q_rank = c["kv_lora_rank"], c.get("q_lora_rank") or 0
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        a = p + "self_attn."
        if q_rank:
            yield a + "q_a_proj.weight", (q_rank, h)
            yield a + "q_a_layernorm.weight", (q_rank,)
            yield a + "q_b_proj.weight", (n * qk, q_rank)
        else:
            yield a + "q_proj.weight", (n * qk, h)
        yield a + "kv_a_proj_with_mqa.weight", (r + c["qk_rope_head_dim"], h)
        yield a + "kv_a_layernorm.weight", (r,)
        yield a + "kv_b_proj.weight", (n * (c["qk_nope_head_dim"] + c["v_head_dim"]), r)
        yield a + "o_proj.weight", (h, n * c["v_head_dim"])
        m = p + "mlp."
        blocks = [(m, c["intermediate_size"])]
        if is_moe(c, i):
            f = c["moe_intermediate_size"]
            blocks = [(f"{m}experts.{e}.", f) for e in range(c["n_routed_experts"])]
            if c.get("n_shared_experts"):
                blocks.append((m + "shared_experts.", f * c["n_shared_experts"]))
            yield m + "gate.weight", (c["n_routed_experts"], h)
            if is_v3(c):
                yield m + "gate.e_score_correction_bias", (c["n_routed_experts"],)
        for b, f in blocks:
            yield b + "gate_proj.weight", (f, h)
            yield b + "up_proj.weight", (f, h)
            yield b + "down_proj.weight", (h, f)


def random_tensors(c, seed):
    r = np.random.default_rng(seed)
    out = {}
    for name, shape in shapes(c):
        if name.endswith("e_score_correction_bias"):
            out[name] = np.zeros(shape, np.float32)
        elif len(shape) == 1:
            out[name] = to_bf16(np.ones(shape, np.float32))
        else:
            out[name] = to_bf16(r.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[1])))
    return out


def exported(c, t, form):
    """(GGUF name, array) of every tensor."""
    def vector(name):
        return to_f32(t[name])

    yield "token_embd.weight", t["model.embed_tokens.weight"]
    yield "output_norm.weight", vector("model.norm.weight")
    yield "output.weight", t.get("lm_head.weight", t["model.embed_tokens.weight"])
    n, nope, v, r = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    for i in range(c["num_hidden_layers"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        a, m = p + "self_attn.", p + "mlp."
        yield b + "attn_norm.weight", vector(p + "input_layernorm.weight")
        yield b + "ffn_norm.weight", vector(p + "post_attention_layernorm.weight")
        if c.get("q_lora_rank"):
            yield b + "attn_q_a.weight", t[a + "q_a_proj.weight"]
            yield b + "attn_q_a_norm.weight", vector(a + "q_a_layernorm.weight")
            yield b + "attn_q_b.weight", t[a + "q_b_proj.weight"]
        else:
            yield b + "attn_q.weight", t[a + "q_proj.weight"]
        yield b + "attn_kv_a_mqa.weight", t[a + "kv_a_proj_with_mqa.weight"]
        yield b + "attn_kv_a_norm.weight", vector(a + "kv_a_layernorm.weight")
        kv_b = t[a + "kv_b_proj.weight"]
        if form == "mla":
            halves = kv_b.reshape(n, nope + v, r)
            yield b + "attn_k_b.weight", np.ascontiguousarray(halves[:, :nope].transpose(0, 2, 1))
            yield b + "attn_v_b.weight", np.ascontiguousarray(halves[:, nope:])
        else:
            yield b + "attn_kv_b.weight", kv_b
        yield b + "attn_output.weight", t[a + "o_proj.weight"]
        if not is_moe(c, i):
            for part in ("gate", "up", "down"):
                yield f"{b}ffn_{part}.weight", t[f"{m}{part}_proj.weight"]
            continue
        yield b + "ffn_gate_inp.weight", vector(m + "gate.weight")
        if m + "gate.e_score_correction_bias" in t:
            yield b + "exp_probs_b.bias", vector(m + "gate.e_score_correction_bias")
        for part in ("gate", "up", "down"):
            yield f"{b}ffn_{part}_exps.weight", np.stack(
                [t[f"{m}experts.{e}.{part}_proj.weight"] for e in range(c["n_routed_experts"])])
            if c.get("n_shared_experts"):
                yield f"{b}ffn_{part}_shexp.weight", t[f"{m}shared_experts.{part}_proj.weight"]


def metadata(c, form):
    d = "deepseek2."
    mla = form == "mla"
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    if not c.get("rope_interleave", True):
        raise SystemExit("rope_interleave false: llama.cpp's deepseek2 rotates interleaved lanes only")
    values = {
        "general.architecture": "deepseek2",
        "general.name": "export",
        "general.alignment": ALIGNMENT,
        d + "vocab_size": c["vocab_size"],
        d + "block_count": c["num_hidden_layers"],
        d + "context_length": c["max_position_embeddings"],
        d + "embedding_length": c["hidden_size"],
        d + "feed_forward_length": c["intermediate_size"],
        d + "attention.head_count": c["num_attention_heads"],
        d + "attention.head_count_kv": 1 if mla else c["num_attention_heads"],
        d + "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        d + "attention.kv_lora_rank": c["kv_lora_rank"],
        d + "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"] if mla else qk,
        d + "attention.value_length": c["kv_lora_rank"] if mla else c["v_head_dim"],
        d + "rope.freq_base": float(c.get("rope_theta", 10000.0)),
        d + "rope.dimension_count": c["qk_rope_head_dim"],
        d + "leading_dense_block_count": c.get("first_k_dense_replace", 0),
    }
    if mla:
        values[d + "attention.key_length_mla"] = qk
        values[d + "attention.value_length_mla"] = c["v_head_dim"]
    if c.get("q_lora_rank"):
        values[d + "attention.q_lora_rank"] = c["q_lora_rank"]
    if c.get("n_routed_experts"):
        values.update({
            d + "expert_count": c["n_routed_experts"],
            d + "expert_used_count": c["num_experts_per_tok"],
            d + "expert_shared_count": c.get("n_shared_experts") or 0,
            d + "expert_feed_forward_length": c["moe_intermediate_size"],
            d + "expert_weights_scale": float(c.get("routed_scaling_factor", 1.0)),
            d + "expert_weights_norm": bool(c.get("norm_topk_prob", False)),
            d + "expert_gating_func": 2 if is_v3(c) or c.get("scoring_func") == "sigmoid" else 1,
        })
    scaling = c.get("rope_scaling")
    if scaling:
        values.update({
            d + "rope.scaling.type": "yarn",
            d + "rope.scaling.factor": float(scaling["factor"]),
            d + "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            d + "rope.scaling.yarn_log_multiplier": 0.1 * float(scaling.get("mscale_all_dim", 0.0)),
        })
    values.update(vocabulary(c["vocab_size"]))
    return values


def vocabulary(size):
    """Byte-level stand-in: the 256 bytes, one merge, then numbered words."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    byte = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}
    words = [byte[b] for b in range(256)] + [byte[32] + "t"]
    words += [f"<{i}>" for i in range(len(words), size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words[:size],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": [byte[32] + " t"],
        "tokenizer.ggml.bos_token_id": size - 2,
        "tokenizer.ggml.eos_token_id": size - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def packed_string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def packed_value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + packed_string(v)
    if isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(packed_string, v))
    return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)


def padded(n):
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def write_gguf(path, values, tensors):
    infos, at = b"", 0
    for name, x in tensors:
        infos += packed_string(name) + struct.pack("<I", x.ndim) + struct.pack(f"<{x.ndim}Q", *reversed(x.shape))
        infos += struct.pack("<IQ", BF16 if x.dtype == np.uint16 else F32, at)
        at += padded(x.nbytes)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(packed_string(k) + packed_value(v) for k, v in values.items()) + infos
    with open(path, "wb") as f:
        f.write(head.ljust(padded(len(head)), b"\0"))
        for _, x in tensors:
            f.write(x.tobytes())
            f.write(b"\0" * (padded(x.nbytes) - x.nbytes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--form", choices=["mla", "legacy"], default="mla")
    parser.add_argument("--random", type=int, help="draw the weights from this seed; needs --checkpoint")
    parser.add_argument("--checkpoint", help="folder to write the drawn weights to")
    o = parser.parse_args()
    with open(os.path.join(o.folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if o.random is None:
        tensors = read_safetensors(o.folder)
    else:
        tensors = random_tensors(config, o.random)
        os.makedirs(o.checkpoint, exist_ok=True)
        write_safetensors(os.path.join(o.checkpoint, "model.safetensors"), tensors)
        with open(os.path.join(o.checkpoint, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
    write_gguf(o.out, metadata(config, o.form), list(exported(config, tensors, o.form)))


if __name__ == "__main__":
    main()
