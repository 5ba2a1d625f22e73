import { type DType, type TypedArray, arrayName, arrayOver, bufferBytes, bytesOf, fromNumbers, holds, packedBytes, toNumbers } from "./dtypes.js";
import { WgfcError } from "./errors.js";
import type { ImageOptions, ImageSource } from "./image.js";
import { COPY_DST, MAP_FOR_READING, MAP_READ } from "./usage.js";

/** The storage of a tensor's elements: host memory or a buffer of the device. */
export type TensorData = TypedArray | GPUBuffer;

/** A row-major tensor. It need not be an instance of {@link Tensor}. */
export interface TensorLike<D extends TensorData = TensorData> {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly data: D;
}

export function isBuffer(data: TensorData): data is GPUBuffer {
  return !ArrayBuffer.isView(data);
}

export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((n, d) => n * d, 1);
}

export class Tensor<D extends TensorData = TensorData> implements TensorLike<D> {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly data: D;

  constructor(dtype: DType, shape: readonly number[], data: D) {
    this.dtype = dtype;
    this.shape = [...shape];
    this.data = data;
    const elements = elementsOf(shape);
    const bytes = packedBytes(dtype, elements);
    const [fits, have] = isBuffer(data)
      ? [data.size >= bufferBytes(dtype, elements), `a GPUBuffer of ${data.size}`]
      : [holds(dtype, data) && data.byteLength === bytes, `${data.byteLength} in a ${data.constructor.name}`];
    if (!fits) throw new WgfcError("shape", `${this} takes ${bytes} bytes in a ${arrayName(dtype)}, not ${have}`);
  }

  /** Packs numbers as elements of `dtype`. */
  static from(dtype: DType, shape: readonly number[], numbers: ArrayLike<number | bigint | boolean>): Tensor<TypedArray> {
    return new Tensor(dtype, shape, fromNumbers(dtype, numbers));
  }
  /** A tensor over little-endian bytes as in files. */
  static fromBytes(dtype: DType, shape: readonly number[], bytes: Uint8Array): Tensor<TypedArray> {
    return new Tensor(dtype, shape, arrayOver(dtype, bytes));
  }

  /** A picture, stretched to `shape`, on the device. The caller must destroy the tensor. See {@link ImageOptions}. */
  static async fromImage(device: GPUDevice, source: ImageSource, options: ImageOptions): Promise<Tensor<GPUBuffer>> {
    const { imageBuffer } = await import("./image.js");
    const buffer = await imageBuffer(device, source, options, (why) => {
      throw new WgfcError("shape", why);
    });
    return new Tensor(options.dtype ?? "f32", options.shape, buffer);
  }

  get elements(): number {
    return elementsOf(this.shape);
  }
  /** Whether the elements are in a `GPUBuffer`. */
  get onGpu(): boolean {
    return isBuffer(this.data);
  }
  /** The elements as numbers. Elements of `i64` and `u64` beyond 2^53 are rounded; `data` has their exact values. */
  toNumbers(this: Tensor<TypedArray>): Float64Array {
    return toNumbers(this.dtype, this.data, this.elements);
  }
  bytes(this: Tensor<TypedArray>): Uint8Array<ArrayBuffer> {
    return bytesOf(this.data);
  }
  /** Copies the elements from the device after all work submitted so far. */
  async read(this: Tensor<GPUBuffer>, device: GPUDevice): Promise<Tensor<TypedArray>> {
    const size = bufferBytes(this.dtype, this.elements);
    const staging = device.createBuffer({ size, usage: MAP_READ | COPY_DST });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.data, 0, staging, 0, size);
    device.queue.submit([encoder.finish()]);
    try {
      await staging.mapAsync(MAP_FOR_READING);
      const bytes = new Uint8Array(staging.getMappedRange()).slice(0, packedBytes(this.dtype, this.elements));
      return Tensor.fromBytes(this.dtype, this.shape, bytes);
    } catch (cause) {
      throw new WgfcError("device-lost", `${this} is gone: its device was lost, or its buffer destroyed`, { cause });
    } finally {
      staging.destroy();
    }
  }
  /** Frees the memory of a tensor on the device. */
  destroy(): void {
    if (isBuffer(this.data)) this.data.destroy();
  }
  toString(): string {
    return `${this.dtype}[${this.shape.join(", ")}]`;
  }
}
