"""What the tests of `braid serve` share: a running server, requests to it, its streams taken apart."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import braid


class Server:
    """A running `braid serve`; its address comes from the log line that says so."""

    def __init__(self, folder, *arguments, processes=0):
        self.log_path = os.path.join(folder, "serve.log")
        with open(self.log_path, "wb") as log:
            self.child = subprocess.Popen(braid.command(["serve", *arguments], processes), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.host, self.port = None, None
        try:
            braid.await_true(self.listening, 60, f"braid serve listens\n{self.log()}")
        except AssertionError:
            self.kill()
            raise

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def listening(self):
        found = re.search(r"serves (\S+) on http://([\d.]+):(\d+)", self.log())
        if not found:
            if self.child.poll() is not None:
                raise AssertionError(f"braid serve ended with {self.child.returncode}\n{self.log()}")
            return False
        self.host, self.port = "127.0.0.1", int(found.group(3))
        return True

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()  # ranks under mpirun go with it
        self.child.wait()

    def request(self, method, path, body=None):
        """(status, headers, body text)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """Sample name with its labels, and without them, to its value."""
        status, _, text = self.request("GET", "/metrics")
        assert status == 200, text
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = values[name.split("{")[0]] = float(value)
        return values

    def rest(self, seconds=30):
        """Waits until no request runs or waits and no KV block is held; then health must be good."""
        def at_rest():
            load = json.loads(self.request("GET", "/load")[2])
            return load["running"] == load["waiting"] == load["requests"] == 0 == self.metrics()["braid_kv_cache_blocks_used"]
        braid.await_true(at_rest, seconds, f"no request runs\n{self.log()[-3000:]}")
        assert self.request("GET", "/health")[0] == 200, self.log()[-3000:]

    def chat(self, messages, **more):
        return self.request("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, **more})

    def end(self):
        """SIGTERM, and the exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(30)


def events(text):
    """The data of a stream of server-sent events, whose form is checked on the way."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "", text[-200:]
    data = []
    for block in blocks[:-1]:
        if block.startswith(":"):  # a comment keeps the connection alive
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        data.append(block[6:])
    return data


class ServeCase(braid.TestCase):
    """Each test starts servers of its own."""

    def serve(self, *arguments, processes=0):
        server = Server(self.folder, *arguments, processes=processes)
        self.addCleanup(server.kill)
        return server


class OneServer(braid.TestCase):
    """All tests of the class ask one server, as people do. ARGUMENTS are added to the demo's."""
    ARGUMENTS = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder_of_class = tempfile.mkdtemp(prefix="braid_e2e_")
        cls.server = Server(cls.folder_of_class, "--model", braid.DEMO, "--dtype", "float32", "--port", "0",
                            "--host", "127.0.0.1", "--served-model-name", "demo", *cls.ARGUMENTS)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        shutil.rmtree(cls.folder_of_class)
        super().tearDownClass()
