/**
 * Measures which schedules of a model's kernels are fastest on a device, as `wgfc tune` does, while the page is idle:
 *
 *     const { kernels } = await tune("model.onnx");         // kept, and used by every `load` and `compile` on this device from now on
 *
 * Each kernel that can be cut up in several ways is compiled with the schedules that the compiler estimates to be fastest, and timed. One that
 * is clearly faster than the compiler's choice replaces it. A schedule with other results is left out.
 */

import { absent, surroundings } from "./absent.js";
import { Clock } from "./clock.js";
import type { CompileOptions, DeviceLike, Trial, TrialCandidate } from "./compiler/index.js";
import { infoOf } from "./compiler/profile.js";
import { MATRICES, kindOf } from "./kind.js";
import { keepChoices, keptChoices, tableOf } from "./compiler/speeds.js";
import { Gpu } from "./device.js";
import { type DType, arrayOver, fromNumbers, toNumbers } from "./dtypes.js";
import { throwIfAborted } from "./fail.js";
import type { ModelSource } from "./source.js";
import { COMPUTE_STAGE, COPY_DST, COPY_SRC, MAP_FOR_READING, MAP_READ, STORAGE, UNIFORM } from "./usage.js";

export type { DeviceLike } from "./compiler/profile.js";

export interface TuneOptions extends CompileOptions {
  /** The device or adapter; the default is the page's. The model must be compiled for the same one. */
  readonly device?: DeviceLike;
  /** The milliseconds after which no further kernel is measured. The next call goes on with the rest. The default is 20,000. */
  readonly budget?: number;
  /** The number of schedules of a kernel that are timed, if it has that many; two of each form are timed in any case. The default is 6. */
  readonly most?: number;
  /** The values of symbolic dimensions during measurements. Missing ones are those of `expect`, else 64. */
  readonly values?: Readonly<Record<string, number>>;
  /** Whether to wait for the page to be idle before each kernel, which is the default. */
  readonly idle?: boolean;
  /** Called after each kernel. */
  readonly onKernel?: (progress: { readonly done: number; readonly total: number; readonly kernel: TunedKernel | undefined }) => void;
}

/** A schedule, as in the tables of `wgfc tune`, and the microseconds of a run. */
export interface TimedSchedule {
  readonly schedule: string;
  readonly microseconds: number;
}

export interface TunedKernel {
  /** A description of the computation. */
  readonly title: string;
  /** The number of its dispatches in a run of the model. */
  readonly dispatches: number;
  /** The compiler's choice. */
  readonly own: TimedSchedule;
  /** The fastest schedule: the compiler's choice if none is clearly faster. */
  readonly best: TimedSchedule;
}

export interface Tuned {
  readonly kernels: readonly TunedKernel[];
  /** The number of kernels that were not measured for lack of time or memory. */
  readonly left: number;
  /** A table of this device's schedules that are faster than the compiler's choices, as `wgfc` reads it; undefined if there are none. */
  readonly table: string | undefined;
}

/** A schedule replaces the compiler's choice if it takes at most this share of its time. */
const CLEARLY = 0.97;
/** A schedule that takes longer than the fastest by this factor is not timed again; in the first round by the second factor. */
const HOPELESS = 1.3;
const ABSURD = 8;
const ROUNDS = 3;
const FINAL_ROUNDS = 5;
/** The milliseconds of a timed pass, and the dispatches in it at most. */
const LONG = 4;
const MOST_RUNS = 400;
/** The bytes of tensors that a cache does not hold together, and all that a kernel's tensors may take. */
const BEYOND_CACHES = 128 << 20;
const MOST_BYTES = 1 << 30;
/** The largest difference of results of two schedules, as a share of the largest result: rows that are rounded to 8 bits differ so. */
const TOLERANCE = 2e-2;
/** The bytes of each result that are compared, and of random numbers that are repeated in inputs. */
const COMPARED = 1 << 18;
/** The limits with which kernels are compiled. */
const LIMITS = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ", "maxComputeWorkgroupsPerDimension",
] as const;
const FEATURES = ["timestamp-query", "shader-f16", "subgroups", MATRICES] as const;

/**
 * Measures the kernels of a model that were not measured yet on a device, and keeps the results. Rejects like `compile`, and with a
 * {@link WgfcError} of kind `no-webgpu` without WebGPU, and `device-lost` if the device is lost; what was measured until then is kept.
 */
