/** Device profiles for the compiler, in the JSON format of `wgfc compile --profile FILE`. */

import { type Kind, MATRICES, kindOf, multipliesMatrices } from "../kind.js";

/** The limits and speeds of a device. The defaults are those of every WebGPU device. */
export interface DeviceProfile {
  readonly version: 1;
  /** The device's name, for information only. */
  readonly device?: string;
  readonly limits?: Readonly<Record<string, number | boolean | null>>;
  readonly speeds?: Readonly<Record<string, number>>;
}

/** A `GPUDevice` or a `GPUAdapter`. */
export type DeviceLike = GPUDevice | GPUAdapter;

const DISCRETE = {
  bandwidth: 2.8e12, flops_f32: 57.344e12, flops_f16: 114.688e12, flops_matrix: 448e12, dispatch_cost: 4e-6, cores: 128, resident: 262144,
  memory_latency: 600, operation: 1.5e-9, barrier: 40e-9, workgroup_bandwidth: 60e9, cache_bandwidth: 30e12,
  resident_workgroups: 1, exchange: 1.5e-6,
};
const INTEGRATED = {
  bandwidth: 70e9, flops_f32: 2.4e12, flops_f16: 4.8e12, flops_matrix: 4.8e12, dispatch_cost: 8e-6, cores: 8, resident: 16384,
  memory_latency: 400, operation: 3e-9, barrier: 80e-9, workgroup_bandwidth: 30e9, cache_bandwidth: 600e9,
  resident_workgroups: 1, exchange: 3e-6,
};
const SOFTWARE = {
  bandwidth: 1.1e9, flops_f32: 66e9, flops_f16: 13e9, flops_matrix: 13e9, dispatch_cost: 17e-6, cores: 1, resident: 64,
  memory_latency: 30, operation: 9e-9, barrier: 1.6e-6, workgroup_bandwidth: 6.1e9, cache_bandwidth: 6.2e9,
  resident_workgroups: 1, exchange: 5e-6,
};
const SWIFTSHADER = {
  bandwidth: 2.1e9, flops_f32: 12.5e9, flops_f16: 12.5e9, flops_matrix: 12.5e9, dispatch_cost: 17e-6, cores: 1, resident: 64,
  memory_latency: 17, operation: 21e-9, barrier: 10.3e-6, workgroup_bandwidth: 1.8e9, cache_bandwidth: 2.1e9,
  resident_workgroups: 1, exchange: 20e-6,
};
/** The speeds of kinds of devices, equal to those in `compiler/src/device.rs`. */
export const SPEEDS: Readonly<Record<Kind, typeof DISCRETE>> = { discrete: DISCRETE, integrated: INTEGRATED, software: SOFTWARE, swiftshader: SWIFTSHADER };

/** The speeds of an adapter's kind; undefined if the kind is not known. */
export function speedsOf(info: GPUAdapterInfo | undefined): Readonly<Record<string, number>> | undefined {
  const kind = kindOf(info);
  return kind && SPEEDS[kind];
}

/** The information about a device's adapter that the browser gives. */
export function infoOf(device: DeviceLike): GPUAdapterInfo | undefined {
  return "adapterInfo" in device ? device.adapterInfo : device.info;
}

/** The profile of a device: its limits, its features, and the speeds of its kind. */
export function profileOf(device: DeviceLike): DeviceProfile {
  const info = infoOf(device);
  const speeds = speedsOf(info);
  const { subgroupMinSize: least, subgroupMaxSize: most } = info ?? {};
  const features = device.features as ReadonlySet<string>;
  const { limits } = profileOfLimits(device.limits as unknown as Record<string, number>, features, least === most ? least : undefined);
  const matrices = features.has(MATRICES) && multipliesMatrices(info);
  return { version: 1, limits: { ...limits, ...(matrices ? { subgroup_matrix: true } : {}) }, ...(speeds ? { speeds } : {}) };
}

/** The profile of a device with these limits and features, by WebGPU's names. Limits that are not given are WebGPU's defaults. */
export function profileOfLimits(of: Readonly<Record<string, number>>, features: Iterable<string>, subgroup?: number): DeviceProfile {
  const has = new Set(features);
  const limits: Record<string, number | boolean> = { f16: has.has("shader-f16") };
  const take = (name: string, ...from: (number | undefined)[]) => {
    const known = from.filter((n) => n !== undefined);
    if (known.length) limits[name] = Math.min(...known);
  };
  take("max_storage_buffers", of["maxStorageBuffersPerShaderStage"]);
  take("max_invocations", of["maxComputeInvocationsPerWorkgroup"]);
  take("max_workgroup_bytes", of["maxComputeWorkgroupStorageSize"]);
  take("max_binding_bytes", of["maxStorageBufferBindingSize"], of["maxBufferSize"]);
  take("max_workgroups", of["maxComputeWorkgroupsPerDimension"]);
  if (subgroup && has.has("subgroups")) limits["subgroup"] = subgroup;
  return { version: 1, limits };
}
