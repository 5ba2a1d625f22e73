/** A tiny language model that tells stories. */

import type { Tensor, TensorLike, TypedArray } from "wgfc";
import { Generator } from "wgfc/generate";
import { h, messageOf } from "../dom.js";
import { deviceOf } from "../runs.js";
import { type Demo, frame } from "./demo.js";
import { type Feature, Features, wordsOf } from "./features.js";
import { Patch } from "./patch.js";

const BEGINNINGS = ["Once upon a time", "There once was a shy", "One rainy day", "Tom was a", "Lily was a curious girl who lived by the sea. One"];

/** The residual stream behind each layer, by its names in the model. */
const LAYERS = ["Add_7", "Add_13", "Add_19"];

/** The mean over the positions of a tensor `[1, positions, columns]`. */
function mean({ shape, data }: Tensor<TypedArray>): Float64Array {
  const columns = shape.at(-1)!;
  const out = new Float64Array(columns);
  data.forEach((x, i) => (out[i % columns]! += Number(x)));
  return out.map((x) => (x * columns) / data.length);
}

/** The cosine of the angle between a direction and each row of a tensor. */
export function cosines({ shape, data }: Tensor<TypedArray>, direction: ArrayLike<number>): number[] {
  const columns = shape.at(-1)!;
  const norm = (of: ArrayLike<number | bigint>) => Math.hypot(...Array.from(of, Number)) || 1;
  return Array.from({ length: data.length / columns }, (_, row) => {
    const values = Array.from(data.subarray(row * columns, (row + 1) * columns), Number);
    return values.reduce((s, x, i) => s + x * direction[i]!, 0) / norm(values) / norm(direction);
  });
}

