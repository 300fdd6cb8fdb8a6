// The drawings of the live view, in SVG. The braid: one strand per rank, coloured by the tokens that it holds, woven from
// left to right over its KV rows: thick as far as live sequences fill them, thinner over what is kept for prefix hits, a
// hair where rows are free.
import { svg } from "./dom.js";

const kWidth = 400;
const kEnds = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];

export const hueOf = (owner, owners) => (258 + (owner * 360) / Math.max(owners, 2)) % 360;

export class BraidDrawing {
  #svg;
  #shape = "";   // what is drawn now
  #clips = [];   // per rank: the rectangles that cut its strand into used, cached and free
  #end = 1;      // the fraction of the rows where the axis ends

  constructor(node) {
    this.#svg = node;
  }

  // Returns where the axis ends. A cache that is nearly empty is drawn enlarged, or one would see nothing.
  draw(ranks, owners) {
    const shape = ranks.map((r) => r.owner).join();
    if (shape !== this.#shape) this.#build(ranks, owners);
    this.#shape = shape;
    const most = Math.max(0, ...ranks.map((r) => (r.rows_used + r.rows_cached) / r.rows_total));
    const fit = (fill) => (most > 0 && kEnds.find((end) => most <= fill * end)) || 1;
    if (most > 0.98 * this.#end) this.#end = fit(0.75);
    else if (fit(0.4) < this.#end) this.#end = fit(0.75);
    ranks.forEach((r, i) => {
      const used = Math.min(kWidth, (kWidth * r.rows_used) / r.rows_total / this.#end);
      const cached = Math.min(kWidth - used, (kWidth * r.rows_cached) / r.rows_total / this.#end);
      this.#cut(i, 0, used, used + cached);
    });
    return this.#end;
  }

  #cut(i, ...edges) {
    [...edges, kWidth].slice(1).forEach((to, k) => {
      this.#clips[i][k].setAttribute("x", edges[k]);
      this.#clips[i][k].setAttribute("width", Math.max(0, to - edges[k]));
    });
  }

  #build(ranks, owners) {
    const n = ranks.length;
    const gap = n <= 2 ? 44 : n <= 4 ? 32 : n <= 8 ? 20 : n <= 16 ? 11 : 6;
    const height = Math.max(76, (n - 1) * gap + 32);
    const y = (lane) => height / 2 + (lane - (n - 1) / 2) * gap;
    const widths = [Math.max(2.5, Math.min(13, 0.4 * gap)), Math.max(1.8, Math.min(6.5, 0.2 * gap)), 1.2];
    this.#svg.replaceChildren();
    this.#svg.setAttribute("viewBox", `0 0 ${kWidth} ${height}`);
    this.#clips = ranks.map((r, i) => this.#addClips(i, height));
    const strand = (i, d, halo = null) => {
      const hue = hueOf(ranks[i].owner, owners);
      widths.forEach((width, k) => {
        const clip = `url(#strand-${i}-${k})`;
        if (halo) this.#svg.append(svg("path", { d: halo, class: "halo", "stroke-width": width + Math.min(5, 0.2 * gap), "clip-path": clip }));
        const path = svg("path", { d, class: `strand ${["used", "cached", "free"][k]}`, "stroke-width": width, "clip-path": clip });
        path.style.setProperty("--hue", hue);
        this.#svg.append(path);
      });
    };
    const { whole, over } = weave(n, gap, y);
    whole.forEach((d, i) => strand(i, d));
    for (const { i, d, halo } of over) strand(i, d, halo);
  }

  #addClips(i, height) {
    return [0, 1, 2].map((k) => {
      const rect = svg("rect", { y: 0, height });
      this.#svg.append(svg("clipPath", { id: `strand-${i}-${k}` }, rect));
      return rect;
    });
  }
}

// Neighbours change places column by column, pairs from lane 0 and from lane 1 in turn; those that go down pass over in
// the one, those that go up in the other: three strands make the plait that everyone knows, two a twist.
// Returns each strand's whole path, and the pieces that lie on top.
function weave(n, gap, y) {
  const columns = Math.max(6, Math.round(kWidth / Math.max(26, 1.3 * gap)));
  const dx = kWidth / columns;
  const lanes = Array.from({ length: n }, (_, i) => i);  // lanes[l]: the strand there
  const whole = lanes.map((i) => `M 0 ${y(i)}`);
  const over = [];
  for (let column = 0; column < columns; ++column) {
    const x = column * dx;
    const to = (a, b) => `C ${x + dx / 2} ${y(a)} ${x + dx / 2} ${y(b)} ${x + dx} ${y(b)}`;
    const odd = n > 2 ? column % 2 : 0;
    const before = [...lanes];
    for (let l = odd; l + 1 < n; l += 2) [lanes[l], lanes[l + 1]] = [before[l + 1], before[l]];
    before.forEach((strand, from) => {
      const lane = lanes.indexOf(strand);
      whole[strand] += to(from, lane);
      if (lane !== from && lane > from === (n === 2 || column % 2 === 0)) {
        const piece = `${x} ${y(from)} ${to(from, lane)}`;
        over.push({ i: strand, d: `M ${x - 1} ${y(from)} L ${piece} h 1`, halo: `M ${piece}` });  // a little longer: no seams
      }
    });
  }
  if (n === 1) whole[0] = wave(y(0), gap, columns, dx);
  return { whole, over };
}

// A strand alone has nothing to cross.
function wave(y, gap, columns, dx) {
  let d = `M 0 ${y}`;
  for (let column = 0; column < columns; ++column) d += ` q ${dx / 2} ${(column % 2 ? 1 : -1) * gap * 0.7} ${dx} 0`;
  return d;
}

// One bar per step, the newest at the right, heights on a logarithmic scale: a prompt's step is a hundred decode steps long.
export function drawBars(node, steps, n = 128) {
  node.setAttribute("viewBox", `0 0 ${n} 40`);
  node.setAttribute("preserveAspectRatio", "none");
  const times = steps.map((s) => Math.log(Math.max(s.seconds, 1e-7)));
  const low = Math.min(...times) - 0.7, high = Math.max(...times);
  while (node.children.length > steps.length) node.lastElementChild.remove();
  while (node.children.length < steps.length) node.append(svg("rect", { width: 0.7 }));
  steps.forEach((step, i) => {
    const height = (39 * (times[i] - low)) / Math.max(high - low, 1.4);
    const bar = node.children[i];
    bar.setAttribute("x", n - steps.length + i);
    bar.setAttribute("y", 40 - height);
    bar.setAttribute("height", height);
    bar.setAttribute("class", step.prefill_tokens ? "prefill" : "decode");
  });
}

export function drawLine(node, values, n) {
  node.setAttribute("viewBox", `0 0 ${n - 1} 40`);
  node.setAttribute("preserveAspectRatio", "none");
  const peak = Math.max(1e-9, ...values);
  const points = values.map((v, i) => `${n - values.length + i},${(39 - (37 * v) / peak).toFixed(2)}`);
  const first = n - values.length;
  if (!node.children.length) node.append(svg("path", { class: "area" }), svg("path", { class: "line", "vector-effect": "non-scaling-stroke" }));
  node.children[0].setAttribute("d", `M ${first},40 L ${points.join(" ")} L ${n - 1},40 Z`);
  node.children[1].setAttribute("d", `M ${points.join(" L ")}`);
}
