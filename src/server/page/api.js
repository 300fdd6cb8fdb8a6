// Talking to the server: JSON, server-sent events, and errors as sentences.
import { apiKey } from "./store.js";

export class ApiProblem extends Error {
  constructor(words, status = 0) {
    super(words);
    this.status = status;
  }
}

function headers() {
  const key = apiKey.read();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function ask(path, options) {
  let reply;
  try {
    reply = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiProblem("The server cannot be reached. Is it still running, and on this address?");
  }
  if (!reply.ok) throw new ApiProblem(await words(reply), reply.status);
  return reply;
}

async function words(reply) {
  const said = await reply.json().then((json) => json.error?.message ?? "", () => "");
  if (reply.status === 401) return apiKey.read() ? "The server does not know this API key." : "This server asks for an API key.";
  if (reply.status === 503) return `The server takes no requests now${said ? `: ${said}` : "."}`;
  if (reply.status >= 500) return `The server failed${said ? `: ${said}` : ` with status ${reply.status}`}. Its log says more.`;
  return said || `The server refused the request with status ${reply.status}.`;
}

export const getJson = async (path, signal) => (await ask(path, { signal, cache: "no-store" })).json();

// Pieces of a stream in, the data of whole events out.
export class EventParser {
  #rest = "";

  push(text) {
    this.#rest += text;
    const events = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = events.pop();
    return events.map(dataOf).filter((data) => data !== null);
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n") : null;  // else a comment
}

// The chunks of a streamed chat completion, as they come.
export async function* streamChat(body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const reply = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiProblem("The connection to the server broke before the answer ended.");
    });
    if (done) throw new ApiProblem("The server closed the connection before the answer ended.");
    for (const data of parser.push(value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiProblem(`The answer ended early: ${chunk.error.message}`);
      yield chunk;
    }
  }
}
