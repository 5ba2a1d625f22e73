/** Loaded models and their runs. */

import { type Given, type Inputs, bind, checkInputs, shapeOf } from "./bind.js";
import { label } from "./choose.js";
import type { Compiled, CompileProgress, CompileSettings, PlanOptions } from "./compiler/index.js";
import { Gpu, requestAdapter } from "./device.js";
import { type DType, type TypedArray, bufferBytes, bytesOf, packedBytes } from "./dtypes.js";
import { WgfcError } from "./errors.js";
import { throwIfAborted } from "./fail.js";
import { checkSize } from "./memory.js";
import { makePipelines } from "./pipelines.js";
import type { Plan, PlanBuffer, Port } from "./plan.js";
import { type Program, isModel, openProgram } from "./program.js";
import type { Inspection } from "./inspect.js";
import type { Recorder } from "./recorder.js";
import { Session, type Shared, type Sized } from "./session.js";
import type { ModelSource } from "./source.js";
import type { States } from "./states.js";
import { Tensor, type TensorLike, elementsOf, isBuffer } from "./tensor.js";
import type { DispatchTime, Timestamps } from "./timestamps.js";
import { COPY_DST, MAP_READ } from "./usage.js";
import type { Comparison, Tensors, Tolerance } from "./verify.js";
import { type WeightParts, checkParts, upload } from "./weights.js";

export interface Progress {
  /** The stage of loading. Progress of weights is in bytes. */
  readonly stage: "kernels" | "weights" | CompileProgress["stage"];
  readonly loaded: number;
  readonly total: number;
}

/** Options of `load`. The options of compilation apply only to models that are not compiled yet. */
export interface LoadOptions extends CompileSettings {
  /** The device to run on. By default the model opens its own device and closes it when it is disposed of. */
  readonly device?: GPUDevice;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  /** For a program, the names of the plans to load; all by default. For a model that is compiled, the plans to make. */
  readonly plans?: readonly string[] | readonly PlanOptions[];
  /**
   * Whether to keep downloads of weights in the browser's Cache API (`true`), or the name of the cache (`"wgfc"`). {@link
   * clearCache} empties it.
   */
  readonly cache?: boolean | string;
  /** The initial capacity of states in positions (256). States grow automatically. */
  readonly capacity?: number;
}

/** The destination of an output: the host, a new buffer on the device, or a buffer of the caller. */
export type Destination = "cpu" | "gpu" | GPUBuffer;

export interface RunOptions {
  /** The destination of all outputs (`"cpu"`), or the wanted outputs with a destination for each. */
  readonly outputs?: "cpu" | "gpu" | Readonly<Record<string, Destination>>;
  /** Values of symbols that the inputs' shapes do not determine. */
  readonly symbols?: Readonly<Record<string, number>>;
  /** Cancels a run that has not begun. */
  readonly signal?: AbortSignal;
}

/** An input or output. Extents are numbers, or expressions over the model's symbols. */
export interface PortInfo {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly (number | string)[];
  /** Whether a run may omit it. */
  readonly optional: boolean;
}

/**
 * A tensor that a model keeps on the device from run to run. It may be read and written in place. A growing state moves to
 * another buffer when it is enlarged.
 */
export interface StateInfo extends TensorLike<GPUBuffer> {
  readonly name: string;
  /** The number of positions in use and the capacity, for growing states. */
  readonly length?: number;
  readonly capacity?: number;
}

type Results<D> = Record<string, Tensor<D extends "gpu" | GPUBuffer ? GPUBuffer : TypedArray>>;
type Read = () => Promise<Record<string, Tensor>>;

