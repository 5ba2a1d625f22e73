// WebGPU outside of a browser, for the pages' own code: Dawn, which Chromium has, in node, and wgpu, which Firefox has, in Deno.
//
// Dawn is the npm package `webgpu`; WGFC_DAWN is its module or the path of a .node file.
import { createRequire } from "node:module";

/** The engine that runs this program. */
export const engine = globalThis.Deno ? "deno" : "dawn";

/**
 * Gives this process what a page has: `navigator.gpu`, `window`, and an address, against which modules and files are found. `toggles` are
 * Dawn's, as in `["vulkan_enable_f16_on_nvidia"]`.
 */
export async function open(address, toggles = []) {
  globalThis.window = globalThis;
  const fetched = globalThis.fetch;
  globalThis.fetch = (of, ...more) => fetched(typeof of === "string" ? new URL(of, address) : of, ...more);
  Object.defineProperty(globalThis, "location", { value: new URL(address), configurable: true });
  if (engine === "deno") return;
  (await import("./node.mjs")).becomePage();
  const require = createRequire(new URL("../bench/", import.meta.url));
  const { create, globals } = require(process.env.WGFC_DAWN ?? "webgpu");
  Object.assign(globalThis, globals);
  // The instance is closed when it is collected.
  globalThis.dawn = create(["backend=vulkan", ...(toggles.length ? [`enable-dawn-features=${toggles.join()}`] : [])]);
  Object.defineProperty(globalThis, "navigator", { value: { gpu: globalThis.dawn, userAgent: "node" }, configurable: true });
}
