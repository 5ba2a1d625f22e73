/**
 * Compilation of models in the page. The compiler is a WebAssembly module in a worker; both are loaded by the first model. A page whose
 * server compiles has no need of them.
 */

import { WgfcError } from "../errors.js";
import { aborted, throwIfAborted } from "../fail.js";
import { PACKED_PRODUCTS, lacksPackedProducts } from "../language.js";
import type { Files, ModelSource } from "../source.js";
import { type Key, type Made, placeOf } from "./kept.js";
import { originOf } from "./origin.js";
import { type DeviceLike, type DeviceProfile, infoOf, profileOf, profileOfLimits } from "./profile.js";
import { type ModelFiles, type Refusal, readModel, refused } from "./read.js";
import { inServer, serverOf } from "./server.js";
import { keptChoices, keptSpeeds, tableOf } from "./speeds.js";
import type { Job, Reply, WorkerFile } from "./worker.js";

export type { DeviceLike, DeviceProfile } from "./profile.js";

/** One of several plans over the same weights. */
export interface PlanOptions {
  /** The plan's name, which must be unique. */
  readonly name: string;
  /** Values of symbolic dimensions to fix in this plan. */
  readonly dims?: Readonly<Record<string, number>>;
  /** The device profile for this plan, instead of that of the request. */
  readonly profile?: DeviceProfile;
}

/** The inputs that a training step is given, with the shapes of their tensors, and its states: see `Trainer` of `wgfc/train`. */
export interface TrainingSettings {
  /** The inputs of which each step gets other rows. An extent that the model is to determine is `null`. */
  readonly data: Readonly<Record<string, readonly (number | null)[]>>;
  /** The inputs that are the same in each step. */
  readonly inputs?: Readonly<Record<string, readonly number[]>>;
  /** Pairs of an input and the output that is its value in the next step, besides those that are found by name or order. */
  readonly states?: readonly (readonly [input: string, output: string])[];
  readonly loss?: string;
}

/** Options of a compilation: the device, sizes and precision. */
export interface CompileSettings {
  /** Values of symbolic dimensions to fix. */
  readonly dims?: Readonly<Record<string, number>>;
  /** Expected values of the dimensions that stay symbolic, for which schedules are chosen. */
  readonly expect?: Readonly<Record<string, number>>;
  /**
   * `"f16"` stores f32 weights, caches and tensors between kernels as f16, and is an error without `shader-f16`. `"f32"` does not
   * use `shader-f16`. By default values have the model's types, and f16 models use `shader-f16` if it is available.
   */
  readonly precision?: "f16" | "f32";
  /** Nodes of the model whose values and weights stay f32 with the precision f16 or with `weights`. */
  readonly keepF32?: readonly string[];
  /** Quantizes the weights of matrix products to 8 or 4 bits, with one scale per block of 32. */
  readonly weights?: "q8" | "q4";
  /**
   * Lets products with quantized weights round the other operand to 8 bits, in groups of 32 with one scale, and multiply integers. A
   * browser whose WGSL lacks `packed_4x8_integer_dot_product` warns and leaves the option out.
   */
  readonly activations?: "q8";
  /** Disables fusion, so that every operator has its own kernel. */
  readonly unfused?: boolean;
  /**
   * Whether the model is a decoder that chooses tokens, as `wgfc/generate` needs it. Its plans are `decode` for a single token and
   * `prefill` for prompts.
   */
  readonly generate?: boolean;
  /** Compiles a training step, whose other inputs become states. */
  readonly training?: TrainingSettings;
  /** Tensors of the model to return as extra outputs. */
  readonly taps?: readonly string[];
  /** Tensors of the model to which a run may add: each gives the extra input `TENSOR.add`, of the tensor's shape or broadcast to it. */
  readonly added?: readonly string[];
  /**
   * Tensors of the model that a run may replace: each gives the extra inputs `TENSOR.replace`, likewise, and `TENSOR.where` (bool) where only
   * some elements are replaced. Inputs that are left out change nothing.
   */
  readonly replaced?: readonly string[];
  /** Schedules of kernels, in the format that `wgfc inspect --schedule --json` prints. */
  readonly schedules?: string;
  /** Whether to return {@link Compiled.schedules}, which makes the compilation take half as long again. */
  readonly listSchedules?: boolean;
  /**
   * Whether to validate every kernel with naga, which is a separate module. The browser validates kernels, too, when pipelines
   * are made.
   */
  readonly validate?: boolean;
}

export interface CompileProgress {
  /**
   * `"model"` is the model's download in bytes, with a total of 0 if it is not known. `"compile"` is the compilation, which goes
   * from 0 to 1.
   */
  readonly stage: "model" | "compile";
  readonly loaded: number;
  readonly total: number;
}

