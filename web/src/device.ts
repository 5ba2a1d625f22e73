/** The device that a model runs on. */

import { type Capabilities, choose } from "./choose.js";
import { type Origin, WgfcError } from "./errors.js";
import { messageOf } from "./fail.js";
import { MATRICES, kindOf, multipliesMatrices } from "./kind.js";
import type { Plan } from "./plan.js";
import { soon } from "./soon.js";
import { COPY_DST, COPY_SRC, MAP_FOR_READING, STORAGE } from "./usage.js";

/** Limits on sizes, which depend on a run's inputs. A device that this package opens requests the adapter's full values. */
const SIZES = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupsPerDimension"];

export async function requestAdapter(): Promise<GPUAdapter> {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" });
  if (adapter) return adapter;
  const { absent, surroundings } = await import("./absent.js");
  throw absent(surroundings());
}

export class Gpu {
  readonly device: GPUDevice;
  /** Whether this package opened the device and must close it. */
  readonly owned: boolean;
  /** The error if the device is lost or disposed of. */
  #gone: WgfcError | undefined;

  constructor(device: GPUDevice, owned: boolean) {
    this.device = device;
    this.owned = owned;
    void device.lost.then(({ reason, message }) => {
      this.#gone ??= new WgfcError("device-lost", `the GPU device was lost (${reason || "unknown"}): ${message} Load the model again.`);
    });
  }

  /**
   * Returns the given device, or a new one from the given adapter with the features and limits that the plans need, and the plans
   * that it can run.
   */
  static async open(plans: readonly Plan[], on: GPUDevice | GPUAdapter): Promise<[Gpu, Plan[]]> {
    if ("queue" in on) return [new Gpu(on, false), await choose(plans, capabilities(on, on.adapterInfo))];
    const adapter = on;
    const fit = await choose(plans, capabilities(adapter, adapter.info));
    const limits = adapter.limits as unknown as Record<string, number>;
    const requiredLimits: Record<string, number> = Object.fromEntries(SIZES.map((l) => [l, limits[l]!]));
    for (const { needs } of fit)
      for (const [limit, n] of Object.entries(needs.limits)) {
        // Workgroup limits are the adapter's full values, as images and other models may need more.
        if (n > 0) requiredLimits[limit] = limits[limit]!;
      }
    const features = new Set(fit.flatMap((p) => p.needs.features));
    if (adapter.features.has("timestamp-query")) features.add("timestamp-query");
    try {
      const requiredFeatures = [...features] as GPUFeatureName[];
      return [new Gpu(await adapter.requestDevice({ label: "wgfc", requiredFeatures, requiredLimits }), true), fit];
    } catch (cause) {
      throw new WgfcError("feature", `the adapter gives no device: ${messageOf(cause)}`, { cause });
    }
  }

  /** Throws if the device is lost or disposed of. */
  check(): void {
    if (this.#gone) throw this.#gone;
  }

  dispose(): void {
    this.#gone ??= new WgfcError("disposed", "the model was disposed of");
    if (this.owned) this.device.destroy();
  }

  /** The promise's value. If it fails because the device is lost, the error says so. WebGPU settles all promises of a lost device. */
  async watch<T>(promise: Promise<T>): Promise<T> {
    try {
      return await promise;
    } catch (e) {
      if (e instanceof WgfcError) throw e;
      // Calls may fail shortly before the device reports that it is lost.
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, 1000))]);
      this.check();
      throw e;
    }
  }

  /** The contents of a buffer, once the device has written them. With `alone` no other calls are made until then. */
  async mapped(buffer: GPUBuffer, alone = true): Promise<ArrayBuffer> {
    const done = this.watch(buffer.mapAsync(MAP_FOR_READING).then(() => buffer.getMappedRange()));
    const range = await soon(this.device, done, alone ? undefined : 0);
    this.check();
    return range;
  }

  /** Makes calls to WebGPU in error scopes, and rejects with their errors. `calls` is called immediately. */
  scoped<T>(what: string, calls: () => T, origin: Origin = {}): Promise<T> {
    this.check();
    const { device } = this;
    for (const filter of ["internal", "out-of-memory", "validation"] as const) device.pushErrorScope(filter);
    let value: T;
    let errors: Promise<GPUError | null>[];
    try {
      value = calls();
    } finally {
      errors = [0, 1, 2].map(() => device.popErrorScope());
    }
    return this.watch(Promise.all(errors)).then(([validation, memory, internal]) => {
      this.check();
      if (memory) throw new WgfcError("out-of-memory", `${what}: the device is out of memory. ${memory.message}`, origin);
      const error = validation ?? internal;
      if (error) throw new WgfcError("validation", `${what}: ${error.message}`, origin);
      return value;
    });
  }

  /** A buffer that kernels can read and write. */
  storage(label: string, size: number, usage = 0): GPUBuffer {
    return this.device.createBuffer({ label, size, usage: STORAGE | COPY_SRC | COPY_DST | usage });
  }
}

function capabilities(of: { features: GPUSupportedFeatures; limits: GPUSupportedLimits }, info?: GPUAdapterInfo): Capabilities {
  const { subgroupMinSize: least, subgroupMaxSize: most } = info ?? {};
  return {
    features: new Set([...of.features].filter((f) => f !== MATRICES || multipliesMatrices(info))),
    limits: of.limits as unknown as Record<string, number>,
    subgroups: least && most ? [least, most] : undefined,
    kind: kindOf(info),
  };
}
