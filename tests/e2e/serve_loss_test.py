#!/usr/bin/env python3
"""`braid serve` under mpirun when a process is killed or stopped: nobody outlives it, nobody says that all is well."""
import http.client
import json
import os
import signal
import threading
import time
import unittest

import braid
from serving import ServeCase

LIMIT = 10  # seconds, of the promise


@unittest.skipUnless(braid.MPIRUN, "the build has no MPI")
class Loss(ServeCase):
    def start(self, processes=2, *arguments):
        self.server = self.serve("--model", braid.DEMO, "--port", 0, "-tp", processes, *arguments, processes=processes)
        self.pids = braid.ranks_of_launcher(self.server.child.pid)
        self.assertEqual(len(self.pids), processes)
        self.addCleanup(self.kill_ranks)

    def kill_ranks(self):
        for pid in self.pids.values():
            if braid.alive(pid):
                os.kill(pid, signal.SIGKILL)

    def ask(self):
        """A request that would run for minutes; its outcome is in the returned list, once it has one."""
        outcome = []

        def ask():
            connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
            try:
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "One", "max_tokens": 16000, "ignore_eos": True, "stream": True}))
                outcome.append(connection.getresponse().read().decode())
            except (OSError, http.client.HTTPException) as error:
                outcome.append(repr(error))
            finally:
                connection.close()
        threading.Thread(target=ask, daemon=True).start()
        braid.await_true(lambda: self.server.metrics()["braid_generation_tokens_total"] > 3, 30, "the request runs")
        return outcome

    def health(self):
        try:
            return self.server.request("GET", "/health")[0]
        except (OSError, http.client.HTTPException):
            return None  # nobody answers

    def expect_all_ended(self, seconds=LIMIT):
        took = braid.await_true(lambda: not any(map(braid.alive, self.pids.values())) and self.server.child.poll() is not None, seconds,
                                f"all have ended\n{self.server.log()[-3000:]}")
        print(f"{self.id().rsplit('.', 1)[1]}: all ended after {took:.1f} s", flush=True)

    def expect_unwell(self):
        took = braid.await_true(lambda: self.health() != 200, LIMIT, f"/health is bad\n{self.server.log()[-3000:]}")
        print(f"{self.id().rsplit('.', 1)[1]}: /health no longer 200 after {took:.1f} s: {self.health()}", flush=True)

    def test_server_killed(self):
        self.start()
        os.kill(self.pids[0], signal.SIGKILL)
        self.expect_all_ended()

    def test_mpirun_killed(self):
        self.start()
        os.kill(self.server.child.pid, signal.SIGKILL)
        self.expect_all_ended()

    def test_rank_killed(self):
        self.start(4)
        outcome = self.ask()
        os.kill(self.pids[2], signal.SIGKILL)
        self.expect_all_ended()
        braid.await_true(lambda: outcome, 5, "the client hears of it")
        self.assertNotIn('"finish_reason":"length"', outcome[0])
        self.assertNotEqual(self.server.child.returncode, 0)

    def test_idle_rank_killed(self):
        self.start()
        os.kill(self.pids[1], signal.SIGKILL)
        self.expect_all_ended()

    def test_rank_stopped_in_a_step(self):
        self.start(2, "--exit-grace", 3)
        outcome = self.ask()
        os.kill(self.pids[1], signal.SIGSTOP)
        self.expect_unwell()
        braid.await_true(lambda: outcome, 5, "the client hears of it")
        self.assertIn("rank 1", outcome[0])
        self.expect_all_ended(15)

    def test_idle_rank_stopped(self):
        self.start(2, "--exit-grace", 3)
        os.kill(self.pids[1], signal.SIGSTOP)
        self.expect_unwell()
        self.assertEqual(self.health(), 503)
        self.assertIn("stopped", self.server.request("GET", "/health")[2])
        self.assertEqual(self.server.chat([{"role": "user", "content": "Hi"}])[0], 503)
        self.expect_all_ended(15)

    def test_a_rank_that_is_only_slow_is_well(self):
        self.start()
        outcome = self.ask()
        for _ in range(3):  # for less than the limit, and it goes on
            os.kill(self.pids[1], signal.SIGSTOP)
            time.sleep(2)
            self.assertEqual(self.health(), 200)
            os.kill(self.pids[1], signal.SIGCONT)
            time.sleep(0.5)
        before = self.server.metrics()["braid_generation_tokens_total"]
        braid.await_true(lambda: self.server.metrics()["braid_generation_tokens_total"] > before + 10, 20, "the request runs on")
        self.assertEqual(outcome, [])

    def test_second_signal(self):
        self.start()
        self.ask()
        os.kill(self.pids[0], signal.SIGTERM)
        braid.await_true(lambda: "draining" in self.server.log(), 5, "the drain is logged")
        os.kill(self.pids[0], signal.SIGTERM)
        self.expect_all_ended(5)


if __name__ == "__main__":
    unittest.main()
