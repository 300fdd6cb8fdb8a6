#!/usr/bin/env python3
"""`braid serve` with the demo: answers, streams, its log, and how it ends."""
import http.client
import json
import os
import signal
import socket
import threading
import time
import unittest

import braid
from serving import OneServer, ServeCase, events


class Answers(OneServer):
    """One server for all of it, as people have."""
    ARGUMENTS = ("-tp", "2")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.items = braid.eval_items()

    def items_of(self, task, n):
        return [item for item in self.items if item["task"] == task][:n]

    def test_health_and_models(self):
        status, _, _ = self.server.request("GET", "/health")
        self.assertEqual(status, 200)
        status, _, body = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual([card["id"] for card in json.loads(body)["data"]], ["demo"])
        self.assertEqual(json.loads(body)["object"], "list")

    def test_known_answers(self):
        # Single-turn and many-turn, with a system text, with tool results.
        for task in ("fact", "gsm", "json", "list", "tool", "recall_500"):
            for item in self.items_of(task, 2):
                status, _, body = self.server.chat(item["messages"], model="demo", chat_template_kwargs={"enable_thinking": item["enable_thinking"]})
                self.assertEqual(status, 200, body)
                answer = json.loads(body)
                choice = answer["choices"][0]
                self.assertEqual(answer["usage"]["prompt_tokens"], len(item["prompt_ids"]))
                self.assertEqual(answer["usage"]["completion_tokens"], len(item["output_ids"]))
                self.assertEqual(answer["object"], "chat.completion")
                if not choice["message"].get("tool_calls"):
                    self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (item["output"], "stop"))

    def test_log_probabilities(self):
        item = self.items_of("gsm", 1)[0]
        _, _, body = self.server.chat(item["messages"], logprobs=True)
        got = [entry["logprob"] for entry in json.loads(body)["choices"][0]["logprobs"]["content"]]
        # The end token is counted but not spoken.
        self.assertIn(len(got), (len(item["output_ids"]) - 1, len(item["output_ids"])))
        for mine, theirs in zip(got, item["output_logprobs"]):
            self.assertAlmostEqual(mine, theirs, delta=1e-3)

    def test_stream_order(self):
        item = self.items_of("gsm", 1)[0]
        status, headers, body = self.server.chat(item["messages"], stream=True, stream_options={"include_usage": True})
        self.assertEqual(status, 200)
        self.assertTrue({k.lower(): v for k, v in headers.items()}["content-type"].startswith("text/event-stream"))
        data = events(body)
        self.assertEqual(data[-1], "[DONE]")
        chunks = [json.loads(d) for d in data[:-1]]
        self.assertEqual({c["object"] for c in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({c["id"] for c in chunks}), 1)
        # First the role, then text, then the finish reason, then the usage, each where it belongs and nowhere else.
        usage = chunks.pop()
        self.assertEqual(usage["choices"], [])
        self.assertEqual(usage["usage"]["completion_tokens"], len(item["output_ids"]))
        deltas = [c["choices"][0]["delta"] for c in chunks]
        self.assertEqual(deltas[0].get("role"), "assistant")
        self.assertTrue(all("role" not in d for d in deltas[1:]))
        finish = [c["choices"][0].get("finish_reason") for c in chunks]
        self.assertEqual(finish, [None] * (len(finish) - 1) + ["stop"])
        self.assertGreater(sum(bool(d.get("content")) for d in deltas), 10)
        self.assertEqual("".join(d.get("content") or "" for d in deltas), item["output"])

    def test_together(self):
        # Many at once give what each gives alone.
        items = [item for task in ("fact", "list", "json", "gsm") for item in self.items_of(task, 4)]
        answers = [None] * len(items)

        def ask(i):
            answers[i] = json.loads(self.server.chat(items[i]["messages"])[2])["choices"][0]["message"]["content"]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(items))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [item["output"] for item in items])

    def test_refusals(self):
        status, _, body = self.server.chat([{"role": "user", "content": "Hi"}], model="other")
        self.assertEqual(status, 404)
        self.assertIn("other", json.loads(body)["error"]["message"])
        status, _, body = self.server.chat([{"role": "user", "content": "Hi"}], max_tokens=10**6)
        self.assertEqual(status, 400)
        self.assertIn("1000000", body)
        self.assertEqual(self.server.request("GET", "/v1/nothing")[0], 404)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_eval_asks_over_http(self):
        asked = braid.run("eval", "--model", braid.DEMO, "--data", braid.EVAL, "--url", f"http://127.0.0.1:{self.server.port}", "--limit", "1", "--json")
        self.assertEqual(asked.code, 0, asked)
        report = asked.json()
        self.assertEqual(report["prompt_mismatches"], 0)
        self.assertEqual(len(report["tasks"]), 10)
        for name, task in report["tasks"].items():
            self.assertEqual((task["total"], task["correct"], task["equal_transcripts"]), (1, 1, 1), name)
            self.assertLessEqual(task["max_abs_dlogprob"], 1e-3, name)

    def test_log_names_layout_and_address(self):
        self.assertRegex(self.server.log(), r"tp2 float32 serves demo on http://127\.0\.0\.1:\d+")


