#!/usr/bin/env python3
"""The contract of the command line: exit codes, streams, aliases, and all problems of a call reported together."""
import json
import os
import shutil
import subprocess
import unittest

import braid

COMMANDS = ("serve", "generate", "verify", "eval", "plan", "render", "chat")


class Words(braid.TestCase):
    def refused(self, *arguments, seconds=2.0):
        """Exit 2 within two seconds, nothing on stdout; the lines on stderr."""
        result = self.expect(braid.run(*arguments, timeout=30), 2)
        self.assertEqual(result.out, "")
        self.assertLess(result.seconds, seconds, str(result))
        return result.err

    def test_help(self):
        for words in (("--help",), ("-h",), ("help",)):
            result = self.expect(braid.run(*words))
            self.assertEqual(result.err, "")
            for command in COMMANDS:
                self.assertIn(f"  {command}", result.out)
        for command in COMMANDS:
            for flag in ("--help", "-h"):
                result = self.expect(braid.run(command, flag))
                self.assertIn(f"usage: braid {command} [options]", result.out)
                self.assertEqual(result.err, "")
        for benchmark in ("latency", "throughput", "serve"):
            self.assertIn(f"usage: braid bench {benchmark} [options]", self.expect(braid.run("bench", benchmark, "--help")).out)
            self.assertIn(f"  {benchmark}", self.expect(braid.run("bench", "--help")).out)
        self.assertIn("--tensor-parallel-size, -tp", braid.run("plan", "--help").out)
        self.assertRegex(braid.run("--version").out, r"^braid \d+\.\d+")

    def test_help_wins_over_problems(self):
        result = self.expect(braid.run("verify", "--bogus", "-tp", "3", "--help"))
        self.assertIn("usage: braid verify", result.out)

    def test_unknown_command(self):
        err = self.refused("walk")
        self.assertIn("command 'walk' is unknown", err)
        self.assertIn("generate", err)
        self.refused()

    def test_unknown_flag_names_the_nearest(self):
        for command in COMMANDS:
            err = self.refused(command, "--modell", "x")
            self.assertIn("--modell is unknown; did you mean --model?", err)
        self.assertIn("--max-num-seq is unknown; did you mean --max-num-seqs?", self.refused("plan", "--model", braid.DEMO, "--max-num-seq=3"))

    def test_switch_with_a_value(self):
        for words in (["--enable-prefix-caching", "False"], ["--enable-prefix-caching=False"], ["--enable_prefix_caching=false"],
                      ["--json", "true"], ["--no-enable-prefix-caching", "1"]):
            err = self.refused("plan", "--model", braid.DEMO, *words)
            self.assertIn(words[-1].split("=")[-1], err)
            self.assertIn("takes no value", err)

    def test_contradicting_switches(self):
        err = self.refused("plan", "--model", braid.DEMO, "--enable-prefix-caching", "--no-enable-prefix-caching")
        self.assertIn("contradict", err)

    def test_tp_3(self):
        for command, more in (("plan", []), ("generate", ["--prompt", "x"]), ("verify", []), ("eval", ["--data", braid.EVAL]), ("serve", [])):
            err = self.refused(command, "--model", braid.DEMO if command != "verify" else braid.fixture("llama"), "-tp", "3", *more)
            self.assertIn("--tensor-parallel-size 3 does not divide num_attention_heads = 8; use 1, 2, 4 or 8", err)

    def test_numbers(self):
        for words, what in ((["-tp", "0"], "tensor-parallel-size 0 is outside"), (["-tp", "two"], "needs a whole number, got 'two'"),
                            (["--block-size", "1.5"], "'1.5'"), (["--gpu-memory-utilization", "1.5"], "outside"),
                            (["--gpu-memory-utilization", "nan"], "nan"), (["--max-num-seqs", ""], "''"),
                            (["--max-num-seqs", "99999999999999999999"], "99999999999999999999"),
                            (["--max-model-len", "20k"], "--max-model-len 20000 is outside 1 to 16384"),
                            (["--max-model-len", "many"], "'many'"), (["--memory", "12Q"], "'12Q'")):
            self.assertIn(what, self.refused("plan", "--model", braid.DEMO, *words))

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU here")
    def test_no_gpu(self):
        self.assertIn("no GPU is usable here", self.refused("verify", "--model", braid.fixture("llama"), "--device", "cuda"))
        self.expect(braid.run("plan", "--model", braid.DEMO, "--device", "auto"))

    def test_graph_sizes(self):
        self.assertIn("--cuda-graph-sizes '1,x'", self.refused("plan", "--model", braid.DEMO, "--cudagraph-capture-sizes", "1,x"))

    def test_missing_value(self):
        err = self.refused("plan", "--model", braid.DEMO, "--bogus", "-tp")
        self.assertIn("tensor-parallel-size", err)
        self.assertIn("--bogus is unknown", err)
        self.assertNotIn("--model is missing", err)

    def test_values_are_left_alone(self):
        result = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "-x_y", "--max-tokens", 1, "--json"))
        same = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt=-x_y", "--max-tokens", 1, "--json"))
        other = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "--x-y", "--max-tokens", 1, "--json"))
        self.assertEqual(result.out, same.out)
        self.assertNotEqual(result.out, other.out)

    def test_all_problems_together_before_any_weight(self):
        # The weights are not even a safetensors file: whoever read them would say so.
        model = self.model_copy(braid.fixture("llama"), without=("model.safetensors",))
        with open(os.path.join(model, "model.safetensors"), "wb") as file:
            file.write(b"this is no safetensors file")
        cases = {
            "verify": ["--modes", "full,sideways", "--reference", self.path("nowhere")],
            "plan": ["--memory", "lots"],
            "generate": ["--messages", self.path("nowhere.json")],
            "eval": ["--data", self.path("nowhere.jsonl")],
            "serve": ["--port", "70000"],
        }
        own = {
            "verify": ["--modes 'sideways' is unknown", f"--reference {self.path('nowhere')} does not exist"],
            "plan": ["--memory: 'lots' is not a size"],
            "generate": [self.path("nowhere.json")],
            "eval": [self.path("nowhere.jsonl")],
            "serve": ["--port 70000 is outside 0 to 65535"],
        }
        common = ["--tensor-parallel-size 3 does not divide num_attention_heads = 8; use 1, 2, 4 or 8",
                  "--tensor-parallel-size 3 does not divide intermediate_size = 160",
                  "--reproducible cuts every row-parallel product into 8 slices, so tp * pcp must be 1, 2, 4 or 8, not 3",
                  "--bogus is unknown", "--dtype 'int7' is unknown; use auto, float32", "--max-model-len 5000 is outside 1 to 4096",
                  "--max-num-seqs 0 is outside 1 to", "takes no value", "--prefill-chunk 9999 is above --max-num-batched-tokens 2048",
                  "--kv-cache-dtype 'fp3' is unknown", "--kv-cache-memory-bytes: 'much' is not a size"]
        for command, words in cases.items():
            err = self.refused(command, "--model", model, "-tp", "3", "--reproducible", "--bogus", "--dtype", "int7",
                               "--max-model-len", "5000", "--max-num-seqs", "0", "--enable-prefix-caching", "False",
                               "--prefill-chunk", "9999", "--kv-cache-dtype", "fp3", "--kv-cache-memory-bytes", "much", *words)
            for line in common + own[command]:
                self.assertIn(line, err, command)
            self.assertNotIn("model.safetensors", err)
            self.assertIn(f"braid {command} --help", err)

    def test_prompt_or_messages(self):
        for words in ([], ["--prompt", "x", "--messages", "y"]):
            self.assertIn("give either --prompt TEXT or --messages FILE", self.refused("generate", "--model", braid.DEMO, *words))
        for text in ("{", "3", '"x"'):
            with open(self.path("messages.json"), "w", encoding="ascii") as file:
                file.write(text)
            self.assertIn(self.path("messages.json"), self.refused("generate", "--model", braid.DEMO, "--messages", self.path("messages.json")))

    def test_models_that_are_not_there(self):
        for command, more in (("plan", []), ("generate", ["--prompt", "x"]), ("verify", []), ("eval", ["--data", braid.EVAL]), ("serve", [])):
            err = self.refused(command, *more)
            self.assertIn("--model is missing", err)
            err = self.refused(command, "--model", self.path("nowhere"), "--bogus", *more)
            self.assertIn(self.path("nowhere"), err)
            self.assertIn("--bogus is unknown", err)

    def test_broken_config(self):
        os.mkdir(self.path("model"))
        with open(self.path("model", "config.json"), "w", encoding="ascii") as file:
            file.write('{"model_type": "llama", ')
        self.assertIn(self.path("model", "config.json"), self.refused("plan", "--model", self.path("model")))

    def test_unknown_model_type(self):
        config = self.write_json("config.json", {"model_type": "gpt9", "architectures": ["Gpt9ForCausalLM"]})
        err = self.refused("plan", "--model", config)
        self.assertIn("gpt9", err)
        self.assertIn("deepseek_v3", err)

    def test_config_without_weights(self):
        config = os.path.join(braid.CONFIGS, "deepseek-v2-lite.json")
        err = self.refused("generate", "--model", config, "--tokenizer", braid.DEMO, "--prompt", "x")
        self.assertIn("--load-format dummy", err)

    def test_overrides_that_are_no_object(self):
        for text in ("{", "[1]", "3"):
            err = self.refused("plan", "--model", braid.DEMO, "--hf-overrides", text, "--bogus")
            self.assertIn("--hf-overrides", err)
            self.assertIn("--bogus is unknown", err)


