// What the browser keeps: chats and settings in localStorage, the API key for this tab only. A full or forbidden
// storage costs the history, never the conversation on the screen.

const kChats = "braid.chats", kSettings = "braid.settings", kKey = "braid.key";
const kMaxChats = 50;

function read(storage, name, fallback) {
  try {
    return JSON.parse(storage().getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}
function write(storage, name, value) {
  try {
    storage().setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
const local = () => window.localStorage;  // throws where storage is forbidden, hence asked for late
const session = () => window.sessionStorage;

export const onOtherTab = (changed) => addEventListener("storage", (event) => event.key === kChats && changed());

export const settings = {
  read: () => read(local, kSettings, {}),
  write: (value) => write(local, kSettings, value),
};
export const apiKey = {
  read: () => read(session, kKey, ""),
  write: (value) => write(session, kKey, value),
};

const listOf = (kept) => (Array.isArray(kept.chats) ? kept.chats.filter((c) => c && Array.isArray(c.messages)) : []);
const newChat = () => ({ id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, updated: Date.now(), messages: [] });

// A chat is {id, updated, messages}; messages are those of chat.js. The newest first; empty ones are not kept.
export class ChatStore {
  constructor() {
    const kept = read(local, kChats, {});
    this.chats = listOf(kept);
    this.current = this.chats.find((c) => c.id === kept.current) ?? newChat();
  }

  // Another tab has saved: its list counts, this tab's chat stays the one that is open here.
  adopt() {
    const chats = listOf(read(local, kChats, {})).filter((c) => c.id !== this.current.id);
    this.chats = this.current.messages.length ? [this.current, ...chats] : chats;
  }

  // False: the browser did not take it, whatever was left out.
  save() {
    if (this.current.messages.length) {
      this.current.updated = Date.now();
      this.chats = [this.current, ...this.chats.filter((c) => c !== this.current)].slice(0, kMaxChats);
    }
    for (let chats = this.chats; ; chats = chats.slice(0, Math.floor(chats.length / 2))) {
      if (write(local, kChats, { current: this.current.id, chats })) {
        this.chats = chats;
        return true;
      }
      if (chats.length <= 1) return false;
    }
  }

  start() {
    this.current = newChat();
    return this.save();
  }
  open(id) {
    this.current = this.chats.find((c) => c.id === id) ?? this.current;
    return this.save();
  }
  remove(id) {
    this.chats = this.chats.filter((c) => c.id !== id);
    if (this.current.id === id) this.current = newChat();
    return this.save();
  }
}

export function titleOf(chat) {
  const text = (chat.messages.find((m) => m.role === "user")?.content ?? "").trim().replace(/\s+/g, " ");
  return text.length > 70 ? `${text.slice(0, 69)}…` : text || "Empty chat";
}
