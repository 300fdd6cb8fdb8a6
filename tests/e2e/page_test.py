#!/usr/bin/env python3
"""The page of `braid serve` in headless Chromium, as a person uses it, with the demo model behind it.
    page_test.py --screenshots DIR     pictures of it instead: light, dark, phone
"""
import atexit
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest

import braid
import chromium
from serving import Server

SERVE = ("--model", braid.DEMO, "--dtype", "float32", "--port", "0", "--host", "127.0.0.1", "--served-model-name", "demo")
ROOM = ("-tp", "2", "-dcp", "2", "--num-kv-blocks", "128")
KENYA = "What is the capital of Kenya?"
# The demo's answers are short; on the wire they are asked to go on, so that there is something to watch and to stop.
LONG = """
const ask = window.fetch;
window.fetch = (url, options = {}) => {
  if (options.method === "POST") options = {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true, max_tokens: 3000})};
  return ask(url, options);
};"""
BUSY = "!document.querySelector('#stop').hidden"
ANSWER = ".message.assistant:last-child .markdown"
TOOL = [{"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
# Luminance contrast of two CSS colours, by painting them.
CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const root = getComputedStyle(document.documentElement);
  const light = (name) => {
    canvas.fillStyle = root.getPropertyValue(name);
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  return Object.fromEntries([["--ink", "--ground"], ["--ink", "--panel"], ["--dim", "--ground"], ["--dim", "--panel"], ["--bad", "--ground"],
    ["--bad", "--panel"], ["--on-accent", "--accent"], ["--ink", "--field"], ["--dim", "--field"]].map(([a, b]) => [`${a} on ${b}`, contrast(a, b)]));
})()"""
# What sticks out of the window to the right. Things that scroll inside a box of their own do not count.
OUTSIDE = """
[...document.querySelectorAll("body *")].filter((e) => {
  const r = e.getBoundingClientRect();
  if (!r.width || r.right <= innerWidth + 0.5 || r.left < 0) return false;
  for (let p = e.parentElement; p; p = p.parentElement) if (/auto|scroll|hidden/.test(getComputedStyle(p).overflowX) && p !== document.body) return false;
  return true;
}).map((e) => e.outerHTML.slice(0, 120))"""

shared = {}


def setUpModule(room=ROOM):
    shared["folder"] = tempfile.mkdtemp(prefix="braid_e2e_")
    shared["server"] = Server(shared["folder"], *SERVE, *room)


def tearDownModule():
    if "server" in shared:
        shared["server"].kill()
    shutil.rmtree(shared["folder"], ignore_errors=True)


class PageCase(braid.TestCase):
    def open(self, server=None, script="", **look):
        server = server or shared["server"]
        page = shared["browser"].page(**look)
        self.addCleanup(page.close)
        if script:
            page.before_load(script)
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.wait("document.activeElement?.id === 'prompt'")
        self.page = page
        return page

    def ask(self, text):
        self.page.type(text)
        self.page.press("Enter")

    def ask_to_the_end(self, text):
        n = self.page.eval("document.querySelectorAll('.message').length")
        self.ask(text)
        self.page.wait(f"document.querySelectorAll('.message').length === {n + 2} && !({BUSY})")
        return self.page.text(ANSWER)

    def set(self, **values):
        """Through the dialog, as a person does."""
        self.page.click("#open-settings")
        self.page.wait("document.querySelector('#settings').open")
        for field, value in values.items():
            self.page.eval(f"document.querySelector('#{field}').value = {json.dumps(str(value))}")
        self.page.click("#settings-form .primary")

    def stats(self):
        return json.loads(shared["server"].request("GET", "/stats")[2])

    def assert_quiet(self):
        self.assertEqual(self.page.problems, [])


class Conversation(PageCase):
    def test_ask_reload_regenerate_and_older_chats(self):
        page = self.open()
        self.set(temperature=0)
        page.eval("document.querySelector('#prompt').focus()")
        self.assertEqual(self.ask_to_the_end(KENYA), "The capital of Kenya is Nairobi.")
        self.assertRegex(page.text(".message.assistant .meta"), r"^\d+ tokens( · [\d.,]+ tok/s)? · first after [\d.]+ m?s · prompt \d+$")
        page.reload()
        page.wait("document.querySelectorAll('.message').length === 2")
        self.assertEqual(page.text(".message.user .body"), KENYA)
        self.assertEqual(page.text(ANSWER), "The capital of Kenya is Nairobi.")
        self.assertEqual(page.eval("JSON.parse(localStorage['braid.settings']).temperature"), 0)
        # The same question again: the answer is another message, and the prompt comes from the prefix cache or not at all.
        page.eval("window.old = document.querySelector('.message.assistant')")
        page.eval("[...document.querySelectorAll('.actions button')].find((b) => b.textContent === 'Regenerate').click()")
        page.wait(f"document.querySelectorAll('.message').length === 2 && document.querySelector('.message.assistant') !== window.old && !({BUSY})")
        self.assertEqual(page.text(ANSWER), "The capital of Kenya is Nairobi.")
        # A follow-up sees the conversation, a new chat starts without it, the older one can be opened again.
        self.ask_to_the_end("What is the capital of Peru?")
        self.assertEqual(page.eval("document.querySelectorAll('.message').length"), 4)
        page.click("#new-chat")
        page.wait("document.querySelectorAll('.message').length === 0 && !document.querySelector('#welcome').hidden")
        page.click("#open-chats")
        page.wait("document.querySelectorAll('#chat-list .open').length === 1")
        self.assertIn(KENYA, page.text("#chat-list"))
        page.click("#chat-list .open")
        page.wait("document.querySelectorAll('.message').length === 4 && !document.querySelector('#chats').open")
        page.click("#open-chats")
        page.click("#chat-list .quiet")
        page.wait("document.querySelectorAll('#chat-list .open').length === 0 && document.querySelectorAll('.message').length === 0")
        self.assertEqual(page.eval("JSON.parse(localStorage['braid.chats']).chats"), [])
        self.assert_quiet()

    def test_streams_stops_and_survives_a_reload(self):
        page = self.open(script=LONG)
        before = self.stats()["requests"]
        self.ask("Tell me a story.")
        first = page.wait(f"{BUSY} && document.querySelector('{ANSWER}').textContent.length")
        page.wait(f"{BUSY} && document.querySelector('{ANSWER}').textContent.length > {first} + 20")  # it grows while it runs
        self.assertEqual(self.stats()["requests"]["running"], 1)
        page.press("Escape")
        page.wait(f"!({BUSY}) && document.querySelector('.note').textContent === 'Stopped here.'")
        length = page.eval(f"document.querySelector('{ANSWER}').textContent.length")
        braid.await_true(lambda: self.stats()["requests"]["running"] == 0, 3, "the request ends with its reader")
        self.assertEqual(self.stats()["requests"]["aborted"], before["aborted"] + 1)
        self.assertEqual(page.eval(f"document.querySelector('{ANSWER}').textContent.length"), length)
        # The stop button does the same; a reload in the midst keeps what has come.
        self.ask("Tell me another story.")
        page.wait(f"{BUSY} && document.querySelector('{ANSWER}').textContent.length > 20")
        page.click("#stop")
        page.wait(f"!({BUSY})")
        self.assertEqual(page.eval("document.activeElement.id"), "prompt")
        self.ask("And a third.")
        page.wait(f"{BUSY} && document.querySelector('{ANSWER}').textContent.length > 20")
        page.reload()
        page.wait("document.querySelectorAll('.message').length === 6")
        self.assertGreater(len(page.text(ANSWER)), 20)
        self.assertIn("Interrupted", page.text(".message:last-child .note"))
        braid.await_true(lambda: self.stats()["requests"]["running"] == 0, 3, "the request ends with its page")
        self.assert_quiet()

    def test_thinking_is_folded_away(self):
        page = self.open()
        self.set(temperature=0, thinking="enabled")
        page.eval("document.querySelector('#prompt').focus()")
        answer = self.ask_to_the_end("Sam has 24 keys. Sam buys 33 more keys. Sam gives away 13 keys. How many keys does Sam have now?")
        self.assertEqual(answer, "The answer is 44.")
        self.assertIs(page.eval("document.querySelector('.thinking').open"), False)
        self.assertRegex(page.text(".thinking summary"), r"^(Thought for [\d.]+ m?s|Thoughts)$")
        self.assertEqual(page.eval("document.querySelector('.thought').textContent.trim()"), "24 + 33 = 57. 57 - 13 = 44.")
        page.click(".thinking summary")
        self.assertIs(page.eval("document.querySelector('.thought').checkVisibility()"), True)
        self.assert_quiet()

    def test_tool_calls_are_cards_that_take_a_result(self):
        page = self.open()
        self.set(temperature=0, thinking="disabled", tools=json.dumps(TOOL))
        page.eval("document.querySelector('#prompt').focus()")
        self.ask_to_the_end("Is it nice in Stockholm now?")
        self.assertEqual(page.eval("document.querySelector('.card-head').textContent"), "calls get_weather")
        self.assertEqual(json.loads(page.text(".card pre")), {"city": "Stockholm"})
        page.click(".results textarea")
        page.type('{"city": "Stockholm", "weather": "foggy", "degrees": 7}')
        page.click(".results button")
        page.wait(f"document.querySelectorAll('.message').length === 4 && !({BUSY})")
        self.assertEqual(page.text(ANSWER), "It is foggy in Stockholm with 7 degrees.")
        self.assertIs(page.eval("document.querySelector('.results') === null"), True)
        self.assert_quiet()


class Words(PageCase):
    """What goes wrong is said in sentences."""

    def test_key(self):
        folder = self.path("keyed")
        os.mkdir(folder)
        server = Server(folder, *SERVE, "--api-key", "open sesame")
        self.addCleanup(server.kill)
        page = shared["browser"].page()
        self.addCleanup(page.close)
        self.page = page
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.wait("!document.querySelector('#key-form').hidden && document.activeElement.id === 'key'")
        self.assertIn("asks for an API key", page.text("#engine-problem"))
        self.ask("wrong")  # the focus is in the field of the key
        page.wait("document.querySelector('#engine-problem').textContent.includes('does not know this API key')")
        self.ask("open sesame")
        page.wait("document.querySelector('#health').textContent === 'idle' && document.querySelector('#key-form').hidden")
        page.eval("document.querySelector('#prompt').focus()")
        self.assertNotEqual(self.ask_to_the_end(KENYA), "")
        page.reload()
        page.wait("document.querySelector('#health').textContent === 'idle'")  # the tab knows the key
        self.assertNotIn("sesame", page.eval("JSON.stringify(localStorage)"))

    def test_refused_and_unreachable(self):
        page = self.open()
        self.set(max_tokens=1000000)
        page.eval("document.querySelector('#prompt').focus()")
        self.ask_to_the_end(KENYA)
        self.assertIn("maximum context length", page.text(".note"))
        self.assertIn("1000000 in the completion", page.text(".note"))
        self.set(max_tokens="ten")
        self.assertEqual(page.text("#settings-problem"), "max_tokens must be a whole number from 1 to 2147483647, not “ten”.")
        self.assertEqual(page.eval("document.activeElement.id"), "max_tokens")
        page.press("Escape")
        page.offline(True)
        page.wait("document.querySelector('#engine-problem').textContent.startsWith('The server cannot be reached')")
        self.assertEqual(page.text("#health"), "unreachable")
        page.eval("document.querySelector('#prompt').focus()")
        self.ask_to_the_end("Anyone?")
        self.assertIn("cannot be reached", page.text(".message:last-child .note"))
        page.offline(False)
        page.wait("document.querySelector('#health').textContent === 'idle'")


class Live(PageCase):
    def test_numbers_follow_the_engine(self):
        page = self.open(script=LONG)
        page.wait("document.querySelector('#n-steps').textContent !== '–'")
        self.assertEqual(page.text("#model"), f"demo · {self.stats()['max_model_len']:,} tokens")
        self.assertEqual(page.text("#layout"), "tp 2 · dcp 2 · interleave 1")
        self.assertEqual(page.eval("document.querySelectorAll('#braid .strand.used').length > 2"), True)
        self.ask("Tell me a story.")
        page.wait("document.querySelector('#n-running').textContent === '1' && document.querySelector('#health').textContent === 'working'")
        filled = "[0, 1].map((i) => Number(document.querySelector(`#strand-${i}-0 rect`).getAttribute('width')))"
        rows = "[...document.querySelectorAll('#ranks tr')].map((r) => Number(r.children[2].textContent.replaceAll(',', '')))"
        first = page.wait(f"(() => {{ const r = {rows}; return r[0] > 20 && r; }})()")
        self.assertTrue(all(width > 0 for width in page.eval(filled)))
        later = page.wait(f"(() => {{ const r = {rows}; return r[0] > {first[0]} + 20 && r; }})()")
        self.assertLessEqual(abs(later[0] - later[1]), 1)  # dealt one by one, the ranks differ by one row at most
        self.assertGreater(float(page.text("#decode-rate").replace(",", "")), 0)
        self.assertGreater(page.eval("document.querySelectorAll('#step-bars rect.decode').length"), 20)
        self.assertRegex(page.text("#step-text"), r"median [\d.]+ (ms|µs), longest [\d.]+ m?s")
        self.assertRegex(page.eval("document.querySelector('#braid').getAttribute('aria-label')"), r"rank 0 [\d.]+ % in use, rank 1 [\d.]+ % in use")
        page.press("Escape")
        page.wait("document.querySelector('#n-running').textContent === '0' && document.querySelector('#health').textContent === 'idle'")
        self.assertEqual(page.wait(f"(() => {{ const r = {rows}; return r[0] === 0 && r; }})()"), [0, 0])
        self.assertGreater(page.eval("Number(document.querySelector('#strand-0-1 rect').getAttribute('width'))"), 0)  # kept for prefix hits
        self.assert_quiet()

    def test_rows_are_those_of_the_conversation(self):
        page = self.open(script=LONG)
        self.ask("Tell me a story.")
        page.wait(BUSY)
        braid.await_true(lambda: self.stats()["requests"]["running"] == 1 and self.stats()["ranks"][0]["rows_used"] > 0, 10, "it runs")
        s = self.stats()
        rows = [rank["rows_used"] for rank in s["ranks"]]
        block = 2 * s["ranks"][0]["rows_total"] // s["blocks"]["total"]  # tokens of a block on both ranks
        self.assertIn(rows[0] - rows[1], (0, 1))
        # One sequence: all its blocks are full but the last.
        self.assertLessEqual(sum(rows), s["blocks"]["used"] * block)
        self.assertGreater(sum(rows), (s["blocks"]["used"] - 2) * block)
        page.press("Escape")

    def test_asks_only_while_it_is_seen(self):
        page = self.open(script="""window.asked = 0; const ask = window.fetch;
            window.fetch = (url, options) => { window.asked += url === "/stats"; return ask(url, options); };""")
        page.wait("window.asked >= 2")
        page.eval("Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))")
        time.sleep(0.3)  # one may be under way
        asked = page.eval("window.asked")
        time.sleep(1.5)
        self.assertEqual(page.eval("window.asked"), asked)
        page.eval("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait(f"window.asked >= {asked} + 2", 4)
        page.click("#toggle-engine")
        time.sleep(0.3)
        asked = page.eval("window.asked")
        time.sleep(1.5)
        self.assertEqual(page.eval("window.asked"), asked)


class Reading(PageCase):
    """What the model writes stays text."""

    def test_markup_is_shown_not_run(self):
        page = self.open()
        page.eval("""(async () => {
          const {MarkdownView} = await import("/page/markdown.js");
          const root = document.createElement("div");
          root.id = "probe";
          document.querySelector("main").append(root);
          new MarkdownView(root).append("<img src=x onerror='window.hit=1'> **<b>x</b>** `<i>`\\n```html\\n<script>window.hit=1</" + "script>\\n```\\n- <a href='javascript:1'>a</a>\\n[l](http://x)");
        })()""")
        self.assertEqual(page.eval("document.querySelectorAll('#probe img, #probe script, #probe a, #probe b, #probe i').length"), 0)
        self.assertIn("<img src=x onerror='window.hit=1'> <b>x</b> <i>", page.text("#probe"))
        self.assertIs(page.eval("window.hit === undefined"), True)
        self.assertEqual(page.text("#probe strong"), "<b>x</b>")
        self.assertEqual(page.eval("document.querySelector('#probe pre code').textContent"), "<script>window.hit=1</script>\n")
        # And the policy holds should a page's bug ever try.
        self.assertIn("TrustedHTML", page.eval("(() => { try { document.body['inner' + 'HTML'] = '<p>'; return ''; } catch (e) { return String(e); } })()"))

    def test_pieces_make_the_same_as_the_whole(self):
        page = self.open()
        text = ("# Head\nplain **bold** and `code` ** not closed\nsecond line\n\n* one\n* two\n  more\n3. three\n4) four\n\n```c++\nint x;\n\n- y\n```\nafter ``a`b`` `\n"
                "~~~\ntilde ```\n~~~\n1. last **b `c`**")
        page.eval("import('/page/markdown.js').then((m) => { window.M = m.MarkdownView; })")
        drawn = page.eval(f"""(() => {{
          const text = {json.dumps(text)};
          const draw = (pieces) => {{
            const root = document.createElement("div"), view = new M(root);
            pieces.forEach((piece) => view.append(piece));
            root.normalize();
            return root.outerHTML;
          }};
          let seed = 1;
          const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
          const results = new Set([draw([text]), draw([...text])]);
          for (let i = 0; i < 50; ++i) results.add(draw(text.split(/(?=)/).reduce((p, c) => (random() < 0.3 ? [...p, c] : [...p.slice(0, -1), (p.at(-1) ?? "") + c]), [])));
          return [...results];
        }})()""")
        self.assertEqual(len(drawn), 1, "\n\n".join(drawn))
        for part in ("<strong>bold</strong>", "<code>code</code>", "** not closed", "<ol start=\"3\"><li>three</li><li>four</li></ol>", "int x;\n\n- y\n",
                     "<code>a`b</code>", "tilde ```"):
            self.assertIn(part, drawn[0])

    def test_request_holds_what_is_set(self):
        page = self.open()
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [], "finish": "failed"},
                    {"role": "user", "content": "b"}, {"role": "assistant", "content": "c", "reasoning": "r", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]},
                    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "d"}]
        settings = {"system": "Be brief.", "temperature": 0, "top_k": 5, "seed": 7, "thinking": "disabled", "tools": "[]"}
        got = page.eval(f"import('/page/chat.js').then((m) => m.requestOf({json.dumps(messages)}, {json.dumps(settings)}))")
        self.assertEqual(got, {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                         {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                         {"role": "tool", "tool_call_id": "1", "content": "d"}],
            "temperature": 0, "top_k": 5, "seed": 7, "thinking": {"type": "disabled"}, "tools": []})

    def test_events_split_anywhere(self):
        page = self.open()
        stream = 'data: {"a": 1}\n\n: comment\n\ndata: x\ndata: y\n\ndata:z\r\n\r\nevent: e\ndata: [DONE]\n\n'
        got = page.eval(f"""import("/page/api.js").then(({{EventParser}}) => {{
          const text = {json.dumps(stream)}, all = new Set();
          for (let cut = 0; cut <= text.length; ++cut) {{
            const parser = new EventParser();
            all.add(JSON.stringify([...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))]));
          }}
          return [...all];
        }})""")
        self.assertEqual([json.loads(g) for g in got], [['{"a": 1}', "x\ny", "z", "[DONE]"]])


class Everyone(PageCase):
    """By keyboard, by ear, on a phone, at night."""

    def test_keyboard_alone(self):
        page = self.open()
        page.type("one")
        page.press("Enter", chromium.SHIFT)
        page.type("two")
        self.assertEqual(page.eval("document.querySelector('#prompt').value"), "one\ntwo")
        page.press("Enter")
        page.wait(f"document.querySelectorAll('.message').length === 2 && !({BUSY})")
        self.assertEqual(page.text(".message.user .body"), "one\ntwo")
        # From the top, everything is reached in the order it is read in, and shows that it is reached.
        page.eval("document.activeElement.blur(); getSelection().removeAllRanges()")
        page.eval("document.querySelector('.skip').focus()")
        reached = [page.eval("document.activeElement.className")]
        for _ in range(20):
            page.press("Tab")
            name = page.eval("document.activeElement.id || document.activeElement.textContent")
            style = page.eval("(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle + ' ' + s.outlineWidth; })()")
            self.assertEqual(style, "solid 2px", name)
            reached.append(name)
            if name == "send":
                break
        self.assertEqual(reached, ["skip", "new-chat", "open-chats", "open-settings", "toggle-engine", "scroller", "Copy", "Regenerate", "prompt", "send"])
        # A dialog opens by key, keeps the focus, and gives it back.
        page.eval("document.querySelector('#open-settings').focus()")
        page.press("Enter")
        page.wait("document.querySelector('#settings').open")
        self.assertIs(page.eval("document.querySelector('#settings').contains(document.activeElement)"), True)
        page.press("Escape")
        page.wait("!document.querySelector('#settings').open")
        self.assertEqual(page.eval("document.activeElement.id"), "open-settings")

    def test_names_and_landmarks(self):
        page = self.open()
        self.set(thinking="enabled", tools=json.dumps(TOOL), temperature=0)
        page.eval("document.querySelector('#prompt').focus()")
        self.ask_to_the_end("Is it nice in Stockholm now?")
        for opened in ("", "#open-settings", "#open-chats"):
            if opened:
                page.click(opened)
            nodes = page.accessible()
            if opened:
                page.press("Escape")
            nameless = [role for role, name in nodes if not name.strip() and role in
                        ("button", "textbox", "combobox", "link", "image", "img", "graphics-document", "dialog", "region", "log", "article", "heading", "navigation",
                         "complementary", "columnheader")]
            self.assertEqual(nameless, [], opened)
            roles = {role for role, _ in nodes}
            if not opened:
                self.assertLessEqual({"banner", "navigation", "main", "complementary", "log", "status", "heading"}, roles)
        self.assertEqual(page.eval("document.documentElement.lang"), "en")
        # Fields have labels, not only placeholders.
        self.assertEqual(page.eval("[...document.querySelectorAll('input, textarea, select')].filter((f) => !f.labels.length).map((f) => f.id)"), [])
        self.assertEqual(page.eval("document.querySelector('#announce').textContent"), "The answer is complete.")
        self.assert_quiet()

    def test_phone(self):
        page = self.open(width=320, height=640)
        page.look(320, 640, phone=True)
        self.ask_to_the_end(KENYA)
        page.eval("""import("/page/markdown.js").then(({MarkdownView}) => new MarkdownView(document.querySelector(".markdown")).append(
          "a_very_long_word_".repeat(30) + "\\n```\\n" + "code ".repeat(80) + "\\n```\\n`" + "x".repeat(200) + "`\\n"))""")
        self.assertEqual((page.eval("document.documentElement.scrollWidth"), page.eval(OUTSIDE)), (320, []))
        self.assertIs(page.eval("document.querySelector('#engine').checkVisibility()"), False)
        page.click("#toggle-engine")
        page.wait("document.querySelector('#engine').checkVisibility() && document.querySelector('#n-steps').textContent !== '–'")
        page.click("#kv summary")
        self.assertEqual((page.eval("document.documentElement.scrollWidth"), page.eval(OUTSIDE)), (320, []))
        for dialog in ("#settings", "#chats"):
            page.eval(f"document.querySelector('{dialog}').showModal()")
            self.assertEqual((page.eval("document.documentElement.scrollWidth"), page.eval(OUTSIDE)), (320, []), dialog)
            page.eval(f"document.querySelector('{dialog}').close()")
        # Fingers need room: every button that can be seen is 24 CSS pixels high or more.
        self.assertEqual(page.eval("[...document.querySelectorAll('button')].filter((b) => b.checkVisibility() && b.getBoundingClientRect().height < 24).map((b) => b.textContent)"), [])
        self.assert_quiet()

    def test_light_and_dark(self):
        page = self.open()
        grounds = []
        for dark in (False, True):
            page.look(1280, 800, dark=dark)
            grounds.append(page.eval("getComputedStyle(document.body).backgroundColor"))
            for pair, contrast in page.eval(CONTRAST).items():
                self.assertGreaterEqual(contrast, 4.5, f"{pair}, {'dark' if dark else 'light'}")
        self.assertNotEqual(*grounds)


def screenshots(folder):
    """Beside the conversation others keep the engine busy."""
    setUpModule(("-tp", "4", "-dcp", "4", "--num-kv-blocks", "96"))
    case = Conversation()
    try:
        page = case.open()
        for thinking, tools, question in (
                ("enabled", "", "Sam has 24 keys. Sam buys 33 more keys. Sam gives away 13 keys. How many keys does Sam have now?"),
                ("disabled", json.dumps(TOOL), "Is it nice in Stockholm now?")):
            case.set(temperature=0, thinking=thinking, tools=tools)
            page.eval("document.querySelector('#prompt').focus()")
            case.ask_to_the_end(question)
        page.click(".results textarea")
        page.type('{"city": "Stockholm", "weather": "foggy", "degrees": 7}')
        page.click(".results button")
        page.wait("document.querySelectorAll('.message').length === 6")
        others = [threading.Thread(target=shared["server"].request, args=("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": question}], "ignore_eos": True, "max_tokens": 400 * n, "seed": n})) for n in range(1, 5)]
        for other in others:
            other.start()
        for name, width, height, dark, phone in (("light", 1280, 800, False, False), ("dark", 1280, 800, True, False), ("phone", 375, 740, False, True)):
            page.look(width, height, dark, phone)
            time.sleep(1.6)
            page.screenshot(os.path.join(folder, f"page-{name}.png"))
        page.click("#toggle-engine")
        time.sleep(1.5)
        page.screenshot(os.path.join(folder, "page-phone-engine.png"))
        for other in others:
            other.join()
        case.doCleanups()
    finally:
        tearDownModule()


if __name__ == "__main__":
    try:
        shared["browser"] = chromium.Browser()
    except chromium.Missing as reason:
        print(f"page_test: skipped: {reason}")
        sys.exit(77)
    atexit.register(shared["browser"].close)
    if "--screenshots" in sys.argv:
        screenshots(sys.argv[sys.argv.index("--screenshots") + 1])
    else:
        unittest.main()
