/** Recording and submission of one run's commands. */

import type { Gpu } from "./device.js";
import { COPY_DST, MAP_READ } from "./usage.js";
import type { Timestamps } from "./timestamps.js";

/** The number of dispatches after which commands are submitted, so that long loops do not need memory for all of their commands. */
const SUBMITTED_TOGETHER = 4096;

export class Recorder {
  readonly #gpu: Gpu;
  readonly #times: Timestamps | undefined;
  #encoder: GPUCommandEncoder;
  #pass: GPUComputePassEncoder | undefined;
  #pipeline: GPUComputePipeline | undefined;
  #dispatches = 0;

  /** With `times` each dispatch has its own pass and is timed. */
  constructor(gpu: Gpu, times?: Timestamps) {
    this.#gpu = gpu;
    this.#times = times;
    this.#encoder = gpu.device.createCommandEncoder();
  }

  dispatch(number: number, pipeline: GPUComputePipeline, group: GPUBindGroup, [x, y, z]: readonly number[]): void {
    if (this.#dispatches++ === SUBMITTED_TOGETHER) this.submit();
    if (this.#times) {
      this.#endPass();
      this.#pass = this.#encoder.beginComputePass({ timestampWrites: this.#times.next(number) });
    }
    this.#pass ??= this.#encoder.beginComputePass();
    if (this.#pipeline !== pipeline) this.#pass.setPipeline((this.#pipeline = pipeline));
    this.#pass.setBindGroup(0, group);
    this.#pass.dispatchWorkgroups(x!, y, z);
  }

  copy(from: GPUBuffer, offset: number, to: GPUBuffer, at: number, bytes: number): void {
    this.#endPass();
    this.#encoder.copyBufferToBuffer(from, offset, to, at, bytes);
  }

  submit(): void {
    this.#endPass();
    this.#times?.resolve(this.#encoder);
    this.#gpu.device.queue.submit([this.#encoder.finish()]);
    this.#encoder = this.#gpu.device.createCommandEncoder();
    this.#dispatches = 0;
  }

  /** Submits the commands and reads a word of a buffer. */
  async word(from: GPUBuffer, offset: number): Promise<number> {
    const word = this.#gpu.device.createBuffer({ size: 4, usage: MAP_READ | COPY_DST });
    this.copy(from, offset, word, 0, 4);
    this.submit();
    try {
      return new Int32Array(await this.#gpu.mapped(word))[0]!;
    } finally {
      word.destroy();
    }
  }

  #endPass(): void {
    this.#pass?.end();
    this.#pass = this.#pipeline = undefined;
  }
}
