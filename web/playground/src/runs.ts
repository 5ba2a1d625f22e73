/** Runs of a program on this device, and timing of its kernels. */

import { type Model, Tensor, type TensorLike, WgfcError, load } from "wgfc";
import { type DeviceProfile, measure } from "wgfc/measure";
import type { Measured, Speeds } from "./charts.js";
import { type Opened, type Plan, Sizes, edited, repeated } from "./program.js";

/** A short title of a dispatch. */
export function titleOf(plan: Plan, dispatch: number): string {
  const { kernel, nodes } = plan.dispatches[dispatch]!;
  const { name } = plan.kernels[kernel]!;
  return nodes.length ? `${name.replace(/^\d+_/, "")} (${nodes[0]}${nodes.length > 1 ? ` and ${nodes.length - 1} more` : ""})` : name;
}

/** A random generator with the same numbers on all platforms (mulberry32). */
export function random(seed: number): () => number {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Random inputs: floats around 0, and integers that are valid as ids, indices and masks. */
export function inputsFor(plan: Plan, sizes: Sizes): Record<string, TensorLike> {
  return Object.fromEntries(
    plan.inputs.map((p, i) => {
      const next = random(i + 1);
      const shape = p.shape.map((d) => sizes.at(d));
      const count = shape.reduce((a, b) => a * b, 1);
      const float = /^b?f\d/.test(p.dtype);
      const values = Float64Array.from({ length: count }, () => (float ? (next() + next() + next() - 1.5) * 2 : next() < 0.5 ? 0 : 1));
      return [p.name, Tensor.from(p.dtype as Tensor["dtype"], shape, shape.length === 0 && !float ? [1] : values)];
    }),
  );
}

let shared: Promise<GPUDevice> | undefined;

/** The playground's only device, with all features and limits of the adapter. */
export function deviceOf(): Promise<GPUDevice> {
  shared ??= (async () => {
    const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new WgfcError("no-webgpu", "this browser has no WebGPU, or finds no adapter: models can be looked at, and not run");
    const limits = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupsPerDimension", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ", "maxStorageBuffersPerShaderStage"] as const;
    const requiredLimits = Object.fromEntries(limits.map((l) => [l, adapter.limits[l]]));
    const wanted: GPUFeatureName[] = ["timestamp-query", "shader-f16", "subgroups"];
    const device = await adapter.requestDevice({ requiredLimits, requiredFeatures: wanted.filter((f) => adapter.features.has(f)) });
    void device.lost.then(() => (shared = undefined));
    return device;
  })();
  shared.catch(() => (shared = undefined));
  return shared;
}

export function adapterName(device: GPUDevice): string {
  const { description, device: name, vendor, architecture } = device.adapterInfo;
  return description || name || [vendor, architecture].filter(Boolean).join(" ") || "GPU";
}

export interface Result {
  readonly outputs: Readonly<Record<string, Tensor>>;
  /** The shortest time of several runs, from the call until the outputs are on the host. */
  readonly microseconds: number;
}

/** Runs a model several times. States are reset before each run, so that all runs are equal. */
export async function runModel(model: Model, inputs: Record<string, TensorLike>, times = 3): Promise<Result> {
  let [least, outputs] = [Infinity, {} as Record<string, Tensor>];
  for (let i = 0; i < times; i++) {
    if (i > 0 && model.states.length) await model.reset();
    const start = performance.now();
    outputs = await model.run(inputs);
    least = Math.min(least, performance.now() - start);
    if (least > 1000) break;
  }
  if (model.states.length) await model.reset();
  return { outputs, microseconds: least * 1000 };
}

/** The time of each dispatch, measured with timestamps, or otherwise as the increase of a run's time if the dispatch is repeated. */
export async function timeDispatches(
  opened: Opened, plan: Plan, edits: Readonly<Record<string, string>>, inputs: Record<string, TensorLike>, sizes: Sizes,
  progress: (done: number, all: number) => void,
): Promise<Measured[]> {
  const device = await deviceOf();
  const figures = (i: number, microseconds: number): Measured => {
    const { bytes, flops } = plan.dispatches[i]!;
    return { dispatch: i, title: titleOf(plan, i), microseconds, bytes: sizes.at(bytes), flops: sizes.at(flops) };
  };
  if (device.features.has("timestamp-query")) {
    const model = await load(edited(opened, edits), { device });
    try {
      const rows = [];
      for (let i = 0; i < 3; i++) {
        rows.push(await model.profile(inputs));
        if (model.states.length) await model.reset();
        progress(i + 1, 3);
      }
      const taken = new Map<string, number[]>();
      for (const all of rows) {
        const seen = new Map<string, number>();
        for (const r of all) {
          const key = `${r.kernel} ${r.nodes.join()}`;
          seen.set(key, (seen.get(key) ?? 0) + r.microseconds);
        }
        for (const [k, v] of seen) taken.set(k, [...(taken.get(k) ?? []), v]);
      }
      return plan.dispatches.map((d, i) => figures(i, Math.min(...(taken.get(`${plan.kernels[d.kernel]!.name} ${d.nodes.join()}`) ?? [NaN]))));
    } finally {
      model.dispose();
    }
  }
  const out: Measured[] = [];
  const took = async (dispatch: number, times: number) => {
    const model = await load(edited(opened, edits, (p) => (p === plan ? repeated(p, dispatch, times) : p)), { device });
    try {
      return (await runModel(model, inputs, 4)).microseconds;
    } finally {
      model.dispose();
    }
  };
  for (let i = 0; i < plan.dispatches.length; i++) {
    const once = await took(i, 1);
    out.push(figures(i, Math.max(0, (await took(i, 17)) - once) / 16));
    progress(i + 1, plan.dispatches.length);
  }
  return out;
}

let profile: Promise<DeviceProfile> | undefined;

/** Measures how fast this device is, once. The speeds are kept, and models are compiled for them from then on. */
export function measuredProfile(): Promise<DeviceProfile> {
  return (profile ??= deviceOf().then((device) => measure(device)).catch((e: unknown) => {
    profile = undefined;
    throw e;
  }));
}

/** The measured speeds of this device. */
export async function measureDevice(): Promise<Speeds> {
  const { speeds } = await measuredProfile();
  return { bandwidth: speeds!["bandwidth"]!, arithmetic: speeds!["flops_f32"]! };
}
