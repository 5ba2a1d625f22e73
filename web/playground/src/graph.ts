/** Pictures of graphs: a model's nodes, and the dispatches that compute them. */

import dagre from "@dagrejs/dagre";
import { h, hue, svg } from "./dom.js";
import type { GraphNode } from "./onnx.js";
import type { Plan } from "./program.js";

/** Graphs with more nodes are listed, not drawn. */
const MOST_DRAWN = 700;

export interface Drawn {
  readonly element: HTMLElement;
  /** Highlights the nodes of a dispatch and scrolls them into view. */
  select(dispatch: number | undefined): void;
}

interface Box {
  readonly id: string;
  readonly title: string;
  readonly detail: string;
  /** The dispatch that computes it; undefined for inputs, outputs and nodes without a kernel. */
  readonly dispatch: number | undefined;
  /** All dispatches that compute it. */
  readonly also?: readonly number[] | undefined;
  readonly kind: "port" | "node";
}

interface Picture {
  readonly boxes: readonly Box[];
  readonly edges: readonly (readonly [string, string])[];
}

/** The dispatches and the tensors between them. */
export function dispatchPicture(plan: Plan): Picture {
  const boxes: Box[] = [];
  const edges = new Map<string, readonly [string, string]>();
  const writers = new Map<number, string>();
  const connect = (from: string, to: string) => edges.set(`${from} ${to}`, [from, to]);
  plan.inputs.forEach((p, i) => {
    boxes.push({ id: `in${i}`, title: p.name, detail: `${p.dtype}[${p.shape.join(", ")}]`, dispatch: undefined, kind: "port" });
    writers.set(p.buffer, `in${i}`);
  });
  plan.dispatches.forEach((d, i) => {
    const kernel = plan.kernels[d.kernel]!;
    const operators = d.nodes.map((n) => plan.stats.operators?.[n]).filter((o) => o !== undefined);
    boxes.push({ id: `d${i}`, title: operators.length ? shortened(operators) : kernel.family, detail: d.writes?.[0] ?? kernel.family, dispatch: i, kind: "node" });
    d.bindings.forEach((b, at) => {
      const from = writers.get(b);
      if (from !== undefined && from !== `d${i}`) connect(from, `d${i}`);
      if (kernel.bindings[at] === "read_write") writers.set(b, `d${i}`);
    });
  });
  plan.outputs.forEach((p, i) => {
    boxes.push({ id: `out${i}`, title: p.name, detail: `${p.dtype}[${p.shape.join(", ")}]`, dispatch: undefined, kind: "port" });
    const from = writers.get(p.buffer);
    if (from !== undefined) connect(from, `out${i}`);
  });
  return { boxes, edges: [...edges.values()] };
}

/** The model's nodes, coloured by their kernels. */
export function modelPicture(plan: Plan, graph: readonly GraphNode[]): Picture {
  // A value that several kernels compute counts for the first one.
  const of = new Map<string, number[]>();
  plan.dispatches.forEach((d, i) => d.nodes.forEach((n) => of.set(n, [...(of.get(n) ?? []), i])));
  const writers = new Map<string, string>();
  const boxes: Box[] = plan.inputs.map((p, i) => {
    writers.set(p.name, `in${i}`);
    return { id: `in${i}`, title: p.name, detail: `${p.dtype}[${p.shape.join(", ")}]`, dispatch: undefined, kind: "port" };
  });
  const edges = new Map<string, readonly [string, string]>();
  graph.forEach((n, i) => n.outputs.forEach((o) => writers.set(o, `n${i}`)));
  graph.forEach((n, i) => {
    if (n.operator === "Constant") return;
    boxes.push({ id: `n${i}`, title: n.operator, detail: n.name, dispatch: of.get(n.name)?.[0], also: of.get(n.name), kind: "node" });
    for (const input of n.inputs) {
      const from = writers.get(input);
      const constant = from?.startsWith("n") && graph[Number(from.slice(1))]!.operator === "Constant";
      if (from !== undefined && !constant) edges.set(`${from} n${i}`, [from, `n${i}`]);
    }
  });
  plan.outputs.forEach((p, i) => {
    const from = writers.get(p.name);
    if (from === undefined) return;
    boxes.push({ id: `out${i}`, title: p.name, detail: `${p.dtype}[${p.shape.join(", ")}]`, dispatch: undefined, kind: "port" });
    edges.set(`${from} out${i}`, [from, `out${i}`]);
  });
  return { boxes, edges: [...edges.values()] };
}

function shortened(operators: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const o of operators) counts.set(o, (counts.get(o) ?? 0) + 1);
  const all = [...counts].map(([o, n]) => (n > 1 ? `${o} ×${n}` : o));
  return all.length > 3 ? `${all.slice(0, 3).join(" · ")} +${all.length - 3}` : all.join(" · ");
}

