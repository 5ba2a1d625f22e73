/** Conversion between text and tokens. */

import { type ModelSource, WgfcError } from "./index.js";

export interface Tokenizer {
  /** The tokens of a text, with the special tokens that the model expects around it unless `special` is false, as for texts that have them. */
  encode(text: string, special?: boolean): readonly number[];
  /** The text of tokens, without special tokens. */
  decode(ids: readonly number[]): string;
}

/** The generation settings that the publisher of a model recommends. */
export interface Defaults {
  readonly stop: readonly number[];
  readonly sample: boolean;
  readonly temperature: number | undefined;
  readonly topK: number | undefined;
  readonly topP: number | undefined;
  readonly minP: number | undefined;
  readonly repetitionPenalty: number | undefined;
}

/** Decodes tokens to text as they arrive. A character may consist of several tokens. */
export class TextStream {
  readonly #tokenizer: Tokenizer;
  #ids: number[] = [];
  /** The decoded text of the first tokens in `#ids`, and their number. */
  #known = { text: "", ids: 0 };

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
  }

  /** Returns the text that this token adds. It is empty while a character is incomplete. */
  push(id: number): string {
    this.#ids.push(id);
    return this.#take((text) => !text.endsWith("\ufffd"));
  }

  /** Returns the rest of the text, including incomplete characters. */
  end(): string {
    return this.#take(() => true);
  }

  #take(whole: (text: string) => boolean): string {
    const text = this.#tokenizer.decode(this.#ids);
    const known = this.#known;
    if (text.length <= known.text.length || !whole(text)) return "";
    const added = text.slice(known.text.length);
    // Decoding depends on the preceding tokens; those of the last piece are enough context.
    this.#ids = this.#ids.slice(known.ids);
    this.#known = { text: this.#tokenizer.decode(this.#ids), ids: this.#ids.length };
    return added;
  }
}

/** Stops text at stop words. Text that may be the beginning of a stop word is withheld. */
export class StopWords {
  readonly #words: readonly string[];
  #held = "";
  /** Whether a stop word has been found. */
  found = false;

  constructor(words: readonly string[]) {
    this.#words = words.filter((w) => w !== "");
  }

  push(text: string): string {
    this.#held += text;
    const places = this.#words.map((w) => this.#held.indexOf(w)).filter((p) => p >= 0);
    this.found = places.length > 0;
    const end = this.found ? Math.min(...places) : this.#held.length - this.#begun();
    const out = this.#held.slice(0, end);
    this.#held = this.found ? "" : this.#held.slice(end);
    return out;
  }

  end(): string {
    return this.#held;
  }

  /** The length of the longest beginning of a stop word at the end of the text. */
  #begun(): number {
    const longest = (w: string) => {
      for (let n = Math.min(w.length - 1, this.#held.length); n > 0; n--) if (this.#held.endsWith(w.slice(0, n))) return n;
      return 0;
    };
    return Math.max(0, ...this.#words.map(longest));
  }
}

/** A tokenizer from the text of a `tokenizer.json`, made with the package `@huggingface/tokenizers`. */
export async function openTokenizer(json: string): Promise<Tokenizer> {
  let made: typeof import("@huggingface/tokenizers");
  try {
    made = await import("@huggingface/tokenizers");
  } catch (cause) {
    const words = "tokenizer.json is read by the package @huggingface/tokenizers: install it, or give a tokenizer of your own";
    throw new WgfcError("feature", words, { cause });
  }
  try {
    const parsed = JSON.parse(json) as { model?: { unk_token?: string } };
    const tokenizer = new made.Tokenizer(parsed, {});
    const unknown = tokenizer.token_to_id(parsed.model?.unk_token ?? "");
    return {
      // The package returns undefined for an unknown token, or omits it.
      encode: (text, special = true) =>
        tokenizer.encode(text, { add_special_tokens: special }).ids.map((id: number | undefined) => id ?? unknown).filter((id) => id !== undefined),
      decode: (ids) => tokenizer.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
    };
  } catch (cause) {
    throw new WgfcError("corrupt", `tokenizer.json is not a tokenizer that can be used: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
}

export function readDefaults(json: string | undefined): Defaults {
  const config = (json === undefined ? {} : JSON.parse(json)) as Record<string, unknown>;
  const number = (key: string) => (typeof config[key] === "number" ? config[key] : undefined);
  const stop = [config.eos_token_id ?? []].flat().filter((id) => typeof id === "number");
  const sample = config.do_sample === true;
  const drawn = (key: string) => (sample ? number(key) : undefined);
  return {
    stop, sample, temperature: drawn("temperature"), topK: drawn("top_k") || undefined, topP: drawn("top_p"), minP: drawn("min_p"),
    repetitionPenalty: number("repetition_penalty"),
  };
}

/** A file beside the model, if there is one. */
export async function beside(source: ModelSource, name: string, signal?: AbortSignal): Promise<string | undefined> {
  if (typeof source === "string" || source instanceof URL) {
    const url = new URL(source, globalThis.location?.href);
    const last = url.pathname.split("/").pop()!;
    if (last !== "" && !last.includes(".")) url.pathname += "/";
    const response = await fetch(new URL(name, url), { signal: signal ?? null }).catch((cause: unknown) => {
      if (signal?.aborted) throw new WgfcError("aborted", "aborted by the caller's signal", { cause });
      throw new WgfcError("network", `${name} cannot be fetched`, { cause });
    });
    if (response.status === 404) return undefined;
    if (!response.ok) throw new WgfcError("network", `${name} cannot be fetched: the server says ${response.status}`);
    return response.text();
  }
  if (source instanceof Blob || !Object.hasOwn(source, name)) return undefined;
  const file = source[name]!;
  return typeof file === "string" ? file : new Response(file as BlobPart as BodyInit).text();
}