export interface CompileOptions extends CompileSettings {
  /** Several plans in order of preference. The default is one plan without a name. */
  readonly plans?: readonly PlanOptions[];
  /** The device or adapter to compile for. */
  readonly device?: DeviceLike;
  /** The device's limits and features by WebGPU's names, instead of `device`. The default is those that every WebGPU device has. */
  readonly limits?: Readonly<Record<string, number>>;
  readonly features?: Iterable<string>;
  /** A device profile in the format of `wgfc compile --profile`, instead of `device`. */
  readonly profile?: DeviceProfile;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: CompileProgress) => void;
  /** Whether to keep downloads and plans in the browser's Cache API (`true`), or the name of the cache. */
  readonly cache?: boolean | string;
}

/** A compiled model. */
export interface Compiled {
  /** The files for `load`: the plan, the kernels, and the model's own files, which hold the weights. */
  readonly source: Files;
  /** `plan.json`, parsed. */
  readonly plan: { readonly plans: readonly Readonly<Record<string, unknown>>[] } & Readonly<Record<string, unknown>>;
  /** The kernels' texts, by name. */
  readonly kernels: Readonly<Record<string, string>>;
  /** The number of bytes of the model's weights that the compiler read. */
  readonly read: number;
  /** The schedules of kernels, if they were requested, as JSON that can be edited and passed as `schedules`. */
  readonly schedules: string | undefined;
  /** For a GGUF file and `generate`, the texts of the files that would lie beside another model: tokenizer and configuration. */
  readonly beside: Readonly<Record<string, string>>;
  /** The duration of the compilation in milliseconds, without downloads. */
  readonly ms: number;
  /** Whether the plan came from the cache. */
  readonly cached: boolean;
}

/**
 * Compiles a model: an `.onnx` file with its external data, a `.gguf` file or an archive of torch.export (`.pt2`), given by address, as
 * a `File`, or as files by name. A model that is invalid or not supported rejects with a {@link WgfcError} of kind `model` or
 * `unsupported`, which has `diagnostics`.
 */
export async function compile(source: ModelSource, options: CompileOptions = {}): Promise<Compiled> {
  const { signal, onProgress, cache, validate = false } = options;
  const { job, model } = await jobOf(source, options);
  const versions = [...model.files.values()].map((f) => f.version);
  const own = model.whole ? [] : versions;
  // A plan is not cached if a file of the model has no known version, and as a server may be exchanged for another version.
  const key = [model.bytes, job.request, ...own, ...(validate ? ["validated"] : [])];
  const place = !serverOf() && own.every((v) => v !== undefined) ? await placeOf(key as Key, cache) : undefined;
  const before = await place?.get();
  onProgress?.({ stage: "compile", loaded: before ? 1 : 0, total: 1 });
  throwIfAborted(signal);
  const reply = before ?? (await ask(job, signal));
  const answer = parsed<Answer>(reply);
  if (!before) await place?.put(reply);
  onProgress?.({ stage: "compile", loaded: 1, total: 1 });
  return { ...compiled(answer, reply.data, model.files), ms: reply.ms, cached: before !== undefined };
}

/** A kernel with the schedules to be timed. */
export interface Trial {
  /** The key in a table of schedules. */
  readonly key: string;
  readonly title: string;
  /** The number of its dispatches in a run of the model. */
  readonly dispatches: number;
  /** The words of the uniform with the sizes. */
  readonly dims: readonly number[];
  /** The tensors that it reads and writes; of `cold` ones it reads other memory in each run of a model. */
  readonly buffers: readonly { readonly dtype: string; readonly bytes: number; readonly output: boolean; readonly cold: boolean }[];
  /** First the schedule that is chosen without measuring. */
  readonly candidates: readonly TrialCandidate[];
}

/** A schedule of a kernel, and its dispatches. Buffers of its own, which have the sizes `inside`, are numbered after the kernel's. */
export interface TrialCandidate {
  readonly schedule: string;
  readonly inside: readonly number[];
  readonly steps: readonly {
    readonly wgsl: string;
    readonly bindings: readonly (readonly [buffer: number, written: boolean])[];
    readonly uses_dims: boolean;
    readonly workgroups: readonly [number, number, number];
  }[];
}

/** The kernels of a model that `tune` of `wgfc/tune` measures, but those that are `known`, and the version of tables of schedules. */
export async function trials(
  source: ModelSource,
  options: CompileOptions,
  asked: { readonly most: number; readonly values: Readonly<Record<string, number>>; readonly known: readonly string[] },
): Promise<{ trials: Trial[]; version: number }> {
  const { job } = await jobOf(source, { ...options, validate: false }, { trials: asked });
  return parsed(await ask(job, options.signal));
}

