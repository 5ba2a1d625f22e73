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
