/** A population of carts that learn to balance poles. One dispatch simulates all of them. */

import { type Model, Tensor, type TypedArray, load } from "wgfc";
import { h, hue, messageOf, time } from "../dom.js";
import { deviceOf, random } from "../runs.js";
import { type Demo, css, frame } from "./demo.js";

const GENES = 5;
const LIFE = 1000;
/** The number of carts that are drawn. All others are simulated, too. */
const DRAWN = 60;
const LIMIT = 12 * 2 * (Math.PI / 360);

const normal = (next: () => number) => Math.sqrt(-2 * Math.log(next() + 1e-12)) * Math.cos(2 * Math.PI * next());

/** A generation: the policy, the state and the lifetime of each individual. */
export class Population {
  readonly size: number;
  generation = 1;
  policies: Float32Array<ArrayBuffer>;
  states!: Float32Array<ArrayBuffer>;
  ages!: Float32Array<ArrayBuffer>;
  readonly #next: () => number;

  constructor(size: number, seed: number) {
    this.size = size;
    this.#next = random(seed);
    this.policies = Float32Array.from({ length: size * GENES }, () => 0.6 * normal(this.#next));
    this.#begin();
  }

  #begin(): void {
    // Carts begin anywhere on the track and nearly at rest.
    this.states = Float32Array.from({ length: this.size * 4 }, (_, i) => (this.#next() - 0.5) * (i % 4 === 0 ? 2.4 : 0.1));
    this.ages = new Float32Array(this.size);
  }

  alive(i: number): boolean {
    return Math.abs(this.states[4 * i]!) <= 2.4 && Math.abs(this.states[4 * i + 2]!) <= LIMIT;
  }
  get living(): number {
    let n = 0;
    for (let i = 0; i < this.size; i++) if (this.alive(i)) n++;
    return n;
  }

  /** Replaces the generation by the best tenth and mutated children of pairs of them. */
  evolve(): void {
    const order = Array.from({ length: this.size }, (_, i) => i).sort((a, b) => this.#fitness(b) - this.#fitness(a));
    const parents = order.slice(0, Math.max(2, Math.floor(this.size / 10)));
    const children = new Float32Array(this.policies.length);
    for (let i = 0; i < this.size; i++) {
      const kept = i < parents.length;
      const [a, b] = kept ? [parents[i]!, parents[i]!] : [0, 0].map(() => parents[Math.floor(this.#next() ** 2 * parents.length)]!);
      for (let g = 0; g < GENES; g++) {
        const from = this.policies[(this.#next() < 0.5 ? a! : b!) * GENES + g]!;
        children[i * GENES + g] = kept ? from : from + (this.#next() < 0.5 ? 0.25 * normal(this.#next) : 0);
      }
    }
    this.policies = children;
    this.generation++;
    this.#begin();
  }

  /** The fitness: the lifetime, minus a penalty for position and angle if the cart is still alive. */
  #fitness(i: number): number {
    return this.ages[i]! - (this.alive(i) ? Math.abs(this.states[4 * i]!) + 10 * Math.abs(this.states[4 * i + 2]!) : 0);
  }
}

export async function cartpole(lookInside: () => void): Promise<Demo> {
  const device = await deviceOf();
  // The number of steps is a constant of the program, so that the loop is one dispatch.
  const [two, fifty] = (await Promise.all(["cartpole", "cartpole-50"].map((n) => load(`./models/${n}.wgfc`, { device })))) as [Model, Model];
  let [population, playing, stopped, steps, gust] = [new Population(1024, 1), true, false, 2, 0];
  const history: number[] = [];
  const canvas = h("canvas", { class: "carts", role: "img", "aria-label": "Carts with poles" });
  const chart = h("canvas", { class: "history", width: 600, height: 120, role: "img", "aria-label": "How many steps the median and the best of each generation lived" });
  const facts = { generation: h("b", { class: "mono" }), living: h("b", { class: "mono" }), age: h("b", { class: "mono" }), frame: h("b", { class: "mono" }) };
  const status = h("output", { class: "status", role: "status" });
  let [age, slow] = [0, 0];

  const draw = () => {
    const ratio = Math.min(2, devicePixelRatio);
    const { clientWidth: w, clientHeight: t } = canvas;
    if (canvas.width !== Math.round(w * ratio)) [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(t * ratio)];
    const c = canvas.getContext("2d")!;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, w, t);
    const ground = t - 34;
    [c.strokeStyle, c.lineWidth] = [css("--line"), 1];
    c.beginPath();
    c.moveTo(0, ground + 10);
    c.lineTo(w, ground + 10);
    c.stroke();
    const [unit, length] = [w / 5.2, Math.min(t * 0.62, 200)];
    for (let i = DRAWN - 1; i >= 0; i--) {
      const [x, angle, alive] = [population.states[4 * i]!, population.states[4 * i + 2]!, population.alive(i)];
      const cx = w / 2 + x * unit;
      c.globalAlpha = alive ? (i === 0 ? 1 : 0.55) : 0.1;
      const colour = alive ? `hsl(${hue(i)} 65% 55%)` : css("--faint");
      [c.strokeStyle, c.fillStyle, c.lineCap] = [colour, colour, "round"];
      c.beginPath();
      c.roundRect(cx - 17, ground - 8, 34, 14, 4);
      c.fill();
      c.lineWidth = i === 0 ? 6 : 4;
      c.beginPath();
      c.moveTo(cx, ground - 8);
      c.lineTo(cx + Math.sin(angle) * length, ground - 8 - Math.cos(angle) * length);
      c.stroke();
    }
    c.globalAlpha = 1;
  };
  const drawHistory = () => {
    if (!chart.isConnected) return;
    const c = chart.getContext("2d")!;
    c.clearRect(0, 0, chart.width, chart.height);
    const n = history.length / 2;
    const w = Math.min(26, chart.width / Math.max(1, n));
    for (let i = 0; i < n; i++) {
      const [median, best] = [history[2 * i]!, history[2 * i + 1]!];
      c.fillStyle = css("--bar-soft");
      c.fillRect(i * w, chart.height * (1 - best / LIFE), w - 2, (chart.height * best) / LIFE);
      c.fillStyle = css("--accent");
      c.fillRect(i * w, chart.height * (1 - median / LIFE), w - 2, (chart.height * median) / LIFE);
    }
  };
  const tell = () => {
    facts.generation.textContent = String(population.generation);
    facts.living.textContent = `${population.living} of ${population.size}`;
    facts.age.textContent = `${age} of ${LIFE}`;
    facts.frame.textContent = `${time(slow * 1000)}`;
    status.dataset.generation = String(population.generation);
  };
  const advance = async () => {
    const { size } = population;
    const now = population;
    const start = performance.now();
    const n = steps;
    const out = await (n === 2 ? two : fifty).run({
      policy: new Tensor("f32", [size, GENES], population.policies), state: new Tensor("f32", [size, 4], population.states),
      age: new Tensor("f32", [size], population.ages), wind: new Tensor("f32", [], Float32Array.of(gust * Math.sin(age / 25))),
    });
    slow = 0.9 * slow + 0.1 * (performance.now() - start);
    if (now !== population) return;
    population.states = (out.after as Tensor<TypedArray>).data as Float32Array<ArrayBuffer>;
    population.ages = (out.lived_after as Tensor<TypedArray>).data as Float32Array<ArrayBuffer>;
    age += n;
    if (age < LIFE && population.living > 0) return;
    const ages = population.ages.slice().sort();
    history.push(ages[ages.length >> 1]!, ages.at(-1)!);
    population.evolve();
    age = 0;
    drawHistory();
  };
  const loop = async () => {
    while (!stopped) {
      await new Promise((resolve) => requestAnimationFrame(resolve));
      if (!playing || !canvas.isConnected) continue;
      try {
        await advance();
        draw();
        tell();
      } catch (e) {
        if (stopped) return;
        playing = false;
        status.className = "status error";
        status.textContent = messageOf(e);
      }
    }
  };
  const restart = (size: number) => {
    population = new Population(size, population.generation + 1);
    history.length = age = 0;
    drawHistory();
  };
  const pause = h("button", { type: "button", class: "primary", onclick: () => { playing = !playing; pause.textContent = playing ? "Pause" : "Go on"; } }, "Pause");
  const speed = h("select", { onchange: (e: Event) => (steps = Number((e.target as HTMLSelectElement).value)) }, ...[2, 50].map((n) => h("option", { value: n, selected: n === 2 }, `${n} steps a frame`)));
  const size = h("select", { onchange: (e: Event) => restart(Number((e.target as HTMLSelectElement).value)) }, ...[256, 1024, 8192, 65536].map((n) => h("option", { value: n, selected: n === 1024 }, `${n.toLocaleString("en")} carts`)));
  const wind = h("select", { onchange: (e: Event) => (gust = Number((e.target as HTMLSelectElement).value)) }, ...[[0, "no wind"], [4, "a breeze"], [9, "a storm"]].map(([n, name]) => h("option", { value: n }, name)));
  const body = h("div", { class: "cartpole" },
    h("div", { class: "actions" }, pause, h("button", { type: "button", onclick: () => restart(population.size) }, "Begin anew"), h("label", {}, h("span", { class: "hidden" }, "Speed"), speed), h("label", {}, h("span", { class: "hidden" }, "Population"), size), h("label", {}, h("span", { class: "hidden" }, "Wind"), wind)),
    canvas,
    h("dl", { class: "facts wide" }, h("div", {}, h("dt", {}, "generation"), h("dd", {}, facts.generation)), h("div", {}, h("dt", {}, "balancing"), h("dd", {}, facts.living)), h("div", {}, h("dt", {}, "steps"), h("dd", {}, facts.age)), h("div", {}, h("dt", {}, "dispatch and read back"), h("dd", {}, facts.frame))),
    h("figure", {}, chart, h("figcaption", {}, "Steps that each generation lived, of 1,000: the median, and the best behind it.")), status,
  );
  void loop();
  const words = "Each cart has a policy of five numbers. The loop of the simulation, with its sines and conditions, is a graph of 71 ONNX nodes; wgfc makes one kernel of it, in which each invocation is a cart. Policies evolve from generation to generation.";
  return {
    element: frame("A population of CartPoles", words, [body], lookInside),
    stop() {
      stopped = true;
      two.dispose();
      fifty.dispose();
    },
  };
}
