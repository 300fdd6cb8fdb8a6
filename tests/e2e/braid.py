"""What the end-to-end tests share: running the program, and reading and writing its files. Standard library only.

The program is the one that the environment variable BRAID names, or build/release/bin/braid; MPIRUN names mpirun and is
empty where the build has no MPI. A test reads stdout as data and stderr as log, as the program promises.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("BRAID", os.path.join(ROOT, "build", "release", "bin", "braid"))
MPIRUN = os.environ.get("MPIRUN", shutil.which("mpirun") or "")
FIXTURES = os.path.join(ROOT, "tests", "data", "fixtures")
CONFIGS = os.path.join(ROOT, "tests", "data", "configs")
DEMO = os.path.join(ROOT, "models", "demo")
EVAL = os.path.join(ROOT, "tests", "data", "demo", "eval.jsonl")
ARCHITECTURES = ("llama", "qwen3", "qwen3_moe", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_yarn")
ALL_MODES = ("full", "chunk:1", "chunk:7", "cached", "batched", "preempted")

# A run as root in a container, more ranks than cores, and no core of one's own: none of it changes a result.
_MPI_OPTIONS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def fixture(name):
    return os.path.join(FIXTURES, name)


def command(arguments, processes=0):
    """The words that run the program, under mpirun where `processes` is given."""
    words = [PROGRAM] + [str(a) for a in arguments]
    return [MPIRUN, *_MPI_OPTIONS, "-np", str(processes), *words] if processes else words


class Result:
    def __init__(self, words, code, out, err, seconds):
        self.words, self.code, self.out, self.err, self.seconds = words, code, out, err, seconds

    def json(self):
        return json.loads(self.out)

    def __str__(self):
        return f"$ {' '.join(self.words)}\nexit {self.code} after {self.seconds:.1f} s\n{self.out[-4000:]}\n{self.err[-4000:]}"


def run(*arguments, processes=0, timeout=300):
    """Runs to the end. A run that does not end is killed with all its processes, and is a failure."""
    words = command(arguments, processes)
    start = time.monotonic()
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                             start_new_session=True, text=True, encoding="utf-8", errors="replace")
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        raise AssertionError(f"no end after {timeout} s: {' '.join(words)}\n{err[-4000:]}") from None
    return Result(words, child.returncode, out, err, time.monotonic() - start)


# --- safetensors -----------------------------------------------------------------------------------------------------

_FORMATS = {"F32": "f", "I32": "i", "I64": "q", "U8": "B"}
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4, "I64": 8, "U8": 1}


class Stored:
    """One tensor of a file, as its bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    def __eq__(self, other):
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    def rows(self):
        """The bytes of each row of the first dimension."""
        size = len(self.data) // self.shape[0] if self.shape[0] else 0
        return [self.data[i * size:(i + 1) * size] for i in range(self.shape[0])]

    def values(self):
        if self.dtype == "BF16":  # the upper half of a float32
            return [struct.unpack("<f", b"\0\0" + self.data[i:i + 2])[0] for i in range(0, len(self.data), 2)]
        form = _FORMATS[self.dtype]
        return list(struct.unpack(f"<{len(self.data) // struct.calcsize(form)}{form}", self.data))


