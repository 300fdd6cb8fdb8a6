#!/usr/bin/env python3
"""Real clients against `braid serve` with the demo: curl, the openai package, lm-eval.

A Python package that is not there is installed into a folder of its own (BRAID_CLIENTS, else a temporary one); where that
fails the test is skipped, and says why.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import braid
from serving import OneServer, events

HERE = os.path.dirname(os.path.abspath(__file__))


def python_with(packages, module, seconds):
    """The interpreter of a virtual environment that has the packages, installed in that time; raises SkipTest with the reason where it cannot be had."""
    folder = os.path.join(os.environ.get("BRAID_CLIENTS") or os.path.join(tempfile.gettempdir(), f"braid_clients_{os.getuid()}"), module)
    python = os.path.join(folder, "bin", "python")
    works = [python, "-c", f"import {module}"]
    if os.path.exists(python) and subprocess.run(works, capture_output=True, check=False).returncode == 0:
        return python
    for words in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], works):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        except (subprocess.TimeoutExpired, OSError) as error:
            raise unittest.SkipTest(f"{module} cannot be had: {error}") from None
        if done.returncode != 0:
            raise unittest.SkipTest(f"{module} cannot be had: {(done.stderr or done.stdout).strip()[-500:]}")
    return python


class OpenAi(OneServer):
    def test_openai_package(self):
        python = python_with(["openai"], "openai", 240)
        done = subprocess.run([python, os.path.join(HERE, "openai_client.py"), f"http://127.0.0.1:{self.server.port}/v1"], capture_output=True, text=True,
                              timeout=300, check=False)
        print(done.stdout, flush=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class OpenAiWithKey(OneServer):
    ARGUMENTS = ("--api-key", "sesame")

    def test_openai_package(self):
        python = python_with(["openai"], "openai", 240)
        for key, code in (("sesame", 0), ("wrong", 1)):
            done = subprocess.run([python, os.path.join(HERE, "openai_client.py"), f"http://127.0.0.1:{self.server.port}/v1", "--api-key", key],
                                  capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn("AuthenticationError", done.stderr)


@unittest.skipUnless(shutil.which("curl"), "curl is not installed")
class Curl(OneServer):
    """Transcripts: what a user types, and what comes back but for ids and times."""

    def curl(self, *words):
        done = subprocess.run(["curl", "-sS", "--max-time", "60", *words[:-1], f"http://127.0.0.1:{self.server.port}{words[-1]}"], capture_output=True, text=True,
                              check=True)
        text = re.sub(r'"id":"(chatcmpl|cmpl)-[0-9a-f]{32}"', r'"id":"\1-ID"', done.stdout)
        return re.sub(r'"created":\d+', '"created":0', text)

    def post(self, path, body, *more):
        return self.curl("-H", "Content-Type: application/json", "-d", json.dumps(body), *more, path)

    KENYA = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of Kenya?"}]}

    def test_chat(self):
        self.assertEqual(self.post("/v1/chat/completions", self.KENYA),
                         '{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"demo","choices":[{"index":0,"message":{"role":"assistant",'
                         '"content":"The capital of Kenya is Nairobi."},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":21,'
                         '"total_tokens":29,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}')

    def test_stream(self):
        text = self.post("/v1/chat/completions", {**self.KENYA, "stream": True, "stream_options": {"include_usage": True}}, "-N")
        data = events(text)
        start = '{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"demo","choices":['
        self.assertEqual(data[0], start + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}')
        self.assertTrue(data[-3].endswith('"finish_reason":"stop","stop_reason":null}]}'), data[-3])
        self.assertTrue(data[-2].startswith(start + '],"usage":{"prompt_tokens":'), data[-2])
        self.assertEqual(data[-1], "[DONE]")

    def test_refusals(self):
        for body, status, error in (
                ({**self.KENYA, "model": "other"}, 404, {"message": "The model 'other' does not exist; this server has 'demo'.", "type": "not_found_error",
                                                         "param": "model", "code": "model_not_found"}),
                ({**self.KENYA, "temperature": "hot"}, 400, {"message": "'temperature' must be a number, not string", "type": "invalid_request_error",
                                                             "param": "temperature", "code": 400}),
                ({**self.KENYA, "response_format": {"type": "json_object"}}, 400,
                 {"message": "'response_format' \"json_object\" cannot be enforced yet; use text", "type": "invalid_request_error", "param": "response_format",
                  "code": 400}),
                ({**self.KENYA, "tool_choice": "required"}, 400, {"message": "'tool_choice' \"required\" cannot be enforced yet; use auto or none",
                                                                  "type": "invalid_request_error", "param": "tool_choice", "code": 400})):
            text = self.post("/v1/chat/completions", body, "-w", "%{http_code}")
            self.assertEqual((int(text[-3:]), json.loads(text[:-3])["error"]), (status, error))

    def test_echo_with_logprobs(self):
        """What lm-eval asks: the log-probability of each token of a prompt given as ids."""
        ids = json.loads(self.post("/tokenize", {"prompt": "One two three"}))["tokens"]
        choice = json.loads(self.post("/v1/completions", {"model": "demo", "prompt": [ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True,
                                                          "seed": 1234}))["choices"][0]
        told = choice["logprobs"]
        self.assertEqual(len(told["tokens"]), len(ids) + 1)
        self.assertIsNone(told["token_logprobs"][0])
        self.assertTrue(all(p <= 0 for p in told["token_logprobs"][1:]))
        self.assertEqual(len(told["top_logprobs"]), len(ids) + 1)
        text = self.post("/v1/completions", {"model": "demo", "prompt": "One", "echo": True, "logprobs": 1, "stream": True}, "-w", "%{http_code}")
        self.assertEqual((text[-3:], json.loads(text[:-3])["error"]["param"]), ("400", "echo"))

    def test_small_routes(self):
        self.assertEqual(self.curl("/health"), '{"status":"ok"}')
        self.assertEqual(self.curl("/v1/models"), '{"object":"list","data":[{"id":"demo","object":"model","created":0,"owned_by":"braid","max_model_len":16384}]}')
        self.assertRegex(self.curl("/version"), r'^\{"version":"[\d.]+"\}$')


class LmEval(OneServer):
    """lm-eval's local-completions on questions of the demo set, as people point it at a server."""
    N = 20

    def test_local_completions(self):
        python = python_with(["lm_eval[api]", "transformers"], "lm_eval", 600)
        items = [item for item in braid.eval_items() if item["task"] == "fact"][:self.N]
        with open(self.path("facts.jsonl"), "w", encoding="utf-8") as file:
            for item in items:
                prompt = json.loads(self.server.request("POST", "/detokenize", {"tokens": item["prompt_ids"]})[2])["prompt"]
                file.write(json.dumps({"prompt": prompt, "answer": item["output"], "choices": ["No.", item["output"], "The the the."]}) + "\n")
        common = (f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {self.path('facts.jsonl')}\ntest_split: test\ndoc_to_text: '{{{{prompt}}}}'\n"
                  "target_delimiter: ''\n")
        with open(self.path("generated.yaml"), "w", encoding="utf-8") as file:
            file.write("task: demo_generated\noutput_type: generate_until\n" + common + "doc_to_target: '{{answer}}'\ngeneration_kwargs:\n  until: ['<|im_end|>']\n"
                       "  max_gen_toks: 64\n  temperature: 0\nmetric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n")
        with open(self.path("chosen.yaml"), "w", encoding="utf-8") as file:
            file.write("task: demo_chosen\noutput_type: multiple_choice\n" + common + "doc_to_choice: choices\ndoc_to_target: 1\n"
                       "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n")
        arguments = (f"model=demo,base_url=http://127.0.0.1:{self.server.port}/v1/completions,num_concurrent=8,tokenizer_backend=huggingface,"
                     f"tokenizer={braid.DEMO},max_length=16384")
        done = subprocess.run([python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks", "demo_generated,demo_chosen",
                               "--include_path", self.folder, "--output_path", self.path("out")], capture_output=True, text=True, timeout=900, check=False,
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": self.path("hf")})
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-6000:])
        reports = [os.path.join(folder, name) for folder, _, names in os.walk(self.path("out")) for name in names if name.startswith("results")]
        with open(reports[0], encoding="utf-8") as file:
            results = json.load(file)["results"]
        print(json.dumps(results), flush=True)
        self.assertEqual(results["demo_generated"]["exact_match,none"], 1.0)
        self.assertEqual(results["demo_chosen"]["acc,none"], 1.0)


if __name__ == "__main__":
    outcome = unittest.main(exit=False).result
    for test, reason in outcome.skipped:
        print(f"skipped {test}: {reason}", file=sys.stderr)
    all_skipped = outcome.skipped and len(outcome.skipped) == outcome.testsRun + sum("setUpClass" in str(t) for t, _ in outcome.skipped)
    sys.exit(1 if not outcome.wasSuccessful() else 77 if all_skipped else 0)