export async function stories(lookInside: () => void): Promise<Demo> {
  const device = await deviceOf();
  let generator = await Generator.load("./models/stories.wgfc", { device });
  let stop: AbortController | undefined;
  const prompt = h("input", { type: "text", value: BEGINNINGS[0], maxlength: 200, "aria-label": "How the story begins", autocomplete: "off" });
  const temperature = h("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0.7 });
  const shown = h("span", { class: "mono" }, "0.7");
  temperature.addEventListener("input", () => (shown.textContent = Number(temperature.value).toFixed(1)));
  const text = h("p", { class: "story", "aria-live": "polite" });
  const status = h("output", { class: "status", role: "status" });
  const tell = h("button", { type: "submit", class: "primary" }, "Tell");

  const run = async () => {
    if (stop) return stop.abort();
    const mine = (stop = new AbortController());
    tell.textContent = "Stop";
    status.className = "status";
    text.replaceChildren(h("span", { class: "given" }, prompt.value));
    const start = performance.now();
    let [pieces, first] = [0, 0];
    try {
      await generator.reset();
      const steered = await steering();
      const patched = patch.open ? await patch.inputs(await open()) : undefined;
      const inputs = patched ? (past: number, count: number) => ({ ...steered, ...patched(past, count) }) : steered;
      let told = prompt.value;
      for await (const piece of generator.generate(prompt.value, { maxTokens: 220, temperature: Number(temperature.value), signal: mine.signal, inputs, ...(steer.open || patch.open ? { seed: 1 } : {}) })) {
        told += piece;
        first ||= performance.now() - start;
        text.append(piece);
        pieces++;
        const seconds = (performance.now() - start) / 1000;
        status.textContent = `${pieces} tokens, ${(pieces / seconds).toFixed(0)} a second`;
      }
      await colour(told);
      status.dataset.done = String(pieces);
    } catch (e) {
      if (!mine.signal.aborted) {
        status.className = "status error";
        status.textContent = messageOf(e);
      }
    } finally {
      if (stop === mine) stop = undefined;
      tell.textContent = "Tell";
    }
  };
  let direction: Float64Array | undefined;
  /** The feature by which the story is steered, instead of two texts. */
  let feature: Feature | undefined;
  const layer = h("select", { "aria-label": "Layer" }, ...LAYERS.map((name, i) => h("option", { value: name, selected: i === 1 }, `behind layer ${i + 1}`)));
  const towards = h("input", { type: "text", value: "a big scary storm in the dark", maxlength: 200, "aria-label": "Towards", autocomplete: "off" });
  const away = h("input", { type: "text", value: "a happy sunny day in the park", maxlength: 200, "aria-label": "Away from", autocomplete: "off" });
  const strength = h("input", { type: "range", min: -6, max: 6, step: 0.5, value: 0, "aria-label": "Strength" });
  const much = h("span", { class: "mono" }, "0.0");
  strength.addEventListener("input", () => (much.textContent = Number(strength.value).toFixed(1)));
  const texts = h("div", {}, h("label", {}, h("span", {}, "towards"), towards), h("label", {}, h("span", {}, "away from"), away));
  const chosen = h("div", { class: "line", hidden: true });
  const pick = (by: Feature | undefined) => {
    feature = by;
    texts.hidden = by !== undefined;
    chosen.hidden = by === undefined;
    chosen.replaceChildren(h("span", {}, `by ${by?.name ?? ""}`), h("button", { type: "button", class: "chip", onclick: () => pick(undefined) }, "By two texts instead"));
  };
  const steer = h("details", { class: "steer" }, h("summary", {}, "Steer"),
    h("p", {}, "The difference between what two texts leave in the residual stream is a direction. It is added at every position, as an input of the program; words are shaded by how far the stream points along it."),
    texts, chosen,
    h("div", { class: "line" }, layer, h("label", { class: "slider" }, h("span", {}, "strength"), strength, much)),
  );
  /** The generator, compiled anew with its residual stream as inputs and outputs when that is needed first. */
  const open = async (): Promise<Generator> => {
    if (generator.model.inputs.some((i) => i.name === `${LAYERS[0]}.add`)) return generator;
    status.textContent = "Compiling the model with its residual stream as inputs and outputs";
    const made = await Generator.load("./models/stories.onnx", { device, added: LAYERS, replaced: LAYERS, taps: LAYERS });
    generator.dispose();
    status.textContent = "";
    return (generator = made);
  };
  /** The direction as an input of the model. */
  const steering = async (): Promise<Record<string, TensorLike>> => {
    direction = undefined;
    if (!steer.open) return {};
    await open();
    if (feature) direction = feature.direction;
    else {
      const [there, here] = [await observed(towards.value), await observed(away.value)].map(mean) as [Float64Array, Float64Array];
      direction = there.map((x, i) => x - here[i]!);
    }
    const given = Float32Array.from(direction, (x) => x * Number(strength.value));
    return { [`${layer.value}.add`]: { dtype: "f32", shape: [given.length], data: given } };
  };
  const observed = async (words: string) => (await generator.observe(words, [layer.value]))[layer.value]!;
  /** Shades the tokens of a text by the direction. */
  const colour = async (told: string) => {
    if (!direction) return;
    const along = cosines(await observed(told), direction);
    const { tokenizer } = generator;
    const words = wordsOf(tokenizer!, tokenizer!.encode(told)).map((word, i) => {
      const cosine = along[i]!;
      return h("span", { class: cosine > 0 ? "along" : "against", style: `--share: ${Math.min(1, 2 * Math.abs(cosine)).toFixed(2)}`, title: cosine.toFixed(2) }, word);
    });
    text.replaceChildren(...words);
  };
  const form = h("form", { class: "tell", onsubmit: (e: Event) => { e.preventDefault(); void run(); } },
    h("div", { class: "line" }, prompt, tell),
    h("div", { class: "beginnings" }, ...BEGINNINGS.map((b) => h("button", { type: "button", class: "chip", onclick: () => { prompt.value = b; if (!stop) void run(); } }, `${b.split(" ").slice(0, 5).join(" ")} …`))),
    h("label", { class: "slider" }, h("span", {}, "temperature"), temperature, shown),
  );
  const features = new Features({
    beginnings: BEGINNINGS,
    async generator() {
      stop?.abort();
      while (stop) await new Promise((resolve) => setTimeout(resolve, 20));
      return [await open(), layer.value];
    },
    steer(by) {
      features.stop();
      steer.open = true;
      pick(by);
      if (Number(strength.value) === 0) {
        strength.value = "0.5";
        much.textContent = "0.5";
      }
      steer.scrollIntoView({ behavior: "smooth" });
      if (!stop) void run();
    },
  });
  const patch = new Patch(() => generator, LAYERS, prompt);
  const body = h("div", { class: "stories" }, form, steer, patch.element, text, status, features.element);
  const words = "A decoder of 166,000 weights and 384 tokens, which has read sixty thousand made-up stories for ten minutes. Its cache of keys and values stays on the device: a prompt is one run, and each token another.";
  void run();
  return {
    element: frame("A tiny language model", words, [body], lookInside),
    stop() {
      stop?.abort();
      features.stop();
      generator.dispose();
    },
  };
}