class Aliases(braid.TestCase):
    """Every spelling of vLLM and ATOM that the engine promises, by its effect."""

    def plan(self, *words):
        return self.expect(braid.run("plan", "--model", braid.fixture("llama"), "--json", *words)).json()

    def same(self, spellings, differs_from=()):
        plans = [self.plan(*words) for words in spellings]
        for words, plan in zip(spellings, plans):
            self.assertEqual(plan, plans[0], words)
        if differs_from is not None:
            self.assertNotEqual(plans[0], self.plan(*differs_from), spellings[0])

    def test_tensor_parallel_size(self):
        self.same([["-tp", "2"], ["--tp", "2"], ["-tp=2"], ["--tensor-parallel-size", "2"], ["--tensor_parallel_size", "2"],
                   ["--tensor-parallel-size=2"], ["-tp", "4", "-tp", "2"]])

    def test_max_model_len(self):
        self.same([["--max-model-len", "1024"], ["--max_model_len=1024"], ["--max-model-len", "1K"]])
        self.same([["--max-model-len", "auto"], ["--max-model-len", "4096"], ["--max-model-len", "-1"], []], None)

    def test_batch_limits(self):
        self.same([["--max-num-batched-tokens", "64"], ["--max_num_batched_tokens", "64"]])
        self.same([["--max-num-seqs", "3"], ["--max_num_seqs", "3"]], None)  # plan has one sequence; see below

    def test_cache(self):
        self.same([["--block-size", "32"], ["--block_size", "32"]])
        self.same([["--gpu-memory-utilization", "0.3"], ["--gpu_memory_utilization", "0.3"], ["--memory-utilization", "0.3"]])
        self.same([["--kv-cache-dtype", "float32"], ["--kv_cache_dtype", "float32"], ["--kv-cache-dtype=float32"]])
        self.same([["--kv-cache-dtype", "auto"], ["--kv_cache_dtype", "bf16"], ["--kv-cache-dtype", "bfloat16"]], None)
        self.same([["--num-kv-blocks", "7"], ["--num-gpu-blocks-override", "7"]])
        self.same([["--kv-cache-memory-bytes", "1MiB"], ["--kv-cache-memory", "1048576"]])

    def test_dtype(self):
        self.same([["--dtype", "float32"], ["--dtype", "float"]])
        self.same([["--dtype", "bfloat16"], ["--dtype", "bf16"], ["--dtype", "auto"], []], None)

    def test_switches(self):
        def cached(*words):
            report = self.expect(braid.run("verify", "--model", braid.fixture("llama"), "--dtype", "float32", "--json",
                                           "--modes", "cached", *words), None).json()
            return report["modes"][0]["counters"]["cached_tokens"]
        for words in ([], ["--enable-prefix-caching"], ["--enable_prefix_caching"]):
            self.assertGreater(cached(*words), 0, words)
        for words in (["--no-enable-prefix-caching"], ["--no_enable_prefix_caching"], ["--no-enable_prefix_caching"]):
            self.assertEqual(cached(*words), 0, words)
        # Without chunked prefill a step must hold the longest prompt.
        for words in (["--enable_chunked_prefill"], ["--enable-chunked-prefill"], []):
            self.plan(*words, "--max-num-batched-tokens", "64")
        for words in (["--no-enable_chunked_prefill"], ["--no-enable-chunked-prefill"], ["--no_enable_chunked_prefill"]):
            result = self.expect(braid.run("plan", "--model", braid.fixture("llama"), *words, "--max-num-batched-tokens", "64"), 2)
            self.assertIn("--max-num-batched-tokens of at least --max-model-len 4096, not 64", result.err)

    def test_max_num_seqs_limits_a_step(self):
        def wide_steps(*words):
            report = self.expect(braid.run("verify", "--model", braid.fixture("llama"), "--dtype", "float32", "--json",
                                           "--modes", "batched", *words), None).json()
            return report["modes"][0]["counters"]["multi_sequence_steps"]
        self.assertGreater(wide_steps(), 0)
        self.assertEqual(wide_steps("--max-num-seqs", "1"), 0)

    def test_config_file(self):
        config = self.write_json("options.json", {"tensor-parallel-size": 2, "kv_cache_dtype": "float32", "reproducible": True})
        self.assertEqual(self.plan("--config", config), self.plan("-tp", "2", "--kv-cache-dtype", "float32", "--reproducible"))
        self.assertEqual(self.plan("--config", config, "-tp", "4")["layout"], "tp4 bfloat16 kv float32 reproducible")
        bad = self.write_json("bad.json", {"bogus": 1})
        result = self.expect(braid.run("plan", "--model", braid.DEMO, "--config", bad), 2)
        self.assertIn("bogus", result.err)

    def expect(self, result, code=0):
        if code is None:  # whatever the verdict: a mode may have been kept from being active
            self.assertIn(result.code, (0, 1), str(result))
            return result
        return super().expect(result, code)


