/**
 * Models on the CPU, for pages and programs that ask for it. Nothing of this package chooses it by itself: it is slower than WebGPU, and
 * has only `.onnx` models.
 */

import { type Inputs, bind, checkInputs } from "../bind.js";
import { type Refusal, readModel, refused } from "../compiler/read.js";
import type { CompileProgress } from "../compiler/index.js";
import { originOf, sourceAt } from "../compiler/origin.js";
import { type DType, type TypedArray, bytesOf, packedBytes } from "../dtypes.js";
import { aborted, throwIfAborted } from "../fail.js";
import { Tensor, WgfcError } from "../index.js";
import { type PortInfo, portInfo } from "../model.js";
import { type Plan, readPlans } from "../plan.js";
import { type ModelSource, concat, readAll } from "../source.js";
import { elementsOf, isBuffer } from "../tensor.js";
import type { Result, Task } from "./worker.js";

export interface CpuOptions {
  /** Values of symbolic dimensions to fix. */
  readonly dims?: Readonly<Record<string, number>>;
  readonly onProgress?: (progress: CompileProgress) => void;
  readonly signal?: AbortSignal;
  /** Whether to keep downloads in the browser's Cache API (`true`), or the name of the cache (`"wgfc"`). */
  readonly cache?: boolean | string;
}

export interface CpuRunOptions {
  /** The wanted outputs; all by default. */
  readonly outputs?: readonly string[];
  /** Values of symbols that the inputs' shapes do not determine. */
  readonly symbols?: Readonly<Record<string, number>>;
  /** Cancels a run that has not begun. */
  readonly signal?: AbortSignal;
}

/**
 * Loads an `.onnx` model with its weights, to run it on the CPU. A model that is invalid or not supported rejects with a {@link WgfcError} of
 * kind `model` or `unsupported`, which has `diagnostics`.
 */
export async function load(source: ModelSource, options: CpuOptions = {}): Promise<CpuModel> {
  const { signal, dims, cache } = options;
  throwIfAborted(signal);
  const model = await readModel(originOf(source), options);
  const blob = async (place: Blob | URL) => (place instanceof Blob ? place : new Blob([await readAll(await sourceAt(place, cache), "", signal)]));
  const files = await Promise.all([...model.files.values()].map(({ place }) => blob(place)));
  const request = JSON.stringify({ files: [...model.files.keys()].map((name, i) => ({ name, bytes: files[i]!.size })), dims });
  options.onProgress?.({ stage: "compile", loaded: 0, total: 1 });
  const host = await newHost();
  const stop = () => host.end(aborted(signal!));
  signal?.addEventListener("abort", stop);
  try {
    throwIfAborted(signal);
    const { json } = made(await host.ask({ model: model.bytes, request, files }));
    const answer = JSON.parse(json) as { plan: object } | Refusal;
    if ("errors" in answer) throw refused(answer);
    options.onProgress?.({ stage: "compile", loaded: 1, total: 1 });
    return new CpuModel(host, readPlans(JSON.stringify(answer.plan)).plans[0]!);
  } catch (e) {
    host.end(new WgfcError("disposed", "the model could not be loaded"));
    throw e;
  } finally {
    signal?.removeEventListener("abort", stop);
  }
}

/** The place where a model runs: a worker, or in Node this thread. */
interface Place {
  ask(task: Task): Promise<Result>;
  /** Frees it, and rejects all that has been asked and not answered. */
  end(why: WgfcError): void;
}

async function newHost(): Promise<Place> {
  if (typeof Worker === "function") return new InWorker();
  const { Host } = await import("./worker.js");
  let host: InstanceType<typeof Host> | undefined = new Host();
  let ended: WgfcError | undefined;
  return {
    ask: async (task) => {
      if (!host) throw ended;
      return host.answer(task);
    },
    end: (why) => {
      ended ??= why;
      host = undefined;
    },
  };
}

class InWorker implements Place {
  readonly #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  /** The calls that wait, in the order in which they are answered. */
  #waiting: { resolve: (result: Result) => void; reject: (why: WgfcError) => void }[] = [];
  #ended: WgfcError | undefined;