const HEIGHT = 40;
const width = (b: Box) => Math.min(230, Math.max(84, 7.1 * Math.max(b.title.length, 0.86 * b.detail.length) + 24));
const cut = (text: string, w: number, each: number) => (text.length * each > w ? `${text.slice(0, Math.max(1, Math.floor(w / each) - 1))}…` : text);

export function draw({ boxes, edges }: Picture, label: string, chosen: (dispatch: number) => void): Drawn {
  if (boxes.length > MOST_DRAWN) return listed(boxes, label, chosen);
  const g = new dagre.graphlib.Graph();
  g.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 28, marginx: 14, marginy: 14 });
  g.setDefaultEdgeLabel(() => ({}));
  for (const b of boxes) g.setNode(b.id, { width: width(b), height: HEIGHT });
  for (const [from, to] of edges) g.setEdge(from, to);
  dagre.layout(g);
  const { width: w = 0, height: t = 0 } = g.graph();
  const lines = edges.map(([from, to]) => {
    const { points } = g.edge(from, to) as { points: { x: number; y: number }[] };
    return svg("path", { class: "edge", d: smooth(points), "marker-end": "url(#arrow)" });
  });
  const groups = boxes.map((b) => {
    const { x, y } = g.node(b.id) as { x: number; y: number };
    const [bw, known] = [width(b), b.dispatch !== undefined];
    const group = svg(
      "g",
      {
        class: `box ${b.kind}${known ? "" : " free"}`, transform: `translate(${x - bw / 2} ${y - HEIGHT / 2})`,
        ...(known ? { "data-dispatch": b.dispatch, "data-also": b.also?.join(" "), tabindex: 0, role: "button", "aria-label": `${b.title} ${b.detail}, kernel ${b.dispatch}`, style: `--hue:${hue(b.dispatch!)}` } : {}),
      },
      svg("title", {}, `${b.title}\n${b.detail}`),
      svg("rect", { width: bw, height: HEIGHT, rx: b.kind === "port" ? 20 : 7 }),
      svg("text", { x: bw / 2, y: 17, class: "title" }, cut(b.title, bw - 12, 7)),
      svg("text", { x: bw / 2, y: 31, class: "detail" }, cut(b.detail, bw - 12, 6)),
    );
    return group;
  });
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0.5L8 4L0 7.5z" }));
  const picture = svg("svg", { width: w, height: t, viewBox: `0 0 ${w} ${t}`, class: "picture", role: "group", "aria-label": label }, svg("defs", {}, arrow), ...lines, ...groups);
  return interactive(h("div", { class: "canvas" }, picture), chosen);
}

function listed(boxes: readonly Box[], label: string, chosen: (dispatch: number) => void): Drawn {
  const rows = boxes.map((b) =>
    h("li", { class: "row", style: b.dispatch === undefined ? "" : `--hue:${hue(b.dispatch)}`, ...(b.dispatch === undefined ? {} : { "data-dispatch": b.dispatch, tabindex: 0, role: "button" }) }, h("b", {}, b.title), " ", h("small", {}, b.detail)),
  );
  return interactive(h("div", { class: "canvas" }, h("ul", { class: "listed", "aria-label": label }, ...rows)), chosen);
}

function interactive(element: HTMLElement, chosen: (dispatch: number) => void): Drawn {
  const at = (e: Event) => (e.target as Element).closest<SVGElement | HTMLElement>("[data-dispatch]");
  const all = () => [...element.querySelectorAll<SVGElement | HTMLElement>("[data-dispatch]")];
  element.addEventListener("click", (e) => {
    const box = at(e);
    if (box) chosen(Number(box.dataset.dispatch));
  });
  element.addEventListener("keydown", (e) => {
    const box = at(e);
    if (!box) return;
    if (e.key === "Enter" || e.key === " ") chosen(Number(box.dataset.dispatch));
    else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      const boxes = all();
      boxes[boxes.indexOf(box) + (e.key === "ArrowDown" ? 1 : -1)]?.focus();
    } else return;
    e.preventDefault();
  });
  return {
    element,
    select(dispatch) {
      const boxes = all();
      const has = (b: SVGElement | HTMLElement) => (b.dataset.also ?? b.dataset.dispatch ?? "").split(" ").includes(String(dispatch));
      for (const b of boxes) b.classList.toggle("selected", has(b));
      boxes.find((b) => Number(b.dataset.dispatch) === dispatch)?.scrollIntoView({ block: "nearest", inline: "nearest" });
    },
  };
}

function smooth(points: readonly { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  let d = `M${first!.x} ${first!.y}`;
  rest.forEach((p, i) => {
    const next = rest[i + 1];
    d += next && i < rest.length - 2 ? `Q${p.x} ${p.y} ${(p.x + next.x) / 2} ${(p.y + next.y) / 2}` : next ? `Q${p.x} ${p.y} ${next.x} ${next.y}` : i === 0 ? `L${p.x} ${p.y}` : "";
  });
  return d;
}
