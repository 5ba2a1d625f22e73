/** A curve that grows: losses over steps, on a logarithmic axis. */

import { svg } from "../dom.js";

const W = 460;
const H = 120;
/** The number of points that are drawn at most. */
const POINTS = 230;

export class Curve {
  readonly element: SVGSVGElement;
  readonly #line = svg("polyline", { class: "curve" });
  readonly #top = svg("text", { class: "axis", x: 4, y: 12 });
  readonly #bottom = svg("text", { class: "axis", x: 4, y: H - 4 });
  #values: number[] = [];
  #drawn = false;

  constructor(label: string) {
    this.element = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": label }, this.#line, this.#top, this.#bottom);
  }

  clear(): void {
    this.#values = [];
    this.#draw();
  }

  add(value: number): void {
    this.#values.push(value);
    if (this.#drawn) return;
    this.#drawn = true;
    requestAnimationFrame(() => this.#draw());
  }

  #draw(): void {
    this.#drawn = false;
    const each = Math.max(1, Math.ceil(this.#values.length / POINTS));
    const means: number[] = [];
    for (let i = 0; i < this.#values.length; i += each) {
      const some = this.#values.slice(i, i + each);
      means.push(some.reduce((a, b) => a + b) / some.length);
    }
    const logs = means.map((v) => Math.log10(Math.max(v, 1e-9)));
    const [least, most] = [Math.min(...logs), Math.max(...logs)];
    const x = (i: number) => (W * i) / Math.max(1, means.length - 1);
    const y = (v: number) => 8 + ((most - v) / (most - least || 1)) * (H - 16);
    this.#line.setAttribute("points", logs.map((v, i) => `${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join(" "));
    const shown = (v: number) => (means.length ? Number((10 ** v).toPrecision(2)).toString() : "");
    this.#top.textContent = shown(most);
    this.#bottom.textContent = shown(least);
  }
}