/** Loads a program that `wgfc compile` wrote, or compiles a model (`.onnx`, `.pt2`) for the device and loads the result. */
export async function load(source: ModelSource, options: LoadOptions = {}): Promise<Model> {
  const { signal } = options;
  throwIfAborted(signal);
  let on: GPUDevice | GPUAdapter | undefined = options.device;
  let compiled: Compiled | undefined;
  if (await isModel(source)) {
    on ??= await requestAdapter();
    const { compile } = await import("./compiler/index.js");
    const plans = options.plans?.filter((p) => typeof p === "object") ?? [];
    compiled = await compile(source, { ...options, device: on, plans });
  }
  const program = await openProgram(compiled?.source ?? source, options);
  const names = options.plans?.map((p) => (typeof p === "string" ? p : p.name));
  const precision = compiled ? undefined : options.precision;
  const wanted = program.plans.filter(
    (p) => names?.includes(p.name) !== false && (!precision || p.needs.features.includes("shader-f16") === (precision === "f16")),
  );
  if (wanted.length === 0)
    throw new WgfcError("feature", `there is no such plan; there is ${program.plans.map(label).join(", ")}`);
  if (wanted[0]!.stats.weights_absent)
    throw new WgfcError("corrupt", "the model was compiled without its weights");
  const [gpu, plans] = await Gpu.open(wanted, on ?? (await requestAdapter()));
  const made = new Model(gpu, plans, program, compiled);
  try {
    await made.place(options);
    throwIfAborted(signal);
    return made;
  } catch (e) {
    made.dispose();
    throw e;
  }
}

