/** The safetensors format: a JSON header followed by bytes. */

import { type DType, bitsOf, isDType, packedBytes } from "./dtypes.js";
import { corrupt } from "./fail.js";
import { Json } from "./json.js";
import { type Source, concat } from "./source.js";
import { elementsOf } from "./tensor.js";

export interface Entry {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** The offset of its bytes in the file. */
  readonly offset: number;
  readonly bytes: number;
}

export interface Header {
  readonly tensors: ReadonlyMap<string, Entry>;
  readonly metadata: ReadonlyMap<string, string>;
}

/** The safetensors type of an element type, undefined for those of fewer than 8 bits: `F8_E4M3FNUZ` for `f8e4m3uz`. */
function storedAs(dtype: DType): string | undefined {
  if (bitsOf(dtype) < 8) return undefined;
  return dtype.replace(/^f8/, "f8_").replace("uz", "fnuz").toUpperCase();
}

/** wgfc's name for a safetensors type: `f8e4m3uz` for `F8_E4M3FNUZ`. */
function named(type: string): string {
  return type.toLowerCase().replace("_", "").replace("fnuz", "uz");
}

/** The types that safetensors cannot express, by tensor. A checkpoint's metadata has them beside the progress of the training. */
function typesOf(note: Json): Json {
  return typeof note.get("rows").value === "number" ? note.get("types") : note;
}

const LARGEST_HEADER = 100 << 20;

/** Reads the header of a file with as little else as possible. */
export async function readHeader(source: Source, file: string, signal?: AbortSignal): Promise<Header> {
  const where = file || source.name;
  const pieces: Uint8Array[] = [];
  let [have, need] = [0, 8];
  for await (const piece of source.stream(file, 0, Infinity, signal)) {
    pieces.push(piece);
    have += piece.length;
    if (need === 8 && have >= 8) {
      const first = concat(pieces);
      need = 8 + Number(new DataView(first.buffer).getBigUint64(0, true));
      if (need > LARGEST_HEADER) throw corrupt(where, "it is not a safetensors file");
    }
    if (have >= need) break;
  }
  if (have < need) throw corrupt(where, `it ends after ${have} of at least ${need} bytes`);
  return parseHeader(new TextDecoder().decode(concat(pieces).subarray(8, need)), need, where);
}

export function parseHeader(text: string, start: number, where: string): Header {
  const root = Json.parse(text, where);
  const metadata = new Map(root.get("__metadata__").entries().map(([k, v]) => [k, v.string()]));
  const known = metadata.get("wgfc");
  const types = new Map(known === undefined ? [] : typesOf(Json.parse(known, `${where}: wgfc`)).entries());
  const tensors = new Map<string, Entry>();
  for (const [name, j] of root.entries()) {
    if (name === "__metadata__") continue;
    const [begin = NaN, end = NaN] = j.get("data_offsets").list((o) => o.count());
    // wgfc's metadata has the types that safetensors cannot express.
    const stored = types.get(name) ?? j;
    const dtype = named(stored.get("dtype").string());
    if (!isDType(dtype)) return stored.fail(`${dtype} is no element type`);
    const shape = stored.get("shape").list((d) => d.count());
    if (packedBytes(dtype, elementsOf(shape)) !== end - begin)
      j.fail(`${dtype}[${shape}] does not take ${end - begin} bytes`);
    tensors.set(name, { dtype, shape, offset: start + begin, bytes: end - begin });
  }
  return { tensors, metadata };
}

/** The parts of a file of tensors before their bytes: where each tensor's bytes go, and the header. */
export interface Written {
  readonly header: Uint8Array<ArrayBuffer>;
  /** The names of the tensors, in the order of their bytes, which follow the header without gaps. */
  readonly order: readonly string[];
}

/**
 * The header of a file. `metadata` makes the text of wgfc's metadata from the entries of types that safetensors cannot express, if there are
 * any.
 */
export function writeHeader(
  tensors: ReadonlyMap<string, { readonly dtype: DType; readonly shape: readonly number[] }>,
  metadata: (types: Readonly<Record<string, unknown>> | undefined) => string,
): Written {
  // Sorted by element width, widest first, each tensor starts at a multiple of its element's size.
  const sorted = [...tensors].sort(([a, s], [b, t]) => bitsOf(t.dtype) - bitsOf(s.dtype) || (a < b ? -1 : 1));
  const types: Record<string, unknown> = {};
  let at = 0;
  const entries = sorted.map(([name, { dtype, shape }]) => {
    const bytes = packedBytes(dtype, elementsOf(shape));
    const stored = storedAs(dtype);
    if (!stored) types[name] = { dtype, shape };
    return [name, { dtype: stored ?? "U8", shape: stored ? shape : [bytes], data_offsets: [at, (at += bytes)] }];
  });
  const note = metadata(Object.keys(types).length ? types : undefined);
  const text = new TextEncoder().encode(JSON.stringify(Object.fromEntries([["__metadata__", { wgfc: note }], ...entries])));
  const size = Math.ceil(text.length / 8) * 8;
  const header = new Uint8Array(8 + size).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(size), true);
  header.set(text, 8);
  return { header, order: sorted.map(([name]) => name) };
}
