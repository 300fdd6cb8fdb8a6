#!/usr/bin/env python3
"""Many streams at once, readers that do not read, and what others see of the server meanwhile.

Many: 200 streams. Soak: 1,000 (slow). Beside: metrics and short requests beside a prefill of 16,000 tokens.
"""
import json
import resource
import selectors
import socket
import threading
import time
import unittest

import braid
from serving import OneServer, ServeCase, events


def unchunked(data):
    """The body of a whole chunked reply."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"chunked" in head.lower(), head
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return body.decode()
        body, rest = body + rest[:n], rest[n + 2:]


class Streams:
    """Sockets of one thread, each with a streamed completion of `n_tokens` tokens."""

    def __init__(self, server, n, n_tokens, receive_buffer=None):
        self.n_tokens, self.open, self.data = n_tokens, {}, {}
        body = json.dumps({"prompt": "One", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 1, "stream": True,
                           "stream_options": {"include_usage": True}}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        for i in range(n):
            s = socket.socket()
            if receive_buffer:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            s.connect((server.host, server.port))
            s.sendall(request)
            self.open[s], self.data[s] = i, bytearray()

    def read_all(self, seconds):
        """Until every stream has ended; the number that ended otherwise than promised."""
        end, bad = time.monotonic() + seconds, 0
        with selectors.DefaultSelector() as selector:
            for s in self.open:
                s.setblocking(False)
                selector.register(s, selectors.EVENT_READ)
            while self.open:
                ready = selector.select(max(0, end - time.monotonic()))
                assert ready, f"{len(self.open)} streams have not ended after {seconds} s"
                for key, _ in ready:
                    s = key.fileobj
                    try:
                        piece = s.recv(1 << 16)
                    except ConnectionError:
                        piece = b""
                    self.data[s] += piece
                    if not piece:
                        selector.unregister(s)
                        s.close()
                        del self.open[s]
                        bad += not self.good(bytes(self.data.pop(s)))
        return bad

    def good(self, data):
        try:
            told = events(unchunked(data))
            return told[-1] == "[DONE]" and json.loads(told[-2])["usage"]["completion_tokens"] == self.n_tokens
        except (AssertionError, ValueError, KeyError, IndexError):
            return False


class Many(OneServer):
    N, N_TOKENS, SECONDS = 200, 24, 120

    def test_streams_beside_readers_that_do_not_read(self):
        stuck = Streams(self.server, 5, 1500, receive_buffer=4096)
        start = time.monotonic()
        streams = Streams(self.server, self.N, self.N_TOKENS)
        slowest = 0
        done = threading.Event()

        def watch():
            nonlocal slowest
            while not done.wait(0.2):
                asked = time.monotonic()
                assert self.server.request("GET", "/metrics")[0] == 200
                slowest = max(slowest, time.monotonic() - asked)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.assertEqual(streams.read_all(self.SECONDS), 0)
        finally:
            done.set()
            watcher.join()
        took = time.monotonic() - start
        self.assertEqual(stuck.read_all(self.SECONDS), 0)  # each gets every token, in its own time
        self.server.rest()
        print(f"{self.N} streams of {self.N_TOKENS} tokens: {took:.1f} s, slowest /metrics {slowest * 1000:.0f} ms", flush=True)
        self.assertLess(slowest, 1)


class Soak(Many):
    N, N_TOKENS, SECONDS = 1000, 64, 900


class Beside(ServeCase):
    """What a prefill of 16,000 tokens, eight chunks, does to others."""

    def test_metrics_and_a_short_request(self):
        trace = self.path("trace.json")
        # Two layers of drawn weights: the prompt's length is what matters here.
        server = self.serve("--model", braid.DEMO, "--load-format", "dummy", "--hf-overrides", '{"num_hidden_layers": 2}', "--port", 0, "--trace", trace)
        long = threading.Thread(target=lambda: server.request("POST", "/v1/completions", {"prompt": [300 + i % 1000 for i in range(16000)], "max_tokens": 1, "temperature": 0}))
        long.start()
        braid.await_true(lambda: server.metrics()["braid_requests_running"] == 1, 10, "the prefill runs")
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "One", "max_tokens": 1, "temperature": 0})
        self.assertEqual(status, 200)
        short_id = {k.lower(): v for k, v in headers.items()}["x-request-id"]
        slowest, n_asked = 0, 0
        while long.is_alive():
            asked = time.monotonic()
            server.metrics()
            slowest, n_asked = max(slowest, time.monotonic() - asked), n_asked + 1
            time.sleep(0.02)
        long.join()
        self.assertEqual(server.end(), 0)
        with open(trace, encoding="utf-8") as file:
            spans = json.load(file)["traceEvents"]
        edges = {e["ph"]: e for e in spans if e["name"] == "request" and e["args"]["label"].endswith(short_id)}
        forwards = [e["ts"] + e["dur"] for e in spans if e["name"] == "forward"]
        waited = sum(edges["b"]["ts"] < end < edges["e"]["ts"] for end in forwards)
        after = sum(end > edges["e"]["ts"] for end in forwards)
        print(f"the short request saw {waited} chunks end, {after} came after it; slowest of {n_asked} /metrics {slowest * 1000:.0f} ms", flush=True)
        self.assertGreaterEqual(len(forwards), 8)
        self.assertGreaterEqual(after, 3, "the long prefill was over too soon to tell")
        self.assertIn(waited, (1, 2))
        self.assertLess(slowest, 1)
        self.assertGreater(n_asked, 3)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    unittest.main()
