#!/usr/bin/env python3
"""The program under mpirun: the output of threads, the refusal of layouts that do not fit, and lost processes.

A process that is stopped or killed in the middle of a run must be named by the others within 10 s, with the step, the
group and the collective; and 10 s later no process may be left.
"""
import os
import re
import signal
import subprocess
import time
import unittest

import braid


class SameAsThreads(braid.TestCase):
    def generate(self, processes, *arguments):
        return self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "What is the capital of Kenya?", "--json",
                                     "--max-tokens", 24, "-tp", 4, *arguments, processes=processes))

    def test_generate(self):
        for arguments in ((), ("--dtype", "float32"), ("--reproducible",)):
            threads = self.generate(0, *arguments)
            for processes in (1, 2, 4):
                result = self.generate(processes, *arguments)
                self.assertEqual(result.out, threads.out, f"{processes} processes, {arguments}")  # once, by process 0
                self.assertEqual(braid.collectives_in(result.err), braid.collectives_in(threads.err))
                self.assertGreater(braid.collectives_in(result.err)["moe_out"][0][1], 0)

    def test_verify(self):
        # In bfloat16 a float32 run comes first, on every process.
        for name, tp, dtype, more in (("llama", 2, "float32", ()), ("deepseek_v3", 4, "float32", ()), ("qwen3_moe", 2, "bfloat16", ()),
                                      # A group of four and two of two, over the border between processes and within them.
                                      ("deepseek_v3", 4, "float32", ("-dcp", 4, "--block-size", 4)),
                                      ("deepseek_v3", 4, "float32", ("-dcp", 2, "--block-size", 8, "--dcp-comm-backend", "ag_rs"))):
            model = self.path(name)
            if not os.path.exists(model):
                model = self.model_copy(braid.fixture(name), name, without=("long.safetensors",))
            threads, alone = self.dump_of(model, "--dtype", dtype, "-tp", tp, *more)
            self.assertTrue(alone.json()["passed"])
            processes, spread = self.dump_of(model, "--dtype", dtype, "-tp", tp, *more, processes=2)
            self.assertTrue(spread.json()["passed"])
            self.assertEqual(set(threads), set(processes))
            self.assertEqual([n for n in threads if threads[n] != processes[n]], [])
            # Each process holds its own ranks and no others.
            for mode, whole in zip(spread.json()["modes"], alone.json()["modes"]):
                self.assertEqual(mode["ranks"], whole["ranks"][:tp // 2])
                if more:
                    self.assertGreater(mode["ranks"][0]["collectives"]["dcp_merge"]["calls"], 0)

    def test_eval(self):
        result = self.expect(braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--tasks", "fact,json", "--limit", 4,
                                       "--dtype", "float32", "-tp", 2, "--json", processes=2))
        for task in ("fact", "json"):
            score = result.json()["tasks"][task]
            self.assertEqual([score["total"], score["correct"], score["equal_transcripts"]], [4, 4, 4])

    def test_processes_that_do_not_divide_the_ranks(self):
        for processes, tp, legal in ((3, 4, "1, 2, 4"), (4, 2, "1, 2"), (2, 1, "1")):
            result = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "x", "-tp", tp, processes=processes, timeout=60), 2)
            self.assertEqual(result.out, "")
            self.assertRegex(result.err, rf"{tp} ranks over {processes} processes: .*or start {legal} processes")

    def test_wrong_flags(self):
        result = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "x", "-tp", 3, processes=3, timeout=60), 2)
        self.assertIn("--tensor-parallel-size 3 does not divide", result.err)

    def test_damaged_checkpoint(self):
        model = self.model_copy(braid.fixture("llama"), without=("model.safetensors",))
        with open(os.path.join(braid.fixture("llama"), "model.safetensors"), "rb") as file:
            data = file.read()
        with open(os.path.join(model, "model.safetensors"), "wb") as file:
            file.write(data[:-1000])
        result = self.expect(braid.run("verify", "--model", model, "-tp", 4, processes=4, timeout=60), 2)
        self.assertIn("model.safetensors", result.err)


COLLECTIVE = r"step (\d+), group tp, all_(?:reduce|gatherv) '(?:embed|attn_out|mlp_down|moe_out|logits)' #\d+ \(\d+ bytes\)"


class LostProcess(braid.TestCase):
    """One of four processes is lost in the middle of an evaluation that would take minutes."""

    def start(self, processes, tp):
        self.log_file = self.path("log")
        with open(self.log_file, "wb") as log:
            self.launcher = subprocess.Popen(
                braid.command(["eval", "--model", braid.DEMO, "--data", braid.EVAL, "-tp", tp, "--dtype", "float32"], processes),
                stdout=subprocess.DEVNULL, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(self.end_all)
        self.pids = {}

        def all_compute():  # loading ends with this line, in every process
            self.pids = braid.ranks_of_launcher(self.launcher.pid)
            return len(self.pids) == processes and self.log().count("tensors left unread") == processes
        braid.await_true(all_compute, 30, "all processes have loaded")
        time.sleep(1.5)  # into the steps

    def end_all(self):
        for pid in self.pids.values():
            if braid.alive(pid):
                os.kill(pid, signal.SIGKILL)
        if self.launcher.poll() is None:
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()

    def log(self):
        with open(self.log_file, encoding="utf-8", errors="replace") as file:
            return file.read()

    def lose(self, process, number, state, ranks):
        self.assertTrue(all(map(braid.alive, self.pids.values())), self.log())
        self.assertNotIn("lost", self.log())
        os.kill(self.pids[process], number)
        who = rf"process {process} \(pid {self.pids[process]} on [^)]*\) is {state}"
        named = re.compile(rf"{ranks}: lost, (?:its )?{who}.*{COLLECTIVE}|{COLLECTIVE}: {ranks} did not arrive.*{who}")
        took = braid.await_true(lambda: named.search(self.log()), 10, f"{ranks} named: {named.pattern}\nlog:\n{self.log()[-3000:]}")
        step = re.search(COLLECTIVE, named.search(self.log()).group(0)).group(1)
        self.assertGreater(int(step), 0)
        ended = braid.await_true(lambda: not any(map(braid.alive, self.pids.values())) and self.launcher.poll() is not None, 10,
                                 "all processes have ended")
        self.assertNotEqual(self.launcher.returncode, 0)
        print(f"{state}: named after {took:.1f} s, all ended {ended:.1f} s later", flush=True)

    def test_stopped(self):
        self.start(4, 4)
        self.lose(2, signal.SIGSTOP, "stopped", "rank 2")

    def test_killed(self):
        self.start(4, 4)
        self.lose(2, signal.SIGKILL, "gone", "rank 2")

    def test_killed_with_two_ranks_each(self):
        self.start(2, 4)
        self.lose(1, signal.SIGKILL, "gone", "ranks 2 and 3")

    def test_driver_stopped(self):
        self.start(4, 4)
        self.lose(0, signal.SIGSTOP, "stopped", "rank 0")

    def test_driver_killed(self):
        self.start(4, 4)
        self.lose(0, signal.SIGKILL, "gone", "rank 0")

    def test_launcher_killed(self):
        self.start(4, 4)
        os.kill(self.launcher.pid, signal.SIGKILL)
        braid.await_true(lambda: not any(map(braid.alive, self.pids.values())), 10, "all processes have ended")


if __name__ == "__main__":
    unittest.main()
