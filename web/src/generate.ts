/**
 * Text from decoders that `wgfc compile --generate` has compiled.
 *
 *     const generator = await Generator.load("models/qwen/");
 *     for await (const piece of generator.generate("The sea is")) output.append(piece);
 *     for await (const piece of generator.chat([{ role: "user", content: "Why is the sky blue?" }])) output.append(piece);
 */

import { type LoadOptions, Model, type ModelSource, type PortInfo, Tensor, type TensorLike, type TypedArray, WgfcError, load } from "./index.js";
import { ChatTemplates, type Message, type TemplateOptions, readChatFiles } from "./chat.js";
import { Flight } from "./flight.js";
import { Choice, type Sampling } from "./sampling.js";
import { type Defaults, StopWords, TextStream, type Tokenizer, beside, openTokenizer, readDefaults } from "./text.js";

export type { Message, MessagePart, TemplateOptions } from "./chat.js";
export type { Tokenizer } from "./text.js";

export interface GenerateOptions {
  /** The largest number of new tokens (256). */
  readonly maxTokens?: number;
  /** 0 always takes the most likely token. The default is the recommendation of the model's publisher. */
  readonly temperature?: number;
  /** Draws from this many of the most likely tokens. */
  readonly topK?: number;
  /** Draws from the most likely tokens whose probabilities add up to this share. */
  readonly topP?: number;
  /** Draws from the tokens of at least this share of the largest probability. */
  readonly minP?: number;
  /** Positive logits of tokens that occur already, in the prompt too, are divided by it, and others multiplied. */
  readonly repetitionPenalty?: number;
  /** Subtracted from the logits of tokens that have been generated. */
  readonly presencePenalty?: number;
  /** Subtracted from the logits of tokens as many times as they have been generated. */
  readonly frequencyPenalty?: number;
  /** Numbers that are added to the logits of tokens. */
  readonly logitBias?: Readonly<Record<number, number>>;
  /** The seed of the random generator: equal seeds draw equal tokens. */
  readonly seed?: number | bigint;
  /**
   * Tensors for inputs that the model was compiled with beside those of a decoder, in every run: what is added to tensors of the model, or
   * takes their place (`added`, `replaced`). Their shapes are broadcast, as in `[768]` for a residual stream `[1, seq, 768]`. A function gives
   * those of each run, which takes `count` tokens behind `past` others.
   */
  readonly inputs?: Inputs | ((past: number, count: number) => Inputs);
  /** Additional stop tokens and stop texts. The output ends after a stop token and before a stop text. */
  readonly stop?: readonly (string | number)[];
  readonly signal?: AbortSignal;
}

/** Options of {@link Generator.chat}. */
export interface ChatOptions extends GenerateOptions, TemplateOptions {}

export interface GeneratorOptions extends LoadOptions {
  /** A tokenizer, or the text of a `tokenizer.json`. The default is the file beside the model. */
  readonly tokenizer?: Tokenizer | string;
  /** A chat template in Jinja. The default is that of `chat_template.jinja` or `tokenizer_config.json` beside the model. */
  readonly chatTemplate?: string;
}

type Inputs = Readonly<Record<string, TensorLike>>;
/** The additional inputs of a run. */
type More = (past: number, count: number) => Inputs;

/** The place of a prompt: behind the tokens so far, or instead of them. */
type Place = "behind" | "instead";

/** The purpose of a decoder's input. */
type Role = "ids" | "positions" | "mask" | "segments";

const CHOICE = "choice of the token";
/** The number of tokens of a prompt in one run. */
const CHUNK = 512;

/** A run in flight: the tensor with its token on the device, and a promise of the token on the host. */
interface Step {
  readonly token: Tensor<GPUBuffer> | undefined;
  readonly id: Promise<number>;
  /** The number of positions in the cache after the run. */
  readonly after: number;
}

/**
 * A decoder on a device. Its cache keeps all tokens, so the next prompt continues the text, until {@link reset}. A conversation and a
 * text of {@link complete} take the place of the tokens so far; what both have in common stays in the cache.
 */
export class Generator {
  readonly model: Model;
  readonly tokenizer: Tokenizer | undefined;
  readonly #defaults: Defaults;
  readonly #openChat: () => Promise<ChatTemplates>;
  #chat: Promise<ChatTemplates> | undefined;
  readonly #roles: readonly (readonly [PortInfo, Role])[];
  readonly #ids: PortInfo;
  readonly #token: PortInfo;
  readonly #vocabulary: number;
  readonly #tokens: readonly [GPUBuffer, GPUBuffer];
  /** The number of valid positions in the cache. */
  #kept = 0;
  /** All tokens: those in the cache, and the pending one. */
  #history: number[] = [];
  /** The last token, which has not been an input of the model yet. */
  #pending: number | undefined;
  #busy = false;
  readonly #flight = new Flight();

