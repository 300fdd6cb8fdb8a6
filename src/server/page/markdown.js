// A small, safe part of Markdown, line by line as a stream brings it: fenced and inline code, bold, headings, lists. The
// model's text becomes text nodes inside elements made here, so it can hold no markup, link or image. A line that has
// not ended yet is shown and taken back when more of it comes; all before it stays as it is, so that a long answer costs
// no more per token than a short one.
import { copyButton, h } from "./dom.js";

const kFence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]{0,30})/;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kHeading = /^#{1,6}\s+(.*)$/;

export class MarkdownView {
  #root;
  #line = "";          // the line that has not ended
  #undo = null;        // takes its drawing back
  #block = { kind: "none" };

  constructor(root) {
    this.#root = root;
  }

  append(text) {
    this.#undo?.();
    this.#undo = null;
    const lines = (this.#line + text).split("\n");
    this.#line = lines.pop();
    for (const line of lines) this.#draw(line);
    if (this.#line) this.#undo = this.#draw(this.#line);
  }

  // Each line adds one node at most; the returned function removes it.
  #draw(line) {
    const before = this.#block;
    const node = this.#nodeFor(line);
    return () => {
      node?.remove();
      this.#block = before;
    };
  }

  #nodeFor(line) {
    const block = this.#block;
    const fence = kFence.exec(line);
    if (block.kind === "code") {
      if (fence && fence[1].startsWith(block.fence) && !fence[2]) return this.#become({ kind: "none" });
      return add(block.code, document.createTextNode(`${line}\n`));
    }
    if (fence) return this.#openCode(fence[1], fence[2]);
    if (!line.trim()) return this.#become({ kind: "none" });
    const heading = kHeading.exec(line);
    if (heading) {
      this.#become({ kind: "none" });
      return add(this.#root, h("p", { class: "heading" }, ...inline(heading[1])));
    }
    const item = kItem.exec(line);
    if (item) return this.#item(item[1].length, item[2], item[3]);
    if (block.kind === "list" && /^\s/.test(line)) return add(block.list.lastElementChild, h("span", {}, "\n", ...inline(line.trim())));
    if (block.kind === "text") return add(block.paragraph, h("span", {}, "\n", ...inline(line)));
    const paragraph = h("p", {}, ...inline(line));
    this.#become({ kind: "text", paragraph });
    return add(this.#root, paragraph);
  }

  #become(block) {
    this.#block = block;
    return null;
  }

  #openCode(fence, language) {
    const code = h("code");
    const figure = h("div", { class: "code" },
      h("div", { class: "code-head" }, h("span", {}, language || "code"), copyButton(() => code.textContent)),
      h("pre", { tabindex: "0", role: "region", "aria-label": language ? `${language} code` : "Code" }, code));
    this.#become({ kind: "code", fence, code });
    return add(this.#root, figure);
  }

  #item(indent, mark, text) {
    const tag = /\d/.test(mark) ? "ol" : "ul";
    const item = h("li", {}, ...inline(text));
    if (indent >= 2) item.style.marginLeft = `${Math.min(Math.floor(indent / 2), 6) * 1.2}em`;
    if (this.#block.kind === "list" && this.#block.list.tagName.toLowerCase() === tag) return add(this.#block.list, item);
    const list = h(tag, tag === "ol" ? { start: parseInt(mark, 10) } : {}, item);
    this.#become({ kind: "list", list });
    return add(this.#root, list);
  }
}

function add(parent, node) {
  parent.append(node);
  return node;
}

// Nodes of one line: `code`, **bold**, and everything else as it is.
export function inline(text, bold = true) {
  const nodes = [];
  let plain = 0, i = 0;
  const flush = (end) => {
    if (end > plain) nodes.push(document.createTextNode(text.slice(plain, end)));
  };
  while (i < text.length) {
    let mark = "";
    if (text[i] === "`") mark = /`+/y.exec(text.slice(i, i + 8))[0];
    else if (bold && text.startsWith("**", i)) mark = "**";
    const end = mark ? text.indexOf(mark, i + mark.length) : -1;
    if (end <= i + mark.length) {  // no mark, not closed, or nothing inside
      i += mark.length || 1;
      continue;
    }
    flush(i);
    const inner = text.slice(i + mark.length, end);
    nodes.push(mark === "**" ? h("strong", {}, ...inline(inner, false)) : h("code", {}, inner));
    i = plain = end + mark.length;
  }
  flush(text.length);
  return nodes;
}
