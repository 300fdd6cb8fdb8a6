// One message on the screen, drawn once and then grown as its text grows. A message is plain data, as it is stored:
//   {role: "user", content}
//   {role: "assistant", content, reasoning, tool_calls: [{id, name, arguments}], finish, problem, times, usage}
//   {role: "tool", tool_call_id, name, content}
// `finish` is empty while the answer streams; then OpenAI's reason, or "stopped", "interrupted" or "failed".
import { copyButton, count, h, rate, seconds } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const kWho = { user: "You", assistant: "Model", tool: "Tool result" };
const kNotes = {
  stopped: "Stopped here.",
  interrupted: "Interrupted: the page was closed while this was written.",
  length: "Ended at the length limit.",
  content_filter: "Ended by a filter.",
};

export class MessageView {
  #parts = {};
  #markdown;
  #shown = 0;           // characters of the content that are drawn
  #shownReasoning = 0;
  #cards = [];

  // `actions`: {regenerate(), sendResults([{call, content}])}; what is null is not offered.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    const body = h("div", { class: "body" });
    this.element = h("article", { class: `message ${message.role}`, "aria-label": kWho[message.role] }, h("p", { class: "who", "aria-hidden": "true" }, kWho[message.role]), body);
    this.#parts = { body };
    if (message.role === "assistant") this.#buildAnswer(body);
    else if (message.role === "tool") body.append(h("section", { class: "card", "aria-label": `Result of ${message.name}` },
      h("p", { class: "card-head" }, h("span", {}, "result of "), h("code", {}, message.name)), h("pre", {}, message.content)));
    else body.append(h("p", {}, message.content));
    this.update();
  }

  #buildAnswer(body) {
    const p = this.#parts;
    p.thought = h("div", { class: "thought" });
    p.summary = h("summary", {}, "Thinking …");
    p.thinking = h("details", { class: "thinking", hidden: true }, p.summary, p.thought);
    p.text = h("div", { class: "markdown" });
    p.calls = h("div", { class: "calls" });
    p.note = h("p", { class: "note", hidden: true });
    p.meta = h("p", { class: "meta" });
    p.buttons = h("div", { class: "actions" });
    body.append(p.thinking, p.text, p.calls, p.note, h("div", { class: "foot" }, p.meta, p.buttons));
    this.#markdown = new MarkdownView(p.text);
  }

  // Draws what the message has gained.
  update() {
    const m = this.message, p = this.#parts;
    if (m.role !== "assistant") return;
    if (m.reasoning.length > this.#shownReasoning) {
      if (p.thinking.hidden) {
        p.thinking.hidden = false;
        p.thinking.open = !m.finish;
      }
      p.thought.append(document.createTextNode(m.reasoning.slice(this.#shownReasoning)));
      this.#shownReasoning = m.reasoning.length;
    }
    if (m.content.length > this.#shown) {
      if (this.#shown === 0) this.#endThinking();
      this.#markdown.append(m.content.slice(this.#shown));
      this.#shown = m.content.length;
    }
    m.tool_calls.forEach((call, i) => {
      this.#cards[i] ??= this.#addCard(call);
      this.#cards[i].arguments.textContent = m.finish ? pretty(call.arguments) : call.arguments;
    });
    this.element.setAttribute("aria-busy", String(!m.finish));
    this.element.classList.toggle("streaming", !m.finish);
    if (m.finish) this.#finish();
  }

  #endThinking() {
    const { times } = this.message;
    this.#parts.thinking.open = false;
    this.#parts.summary.textContent = times?.thought >= 0.1 ? `Thought for ${seconds(times.thought)}` : "Thoughts";
  }

  #addCard(call) {
    const code = h("pre", {});
    const card = h("section", { class: "card", "aria-label": `Tool call ${call.name}` },
      h("p", { class: "card-head" }, h("span", {}, "calls "), h("code", {}, call.name)), code);
    this.#parts.calls.append(card);
    return { card, arguments: code };
  }

  #finish() {
    const m = this.message, p = this.#parts;
    if (this.#shownReasoning) this.#endThinking();
    const note = m.finish === "failed" ? m.problem : kNotes[m.finish] ?? "";
    p.note.textContent = note || (m.content || m.tool_calls.length ? "" : "The answer is empty.");
    p.note.hidden = !p.note.textContent;
    p.note.classList.toggle("failed", m.finish === "failed");
    p.meta.textContent = metaOf(m);
    p.buttons.replaceChildren();
    if (m.content) p.buttons.append(copyButton(() => m.content));
    if (this.actions.regenerate) p.buttons.append(h("button", { type: "button", class: "quiet", click: this.actions.regenerate }, "Regenerate"));
    p.calls.querySelector("form")?.remove();
    if (m.tool_calls.length && this.actions.sendResults) this.#offerResults();
  }

  // The page runs no tools: what they would answer is typed, or pasted.
  #offerResults() {
    const m = this.message;
    const fields = m.tool_calls.map((call, i) => h("textarea", { rows: "2", id: `${call.id}-result-${i}`, spellcheck: "false", placeholder: "what the tool answers" }));
    const labelled = fields.map((field, i) => h("div", {}, h("label", { for: field.id }, `Result of ${m.tool_calls[i].name}`), field));
    const send = () => this.actions.sendResults(m.tool_calls.map((call, i) => ({ call, content: fields[i].value })));
    const form = h("form", {
      class: "results",
      submit: (event) => {
        event.preventDefault();
        send();
      },
    }, ...labelled, h("button", { type: "submit" }, m.tool_calls.length > 1 ? "Send results" : "Send result"));
    this.#parts.calls.append(form);
  }

  // The message is the last no more, or is it again.
  setActions(actions) {
    this.actions = actions;
    if (this.message.role === "assistant" && this.message.finish) this.#finish();
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;  // not JSON: as the model wrote it
  }
}

function metaOf({ usage, times }) {
  const parts = [];
  if (usage) {
    parts.push(`${count(usage.completion_tokens)} tokens`);
    const span = times?.last - times?.first;
    if (span > 0.01 && usage.completion_tokens > 1) parts.push(`${rate((usage.completion_tokens - 1) / span)} tok/s`);
  }
  if (times?.first) parts.push(`first after ${seconds(times.first)}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${count(usage.prompt_tokens)}${cached ? `, ${count(cached)} of it cached` : ""}`);
  }
  return parts.join(" · ");
}
