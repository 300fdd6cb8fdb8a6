#!/usr/bin/env python3
"""`braid verify` on every fixture: logits and greedy tokens of all modes at all layouts, and what the run says of itself.

A mode proves something only where it was active, so the counters that tell are asserted too.
"""
import itertools
import os
import struct
import unittest

import braid

TPS = (1, 2, 4, 8)


class VerifyCase(braid.TestCase):
    def check_modes(self, report, prompts, n_greedy, n_long):
        """What a passed run of all six modes must have counted."""
        n_prompt, n = sum(map(len, prompts)), len(prompts)
        modes = {m["mode"]: m for m in report["modes"]}
        self.assertEqual(list(modes), list(braid.ALL_MODES))
        for name, mode in modes.items():
            counters = mode["counters"]
            self.assertEqual(mode["failures"], [], name)
            self.assertEqual(len(mode["prompts"]), n + (n_long if name == "full" else 0), name)
            times = 2 if name == "cached" else 1
            generated = times * n * n_greedy + (n_long if name == "full" else 0)
            self.assertEqual(counters["generated_tokens"], generated, name)
            self.assertGreater(counters["steps"], 0, name)
            # Nothing may hide in a mode that does not ask for it.
            self.assertEqual(counters["preemptions"] > 0, name == "preempted", name)
            self.assertEqual(counters["multi_sequence_steps"] > 0, name in ("batched", "preempted"), name)
            if name not in ("cached", "preempted"):
                self.assertEqual(counters["cached_tokens"], 0, name)
            written = {r["kv_rows_written"] for r in mode["ranks"]}
            self.assertEqual(len(written), 1, name)  # every rank keeps every token
            rows = n_prompt + n * (n_greedy - 1)     # the last token of an answer is never fed back
            if name in ("chunk:1", "chunk:7", "batched"):
                self.assertEqual(written, {rows}, name)
            if name == "preempted":
                self.assertGreater(written.pop(), rows, "recomputed rows are written again")
            if name == "cached":
                self.assertGreater(counters["cached_tokens"], 0)
                self.assertEqual(written, {2 * rows - counters["cached_tokens"]})
        # A chunk of one token is a step of its own.
        self.assertEqual(modes["chunk:1"]["counters"]["steps"], n_prompt + n * (n_greedy - 1))
        self.assertGreater(modes["chunk:7"]["counters"]["steps"], modes["batched"]["counters"]["steps"])

    def verify(self, name, tp, *arguments, processes=0):
        """Float32, all modes. Every position of every short prompt is compared; of long ones those on record."""
        model = braid.fixture(name)
        reference = braid.read_safetensors(os.path.join(model, "reference.safetensors"))
        prompts = braid.prompts_of(os.path.join(model, "reference.safetensors"))
        n_greedy = len(reference["greedy_0"].values())
        result = self.expect(braid.run("verify", "--model", model, "--dtype", "float32", "-tp", tp, "--json", *arguments,
                                       processes=processes))
        self.assertLess(result.seconds, 40)  # the promise for two cores
        report = result.json()
        self.assertTrue(report["passed"])
        self.assertEqual(report["layout"].split()[:2], [f"tp{tp}", "float32"])
        long_file = os.path.join(model, "long.safetensors")
        n_long = len(braid.prompts_of(long_file)) if os.path.exists(long_file) else 0
        self.assertEqual(n_long > 0, name.startswith("deepseek"))
        for mode in report["modes"]:
            for prompt, entry in zip(prompts, mode["prompts"]):
                self.assertEqual(entry["prompt_tokens"], len(prompt))
                self.assertTrue(entry["greedy_equal"])
                self.assertLessEqual(entry["max_abs_dlogit"], 2e-4)
                self.assertEqual(entry["positions"], entry["positions_within"])
                if mode["mode"] not in ("cached", "preempted"):
                    self.assertEqual(entry["positions"], len(prompt) + n_greedy - 1)
            for entry in mode["prompts"][len(prompts):]:
                self.assertGreaterEqual(entry["prompt_tokens"], 1500)
                self.assertEqual(entry["positions"], 64)
                self.assertGreaterEqual(entry["positions_within"], 0.9 * 64)
        self.check_modes(report, prompts, n_greedy, n_long)
        sent = braid.collectives_in(result.err)
        ffn = {"mlp_down"} if name in ("llama", "qwen3") else {"moe_out"} if name == "qwen3_moe" else {"mlp_down", "moe_out"}
        cut = {"embed", "logits"} if tp > 1 else set()  # a vocabulary that is whole needs neither sum nor gathering
        self.assertEqual(set(sent), {"attn_out", "kv_blocks"} | cut | ffn)
        for collective, counts in sent.items():
            self.assertEqual(len(counts), len(braid.ALL_MODES), collective)
            for calls, size in counts:
                self.assertGreater(calls, 0, collective)
                self.assertEqual(size > 0, tp > 1, f"{collective}: {size} B at tp {tp}")
        return result


