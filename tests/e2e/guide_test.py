#!/usr/bin/env python3
"""Command lines that users of other engines paste: each starts, or is refused within two seconds with the reason.

The lines are those of the context-parallel guide, the program's name replaced and --model pointed at a small fixture of the
architecture or at its published configuration, with dummy weights.
"""
import os
import re
import signal
import subprocess
import threading
import time
import unittest

import braid

R1 = os.path.join(braid.CONFIGS, "deepseek-r1.json")
SMALL = braid.fixture("deepseek_v3")
SPECULATION = "speculative decoding is not in this version"
QREP_OFF = '{"enable_query_replication": false, "enable_project_before_merge": false, "comm_backend": "ag_rs"}'
KIMI_QUANT = '{"global_quant_config": "ptpc_fp8", "exclude_layer": ["lm_head", "*conv1d*"]}'


def words(line):
    return line.split()


# (model, arguments, what is said): None where the line starts.
LINES = [
    # Dense decode context parallel: the published model does not fit this machine, the fixture does.
    (R1, words("-tp 8 -dcp 8 --kv_cache_dtype fp8"), "the weights of 8 ranks take 7"),
    (R1, words("--tensor-parallel-size 8 --decode-context-parallel-size 8 --kv-cache-dtype bfloat16 --async-scheduling --compilation-config")
     + ['{"cudagraph_mode": "FULL_AND_PIECEWISE"}'], "the weights of 8 ranks take 7"),
    (SMALL, words("-tp 8 -dcp 8 --kv_cache_dtype fp8"), None),
    (SMALL, words("--tensor-parallel-size 8 --decode-context-parallel-size 8 --kv-cache-dtype bfloat16 --async-scheduling --compilation-config")
     + ['{"cudagraph_mode": "FULL_AND_PIECEWISE"}'], None),
    (SMALL, words("-tp 8 -dcp 2"), None),
    (SMALL, words("-tp 8 -dcp 1"), None),
    (SMALL, words("-tp 8 -dcp 8 --enable_prefix_caching --enable_chunked_prefill"), None),
    (SMALL, words("-tp 8 -dcp 8 --no-enable_chunked_prefill --max-num-batched-tokens 131072"), None),
    (SMALL, ["-tp", "8", "-dcp", "8", "--dcp-config", QREP_OFF], None),
    (SMALL, ["-tp", "8", "-dcp", "8", "--dcp-config", '{"interleave_size": 16, "enable_query_replication": true}'], None),
    (SMALL, ["-tp", "8", "-dcp", "8", "--dcp-config", '{"enable_query_replication": false}'], None),
    # What belongs to later versions says so.
    (SMALL, words("-tp 8 -dcp 8 --kv_cache_dtype fp8 --method mtp --num-speculative-tokens 3"), SPECULATION),
    (SMALL, ["-tp", "8", "-dcp", "8", "--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'], SPECULATION),
    (SMALL, words("--kv_cache_dtype fp8 -tp 8 -dcp 8 --trust-remote-code --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 16384 "
                        "--gpu-memory-utilization 0.93 --block-size 128 --no-enable_prefix_caching --online_quant_config") + [KIMI_QUANT],
     "--online-quant-config: weights are rounded by --quantization fp8 or int8"),
    (SMALL, words("--kv_cache_dtype fp8 -tp 8 -dcp 8 --trust-remote-code --max-num-seqs 64 --gpu-memory-utilization 0.93 --block-size 128 "
                        "--no-enable_prefix_caching"), None),
    (SMALL, words("--draft-model Inferact/Kimi-K3-DSpark --kv_cache_dtype fp8 -tp 8 -dcp 8 --method dspark --num-speculative-tokens 2"), SPECULATION),
    (os.path.join(braid.CONFIGS, "deepseek-v3.2-exp.json"), words("-tp 8 -dcp 8 --kv_cache_dtype fp8"), "model_type 'deepseek_v32' is not supported yet"),
    (os.path.join(braid.CONFIGS, "glm-5.2.json"), words("-tp 8 -dcp 8 --kv_cache_dtype fp8"), "model_type 'glm_moe_dsa' is not supported yet"),
]


class Guide(braid.TestCase):
    def start(self, words):
        """(seconds until the server says that it serves or ends, exit code or None, stderr so far)."""
        begun = time.monotonic()
        child = subprocess.Popen([braid.PROGRAM, "serve", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        killer = threading.Timer(30, child.kill)
        killer.start()
        said = ""
        try:
            for line in child.stderr:
                said += line
                if re.search(r" serves .* on http://", line):
                    return time.monotonic() - begun, None, said
            return time.monotonic() - begun, child.wait(), said
        finally:
            killer.cancel()
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stderr.close()

    def test_lines(self):
        more = ["--tokenizer", braid.DEMO, "--load-format", "dummy", "--threads", "1", "--host", "127.0.0.1", "--port", "0"]
        for i, (model, line, refusal) in enumerate(LINES):
            named = [model] if i % 2 else ["--model", model]  # vllm serve MODEL
            with self.subTest(line=" ".join(line), model=os.path.basename(model)):
                seconds, code, said = self.start([*named, *line, *more])
                if refusal is None:
                    self.assertIsNone(code, said)
                    self.assertLess(seconds, 10, said)  # eight ranks on few cores; the promise of two seconds is for refusals
                else:
                    self.assertIn(code, (1, 2), said)
                    self.assertIn(refusal, said)
                    self.assertLess(seconds, 2.0, said)

    def test_ignored_options_are_named(self):
        _, code, said = self.start(["--model", SMALL, "-tp", "2", "--swap-space", "4", "--async-scheduling", "--tokenizer", braid.DEMO,
                                    "--load-format", "dummy", "--port", "0"])
        self.assertIsNone(code, said)
        self.assertIn("--swap-space is accepted and changes nothing: a preempted request is computed again", said)
        self.assertIn("--async-scheduling is accepted and changes nothing", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
