/**
 * The speeds of a device, by which the compiler chooses: what `wgfc device --measure` measures, in a page and in at most three seconds.
 *
 *     const profile = await measure();                      // kept, and used by every `load` and `compile` on this device from now on
 *     download(JSON.stringify(profile));                    // for `wgfc compile --profile FILE`
 *
 * Each kernel repeats an operation. The time of one repetition is the slope through the times of a quarter, half and all of the repetitions,
 * which cancels what a submission takes. Times are those of the device's timestamps where it has them and they can be trusted, else those of
 * the page's clock.
 */

import { absent, surroundings } from "./absent.js";
import { Clock } from "./clock.js";
import { type DeviceLike, type DeviceProfile, profileOf, speedsOf } from "./compiler/profile.js";
import { MATRICES, kindOf, multipliesMatrices } from "./kind.js";
import { keepSpeeds } from "./compiler/speeds.js";
import { WgfcError } from "./errors.js";
import { COMPUTE_STAGE, COPY_DST, COPY_SRC, STORAGE } from "./usage.js";
import arithmetic from "../../runtime/src/measuring/kernels/arithmetic.wgsl";
import barrier from "../../runtime/src/measuring/kernels/barrier.wgsl";
import cached from "../../runtime/src/measuring/kernels/cached.wgsl";
import chain from "../../runtime/src/measuring/kernels/chain.wgsl";
import chase from "../../runtime/src/measuring/kernels/chase.wgsl";
import copy from "../../runtime/src/measuring/kernels/copy.wgsl";
import fill from "../../runtime/src/measuring/kernels/fill.wgsl";
import increment from "../../runtime/src/measuring/kernels/increment.wgsl";
import matrices from "./matrices.wgsl";

export type { DeviceLike, DeviceProfile } from "./compiler/profile.js";

export interface MeasureOptions {
  /** Whether later compilations on this device use the speeds (`true`), or the name of the cache that keeps them (`"wgfc"`). */
  readonly cache?: boolean | string;
  readonly onProgress?: (progress: { readonly stage: string; readonly done: number; readonly total: number }) => void;
  readonly signal?: AbortSignal;
}

/** The largest number of turns of a loop, which is below every driver's limit. */
const MOST = 1 << 15;
/** The largest number of dispatches that are timed together. */
const MOST_DISPATCHES = 16;
/** The milliseconds that the timed turns take, if so many turns and dispatches suffice. */
const LONG = 4;
const ROUNDS = 4;
/** The milliseconds after which no more rounds of a loop are timed. */
const ENOUGH = 150;
/** The largest ratio of two rates that count as one. */
const STRAIGHT = 1.1;
/** The average time of a loop's operation as a share of the latency of a multiply-add, as in `src/speeds.rs`. */
const WAITING = 0.65;
/** Floating-point operations of an invocation of `arithmetic.wgsl` in a turn. */
const OPERATIONS = 64;
/** Floating-point operations of a subgroup of `matrices.wgsl` in a turn: eight products of 16 × 16 matrices. */
const MATRIX_OPERATIONS = 8 * 2 * 16 ** 3;
/** The stages, for progress. */
const STAGES = ["warming up", "latencies", "arithmetic", "cores", "caches", "memory", "dispatches"];

/**
 * Measures a device, that of an adapter, or that of the page's. Nothing else should run on it meanwhile. Rejects with a {@link WgfcError} of
 * kind `no-webgpu` without WebGPU, and `device-lost` or `validation` if the device fails.
 */