class Float32(VerifyCase):
    """Every fixture at every width."""


for _name, _tp in itertools.product(braid.ARCHITECTURES, TPS):
    setattr(Float32, f"test_{_name}_tp{_tp}", lambda self, name=_name, tp=_tp: self.verify(name, tp) and None)


@unittest.skipUnless(braid.MPIRUN, "the build has no MPI")
class Processes(VerifyCase):
    """The same grid with the ranks spread over processes; process 0 tells of its own ranks."""


for _name, _tp, _processes in itertools.product(braid.ARCHITECTURES, TPS, TPS):
    if 1 < _processes <= _tp:
        setattr(Processes, f"test_{_name}_tp{_tp}_np{_processes}",
                lambda self, name=_name, tp=_tp, processes=_processes: self.verify(name, tp, processes=processes) and None)


class Levels(VerifyCase):
    """The instruction sets that older machines would choose, as far as this one has them."""

    def test_older_levels(self):
        for level in ("v2", "v3"):
            with self.subTest(level):
                self.verify("deepseek_v3", 1, "--cpu-level", level)

    def test_unknown_level(self):
        result = self.expect(braid.run("verify", "--model", braid.fixture("llama"), "--cpu-level", "v9"), code=2)
        self.assertIn("auto, v2, v3, v4, v4_bf16", result.err)


class DefaultType(VerifyCase):
    """Without --dtype the checkpoint's type, bfloat16, against a float32 run of its own."""

    def check(self, name, tp):
        result = self.expect(braid.run("verify", "--model", braid.fixture(name), "-tp", tp, "--json"))
        report = result.json()
        self.assertEqual(report["layout"], f"tp{tp} bfloat16")
        self.assertEqual([m["mode"] for m in report["modes"]], list(braid.ALL_MODES))
        flips = rows = 0
        for mode in report["modes"]:
            self.assertGreaterEqual(len(mode["prompts"]), 3)
            for entry in mode["prompts"]:
                self.assertGreater(entry["positions"], 0)
                self.assertGreater(entry["median_relative_rms"], 0)  # zero: it was compared with itself
                self.assertLessEqual(entry["median_relative_rms"], 0.03)
                flips += entry["flipped_rows"]
                rows += entry["positions"]
        if name in ("llama", "qwen3"):
            self.assertEqual(flips, 0)  # there is no choice to flip
        else:
            self.assertGreater(flips, 0, "bfloat16 moves some choice in hundreds of rows; none means none was seen")
            self.assertLess(flips, rows)

    def test_llama(self):
        self.check("llama", 4)

    def test_qwen3(self):
        self.check("qwen3", 2)

    def test_qwen3_moe(self):
        self.check("qwen3_moe", 8)

    def test_deepseek_v2_lite(self):
        self.check("deepseek_v2_lite", 1)

    def test_deepseek_v3(self):
        self.check("deepseek_v3", 2)

    def test_deepseek_v3_yarn(self):
        self.check("deepseek_v3_yarn", 4)


