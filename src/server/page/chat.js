// The conversation: sends it, streams the answer into its last message, keeps it in the store.
import { ApiProblem, streamChat } from "./api.js";
import { $, showProblem } from "./dom.js";
import { MessageView } from "./message.js";

const kNumbers = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

const answer = () => ({ role: "assistant", content: "", reasoning: "", tool_calls: [], finish: "", times: {} });

// What of the conversation the model sees: no thoughts, no answers that came to nothing.
function wire(messages) {
  return messages.flatMap((m) => {
    if (m.role === "user") return [{ role: "user", content: m.content }];
    if (m.role === "tool") return [{ role: "tool", tool_call_id: m.tool_call_id, content: m.content }];
    if (!m.content && !m.tool_calls.length) return [];
    const calls = m.tool_calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
    return [{ role: "assistant", content: m.content, ...(calls.length ? { tool_calls: calls } : {}) }];
  });
}

export function requestOf(messages, settings) {
  const body = { messages: wire(messages) };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  for (const name of kNumbers) if (Number.isFinite(settings[name])) body[name] = settings[name];
  if (settings.thinking) body.thinking = { type: settings.thinking };
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  return body;
}

// Takes one chunk of the stream into the message; `now` in seconds since the request.
export function take(message, chunk, now) {
  if (chunk.usage) message.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || reasoning || calls) {
    message.times.first ??= now;
    message.times.last = now;
  }
  if (reasoning) message.reasoning += reasoning;
  if ((content || calls) && message.reasoning) message.times.thought ??= now - message.times.first;
  if (content) message.content += content;
  for (const piece of calls ?? []) {
    const call = (message.tool_calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id += piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

export class Chat {
  leaving = false;  // the page is being closed, which breaks its connections: what is kept says where the answer stood
  #views = [];
  #abort = null;  // of the answer under way
  #store;
  #events;

  // events: {settings(): object, needKey(), busy(on), announce(words)}
  constructor(store, events) {
    this.#store = store;
    this.#events = events;
    this.show();
  }

  get busy() {
    return this.#abort !== null;
  }
  get #messages() {
    return this.#store.current.messages;
  }

  // Draws the chat that is open in the store.
  show() {
    this.stop();
    $("log").replaceChildren();
    this.#views = [];
    for (const message of this.#messages) {
      if (message.role === "assistant" && !message.finish) message.finish = "interrupted";
      this.#add(message);
    }
    this.#offerActions();
    $("welcome").hidden = this.#messages.length > 0;
    showProblem("problem", "");
    $("scroller").scrollTop = $("scroller").scrollHeight;
  }

  #add(message) {
    const view = new MessageView(message, {});
    this.#views.push(view);
    $("log").append(view.element);
    $("welcome").hidden = true;
    return view;
  }

  // Only the last answer can be asked for again.
  #offerActions() {
    const last = this.#views.at(-1);
    for (const view of this.#views) {
      const regenerate = view === last && !this.busy ? () => this.regenerate() : null;
      const sendResults = view === last && !this.busy ? (results) => this.sendResults(results) : null;
      if (view.actions.regenerate || regenerate) view.setActions({ regenerate, sendResults });
    }
  }

  #push(message) {
    this.#messages.push(message);
    return this.#add(message);
  }

  send(text) {
    this.#push({ role: "user", content: text });
    return this.#answer();
  }
  sendResults(results) {
    for (const { call, content } of results) this.#push({ role: "tool", tool_call_id: call.id, name: call.name, content });
    return this.#answer();
  }
  regenerate() {
    if (this.busy || this.#messages.at(-1)?.role !== "assistant") return undefined;
    this.#messages.pop();
    this.#views.pop().element.remove();
    return this.#answer();
  }
  stop() {
    this.#abort?.abort();
  }
  save() {
    if (!this.leaving && !this.#store.save()) showProblem("problem", "This browser does not keep the conversation: its storage is full or forbidden.");
  }

  async #answer() {
    showProblem("problem", "");
    const { settings, busy, announce } = this.#events;
    const body = requestOf(this.#messages, settings());
    const message = answer(), abort = new AbortController(), start = performance.now();
    const view = this.#push(message);
    this.#abort = abort;
    this.#offerActions();
    this.#follow(true);
    this.save();
    busy(true);
    announce("The model answers.");
    const draw = throttled(() => {
      const follow = this.#atEnd();
      view.update();
      this.#follow(follow);
    });
    const keep = setInterval(() => this.save(), 1000);
    try {
      for await (const chunk of streamChat(body, abort.signal)) {
        take(message, chunk, (performance.now() - start) / 1000);
        if (!message.finish) draw.soon();
      }
      message.finish ||= "stop";
    } catch (error) {
      this.#endEarly(message, error);
    }
    clearInterval(keep);
    if (this.#abort === abort) this.#abort = null;
    draw.now();
    this.#offerActions();
    this.save();
    busy(this.busy);
    announce(message.finish === "failed" ? message.problem : message.finish === "stopped" ? "Stopped." : "The answer is complete.");
  }

  #endEarly(message, error) {
    if (error.name === "AbortError") {
      message.finish = "stopped";
      return;
    }
    message.finish = "failed";
    message.problem = error instanceof ApiProblem ? error.message : `The page failed: ${error.message}`;
    if (error.status === 401) this.#events.needKey();
  }

  #atEnd() {
    const s = $("scroller");
    return s.scrollHeight - s.scrollTop - s.clientHeight < 48;
  }
  #follow(on) {
    if (on) $("scroller").scrollTop = $("scroller").scrollHeight;
  }
}

// Calls f once per frame at most; now() at once, and none later.
function throttled(f) {
  let frame = 0;
  return {
    soon() {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        f();
      });
    },
    now() {
      cancelAnimationFrame(frame);
      frame = 0;
      f();
    },
  };
}
