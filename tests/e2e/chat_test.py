#!/usr/bin/env python3
"""`braid chat` with scripted input: against a server, and with an engine of its own; in a terminal, ^C stops an answer."""
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
import unittest

import braid
from serving import OneServer

KENYA = ("What is the capital of Kenya?", "The capital of Kenya is Nairobi.")


def chat(arguments, text, timeout=120):
    words = braid.command(["chat", *arguments])
    start = time.monotonic()
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=timeout, encoding="utf-8")
    return braid.Result(words, done.returncode, done.stdout, done.stderr, time.monotonic() - start)


class WithServer(OneServer):
    def talk(self, *lines, code=0, more=()):
        return self.expect(chat(["--url", f"http://127.0.0.1:{self.server.port}", "--temperature", "0", *more], "".join(line + "\n" for line in lines)), code)

    def test_answers_and_history(self):
        file = self.path("talk.json")
        result = self.talk(KENYA[0], f"/save {file}")
        self.assertEqual(result.out, KENYA[1] + "\n")
        with open(file, encoding="utf-8") as saved:
            self.assertEqual(json.load(saved), [{"role": "user", "content": KENYA[0]}, {"role": "assistant", "content": KENYA[1]}])
        # What the model is told on: the second question comes with the first and its answer.
        before = self.server.metrics()["braid_prompt_tokens_total"]
        self.talk("/load " + file, KENYA[0])
        continued = self.server.metrics()["braid_prompt_tokens_total"] - before
        self.talk("/load " + file, "/reset", KENYA[0])
        alone = self.server.metrics()["braid_prompt_tokens_total"] - before - continued
        self.assertGreater(continued, alone + 10)

    def test_commands(self):
        file = self.path("talk.json")
        result = self.talk("/help", "/system Be brief.", "", KENYA[0], "/regen", f"/save {file}", "/system", f"/save {file}.2", "/quit", "never asked")
        self.assertEqual(result.out.count("\n"), 2)
        self.assertIn("/regen", result.err)
        with open(file, encoding="utf-8") as saved:
            messages = json.load(saved)
        self.assertEqual([m["role"] for m in messages], ["system", "user", "assistant"])
        with open(file + ".2", encoding="utf-8") as saved:
            self.assertEqual([m["role"] for m in json.load(saved)], ["user", "assistant"])

    def test_mistakes_are_told_and_survived(self):
        result = self.talk("/fly", "/load /nowhere", "/regen", "/save", KENYA[0], code=1)
        self.assertEqual(result.out, KENYA[1] + "\n")
        for said in ("/fly is unknown", "/nowhere", "there is no answer yet", "/save needs a file"):
            self.assertIn(said, result.err)
        self.assertIn("maximum context length", self.talk(KENYA[0], code=1, more=("--max-tokens", "1000000")).err)

    def test_slash_question(self):
        file = self.path("talk.json")
        self.talk("//etc is a folder", f"/save {file}")
        with open(file, encoding="utf-8") as saved:
            self.assertEqual(json.load(saved)[0]["content"], "/etc is a folder")


class EndlessAnswers(http.server.BaseHTTPRequestHandler):
    """A server whose answers to "go on" never end, and all others at once; it tells when a client left."""
    protocol_version = "HTTP/1.1"
    left = threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"data": [{"id": "endless"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

        def say(text):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n")
        try:
            while messages[-1]["content"] == "go on":
                say("more ")
                time.sleep(0.01)
            say(f"after {len(messages)} messages")
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.left.set()
        self.close_connection = True


class Interrupt(braid.TestCase):
    """In a terminal of its own."""

    def setUp(self):
        super().setUp()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EndlessAnswers)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.addCleanup(lambda: (self.http.shutdown(), self.http.server_close()))
        self.parent, child = pty.openpty()
        self.process = subprocess.Popen(braid.command(["chat", "--url", f"http://127.0.0.1:{self.http.server_port}"]),
                                        stdin=child, stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        self.addCleanup(lambda: (self.process.kill(), self.process.wait(), os.close(self.parent)))
        self.seen = ""

    def read_until(self, text):
        end = time.monotonic() + 30
        while text not in self.seen:
            self.assertLess(time.monotonic(), end, f"no {text!r} in {self.seen[-2000:]!r}")
            if select.select([self.parent], [], [], 0.1)[0]:
                self.seen += os.read(self.parent, 65536).decode("utf-8", "replace")
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def write(self, line):
        os.write(self.parent, line.encode() + b"\n")

    def test_stops_the_answer_alone(self):
        self.read_until("> ")
        self.process.send_signal(signal.SIGINT)  # while waiting for a line: it is begun anew
        self.read_until("/quit or ^D ends")
        self.read_until("> ")
        self.write("go on")
        self.read_until("more more more")
        self.process.send_signal(signal.SIGINT)
        self.read_until("(stopped)")
        self.assertTrue(EndlessAnswers.left.wait(10), "the server was told")
        self.read_until("> ")
        self.write("and now")
        self.read_until("after 3 messages")  # what was heard of the stopped answer stays in the conversation
        self.write("/quit")
        self.assertEqual(self.process.wait(20), 0)


class WithModel(braid.TestCase):
    def test_engine_of_its_own(self):
        result = self.expect(chat(["--model", braid.DEMO, "--dtype", "float32", "-tp", "2", "--temperature", "0"], KENYA[0] + "\n/quit\n"))
        self.assertEqual(result.out, KENYA[1] + "\n")
        self.assertEqual(result.err, "")

    def test_refusals(self):
        self.assertIn("--url http://HOST:PORT or --model DIR", self.expect(chat([], ""), 2).err)
        self.assertIn("ftp://x", self.expect(chat(["--url", "ftp://x"], ""), 2).err)
        self.assertIn("cannot be asked", self.expect(chat(["--url", "http://127.0.0.1:1"], ""), 1).err)


if __name__ == "__main__":
    unittest.main()
