/**
 * Training in the page: steps of a model that has its loss, gradients and optimizer in one graph, as `wgfc train` runs them.
 *
 *     const trainer = await Trainer.load("step.pt2", { data: { x: rows }, inputs: { rate: Tensor.from("f32", [], [1e-3]) }, batch: 64 });
 *     for await (const { number, loss } of trainer.run(1000)) console.log(number, loss);
 *     const file = await trainer.save();
 */

import { type LoadOptions, type Model, type ModelSource, type PortInfo, Tensor, type TensorLike, type TypedArray, WgfcError, load } from "./index.js";
import { type Bytes, type HostTensors, ofHost, opened, wholeWords, written } from "./checkpoint.js";
import { bitsOf, bufferBytes, bytesOf, isFloat } from "./dtypes.js";
import { Order, PIECE, Rows } from "./rows.js";
import { COPY_DST, COPY_SRC, STORAGE } from "./usage.js";

export type { HostTensors } from "./checkpoint.js";

export interface TrainerOptions extends Omit<LoadOptions, "training" | "plans"> {
  /**
   * The inputs that change from step to step, with all rows along their first axis. A step takes the same rows of each. Up to 256 MiB of an input are
   * uploaded once; of more, each step uploads its rows.
   */
  readonly data: HostTensors;
  /** Inputs that are the same in each step, such as a learning rate. They are uploaded once; {@link Trainer.set} changes them. */
  readonly inputs?: HostTensors;
  /**
   * For a model that is compiled in the page, outputs by the inputs of which they are the values in the next step, besides those that are found:
   * outputs of an input's name, or all inputs and outputs that are left, in their order, if they have the same types.
   */
  readonly states?: Readonly<Record<string, string>>;
  /** The output that is the loss. The default is the one called `loss`, else the first one that is a single float. */
  readonly loss?: string;
  /** The number of rows of a step, if the model leaves it open. */
  readonly batch?: number;
  /** Whether rows are shuffled, anew in each epoch (`true`). Rows that do not fill a batch are the first ones of the next epoch's first batch. */
  readonly shuffle?: boolean;
  /** The seed of the rows' order, and of the random numbers that the step draws (0). */
  readonly seed?: number | bigint;
  /** The most steps that are in flight at a time (2). */
  readonly inFlight?: number;
  /** Whether training continues after a loss that is infinite or NaN. */
  readonly anyLoss?: boolean;
}

/** A step that has ended. */
export interface Step {
  /** The number of the step, from 1 on. */
  readonly number: number;
  /** The loss on the step's batch, with the parameters before the update. */
  readonly loss: number;
}

/** The name of the state that is the scale of the loss. */
const SCALE = "loss_scale";

/** The most steps or rows that a checkpoint may count. */
const MOST = Number.MAX_SAFE_INTEGER;

export class Trainer {
  readonly model: Model;
  /** The output that is the loss. */
  readonly loss: string;
  /** The number of rows of a step. */
  readonly batch: number;
  /** The number of rows of the data. */
  readonly rows: number;
  readonly #data: readonly Rows[];
  readonly #fixed: Readonly<Record<string, Tensor<GPUBuffer>>>;
  /** The optional inputs that seed the step's random numbers and are not given. */
  readonly #draws: readonly PortInfo[];
  readonly #inFlight: number;
  readonly #anyLoss: boolean;
  #seed: bigint;
  #order: Order;
  #step = 0;
  #samples = 0;
  #busy = false;
  #tail: Promise<unknown> = Promise.resolve();

  /** Compiles a step (`.pt2`, `.onnx`) for the device, or loads one that was compiled with its states. */
  static async load(source: ModelSource, options: TrainerOptions): Promise<Trainer> {
    const { data, inputs = {}, states = {}, loss, batch } = options;
    checkRows(data);
    const shapes = <T>(tensors: HostTensors, of: (shape: readonly number[]) => T) =>
      Object.fromEntries(Object.entries(tensors).map(([name, { shape }]) => [name, of(shape)]));
    const training = {
      data: shapes(data, ([, ...row]) => [batch ?? null, ...row]),
      inputs: shapes(inputs, (shape) => shape),
      states: Object.entries(states),
      ...(loss === undefined ? {} : { loss }),
    };
    const model = await load(source, { ...options, training });
    try {
      if (model.device.features.has("shader-f16") && !model.states.some((s) => s.name === SCALE)) {
        const { plans } = await model.inspect();
        if (plans.some((p) => p.halved))
          throw refused("the program stores values as f16 and does not scale its loss, so gradients may be too small for f16: compile the step with --loss-scale");
      }
      return new Trainer(model, options);
    } catch (e) {
      model.dispose();
      throw e;
    }
  }

