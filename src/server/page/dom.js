// Building DOM nodes. Text always arrives as text: nothing here, or anywhere on the page, parses markup.

export const $ = (id) => document.getElementById(id);

// h("button", {class: "quiet", type: "button", click: f, "aria-label": "…"}, "Copy", node, …); null children are left out.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Writes only what differs, so that nothing is laid out or announced again for an equal text.
export function setText(id, text) {
  const node = $(id);
  if (node.textContent !== String(text)) node.textContent = text;
}

export function showProblem(id, words) {
  $(id).textContent = words;
  $(id).hidden = !words;
}

// The clipboard API is there on https and localhost only; the old way works everywhere else.
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused");
}

// A button that copies what `text()` gives and says so.
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied: the browser refused";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const count = (n) => plain.format(n);
export const brief = (n) => (n < 10000 ? plain.format(n) : short.format(n));
export const rate = (n) => (n >= 100 ? plain.format(n) : n >= 10 ? n.toFixed(1) : n > 0 ? n.toFixed(2) : "0");
export function percent(fraction) {
  const p = 100 * fraction;
  return p === 0 ? "0 %" : p < 0.1 ? "< 0.1 %" : p < 10 ? `${p.toFixed(1)} %` : `${Math.round(p)} %`;
}
export function seconds(s) {
  if (s < 0.001) return `${Math.round(1e6 * s)} µs`;
  if (s < 1) return `${(1000 * s).toFixed(s < 0.01 ? 2 : s < 0.1 ? 1 : 0)} ms`;
  return s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}
