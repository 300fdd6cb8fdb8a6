#!/usr/bin/env python3
"""`--reproducible`: the same bits for every layout, carrier, chunking, prefix hit, preemption, batch and thread count.

The comparison is of bytes: of dumped logits for the fixtures and the demo, of the whole line of `generate --json`, whose
nine digits give a float32 back exactly. Each part also shows that the comparison fails where it must.
"""
import json
import unittest

import braid

TPS = (1, 2, 4, 8)


class Fixtures(braid.TestCase):
    """tp x modes, in both types, on three architectures."""

    def check(self, name, dtype):
        # Without long.safetensors, which the dump does not hold.
        model = self.model_copy(braid.fixture(name), without=("long.safetensors",))
        wanted = None
        for tp in TPS:
            dump, result = self.dump_of(model, "--dtype", dtype, "-tp", tp, "--reproducible")
            self.assertIn("reproducible", result.json()["layout"])
            wanted = wanted or dump
            self.assert_same_bits(wanted, dump, braid.ALL_MODES, f"{name} {dtype} tp {tp} against tp 1")
            cached = {m["mode"]: m["counters"]["cached_tokens"] for m in result.json()["modes"]}["cached"]
            missing = sum(wanted[f"logits_full_{i}"].shape[0] - dump[f"logits_cached_{i}"].shape[0] for i in range(3))
            self.assertEqual(missing, cached)  # rows were left out because they were found, and no others
            self.assertGreater(cached, 0)
        return wanted

    def test_llama_float32(self):
        self.check("llama", "float32")

    def test_llama_bfloat16(self):
        self.check("llama", "bfloat16")

    def test_deepseek_v2_lite_float32(self):
        self.check("deepseek_v2_lite", "float32")

    def test_deepseek_v2_lite_bfloat16(self):
        self.check("deepseek_v2_lite", "bfloat16")

    def test_deepseek_v3_float32(self):
        self.check("deepseek_v3", "float32")

    def test_deepseek_v3_bfloat16(self):
        self.check("deepseek_v3", "bfloat16")


class Controls(braid.TestCase):
    """That the comparison of dumps can fail."""

    def setUp(self):
        super().setUp()
        self.model = self.model_copy(braid.fixture("llama"), without=("long.safetensors",))
        self.wanted, _ = self.dump_of(self.model, "--dtype", "float32", "--modes", "full,cached", "--reproducible")

    def test_another_type_of_cache_has_other_bits(self):
        got, _ = self.dump_of(self.model, "--dtype", "float32", "--kv-cache-dtype", "bf16", "--modes", "full", "--reproducible", code=1)
        problems = braid.different_bits(self.wanted, got, "full")
        self.assertEqual(sum("rows differ" in p for p in problems), 3)

    def test_without_the_flag_layouts_differ(self):
        # Otherwise --reproducible would promise nothing.
        one, _ = self.dump_of(self.model, "--dtype", "float32", "--modes", "full")
        four, _ = self.dump_of(self.model, "--dtype", "float32", "--modes", "full", "-tp", 4)
        self.assertNotEqual(braid.different_bits(one, four, "full"), [])

    def test_one_flipped_bit(self):
        got = dict(self.wanted)
        data = bytearray(got["logits_cached_1"].data)
        data[-1] ^= 1
        got["logits_cached_1"] = braid.Stored("F32", got["logits_cached_1"].shape, bytes(data))
        self.assertEqual(braid.different_bits(self.wanted, got, "full"), [])
        self.assertEqual(len(braid.different_bits(self.wanted, got, "cached")), 1)

    def test_another_token_and_missing_rows(self):
        got = dict(self.wanted)
        tokens = got["greedy_full_0"].values()
        got["greedy_full_0"] = braid.int32([tokens[0] ^ 1] + tokens[1:])
        rows = got["logits_full_1"]
        got["logits_full_1"] = braid.Stored("F32", [rows.shape[0] - 1, 320], rows.data[4 * 320:])
        del got["logits_full_2"]
        self.assertEqual(len(braid.different_bits(self.wanted, got, "full")), 3)


