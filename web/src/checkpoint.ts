/** Checkpoints: the states of a training in a safetensors file, with its progress, as the command line writes them. */

import { type StateInfo, Tensor, type TensorLike, type TypedArray, WgfcError } from "./index.js";
import { bytesOf, packedBytes } from "./dtypes.js";
import { PIECE } from "./rows.js";
import { type Entry, parseHeader, writeHeader } from "./safetensors.js";
import { COPY_DST, MAP_FOR_READING, MAP_READ } from "./usage.js";

/** Tensors by name on the host. */
export type HostTensors = Readonly<Record<string, TensorLike<TypedArray>>>;

/** A tensor's type, and its bytes wherever they are. */
export interface Bytes {
  readonly dtype: TensorLike["dtype"];
  readonly shape: readonly number[];
  readonly size: number;
  read(from: number, to: number): Promise<Uint8Array<ArrayBuffer>>;
}

/** Tensors on the host. */
export function ofHost(tensors: HostTensors): Map<string, Bytes> {
  return new Map(
    Object.entries(tensors).map(([name, { dtype, shape, data }]) => {
      const bytes = bytesOf(new Tensor(dtype, shape, data).data);
      return [name, { dtype, shape, size: bytes.length, read: async (from, to) => bytes.subarray(from, to) }];
    }),
  );
}

/** The progress of a training. */
export interface Note {
  /** Steps done. */
  readonly step: number;
  /** The number of rows that they took. */
  readonly samples: number;
  /** The seed by which rows are shuffled; undefined if they are not. */
  readonly seed: bigint | undefined;
  /** The number of rows of the data. */
  readonly rows: number;
}

/** The tensors of a safetensors file, and its note if it is a checkpoint. */
export async function opened(file: Blob | Uint8Array<ArrayBuffer>): Promise<{ tensors: Map<string, Bytes>; note: Note | undefined }> {
  const blob = file instanceof Blob ? file : new Blob([file]);
  const read = async (from: number, to: number) => new Uint8Array(await blob.slice(from, to).arrayBuffer());
  const where = "the file of tensors";
  const first = await read(0, 8);
  const start = first.length < 8 ? Infinity : 8 + Number(new DataView(first.buffer).getBigUint64(0, true));
  if (!(start <= blob.size)) throw new WgfcError("corrupt", `${where} is not a safetensors file, or cut off`);
  const { tensors, metadata } = parseHeader(new TextDecoder().decode(await read(8, start)), start, where);
  const bytes = ([name, { dtype, shape, offset, bytes }]: [string, Entry]): [string, Bytes] => {
    if (offset + bytes > blob.size) throw new WgfcError("corrupt", `${where}: "${name}" is cut off`);
    return [name, { dtype, shape, size: bytes, read: (from, to) => read(offset + from, offset + to) }];
  };
  return { tensors: new Map([...tensors].map(bytes)), note: noteOf(metadata.get("wgfc")) };
}

function noteOf(text: string | undefined): Note | undefined {
  if (text === undefined) return undefined;
  const note = JSON.parse(text) as Readonly<Record<string, unknown>>;
  const counts = ["step", "samples", "rows"].map((key) => note[key]);
  if (!counts.every((n): n is number => typeof n === "number")) return undefined;
  const [step, samples, rows] = counts as [number, number, number];
  // The seed is read from the text, since it may have 64 bits.
  const seed = /"seed"\s*:\s*(\d+)/.exec(text)?.[1];
  return { step, samples, rows, seed: seed === undefined ? undefined : BigInt(seed) };
}

/** The states as a file. */
export async function written(device: GPUDevice, states: readonly StateInfo[], { step, samples, rows, seed }: Note): Promise<Blob> {
  // JSON's numbers lose bits of a 64-bit seed in JavaScript, so its text is inserted.
  const metadata = (types: unknown) => `{"step":${step},"samples":${samples},"seed":${seed ?? null},"rows":${rows},"types":${JSON.stringify(types ?? null)}}`;
  const byName = new Map(states.map((s) => [s.name, s]));
  const { header, order } = writeHeader(byName, metadata);
  const parts: BlobPart[] = [header];
  for (const name of order) for await (const piece of contents(device, byName.get(name)!)) parts.push(piece);
  return new Blob(parts, { type: "application/octet-stream" });
}

/** The bytes of a state, in pieces. */
async function* contents(device: GPUDevice, { name, dtype, shape, data }: StateInfo): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const bytes = packedBytes(dtype, shape.reduce((n, d) => n * d, 1));
  const whole = Math.ceil(bytes / 4) * 4;
  const staging = device.createBuffer({ label: `checkpoint of ${name}`, size: Math.min(PIECE, Math.max(whole, 4)), usage: MAP_READ | COPY_DST });
  try {
    for (let at = 0; at < bytes; at += PIECE) {
      const encoder = device.createCommandEncoder();
      encoder.copyBufferToBuffer(data, at, staging, 0, Math.min(PIECE, whole - at));
      device.queue.submit([encoder.finish()]);
      await staging.mapAsync(MAP_FOR_READING);
      yield new Uint8Array(staging.getMappedRange()).slice(0, Math.min(PIECE, bytes - at));
      staging.unmap();
    }
  } catch (cause) {
    throw new WgfcError("device-lost", "the states are gone: the device was lost, or the trainer disposed of", { cause });
  } finally {
    staging.destroy();
  }
}

/** The bytes, and zeros up to a whole number of words, of which WebGPU's writes are. */
export function wholeWords(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  if (bytes.length % 4 === 0) return bytes;
  const words = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  words.set(bytes);
  return words;
}