class Verdict(VerifyCase):
    """That a difference is noticed, and how it is told."""

    def changed_reference(self, change):
        tensors = braid.read_safetensors(os.path.join(braid.fixture("llama"), "reference.safetensors"))
        change(tensors)
        path = self.path("reference.safetensors")
        braid.write_safetensors(path, tensors)
        return path

    def run_with(self, reference, *arguments):
        return braid.run("verify", "--model", braid.fixture("llama"), "--dtype", "float32", "--reference", reference, "--json", *arguments)

    def test_another_reference_folder(self):
        self.expect(self.run_with(self.changed_reference(lambda tensors: None)))

    def test_one_logit(self):
        def change(tensors):
            values = tensors["logits_1"].values()
            values[17 * 320 + 5] += 3e-4
            tensors["logits_1"].data = struct.pack(f"<{len(values)}f", *values)
        result = self.expect(self.run_with(self.changed_reference(change), "--modes", "full"), 1)
        report = result.json()
        self.assertFalse(report["passed"])
        self.assertEqual(len(report["modes"][0]["failures"]), 1)
        self.assertIn("prompt 1: 86 of 87 positions within 0.0002", report["modes"][0]["failures"][0])

    def test_one_greedy_token(self):
        def change(tensors):
            tokens = tensors["greedy_2"].values()
            tokens[3] = (tokens[3] + 1) % 320
            tensors["greedy_2"] = braid.int32(tokens)
        report = self.expect(self.run_with(self.changed_reference(change), "--modes", "full"), 1).json()
        self.assertEqual(report["modes"][0]["failures"], ["prompt 2: greedy token 3 differs from the reference"])
        self.assertFalse(report["modes"][0]["prompts"][2]["greedy_equal"])

    def test_table_for_people(self):
        result = self.expect(braid.run("verify", "--model", braid.fixture("llama"), "--dtype", "float32", "--modes", "full,chunk:3"))
        self.assertEqual(result.out.strip().split("\n")[-1], "passed")
        self.assertIn("chunk:3", result.out)

    def test_mode_that_was_not_active_fails(self):
        # One prompt alone is never preempted and never has company.
        tensors = braid.read_safetensors(os.path.join(braid.fixture("llama"), "reference.safetensors"))
        path = self.path("one.safetensors")
        braid.write_safetensors(path, {n: t for n, t in tensors.items() if n.endswith("_0")})
        report = self.expect(self.run_with(path, "--modes", "batched,cached"), 1).json()
        self.assertIn("the mode was not exercised: no step held two sequences", report["modes"][0]["failures"])
        # Its 5 tokens fill no block of 16, so there is no prefix to find.
        self.assertIn("the mode was not exercised: no prefix was found in the cache", report["modes"][1]["failures"])

    def test_wrong_shape_of_reference(self):
        def change(tensors):
            tensors["logits_0"].shape = [4, 320]
            tensors["logits_0"].data = tensors["logits_0"].data[:4 * 320 * 4]
        result = self.expect(self.run_with(self.changed_reference(change)), 2)
        self.assertIn("logits_0", result.err)

    def test_dump_is_what_ran(self):
        dump, _ = self.dump_of(braid.fixture("llama"), "--dtype", "float32", "--modes", "full,cached")
        reference = braid.read_safetensors(os.path.join(braid.fixture("llama"), "reference.safetensors"))
        self.assertEqual(set(dump), {f"{kind}_{mode}_{i}" for kind in ("logits", "greedy") for mode in ("full", "cached") for i in range(3)})
        for i in range(3):
            self.assertEqual(dump[f"greedy_full_{i}"], reference[f"greedy_{i}"])
            n = len(reference[f"input_ids_{i}"].values())
            self.assertEqual(dump[f"logits_full_{i}"].shape, [n + 23, 320])
            worst = max(abs(a - b) for a, b in zip(dump[f"logits_full_{i}"].values(), reference[f"logits_{i}"].values()))
            self.assertLessEqual(worst, 2e-4)
        self.assertLess(dump["logits_cached_2"].shape[0], dump["logits_full_2"].shape[0])


if __name__ == "__main__":
    unittest.main()
