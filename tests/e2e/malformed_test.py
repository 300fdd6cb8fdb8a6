#!/usr/bin/env python3
"""Broken requests over HTTP, drawn from a fixed seed: none hurts the server or another client.

After each kind of damage the server answers /health, runs no request, and gives a known answer.
"""
import json
import os
import random
import re
import socket
import unittest

import braid
from serving import OneServer

KENYA = {"messages": [{"role": "user", "content": "What is the capital of Kenya?"}], "temperature": 0}
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
CASES = int(os.environ.get("BRAID_MALFORMED_CASES", "400"))  # of each kind


def head(path="/v1/chat/completions", method="POST", length=None, more=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def whole(body, path="/v1/chat/completions"):
    body = body if isinstance(body, bytes) else body.encode()
    return head(path, length=len(body)) + body


def whole_replies(data):
    """The statuses of the replies that `data` begins with; each announces its length."""
    statuses = []
    while match := re.match(rb"HTTP/1\.1 (\d{3}) .*?\r\n\r\n", data, re.S):
        length = re.search(rb"\r\ncontent-length: (\d+)\r\n", match.group(), re.I)
        end = match.end() + (int(length.group(1)) if length else 0)
        if end > len(data):
            break
        statuses.append(int(match.group(1)))
        data = data[end:]
    return statuses


class Malformed(OneServer):
    def setUp(self):
        super().setUp()
        self.random = random.Random(self._testMethodName)  # a seed of its own for each test, the same in every run

    def tearDown(self):
        self.server.rest()
        status, _, body = self.server.chat(KENYA["messages"])
        self.assertEqual((status, json.loads(body)["choices"][0]["message"]["content"]), (200, "The capital of Kenya is Nairobi."))
        self.assertIsNone(self.server.child.poll(), self.server.log())
        super().tearDown()

    def exchange(self, data, half_close=False, replies=1, seconds=20):
        """Statuses and the bytes of all that comes back until that many replies are whole or the server closes."""
        with socket.create_connection((self.server.host, self.server.port), timeout=seconds) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has answered and closed before it was told all
            got = b""
            try:
                while len(whole_replies(got)) < replies and (piece := s.recv(65536)):
                    got += piece
            except ConnectionResetError:
                pass
        return whole_replies(got), got

    def expect_refusal(self, data, allowed=range(400, 500), **more):
        statuses, got = self.exchange(data, **more)
        self.assertTrue(statuses, f"no reply to {data[:300]!r}")
        self.assertIn(statuses[0], allowed, (data[:300], got[:500]))
        return statuses[0], got

    def test_broken_json(self):
        good = json.dumps({**KENYA, "max_tokens": 1, "stop": ["x"], "logit_bias": {"5": 1.5}, "stream": False, "n": 1})
        for _ in range(CASES):
            bytes_ = bytearray(good.encode())
            for _ in range(self.random.randint(1, 4)):
                at = self.random.randrange(len(bytes_))
                kind = self.random.randrange(4)
                if kind == 0:
                    bytes_[at] = self.random.randrange(256)
                elif kind == 1:
                    del bytes_[at]
                elif kind == 2:
                    bytes_.insert(at, self.random.choice(b'{}[]",:\\\0\xff\x80'))
                else:
                    bytes_ = bytes_[:at + 1]
            # Some damage leaves good JSON: any answer but a server error will do.
            statuses, got = self.exchange(whole(bytes(bytes_)))
            self.assertTrue(statuses and (statuses[0] == 200 or 400 <= statuses[0] < 500), (bytes(bytes_), got[:500]))

    def test_wrong_types(self):
        fields = ("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "stream",
                  "stream_options", "logprobs", "top_logprobs", "logit_bias", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "tools",
                  "tool_choice", "response_format", "ignore_eos", "min_tokens", "stop_token_ids", "echo", "chat_template_kwargs", "reasoning_effort",
                  "parallel_tool_calls", "skip_special_tokens", "tokens")
        values = ("x", "", -1, 1e308, -1e308, 2**63, -2**63, 2**64, 10**400, 0.5, True, [], [[]], {}, {"a": {"b": []}}, [None], [1, "x"], "\ud800",
                  ["a"] * 3000, {"type": "function"}, [{"role": "user"}], [{"role": 5, "content": {}}], "\0", "a" * 100000)
        n_named = 0
        for _ in range(CASES * 2):
            path = self.random.choice(PATHS)
            body = {**KENYA, "max_tokens": 1} if "chat" in path else {"prompt": "One", "max_tokens": 1, "temperature": 0}
            for field in self.random.sample(fields, self.random.randint(1, 2)):
                body[field] = self.random.choice(values)
            statuses, got = self.exchange(whole(json.dumps(body), path))
            self.assertTrue(statuses and (statuses[0] == 200 or 400 <= statuses[0] < 500), (str(body)[:300], got[:500]))
            if statuses[0] == 400:
                error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
                self.assertEqual(set(error), {"message", "type", "param", "code"})
                n_named += error["param"] is not None
        self.assertGreater(n_named, CASES // 2)

    def test_huge_numbers_and_depth(self):
        for text in ('{"max_tokens": 1' + "0" * 5000 + "}", '{"temperature": 1e999999}', '{"messages": ' + "[" * 100000 + "]" * 100000 + "}",
                     '{"messages": ' + '{"a":' * 50000 + "1" + "}" * 50000 + "}", "[" * 1000000, '{"a":' * 300000, "{" + ",".join(f'"k{i}":0' for i in range(50000)) + "}",
                     '{"seed": -1' + "0" * 400 + "}", '"' + "a" * 1000000, "1", "null", "[]", "", '{"prompt": [' + "0," * 100000 + "0]}"):
            for path in PATHS:
                self.expect_refusal(whole(text, path))
        for length in ("99999999999999999999", "-1", "1e3", "0x10", "5, 6", "+5", str(2**63), str(200 << 20)):
            status, _ = self.expect_refusal(head(length=length), half_close=True)
            self.assertIn(status, (400, 413))

    def test_truncated(self):
        good = whole(json.dumps(KENYA))
        for _ in range(CASES):
            cut = self.random.randrange(1, len(good))
            statuses, _ = self.exchange(good[:cut], half_close=True)
            self.assertTrue(not statuses or 400 <= statuses[0] < 500, statuses)

    def test_bad_chunks(self):
        body = json.dumps({**KENYA, "max_tokens": 1}).encode()
        start = head(more=("Transfer-Encoding: chunked",))
        good = start + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.assertEqual(self.exchange(good)[0], [200])
        for bad in (b"zz\r\n", b"-5\r\nhello\r\n", b"ffffffffffffffffff\r\n", b"5\r\nhelloworld\r\n", b"\r\n", b"5;" + b"x" * 100000 + b"\r\nhello\r\n0\r\n\r\n",
                    b"7fffffffffffffff\r\n{}", b"0x5\r\nhello\r\n0\r\n\r\n", b"5 5\r\nhello\r\n0\r\n\r\n"):
            self.expect_refusal(start + bad, half_close=True)
        for _ in range(CASES):
            bytes_ = bytearray(good)
            for _ in range(self.random.randint(1, 3)):
                bytes_[self.random.randrange(len(start) - 4, len(bytes_))] = self.random.randrange(256)
            statuses, got = self.exchange(bytes(bytes_), half_close=True)
            self.assertTrue(not statuses or statuses[0] == 200 or 400 <= statuses[0] < 500, (bytes(bytes_), got[:300]))
        both = head(length=len(body), more=("Transfer-Encoding: chunked",)) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.expect_refusal(both, half_close=True)  # two lengths: a way to smuggle a request

    def test_bad_heads(self):
        for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\nHost\r\n\r\n",
                     b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n", b"GET / HTTP/1.1\r\nX: " + b"\0" * 20 + b"\r\n\r\n",
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\n : x\r\n\r\n"):
            statuses, got = self.exchange(data, half_close=True)
            self.assertTrue(not statuses or 400 <= statuses[0] < 600, (data[:100], got[:200]))
        for _ in range(CASES):
            data = bytes(self.random.randrange(256) for _ in range(self.random.randint(1, 200))) + b"\r\n\r\n"
            statuses, got = self.exchange(data, half_close=True)
            self.assertTrue(not statuses or 400 <= statuses[0] < 600, (data, got[:200]))

    def test_pipelined(self):
        good = head("/ping", "GET")
        statuses, _ = self.exchange(good * 50, replies=50)
        self.assertEqual(statuses, [200] * 50)
        body = json.dumps({**KENYA, "max_tokens": 2})
        statuses, _ = self.exchange(good + whole(body) + good + whole("{") + good, replies=5)
        self.assertEqual(statuses, [200, 200, 200, 400, 200])  # in order, past the refused one
        statuses, _ = self.exchange(good + b"rubbish\r\n\r\n" + good, replies=3)
        self.assertEqual(statuses[0], 200)
        self.assertTrue(all(s == 400 for s in statuses[1:]), statuses)
        self.assertLessEqual(len(statuses), 2)  # after bytes that are no request, nothing is trusted

    def test_clients_that_leave(self):
        stream = whole(json.dumps({**KENYA, "stream": True, "max_tokens": 4000, "ignore_eos": True}))
        for _ in range(30):
            s = socket.create_connection((self.server.host, self.server.port))
            s.sendall(stream[:self.random.randrange(1, len(stream))] if self.random.random() < 0.3 else stream)
            if self.random.random() < 0.5:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of an end
            s.close()


if __name__ == "__main__":
    unittest.main()
