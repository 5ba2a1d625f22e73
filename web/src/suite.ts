/**
 * Measures a device as `wgfc bench suite` does, for `wgfc bench report NATIVE.json PAGE.json`: the speeds, what a dispatch costs, and what the caller adds.
 *
 *     const record = await suite({ onProgress: ({ task }) => console.log(task) });
 *     const file = new Blob([JSON.stringify(record)]);
 */

import { WgfcError } from "./errors.js";
import { kindOf } from "./kind.js";
import { measure } from "./measure.js";
import { soon } from "./soon.js";

/** Samples of a quantity, or the reason why there are none. Its name begins with that of its group: `dispatch/sequential/wall`. */
export interface Reading {
  readonly id: string;
  /** Seconds, bytes, floating-point operations or something per second, or a number. */
  readonly unit: "s" | "B/s" | "FLOP/s" | "1/s" | "1";
  readonly better: "less" | "more";
  readonly samples?: readonly number[];
  readonly missing?: string;
}

/** A part of the suite. Where it throws, its message becomes a row. */
export interface SuiteTask {
  readonly name: string;
  run(signal?: AbortSignal): Promise<readonly Reading[]>;
}

export interface SuiteOptions {
  /** The adapter; without it that of high performance. */
  readonly adapter?: GPUAdapter;
  /** What is measured beside the device's speeds and dispatches. */
  readonly tasks?: readonly SuiteTask[];
  /** Only tasks with one of these in their names. */
  readonly only?: readonly string[];
  /** How often each task runs: 2. */
  readonly passes?: number;
  /** The runs of each way of dispatching: 40. */
  readonly iterations?: number;
  /** What runs WebGPU, as records name it. */
  readonly implementation?: string;
  readonly signal?: AbortSignal;
  onProgress?(progress: { readonly task: string; readonly done: number; readonly total: number }): void;
}

/** A row of a record: the samples of each pass, or the reason why there are none. */
export interface SuiteRow {
  readonly id: string;
  readonly unit: Reading["unit"];
  readonly better: Reading["better"];
  readonly passes?: readonly (readonly number[])[];
  readonly missing?: string;
}

/** A record in the form of `docs/suite.schema.json`. */
export interface SuiteRecord {
  readonly version: 1;
  readonly producer: string;
  readonly began: number;
  readonly quick: boolean;
  readonly device: { readonly name: string; readonly kind: string; readonly driver: string; readonly backend: string; readonly implementation: string; readonly features: readonly string[]; readonly limits: Readonly<Record<string, number>> };
  readonly host: { readonly os: string; readonly architecture: string; readonly processor: string; readonly threads: number };
  readonly tasks: readonly { readonly name: string; readonly pass: number; readonly seconds: number }[];
  readonly rows: readonly SuiteRow[];
}

/** Limits that records have. */
const LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupsPerDimension"] as const;

/**
 * Measures a device. Nothing else should run on it meanwhile. Rejects with a {@link WgfcError} of kind `no-webgpu` without WebGPU, and with the signal's
 * reason once it is aborted.
 */
