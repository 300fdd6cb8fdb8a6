// Wires the page together: keyboard, dialogs, the message field, the API key.
import { Chat } from "./chat.js";
import { $, h, setText, showProblem } from "./dom.js";
import { LiveView } from "./live.js";
import { ChatStore, apiKey, onOtherTab, settings, titleOf } from "./store.js";

const kWide = matchMedia("(min-width: 62rem)");
const kFields = {
  temperature: { low: 0, high: 2 },
  top_p: { low: 0, high: 1 },
  top_k: { low: -1, high: 1e9, whole: true },
  max_tokens: { low: 1, high: 2 ** 31 - 1, whole: true },
  seed: { low: 0, high: Number.MAX_SAFE_INTEGER, whole: true },
};

const store = new ChatStore();
const live = new LiveView({ needKey: askForKey });
const chat = new Chat(store, {
  settings: settings.read,
  needKey: askForKey,
  busy: showBusy,
  announce: (words) => setText("announce", words),
});

// ---- the message field

function fitPrompt() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 240)}px`;
}

function sendPrompt() {
  const text = $("prompt").value.trim();
  if (!text || chat.busy) return;
  $("prompt").value = "";
  fitPrompt();
  chat.send(text);
}

function showBusy(on) {
  $("stop").hidden = !on;
  $("send").hidden = on;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
$("prompt").addEventListener("input", fitPrompt);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  sendPrompt();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) stopAnswer();
});
$("stop").addEventListener("click", stopAnswer);

function stopAnswer() {
  if (!chat.busy) return;
  chat.stop();
  $("prompt").focus();
}

// ---- chats

$("new-chat").addEventListener("click", () => {
  if (store.current.messages.length) {
    store.start();
    chat.show();
  }
  showEngine(kWide.matches);
  $("prompt").focus();
});
$("open-chats").addEventListener("click", () => {
  listChats();
  $("chats").showModal();
});
$("chats-close").addEventListener("click", () => $("chats").close());
onOtherTab(() => store.adopt());
addEventListener("pagehide", () => {
  chat.save();
  chat.leaving = true;
});
addEventListener("pageshow", () => { chat.leaving = false; });

function listChats() {
  const rows = store.chats.map((kept) => {
    const open = h("button", { type: "button", class: "open", click: () => openChat(kept.id), "aria-current": kept === store.current ? "true" : null },
      h("span", {}, titleOf(kept)), h("time", {}, new Date(kept.updated).toLocaleString()));
    return h("li", {}, open, h("button", { type: "button", class: "quiet", "aria-label": `Delete ${titleOf(kept)}`, click: () => removeChat(kept.id) }, "Delete"));
  });
  $("chat-list").replaceChildren(...(rows.length ? rows : [h("li", { class: "hint" }, "None yet.")]));
}

function openChat(id) {
  store.open(id);
  chat.show();
  $("chats").close();
}

function removeChat(id) {
  const shown = store.current.id === id;
  store.remove(id);
  if (shown) chat.show();
  listChats();
  $("chats-close").focus();
}

// ---- settings

$("open-settings").addEventListener("click", () => {
  const kept = settings.read();
  for (const id of ["system", "thinking", "tools", ...Object.keys(kFields)]) $(id).value = kept[id] ?? "";
  showProblem("settings-problem", "");
  $("settings").showModal();
});
$("settings-cancel").addEventListener("click", () => $("settings").close());
$("settings-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const { value, problem, field } = readSettings();
  showProblem("settings-problem", problem ?? "");
  if (problem) return $(field).focus();
  settings.write(value);
  return $("settings").close();
});

function readSettings() {
  const value = { system: $("system").value.trim(), thinking: $("thinking").value, tools: $("tools").value.trim() };
  for (const [field, rule] of Object.entries(kFields)) {
    const text = $(field).value.trim();
    if (!text) continue;
    const number = Number(text);
    if (!(number >= rule.low && number <= rule.high) || (rule.whole && !Number.isInteger(number)))
      return { field, problem: `${field} must be a ${rule.whole ? "whole " : ""}number from ${rule.low} to ${rule.high}, not “${text}”.` };
    value[field] = number;
  }
  try {
    if (value.tools && !Array.isArray(JSON.parse(value.tools))) return { field: "tools", problem: "Tools must be a JSON list: [ … ]." };
  } catch (error) {
    return { field: "tools", problem: `Tools are not JSON: ${error.message}.` };
  }
  return { value };
}

// ---- the API key

function askForKey() {
  if (!$("key-form").hidden) return;
  $("key-form").hidden = false;
  if (!kWide.matches) showEngine(false);
  $("key").focus();
}
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey.write($("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
  showProblem("problem", "");
  live.retry();
  $("prompt").focus();
});

// ---- the engine's panel: beside the chat where there is room, else in its place

function showEngine(on) {
  document.body.classList.toggle("engine-open", on);
  $("toggle-engine").setAttribute("aria-expanded", String(on));
  live.shown(on);
}
$("toggle-engine").addEventListener("click", () => showEngine(!document.body.classList.contains("engine-open")));
kWide.addEventListener("change", () => showEngine(kWide.matches));

showEngine(kWide.matches);
fitPrompt();
$("prompt").focus();
