/** Charts: a roofline plot of kernels, and histograms of tensors. */

import { h, hue, si, svg, time } from "./dom.js";

export interface Speeds {
  /** Bytes per second, and operations per second. */
  readonly bandwidth: number;
  readonly arithmetic: number;
}

export interface Measured {
  readonly dispatch: number;
  readonly title: string;
  readonly microseconds: number;
  readonly bytes: number;
  readonly flops: number;
}

const W = 460;
const H = 230;
const [LEFT, RIGHT, TOP, BOTTOM] = [50, 12, 12, 34];

function decades(from: number, to: number): number[] {
  return Array.from({ length: Math.max(1, Math.round(to - from) + 1) }, (_, i) => Math.ceil(from) + i).filter((x) => x >= from && x <= to);
}

export function roofline(kernels: readonly Measured[], speeds: Speeds, selected: number | undefined, chosen: (dispatch: number) => void): HTMLElement {
  const shown = kernels.filter((k) => k.microseconds > 0 && k.flops > 0 && k.bytes > 0);
  const ridge = speeds.arithmetic / speeds.bandwidth;
  const xs = shown.map((k) => Math.log10(k.flops / k.bytes));
  const ys = shown.map((k) => Math.log10((k.flops / k.microseconds) * 1e6));
  const [x0, x1] = [Math.floor(Math.min(-1, ...xs) - 0.1), Math.ceil(Math.max(Math.log10(ridge) + 0.5, ...xs) + 0.1)];
  const [y0, y1] = [Math.floor(Math.min(Math.log10(speeds.bandwidth) + x0, ...ys) - 0.1), Math.ceil(Math.log10(speeds.arithmetic) + 0.2)];
  const x = (v: number) => LEFT + ((v - x0) / (x1 - x0)) * (W - LEFT - RIGHT);
  const y = (v: number) => H - BOTTOM - ((v - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const roof = [x0, Math.log10(ridge), x1].map((v) => `${x(v)} ${y(Math.min(Math.log10(speeds.arithmetic), v + Math.log10(speeds.bandwidth)))}`);
  const dots = shown.map((k, i) =>
    svg(
      "circle",
      {
        cx: x(xs[i]!), cy: y(Math.min(ys[i]!, y1)), r: k.dispatch === selected ? 7 : 5, class: `dot${k.dispatch === selected ? " selected" : ""}`, style: `--hue:${hue(k.dispatch)}`,
        tabindex: 0, role: "button", "aria-label": `${k.title}: ${time(k.microseconds)}`,
        onclick: () => chosen(k.dispatch), onkeydown: (e: KeyboardEvent) => e.key === "Enter" && chosen(k.dispatch),
      },
      svg("title", {}, `${k.title}\n${time(k.microseconds)}, ${si((k.flops / k.microseconds) * 1e6, "FLOP/s")}, ${si((k.bytes / k.microseconds) * 1e6, "B/s")}`),
    ),
  );
  const grid = [
    ...decades(x0, x1).map((v) => svg("g", { class: "tick" }, svg("line", { x1: x(v), x2: x(v), y1: TOP, y2: H - BOTTOM }), svg("text", { x: x(v), y: H - BOTTOM + 14, "text-anchor": "middle" }, v < 0 ? String(10 ** v) : si(10 ** v, "").trim()))),
    ...decades(y0, y1).map((v) => svg("g", { class: "tick" }, svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), svg("text", { x: LEFT - 6, y: y(v) + 3.5, "text-anchor": "end" }, si(10 ** v, "").trim()))),
  ];
  const picture = svg(
    "svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "group", "aria-label": "Roofline of this device" },
    ...grid, svg("polyline", { class: "roof", points: roof.join(" ") }),
    svg("text", { class: "axis", x: W - RIGHT, y: H - 4, "text-anchor": "end" }, "FLOP a byte"), svg("text", { class: "axis", x: LEFT + 4, y: TOP + 10 }, "FLOP/s"),
    ...dots,
  );
  const caption = `${si(speeds.bandwidth, "B/s")} and ${si(speeds.arithmetic, "FLOP/s")} measured here. Each dot is a kernel; on the line it could not be faster.`;
  return h("figure", {}, picture, h("figcaption", {}, caption));
}

export interface Spread {
  readonly least: number;
  readonly most: number;
  readonly mean: number;
  readonly deviation: number;
  readonly zeros: number;
  /** The number of elements that are not finite. */
  readonly nonFinite: number;
  readonly bins: readonly number[];
}

export function spreadOf(values: ArrayLike<number>, bins = 48): Spread {
  let [least, most, sum, squares, zeros, nonFinite, finite] = [Infinity, -Infinity, 0, 0, 0, 0, 0];
  for (let i = 0; i < values.length; i++) {
    const v = values[i]!;
    if (!Number.isFinite(v)) {
      nonFinite++;
      continue;
    }
    [least, most] = [Math.min(least, v), Math.max(most, v)];
    sum += v;
    squares += v * v;
    finite++;
    if (v === 0) zeros++;
  }
  const counts = Array<number>(bins).fill(0);
  const scale = bins / (most - least || 1);
  for (let i = 0; i < values.length; i++) {
    const v = values[i]!;
    if (Number.isFinite(v)) counts[Math.min(bins - 1, Math.floor((v - least) * scale))]!++;
  }
  const mean = sum / finite;
  return { least, most, mean, deviation: Math.sqrt(Math.max(0, squares / finite - mean * mean)), zeros, nonFinite, bins: counts };
}

export function histogram(title: string, values: ArrayLike<number>): HTMLElement {
  const s = spreadOf(values);
  const top = Math.max(1, ...s.bins);
  const w = (W - 8) / s.bins.length;
  const bars = s.bins.map((n, i) => svg("rect", { class: "bar", x: 4 + i * w + 0.5, width: Math.max(1, w - 1), y: 100 - (n / top) * 92, height: Math.max(n ? 1 : 0, (n / top) * 92) }, svg("title", {}, String(n))));
  const number = (v: number) => (Number.isFinite(v) ? Number(v.toPrecision(4)).toString() : "–");
  const facts: [string, string][] = [
    ["elements", String(values.length)], ["least", number(s.least)], ["mean", number(s.mean)], ["most", number(s.most)], ["deviation", number(s.deviation)],
    ["zeros", `${((100 * s.zeros) / Math.max(1, values.length)).toFixed(1)} %`], ...(s.nonFinite ? [["NaN or ∞", String(s.nonFinite)] as [string, string]] : []),
  ];
  return h(
    "figure", { class: "histogram" }, h("b", { class: "mono" }, title),
    svg("svg", { viewBox: `0 0 ${W} 104`, preserveAspectRatio: "none", class: "chart", role: "img", "aria-label": `Histogram of ${title}` }, svg("line", { class: "base", x1: 0, x2: W, y1: 100.5, y2: 100.5 }), ...bars),
    h("div", { class: "range mono" }, h("span", {}, number(s.least)), h("span", {}, number(s.most))),
    h("dl", { class: "facts" }, ...facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v)))),
  );
}
