/** GPU timestamps. This module is loaded by the first profile. */

import { WgfcError } from "./errors.js";
import type { Plan } from "./plan.js";
import type { Sized } from "./session.js";
import { COPY_DST, COPY_SRC, MAP_FOR_READING, MAP_READ, QUERY_RESOLVE } from "./usage.js";

/** The time of a dispatch on this device. */
export interface DispatchTime {
  readonly kernel: string;
  readonly nodes: readonly string[];
  readonly workgroups: readonly number[];
  /** The sum over all executions of the dispatch. */
  readonly microseconds: number;
  readonly times: number;
  /** The minimal traffic in bytes and the arithmetic operations of one execution. */
  readonly bytes: number;
  readonly flops: number;
}

/** The number of queries in a set, the most that WebGPU allows. */
const QUERIES = 4096;

interface Batch {
  readonly set: GPUQuerySet;
  readonly numbers: number[];
  read: GPUBuffer | undefined;
}

/** Measures the time of each dispatch, summed over all its repetitions. */
export class Timestamps {
  readonly #device: GPUDevice;
  readonly #batches: Batch[] = [];

  constructor(device: GPUDevice) {
    if (!device.features.has("timestamp-query")) throw new WgfcError("feature", "this device has no timestamp-query");
    this.#device = device;
  }

  /** The timestamp writes for the next pass, which executes dispatch `number`. */
  next(number: number): GPUComputePassTimestampWrites {
    let batch = this.#batches.at(-1);
    if (!batch || batch.read || batch.numbers.length === QUERIES / 2) {
      batch = { set: this.#device.createQuerySet({ type: "timestamp", count: QUERIES }), numbers: [], read: undefined };
      this.#batches.push(batch);
    }
    const at = 2 * (batch.numbers.push(number) - 1);
    return { querySet: batch.set, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 };
  }

  /** Records the commands that fetch the timestamps. */
  resolve(encoder: GPUCommandEncoder): void {
    for (const batch of this.#batches.filter((b) => !b.read)) {
      const [count, size] = [2 * batch.numbers.length, 16 * batch.numbers.length];
      const resolved = this.#device.createBuffer({ size, usage: QUERY_RESOLVE | COPY_SRC });
      batch.read = this.#device.createBuffer({ size, usage: MAP_READ | COPY_DST });
      encoder.resolveQuerySet(batch.set, 0, count, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, batch.read, 0, size);
    }
  }

  /** The time of each dispatch, the longest first. */
  async read(plan: Plan, { values, workgroups }: Sized): Promise<DispatchTime[]> {
    const sums = new Map<number, { microseconds: number; times: number }>();
    for (const { set, numbers, read } of this.#batches) {
      if (!read) continue;
      await read.mapAsync(MAP_FOR_READING);
      const ticks = new BigUint64Array(read.getMappedRange());
      numbers.forEach((number, i) => {
        const sum = sums.get(number) ?? { microseconds: 0, times: 0 };
        sum.microseconds += Math.max(0, Number(ticks[2 * i + 1]! - ticks[2 * i]!)) / 1000;
        sum.times++;
        sums.set(number, sum);
      });
      read.destroy();
      set.destroy();
    }
    const rows = [...sums].map(([i, sum]) => {
      const { kernel, nodes, bytes, flops } = plan.dispatches[i]!;
      const figures = { bytes: bytes.at(values), flops: flops.at(values) };
      return { kernel: plan.kernels[kernel]!.name, nodes, workgroups: workgroups[i]!, ...sum, ...figures };
    });
    return rows.sort((a, b) => b.microseconds - a.microseconds);
  }
}
