/** The rows of a training's data, and the order in which steps take them. */

import { type PortInfo, Tensor, type TensorLike, type TypedArray } from "./index.js";
import { bytesOf } from "./dtypes.js";
import { Random } from "./random.js";
import { COPY_DST, COPY_SRC, STORAGE, UNIFORM } from "./usage.js";

/** Bytes are copied from and to the device in pieces of this size. */
export const PIECE = 32 << 20;
/** The largest number of bytes of an input's data that stay on the device. */
const ON_DEVICE = 256 << 20;
/** The threads of a workgroup that gathers rows. */
const THREADS = 64;
const GATHER = `
@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;
@group(0) @binding(3) var<uniform> words: u32;

@compute @workgroup_size(${THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < words) {
        batch[id.y * words + id.x] = data[rows[id.y] * words + id.x];
    }
}`;

/** The rows of an input: on the device, where kernels gather them, or on the host if they are too many or no whole words. */
export class Rows {
  readonly name: string;
  readonly port: PortInfo;
  readonly count: number;
  readonly #tensor: TensorLike<TypedArray>;
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #size: number;
  #device: { readonly pass: (rows: Uint32Array<ArrayBuffer>) => void; readonly batch: GPUBuffer; readonly buffers: readonly GPUBuffer[] } | undefined;

  constructor(port: PortInfo, { dtype, shape, data }: TensorLike<TypedArray>) {
    this.port = port;
    this.name = port.name;
    // The constructor checks the data.
    this.#tensor = new Tensor(dtype, shape, data);
    this.#bytes = bytesOf(data);
    this.count = shape[0]!;
    this.#size = this.#bytes.length / this.count;
  }

  /** Uploads the rows, if there is room for them, for batches of this many. */
  place(device: GPUDevice, batch: number): void {
    const { limits, queue } = device;
    const words = this.#size / 4;
    const largest = Math.min(ON_DEVICE, limits.maxBufferSize, limits.maxStorageBufferBindingSize);
    const groups = Math.ceil(words / THREADS);
    if (!Number.isInteger(words) || words === 0 || this.#bytes.length > largest || Math.max(batch, groups) > limits.maxComputeWorkgroupsPerDimension) return;
    const make = (size: number, usage: number) => device.createBuffer({ label: `rows of ${this.name}`, size: Math.max(16, size), usage: usage | COPY_DST });
    const [rows, data] = [make(4 * batch, STORAGE), make(this.#bytes.length, STORAGE)];
    const [gathered, size] = [make(batch * this.#size, STORAGE | COPY_SRC), make(16, UNIFORM)];
    for (let at = 0; at < this.#bytes.length; at += PIECE) queue.writeBuffer(data, at, this.#bytes, at, Math.min(PIECE, this.#bytes.length - at));
    queue.writeBuffer(size, 0, Uint32Array.of(words));
    const pipeline = device.createComputePipeline({ label: "rows", layout: "auto", compute: { module: device.createShaderModule({ code: GATHER }) } });
    const entries = [rows, data, gathered, size].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const pass = (numbers: Uint32Array<ArrayBuffer>) => {
      queue.writeBuffer(rows, 0, numbers);
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(groups, batch);
      pass.end();
      queue.submit([encoder.finish()]);
    };
    this.#device = { pass, batch: gathered, buffers: [rows, data, gathered, size] };
  }

  /** A tensor of these rows, which is valid until the next call. */
  take(rows: Uint32Array<ArrayBuffer>): Tensor {
    const { dtype, shape } = this.#tensor;
    const extents = [rows.length, ...shape.slice(1)];
    if (this.#device) {
      this.#device.pass(rows);
      return new Tensor(dtype, extents, this.#device.batch);
    }
    const [size, from] = [this.#size, this.#bytes];
    const bytes = new Uint8Array(rows.length * size);
    rows.forEach((r, i) => bytes.set(from.subarray(r * size, (r + 1) * size), i * size));
    return Tensor.fromBytes(dtype, extents, bytes);
  }

  dispose(): void {
    for (const b of this.#device?.buffers ?? []) b.destroy();
  }
}

/** An endless sequence of rows, epoch after epoch. With a seed each epoch has its own order, which is that of `wgfc train`. */
export class Order {
  readonly seed: bigint | undefined;
  readonly #rows: number;
  #epoch = -1;
  #shuffled: Uint32Array | undefined;

  constructor(rows: number, seed: bigint | undefined) {
    this.#rows = rows;
    this.seed = seed;
  }

  /** The row at position `sample` of the sequence. */
  row(sample: number): number {
    const [epoch, place] = [Math.floor(sample / this.#rows), sample % this.#rows];
    if (this.seed === undefined) return place;
    if (epoch !== this.#epoch || !this.#shuffled) {
      const order = Uint32Array.from({ length: this.#rows }, (_, i) => i);
      const random = new Random(this.seed, `epoch ${epoch}`);
      for (let i = this.#rows - 1; i > 0; i--) {
        const j = random.below(i + 1);
        [order[i], order[j]] = [order[j]!, order[i]!];
      }
      [this.#epoch, this.#shuffled] = [epoch, order];
    }
    return this.#shuffled[place]!;
  }
}
