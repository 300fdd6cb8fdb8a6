#!/usr/bin/env python3
"""`--quantization`: weights in eight bits cost what the rounding costs and no more, and keep every promise of the others."""
import json
import os
import re
import statistics
import unittest

import braid

# Relative RMS of the logits that the rounding of weights may cost, median over positions. A product of many weights carries
# the relative error of one: e4m3 has a spacing between 1/8 and 1/16 of the value, so about 1/11 / sqrt(12) = 2.6 %; int8 of
# normal numbers, the largest of 64 being 2.4 deviations, 2.4 / 127 / sqrt(12) = 0.5 %. A fixture's few layers add up to
# some three times that on the residual stream.
BOUNDS = {"fp8": (0.026, 0.10), "int8": (0.005, 0.025)}
NAMES = {"fp8": "float8_e4m3", "int8": "int8"}


def relative_rms(wanted, got):
    """Per position, of two dumps' prompts in mode full, as far as their tokens agree."""
    result = []
    for name in sorted(n for n in wanted if n.startswith("logits_full_")):
        prompt = name.rsplit("_", 1)[1]
        greedy = [wanted[f"greedy_full_{prompt}"].values(), got[f"greedy_full_{prompt}"].values()]
        agree = next((i for i, (a, b) in enumerate(zip(*greedy)) if a != b), len(greedy[0]))
        n, width = wanted[name].shape
        a, b = wanted[name].values(), got[name].values()
        for row in range(n - len(greedy[0]) + agree):
            x, y = a[row * width:(row + 1) * width], b[row * width:(row + 1) * width]
            result.append((sum((p - q)**2 for p, q in zip(x, y)) / sum(p * p for p in x))**0.5)
    return result


class Fixtures(braid.TestCase):
    def check(self, name):
        model = self.model_copy(braid.fixture(name), name, without=("long.safetensors",))
        plain, result = self.dump_of(model, "--dtype", "float32", "--modes", "full")
        plain_bytes = result.json()["modes"][0]["ranks"][0]["weights_bytes"]
        for quantization, (error, bound) in BOUNDS.items():
            words = ("--quantization", quantization)
            # Other weights than the reference's, hence code 1.
            kept, result = self.dump_of(model, "--dtype", "float32", "--modes", "full", *words, code=1)
            median = statistics.median(relative_rms(plain, kept))
            held = result.json()["modes"][0]["ranks"][0]["weights_bytes"]
            print(f"{name} {quantization}: median relative RMS {median:.4f}, weights {held} B against {plain_bytes} B", flush=True)
            self.assertGreater(median, error / 10)
            self.assertLess(median, bound)
            self.assertIn(f"weights {NAMES[quantization]}", result.json()["layout"])
            self.assertLess(held, plain_bytes)
            plan = self.expect(braid.run("plan", "--model", model, "--dtype", "float32", "--json", *words)).json()
            self.assertLess(abs(plan["ranks"][0]["weights_bytes"] / held - 1), 0.25)  # a plan leaves panels' padding out
            # In bfloat16 against the same weights in float32, which `verify` runs by itself. One rank: with two, a near-tie of
            # deepseek_v3's routing goes the other way early in a short prompt, on the reference backend too.
            self.expect(braid.run("verify", "--model", model, "--dtype", "bfloat16", *words))
            # The plain form gives the same.
            reference, _ = self.dump_of(model, "--dtype", "float32", "--modes", "full", "--device", "reference", *words, code=1)
            self.assertLess(statistics.median(relative_rms(reference, kept)), 1e-5)

    def test_llama(self):
        self.check("llama")

    def test_qwen3_moe(self):
        self.check("qwen3_moe")

    def test_deepseek_v3(self):
        self.check("deepseek_v3")


class Reproducible(braid.TestCase):
    def check(self, name, quantization, dtype):
        model = self.model_copy(braid.fixture(name), name, without=("long.safetensors",))
        wanted = None
        code = 0 if dtype == "bfloat16" else 1
        for layout in (("-tp", 1, "--threads", 3), ("-tp", 2), ("-tp", 4, "-dcp", 2), ("-tp", 8)):
            dump, _ = self.dump_of(model, "--dtype", dtype, "--reproducible", "--quantization", quantization, *layout, code=code)
            wanted = wanted or dump
            self.assert_same_bits(wanted, dump, braid.ALL_MODES, f"{name} {quantization} {layout}")
        plain, _ = self.dump_of(model, "--dtype", dtype, "--reproducible")
        self.assertNotEqual(braid.different_bits(wanted, plain, "full"), [])

    def test_float8(self):
        self.check("deepseek_v3", "fp8", "bfloat16")

    def test_int8(self):
        self.check("deepseek_v2_lite", "int8", "bfloat16")

    def test_float32_activations(self):
        self.check("deepseek_v3", "int8", "float32")


class Demo(braid.TestCase):
    """Real answers: the rounding hardly ever changes one."""

    def test_answers(self):
        for quantization in BOUNDS:
            report = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--json", "--tasks", "gsm,list,fact,json,tool",
                                           "--limit", 40, "--dtype", "bfloat16", "--quantization", quantization, timeout=600)).json()
            right = sum(t["correct"] for t in report["tasks"].values())
            total = sum(t["total"] for t in report["tasks"].values())
            print(f"{report['layout']}: {right} of {total} right", flush=True)
            self.assertEqual(total, 200)
            self.assertGreaterEqual(right, 190)


class Options(braid.TestCase):
    def config(self, **more):
        with open(os.path.join(braid.fixture("deepseek_v3"), "config.json"), encoding="utf-8") as file:
            return self.write_json("config.json", json.load(file) | more)

    def test_what_is_refused(self):
        float8 = self.config(quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
        for model, words, part in ((float8, ["--quantization", "int8"], "float8 in the checkpoint"),
                                   (braid.fixture("llama"), ["--quantization", "gptq"], "auto, none, fp8, int8"),
                                   (braid.fixture("llama"), ["--device", "cuda", "--quantization", "fp8"], "is for CPU ranks so far")):
            result = braid.run("plan", "--model", model, *words)
            self.expect(result, 2)
            self.assertIn(part, result.err)

    def test_a_float8_configuration_is_planned_as_it_is_kept(self):
        float8 = self.config(dtype="bfloat16", quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
        held = {}
        for quantization in ("auto", "none"):
            plan = self.expect(braid.run("plan", "--model", float8, "--json", "--device", "cpu", "--quantization", quantization)).json()
            held[quantization] = plan["ranks"][0]["weights_bytes"]
        self.assertLess(held["auto"], held["none"])
        # A dummy run of the configuration holds such weights too, panels' padding added.
        log = self.expect(braid.run("bench", "throughput", "--model", float8, "--load-format", "dummy", "--input-len", 8, "--output-len", 2,
                                    "--num-prompts", 1, "--device", "cpu")).err
        held["run"] = int(re.search(r"rank 0: .*holds weights (\d+) B", log)[1])
        self.assertLess(held["run"], held["none"])
        self.assertGreaterEqual(held["run"], held["auto"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
