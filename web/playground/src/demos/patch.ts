/** Patching: what another text leaves in the residual stream at one of its tokens takes the place of what the beginning of a story leaves there. */

import type { TensorLike } from "wgfc";
import type { Generator } from "wgfc/generate";
import { h } from "../dom.js";
import { wordsOf } from "./features.js";

type Inputs = Readonly<Record<string, TensorLike>>;

export class Patch {
  readonly element: HTMLDetailsElement;
  readonly #layer: HTMLSelectElement;
  readonly #from = h("input", { type: "text", value: "Max was a hungry fox", maxlength: 200, "aria-label": "The other text", autocomplete: "off" });
  readonly #source: Tokens;
  readonly #target: Tokens;

  /** `beginning` is the field with the beginning of the story. */
  constructor(generator: () => Generator, layers: readonly string[], beginning: HTMLInputElement) {
    this.#layer = h("select", { "aria-label": "Layer of the patch" }, ...layers.map((name, i) => h("option", { value: name, selected: i === 0 }, `behind layer ${i + 1}`)));
    const tokenizer = () => generator().tokenizer!;
    [this.#source, this.#target] = [new Tokens(this.#from, tokenizer, "source"), new Tokens(beginning, tokenizer, "target")];
    const words = "What another text leaves at one of its tokens takes the place of what the beginning of the story leaves at one of its own. Choose both.";
    this.element = h("details", { class: "steer patch" }, h("summary", {}, "Patch"),
      h("p", {}, words), h("label", {}, h("span", {}, "another text"), this.#from),
      h("div", { class: "line" }, h("span", {}, "from"), this.#source.element), h("div", { class: "line" }, h("span", {}, "to"), this.#target.element), h("div", { class: "line" }, this.#layer),
    );
    this.element.addEventListener("toggle", () => this.#show());
  }

  get open(): boolean {
    return this.element.open;
  }

  #show(): void {
    this.#source.show();
    this.#target.show();
  }

  /** The inputs of a run by its place: in the run that has the chosen token, the row of the other text. */
  async inputs(generator: Generator): Promise<(past: number, count: number) => Inputs> {
    this.#show();
    const name = this.#layer.value;
    const { shape, data } = (await generator.observe(this.#from.value, [name]))[name]!;
    const width = shape.at(-1)!;
    const row = Float32Array.from(data.subarray(this.#source.chosen * width, (this.#source.chosen + 1) * width), Number);
    const at = this.#target.chosen;
    return (past, count) => {
      if (at < past || at >= past + count) return {};
      const [rows, where] = [new Float32Array(count * width), new Uint8Array(count)];
      rows.set(row, (at - past) * width);
      where[at - past] = 1;
      return { [`${name}.replace`]: { dtype: "f32", shape: [1, count, width], data: rows }, [`${name}.where`]: { dtype: "bool", shape: [1, count, 1], data: where } };
    };
  }
}

/** The tokens of a field's text, of which one is chosen. */
class Tokens {
  readonly element: HTMLElement;
  /** The number of the chosen token. */
  chosen = 0;
  readonly #field: HTMLInputElement;
  readonly #tokenizer: () => NonNullable<Generator["tokenizer"]>;
  #shown: string | undefined;

  constructor(field: HTMLInputElement, tokenizer: () => NonNullable<Generator["tokenizer"]>, name: string) {
    this.#field = field;
    this.#tokenizer = tokenizer;
    this.element = h("div", { class: "tokens", role: "group", "data-tokens": name });
    field.addEventListener("input", () => this.show());
  }

  /** Shows the tokens; of a new text the last one is chosen. */
  show(): void {
    const text = this.#field.value;
    const tokenizer = this.#tokenizer();
    const words = wordsOf(tokenizer, tokenizer.encode(text));
    if (text !== this.#shown) this.chosen = words.length - 1;
    this.#shown = text;
    const choose = (i: number) => {
      this.chosen = i;
      this.show();
    };
    this.element.replaceChildren(...words.map((word, i) => h("button", { type: "button", class: "chip mono", "aria-pressed": String(i === this.chosen), onclick: () => choose(i) }, word)));
  }
}