/** A loaded model, which {@link load} returns. Runs execute one after another, in the order of the calls. */
export class Model {
  readonly inputs: readonly PortInfo[];
  readonly outputs: readonly PortInfo[];
  readonly #gpu: Gpu;
  readonly #plans: readonly Plan[];
  readonly #program: Program;
  readonly #compiled: Compiled | undefined;
  readonly #weights = new Map<string, GPUBuffer>();
  readonly #arenas: GPUBuffer[] = [];
  readonly #own: GPUBuffer[] = [];
  #parts: WeightParts = new Map();
  /** The model's states, if it has any. */
  #states: States | undefined;
  #sessions: readonly Session[] = [];
  #staging: GPUBuffer[] = [];
  #tail: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(gpu: Gpu, plans: readonly Plan[], program: Program, compiled?: Compiled) {
    this.#compiled = compiled;
    this.#gpu = gpu;
    this.#plans = plans;
    this.#program = program;
    this.inputs = plans[0]!.inputs.map(portInfo);
    this.outputs = plans[0]!.outputs.map(portInfo);
  }

  /** @internal Compiles the pipelines and uploads weights and states. */
  async place({ signal, onProgress, capacity }: LoadOptions): Promise<void> {
    const gpu = this.#gpu;
    const plan = this.#plans[0]!;
    const { source } = this.#program;
    const weights = new Map<string, PlanBuffer>();
    for (const { buffers } of this.#plans)
      for (const b of buffers) if (b.kind.kind === "weight") weights.set(b.kind.name, b);
    const initial = plan.states.flatMap((s) => s.initial ?? []);
    if (weights.size + initial.length > 0) this.#parts = await this.#program.weightParts([...weights.keys(), ...initial], signal);
    // All weights are checked before anything is allocated.
    for (const [name, { dtype, elements }] of weights) checkParts(source, this.#parts, name, packedBytes(dtype, elements.at([])));
    if (plan.states.length) this.#states = await (await import("./states.js")).States.create(gpu, plan, capacity);
    await gpu.scoped("making buffers for the weights", () => {
      for (const [name, { dtype, elements }] of weights) {
        const bytes = bufferBytes(dtype, elements.at([]));
        checkSize(`the weight "${name}"`, bytes, gpu.device.limits);
        this.#weights.set(name, gpu.storage(`weight ${name}`, bytes));
      }
    });
    const report = (stage: Progress["stage"]) => (loaded: number, total: number) => onProgress?.({ stage, loaded, total });
    // Kernels and weights are loaded concurrently. If one fails, the other is cancelled and awaited before anything is freed.
    const stop = new AbortController();
    const either = AbortSignal.any(signal ? [signal, stop.signal] : [stop.signal]);
    const kernels = makePipelines(gpu, this.#program, this.#plans, { signal: either, progress: report("kernels") });
    const uploads = upload(gpu.device, source, this.#parts, this.#weights, { signal: either, progress: report("weights") });
    const all = Promise.all([kernels, uploads]);
    all.catch(() => stop.abort());
    await Promise.allSettled([kernels, uploads]);
    const [pipelines] = await all;
    await this.#begin(signal);
    const shared: Shared = { gpu, weights: this.#weights, states: this.#states, arenas: this.#arenas };
    this.#sessions = await gpu.scoped("making buffers", () => this.#plans.map((p) => new Session(p, pipelines, shared)));
  }

  /** @internal The texts of files that the model's own file holds. */
  get beside(): Compiled["beside"] {
    return this.#compiled?.beside ?? {};
  }
  /** The device, for tensors and other models. */
  get device(): GPUDevice {
    return this.#gpu.device;
  }
  /** The names of the plans that this device can run, in the order in which a run tries them for its shapes. */
  get plans(): readonly string[] {
    return this.#plans.map((p) => p.name);
  }
  /** @internal What {@link states} say of their lengths, without a list of all. */
  get filled(): ReturnType<States["filled"]> | undefined {
    return this.#states?.filled();
  }
  get states(): readonly StateInfo[] {
    const states = this.#states;
    if (!states) return [];
    return states.all.map((s) => ({ name: s.name, dtype: s.dtype, shape: states.shape(s), data: states.buffer(s.name)!, ...states.positions(s) }));
  }

  /**
   * Runs the model on tensors on the host or on its device. Arrays must not change until the run is done. The caller must destroy
   * outputs on the device.
   */
  run(inputs: Inputs, options?: RunOptions & { outputs?: "cpu" }): Promise<Results<"cpu">>;
  run(inputs: Inputs, options: RunOptions & { outputs: "gpu" | Readonly<Record<string, "gpu" | GPUBuffer>> }): Promise<Results<"gpu">>;
  run(inputs: Inputs, options: RunOptions): Promise<Record<string, Tensor>>;
  async run(inputs: Inputs, options: RunOptions = {}): Promise<Record<string, Tensor>> {
    const read = await this.#queued(() => this.#start(inputs, options));
    return read();
  }

  /** @internal Submits a run, and returns a function that waits for it and reads all wanted outputs, also those in buffers of the caller. */
  begin(inputs: Inputs, options: RunOptions): Promise<Read> {
    return this.#queued(() => this.#start(inputs, options, undefined, true));
  }

  /** Runs the model and returns the time of each dispatch, the longest first. Browsers may round times to 100 µs. */
  async profile(inputs: Inputs, options: Pick<RunOptions, "symbols"> = {}): Promise<DispatchTime[]> {
    return this.#queued(async () => {
      const { Timestamps } = await import("./timestamps.js");
      const times = new Timestamps(this.device);
      const [session, sized] = await this.#fit(new Map(Object.entries(inputs)), options.symbols);
      await (await this.#start(inputs, options, times))();
      return this.#gpu.watch(times.read(session.plan, sized));
    });
  }

  /**
   * Runs the model on these inputs and compares the outputs with expected ones, for example those of another device. Tensors are
   * given by name or as safetensors files.
   */
  async verify(inputs: Tensors, expected: Tensors, tolerance?: Tolerance): Promise<Record<string, Comparison>> {
    return (await import("./verify.js")).verify(this, inputs, expected, tolerance);
  }

  /** Describes the model and the device: plans, kernels, adapter, memory. */
  async inspect(): Promise<Inspection> {
    const { inspect } = await import("./inspect.js");
    const memory = { weights: [...this.#weights.values()], states: this.states.map((s) => s.data), other: [...this.#arenas, ...this.#own, ...this.#staging] };
    return inspect(this.device, this.#plans, this.#program, memory, this.#compiled);
  }

  /** Resets all states to their contents before the first run. Initial contents are read from the model's files again. */
  async reset(): Promise<void> {
    await this.#queued(async () => {
      await this.#gpu.scoped("resetting the states", () => this.#states?.clear());
      await this.#begin();
    });
  }
  /** Truncates growing states to their first `length` positions, after which the next run continues. */
  async rewind(length: number): Promise<void> {
    await this.#queued(async () => this.#states?.rewind(length));
  }
  /** Enlarges growing states to at least `capacity` positions. */
  async grow(capacity: number): Promise<void> {
    await this.#queued(async () => this.#states?.grow(capacity));
  }
  /** Frees all memory on the device, also that of unfinished runs. */
  dispose(): void {
    this.#gpu.dispose();
    for (const b of [...this.#weights.values(), ...this.#arenas, ...this.#own, ...this.#staging]) b?.destroy();
    for (const s of this.#sessions) s.dispose();
    this.#states?.dispose();
  }

  /** Runs `f` after all earlier calls have finished. */
  async #queued<T>(f: () => Promise<T>): Promise<T> {
    const mine = this.#tail.then(() => {
      this.#gpu.check();
      return f();
    });
    this.#tail = mine.catch(() => {});
    return mine;
  }

  /** Uploads the initial contents of states. */
  async #begin(signal?: AbortSignal): Promise<void> {
    const { source } = this.#program;
    const states = this.#states;
    for (const s of states?.all ?? []) {
      if (!s.initial) continue;
      checkParts(source, this.#parts, s.initial, packedBytes(s.dtype, elementsOf(states!.shape(s))));
      await upload(this.device, source, this.#parts, new Map([[s.initial, states!.buffer(s.name)!]]), { signal });
    }
  }

  /** The first plan that accepts the inputs, with its evaluated sizes and the lengths of the states after the run. */
  async #fit(inputs: Given, symbols: Readonly<Record<string, number>> = {}): Promise<[Session, Sized, Map<string, number>]> {
    const failed: WgfcError[] = [];
    for (const session of this.#sessions) {
      const { plan } = session;
      const values = () => bind(plan, inputs, new Map([...Object.entries(symbols), ...(this.#states?.symbols() ?? [])]));
      try {
        checkInputs(plan, inputs);
        const lengths = (await this.#states?.after(plan, values)) ?? new Map<string, number>();
        return [session, session.sized(values()), lengths];
      } catch (e) {
        if (!(e instanceof WgfcError) || e.kind !== "shape") throw e;
        failed.push(e);
      }
    }
    if (failed.length === 1) throw failed[0];
    throw new WgfcError("shape", failed.map((e, i) => `${label(this.#plans[i]!, i)}: ${e.message}`).join("; "), { node: failed[0]?.node });
  }

  /** Submits a run and returns a function that waits for its outputs. With `all` those in buffers of the caller are read, too. */
  async #start(inputs: Inputs, options: RunOptions, times?: Timestamps, all = false): Promise<Read> {
    throwIfAborted(options.signal);
    const given: Given = new Map(Object.entries(inputs));
    const [session, sized, lengths] = await this.#fit(given, options.symbols);
    const { plan } = session;
    const wanted = destinations(plan, options.outputs);
    const bytes = (i: number) => sized.memory.bytes[plan.outputs[i]!.buffer]!;
    let outputs: GPUBuffer[] = [];
    const place = () => {
      const inputs = plan.inputs.map((p, i) => this.#placeInput(p, i, given.get(p.name)));
      outputs = plan.outputs.map((p, i) => this.#placeOutput(p, inputs.length + i, bytes(i), wanted.get(i)));
      return [...inputs, ...outputs];
    };
    // The staging buffer holds the tensors that are read back one after another, followed by the uniform.
    const read = [...wanted].filter(([, to]) => all || to === "cpu").map(([i]) => i);
    const sizes = [...read.map(bytes), ...(session.late ? [session.dims.size] : [])];
    let staging: GPUBuffer | undefined;
    const copyOut = (recorder: Recorder) => {
      let at = 0;
      sizes.forEach((size, i) => {
        staging ??= this.#take(sizes.reduce((a, b) => a + b));
        recorder.copy(i < read.length ? outputs[read[i]!]! : session.dims, 0, staging, at, size);
        at += size;
      });
    };
    const { taken } = await session.run(sized, place, copyOut, times);
    const finish = async () => {
      // Both take a round trip to the browser's GPU process.
      const reading = staging ? this.#read(staging, sizes, !all) : [];
      const [, pieces] = await Promise.all([taken, reading]);
      const late = session.late ? pieces.pop()! : undefined;
      const values = late ? session.settle(sized, new Int32Array(late.buffer)) : sized.values;
      const shapes = session.outputShapes(values);
      return Object.fromEntries(
        [...wanted].map(([i]) => {
          const { name, dtype } = plan.outputs[i]!;
          const bytes = read.includes(i) ? pieces[read.indexOf(i)]!.subarray(0, packedBytes(dtype, elementsOf(shapes[i]!))) : undefined;
          return [name, bytes ? Tensor.fromBytes(dtype, shapes[i]!, bytes) : new Tensor(dtype, shapes[i]!, outputs[i]!)];
        }),
      );
    };
    if (!session.late) {
      this.#states?.setLengths(lengths);
      return finish;
    }
    // Computed sizes are checked after the run, so it may still turn out to be invalid.
    const results = await finish();
    this.#states?.setLengths(lengths);
    return async () => results;
  }

  #placeInput(port: Port, i: number, given: TensorLike | undefined): GPUBuffer {
    // Kernels read no element of an omitted input.
    const elements = given ? elementsOf(shapeOf(port, given)) : 0;
    if (!given || elements === 0) return this.#ownBuffer(i, 16);
    const size = bufferBytes(port.dtype, elements);
    // The constructor checks the data.
    const { data } = new Tensor(given.dtype, given.shape, given.data);
    if (isBuffer(data)) return data;
    const buffer = this.#ownBuffer(i, size);
    this.#fill(buffer, bytesOf(data));
    return buffer;
  }

  #placeOutput(port: Port, i: number, size: number, to: Destination | undefined): GPUBuffer {
    if (to === "gpu") return this.#gpu.storage(`output ${port.name}`, size);
    if (to === undefined || to === "cpu") return this.#ownBuffer(i, size);
    if (to.size < size) throw new WgfcError("shape", `"${port.name}" takes ${size} bytes, not ${to.size}`);
    return to;
  }

  /** A buffer of the model for an input or output. */
  #ownBuffer(i: number, size: number): GPUBuffer {
    const own = this.#own[i];
    if (own && own.size >= size) return own;
    own?.destroy();
    return (this.#own[i] = this.#gpu.storage(`port ${i}`, size));
  }

  /** Writes whole words, the last one padded with zeros. */
  #fill(buffer: GPUBuffer, bytes: Uint8Array<ArrayBuffer>): void {
    const whole = bytes.length & ~3;
    if (whole) this.device.queue.writeBuffer(buffer, 0, bytes, 0, whole);
    if (bytes.length === whole) return;
    const last = new Uint8Array(4);
    last.set(bytes.subarray(whole));
    this.device.queue.writeBuffer(buffer, whole, last);
  }

  /** A staging buffer for reading outputs. */
  #take(size: number): GPUBuffer {
    const i = this.#staging.findIndex((b) => b.size >= size && b.size <= 4 * size + 65536);
    if (i >= 0) return this.#staging.splice(i, 1)[0]!;
    return this.device.createBuffer({ size, usage: MAP_READ | COPY_DST });
  }

  /** Copies of the contents of a staging buffer, once the device has written them. */
  async #read(staging: GPUBuffer, sizes: readonly number[], alone: boolean): Promise<Uint8Array[]> {
    const mapped = await this.#gpu.mapped(staging, alone);
    let at = 0;
    const pieces = sizes.map((bytes) => new Uint8Array(mapped.slice(at, (at += bytes))));
    staging.unmap();
    this.#staging.push(staging);
    if (this.#staging.length > 4) this.#staging.shift()?.destroy();
    return pieces;
  }
}

/** @internal What a page is told about an input or output. */
export function portInfo({ name, dtype, shape, broadcast }: Port): PortInfo {
  const extents = shape.map((d) => (d.powers.size ? d.text : d.at([])));
  return { name, dtype, shape: extents, optional: broadcast !== undefined };
}

/** The destinations of the wanted outputs, by index. */
function destinations(plan: Plan, wanted: RunOptions["outputs"] = "cpu"): Map<number, Destination> {
  if (typeof wanted === "string") return new Map(plan.outputs.map((_, i) => [i, wanted]));
  return new Map(
    Object.entries(wanted).map(([name, to]) => {
      const i = plan.outputs.findIndex((o) => o.name === name);
      const known = plan.outputs.map((o) => `"${o.name}"`).join(", ");
      if (i < 0) throw new WgfcError("shape", `the model has no output "${name}"; it has ${known}`);
      return [i, to];
    }),
  );
}