  private constructor(model: Model, { data, inputs = {}, loss, batch, shuffle = true, seed = 0, inFlight = 2, anyLoss = false }: TrainerOptions) {
    this.model = model;
    if (model.states.length === 0)
      throw refused("the program has no states, so a step cannot change the next one: load the model itself, or compile it with its states");
    this.loss = lossOf(model, loss);
    const misfits = Object.entries({ ...data, ...inputs }).flatMap(([name, t]) => misfit(portOf(model, name), t, name in data));
    if (misfits.length) throw refused(misfits.join("; "));
    this.#data = Object.entries(data).map(([name, tensor]) => new Rows(portOf(model, name), tensor));
    this.rows = this.#data[0]!.count;
    this.batch = batchOf(this.#data, batch);
    if (this.batch > this.rows) throw refused(`the data have ${this.rows} rows, fewer than the ${this.batch} of a step: give more, or a smaller \`batch\``);
    if (!(Number.isInteger(inFlight) && inFlight > 0)) throw refused(`inFlight is ${inFlight}: it is a whole number from 1 on`);
    if (!(typeof seed === "bigint" || Number.isSafeInteger(seed)) || seed < 0) throw refused(`seed is ${seed}: it is a whole number from 0 on`);
    for (const rows of this.#data) rows.place(model.device, this.batch);
    this.#fixed = Object.fromEntries(Object.entries(inputs).map(([name, t]) => [name, uploaded(model.device, name, t)]));
    this.#draws = model.inputs.filter((p) => p.optional && !(p.name in inputs) && purposeOf(p.name));
    this.#inFlight = inFlight;
    this.#anyLoss = anyLoss;
    this.#seed = BigInt(seed);
    this.#order = new Order(this.rows, shuffle ? this.#seed : undefined);
  }

  /** The number of steps that were submitted. */
  get step(): number {
    return this.#step;
  }

  /**
   * Runs this many steps, and yields each in order once its loss is known. If the caller breaks off, steps in flight are still completed: the states
   * are then those after {@link step} steps.
   */
  async *run(steps: number, { signal }: { readonly signal?: AbortSignal } = {}): AsyncGenerator<Step, void, undefined> {
    if (this.#busy) throw refused("the trainer is at work: call `run` again when the one before has ended");
    this.#busy = true;
    const end = this.#step + steps;
    const running: { number: number; loss: Promise<number> }[] = [];
    try {
      for (;;) {
        if (signal?.aborted) throw new WgfcError("aborted", "aborted by the caller's signal", { cause: signal.reason });
        while (this.#step < end && running.length < this.#inFlight) running.push(await this.#submit());
        const oldest = running.shift();
        if (!oldest) return;
        const step = { number: oldest.number, loss: await oldest.loss };
        if (!Number.isFinite(step.loss) && !this.#anyLoss) {
          const advice = "try a smaller learning rate or other data; the states are useless now: resume from a checkpoint";
          throw new WgfcError("diverged", `the loss of step ${step.number} is ${Number.isNaN(step.loss) ? "not a number" : "infinite"}: ${advice}`);
        }
        yield step;
      }
    } finally {
      for (const { loss } of running) await loss.catch(() => {});
      this.#busy = false;
    }
  }

  /** Submits a step when nothing else reads or writes the states. */
  #submit(): Promise<{ number: number; loss: Promise<number> }> {
    return this.#alone(async () => {
      const rows = Uint32Array.from({ length: this.batch }, (_, i) => this.#order.row(this.#samples + i));
      const data = this.#data.map((r): [string, TensorLike] => [r.name, r.take(rows)]);
      const draws = this.#draws.map(({ name, shape }): [string, TensorLike] => {
        const number = purposeOf(name) === "seed" ? this.#seed : BigInt(this.#step);
        return [name, Tensor.from("i64", shape.map(() => 1), [number])];
      });
      const read = await this.model.begin({ ...this.#fixed, ...Object.fromEntries([...data, ...draws]) }, { outputs: { [this.loss]: "cpu" } });
      const number = ++this.#step;
      this.#samples += rows.length;
      const loss = read().then((outputs) => (outputs[this.loss] as Tensor<TypedArray>).toNumbers()[0]!);
      loss.catch(() => {});
      return { number, loss };
    });
  }

  /** Runs `f` after all earlier calls have finished. */
  #alone<T>(f: () => Promise<T>): Promise<T> {
    const mine = this.#tail.then(f);
    this.#tail = mine.catch(() => {});
    return mine;
  }

  /**
   * All states by name as a safetensors file, with the progress of the training in its metadata. `wgfc train --resume` and {@link resume} continue
   * from it.
   */
  async save(): Promise<Blob> {
    return this.#alone(() => {
      const { states, device } = this.model;
      return written(device, states, { step: this.#step, samples: this.#samples, seed: this.#order.seed, rows: this.rows });
    });
  }

  /**
   * Continues from a checkpoint: its states, step, position in the data and seed. The steps that follow are those that would have followed in the
   * original training. Nothing is changed if it is not a checkpoint, or one of another model or of other data.
   */
  async resume(file: Blob | Uint8Array<ArrayBuffer>): Promise<void> {
    const { tensors, note } = await opened(file);
    if (!note) throw refused("the file is not a checkpoint: it does not state after which step it was written. Begin with its tensors: `begin`");
    const problems = this.#misfits(tensors, true);
    if (note.rows !== this.rows) problems.push(`it was written when the data had ${note.rows} rows, and there are ${this.rows}`);
    if (Math.max(note.step, note.samples) > MOST) problems.push(`it says that ${note.samples} rows went into ${note.step} steps`);
    if (problems.length) throw refused(`the checkpoint does not fit: ${problems.join("; ")}`);
    await this.#alone(async () => {
      await this.#write(tensors);
      this.#order = new Order(this.rows, note.seed);
      if (note.seed !== undefined) this.#seed = note.seed;
      [this.#step, this.#samples] = [note.step, note.samples];
    });
  }

