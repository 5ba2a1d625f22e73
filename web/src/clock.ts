/** The time that a device takes for the commands of a pass. */

import { throwIfAborted } from "./fail.js";
import { soon } from "./soon.js";
import { COPY_DST, COPY_SRC, MAP_FOR_READING, MAP_READ, QUERY_RESOLVE } from "./usage.js";

/** How often the browser is asked at most to look for work that is done: for some ten milliseconds. */
const LOOKS = 64;
/** The seconds for which a device is kept busy at most before it is timed. */
const WARM = 0.5;

export class Clock {
  readonly #device: GPUDevice;
  readonly #signal: AbortSignal | undefined;
  readonly #queries: { readonly set: GPUQuerySet; readonly ticks: GPUBuffer; readonly read: GPUBuffer } | undefined;
  /** Whether the device's timestamps are used. */
  #trusted: boolean;

  constructor(device: GPUDevice, signal?: AbortSignal) {
    [this.#device, this.#signal] = [device, signal];
    this.#trusted = device.features.has("timestamp-query");
    if (!this.#trusted) return;
    this.#queries = {
      set: device.createQuerySet({ type: "timestamp", count: 2 }),
      ticks: device.createBuffer({ size: 16, usage: QUERY_RESOLVE | COPY_SRC }),
      read: device.createBuffer({ size: 16, usage: MAP_READ | COPY_DST }),
    };
  }

  dispose(): void {
    for (const one of Object.values(this.#queries ?? {})) one.destroy();
  }

  /** The seconds of a pass: by the page's clock, and by the device's, or 0. */
  async both(record: (pass: GPUComputePassEncoder) => void): Promise<[wall: number, device: number]> {
    throwIfAborted(this.#signal);
    const { queue } = this.#device;
    const queries = this.#trusted ? this.#queries : undefined;
    const start = performance.now();
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass(
      queries ? { timestampWrites: { querySet: queries.set, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 } } : {},
    );
    record(pass);
    pass.end();
    if (queries) {
      encoder.resolveQuerySet(queries.set, 0, 2, queries.ticks, 0);
      encoder.copyBufferToBuffer(queries.ticks, 0, queries.read, 0, 16);
    }
    queue.submit([encoder.finish()]);
    await soon(this.#device, queue.onSubmittedWorkDone(), LOOKS);
    const wall = (performance.now() - start) / 1000;
    if (!queries) return [wall, 0];
    await queries.read.mapAsync(MAP_FOR_READING);
    const [begin, end] = new BigUint64Array(queries.read.getMappedRange()) as unknown as [bigint, bigint];
    queries.read.unmap();
    return [wall, Number(end - begin) / 1e9];
  }

  /** The seconds of a pass. */
  async time(record: (pass: GPUComputePassEncoder) => void): Promise<number> {
    const [wall, device] = await this.both(record);
    return device > 0 ? device : wall;
  }

  /**
   * Keeps the device busy until it no longer becomes faster, as an idle device lowers its clock. Timestamps that say more than the page's
   * clock, or nothing, are not used.
   */
  async warmUp(record: (pass: GPUComputePassEncoder) => void): Promise<void> {
    const begin = performance.now();
    for (let [steady, before] = [0, Infinity]; performance.now() - begin < WARM * 1000 && steady < 4; ) {
      let least = Infinity;
      for (let i = 0; i < 3; i++) {
        const [wall, device] = await this.both(record);
        // Browsers round timestamps to tenths of a millisecond.
        this.#trusted &&= device > 0 && device < 1.01 * wall + 2e-4;
        least = Math.min(least, device > 0 ? device : wall);
      }
      steady = least > 0.99 * before ? steady + 1 : 0;
      before = Math.min(before, least);
    }
  }
}