  /**
   * Loads a folder or file that `wgfc compile --generate` wrote, or compiles a decoder (`.gguf`, `.onnx`) in the page, and reads the
   * tokenizer and `generation_config.json` beside it.
   */
  static async load(source: ModelSource, options: GeneratorOptions = {}): Promise<Generator> {
    const { tokenizer, chatTemplate, signal } = options;
    const files = Promise.all([tokenizer ?? beside(source, "tokenizer.json", signal), beside(source, "generation_config.json", signal)]);
    files.catch(() => {});
    const model = await load(source, { ...options, generate: true });
    // The files of a chat template are read when a conversation begins.
    const chat = async () => {
      const own = chatTemplate ?? beside(source, "chat_template.jinja");
      return new ChatTemplates(readChatFiles((await beside(source, "tokenizer_config.json")) ?? model.beside["tokenizer_config.json"], await own));
    };
    try {
      const [given, config] = await files;
      const text = given ?? model.beside["tokenizer.json"];
      const defaults = readDefaults(config ?? model.beside["generation_config.json"]);
      return new Generator(model, typeof text === "string" ? await openTokenizer(text) : text, defaults, chat);
    } catch (e) {
      model.dispose();
      throw e;
    }
  }

  constructor(
    model: Model,
    tokenizer?: Tokenizer,
    defaults: Defaults = readDefaults(undefined),
    chat: () => Promise<ChatTemplates> = async () => new ChatTemplates(readChatFiles(undefined, undefined)),
  ) {
    this.model = model;
    this.tokenizer = tokenizer;
    this.#defaults = defaults;
    this.#openChat = chat;
    const logits = model.outputs.find((o) => o.name === "logits")?.shape.at(-1);
    const given = model.inputs.filter((i) => i.name !== CHOICE && !i.optional);
    const token = model.outputs.find((o) => o.name === "token");
    if (typeof logits !== "number" || given.length === model.inputs.length || !token)
      throw new WgfcError("shape", "the model was not compiled to generate tokens: `wgfc compile --generate` does that");
    this.#vocabulary = logits;
    this.#roles = given.map((i) => [i, roleOf(i)] as const);
    this.#ids = this.#roles.find(([, role]) => role === "ids")?.[0] ?? given[0]!;
    this.#token = token;
    const usage = 0x80 | 0x4 | 0x8;
    this.#tokens = [0, 1].map((i) => model.device.createBuffer({ label: `token ${i}`, size: 16, usage })) as [GPUBuffer, GPUBuffer];
  }

  /** The number of tokens so far, those of prompts included. */
  get length(): number {
    return this.#kept + (this.#pending === undefined ? 0 : 1);
  }

  /** The text that follows a prompt, in pieces as they are generated. */
  async *generate(prompt: string, options: GenerateOptions = {}): AsyncGenerator<string, void, undefined> {
    yield* this.#pieces(() => this.#encode(prompt), "behind", options);
  }

  /**
   * The text that follows a prompt, which is the whole text: it takes the place of the tokens so far. The tokens that both begin with
   * stay in the cache, and only the others are processed.
   */
  async *complete(prompt: string, options: GenerateOptions = {}): AsyncGenerator<string, void, undefined> {
    yield* this.#pieces(() => this.#encode(prompt), "instead", options);
  }

  /**
   * The assistant's next message, in pieces as they are generated. The model's chat template makes a prompt of the messages; those
   * that are in the cache are not processed again. The answer ends at the model's end tokens.
   */
  async *chat(messages: readonly Message[], options: ChatOptions = {}): AsyncGenerator<string, void, undefined> {
    const prompt = await this.chatPrompt(messages, options);
    const { special } = await this.#templates();
    const end = special["eos_token"] === undefined ? [] : this.#encode(special["eos_token"], false);
    const stop = [...(options.stop ?? []), ...(end.length === 1 ? end : [])];
    // A template writes the special tokens itself.
    yield* this.#pieces(() => this.#encode(prompt, false), "instead", { ...options, stop });
  }

  /** The prompt that the model's chat template makes of messages. */
  async chatPrompt(messages: readonly Message[], options: TemplateOptions = {}): Promise<string> {
    return (await this.#templates()).render(messages, options);
  }

  #templates(): Promise<ChatTemplates> {
    this.#chat ??= this.#openChat();
    this.#chat.catch(() => (this.#chat = undefined));
    return this.#chat;
  }

