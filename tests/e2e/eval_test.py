#!/usr/bin/env python3
"""`braid eval` on the demo: scores, transcripts and log-probabilities against those of the reference."""
import json
import unittest

import braid

SIZES = {"gsm": 400, "gsm_think": 100, "recall_500": 100, "list": 100, "recall_2k": 60, "fact": 60, "recall_6k": 40, "json": 40, "tool": 40,
         "recall_11k": 12}
SHORT = tuple(task for task in SIZES if task not in ("recall_2k", "recall_6k", "recall_11k"))


class EvalCase(braid.TestCase):
    def eval(self, *arguments, tasks=(), limit=0, timeout=600):
        words = (["--tasks", ",".join(tasks)] if tasks else []) + (["--limit", limit] if limit else [])
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--json", *words, *arguments, timeout=timeout))
        report = result.json()
        self.assertEqual({t: s["total"] for t, s in report["tasks"].items()}, {t: min(limit or n, n) for t, n in SIZES.items() if t in (tasks or SIZES)})
        self.assertEqual(report["prompt_mismatches"], 0)
        self.assertGreater(report["seconds"], 0)
        for task, score in report["tasks"].items():
            print(f"{report['layout']} {task}: {score['correct']} of {score['total']} right, {score['equal_transcripts']} equal, "
                  f"{score['max_abs_dlogprob']:.2g}", flush=True)
        print(f"{report['layout']}: {report['seconds']:.1f} s", flush=True)
        return report

    def exact(self, tp, **what):
        """Float32: all as the reference, to a thousandth."""
        report = self.eval("--dtype", "float32", "-tp", tp, **what)
        self.assertEqual(report["layout"], f"tp{tp} float32")
        for task, score in report["tasks"].items():
            self.assertEqual(score["correct"], score["total"], task)
            self.assertLessEqual(score["max_abs_dlogprob"], 1e-3, task)
            self.assertGreater(score["max_abs_dlogprob"], 0, f"{task}: the reference was not computed by this program")
        return report


class Some(EvalCase):
    """The first questions of every task; of long prompts fewer."""

    def check(self, tp):
        for what in ({"tasks": SHORT + ("recall_2k",), "limit": 6}, {"tasks": ("recall_6k", "recall_11k"), "limit": 1}):
            for task, score in self.exact(tp, **what)["tasks"].items():
                self.assertEqual(score["equal_transcripts"], score["total"], task)

    def test_float32_tp1(self):
        self.check(1)

    def test_float32_tp2(self):
        self.check(2)

    def test_context_parallel(self):
        # Float32 again; the prompts of 2,000 tokens come in chunks, so that the context is gathered in windows.
        report = self.eval("--dtype", "float32", "-tp", 2, "-dcp", 2, "--prefill-chunk", 512, "--attn-prefill-chunk-size", 256,
                           tasks=("gsm", "fact", "recall_2k"), limit=3)
        for task, score in report["tasks"].items():
            self.assertEqual((score["correct"], score["equal_transcripts"]), (3, 3), task)
            self.assertLessEqual(score["max_abs_dlogprob"], 1e-3, task)

    def test_context_parallel_float8_cache(self):
        for query in ([], ["--fp8-query", "--dcp-config", '{"enable_query_replication": false}']):
            report = self.eval("-tp", 2, "-dcp", 2, "--kv-cache-dtype", "fp8", *query, tasks=SHORT, limit=4)
            self.assertEqual(report["layout"], "tp2 dcp2 bfloat16 kv float8_e4m3")
            scores = report["tasks"].values()
            self.assertGreaterEqual(sum(s["correct"] for s in scores), sum(s["total"] for s in scores) - 1)
            # The demo is sure of itself; float32 stays below 1e-6.
            self.assertGreater(max(s["max_abs_dlogprob"] for s in scores), 1e-4)

    def test_bfloat16(self):
        for what in ({"tasks": SHORT + ("recall_2k",), "limit": 6}, {"tasks": ("recall_6k",), "limit": 1}):
            report = self.eval(**what)
            self.assertEqual(report["layout"], "tp1 bfloat16")
            for task, score in report["tasks"].items():
                self.assertEqual(score["correct"], score["total"], task)