  constructor() {
    this.#worker.onmessage = ({ data }: MessageEvent<Result>) => this.#waiting.shift()?.resolve(data);
    this.#worker.onerror = (e) => this.end(new WgfcError("network", `the CPU's worker cannot be loaded: ${e.message || "its file is not there, or is no module"}`));
  }

  ask(task: Task): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (this.#ended) return reject(this.#ended);
      this.#waiting.push({ resolve, reject });
      this.#worker.postMessage(task, "model" in task ? [task.model.buffer] : [task.data.buffer]);
    });
  }

  end(why: WgfcError): void {
    this.#ended ??= why;
    this.#worker.terminate();
    for (const { reject } of this.#waiting.splice(0)) reject(this.#ended);
  }
}

function made(result: Result): Extract<Result, { json: string }> {
  if ("json" in result) return result;
  throw new WgfcError(result.kind, result.message);
}

/** The answer to a run. */
type Ran = { outputs: { name: string; dtype: DType; shape: number[] }[] } | { error: { node: string | null; message: string } };

/** A model on the CPU, which {@link load} returns. Runs execute one after another, in the order of the calls. */
export class CpuModel {
  readonly inputs: readonly PortInfo[];
  readonly outputs: readonly PortInfo[];
  readonly #host: Place;
  readonly #plan: Plan;
  #tail: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(host: Place, plan: Plan) {
    this.#host = host;
    this.#plan = plan;
    this.inputs = plan.inputs.map(portInfo);
    this.outputs = plan.outputs.map(portInfo);
  }

  /** Runs the model on tensors on the host, whose arrays must not change until the run is done. */
  run(inputs: Inputs, options: CpuRunOptions = {}): Promise<Record<string, Tensor<TypedArray>>> {
    const mine = this.#tail.then(() => this.#run(inputs, options));
    this.#tail = mine.catch(() => {});
    return mine;
  }

  async #run(inputs: Inputs, { outputs, symbols = {}, signal }: CpuRunOptions): Promise<Record<string, Tensor<TypedArray>>> {
    throwIfAborted(signal);
    const plan = this.#plan;
    const unknown = outputs?.find((name) => !plan.outputs.some((o) => o.name === name));
    if (unknown !== undefined)
      throw new WgfcError("shape", `the model has no output "${unknown}"; it has ${plan.outputs.map((o) => `"${o.name}"`).join(", ")}`);
    const given = new Map(Object.entries(inputs));
    checkInputs(plan, given);
    bind(plan, given, new Map(Object.entries(symbols)));
    // The constructor checks the data.
    const tensors = [...given].map(([name, t]) => ({ name, tensor: new Tensor(t.dtype, t.shape, t.data) }));
    const parts = tensors.map(({ name, tensor: { data } }) => {
      if (isBuffer(data)) throw new WgfcError("shape", `"${name}" is in a GPUBuffer, which the CPU does not read: call its \`read\` first`);
      return bytesOf(data);
    });
    const request = { inputs: tensors.map(({ name, tensor: { dtype, shape } }) => ({ name, dtype, shape })), symbols };
    const { json, data } = made(await this.#host.ask({ request: JSON.stringify(request), data: concat(parts) }));
    const ran = JSON.parse(json) as Ran;
    if ("error" in ran) throw new WgfcError("shape", ran.error.message, { node: ran.error.node ?? undefined });
    let at = 0;
    const results = ran.outputs.map(({ name, dtype, shape }) => {
      const bytes = packedBytes(dtype, elementsOf(shape));
      return [name, Tensor.fromBytes(dtype, shape, data.slice(at, (at += bytes)))] as const;
    });
    return Object.fromEntries(results.filter(([name]) => outputs?.includes(name) ?? true));
  }

  /** Frees the model's memory, and ends the runs that are not done. */
  dispose(): void {
    this.#host.end(new WgfcError("disposed", "the model was disposed of"));
  }
}
