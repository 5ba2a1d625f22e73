/** The safetensors format: a JSON header followed by bytes. */

import { type DType, isDType, packedBytes } from "./dtypes.js";
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

/** wgfc's name for a safetensors type: `f8e4m3uz` for `F8_E4M3FNUZ`. */
function named(type: string): string {
  return type.toLowerCase().replace("_", "").replace("fnuz", "uz");
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
  const types = new Map(known === undefined ? [] : Json.parse(known, `${where}: wgfc`).entries());
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