def read_header(path):
    """Name to {dtype, shape, data_offsets}; and where the data begin."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def read_safetensors(path):
    header, start = read_header(path)
    with open(path, "rb") as file:
        data = file.read()
    return {name: Stored(t["dtype"], t["shape"], data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in header.items()}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [offset, offset + len(t.data)]}
        offset += len(t.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(t.data)


def int32(values):
    return Stored("I32", [len(values)], struct.pack(f"<{len(values)}i", *values))


def write_reference(path, prompts, n_greedy, vocab):
    """A reference that only says what to run: prompts, and how many tokens to generate. Its logits are zeros."""
    tensors = {}
    for i, prompt in enumerate(prompts):
        tensors[f"input_ids_{i}"] = int32(prompt)
        tensors[f"greedy_{i}"] = int32([0] * n_greedy)
        tensors[f"logits_{i}"] = Stored("F32", [len(prompt), vocab], bytes(4 * vocab * len(prompt)))
        tensors[f"greedy_logits_{i}"] = Stored("F32", [n_greedy, vocab], bytes(4 * vocab * n_greedy))
    write_safetensors(path, tensors)


def reference_of_dump(path, prompts, dump, mode="full"):
    """Makes what one run gave the reference of others. Row p of a dump is the logits after the tokens up to position p."""
    tensors = {}
    for i, prompt in enumerate(prompts):
        rows, greedy = dump[f"logits_{mode}_{i}"], dump[f"greedy_{mode}_{i}"]
        parts, vocab = rows.rows(), rows.shape[1]
        tensors[f"input_ids_{i}"] = int32(prompt)
        tensors[f"greedy_{i}"] = greedy
        tensors[f"logits_{i}"] = Stored("F32", [len(prompt), vocab], b"".join(parts[:len(prompt)]))
        tensors[f"greedy_logits_{i}"] = Stored("F32", [greedy.shape[0], vocab], b"".join(parts[len(prompt) - 1:]))
    write_safetensors(path, tensors)


def prompts_of(reference_path):
    tensors = read_safetensors(reference_path)
    return [tensors[f"input_ids_{i}"].values() for i in range(sum(name.startswith("input_ids_") for name in tensors))]


# --- dumps of `braid verify` -----------------------------------------------------------------------------------------

def different_bits(wanted, got, mode, wanted_mode="full"):
    """Where two dumps differ, in words; empty where every row of `mode` has the bits of the row for the same position.

    A run that found a part of its prompt in the cache has only the later rows.
    """
    problems = []
    prompts = sorted(name.rsplit("_", 1)[1] for name in wanted if name.startswith(f"greedy_{wanted_mode}_"))
    if not prompts:
        problems.append(f"no prompt of mode {wanted_mode}")
    for i in prompts:
        a, b = wanted[f"logits_{wanted_mode}_{i}"], got.get(f"logits_{mode}_{i}")
        if b is None:
            problems.append(f"{mode} {i}: missing")
            continue
        if wanted[f"greedy_{wanted_mode}_{i}"] != got[f"greedy_{mode}_{i}"]:
            problems.append(f"{mode} {i}: other tokens")
        rows, all_rows = b.rows(), a.rows()
        if not rows or len(rows) > len(all_rows) or (mode != "cached" and len(rows) != len(all_rows)):
            problems.append(f"{mode} {i}: {len(rows)} rows where {len(all_rows)} are known")
            continue
        first = len(all_rows) - len(rows)
        wrong = [p for p, row in enumerate(rows) if row != all_rows[first + p]]
        if wrong:
            problems.append(f"{mode} {i}: {len(wrong)} of {len(rows)} rows differ, the first at {first + wrong[0]}")
    return problems


# --- log lines -------------------------------------------------------------------------------------------------------

def collectives_in(log):
    """Name to [(calls, bytes), ...] of the lines on stderr that tell what rank 0 sent."""
    found = {}
    for name, calls, size in re.findall(r"rank 0 collective (\w+): (\d+) calls, (\d+) B", log):
        found.setdefault(name, []).append((int(calls), int(size)))
    return found


# --- folders ---------------------------------------------------------------------------------------------------------

class TestCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="braid_e2e_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def model_copy(self, source, name="model", without=()):
        """A folder of links to a model's files, which a test may replace by files of its own."""
        copy = self.path(name)
        os.mkdir(copy)
        for file in os.listdir(source):
            if file not in without:
                os.symlink(os.path.join(source, file), os.path.join(copy, file))
        return copy

    def write_json(self, name, value):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(value, file)
        return self.path(name)

    def expect(self, result, code=0):
        self.assertEqual(result.code, code, str(result))
        return result

    def dump_of(self, model, *arguments, name="dump.safetensors", code=0, processes=0):
        """The tensors that `braid verify --dump` writes, and the run."""
        file = self.path(name)
        result = self.expect(run("verify", "--model", model, "--json", "--dump", file, *arguments, processes=processes), code)
        dump = read_safetensors(file)
        os.remove(file)
        return dump, result

    def assert_same_bits(self, wanted, got, modes, context):
        for mode in modes:
            self.assertEqual(different_bits(wanted, got, mode), [], f"{context}, mode {mode}")


def eval_items():
    with open(EVAL, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


# --- processes -------------------------------------------------------------------------------------------------------

def state_of(pid):
    """The letter of /proc/PID/stat, or "" where there is no such process."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    return ""


def alive(pid):
    return state_of(pid) not in ("", "Z", "X")


def ranks_of_launcher(launcher):
    """Process number to pid of the programs that mpirun `launcher` started on this machine."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            if parent != launcher:
                continue
            with open(f"/proc/{entry}/environ", encoding="utf-8", errors="replace") as file:
                words = dict(word.split("=", 1) for word in file.read().split("\0") if "=" in word)
            if "OMPI_COMM_WORLD_RANK" in words:
                found[int(words["OMPI_COMM_WORLD_RANK"])] = int(entry)
    return found


def await_true(condition, seconds, what):
    """Seconds until `condition()` holds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return time.monotonic() - start
