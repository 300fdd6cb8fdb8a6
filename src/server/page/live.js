// The live view: asks /stats once a second while it can be seen, and draws the difference of two replies.
import { getJson } from "./api.js";
import { $, brief, count, h, percent, rate, seconds, setText, showProblem } from "./dom.js";
import { BraidDrawing, drawBars, drawLine, hueOf } from "./drawing.js";

const kPeriodMs = 1000, kHistory = 120;

export class LiveView {
  #events;
  #braid = new BraidDrawing($("braid"));
  #shown = false;
  #timer = 0;
  #asking = false;
  #known = false;       // the header has the model's name
  #refused = false;     // for want of a key
  #last = null;
  #rates = [];          // output tokens per second, the newest last

  constructor(events) {
    this.#events = events;
    document.addEventListener("visibilitychange", () => this.#schedule(0));
  }

  shown(on) {
    this.#shown = on;
    this.#schedule(0);
  }
  retry() {
    this.#refused = false;
    this.#schedule(0);
  }

  #wanted() {
    return !document.hidden && !this.#refused && (this.#shown || !this.#known);
  }
  #schedule(ms) {
    clearTimeout(this.#timer);
    if (this.#wanted()) this.#timer = setTimeout(() => this.#ask(), ms);
  }

  async #ask() {
    if (this.#asking) return;
    this.#asking = true;
    try {
      this.#show(await getJson("/stats", AbortSignal.timeout(10000)));
      showProblem("engine-problem", "");
    } catch (error) {
      this.#last = null;
      const slow = error.name === "TimeoutError" || error.name === "AbortError";
      setHealth("bad", error.status === 401 ? "locked" : "unreachable");
      showProblem("engine-problem", slow ? "The server has not answered for 10 s." : error.message);
      this.#refused = error.status === 401;
      if (this.#refused) this.#events.needKey();
    }
    this.#asking = false;
    this.#schedule(kPeriodMs);
  }

  #show(s) {
    this.#known = true;
    setText("model", `${s.model} · ${count(s.max_model_len)} tokens`);
    setHealth(s.unhealthy ? "bad" : "good", s.unhealthy ? "unhealthy" : s.requests.running ? "working" : "idle");
    $("health").title = s.unhealthy;
    setText("layout", layoutText(s.layout));
    this.#showRates(s);
    this.#showNumbers(s);
    this.#showRanks(s);
    this.#showSteps(s.steps);
    this.#last = s;
  }

  #showRates(s) {
    const last = this.#last;
    if (!last || s.now_s <= last.now_s || s.n_steps < last.n_steps) return;  // the first, or another server
    const span = s.now_s - last.now_s;
    const output = (s.tokens.generated - last.tokens.generated) / span;
    const computed = (t) => t.prompt - t.cached;
    setText("decode-rate", rate(output));
    setText("prefill-rate", rate(Math.max(0, computed(s.tokens) - computed(last.tokens)) / span));
    this.#rates.push(output);
    if (this.#rates.length > kHistory) this.#rates.shift();
    const peak = Math.max(...this.#rates);
    setText("rate-text", peak > 0 ? `peak ${rate(peak)} tok/s` : "");
    drawLine($("rate-line"), this.#rates, kHistory);
    $("rate-line").setAttribute("aria-label", `Output now ${rate(output)} tokens per second, at most ${rate(peak)} in the last two minutes`);
  }

  #showNumbers(s) {
    setText("n-running", count(s.requests.running));
    setText("n-waiting", count(s.requests.waiting));
    setText("hit-rate", s.tokens.prompt ? percent(s.tokens.cached / s.tokens.prompt) : "–");
    setText("blocks", `${brief(s.blocks.used)} of ${brief(s.blocks.total)}`);
    setText("n-steps", brief(s.n_steps));
    setText("n-finished", brief(s.requests.finished));
    setText("n-aborted", brief(s.requests.aborted));
    setText("n-preempted", brief(s.requests.preemptions));
    setText("n-generated", brief(s.tokens.generated));
    setText("version", s.version);
  }

  #showRanks(s) {
    const owners = Math.max(...s.ranks.map((r) => r.owner)) + 1;
    const end = this.#braid.draw(s.ranks, owners);
    const rows = s.ranks[0]?.rows_total ?? 0;
    setText("axis-end", end === 1 ? `all ${count(rows)} rows of a rank` : `first ${percent(end)} of ${count(rows)} rows`);
    $("braid").setAttribute("aria-label", "KV cache: " + s.ranks.map((r) => `rank ${r.rank} ${percent(r.rows_used / r.rows_total)} in use`).join(", "));
    sync($("owners"), owners, (item, owner) => {
      const of = s.ranks.filter((r) => r.owner === owner);
      item.style.setProperty("--hue", hueOf(owner, owners));
      const ranks = of.length === 1 ? `rank ${of[0].rank}` : `ranks ${of.map((r) => r.rank).join(", ")}`;
      texts(item, [ranks, `${count(of[0].rows_used)} in use`, `${count(of[0].rows_cached)} kept`, percent(of[0].rows_used / of[0].rows_total)], "span");
    }, "li");
    sync($("ranks"), s.ranks.length, (row, i) => {
      const r = s.ranks[i];
      texts(row, [r.rank, r.owner, count(r.rows_used), count(r.rows_cached), count(r.rows_total)], "td");
    }, "tr");
  }

  #showSteps(steps) {
    drawBars($("step-bars"), steps);
    if (!steps.length) return;
    const sorted = steps.map((s) => s.seconds).sort((a, b) => a - b);
    const median = sorted[sorted.length >> 1], longest = sorted.at(-1);
    const words = `median ${seconds(median)}, longest ${seconds(longest)}`;
    setText("step-text", words);
    $("step-bars").setAttribute("aria-label", `The last ${steps.length} steps: ${words}`);
  }
}

function layoutText({ tp, dcp, pcp, dp, interleave }) {
  const parts = [`tp ${tp}`, `dcp ${dcp}`];
  if (pcp > 1) parts.push(`pcp ${pcp}`);
  if (dp > 1) parts.push(`dp ${dp}`);
  if (dcp > 1) parts.push(`interleave ${interleave}`);
  return parts.join(" · ");
}

function setHealth(kind, words) {
  $("health").className = kind;
  setText("health", words);
}

// As many children of `parent` as `n`, each written by update(child, index).
function sync(parent, n, update, tag) {
  while (parent.children.length > n) parent.lastElementChild.remove();
  while (parent.children.length < n) parent.append(h(tag));
  for (let i = 0; i < n; ++i) update(parent.children[i], i);
}

function texts(parent, values, tag) {
  sync(parent, values.length, (node, i) => {
    if (node.textContent !== String(values[i])) node.textContent = values[i];
  }, tag);
}