class Score(EvalCase):
    """That wrong answers, other transcripts and other prompts are counted."""

    def items(self, *changes):
        """A file of three facts, each changed by one function."""
        items = [item for item in braid.eval_items() if item["task"] == "fact"][:len(changes)]
        for item, change in zip(items, changes):
            change(item)
        path = self.path("items.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item) + "\n")
        return path

    def score(self, *changes, code=0):
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", self.items(*changes), "--dtype", "float32", "--json"), code)
        return result.json(), result.json()["tasks"]["fact"], result

    def test_wrong_answer(self):
        _, score, _ = self.score(lambda item: None, lambda item: item.update(answer="Nowhere."))
        self.assertEqual([score["total"], score["correct"], score["equal_transcripts"]], [2, 1, 2])

    def test_other_transcript(self):
        def change(item):
            item["output_ids"][3] += 1
            item["output_logprobs"][5] = -9.0  # behind the first difference: not compared
        _, score, _ = self.score(lambda item: None, change)
        self.assertEqual([score["correct"], score["equal_transcripts"]], [2, 1])
        self.assertLess(score["max_abs_dlogprob"], 1e-3)

    def test_other_log_probability(self):
        _, score, _ = self.score(lambda item: item["output_logprobs"].__setitem__(2, item["output_logprobs"][2] - 0.25))
        self.assertAlmostEqual(score["max_abs_dlogprob"], 0.25, delta=1e-3)
        self.assertEqual(score["equal_transcripts"], 1)

    def test_other_prompt(self):
        report, score, result = self.score(lambda item: None, lambda item: item["prompt_ids"].append(5))
        self.assertEqual(report["prompt_mismatches"], 1)
        self.assertIn("the rendered prompt has other tokens", result.err)
        self.assertEqual(score["correct"], 2)  # it asks what it renders itself

    def test_unanswered_question(self):
        def change(item):
            item["messages"] = [{"role": "user", "content": "word " * 20000}]
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", self.items(lambda item: None, change), "--json"), 1)
        self.assertEqual(result.json()["tasks"]["fact"]["correct"], 1)
        self.assertIn("was not answered", result.err)

    def test_files_that_are_no_evaluation(self):
        for text in ("not json\n", "{}\n", "[]\n", '{"id": 1, "task": "x"}\n', "\n"):
            with open(self.path("bad.jsonl"), "w", encoding="ascii") as file:
                file.write(text)
            result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", self.path("bad.jsonl")), 2)
            self.assertIn(self.path("bad.jsonl"), result.err)
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--tasks", "cooking"), 2)
        self.assertIn(braid.EVAL, result.err)

    def test_table_for_people(self):
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--tasks", "fact,json", "--limit", "2"))
        self.assertRegex(result.out, r"all +4 of +4 right, +4 transcripts equal, max \|delta logprob\|")


class Whole(EvalCase):
    """All 952 questions."""

    def check(self, tp):
        report = self.exact(tp, timeout=3000)
        total = sum(s["total"] for s in report["tasks"].values())
        self.assertEqual(total, 952)
        self.assertGreaterEqual(sum(s["equal_transcripts"] for s in report["tasks"].values()), 0.995 * total)

    def test_float32_tp1(self):
        self.check(1)

    def test_float32_tp2(self):
        self.check(2)

    def test_float32_tp4(self):
        self.check(4)

    def test_float32_tp8(self):
        self.check(8)

    def test_bfloat16(self):
        report = self.eval(timeout=3000)
        total = sum(s["total"] for s in report["tasks"].values())
        self.assertGreaterEqual(sum(s["correct"] for s in report["tasks"].values()), 0.99 * total)


if __name__ == "__main__":
    unittest.main()
