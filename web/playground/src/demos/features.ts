/** A sparse autoencoder on the residual stream of the page's own language model: trained in the page, and its features shown. */

import { Tensor, type TypedArray } from "wgfc";
import type { Generator } from "wgfc/generate";
import { Trainer } from "wgfc/train";
import { h } from "../dom.js";
import { Curve } from "./curve.js";
import { Toggle } from "./demo.js";

const FEATURES = 256;
const BATCH = 256;
const STEPS = 800;
/** The stories that are read, and the milliseconds after which no more are told. */
const STORIES = 64;
const PATIENCE = 20_000;
const LENGTH = 120;
/** The mean of the squared lengths of the rows, to which the penalty of the step's loss fits. */
const LENGTH_SQUARED = 1;
const SHOWN = 16;
/** The number of texts of a feature, and of words before and behind the one where it is strongest. */
const TEXTS = 4;
const [BEFORE, BEHIND] = [9, 4];

/** A direction of the residual stream. */
export interface Feature {
  readonly name: string;
  readonly direction: Float64Array;
}

/** The rows of the residual stream, one for each token, and the token's words. */
interface Reading {
  readonly rows: Float32Array;
  readonly words: readonly string[];
  /** The story of each row. */
  readonly stories: Uint32Array;
  readonly width: number;
}

export interface FeaturesOptions {
  /** A generator whose layer returns its residual stream, and the layer. */
  generator(): Promise<readonly [Generator, layer: string]>;
  readonly beginnings: readonly string[];
  /** Called with the feature that is to steer the stories. */
  steer(feature: Feature): void;
}

export class Features {
  readonly element: HTMLElement;
  readonly #options: FeaturesOptions;
  readonly #curve = new Curve("The loss of each step");
  readonly #status = h("output", { class: "status training", role: "status" });
  readonly #list = h("ol", { class: "features" });
  readonly #toggle = new Toggle("Learn features", "learn", this.#status, (signal) => this.#learn(signal));

  constructor(options: FeaturesOptions) {
    this.#options = options;
    const words =
      "The model tells itself stories, and a sparse autoencoder is trained on what they leave in its residual stream: 256 features, of which few are active for a token. A feature is shown by the words at which it is strongest; its direction steers the story.";
    this.element = h("section", { class: "training" },
      h("div", { class: "line" }, h("h2", {}, "Features"), this.#toggle.button), h("p", {}, words),
      h("figure", {}, this.#curve.element, h("figcaption", {}, "the autoencoder's loss, step by step")), this.#status, this.#list,
    );
  }

  stop(): void {
    this.#toggle.stop();
  }

  async #learn(signal: AbortSignal): Promise<void> {
    const [generator, layer] = await this.#options.generator();
    const reading = await this.#read(generator, layer, signal);
    await this.#train(generator.model.device, reading, signal);
  }

  /** Lets the model tell stories, and reads what they leave in its residual stream. */
  async #read(generator: Generator, layer: string, signal: AbortSignal): Promise<Reading> {
    const tokenizer = generator.tokenizer!;
    const { beginnings } = this.#options;
    const begin = performance.now();
    const pieces: Float32Array[] = [];
    const [words, stories] = [[] as string[], [] as number[]];
    let width = 0;
    for (let n = 0; n < STORIES && performance.now() - begin < PATIENCE; n++) {
      signal.throwIfAborted();
      this.#status.textContent = `Telling story ${n + 1}: ${words.length} tokens so far`;
      const ids = [...tokenizer.encode(beginnings[n % beginnings.length]!)];
      await generator.reset();
      for await (const id of generator.tokens([...ids], { maxTokens: LENGTH, temperature: 1, seed: n, signal })) ids.push(id);
      const { shape, data } = (await generator.observe(ids, [layer]))[layer] as Tensor<TypedArray>;
      width = shape.at(-1)!;
      // The first token attends to nothing but itself, and its row is unlike all others.
      pieces.push(Float32Array.from(data.subarray(width) as Float32Array));
      // The token that ends a story has no text.
      const own = wordsOf(tokenizer, ids).slice(1).map((word) => word || "∎");
      words.push(...own);
      stories.push(...own.map(() => n));
    }
    const rows = new Float32Array(words.length * width);
    let at = 0;
    for (const p of pieces) {
      rows.set(p, at);
      at += p.length;
    }
    return { rows, words, stories: Uint32Array.from(stories), width };
  }