class Generate(braid.TestCase):
    """The demo's answer, to the last digit."""

    def answer(self, *arguments, task="gsm", processes=0):
        item = next(item for item in braid.eval_items() if item["task"] == task)
        messages = self.write_json("messages.json", item["messages"])
        result = self.expect(braid.run("generate", "--model", braid.DEMO, "--messages", messages, "--max-tokens", 24, "--json",
                                       "--reproducible", *arguments, processes=processes))
        self.assertEqual(len(result.json()["token_ids"]), 24)
        self.assertGreater(result.json()["usage"]["prompt_tokens"], 40)
        return result.out

    def test_layouts_chunks_and_threads(self):
        for dtype in ("bfloat16", "float32"):
            wanted = self.answer("--dtype", dtype)
            variants = [("-tp", 2), ("-tp", 4), ("-tp", 8), ("--prefill-chunk", 1), ("--prefill-chunk", 7), ("--threads", 1),
                        ("--threads", 3), ("-tp", 2, "--threads", 2, "--prefill-chunk", 7), ("-tp", 8, "--prefill-chunk", 1),
                        ("--block-size", 1), ("--no-enable-prefix-caching", "-tp", 4)]
            for variant in variants:
                self.assertEqual(self.answer("--dtype", dtype, *variant), wanted, (dtype, variant))

    @unittest.skipUnless(braid.MPIRUN, "the build has no MPI")
    def test_processes(self):
        wanted = self.answer()
        for processes, tp in ((2, 2), (2, 4), (4, 4), (4, 8)):
            self.assertEqual(self.answer("-tp", tp, processes=processes), wanted, f"{processes} processes, tp {tp}")

    def test_control(self):
        wanted = self.answer()
        self.assertNotEqual(json.loads(self.answer("--dtype", "float32"))["logprobs"], json.loads(wanted)["logprobs"])
        self.assertNotEqual(self.answer(task="list"), wanted)


class Company(braid.TestCase):
    """What else is in the batch changes no bit of a demo answer, nor do preemption, chunks and prefix hits."""

    def test_batch_mates(self):
        prompts, beginnings = [], set()
        for item in braid.eval_items():
            beginning = tuple(item["prompt_ids"][:16])  # a common block would be found in the cache, its rows left out
            if len(item["prompt_ids"]) < 180 and beginning not in beginnings and len(prompts) < 10:
                beginnings.add(beginning)
                prompts.append(item["prompt_ids"])
        self.assertEqual(len(prompts), 10)
        crowd, alone = self.path("crowd.safetensors"), self.path("alone.safetensors")
        braid.write_reference(crowd, prompts, 12, 1536)
        braid.write_reference(alone, prompts[3:4], 12, 1536)
        everybody, _ = self.dump_of(braid.DEMO, "--reference", crowd, "--reproducible", name="a")
        for mode in braid.ALL_MODES[1:]:
            self.assertEqual(braid.different_bits(everybody, everybody, mode), [], mode)
        self.assertEqual({name for name in everybody if name.startswith("logits_batched")}, {f"logits_batched_{i}" for i in range(len(prompts))})
        single, _ = self.dump_of(braid.DEMO, "--reference", alone, "--reproducible", "--modes", "full", name="b")
        self.assertEqual(single["logits_full_0"], everybody["logits_batched_3"])
        self.assertNotEqual(single["logits_full_0"].data, everybody["logits_batched_2"].data)
        split, _ = self.dump_of(braid.DEMO, "--reference", crowd, "--reproducible", "-tp", 4, "--modes", "batched,preempted,cached", name="c")
        self.assert_same_bits(everybody, split, ("batched", "preempted", "cached"), "tp 4 against tp 1")


if __name__ == "__main__":
    unittest.main()
