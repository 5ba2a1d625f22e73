/** The error where there is no WebGPU, with what a person can do about it. This module is loaded by pages that have none. */

import { WgfcError } from "./errors.js";

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

/** The surroundings of this page. */
export function surroundings(): Surroundings {
  const { navigator, isSecureContext } = globalThis as { navigator?: Navigator; isSecureContext?: boolean };
  return { api: Boolean(navigator?.gpu), secure: isSecureContext, agent: navigator?.userAgent ?? "" };
}
