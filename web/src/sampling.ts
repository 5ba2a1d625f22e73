/** Sampling of the next token. It equals that of `wgfc generate`: the same seed gives the same tokens. */

import { Random } from "./random.js";

export interface Sampling {
  /** 0 always takes the most likely token; 1 leaves the probabilities unchanged. */
  readonly temperature: number;
  /** The number of most likely tokens to draw from. Tokens as likely as the last of them are included. */
  readonly topK?: number | undefined;
  /** Draws from the most likely tokens whose probabilities add up to this share. */
  readonly topP?: number | undefined;
  /** Draws from tokens of at least this share of the largest probability. */
  readonly minP?: number | undefined;
  /** Positive logits of tokens that occur already are divided by it, and others multiplied. */
  readonly repetitionPenalty?: number | undefined;
  /** Subtracted from the logit of each token that has been generated. */
  readonly presencePenalty?: number | undefined;
  /** Subtracted from the logit of a token as many times as it has been generated. */
  readonly frequencyPenalty?: number | undefined;
  /** Numbers that are added to the logits of tokens. */
  readonly logitBias?: readonly (readonly [token: number, bias: number])[] | undefined;
  readonly seed: number | bigint;
}

const WORDS = 5;

/** The choice of the tokens of one request. */
export class Choice {
  readonly #how: Sampling | undefined;
  readonly #topK: number | undefined;
  readonly #topP: number | undefined;
  readonly #minP: number | undefined;
  readonly #penalties: Penalties | undefined;
  readonly #random: Random;

  constructor(how: Sampling, vocabulary: number) {
    const { temperature, topK, topP, minP, seed } = how;
    this.#how = temperature === 0 || topK === 1 ? undefined : how;
    this.#topK = topK !== undefined && topK < vocabulary ? topK : undefined;
    this.#topP = topP !== undefined && topP < 1 ? topP : undefined;
    this.#minP = minP !== undefined && minP > 0 ? minP : undefined;
    this.#penalties = Penalties.of(how);
    this.#random = new Random(seed, "tokens");
  }

  /**
   * Whether only some of the tokens may be drawn, or logits of single tokens are changed. This requires {@link draw}, as programs
   * draw from all tokens by the model's own logits.
   */
  get limited(): boolean {
    const limits = this.#topK ?? this.#topP ?? this.#minP;
    return this.#penalties !== undefined || (this.#how !== undefined && limits !== undefined);
  }

  /** Takes into account that these tokens precede those that are chosen. */
  follow(tokens: readonly number[]): void {
    this.#penalties?.follow(tokens);
  }
  /** Takes into account that this token has been chosen. */
  add(token: number): void {
    this.#penalties?.add(token);
  }