  #encode(text: string, special = true): readonly number[] {
    const { tokenizer } = this;
    if (!tokenizer) throw new WgfcError("shape", "text needs a tokenizer, and there is no tokenizer.json beside the model: give one, or use `tokens`");
    return tokenizer.encode(text, special);
  }

  async *#pieces(prompt: () => readonly number[], place: Place, options: GenerateOptions): AsyncGenerator<string, void, undefined> {
    const ids = prompt();
    const stream = new TextStream(this.tokenizer!);
    const words = new StopWords((options.stop ?? []).filter((s) => typeof s === "string"));
    const stop = this.#stop(options);
    for await (const id of this.#run(ids, place, options)) {
      // A stop token has no text.
      if (stop.includes(id)) break;
      const piece = words.push(stream.push(id));
      if (piece) yield piece;
      if (words.found) return;
    }
    const rest = words.push(stream.end()) + (words.found ? "" : words.end());
    if (rest) yield rest;
  }

  /** The tokens that follow a prompt, including the stop token if there is one. */
  tokens(prompt: readonly number[], options: GenerateOptions = {}): AsyncGenerator<number, void, undefined> {
    return this.#run(prompt, "behind", options);
  }

  /**
   * Tensors of the model for the tokens of a prompt: those that it was compiled to return (`taps`). The prompt is run alone, and all
   * tokens so far are forgotten.
   */
  async observe(prompt: string | readonly number[], names: readonly string[], inputs: Inputs = {}): Promise<Record<string, Tensor<TypedArray>>> {
    const ids = typeof prompt === "string" ? this.#encode(prompt) : prompt;
    this.#check(ids, "instead");
    const most = this.#chunk();
    if (ids.length > most) throw new WgfcError("limits", `the prompt has ${ids.length} tokens, and one run takes ${most}`);
    if (this.#busy) throw new WgfcError("shape", "the generator is at work: observe it when the text has ended");
    this.#busy = true;
    try {
      await this.#clear();
      const outputs = Object.fromEntries(names.map((name) => [name, "cpu" as const]));
      const given = { ...this.#more(inputs), ...this.#inputs(ids, 0), [CHOICE]: tensorOfWords(new Uint32Array(5)) };
      return (await this.model.run(given, { outputs })) as Record<string, Tensor<TypedArray>>;
    } finally {
      await this.#clear().finally(() => (this.#busy = false));
    }
  }

  async *#run(prompt: readonly number[], place: Place, options: GenerateOptions): AsyncGenerator<number, void, undefined> {
    const { signal, maxTokens = 256 } = options;
    const choice = new Choice(this.#sampling(options), this.#vocabulary);
    const given = options.inputs ?? {};
    const more: More = typeof given === "function" ? (past, count) => this.#more(given(past, count)) : ((inputs) => () => inputs)(this.#more(given));
    const stop = this.#stop(options);
    this.#check(prompt, place);
    if (this.#busy) throw new WgfcError("shape", "the generator is at work: a text begins when the one before it has ended");
    this.#busy = true;
    // Runs in flight, the oldest first.
    const ahead: Step[] = [];
    try {
      let fresh = place === "instead" ? await this.#keepCommon(prompt) : prompt;
      choice.follow(this.#history);
      choice.follow(fresh);
      let feed = [...(this.#pending === undefined ? [] : [this.#pending]), ...fresh];
      this.#flight.begin();
      for (let made = 0; made < maxTokens; made++) {
        if (signal?.aborted) throw new WgfcError("aborted", "aborted by the caller's signal", { cause: signal.reason });
        if (ahead.length === 0) ahead.push(await this.#start(feed, choice, more));
        // Further runs execute while a token is read. They are undone if no further tokens are wanted.
        const most = Math.min(maxTokens - made, this.#flight.size);
        for (let token; ahead.length < most && (token = ahead.at(-1)!.token) && this.#room(); ) ahead.push(await this.#step(token, 1, choice, more));
        const step = ahead.shift()!;
        const id = await step.id;
        this.#flight.token(performance.now());
        if (!(id >= 0 && id < this.#vocabulary))
          throw new WgfcError("validation", "the logits are not numbers: the model overflows, or its weights are damaged");
        for (const token of fresh) this.#history.push(token);
        this.#history.push(id);
        choice.add(id);
        [this.#kept, this.#pending] = [step.after, id];
        [feed, fresh] = [[id], []];
        yield id;
        if (stop.includes(id)) return;
      }
    } finally {
      for (const { id } of ahead) await id.catch(() => {});
      try {
        if (this.#held() > this.#kept) await this.model.rewind(this.#kept);
      } finally {
        this.#busy = false;
      }
    }
  }

  #stop(options: GenerateOptions): (string | number)[] {
    return [...this.#defaults.stop, ...(options.stop ?? [])];
  }

  /**
   * Forgets all tokens but the longest beginning that they have in common with a prompt, and returns the tokens of the prompt that
   * are to be processed: at least the last one.
   */
  async #keepCommon(prompt: readonly number[]): Promise<readonly number[]> {
    // The next token depends on the logits of the last one, so that one is processed again.
    const most = Math.min(this.#history.length, prompt.length - 1);
    let common = 0;
    while (common < most && this.#history[common] === prompt[common]) common++;
    try {
      await this.#rewind(common);
    } catch (e) {
      // States whose earlier values were overwritten begin anew.
      if (!(e instanceof WgfcError) || e.kind !== "limits") throw e;
      await this.#clear();
      common = 0;
    }
    return prompt.slice(common);
  }

  async #rewind(length: number): Promise<void> {
    if (length < this.#kept) await this.model.rewind(length);
    if (length <= this.#kept) [this.#kept, this.#pending] = [length, undefined];
    this.#history.length = length;
  }

  /** Forgets all tokens. */
  async reset(): Promise<void> {
    await this.#clear();
  }
  /** Forgets all tokens but the first `length`. */
  async rewind(length: number): Promise<void> {
    if (!(Number.isInteger(length) && length >= 0 && length <= this.length))
      throw new WgfcError("shape", `there are ${this.length} tokens: they cannot be rewound to ${length}`);
    if (this.#busy) throw new WgfcError("shape", "the generator is at work: rewind it when the text has ended");
    await this.#rewind(length);
  }

  async #clear(): Promise<void> {
    await this.model.reset();
    [this.#kept, this.#pending, this.#history] = [0, undefined, []];
  }

  dispose(): void {
    for (const b of this.#tokens) b.destroy();
    this.model.dispose();
  }

  #sampling(o: GenerateOptions): Sampling {
    const d = this.#defaults;
    const drawn = o.temperature !== undefined ? o.temperature !== 0 : d.sample || (o.topK ?? o.topP ?? o.minP) !== undefined;
    const sampling: Sampling = {
      temperature: drawn ? (o.temperature ?? d.temperature ?? 1) : 0,
      topK: o.topK ?? d.topK,
      topP: o.topP ?? d.topP,
      minP: o.minP ?? d.minP,
      repetitionPenalty: o.repetitionPenalty ?? d.repetitionPenalty,
      presencePenalty: o.presencePenalty,
      frequencyPenalty: o.frequencyPenalty,
      logitBias: Object.entries(o.logitBias ?? {}).map(([token, bias]) => [Number(token), bias] as const),
      seed: o.seed ?? BigInt(crypto.getRandomValues(new Uint32Array(1))[0]!),
    };
    const { temperature, topK = 1, topP = 1, minP = 0, repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0, logitBias = [] } = sampling;
    const refuse = (what: string): never => {
      throw new WgfcError("shape", what);
    };
    if (!(temperature >= 0 && temperature < Infinity)) refuse(`the temperature is ${temperature}: it is a number from 0 on`);
    if (!(Number.isInteger(topK) && topK > 0)) refuse(`topK is ${topK}: it is a whole number from 1 on`);
    if (!(topP > 0 && topP <= 1)) refuse(`topP is ${topP}: it is a share, above 0 and at most 1`);
    if (!(minP >= 0 && minP <= 1)) refuse(`minP is ${minP}: it is a share of the largest probability, from 0 to 1`);
    if (!(repetitionPenalty > 0 && repetitionPenalty < Infinity)) refuse(`the repetition penalty is ${repetitionPenalty}: it is a number above 0, and 1 changes nothing`);
    for (const [name, n] of Object.entries({ presence: presencePenalty, frequency: frequencyPenalty }))
      if (!Number.isFinite(n)) refuse(`the ${name} penalty is ${n}: numbers between -2 and 2 are usual, and 0 changes nothing`);
    for (const [token, bias] of logitBias)
      if (!(this.#known(token) && Number.isFinite(bias))) refuse(`the logit bias of token ${token} is ${bias}: give finite numbers for tokens 0 to ${this.#vocabulary - 1}`);
    return sampling;
  }

  #known(id: number): boolean {
    return Number.isInteger(id) && id >= 0 && id < this.#vocabulary;
  }

  #check(prompt: readonly number[], place: Place): void {
    if (prompt.length === 0 && (place === "instead" || this.#pending === undefined)) throw new WgfcError("shape", "the prompt has no tokens: give at least one");
    const strange = prompt.find((id) => !this.#known(id));
    if (strange !== undefined)
      throw new WgfcError("shape", `token ${strange} is outside the model's vocabulary, which is 0 to ${this.#vocabulary - 1}`);
  }

  /** The number of positions that the cache holds. */
  #held(): number {
    return this.model.filled?.length ?? this.#kept;
  }
  /** Whether a run can be undone and fits into the cache. */
  #room(): boolean {
    return this.model.filled?.more ?? false;
  }

  /** The number of tokens of a prompt that one run takes. */
  #chunk(): number {
    return this.model.plans.length > 1 || typeof this.#ids.shape.at(-1) === "string" ? CHUNK : 1;
  }

  /** Starts the runs for the tokens of a prompt. */
  async #start(ids: readonly number[], choice: Choice, more: More): Promise<Step> {
    const chunk = this.#chunk();
    let at = 0;
    for (; ids.length - at > chunk; at += chunk) {
      const past = this.#held();
      const inputs = { ...more(past, chunk), ...this.#inputs(ids.slice(at, at + chunk), past) };
      await this.model.run({ ...inputs, [CHOICE]: tensorOfWords(new Uint32Array(5)) }, { outputs: {} });
    }
    return this.#step(ids.slice(at), ids.length - at, choice, more);
  }

  /** Starts a run on these ids, or on the id on the device, which chooses the next token. */
  async #step(ids: readonly number[] | Tensor<GPUBuffer>, count: number, choice: Choice, more: More): Promise<Step> {
    const { model } = this;
    const past = this.#held();
    const inputs = { ...more(past, count), ...this.#inputs(ids instanceof Tensor ? [0] : ids, past) };
    if (ids instanceof Tensor) inputs[this.#ids.name] = ids;
    if (choice.limited) {
      const { logits } = await model.run({ ...inputs, [CHOICE]: tensorOfWords(new Uint32Array(5)) }, { outputs: { logits: "cpu" } });
      return { token: undefined, id: Promise.resolve(choice.draw((logits as Tensor<Float32Array>).toNumbers())), after: past + count };
    }
    const into = ids instanceof Tensor && ids.data === this.#tokens[0] ? this.#tokens[1] : this.#tokens[0];
    const read = await model.begin({ ...inputs, [CHOICE]: tensorOfWords(choice.words()) }, { outputs: { token: into } });
    const id = read().then(({ token }) => (token as Tensor<TypedArray>).toNumbers()[0]!);
    id.catch(() => {});
    const { dtype, shape } = this.#token;
    return { token: new Tensor(dtype, shape.map((d) => (typeof d === "number" ? d : 1)), into), id, after: past + count };
  }

  /** The additional inputs, which the model must have. */
  #more(given: Inputs): Inputs {
    const known = this.model.inputs.filter((i) => i.optional).map((i) => i.name);
    const strange = Object.keys(given).filter((name) => !known.includes(name));
    if (strange.length === 0) return given;
    const has = known.length ? `it has ${known.join(", ")}` : "compile it with `added` or `replaced`";
    throw new WgfcError("shape", `the model has no optional input ${strange.join(", ")}: ${has}`);
  }

  #inputs(ids: readonly number[], past: number): Record<string, TensorLike> {
    const all = { ids, positions: ids.map((_, i) => past + i), segments: ids.map(() => 0), mask: Array<number>(past + ids.length).fill(1) };
    return Object.fromEntries(
      this.#roles.map(([{ name, dtype, shape }, role]) => {
        const values = all[role];
        return [name, Tensor.from(dtype, shape.length > 1 ? [1, values.length] : [values.length], values)];
      }),
    );
  }
}

function tensorOfWords(words: Uint32Array<ArrayBuffer>): TensorLike {
  return { dtype: "u32", shape: [words.length], data: words };
}

function roleOf({ name, dtype, shape }: PortInfo): Role {
  const n = name.toLowerCase();
  const [rank, integer] = [shape.length, dtype === "i64" || dtype === "i32"];
  if (n.includes("mask") && rank === 2) return "mask";
  if (n.includes("position") && integer && rank <= 2) return "positions";
  if (/token_type|segment/.test(n) && integer && rank <= 2) return "segments";
  if (/input_id|token|^ids$|^input$/.test(n) && integer && rank === 2) return "ids";
  throw new WgfcError("shape", `what the input "${name}" is for is not known: a decoder has token ids, and may have position ids and an attention mask`);
}