  async #train(device: GPUDevice, { rows, words, stories, width }: Reading, signal: AbortSignal): Promise<void> {
    this.#status.textContent = "Compiling the step";
    const count = words.length;
    const centre = new Float32Array(width);
    rows.forEach((x, i) => (centre[i % width]! += x / count));
    const spread = rows.reduce((s, x, i) => s + (x - centre[i % width]!) ** 2, 0) / count;
    const scale = Math.sqrt(LENGTH_SQUARED / spread);
    const x = new Tensor("f32", [count, width], rows.map((v, i) => (v - centre[i % width]!) * scale));
    const inputs = { rate: Tensor.from("f32", [], [2e-3]) };
    const trainer = await Trainer.load("./models/features-step.pt2", { device, data: { x }, inputs, batch: Math.min(BATCH, count), inFlight: 4 });
    try {
      await trainer.begin(initial(width));
      this.#curve.clear();
      const begin = performance.now();
      for await (const { number, loss } of trainer.run(STEPS, { signal })) {
        this.#curve.add(loss);
        if (number % 20 === 0) this.#status.textContent = `${count} tokens; ${number} steps, ${((1000 * number) / (performance.now() - begin)).toFixed(0)} a second; loss ${loss.toFixed(3)}`;
      }
      const state = async (name: string) => {
        const s = trainer.model.states.find((s) => s.name === `state.${name}`)!;
        return (await new Tensor(s.dtype, s.shape, s.data).read(device)).toNumbers();
      };
      const [encoder, decoder, threshold, shift] = [await state("encoder"), await state("decoder"), await state("threshold"), await state("centre")];
      const active = activations(x.data as Float32Array, { encoder, threshold, shift }, width);
      const chosen = strongest(active, words);
      this.#list.replaceChildren(...chosen.map((f) => this.#show(f, active, { words, stories }, decoder.subarray(f * width, (f + 1) * width).map((d) => d / scale))));
      const mean = active.reduce((n, a) => n + (a > 0 ? 1 : 0), 0) / count;
      this.#status.textContent += `; ${mean.toFixed(1)} of ${FEATURES} features are active for a token`;
      this.#status.dataset.done = String(chosen.length);
    } finally {
      trainer.dispose();
    }
  }

  /** A feature: the texts where it is strongest, and a button that steers by its direction. */
  #show(f: number, active: Float32Array, { words, stories }: Pick<Reading, "words" | "stories">, direction: Float64Array): HTMLElement {
    const count = words.length;
    const order = Array.from({ length: count }, (_, i) => i).sort((a, b) => active[b * FEATURES + f]! - active[a * FEATURES + f]!);
    const most = active[order[0]! * FEATURES + f]!;
    const taken: number[] = [];
    for (const i of order) {
      if (taken.length === TEXTS || active[i * FEATURES + f]! <= 0.2 * most) break;
      // Texts of one story would overlap.
      if (!taken.some((j) => stories[j] === stories[i])) taken.push(i);
    }
    const text = (at: number) => {
      const range = Array.from({ length: BEFORE + BEHIND + 1 }, (_, k) => at - BEFORE + k).filter((i) => i >= 0 && i < count && stories[i] === stories[at]);
      return h("p", {}, ...range.map((i) => {
        const share = Math.max(0, active[i * FEATURES + f]! / most);
        return share > 0.05 ? h("span", { class: "along", style: `--share: ${share.toFixed(2)}`, title: active[i * FEATURES + f]!.toFixed(2) }, words[i]) : words[i];
      }));
    };
    const steer = () => this.#options.steer({ name: `feature ${f}`, direction: Float64Array.from(direction) });
    return h("li", { "data-feature": f }, h("div", { class: "line" }, h("b", { class: "mono" }, `feature ${f}`), h("button", { type: "button", class: "chip", onclick: steer }, "Steer by it")), ...taken.map(text));
  }
}

/** The words of tokens. A token's spaces depend on the tokens before it. */
export function wordsOf(tokenizer: NonNullable<Generator["tokenizer"]>, ids: readonly number[]): string[] {
  let before = "";
  return ids.map((_, i) => {
    const now = tokenizer.decode(ids.slice(0, i + 1));
    const word = now.slice(before.length);
    before = now;
    return word;
  });
}

/** Random directions of length 1: the decoder's rows, and the encoder's columns. */
function initial(width: number): Record<string, Tensor<TypedArray>> {
  const [encoder, decoder] = [new Float32Array(width * FEATURES), new Float32Array(FEATURES * width)];
  for (let f = 0; f < FEATURES; f++) {
    const row = Float32Array.from({ length: width }, () => Math.random() + Math.random() + Math.random() - 1.5);
    const norm = Math.hypot(...row);
    row.forEach((x, i) => (encoder[i * FEATURES + f] = decoder[f * width + i] = x / norm));
  }
  return { "state.encoder": new Tensor("f32", [width, FEATURES], encoder), "state.decoder": new Tensor("f32", [FEATURES, width], decoder) };
}

/** The activations of the features for each row: `relu((x − centre) · encoder + threshold)`. */
function activations(x: Float32Array, of: { encoder: Float64Array; threshold: Float64Array; shift: Float64Array }, width: number): Float32Array {
  const count = x.length / width;
  const out = new Float32Array(count * FEATURES);
  for (let row = 0; row < count; row++) {
    const sums = Float64Array.from(of.threshold);
    for (let i = 0; i < width; i++) {
      const v = x[row * width + i]! - of.shift[i]!;
      for (let f = 0; f < FEATURES; f++) sums[f]! += v * of.encoder[i * FEATURES + f]!;
    }
    for (let f = 0; f < FEATURES; f++) out[row * FEATURES + f] = Math.max(0, sums[f]!);
  }
  return out;
}

/** The strongest of the features that are active for few tokens, of those with the same strongest word the first. */
function strongest(active: Float32Array, words: readonly string[]): number[] {
  const count = words.length;
  const stats = Array.from({ length: FEATURES }, (_, f) => {
    let [on, most, at] = [0, 0, 0];
    for (let row = 0; row < count; row++) {
      const a = active[row * FEATURES + f]!;
      if (a > 0) on++;
      if (a > most) [most, at] = [a, row];
    }
    return { f, share: on / count, most, word: words[at]! };
  });
  const seldom = stats.filter(({ share, most }) => share > 0.001 && share < 0.2 && most > 0).sort((a, b) => b.most - a.most);
  return seldom.filter(({ word }, i) => seldom.findIndex((s) => s.word === word) === i).slice(0, SHOWN).map(({ f }) => f);
}