class Streams(braid.TestCase):
    def test_data_on_stdout_alone(self):
        for words in (["generate", "--model", braid.DEMO, "--prompt", "Hello", "--max-tokens", "3", "--json"],
                      ["plan", "--model", braid.DEMO, "--json"],
                      ["verify", "--model", braid.fixture("llama"), "--modes", "full", "--json"],
                      ["eval", "--model", braid.DEMO, "--data", braid.EVAL, "--tasks", "fact", "--limit", "1", "--json"]):
            result = self.expect(braid.run(*words))
            json.loads(result.out)  # the whole of it
            quiet = self.expect(braid.run(*words, "--log-level", "off"))
            self.assertEqual(quiet.err, "")
            self.assertEqual(set(json.loads(quiet.out)), set(json.loads(result.out)))

    def test_generate_fields(self):
        result = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "Hello", "--max-tokens", "3", "--json")).json()
        self.assertEqual(set(result), {"token_ids", "text", "logprobs", "finish_reason", "usage"})
        self.assertEqual([len(result["token_ids"]), len(result["logprobs"]), result["finish_reason"]], [3, 3, "length"])
        self.assertEqual(result["usage"]["completion_tokens"], 3)
        self.assertEqual(result["usage"]["total_tokens"], 3 + result["usage"]["prompt_tokens"])

    def test_generate_messages_and_text(self):
        messages = self.write_json("messages.json", [{"role": "user", "content": "What is the capital of Kenya?"}])
        result = self.expect(braid.run("generate", "--model", braid.DEMO, "--messages", messages))
        self.assertEqual(result.out, "The capital of Kenya is Nairobi.\n")

    def test_seed_and_temperature(self):
        def text(*words):
            return self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "Once", "--max-tokens", 20, "--json",
                                         "--temperature", "1.5", *words)).json()["token_ids"]
        self.assertEqual(text("--seed", "1"), text("--seed", "1"))
        self.assertNotEqual(text("--seed", "1"), text("--seed", "2"))

    def test_a_reader_that_left(self):
        # The program ends instead of hanging when nobody reads its data.
        child = subprocess.Popen(braid.command(["plan", "--model", braid.DEMO, "-tp", "8"]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child.stdout.close()
        child.wait(20)

    def test_scripts_serve_help(self):
        # The newcomer's script builds first: only where there is nothing left to build.
        build = os.path.join(braid.ROOT, "build", "release")
        if os.path.realpath(braid.PROGRAM) != os.path.realpath(os.path.join(build, "bin", "braid")) or not shutil.which("cmake"):
            self.skipTest("not the release build")
        check = subprocess.run(["cmake", "--build", build, "--", "-n"], capture_output=True, text=True, check=False)
        if "no work to do" not in check.stdout:
            self.skipTest("the release build is not up to date")
        child = subprocess.run([os.path.join(braid.ROOT, "scripts", "serve"), "--help"], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(child.returncode, 0, child.stderr)
        self.assertIn("usage: braid serve [options]", child.stdout)


if __name__ == "__main__":
    unittest.main()
