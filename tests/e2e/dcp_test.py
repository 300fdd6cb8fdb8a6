"""Decode context parallelism, end to end: every layout gives the recorded logits, and with --reproducible the same bits;
each rank holds and reads its own share of the rows and nothing else; what cannot work is refused in words.

--slow runs the full grid instead of a pairwise selection.
"""
import itertools
import json
import os
import re
import struct
import sys
import tempfile
import unittest

import braid

SLOW = "--slow" in sys.argv
ALL_MODES = "full,chunk:1,chunk:7,cached,batched,preempted"
# Heads that share a key/value row: the largest group of a layout must fit tp / kv_heads.
KV_HEADS = {"deepseek_v2_lite": 1, "deepseek_v3": 1, "deepseek_v3_yarn": 1, "llama": 2, "qwen3_moe": 4}
LATENT = ("deepseek_v2_lite", "deepseek_v3", "deepseek_v3_yarn")


def run(command, model, *arguments):
    done = braid.run(command, "--model", braid.fixture(model), "--device", "cpu", "--threads", "1", *arguments)
    return done.code, done.out, done.err


def layout(tp, dcp, interleave=1, backend="a2a", replicate=True, project=True):
    config = {"interleave_size": interleave, "enable_query_replication": replicate,
              "enable_project_before_merge": project, "comm_backend": backend}
    # Small blocks, so that sequences of a few tokens need new ones and the preempted mode preempts.
    block = max(interleave, 16 // dcp)
    return ["-tp", tp, "-dcp", dcp, "--block-size", block, "--dcp-config", json.dumps(config)]


def tensors(path):
    """{name: (shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def local_length(n, rank, ranks, interleave):
    """How many of positions 0..n-1 a rank holds, by counting."""
    return sum(1 for g in range(n) if g // interleave % ranks == rank)


def layouts():
    """(model, tp, dcp, interleave, backend, replicate, project, form, kv dtype): all of them, or a pairwise selection."""
    every = [(model, tp, dcp, s, backend, r, p, form, kv)
             for model, tp, dcp, s, backend, r, p, form, kv in itertools.product(
                 KV_HEADS, (2, 4, 8), (2, 4, 8), (1, 2, 4), ("a2a", "ag_rs"), (True, False), (True, False), ("expanded", "absorbed"),
                 ("auto", "fp8"))
             if tp % dcp == 0 and dcp <= tp // KV_HEADS[model] and s * dcp <= 32 and (p or model in LATENT)]
    if SLOW:
        return every
    # Greedy: the layout with the most pairs of values not seen yet, until none is left.
    pairs = lambda row: set(itertools.combinations(enumerate(row), 2))
    left, chosen = set().union(*map(pairs, every)), []
    while left:
        best = max(every, key=lambda row: len(pairs(row) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


class Dcp(unittest.TestCase):
    def verify(self, model, *arguments):
        code, out, err = run("verify", model, "--json", *arguments)
        self.assertTrue(out, err)
        report = json.loads(out)
        self.assertEqual([m["failures"] for m in report["modes"] if m["failures"]], [], (model, arguments))
        self.assertEqual(code, 0, err)
        return report

    one_rank = {}  # model -> per prompt, how far its float8 cache moves the logits on one rank, every row read from it

    def verify_float8(self, model, *arguments):
        """Three bits of mantissa in random weights move the logits, but a layout moves them no farther than one rank does."""
        def run_float8(*more):
            code, out, err = run("verify", model, "--json", "--dtype", "bfloat16", "--kv-cache-dtype", "fp8", *more)
            self.assertTrue(out, err)
            return json.loads(out)

        def medians(mode):
            return [prompt["median_relative_rms"] for prompt in mode["prompts"]]

        if model not in self.one_rank:
            self.one_rank[model] = medians(run_float8("-tp", 1, "--modes", "full", "--attn-prefill-form", "absorbed")["modes"][0])
        report = run_float8(*arguments)
        for mode in report["modes"]:
            for got, alone in zip(medians(mode), self.one_rank[model], strict=True):
                self.assertLess(got, 1.3 * alone, (model, mode["mode"], arguments))
        return report

    def test_every_layout_gives_the_recorded_logits(self):
        chosen = layouts()
        self.assertGreaterEqual(len(chosen), 12)
        for i, (model, tp, dcp, s, backend, replicate, project, form, kv) in enumerate(chosen):
            # All modes on some layouts, a rotating one beside full on the others.
            modes = ALL_MODES if SLOW or i % 6 == 0 else "full," + ALL_MODES.split(",")[1 + i % 5]
            with self.subTest(model=model, tp=tp, dcp=dcp, interleave=s, backend=backend, replicate=replicate, project=project, form=form, kv=kv):
                more = ["--modes", modes, "--attn-prefill-form", form, "--attn-prefill-chunk-size", 16,
                        *layout(tp, dcp, s, backend, replicate, project)]
                report = self.verify_float8(model, *more) if kv == "fp8" else self.verify(model, "--dtype", "float32", *more)
                for mode in report["modes"]:
                    c = mode["ranks"][-1]
                    calls = lambda name: c["collectives"].get(name, {"calls": 0})["calls"]
                    layers, products = c["context_layers"], calls("attn_out")  # one output product a layer and step
                    self.assertGreater(layers, 0)
                    self.assertEqual(c["replicated_query_layers"], layers if replicate else 0)
                    self.assertEqual(c["projected_before_merge_layers"], layers if project and model in LATENT else 0)
                    merges = calls("dcp_merge")
                    if form == "absorbed":
                        self.assertEqual(merges, products)
                        self.assertEqual(c["row_tokens"], 0)
                    else:  # prompts alone in their step need no merge, decoding does
                        self.assertGreater(merges, 0)
                        self.assert_rows(mode["mode"], c, layers)
                        self.assertEqual(calls("dcp_context"), c["context_windows"] * layers)
                    self.assertEqual(calls("dcp_q"), 0 if replicate else merges)
                    self.assertEqual(calls("dcp_lse"), merges if backend == "ag_rs" else 0)

    def assert_rows(self, mode, c, layers):
        """What the expanded form must have done in a mode: chunks of one token are no case for it."""
        if mode == "chunk:1":
            return self.assertEqual((c["row_tokens"], c["context_windows"]), (0, 0))
        self.assertGreater(c["row_tokens"], 0)
        if mode in ("chunk:7", "cached"):
            self.assertGreater(c["context_windows"], 0)

    def test_expanded_prefill_on_ranks_that_share_no_rows(self):
        for model, tp in itertools.product(LATENT, (1, 2, 4, 8)):
            with self.subTest(model=model, tp=tp):
                report = self.verify(model, "--dtype", "float32", "--modes", ALL_MODES if SLOW else "full,chunk:7,cached", "-tp", tp,
                                     "--block-size", 8, "--attn-prefill-form", "expanded", "--attn-prefill-chunk-size", 24)
                for mode in report["modes"]:
                    self.assert_rows(mode["mode"], mode["ranks"][-1], 0)

    def test_prompts_beside_running_answers(self):
        # A small budget: some prompts are still being read while others are answered.
        for model, arguments in (("deepseek_v3", ["-tp", 2, "--block-size", 8]), ("deepseek_v2_lite", layout(4, 4, 2)),
                                 ("deepseek_v3", layout(8, 2, 1, "ag_rs", False, False)), ("llama", layout(4, 2))):
            with self.subTest(model=model, arguments=arguments):
                report = self.verify(model, "--dtype", "float32", "--modes", "batched", "--max-num-batched-tokens", 24,
                                     "--attn-prefill-form", "expanded", *arguments)
                counts = report["modes"][0]["ranks"][0]
                self.assertGreater(counts["mixed_steps"], 0)
                self.assertGreater(counts["context_windows"], 0)

    def test_window_sizes_give_equal_values(self):
        # A window smaller than a round over the ranks is one round; one larger than every context is one window.
        seen = set()
        for size in (1, 20, 16384):
            report = self.verify("deepseek_v3_yarn", "--dtype", "float32", "--modes", "chunk:7", *layout(8, 4, 2),
                                 "--attn-prefill-form", "expanded", "--attn-prefill-chunk-size", size)
            seen.add(report["modes"][0]["ranks"][0]["context_windows"])
        self.assertEqual(len(seen), 3)

    def test_the_form_is_chosen_by_cost(self):
        # Expanding pays from 97 new tokens on behind a long context: chunks of 7 do only where there is hardly any.
        report = self.verify("deepseek_v3", "--dtype", "float32", "--modes", "full,chunk:7", *layout(8, 8))
        full, chunked = (mode["ranks"][0] for mode in report["modes"])
        self.assertGreater(full["row_tokens"], chunked["row_tokens"])
        self.assertGreater(chunked["row_tokens"], 0)
        self.assertEqual(chunked["context_windows"], 0)
        code, out, err = run("plan", "deepseek_v3", "--json", "-tp", 8)
        row = {c["option"]: c for c in json.loads(out)["context_parallel"]["choices"]}["attn-prefill-form"]
        self.assertEqual((row["asked"], row["active"]), ("auto", "auto"))
        self.assertIn("from 97 new tokens", row["reason"])
        code, out, err = run("plan", "deepseek_v3", "--json", "-tp", 8, "--reproducible", "--attn-prefill-form", "expanded")
        row = {c["option"]: c for c in json.loads(out)["context_parallel"]["choices"]}["attn-prefill-form"]
        self.assertEqual(row["active"], "absorbed")
        self.assertIn("--reproducible", row["reason"])

    def test_float8_queries(self):
        quiet = ("--kv-cache-dtype", "fp8", "--dtype", "bfloat16", "--modes", "full")
        no_copies = layout(8, 4, 2, replicate=False)
        reports = {}
        for name, arguments in (("wide", no_copies), ("fp8", no_copies + ["--fp8-query"]), ("copies", layout(8, 4, 2) + ["--fp8-query"])):
            code, out, err = run("verify", "deepseek_v3", "--json", *quiet, *arguments)
            reports[name] = json.loads(out)["modes"][0]
        counts = {name: r["ranks"][0]["collectives"].get("dcp_q") for name, r in reports.items()}
        self.assertEqual(counts["wide"]["calls"], counts["fp8"]["calls"])
        self.assertEqual(counts["wide"]["bytes"], 2 * counts["fp8"]["bytes"])
        self.assertIsNone(counts["copies"])
        layers = [reports[name]["ranks"][0]["fp8_query_layers"] for name in ("wide", "fp8", "copies")]
        self.assertEqual(layers, [0, 4, 0])
        for prompt in reports["fp8"]["prompts"]:
            self.assertLess(prompt["median_relative_rms"], 0.08)

    def bits(self, model, *arguments, modes=ALL_MODES):
        """The dump of a run whose bits must not depend on the layout; what verify says of the values is another test's."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "dump")
            code, out, err = run("verify", model, "--json", "--reproducible", "--modes", modes, "--dump", path, *arguments)
            self.assertTrue(os.path.exists(path), err)
            return json.loads(out), tensors(path)

    def test_reproducible_bits_do_not_depend_on_the_layout(self):
        models = KV_HEADS if SLOW else ("deepseek_v3", "llama")
        for model, interleave in itertools.product(models, (1, 2, 4) if SLOW else (2,)):
            report, wanted = self.bits(model, "--dtype", "float32", "-tp", 8, "-dcp", 1, "--block-size", 16,
                                       "--dcp-config", '{"interleave_size": %d}' % interleave)
            self.assertTrue(report["passed"])
            self.assertEqual(len(wanted), 6 * 3 * 2)
            for mode in ("chunk:1", "chunk:7", "batched"):
                self.assertEqual(wanted[f"logits_{mode}_2"], wanted["logits_full_2"])
            for dcp, backend, replicate in itertools.product((2, 4, 8), ("a2a", "ag_rs"), (True, False)):
                # Blocks of 16 tokens over all ranks in every layout, so that prefix hits and preemptions fall alike.
                if dcp > 8 // KV_HEADS[model] or dcp * interleave > 16:
                    continue
                if not SLOW and ((dcp == 4) + replicate + (backend == "a2a")) % 2:
                    continue
                with self.subTest(model=model, interleave=interleave, dcp=dcp, backend=backend, replicate=replicate):
                    report, got = self.bits(model, "--dtype", "float32", *layout(8, dcp, interleave, backend, replicate))
                    self.assertTrue(report["passed"])
                    self.assertEqual(got.keys(), wanted.keys())
                    self.assertEqual([name for name in wanted if got[name] != wanted[name]], [])
                    for mode in report["modes"]:
                        self.assertGreater(mode["ranks"][0]["collectives"]["dcp_merge"]["calls"], 0)
                        self.assertEqual(mode["ranks"][0]["projected_before_merge_layers"], 0)

    def test_each_rank_holds_and_reads_its_own_rows(self):
        lengths = []
        for file, answer in (("reference", 24), ("long", 1)):
            stored = tensors(os.path.join(braid.fixture("deepseek_v3"), file + ".safetensors"))
            lengths += [(stored[f"input_ids_{i}"][0][0], answer) for i in range(3) if f"input_ids_{i}" in stored]
        self.assertEqual(len(lengths), 4)
        one = {}
        for dcp, s in ((1, 1), (2, 1), (4, 4), (8, 2)):
            form = "absorbed" if dcp == 4 else "auto"
            report = self.verify("deepseek_v3", "--dtype", "float32", "--modes", "full", "--no-enable-prefix-caching",
                                 "--attn-prefill-form", form, "--max-model-len", 2048, "--max-num-seqs", 1, "-tp", 8, "-dcp", dcp, "--block-size", 16,
                                 "--dcp-config", json.dumps({"interleave_size": s}))
            ranks = report["modes"][0]["ranks"]
            self.assertEqual(len(ranks), 8)
            for rank, c in enumerate(ranks):
                local = lambda n: local_length(n, rank % dcp, dcp, s)
                written = sum(local(prompt + answer - 1) for prompt, answer in lengths)
                # A prompt that attends to its own rows reads nothing back.
                first = 0 if form == "absorbed" else 1
                read = sum(local(prompt + i) for prompt, answer in lengths for i in range(first, answer))
                self.assertEqual(c["kv_rows_written"], written)
                self.assertEqual(c["kv_rows_read"], read)
                one.setdefault(rank, c["cache_bytes"])
                self.assertEqual(c["cache_bytes"] * dcp, one[rank])

    def test_float8_cache(self):
        # Every row reads the rounded cache, so the bits of a layout are those of one rank; that it is rounded shows.
        for model, dcp in (("deepseek_v3", 8), ("llama", 4)):
            run_one = lambda *arguments: self.bits(model, "--dtype", "bfloat16", *arguments, modes="full,cached")
            _, wide = run_one("-tp", 8, "--block-size", 16, "--dcp-config", '{"interleave_size": 2}')
            _, wanted = run_one("-tp", 8, "--block-size", 16, "--kv-cache-dtype", "fp8", "--dcp-config", '{"interleave_size": 2}')
            report, got = run_one(*layout(8, dcp, 2), "--kv-cache-dtype", "fp8")
            self.assertEqual(got, wanted)
            self.assertNotEqual(got["logits_full_2"], wide["logits_full_2"])
            for mode in report["modes"]:
                for prompt in mode["prompts"]:
                    # Against float32: three bits of mantissa in random weights; bfloat16 alone gives 0.01 to 0.02.
                    self.assertLess(prompt["median_relative_rms"], 0.06)

    def generated(self, *arguments):
        code, out, err = run("generate", "deepseek_v3", "--json", "--dtype", "float32", "--load-format", "dummy", "--tokenizer", braid.DEMO, *arguments)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    def test_any_number_of_gathered_heads(self):
        # Widths that a kernel made for powers of two would pad: heads of the model, ranks, heads in a group.
        for heads, tp, dcp, gathered in ((3, 3, 3, 3), (24, 8, 8, 24), (96, 8, 4, 48), (96, 8, 8, 96)):
            shape = ["--hf-overrides", json.dumps({"num_attention_heads": heads, "num_key_value_heads": heads, "moe_intermediate_size": 48,
                                                   "intermediate_size": 96, "vocab_size": 1536}),
                     "--prompt", "The quick brown fox jumps over the lazy dog.", "--max-tokens", "12"]
            self.assertEqual(heads // tp * dcp, gathered)
            wanted, _ = self.generated(*shape, "-tp", 1)
            for replicate in (True, False):
                got, err = self.generated(*shape, *layout(tp, dcp, 1, "a2a", replicate))
                with self.subTest(heads=heads, tp=tp, dcp=dcp, replicate=replicate):
                    self.assertEqual(got["token_ids"], wanted["token_ids"])
                    self.assertEqual(len(got["logprobs"]), 12)
                    for a, b in zip(got["logprobs"], wanted["logprobs"]):
                        self.assertAlmostEqual(a, b, delta=1e-4)
                    self.assertIn("dcp_merge", err)

    def test_admission_counts_the_blocks_of_all_ranks(self):
        # Four block ids hold 4 * 16 tokens on one rank and 4 * 128 on eight.
        asked = ["--hf-overrides", '{"vocab_size": 1536}', "--prompt", "word " * 100, "--max-tokens", "20", "--block-size", 16, "--num-kv-blocks", 4]
        code, _, err = run("generate", "deepseek_v3", "--load-format", "dummy", "--tokenizer", braid.DEMO, *asked, "-tp", 8)
        self.assertNotEqual(code, 0)
        self.assertIn("64", err)
        got, _ = self.generated(*asked, "-tp", 8, "-dcp", 8)
        self.assertGreater(got["usage"]["prompt_tokens"], 64)

    def test_ten_thousand_tokens_stay_balanced(self):
        interleave = 4
        _, err = self.generated("--hf-overrides", '{"max_position_embeddings": 16384, "vocab_size": 1536}', "--prompt", "Once", "--max-tokens", "10000",
                                "--ignore-eos", *layout(2, 2, interleave))
        rows = [int(n) for n in re.findall(r"KV rows written (\d+)", err)]
        self.assertEqual(len(rows), 2)
        self.assertGreater(sum(rows), 10000)
        self.assertLessEqual(abs(rows[0] - rows[1]), interleave)

    def test_plan_counts_what_a_step_sends(self):
        # deepseek_v3: 4 layers, 8 heads, latent 32 + 16 rotated lanes, values 24; one token; float32.
        def plan(*arguments):
            code, out, err = run("plan", "deepseek_v3", "--json", "--dtype", "float32", "--memory", "1G", *arguments)
            self.assertEqual(code, 0, err)
            return json.loads(out)

        def padded(n):
            return (n + 15) // 16 * 16

        one = plan("-tp", 8)
        p = plan(*layout(8, 8))
        c = p["ranks"][0]["decode_collectives"]
        self.assertEqual(c["dcp_merge"], {"calls": 4, "bytes": 4 * 8 * (padded(4 * 24) + 16)})
        self.assertNotIn("dcp_q", c)
        self.assertEqual(p["ranks"][0]["kv_bytes_per_token"] * 8, one["ranks"][0]["kv_bytes_per_token"])
        self.assertEqual((p["context_parallel"]["replicated_queries"], p["context_parallel"]["projected_before_merge"]), (4, 4))
        p = plan(*layout(8, 8, 1, "ag_rs", False, False))
        c = p["ranks"][0]["decode_collectives"]
        self.assertEqual(c["dcp_q"], {"calls": 4, "bytes": 4 * 4 * 48})
        self.assertEqual(c["dcp_lse"], {"calls": 4, "bytes": 4 * 4 * 8})
        self.assertEqual(c["dcp_merge"], {"calls": 4, "bytes": 4 * 4 * 8 * 32})

    def test_what_is_off_says_why(self):
        code, out, err = run("plan", "deepseek_v3", "--json", "--reproducible", "-tp", 8, "-dcp", 2)
        self.assertEqual(code, 0, err)
        rows = {c["option"]: c for c in json.loads(out)["context_parallel"]["choices"]}
        self.assertEqual(rows["enable_project_before_merge"]["asked"], "on")
        self.assertEqual(rows["enable_project_before_merge"]["active"], "off")
        self.assertIn("--reproducible", rows["enable_project_before_merge"]["reason"])
        self.assertEqual(rows["enable_query_replication"]["active"], "on")
        code, out, err = run("plan", "llama", "--json", "-tp", 8, "-dcp", 2, "--dcp-config", '{"enable_query_replication": "auto"}')
        self.assertEqual(code, 0, err)
        rows = {c["option"]: c for c in json.loads(out)["context_parallel"]["choices"]}
        self.assertIn("value up-projection", rows["enable_project_before_merge"]["reason"])
        self.assertEqual(rows["enable_query_replication"]["asked"], "auto")
        self.assertIn("estimated", rows["enable_query_replication"]["reason"])

    def test_auto_is_measured(self):
        config = '{"enable_query_replication": "auto", "enable_project_before_merge": "auto"}'
        done = braid.run("verify", "--model", braid.fixture("deepseek_v3"), "--device", "cpu", "--threads", "1", "--json", "--dtype", "float32",
                         "--modes", "full", "-tp", 4, "-dcp", 4, "--dcp-config", config)
        self.assertEqual(done.code, 0, done.err)
        for option in ("enable_query_replication", "enable_project_before_merge"):
            self.assertRegex(done.err, option + " (on|off), asked auto: measured: the group's .* weights are [0-9.]+ us")
        layers = json.loads(done.out)["modes"][0]["ranks"][0]
        self.assertEqual(layers["replicated_query_layers"], 4 if "enable_query_replication on" in done.err else 0)
        self.assertEqual(layers["projected_before_merge_layers"], 4 if "enable_project_before_merge on" in done.err else 0)

    def test_refusals(self):
        for model, arguments, reason in (
                ("deepseek_v3", ["-tp", 8, "-dcp", 3], "does not divide --tensor-parallel-size 8; use 1, 2, 4 or 8"),
                ("llama", ["-tp", 4, "-dcp", 4], "only 2 ranks share a head; use 1 or 2"),
                ("llama", ["-tp", 2, "-dcp", 2], "only 1 ranks share a head; use 1"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", '{"interleave_size": 5}'], "does not divide --block-size 16"),
                ("deepseek_v3", ["-tp", 2, "--dcp-config", '{"interleave_size": 4}'], "or --reproducible"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", '{"interleave": 4}'], "'interleave' is unknown"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", '{"interleave_size": true}'], "whole number"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", '{"enable_query_replication": 1}'], 'true, false or "auto"'),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", '{"comm_backend": "nccl"}'], '"a2a" or "ag_rs"'),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-config", "[1]"], "not a JSON object"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--fp8-query"], "add --kv-cache-dtype fp8"),
                ("deepseek_v3", ["-tp", 2, "-dcp", 2, "--dcp-comm-backend", "ag_rs", "--dcp-config", '{"comm_backend": "a2a"}'], "contradicts")):
            with self.subTest(arguments=arguments):
                code, out, err = run("plan", model, *arguments)
                self.assertEqual(code, 2, out + err)
                self.assertIn(reason, err)

    def test_other_spellings(self):
        code, out, err = run("plan", "deepseek_v3", "--json", "-tp", 4, "--decode-context-parallel-size", 2,
                             "--cp-kv-cache-interleave-size", 8, "--dcp-comm-backend", "ag_rs")
        self.assertEqual(code, 0, err)
        rows = {c["option"]: c["active"] for c in json.loads(out)["context_parallel"]["choices"]}
        self.assertEqual((rows["interleave_size"], rows["comm_backend"]), ("8", "ag_rs"))


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--slow"], verbosity=2)
