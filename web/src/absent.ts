/** The errors where there is no WebGPU, or no device that can run a program, with what a person can do about it. This module is loaded for them. */

import { type Capabilities, label } from "./choose.js";
import { WgfcError } from "./errors.js";
import type { Plan } from "./plan.js";

/** The page and its browser, as far as WebGPU depends on them. */
export interface Surroundings {
  /** Whether there is `navigator.gpu`. */
  readonly api: boolean;
  /** Whether the page comes from https or from this computer, if that is known. */
  readonly secure: boolean | undefined;
  readonly agent: string;
}

/** The first versions of browsers that have WebGPU by default: webgpu.dev's implementation status. */
const SINCE = "Chrome and Edge have it since version 113, on Android since 121; Safari since 26; Firefox since 141, first on Windows";

export function absent(of: Surroundings): WgfcError {
  return new WgfcError("no-webgpu", `there is no WebGPU: ${why(of)}. Slower, and without it, \`wgfc/cpu\` runs .onnx models`);
}

function why({ api, secure, agent }: Surroundings): string {
  const linux = /Linux/.test(agent) && !/Android/.test(agent);
  if (!api && secure === false) return "browsers give it to secure pages alone: serve this page by https, or from localhost";
  if (!api) return `this browser has none, or it is turned off. ${SINCE}${linux ? ". In Chrome for Linux it may need chrome://flags/#enable-unsafe-webgpu" : ""}`;
  const page = /Firefox/.test(agent) ? "about:support" : /Chrome|Edg/.test(agent) ? "chrome://gpu" : undefined;
  const start = linux ? "; Chrome for Linux may need to be started with --enable-unsafe-webgpu --enable-features=Vulkan" : "";
  return `the browser finds no adapter: the GPU or its driver is missing or blocked${page ? `, which ${page} tells` : ""}. Update the driver, and turn hardware acceleration on${start}`;
}

/** The error of a device that lacks something for each of the plans. */
export function unfit(plans: readonly Plan[], of: Capabilities): WgfcError {
  const lacks = plans.map((p) => lacking(p, of));
  const lines = plans.map((p, i) => `${label(p, i)} needs ${[...lacks[i]!.features, ...lacks[i]!.limits].join(", ")}`);
  const lacked = lacks.every((l) => l.features.length) ? "feature" : "limits";
  return new WgfcError(lacked, `this device cannot run the model: ${lines.join("; ")}. Compile a variant for such devices.`);
}

/** The features and limits that a plan needs and the device lacks. */
function lacking({ needs }: Plan, of: Capabilities): { features: string[]; limits: string[] } {
  const features = needs.features.filter((f) => !of.features.has(f)).map((f) => `the feature ${f}`);
  const sizes = needs.subgroup_sizes;
  if (sizes && features.length === 0) {
    const [least, most] = of.subgroups ?? [];
    if (least !== most || least === undefined || !sizes.includes(least)) {
      const has = of.subgroups ? `it has ${least} to ${most}` : "the browser reports no subgroup sizes";
      features.push(`subgroups of ${sizes.join(" or ")} (${has})`);
    }
  }
  const limits = Object.entries(needs.limits)
    .filter(([limit, n]) => n > (of.limits[limit] ?? 0))
    .map(([limit, n]) => `${limit} of ${n} (it has ${of.limits[limit] ?? "none"})`);
  return { features, limits };
}

/** The surroundings of this page. */
export function surroundings(): Surroundings {
  const { navigator, isSecureContext } = globalThis as { navigator?: Navigator; isSecureContext?: boolean };
  return { api: Boolean(navigator?.gpu), secure: isSecureContext, agent: navigator?.userAgent ?? "" };
}
