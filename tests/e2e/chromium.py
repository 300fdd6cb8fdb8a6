"""Headless Chromium for tests, with Python's standard library alone: the DevTools protocol over two pipes.

    browser = Browser()                      # raises Missing, with the reason, where there is no Chromium
    page = browser.page(width=1280, height=800)
    page.goto("http://127.0.0.1:8000/")
    page.wait("document.title == 'braid'")
    page.type("Hello"); page.press("Enter")
    page.problems                            # what the console complained of, violations of the page's policy included
"""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Space": (32, " "), "Home": (36, "")}
SHIFT = 8


class Missing(Exception):
    """No browser to be had, and why."""


def pipe_clear_of_low_numbers():
    """A pipe whose ends are not 3 or 4, which the browser's own will be."""
    ends = os.pipe()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in ends]
    for fd in ends:
        os.close(fd)
    return moved


class Browser:
    def __init__(self):
        program = os.environ.get("BRAID_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
        if not program:
            raise Missing("no Chromium is installed (Debian: apt-get install chromium-headless-shell), nor does BRAID_CHROMIUM name one")
        self.folder = tempfile.mkdtemp(prefix="braid_chromium_")
        requests, self.to_browser = pipe_clear_of_low_numbers()
        self.from_browser, replies = pipe_clear_of_low_numbers()
        arguments = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                     "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"]
        # The protocol is spoken on descriptors 3 (to it) and 4 (from it).
        self.child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4),
                                      start_new_session=True, preexec_fn=lambda: (os.dup2(requests, 3), os.dup2(replies, 4)))
        os.close(requests), os.close(replies)
        self.rest, self.next_id, self.pages = b"", 1, {}
        try:
            self.version = self.call("Browser.getVersion", limit=60)["product"]
        except (OSError, AssertionError) as error:
            self.close()
            raise Missing(f"{program} does not start: {error}") from error

    def close(self):
        for fd in (self.to_browser, self.from_browser):
            os.close(fd)
        try:
            self.child.wait(5)  # it ends with its pipe
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, session=None, limit=20, **parameters):
        message = {"id": self.next_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.next_id += 1
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + limit
        while True:
            reply = self.receive(end)
            assert reply is not None, f"no answer to {method} within {limit} s"
            if reply.get("id") == message["id"]:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]

    def receive(self, end):
        """The next message; events go to their page on the way. None: it is too late."""
        while b"\0" not in self.rest:
            if not select.select([self.from_browser], [], [], max(0, end - time.monotonic()))[0]:
                return None
            piece = os.read(self.from_browser, 1 << 20)
            assert piece, "the browser is gone"
            self.rest += piece
        line, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(line)
        page = self.pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.on_event(message["method"], message["params"])
        return message

    def page(self, width=1280, height=800, dark=False):
        """A page with a storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.look(width, height, dark)
        return page


class Page:
    def __init__(self, browser, session, context):
        self.browser, self.session, self.context = browser, session, context
        self.problems, self.loaded = [], 0

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def on_event(self, method, parameters):
        if method == "Page.loadEventFired":
            self.loaded += 1
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def look(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def goto(self, url):
        self._load("Page.navigate", url=url)

    def reload(self):
        self._load("Page.reload")

    def _load(self, method, **parameters):
        before, end = self.loaded, time.monotonic() + 20
        self.call(method, **parameters)
        while self.loaded == before:
            assert self.browser.receive(end) is not None, "the page has not loaded within 20 s"

    def before_load(self, script):
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def eval(self, expression):
        """The expression's value, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"].get("exception", {}).get("description", result["exceptionDetails"]["text"]))
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Waits until the expression is true, and returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.eval(expression)):
            assert time.monotonic() < end, f"not within {seconds} s: {expression}\n{self.eval('document.body.innerText')}\n{self.problems}"
            time.sleep(0.03)
        return value

    def press(self, key, modifiers=0):
        code, text = KEYS[key]
        common = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        x, y = self.eval(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
                         " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def text(self, selector):
        return self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def offline(self, on):
        self.call("Network.enable")
        self.call("Network.emulateNetworkConditions", offline=on, latency=0, downloadThroughput=-1, uploadThroughput=-1)

    def accessible(self):
        """(role, name) of every node that is exposed to assistive technology."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"] and "role" in n]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