  /** The words of the input `choice of the token`, for the next token. */
  words(): Uint32Array<ArrayBuffer> {
    const words = new Uint32Array(WORDS);
    if (!this.#how) return words;
    const random = this.#random.bits();
    const floats = new Float32Array(words.buffer);
    floats[0] = Math.min(Math.max(1 / this.#how.temperature, 1e-30), 1e30);
    words[1] = Number(random & 0xffffffffn);
    words[2] = Number(random >> 32n);
    return words;
  }

  /** Draws from logits; -1 if they are not numbers. */
  draw(given: ArrayLike<number>): number {
    const logits = this.#penalties?.adjusted(given) ?? given;
    const words = this.words();
    const scale = new Float32Array(words.buffer)[0]!;
    const [low, high] = [words[1]!, words[2]!];
    let top = -Infinity;
    for (let i = 0; i < logits.length; i++) {
      if (Number.isNaN(logits[i]) || logits[i] === Infinity) return -1;
      top = Math.max(top, logits[i]!);
    }
    if (top === -Infinity) return -1;
    const distances = Uint32Array.from(logits, (x) => distance(top, x, scale));
    const most = scale === 0 ? 0 : this.#most(distances);
    let [best, value] = [-1, -Infinity];
    for (let i = 0; i < logits.length; i++) {
      if (distances[i]! > most || logits[i] === -Infinity) continue;
      const y = scale === 0 ? logits[i]! : f32(f32(logits[i]! * scale) + gumbel(i, low, high));
      if (best < 0 || y > value) [best, value] = [i, y];
    }
    return best;
  }

  /** The largest distance from the largest logit of a token that may be drawn. */
  #most(distances: Uint32Array): number {
    return Math.min(this.#within(distances), this.#minP === undefined ? FAR : distanceOf(this.#minP));
  }

  /** The largest distance that top-k and top-p keep. */
  #within(distances: Uint32Array): number {
    if (this.#topK === undefined && this.#topP === undefined) return FAR;
    const sorted = distances.slice().sort();
    let count = sorted.length;
    if (this.#topK !== undefined) count = countTo(sorted, sorted[this.#topK - 1]!);
    if (this.#topP === undefined) return sorted[count - 1]!;
    const share = (d: number) => Math.exp(-d / STEPS);
    let all = 0;
    for (let i = 0; i < count; i++) all += share(sorted[i]!);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      sum += share(sorted[i]!);
      if (sum >= this.#topP * all) return sorted[i]!;
    }
    return sorted[count - 1]!;
  }
}

const f32 = Math.fround;
/**
 * Distances from the largest logit are quantized to this many steps per unit, so that tokens of nearly equal probability count as
 * equal.
 */
const STEPS = 2 ** 18;
const FAR = 2 ** 24 - 1;

function distance(top: number, x: number, scale: number): number {
  if (x === -Infinity) return FAR;
  const d = f32(f32(f32(top - x) * scale) * STEPS);
  return Math.min(Math.max(d, 0), FAR);
}

/** The distance of a token whose probability is the share `p` of the largest one. */
function distanceOf(p: number): number {
  return Math.trunc(Math.min(Math.max(-Math.log(f32(p)) * STEPS, 0), FAR));
}

/** The number of elements that are at most `limit`. */
function countTo(sorted: Uint32Array, limit: number): number {
  const behind = sorted.findIndex((d) => d > limit);
  return behind < 0 ? sorted.length : behind;
}

/** A Gumbel variate, −ln(−ln(1 − u)), for a uniform number u that is determined by position and random bits. */
function gumbel(at: number, low: number, high: number): number {
  const u = Math.min(f32(f32(pcg3d(at, low, high)) + 0.5) * 2 ** -32, 1 - 2 ** -24);
  return f32(-Math.log(-Math.log1p(-u)));
}

/** The first word of the hash pcg3d: Jarzynski and Olano, *Hash Functions for GPU Rendering*, JCGT 9(3), 2020. */
function pcg3d(...words: [number, number, number]): number {
  let [x, y, z] = words.map((w) => (Math.imul(w, 1664525) + 1013904223) | 0) as [number, number, number];
  const stir = () => {
    x = (x + Math.imul(y, z)) | 0;
    y = (y + Math.imul(z, x)) | 0;
    z = (z + Math.imul(x, y)) | 0;
  };
  stir();
  [x, y, z] = [x ^ (x >>> 16), y ^ (y >>> 16), z ^ (z >>> 16)];
  stir();
  return x >>> 0;
}

/** The largest f32. */
const LARGEST = (2 - 2 ** -23) * 2 ** 127;

/** Changes of the logits of single tokens: penalties for those that occur already, and biases. */
class Penalties {
  readonly #repetition: number;
  readonly #presence: number;
  readonly #frequency: number;
  /** For each token: the factor, the bias, and how often it has been generated. */
  readonly #entries = new Map<number, { factor: number; bias: number; count: number }>();

  private constructor(repetition: number, presence: number, frequency: number) {
    [this.#repetition, this.#presence, this.#frequency] = [f32(repetition), f32(presence), f32(frequency)];
  }

  /** The changes at the beginning of a sequence; undefined if there can be none. */
  static of({ repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0, logitBias = [] }: Sampling): Penalties | undefined {
    if (repetitionPenalty === 1 && presencePenalty === 0 && frequencyPenalty === 0 && logitBias.length === 0) return undefined;
    const made = new Penalties(repetitionPenalty, presencePenalty, frequencyPenalty);
    for (const [token, bias] of logitBias) {
      const entry = made.#entry(token);
      entry.bias = f32(entry.bias + f32(bias));
    }
    return made;
  }

  follow(tokens: readonly number[]): void {
    if (this.#repetition !== 1) for (const t of tokens) this.#entry(t).factor = this.#repetition;
  }

  add(token: number): void {
    const entry = this.#entry(token);
    entry.factor = this.#repetition;
    entry.count++;
  }

  /** A copy of the logits with the changes. Logits that are not finite stay as they are. */
  adjusted(logits: ArrayLike<number>): Float32Array {
    const out = Float32Array.from(logits);
    for (const [token, { factor, bias, count }] of this.#entries) {
      const x = out[token];
      if (x === undefined || !Number.isFinite(x)) continue;
      const scaled = f32(x < 0 ? x * factor : x / factor);
      const amount = count === 0 ? bias : f32(f32(bias - this.#presence) - f32(this.#frequency * count));
      out[token] = Math.min(Math.max(f32(scaled + amount), -LARGEST), LARGEST);
    }
    return out;
  }

  #entry(token: number): { factor: number; bias: number; count: number } {
    const entry = this.#entries.get(token) ?? { factor: 1, bias: 0, count: 0 };
    this.#entries.set(token, entry);
    return entry;
  }
}
