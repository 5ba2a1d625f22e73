/** The kinds of adapters, by what the browser says about them. */

/** A kind of adapter; `swiftshader` is one of the software adapters. */
export type Kind = "discrete" | "integrated" | "software" | "swiftshader";

/** The vendors of which nearly all adapters share memory with the CPU. */
const INTEGRATED_VENDORS = ["apple", "arm", "broadcom", "img-tec", "imagination", "intel", "qualcomm", "samsung"];

/** The kind of an adapter; undefined if the browser does not report enough about it. */
export function kindOf(info: GPUAdapterInfo | undefined): Kind | undefined {
  const { vendor = "", architecture = "", description = "" } = info ?? {};
  if (/swiftshader/i.test(`${architecture} ${description}`)) return "swiftshader";
  if (info?.isFallbackAdapter || /llvmpipe|lavapipe|basic render/i.test(`${architecture} ${description}`)) return "software";
  if (vendor === "nvidia") return "discrete";
  return INTEGRATED_VENDORS.includes(vendor) ? "integrated" : undefined;
}

/** The feature of devices whose kernels can use matrix units with Chrome's extension of WGSL. */
export const MATRICES = "chromium-experimental-subgroup-matrix";

/**
 * Whether an adapter with this feature can multiply 16 × 16 matrices of f16 and accumulate in f32, the kind of matrices that kernels use. Where
 * nothing is known, as of some devices, it is presumed.
 */
export function multipliesMatrices(info: GPUAdapterInfo | undefined): boolean {
  const kinds = (info as { subgroupMatrixConfigs?: readonly MatrixKind[] } | undefined)?.subgroupMatrixConfigs;
  return !kinds?.length || kinds.some((k) => `${[k.M, k.N, k.K, k.componentType, k.resultComponentType]}` === "16,16,16,f16,f32");
}

interface MatrixKind {
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly componentType: string;
  readonly resultComponentType: string;
}