export async function tune(source: ModelSource, options: TuneOptions = {}): Promise<Tuned> {
  const { budget = 20_000, most = 6, values = {}, idle = true, onKernel, signal, cache = true } = options;
  const begin = performance.now();
  const given = options.device && "queue" in options.device ? options.device : undefined;
  const on = options.device ?? (await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" }));
  if (!on) throw absent(surroundings());
  const info = infoOf(on);
  const kept = await keptChoices(info, cache);
  const { trials } = await import("./compiler/index.js");
  const asked = await trials(source, { ...options, device: on }, { most, values, known: Object.keys(kept?.choices ?? {}) });
  const gpu = new Gpu(given ?? (await deviceOf(on as GPUAdapter)), !given);
  const bench = new Bench(gpu.device, ["software", "swiftshader"].includes(kindOf(info) ?? ""), signal);
  const [kernels, choices, total]: [TunedKernel[], Record<string, string | null>, number] = [[], { ...kept?.choices }, asked.trials.length];
  let left = 0;
  try {
    for (const [done, trial] of asked.trials.entries()) {
      throwIfAborted(signal);
      if (idle) await idleTime();
      const kernel = performance.now() - begin < budget ? await gpu.watch(bench.measure(trial)) : undefined;
      if (kernel) {
        kernels.push(kernel);
        choices[trial.key] = kernel.best.schedule === kernel.own.schedule ? null : kernel.best.schedule;
      } else left++;
      onKernel?.({ done: done + 1, total, kernel });
    }
  } finally {
    bench.dispose();
    gpu.dispose();
    if (kernels.length && cache !== false) await keepChoices(info, { version: asked.version, choices }, cache);
  }
  return { kernels, left, table: tableOf({ version: asked.version, choices }) };
}

async function deviceOf(adapter: GPUAdapter): Promise<GPUDevice> {
  const requiredLimits = Object.fromEntries(LIMITS.map((l) => [l, adapter.limits[l]]));
  return adapter.requestDevice({ label: "wgfc tune", requiredFeatures: FEATURES.filter((f) => adapter.features.has(f)) as GPUFeatureName[], requiredLimits });
}

function idleTime(): Promise<void> {
  return new Promise((resolve) => {
    // Safari has no requestIdleCallback.
    if ("requestIdleCallback" in globalThis) requestIdleCallback(() => resolve(), { timeout: 1000 });
    else setTimeout(resolve, 0);
  });
}

/** A candidate that is ready to run. */
interface Runner {
  readonly schedule: string;
  /** Records a run, with the tensors of the set of this number. */
  readonly record: (pass: GPUComputePassEncoder, set: number) => void;
  times: number[];
}

class Bench {
  readonly #device: GPUDevice;
  readonly #software: boolean;
  readonly #clock: Clock;
  #warm = false;

  constructor(device: GPUDevice, software: boolean, signal: AbortSignal | undefined) {
    [this.#device, this.#software, this.#clock] = [device, software, new Clock(device, signal)];
  }

  dispose(): void {
    this.#clock.dispose();
  }

  /** Measures a kernel; undefined if the device has no room for its tensors, or refuses it. */
  async measure(trial: Trial): Promise<TunedKernel | undefined> {
    const tensors = await Tensors.make(this.#device, trial);
    if (!tensors) return undefined;
    try {
      const runners = await this.#runners(trial, tensors);
      const [own] = runners;
      if (!own) return undefined;
      const best = await this.#fastest(runners, own);
      const timed = (r: Runner): TimedSchedule => ({ schedule: r.schedule, microseconds: this.#seconds(r) * 1e6 });
      return { title: trial.title, dispatches: trial.dispatches, own: timed(own), best: timed(best) };
    } finally {
      tensors.dispose();
    }
  }

  /** The candidates that run and have the results of the first; none if the first does not run. */
  async #runners(trial: Trial, tensors: Tensors): Promise<Runner[]> {
    const texts = new Set<string>();
    const runners: Runner[] = [];
    let expected: Float64Array[] | undefined;
    for (const candidate of trial.candidates) {
      const text = JSON.stringify(candidate.steps);
      if (texts.has(text)) continue;
      texts.add(text);
      const runner = await runnerOf(this.#device, candidate, tensors);
      if (!runner && !expected) return [];
      if (!runner) continue;
      await this.#clock.time((pass) => runner.record(pass, 0));
      const results = await tensors.results();
      expected ??= results;
      if (results.every((r, i) => alike(r, expected![i]!))) runners.push(runner);
    }
    return runners;
  }

  /** The fastest runner, or the first one if none is clearly faster. */
  async #fastest(runners: Runner[], own: Runner): Promise<Runner> {
    const several = (runner: Runner, runs: number) => (pass: GPUComputePassEncoder) => {
      for (let i = 0; i < runs; i++) runner.record(pass, i);
    };
    const once = (await this.#clock.time(several(own, 2))) / 2;
    const runs = Math.round(Math.min(Math.max(LONG / 1000 / Math.max(once, 1e-7), 2), MOST_RUNS));
    if (!this.#warm && !this.#software) await this.#clock.warmUp(several(own, runs));
    this.#warm = true;
    const time = async (r: Runner) => void r.times.push((await this.#clock.time(several(r, runs))) / runs);
    const least = (r: Runner) => Math.min(...r.times);
    let left = runners;
    for (let round = 0; round < ROUNDS; round++) {
      for (const r of left) await time(r);
      const best = Math.min(...left.map(least));
      left = left.filter((r) => r === own || least(r) <= best * (round ? HOPELESS : ABSURD));
    }
    const [fastest] = [...left].sort((a, b) => this.#seconds(a) - this.#seconds(b));
    if (!fastest || fastest === own) return own;
    // Both are timed again, as the least of many noisy times is biased.
    for (const r of [own, fastest]) r.times = [];
    for (let round = 0; round < FINAL_ROUNDS; round++) for (const r of [own, fastest]) await time(r);
    return this.#seconds(fastest) <= CLEARLY * this.#seconds(own) ? fastest : own;
  }

  /** The time of a run: the median; of software, which shares the processor with others, the shortest. */
  #seconds({ times }: Runner): number {
    return [...times].sort((a, b) => a - b)[this.#software ? 0 : times.length >> 1] ?? Infinity;
  }
}

/** Makes a candidate's pipelines and bind groups; undefined if the device refuses them. */
async function runnerOf(device: GPUDevice, { schedule, inside, steps }: TrialCandidate, tensors: Tensors): Promise<Runner | undefined> {
  const own = inside.map((bytes) => tensors.own(bytes));
  device.pushErrorScope("validation");
  const made = steps.map(async ({ wgsl, bindings, uses_dims, workgroups }) => {
    const buffer = (type: GPUBufferBindingType, binding: number) => ({ binding, visibility: COMPUTE_STAGE, buffer: { type } });
    const entries = bindings.map(([, written], i) => buffer(written ? "storage" : "read-only-storage", i));
    if (uses_dims) entries.push(buffer("uniform", bindings.length));
    const bindGroupLayout = device.createBindGroupLayout({ entries });
    const layout = device.createPipelineLayout({ bindGroupLayouts: [bindGroupLayout] });
    const groups = tensors.sets.map((set) => {
      const all = [...bindings.map(([n]) => set[n] ?? own[n - set.length]!), ...(uses_dims ? [tensors.dims] : [])];
      return device.createBindGroup({ layout: bindGroupLayout, entries: all.map((buffer, binding) => ({ binding, resource: { buffer } })) });
    });
    const module = device.createShaderModule({ code: wgsl });
    return { pipeline: await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: "main" } }), groups, workgroups };
  });
  const [pipelines, error] = await Promise.all([Promise.all(made).catch(() => undefined), device.popErrorScope()]);
  if (!pipelines || error) return undefined;
  const record = (pass: GPUComputePassEncoder, set: number) => {
    for (const { pipeline, groups, workgroups: [x, y, z] } of pipelines) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, groups[set % groups.length]!);
      pass.dispatchWorkgroups(x, y, z);
    }
  };
  return { schedule, record, times: [] };
}

/** The tensors of a kernel. */
class Tensors {
  /** The buffers by number, several times where caches would hold those that are usually in none. */
  readonly sets: readonly (readonly GPUBuffer[])[];
  readonly dims: GPUBuffer;
  readonly #device: GPUDevice;
  readonly #trial: Trial;
  readonly #all: GPUBuffer[] = [];

  private constructor(device: GPUDevice, trial: Trial, copies: number) {
    [this.#device, this.#trial] = [device, trial];
    const fill = (buffer: Trial["buffers"][number]) => {
      const made = this.own(buffer.bytes);
      if (!buffer.output) this.#fill(made, buffer.dtype as DType);
      return made;
    };
    const first = trial.buffers.map(fill);
    const others = Array.from({ length: copies - 1 }, () => trial.buffers.map((b, i) => (b.cold ? fill(b) : first[i]!)));
    this.sets = [first, ...others];
    const words = Int32Array.from(trial.dims);
    this.dims = this.#keep({ size: padded(words.byteLength), usage: UNIFORM | COPY_DST });
    device.queue.writeBuffer(this.dims, 0, words);
  }

  /** Makes the tensors of a kernel; undefined if they are too large for the device. */
  static async make(device: GPUDevice, trial: Trial): Promise<Tensors | undefined> {
    const sum = (of: readonly { bytes: number }[]) => of.reduce((n, { bytes }) => n + bytes, 0);
    const { maxBufferSize, maxStorageBufferBindingSize } = device.limits;
    const [bytes, cold] = [sum(trial.buffers), sum(trial.buffers.filter((b) => b.cold))];
    const most = Math.min(maxBufferSize, maxStorageBufferBindingSize);
    if (bytes > MOST_BYTES || trial.buffers.some((b) => padded(b.bytes) > most)) return undefined;
    device.pushErrorScope("out-of-memory");
    const tensors = new Tensors(device, trial, cold ? Math.min(Math.max(1, Math.ceil(BEYOND_CACHES / cold)), 16) : 1);
    if (!(await device.popErrorScope())) return tensors;
    tensors.dispose();
    return undefined;
  }

  /** A buffer that is destroyed with the tensors. */
  own(bytes: number): GPUBuffer {
    return this.#keep({ size: padded(bytes), usage: STORAGE | COPY_SRC | COPY_DST });
  }

  dispose(): void {
    for (const buffer of this.#all) buffer.destroy();
  }

  /** The first elements of what the kernel writes. */
  async results(): Promise<Float64Array[]> {
    const written = this.#trial.buffers.flatMap((b, i) => (b.output ? [{ ...b, from: this.sets[0]![i]! }] : []));
    const encoder = this.#device.createCommandEncoder();
    const read = written.map(({ bytes, dtype, from }) => {
      const size = Math.min(from.size, COMPARED);
      const into = this.#device.createBuffer({ size, usage: MAP_READ | COPY_DST });
      encoder.copyBufferToBuffer(from, 0, into, 0, size);
      return { into, dtype: dtype as DType, bytes: Math.min(bytes, size) };
    });
    this.#device.queue.submit([encoder.finish()]);
    return Promise.all(read.map(async ({ into, dtype, bytes }) => {
      await into.mapAsync(MAP_FOR_READING);
      const data = arrayOver(dtype, new Uint8Array(into.getMappedRange().slice(0, bytes)));
      into.destroy();
      return toNumbers(dtype, data, data.length);
    }));
  }

  #keep(of: GPUBufferDescriptor): GPUBuffer {
    const made = this.#device.createBuffer({ label: "wgfc tune", ...of });
    this.#all.push(made);
    return made;
  }

  /** Fills a buffer with random numbers; with zeros where numbers may be positions in another tensor. */
  #fill(buffer: GPUBuffer, dtype: DType): void {
    const length = Math.min(buffer.size, COMPARED);
    const bytes = new Uint8Array(length);
    if (["f32", "f16", "bf16"].includes(dtype)) {
      const width = dtype === "f32" ? 4 : 2;
      const data = fromNumbers(dtype, Float64Array.from({ length: length / width }, () => 2 * Math.random() - 1));
      bytes.set(new Uint8Array(data.buffer, 0, length));
    } else if (/^[ui](8|4|2)$|^f[48]/.test(dtype)) for (let i = 0; i < length; i++) bytes[i] = (Math.random() * 120) | 0;
    else return;
    const pattern = this.own(length);
    this.#device.queue.writeBuffer(pattern, 0, bytes);
    const encoder = this.#device.createCommandEncoder();
    for (let at = 0; at < buffer.size; at += length) encoder.copyBufferToBuffer(pattern, 0, buffer, at, Math.min(length, buffer.size - at));
    this.#device.queue.submit([encoder.finish()]);
  }
}

/** A size that bindings of vectors of four words may have. */
const padded = (bytes: number) => Math.max(16, Math.ceil(bytes / 16) * 16);

/** Whether two results are equal but for rounding. */
export function alike(a: Float64Array, b: Float64Array): boolean {
  const most = b.reduce((m, x) => (Number.isFinite(x) ? Math.max(m, Math.abs(x)) : m), 0);
  return a.every((x, i) => Object.is(x, b[i]) || !Number.isFinite(b[i]) || Math.abs(x - b[i]!) <= TOLERANCE * most);
}