  /** Sets states before the first step: tensors by name, or a safetensors file of them. The others keep the model's initial values, or zeros. */
  async begin(tensors: HostTensors | Blob | Uint8Array<ArrayBuffer>): Promise<void> {
    const given = tensors instanceof Blob || tensors instanceof Uint8Array ? (await opened(tensors)).tensors : ofHost(tensors);
    const problems = this.#misfits(given, false);
    if (problems.length) throw refused(`the tensors do not fit: ${problems.join("; ")}`);
    await this.#alone(() => this.#write(given));
  }

  /** Changes inputs that are the same in each step, such as a learning rate, from the next step on. */
  set(inputs: HostTensors): void {
    const problems = Object.entries(inputs).flatMap(([name, given]) => {
      const own = this.#fixed[name];
      const show = (t: TensorLike) => `${t.dtype}[${t.shape.join(", ")}]`;
      if (!own) return [`"${name}" was not given as an input that is the same in each step`];
      return show(own) === show(given) ? [] : [`"${name}" was given as ${show(own)}, and is now ${show(given)}`];
    });
    if (problems.length) throw refused(problems.join("; "));
    for (const [name, { dtype, shape, data }] of Object.entries(inputs)) {
      const bytes = bytesOf(new Tensor(dtype, shape, data).data);
      this.model.device.queue.writeBuffer(this.#fixed[name]!.data, 0, wholeWords(bytes));
    }
  }

  /** Begins anew: the states have the model's initial values, and the next step is the first. */
  async reset(): Promise<void> {
    await this.#alone(async () => {
      await this.model.reset();
      [this.#step, this.#samples] = [0, 0];
    });
  }