export async function suite(options: SuiteOptions = {}): Promise<SuiteRecord> {
  const { passes = 2, iterations = 40, signal, onProgress } = options;
  const adapter = options.adapter ?? (await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" }));
  if (!adapter) throw new WgfcError("no-webgpu", "there is no WebGPU here, or it finds no adapter: there is nothing to measure");
  // An adapter gives one device, and each task takes its own.
  const fresh = async () => (await navigator.gpu.requestAdapter({ powerPreference: "high-performance" })) ?? adapter;
  const own: readonly SuiteTask[] = [
    { name: "device", run: async () => speeds(options.adapter ?? (await fresh()), signal) },
    { name: "dispatch", run: async () => dispatch(options.adapter ?? (await fresh()), iterations) },
  ];
  const all = [...own, ...(options.tasks ?? [])].filter(({ name }) => options.only?.some((word) => name.includes(word)) ?? true);
  const [began, total] = [Math.floor(Date.now() / 1000), passes * all.length];
  const [read, tasks]: [Reading[][], { name: string; pass: number; seconds: number }[]] = [[], []];
  for (let pass = 0; pass < passes; pass++)
    for (const { name, run } of all) {
      signal?.throwIfAborted();
      onProgress?.({ task: name, done: tasks.length, total });
      const start = performance.now();
      const missing = (e: unknown): Reading[] => [{ id: name, unit: "s", better: "less", missing: String(e instanceof Error ? e.message : e).split("\n")[0]! }];
      read.push([...(await run(signal).catch(missing))]);
      signal?.throwIfAborted();
      tasks.push({ name, pass, seconds: (performance.now() - start) / 1000 });
    }
  const { vendor, architecture, device, description } = adapter.info;
  const kind = kindOf(adapter.info);
  const page: { userAgent?: string; hardwareConcurrency?: number; userAgentData?: { platform?: string } } = globalThis.navigator ?? {};
  return {
    version: 1, producer: "wgfc/suite", began, quick: false,
    device: {
      name: [vendor, architecture, device].filter(Boolean).join(" ") || "GPU", kind: kind === "swiftshader" ? "software" : (kind ?? "other"), driver: description,
      backend: "WebGPU", implementation: options.implementation ?? page.userAgent ?? "", features: [...adapter.features].sort(),
      limits: Object.fromEntries(LIMITS.map((l) => [l, adapter.limits[l]])),
    },
    host: { os: page.userAgentData?.platform ?? "", architecture: "", processor: "", threads: page.hardwareConcurrency ?? 1 },
    tasks, rows: rowsOf(read),
  };
}

/** The rows of readings of one or several passes. */
export function rowsOf(passes: readonly (readonly Reading[])[]): SuiteRow[] {
  const rows = new Map<string, { id: string; unit: Reading["unit"]; better: Reading["better"]; passes: (readonly number[])[]; missing?: string | undefined }>();
  for (const { id, unit, better, samples, missing } of passes.flat()) {
    const row = rows.get(id) ?? { id, unit, better, passes: [], missing };
    if (samples?.length) row.passes.push(samples);
    rows.set(id, row);
  }
  return [...rows.values()].map(({ passes, missing, ...row }) => (passes.length ? { ...row, passes } : { ...row, missing: missing ?? "it gave no samples" }));
}

/** The median of samples; 0 if there are none. */
export function median(samples: readonly number[]): number {
  const sorted = [...samples].sort((a, b) => a - b);
  const [low, high] = [sorted[(sorted.length - 1) >> 1] ?? 0, sorted[sorted.length >> 1] ?? 0];
  return (low + high) / 2;
}

async function speeds(adapter: GPUAdapter, signal: AbortSignal | undefined): Promise<Reading[]> {
  const { speeds } = await measure(adapter, { cache: false, ...(signal ? { signal } : {}) });
  const of = (part: string, unit: Reading["unit"], better: Reading["better"], n: number | undefined): Reading => {
    const row = { id: `device/${part}`, unit, better };
    return n === undefined ? { ...row, missing: "it was not measured" } : { ...row, samples: [n] };
  };
  return [
    of("copy", "B/s", "more", speeds?.bandwidth), of("f32", "FLOP/s", "more", speeds?.flops_f32), of("f16", "FLOP/s", "more", speeds?.flops_f16),
    of("matrix units", "FLOP/s", "more", speeds?.flops_matrix), of("barrier", "s", "less", speeds?.barrier),
  ];
}

async function dispatch(adapter: GPUAdapter, iterations: number): Promise<Reading[]> {
  const device = await adapter.requestDevice();
  try {
    const modes = await dispatches(device, iterations);
    const row = (mode: string, part: string, samples: readonly number[]): Reading => ({ id: `dispatch/${mode}/${part}`, unit: "s", better: "less", samples });
    return Object.entries(modes).flatMap(([mode, times]) => [
      row(mode, "wall", times.map((t) => t.wall * 1e-6)), row(mode, "record", times.map((t) => (t.encode + t.finish) * 1e-6)), row(mode, "submit", times.map((t) => t.submit * 1e-6)),
    ]);
  } finally {
    device.destroy();
  }
}

const WGSL = `
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  y[id.x] = x[id.x] + 1.0;
}`;
/** `GPUBufferUsage.STORAGE`, which an engine outside of a page may not have. */
const STORAGE = 0x80;
/** Dispatches of an iteration. */
const COUNT = 100;
/** Pipelines and bind groups of the mode that changes both, as a model's kernels do. */
const KINDS = 8;
/** Iterations that are not counted. */
const WARM = 5;

/** Microseconds of a dispatch, and of its parts that the page does. */
export interface DispatchTime {
  readonly wall: number;
  readonly encode: number;
  readonly finish: number;
  readonly submit: number;
}

/** The cost of a dispatch beside its kernel, of 256 additions, by the way in which it is recorded: the modes of `wgfc bench dispatch`, and one that changes pipelines. */
export async function dispatches(device: GPUDevice, iterations = 40): Promise<Record<string, DispatchTime[]>> {
  const module = device.createShaderModule({ code: WGSL });
  const layout = device.createBindGroupLayout({
    entries: (["read-only-storage", "storage"] as const).map((type, binding) => ({ binding, visibility: 4, buffer: { type } })),
  });
  const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
  const pipelines = Array.from({ length: KINDS }, () => device.createComputePipeline({ layout: pipelineLayout, compute: { module, entryPoint: "main" } }));
  const buffers = Array.from({ length: KINDS }, () => device.createBuffer({ size: 1024, usage: STORAGE }));
  const groups = buffers.map((buffer, i) =>
    device.createBindGroup({ layout, entries: [buffer, buffers[(i + 1) % KINDS]!].map((buffer, binding) => ({ binding, resource: { buffer } })) }),
  );
  const { queue } = device;
  const idle = () => soon(device, queue.onSubmittedWorkDone(), 64);

  /** Times of `COUNT` dispatches: `together` in a submission, `pass` in a pass, each with a pipeline and a bind group of its own if `vary`. */
  const once = async ({ together = COUNT, pass = COUNT, vary = false, wait = false }): Promise<DispatchTime> => {
    const parts = { encode: 0, finish: 0, submit: 0 };
    const begin = performance.now();
    for (let i = 0; i < COUNT; i += together) {
      const [start, encoder] = [performance.now(), device.createCommandEncoder()];
      for (let j = i; j < i + together; j += pass) {
        const p = encoder.beginComputePass();
        for (let k = j; k < j + pass; k++) {
          const n = vary ? k % KINDS : 0;
          if (vary || k === j) p.setPipeline(pipelines[n]!);
          p.setBindGroup(0, groups[vary ? n : k % 2]!);
          p.dispatchWorkgroups(4);
        }
        p.end();
      }
      const encoded = performance.now();
      const commands = encoder.finish();
      const finished = performance.now();
      queue.submit([commands]);
      const submitted = performance.now();
      parts.encode += encoded - start;
      parts.finish += finished - encoded;
      parts.submit += submitted - finished;
      if (wait) await idle();
    }
    await idle();
    const each = (ms: number) => (1000 * ms) / COUNT;
    return { wall: each(performance.now() - begin), encode: each(parts.encode), finish: each(parts.finish), submit: each(parts.submit) };
  };
  const modes: Record<string, Parameters<typeof once>[0]> = {
    "single-op": { together: 1, pass: 1, wait: true },
    sequential: { together: 1, pass: 1 },
    "one encoder, a pass each": { pass: 1 },
    "one encoder, one pass": {},
    "one pass, pipelines and bind groups change": { vary: true },
  };
  const out: Record<string, DispatchTime[]> = {};
  for (const [name, mode] of Object.entries(modes)) {
    const all: DispatchTime[] = [];
    for (let i = 0; i < WARM + iterations; i++) all.push(await once(mode));
    out[name] = all.slice(WARM);
  }
  for (const b of buffers) b.destroy();
  return out;
}