export async function measure(on?: DeviceLike, options: MeasureOptions = {}): Promise<DeviceProfile> {
  const { cache = true, signal } = options;
  const given = on && "queue" in on ? on : undefined;
  const adapter = given ? undefined : ((on as GPUAdapter | undefined) ?? (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" })));
  if (!given && !adapter) throw absent(surroundings());
  const wanted = ["timestamp-query", "shader-f16", "subgroups", MATRICES].filter((f) => adapter?.features.has(f)) as GPUFeatureName[];
  const device = given ?? (await adapter!.requestDevice({ requiredFeatures: wanted }));
  const info = given ? given.adapterInfo : adapter!.info;
  device.pushErrorScope("out-of-memory");
  device.pushErrorScope("validation");
  const bench = new Bench(device, info, signal);
  try {
    const speeds = await bench.speeds((stage) => options.onProgress?.({ stage: STAGES[stage]!, done: stage, total: STAGES.length }));
    const profile = { ...profileOf(given ?? adapter!), device: nameOf(info), speeds: { ...speedsOf(info), ...speeds } };
    if (cache !== false) await keepSpeeds(info, profile.speeds, cache);
    return profile;
  } finally {
    const errors = await Promise.all([0, 1].map(() => device.popErrorScope().catch(() => null)));
    bench.dispose();
    if (!given) device.destroy();
    const error = errors.find((e) => e);
    if (error) throw new WgfcError("validation", `measuring: ${error.message}`);
  }
}

function nameOf(info: GPUAdapterInfo): string {
  return [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(" ");
}

/** A kernel with its buffers. */
interface Loop {
  readonly pipeline: GPUComputePipeline;
  readonly group: GPUBindGroup;
}

/** Dispatches of a loop's kernel in a pass. */
const recorded = ({ pipeline, group }: Loop, workgroups: number, dispatches: number) => (pass: GPUComputePassEncoder) => {
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  for (let i = 0; i < dispatches; i++) pass.dispatchWorkgroups(workgroups);
};

class Bench {
  readonly #device: GPUDevice;
  readonly #info: GPUAdapterInfo;
  readonly #software: boolean;
  readonly #own: { destroy(): void }[] = [];
  readonly #turns: GPUBuffer;
  readonly #clock: Clock;

  constructor(device: GPUDevice, info: GPUAdapterInfo, signal: AbortSignal | undefined) {
    [this.#device, this.#info, this.#software] = [device, info, ["software", "swiftshader"].includes(kindOf(info) ?? "")];
    this.#turns = this.#buffer(256);
    this.#clock = new Clock(device, signal);
  }

  dispose(): void {
    for (const one of this.#own) one.destroy();
    this.#clock.dispose();
  }

  async speeds(stage: (number: number) => void): Promise<Record<string, number>> {
    const { limits, features } = this.#device;
    stage(0);
    const [one, half] = ["f32", "f16"].map((type) => arithmetic.replaceAll("T(", `${type}(`)) as [string, string];
    const texts = [chain, one, barrier, fill, chase, cached, copy, increment, ...(features.has("shader-f16") ? [`enable f16;\n${half}`] : [])];
    const units = ["shader-f16", "subgroups", MATRICES].every((f) => features.has(f)) && multipliesMatrices(this.#info);
    if (units) texts.push(matrices);
    const pipelines = await Promise.all(texts.map((code) => this.#pipeline(code)));
    const [chainP, arithmeticP, barrierP, fillP, chaseP, cachedP, copyP, incrementP, halfP, matricesP] = pipelines;
    const software = this.#software;
    const largest = Math.min(limits.maxStorageBufferBindingSize, limits.maxBufferSize);
    const power = (bytes: number) => 2 ** Math.floor(Math.log2(Math.min(bytes, largest)));
    const [out, place, near, small] = [256, 256, 4096, 1 << 20].map((bytes) => this.#buffer(bytes)) as [GPUBuffer, GPUBuffer, GPUBuffer, GPUBuffer];
    const far = this.#buffer(power(software ? 8 << 20 : 128 << 20));
    const bind = (pipeline: GPUComputePipeline | undefined, ...buffers: GPUBuffer[]) => this.#bind(pipeline!, [this.#turns, ...buffers]);
    for (const buffer of [far, near]) {
      const elements = buffer.size / 4;
      // An odd step of a little over 16 KiB through a power of two of elements visits them all.
      this.#set(1, 1, elements, (4127 % elements) | 1);
      await this.#clock.time(recorded(bind(fillP, buffer), software ? 8 : 1024, 1));
    }
    this.#set(1, 1, 0xffffffff, 0);
    const arithmeticLoop = bind(arithmeticP, out);
    const many = software ? 64 : 4096;
    await this.#warmUp(arithmeticLoop, many);

    stage(1);
    const operation = (await this.#turn(bind(chainP, out), 1)) / 8;
    const barrierS = await this.#turn(bind(barrierP, out), 1);
    const latency = await this.#turn(bind(chaseP, far, place), 1);

    stage(2);
    const [alone, together] = [await this.#turn(arithmeticLoop, 1), await this.#turn(arithmeticLoop, many)];
    const operations = many * 256 * OPERATIONS;
    const flops = operations / together;
    const flops16 = halfP ? operations / (await this.#turn(bind(halfP, out), many)) : flops;
    const subgroups = many * (256 / (this.#info.subgroupMinSize ?? 256));
    const flopsMatrix = matricesP ? (subgroups * MATRIX_OPERATIONS) / (await this.#turn(bind(matricesP, out), many)) : flops16;

    stage(3);
    const cores = Math.max(1, (many * alone) / together);
    // The chase through the large buffer has ended outside of this one.
    this.#set(1, 1, 0, 0);
    const resident = 64 * (await this.#asFastAsOne(bind(chaseP, near, place), software ? 256 : 1 << 14));

    stage(4);
    const cachedLoop = bind(cachedP, small, out);
    const wide = software ? 16 : 2048;
    const workgroupBandwidth = 65536 / (await this.#turn(cachedLoop, 1));
    const cacheBandwidth = (wide * 65536) / (await this.#turn(cachedLoop, wide));

    stage(5);
    const bandwidth = await this.#copies(copyP!, Math.min(largest, software ? 16 << 20 : 128 << 20));

    stage(6);
    const dispatchCost = await this.#dispatches(this.#bind(incrementP!, [this.#buffer(1024)]));
    // A core does 256 operations in a cycle, as in `Speeds::cycle`.
    const cycle = (cores * 256) / flops;
    const all = {
      bandwidth, flops_f32: flops, flops_f16: flops16, flops_matrix: flopsMatrix, dispatch_cost: dispatchCost, cores, resident,
      memory_latency: latency / cycle, operation: WAITING * operation, barrier: barrierS, workgroup_bandwidth: workgroupBandwidth,
      cache_bandwidth: Math.max(cacheBandwidth, workgroupBandwidth, bandwidth),
    };
    return Object.fromEntries(Object.entries(all).map(([name, n]) => [name, Number(Math.min(Math.max(n, 1e-12), 1e18).toPrecision(4))]));
  }

  #buffer(size: number): GPUBuffer {
    const made = this.#device.createBuffer({ label: "measuring", size, usage: STORAGE | COPY_SRC | COPY_DST });
    this.#own.push(made);
    return made;
  }

  async #pipeline(code: string): Promise<GPUComputePipeline> {
    const types = [...code.matchAll(/var<storage, (read|read_write)>/g)].map((m): GPUBufferBindingType => (m[1] === "read" ? "read-only-storage" : "storage"));
    const entries = types.map((type, binding) => ({ binding, visibility: COMPUTE_STAGE, buffer: { type } }));
    const layout = this.#device.createPipelineLayout({ bindGroupLayouts: [this.#device.createBindGroupLayout({ entries })] });
    return this.#device.createComputePipelineAsync({ layout, compute: { module: this.#device.createShaderModule({ code }), entryPoint: "main" } });
  }

  #bind(pipeline: GPUComputePipeline, buffers: readonly GPUBuffer[]): Loop {
    const entries = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
    return { pipeline, group: this.#device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }) };
  }

  #set(...words: number[]): void {
    this.#device.queue.writeBuffer(this.#turns, 0, Uint32Array.from(words));
  }

  #both(loop: Loop, workgroups: number, dispatches: number): Promise<[wall: number, device: number]> {
    return this.#clock.both(recorded(loop, workgroups, dispatches));
  }

  async #once(loop: Loop, n: number, workgroups: number, dispatches: number): Promise<number> {
    this.#set(n);
    return this.#clock.time(recorded(loop, workgroups, dispatches));
  }

  async #warmUp(loop: Loop, workgroups: number): Promise<void> {
    const [n] = await this.#enough(loop, workgroups);
    this.#set(n);
    await this.#clock.warmUp(recorded(loop, workgroups, 1));
  }

  /** The numbers of turns and of dispatches that take long enough. */
  async #enough(loop: Loop, workgroups: number): Promise<[turns: number, dispatches: number]> {
    for (let n = 16; ; n *= 4) {
      let least = Infinity;
      for (let i = 0; i < 2; i++) least = Math.min(least, await this.#once(loop, n, workgroups, 1));
      if (least >= LONG / 1000) return [n, 1];
      if (n < MOST / 2) continue;
      return [n, Math.min(MOST_DISPATCHES, Math.ceil(LONG / 1000 / least))];
    }
  }

  /** The seconds of one turn. */
  async #turn(loop: Loop, workgroups: number): Promise<number> {
    const begin = performance.now();
    const [n, dispatches] = await this.#enough(loop, workgroups);
    const counts = [n / 4, n / 2, n].map((turns) => turns * dispatches) as [number, number, number];
    const least: [number, number, number] = [Infinity, Infinity, Infinity];
    for (let round = 0; ; round++) {
      for (const i of [0, 1, 2] as const) least[i] = Math.min(least[i], await this.#once(loop, counts[i] / dispatches, workgroups, dispatches));
      const { each, straight } = slope(counts, least);
      const late = performance.now() - begin > ENOUGH;
      if ((round >= ROUNDS - 1 && straight) || round >= 4 * ROUNDS || late) return each;
    }
  }

  /** The largest number of workgroups, up to `most`, that take less than 1.5 times as long as one. */
  async #asFastAsOne(loop: Loop, most: number): Promise<number> {
    const [n, dispatches] = await this.#enough(loop, 1);
    const fast = async (workgroups: number) => {
      let [one, several] = [Infinity, Infinity];
      for (let i = 0; i < 3; i++) {
        one = Math.min(one, await this.#once(loop, n, 1, dispatches));
        several = Math.min(several, await this.#once(loop, n, workgroups, dispatches));
      }
      return several < 1.5 * one;
    };
    let low = 1;
    while (low < most && (await fast(low * 2))) low *= 2;
    if (low >= most) return low;
    for (let high = low * 2; high - low > Math.max(1, low / 8); ) {
      const middle = low + Math.floor((high - low) / 2);
      if (await fast(middle)) low = middle;
      else high = middle;
    }
    return low;
  }

  /** Bytes read and written in a second by a streaming copy. */
  async #copies(pipeline: GPUComputePipeline, bytes: number): Promise<number> {
    const loop = this.#bind(pipeline, [this.#buffer(bytes), this.#buffer(bytes)]);
    const most = this.#device.limits.maxComputeWorkgroupsPerDimension;
    const workgroups = Math.min(most, Math.ceil(bytes / 16 / (this.#software ? 256 * 64 : 256 * 8)));
    const time = async (copies: number) => {
      let least = Infinity;
      for (let i = 0; i < ROUNDS; i++) least = Math.min(least, await this.#clock.time(recorded(loop, workgroups, copies)));
      return least;
    };
    const one = await time(1);
    const copies = Math.max(2, Math.min(32, Math.ceil(LONG / 1000 / one)));
    const more = await time(copies);
    return (2 * bytes * copies) / (more > one ? ((more - one) * copies) / (copies - 1) : more);
  }

  /** The seconds of a tiny dispatch of many in one pass, each of which depends on the one before. */
  async #dispatches(loop: Loop): Promise<number> {
    const counts = [100, 200, 400] as const;
    const least: [number, number, number] = [Infinity, Infinity, Infinity];
    // By the page's clock, as what the browser does counts, too.
    for (let round = 0; round < 8; round++)
      for (const i of [0, 1, 2] as const) least[i] = Math.min(least[i], (await this.#both(loop, 4, counts[i]))[0]);
    return slope(counts, least).each;
  }
}

/** The time of one repetition by the times of three numbers of them, and whether it is the same between each two. */
export function slope(counts: readonly [number, number, number], times: readonly [number, number, number]): { each: number; straight: boolean } {
  const rate = (a: 0 | 1, b: 1 | 2) => (times[b] - times[a]) / (counts[b] - counts[a]);
  const [lower, upper, each] = [rate(0, 1), rate(1, 2), rate(0, 2)];
  if (!(each > 0)) return { each: times[2] / counts[2], straight: false };
  return { each, straight: lower > 0 && upper > 0 && Math.max(lower, upper) <= STRAIGHT * Math.min(lower, upper) };
}