  /** Frees all memory on the device. */
  dispose(): void {
    for (const t of Object.values(this.#fixed)) t.destroy();
    for (const rows of this.#data) rows.dispose();
    this.model.dispose();
  }

  /** The faults of tensors that are not valid states; with `all`, also the states without a tensor. */
  #misfits(tensors: ReadonlyMap<string, Bytes>, all: boolean): string[] {
    const { states } = this.model;
    const show = (t: { dtype: string; shape: readonly number[] }) => `${t.dtype}[${t.shape.join(", ")}]`;
    const wrong = states.flatMap((s) => {
      const t = tensors.get(s.name);
      return t && show(t) !== show(s) ? [`"${s.name}" is ${show(t)}, and the model's ${show(s)}`] : [];
    });
    const missing = all ? states.filter((s) => !tensors.has(s.name)).map((s) => s.name) : [];
    const unknown = [...tensors.keys()].filter((name) => !states.some((s) => s.name === name));
    if (missing.length) wrong.push(`it has no ${listed(missing)}`);
    if (unknown.length) wrong.push(`the model has no state ${listed(unknown)}; it has ${listed(states.map((s) => s.name))}`);
    return wrong;
  }

  async #write(tensors: ReadonlyMap<string, Bytes>): Promise<void> {
    const { states, device } = this.model;
    for (const state of states) {
      const t = tensors.get(state.name);
      if (!t) continue;
      for (let at = 0; at < t.size; at += PIECE) {
        const piece = await t.read(at, Math.min(t.size, at + PIECE));
        device.queue.writeBuffer(state.data, at, wholeWords(piece));
      }
    }
  }
}

function refused(what: string): WgfcError {
  return new WgfcError("shape", what);
}

/** The first names of many, for messages. */
function listed(names: readonly string[]): string {
  const shown = names.slice(0, 6).map((n) => `"${n}"`);
  return shown.join(", ") + (names.length > shown.length ? ` and ${names.length - shown.length} more` : "");
}

function portOf(model: Model, name: string): PortInfo {
  const port = model.inputs.find((p) => p.name === name);
  if (port) return port;
  const known = model.inputs.map((p) => p.name);
  const also = model.states.some((s) => s.name === name) ? "it is a state, which `begin` sets" : `it has ${known.length ? listed(known) : "none"}`;
  throw refused(`the model has no input "${name}": ${also}`);
}

/** The fault of a tensor for an input. The first extent of data is the number of all rows. */
function misfit({ name, dtype, shape, optional }: PortInfo, given: TensorLike, data: boolean): string[] {
  const extents = (of: readonly (number | string)[]) => (data ? ["rows", ...of.slice(1)] : of);
  const [want, have] = [extents(shape), extents(given.shape)];
  const fits = given.dtype === dtype && (optional || (have.length === want.length && want.every((d, i) => typeof d === "string" || d === have[i])));
  return fits ? [] : [`input "${name}" is ${dtype}[${want.join(", ")}], not ${given.dtype}[${have.join(", ")}]`];
}

function lossOf({ outputs }: Model, named: string | undefined): string {
  const fits = outputs.filter((o) => isFloat(o.dtype) && o.shape.every((d) => d === 1));
  const found = named === undefined ? (fits.find((o) => o.name === "loss") ?? fits[0]) : fits.find((o) => o.name === named);
  if (found) return found.name;
  const what = named === undefined ? "no output is a loss, one float" : `"${named}" is no output that is one float`;
  throw refused(`${what}: the model's outputs are ${listed(outputs.map((o) => o.name)) || "none"}`);
}

function checkRows(data: HostTensors): void {
  const all = Object.entries(data);
  const problems = all.flatMap(([name, { dtype, shape }]) =>
    shape.length === 0 || bitsOf(dtype) % 8 !== 0 ? [`"${name}" is ${dtype}[${shape.join(", ")}], which has no rows: give what is the same in each step as \`inputs\``] : [],
  );
  const [first] = all;
  if (!first) throw refused("there is no data to train on");
  const [name, rows] = [first[0], first[1].shape[0]];
  for (const [other, { shape }] of all) if (shape[0] !== rows) problems.push(`"${name}" has ${rows} rows, and "${other}" ${shape[0]}`);
  if (problems.length) throw refused(problems.join("; "));
}

/** The number of rows of a step: the model's, or the one that is asked for. */
function batchOf(data: readonly Rows[], asked: number | undefined): number {
  const fixed = data.find((r) => typeof r.port.shape[0] === "number");
  const own = fixed?.port.shape[0] as number | undefined;
  const batch = asked ?? own;
  if (batch === undefined) throw refused(`input "${data[0]!.name}" leaves open how many rows a step takes: set \`batch\``);
  if (!(Number.isInteger(batch) && batch > 0)) throw refused(`batch is ${batch}: it is a whole number from 1 on`);
  if (own !== undefined && own !== batch) throw refused(`a step takes ${own} rows of "${fixed!.name}", not ${batch}: leave \`batch\` out, or export the step with a dynamic batch`);
  return batch;
}

/** The purpose of an optional input for random numbers. A model with such inputs of its own has `random.` before these names. */
function purposeOf(name: string): "seed" | "offset" | undefined {
  const plain = name.replace(/^(random\.)+/, "");
  return plain === "seed" || plain === "offset" ? plain : undefined;
}

function uploaded(device: GPUDevice, name: string, { dtype, shape, data }: TensorLike<TypedArray>): Tensor<GPUBuffer> {
  const tensor = new Tensor(dtype, shape, data);
  const buffer = device.createBuffer({ label: `input ${name}`, size: bufferBytes(dtype, tensor.elements), usage: STORAGE | COPY_SRC | COPY_DST });
  device.queue.writeBuffer(buffer, 0, wholeWords(bytesOf(data)));
  return new Tensor(dtype, shape, buffer);
}