class Ports(ServeCase):
    def free_port(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def test_server_port_wins(self):
        port, server_port = self.free_port(), self.free_port()
        server = self.serve("--model", braid.DEMO, "--port", port, "--server-port", server_port)
        self.assertEqual(server.port, server_port)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        lines = [line for line in server.log().split("\n") if "--server-port" in line]
        self.assertEqual(len(lines), 1)
        self.assertIn(f"--server-port {server_port} wins over --port {port}", lines[0])
        # Without --served-model-name the model has the name by which it was given.
        self.assertEqual(json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"], braid.DEMO)
        self.assertEqual(server.end(), 0)

    def test_server_port_alone_and_a_taken_port(self):
        port = self.free_port()
        server = self.serve("--model", braid.DEMO, "--server-port", port)
        self.assertEqual(server.port, port)
        self.assertNotIn("wins over", server.log())
        second = braid.run("serve", "--model", braid.DEMO, "--port", port, timeout=60)
        self.assertIn(second.code, (1, 2), str(second))
        self.assertIn(str(port), second.err)
        self.assertEqual(server.end(), 0)


class End(ServeCase):
    """SIGTERM: what runs is finished, what comes is refused, exit 0."""

    def test_drain(self):
        server = self.serve("--model", braid.DEMO, "--port", 0)
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        n = 1500
        connection.request("POST", "/v1/chat/completions", json.dumps({
            "messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "stream": True, "max_tokens": n, "ignore_eos": True,
            "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        first = response.readline()  # it runs
        self.assertTrue(first.startswith(b"data: "), first)
        server.child.send_signal(signal.SIGTERM)
        braid.await_true(lambda: "draining" in server.log(), 5, "the drain is logged")
        self.assertIsNone(server.child.poll())
        refused = None
        try:
            refused = server.chat([{"role": "user", "content": "Hi"}])[0]
        except OSError:
            pass  # not even let in
        self.assertIn(refused, (None, 503))
        data = events((first + response.read()).decode())
        self.assertEqual(data[-1], "[DONE]")
        self.assertEqual(json.loads(data[-2])["usage"]["completion_tokens"], n)
        self.assertEqual(server.child.wait(20), 0)
        connection.close()

    @unittest.skipUnless(braid.MPIRUN, "the build has no MPI")
    def test_under_mpirun(self):
        server = self.serve("--model", braid.DEMO, "--port", 0, "-tp", 2, processes=2)
        status, _, body = server.chat([{"role": "user", "content": "What is the capital of Kenya?"}])
        self.assertEqual((status, json.loads(body)["choices"][0]["message"]["content"]), (200, "The capital of Kenya is Nairobi."))
        pids = braid.ranks_of_launcher(server.child.pid)
        self.assertEqual(len(pids), 2)
        os.kill(pids[0], signal.SIGTERM)
        server.child.wait(30)
        self.assertEqual(server.child.returncode, 0, server.log())
        self.assertFalse(any(map(braid.alive, pids.values())))

    def test_idle_and_sigint(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.serve("--model", braid.DEMO, "--port", 0)
            start = time.monotonic()
            server.child.send_signal(number)
            self.assertEqual(server.child.wait(20), 0)
            self.assertLess(time.monotonic() - start, 5)

    def test_second_signal_ends_at_once(self):
        server = self.serve("--model", braid.DEMO, "--port", 0)
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps({
            "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 15000, "ignore_eos": True}), {"Content-Type": "application/json"})
        connection.getresponse().readline()
        server.child.send_signal(signal.SIGTERM)
        braid.await_true(lambda: "draining" in server.log(), 5, "the drain is logged")
        start = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        server.child.wait(20)
        self.assertLess(time.monotonic() - start, 5)
        connection.close()


if __name__ == "__main__":
    unittest.main()
