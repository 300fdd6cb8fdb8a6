#!/usr/bin/env python3
"""`braid bench` and `--trace` with the demo: figures that add up, files, refusals."""
import json
import re
import unittest

import braid
from serving import OneServer

IN_PROCESS = ("--model", braid.DEMO, "--dtype", "float32")


class InProcess(braid.TestCase):
    def test_latency(self):
        file = self.path("latency.json")
        result = self.expect(braid.run("bench", "latency", *IN_PROCESS, "-tp", "2", "--input-len", "20", "--output-len", "6", "--batch-size", "3",
                                       "--num-iters", "4", "--num-iters-warmup", "1", "--output-json", file, "--json"))
        report = result.json()
        with open(file, encoding="utf-8") as written:
            self.assertEqual(json.load(written), report)
        self.assertEqual(len(report["latencies"]), 4)
        self.assertAlmostEqual(report["avg_latency"], sum(report["latencies"]) / 4)
        self.assertEqual(set(report["percentiles"]), {"10", "25", "50", "75", "90", "99"})
        self.assertLessEqual(report["percentiles"]["10"], report["percentiles"]["99"])
        counters = report["counters"]
        self.assertEqual(counters["generated_tokens"], 5 * 3 * 6)
        self.assertEqual(counters["prompt_tokens"], 5 * 3 * 20)
        self.assertEqual(counters["cached_tokens"], 0)
        self.assertEqual(counters["steps"], 5 * 6)  # a prefill and five decodes, the batch together
        self.assertEqual(len(counters["ranks"]), 2)
        self.assertGreater(sum(c["calls"] for c in counters["ranks"][0]["collectives"].values()), 0)
        self.assertTrue(braid.collectives_in(result.err))

    def test_throughput(self):
        result = self.expect(braid.run("bench", "throughput", *IN_PROCESS, "--num-prompts", "20", "--input-len", "30", "--output-len", "5"))
        self.assertRegex(result.out, r"^Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s\n"
                                     r"Total num prompt tokens: 600\nTotal num output tokens: 100\n$")

    def test_throughput_with_shared_prefixes(self):
        report = self.expect(braid.run("bench", "throughput", *IN_PROCESS, "--num-prompts", "12", "--dataset-name", "prefix_repetition", "--max-num-seqs", "1",
                                       "--prefix-repetition-prefix-len", "64", "--prefix-repetition-suffix-len", "8", "--prefix-repetition-num-prefixes", "3",
                                       "--prefix-repetition-output-len", "2", "--json")).json()
        self.assertEqual((report["num_requests"], report["total_input_tokens"], report["total_output_tokens"]), (12, 12 * 72, 24))
        self.assertEqual(report["counters"]["cached_tokens"], 9 * 64)  # all but each prefix's first

    def test_file_of_prompts(self):
        with open(self.path("p.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"prompt": "One two three", "output_tokens": 3}\n{"prompt": "Four"}\n')
        report = self.expect(braid.run("bench", "throughput", *IN_PROCESS, "--num-prompts", "2", "--dataset-name", "custom", "--dataset-path", self.path("p.jsonl"),
                                       "--custom-output-len", "4", "--json")).json()
        self.assertEqual(report["total_output_tokens"], 7)

    def test_trace(self):
        file = self.path("trace.json")
        report = self.expect(braid.run("bench", "throughput", *IN_PROCESS, "-tp", "2", "--num-prompts", "3", "--input-len", "9", "--output-len", "4",
                                       "--json", "--trace", file)).json()
        with open(file, encoding="utf-8") as written:
            events = json.load(written)["traceEvents"]
        steps = report["counters"]["steps"]
        count = {name: sum(e["ph"] == "X" and e["name"] == name for e in events) for name in ("schedule", "lower", "forward", "sample", "commit")}
        self.assertEqual(count, {"schedule": steps, "lower": 2 * steps, "forward": 2 * steps, "sample": steps, "commit": steps})
        self.assertTrue(all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X"))
        names = {e["args"]["name"] for e in events if e["ph"] == "M"}
        self.assertLessEqual({"engine, rank 0", "rank 1", "process 0"}, names)

    def test_refusals(self):
        for words, said in ((["bench"], "which?"), (["bench", "speed"], "'speed' is unknown"),
                            (["bench", "latency", *IN_PROCESS, "--input-len", "16384"], "--max-model-len 16384"),
                            (["bench", "throughput", *IN_PROCESS, "--dataset-name", "custom"], "--dataset-path"),
                            (["bench", "serve"], "--tokenizer DIR is missing"),
                            (["bench", "serve", "--model", braid.DEMO, "--percentile-metrics", "ttft,speed"], "'speed' is unknown"),
                            (["bench", "serve", "--model", braid.DEMO, "--base-url", "ftp://x"], "ftp://x")):
            self.assertIn(said, self.expect(braid.run(*words), 2).err, words)
        self.assertIn("cannot be asked", self.expect(braid.run("bench", "serve", "--model", braid.DEMO, "--port", "1"), 1).err)


class Serve(OneServer):
    def bench(self, *arguments, code=0):
        return self.expect(braid.run("bench", "serve", "--model", braid.DEMO, "--port", self.server.port, *arguments), code)

    def test_report(self):
        result = self.bench("--num-prompts", 20, "--random-input-len", 12, "--random-output-len", 8, "--ignore-eos", "--max-concurrency", 4,
                            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--goodput", "e2el:60000")
        for line in (r"={12} Serving Benchmark Result ={12}", r"Successful requests: {21}20  ", r"Total generated tokens: {18}160 ",
                     r"Request goodput \(req/s\): ", r"-{15}Time to First Token-{16}", r"Mean TTFT \(ms\): ", r"P99 TPOT \(ms\): ",
                     r"-{15}Inter-token Latency-{16}", r"P50 E2EL \(ms\): ", r"={50}"):
            self.assertRegex(result.out, re.compile("^" + line, re.M))
        self.assertNotIn("FAILED", result.out)

    def test_json_and_file(self):
        for endpoint in ((), ("--backend", "openai-chat")):
            report = self.bench(*endpoint, "--num-prompts", 10, "--random-input-len", 16, "--random-output-len", 6, "--ignore-eos", "--request-rate", 50,
                                "--seed", 3, "--json", "--save-detailed", "--result-filename", self.path("r.json"), "--metadata", "who=me").json()
            with open(self.path("r.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file), report)
            self.assertEqual((report["completed"], report["failed"], report["who"], report["model_id"]), (10, 0, "me", "demo"))
            self.assertEqual(report["total_output_tokens"], 60)
            self.assertEqual(report["output_lens"], [6] * 10)
            self.assertGreaterEqual(min(report["input_lens"]), 16)
            self.assertGreater(report["duration"], report["start_times"][-1])
            self.assertLessEqual(report["median_ttft_ms"], report["p99_ttft_ms"])
            self.assertAlmostEqual(report["output_throughput"], 60 / report["duration"], places=6)
            for ttft, latency in zip(report["ttfts"], report["latencies"]):
                self.assertLess(ttft, latency)
        self.assertTrue(self.server.request("GET", "/health")[0] == 200)

    def test_failures_are_told(self):
        result = self.bench("--num-prompts", 3, "--random-input-len", 20000, "--random-output-len", 4, code=1)
        self.assertIn("the first request failed: 400", result.err)
        result = self.bench("--num-prompts", 3, "--random-input-len", 20000, "--random-output-len", 4, "--num-warmups", 0, code=1)
        self.assertRegex(result.out, r"FAILED requests: +3")
        self.assertIn("maximum context length", result.out)


if __name__ == "__main__":
    unittest.main()