/** The job of a compilation, in which `more` is asked, and the model's files. */
async function jobOf(source: ModelSource, options: CompileOptions, more: object = {}): Promise<{ job: Job; model: ModelFiles }> {
  throwIfAborted(options.signal);
  const request = await requestOf(options);
  const model = await readModel(originOf(source), options);
  throwIfAborted(options.signal);
  const named = [...model.files].map(([name, { bytes }]) => ({ name, bytes }));
  const files = [...model.files.values()].map((f): WorkerFile => (f.place instanceof URL ? f.place.href : f.place));
  const text = JSON.stringify({ ...request, ...more, files: named, begins: model.begins });
  return { job: { model: model.bytes, request: text, files, validate: options.validate ?? false }, model };
}

/** Has the server compile, or the worker. */
async function ask(job: Job, signal?: AbortSignal): Promise<Made> {
  const server = serverOf();
  const reply = await (server ? inServer(server, job, signal) : inWorker(job, signal));
  if ("json" in reply) return reply;
  throw new WgfcError(reply.kind, reply.message);
}

function parsed<T extends object>({ json }: Made): T {
  const answer = JSON.parse(json) as T | Refusal;
  if ("errors" in answer) throw refused(answer);
  return answer;
}

/** The compiler's answer. */
interface Answer {
  readonly plan: Compiled["plan"];
  readonly kernels: Record<string, string>;
  readonly read: number;
  readonly schedules?: string;
  readonly beside?: Record<string, string>;
}

async function requestOf(o: CompileOptions): Promise<object> {
  const info = o.profile || !o.device ? undefined : infoOf(o.device);
  const [measured, choices] = await Promise.all([keptSpeeds(info, o.cache), keptChoices(info, o.cache)]);
  const found = o.device ? { ...profileOf(o.device), ...(measured ? { speeds: measured } : {}) } : profileOfLimits(o.limits ?? {}, o.features ?? []);
  const profile = o.profile ?? found;
  if (o.precision === "f16" && !profile.limits?.["f16"])
    throw new WgfcError("feature", "the precision f16 needs a device with the feature shader-f16");
  const precise = (p: DeviceProfile): DeviceProfile => (o.precision === "f32" ? { ...p, limits: { ...p.limits, f16: false } } : p);
  const plans = o.plans?.map(({ name, dims, profile }) => ({ name, dims, profile: profile && precise(profile) }));
  const { dims, expect, unfused, taps, added, replaced, schedules, listSchedules: list_schedules, precision, keepF32: keep_f32, weights, generate, training } = o;
  const activations = o.activations && lacksPackedProducts() ? undefined : o.activations;
  if (o.activations && !activations)
    console.warn(`wgfc: this browser's WGSL lacks ${PACKED_PRODUCTS}: the model is compiled without activations of 8 bits`);
  // JSON omits undefined fields.
  return {
    profile: precise(profile), tuning: choices && tableOf(choices), dims, expect, unfused, taps, added, replaced, schedules, list_schedules, plans, precision, keep_f32, weights, activations, generate, training,
  };
}

function compiled(
  { plan, kernels, read, schedules, beside = {} }: Answer,
  data: Uint8Array<ArrayBuffer>,
  files: ModelFiles["files"],
): Omit<Compiled, "ms" | "cached"> {
  // Plans refer to files by encoded names, as in addresses.
  const weights = plan["weights"] as { files: { name: string }[] };
  const escape = (name: string) => name.split("/").map(encodeURIComponent).join("/");
  const named = { ...plan, weights: { ...weights, files: weights.files.map((f) => ({ ...f, name: escape(f.name) })) } };
  const texts = Object.entries(kernels).map(([name, text]) => [`kernels/${name}.wgsl`, text]);
  const places = [...files].map(([name, { place }]) => [escape(name), place]);
  const source = Object.fromEntries([...places, ...texts, ["plan.json", JSON.stringify(named)], ["", data]]) as Files;
  return { source, plan: named, kernels, read, schedules, beside };
}

/** An idle worker, kept for the next model. */
let idle: Worker | undefined;
let ending: ReturnType<typeof setTimeout> | undefined;
const IDLE_MS = 10_000;

async function inWorker(job: Job, signal?: AbortSignal): Promise<Reply> {
  const worker = idle ?? new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  idle = undefined;
  clearTimeout(ending);
  let end = () => {};
  try {
    const reply = await new Promise<Reply>((resolve, reject) => {
      const stop = () => reject(aborted(signal!));
      signal?.addEventListener("abort", stop);
      end = () => signal?.removeEventListener("abort", stop);
      worker.onmessage = ({ data }: MessageEvent<Reply>) => resolve(data);
      worker.onerror = (e) => reject(new WgfcError("network", `the compiler's worker cannot be loaded: ${e.message || "its file is not there, or is no module"}`));
      worker.postMessage(job, [job.model.buffer]);
    });
    if (!("json" in reply) || idle) worker.terminate();
    else {
      idle = worker;
      ending = setTimeout(() => {
        worker.terminate();
        if (idle === worker) idle = undefined;
      }, IDLE_MS);
    }
    return reply;
  } catch (e) {
    // Terminating the worker is the only way to stop the compilation.
    worker.terminate();
    throw e;
  } finally {
    end();
  }
}
