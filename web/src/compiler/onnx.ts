/**
 * Extracts the graph of an ONNX model without the bytes of its large tensors. The model is a protobuf message, which is read once
 * as a stream. A large `raw_data` of a tensor becomes external data in the model's own file; everything else is copied unchanged.
 */

/** A stream of a file's bytes. */
export interface Bytes {
  /** The next bytes; undefined at the end. */
  next(): Promise<Uint8Array | undefined>;
  /** Skips bytes, for sources that can do so without reading them. Returns whether the file has that many. */
  skip?(bytes: number): boolean;
}

export interface Graph {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** The number of bytes that were left out. */
  readonly moved: number;
  /** The external files of tensors, with the sizes that they must have at least. */
  readonly external: ReadonlyMap<string, number>;
}

/** Raw data of more bytes become external data. */
const LARGEST = 16 << 10;
/** The largest number of bytes of a tag and a length. */
const HEAD = 20;

/** The fields of a message that may contain tensors, by number. */
interface Schema {
  readonly [field: number]: () => Schema;
}
const tensor: Schema = {};
const attribute: Schema = { 5: () => tensor, 6: () => graph, 10: () => tensor, 11: () => graph };
const node: Schema = { 5: () => attribute };
const graph: Schema = { 1: () => node, 5: () => tensor };
const model: Schema = { 7: () => graph, 20: () => ({ 1: () => graph, 2: () => graph }), 25: () => ({ 7: () => node, 11: () => attribute }) };
const RAW_DATA = 9;
const EXTERNAL_DATA = 13;
const DATA_LOCATION = 14;
const DEEPEST = 200;

/**
 * Reads a model; undefined if it is no protobuf message or is truncated. `name` is the location of external data in the model's
 * own file.
 */
export async function graphOf(source: Bytes, name: string): Promise<Graph | undefined> {
  const reader = new Reader(source);
  const external = new Map<string, number>();
  let moved = 0;

  /** Copies a message that ends at `end`. */
  const copy = async (schema: Schema, end: number, depth: number): Promise<Pieces> => {
    if (depth > DEEPEST) throw new Malformed();
    const out = new Pieces();
    let raw: [offset: number, length: number] | undefined;
    const entries = new Map<string, string>();
    while (reader.position < end) {
      await reader.fill(HEAD);
      if (end === Infinity && reader.available === 0) break;
      const tag = reader.varint();
      const [field, wire] = [Math.floor(tag / 8), tag % 8];
      if (wire === 2) {
        const length = reader.varint();
        const stop = reader.position + length;
        if (stop > end) throw new Malformed();
        if (schema === tensor && field === RAW_DATA && length > LARGEST) {
          raw = [reader.position, length];
          moved += length;
          await reader.skip(length);
          continue;
        }
        const inner = schema[field]?.();
        const content = inner ? await copy(inner, stop, depth + 1) : new Pieces(await reader.bytes(length));
        if (schema === tensor && field === EXTERNAL_DATA) {
          const [key = "", value = ""] = stringsOf(content.join());
          entries.set(key, value);
        }
        out.message(field, content);
      } else {
        out.varint(tag);
        if (wire === 0) out.push(reader.digits());
        else if (wire === 1 || wire === 5) out.push(await reader.bytes(wire === 1 ? 8 : 4));
        else throw new Malformed();
      }
    }
    if (reader.position > end && end < Infinity) throw new Malformed();
    const location = entries.get("location");
    if (location !== undefined) {
      const [offset, length] = ["offset", "length"].map((k) => Number(entries.get(k) ?? 0) || 0) as [number, number];
      external.set(location, Math.max(external.get(location) ?? 0, offset + length));
    }
    if (raw) {
      for (const [key, value] of [["location", name], ["offset", String(raw[0])], ["length", String(raw[1])]] as const) {
        const pair = new Pieces();
        pair.message(1, new Pieces(encode(key)));
        pair.message(2, new Pieces(encode(value)));
        out.message(EXTERNAL_DATA, pair);
      }
      out.varint(8 * DATA_LOCATION);
      out.varint(1);
    }
    return out;
  };
  try {
    const all = await copy(model, Infinity, 0);
    return { bytes: all.join(), moved, external };
  } catch (e) {
    if (e instanceof Malformed) return undefined;
    throw e;
  }
}

class Malformed extends Error {}

const encode = (text: string) => new TextEncoder().encode(text);

/** The strings of a key-value pair. */
function stringsOf(message: Uint8Array): string[] {
  const out: string[] = [];
  for (let at = 0; at < message.length; ) {
    const field = message[at]! >> 3;
    // Keys and values are short, so their lengths are varints of one or two bytes.
    let length = message[at + 1]!;
    at += 2;
    if (length > 127) length = (length & 127) + 128 * message[at++]!;
    out[field - 1] = new TextDecoder().decode(message.subarray(at, at + length));
    at += length;
  }
  return out;
}

/** A message that is assembled from pieces. */
class Pieces {
  readonly #pieces: Uint8Array[] = [];
  length = 0;

  constructor(bytes?: Uint8Array) {
    if (bytes) this.push(bytes);
  }

  push(bytes: Uint8Array): void {
    this.#pieces.push(bytes);
    this.length += bytes.length;
  }

  varint(value: number): void {
    const bytes: number[] = [];
    for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
    this.push(Uint8Array.from([...bytes, value]));
  }

  message(field: number, content: Pieces): void {
    this.varint(8 * field + 2);
    this.varint(content.length);
    for (const p of content.#pieces) this.push(p);
  }

  join(): Uint8Array<ArrayBuffer> {
    const all = new Uint8Array(this.length);
    let at = 0;
    for (const p of this.#pieces) {
      all.set(p, at);
      at += p.length;
    }
    return all;
  }
}

/** A buffered reader of a stream. */
class Reader {
  /** The offset of the next byte in the file. */
  position = 0;
  readonly #source: Bytes;
  #buffer: Uint8Array = new Uint8Array();
  #at = 0;

  constructor(source: Bytes) {
    this.#source = source;
  }

  get available(): number {
    return this.#buffer.length - this.#at;
  }

  /** Waits for this many bytes, or for the end of the file. */
  async fill(bytes: number): Promise<void> {
    if (this.available >= bytes) return;
    const pieces = [this.#buffer.subarray(this.#at)];
    let have = this.available;
    for (let piece; have < bytes && (piece = await this.#source.next()); have += piece.length) pieces.push(piece);
    this.#buffer = new Uint8Array(have);
    this.#at = 0;
    for (let at = 0; pieces.length; ) {
      const piece = pieces.shift()!;
      this.#buffer.set(piece, at);
      at += piece.length;
    }
  }

  /** The bytes of a varint, which {@link fill} must have read. */
  digits(): Uint8Array {
    const begin = this.#at;
    for (;;) {
      if (this.available === 0 || this.#at - begin === 10) throw new Malformed();
      this.position++;
      if (this.#buffer[this.#at++]! < 128) return this.#buffer.slice(begin, this.#at);
    }
  }

  varint(): number {
    return this.digits().reduceRight((n, byte) => n * 128 + (byte & 127), 0);
  }

  async bytes(count: number): Promise<Uint8Array> {
    await this.fill(count);
    if (this.available < count) throw new Malformed();
    this.position += count;
    return this.#buffer.slice(this.#at, (this.#at += count));
  }

  async skip(count: number): Promise<void> {
    this.position += count;
    let rest = count - this.available;
    this.#at = Math.min(this.#buffer.length, this.#at + count);
    if (rest > 0 && this.#source.skip) {
      if (!this.#source.skip(rest)) throw new Malformed();
      return;
    }
    for (let piece; rest > 0; rest -= piece.length) {
      piece = await this.#source.next();
      if (!piece) throw new Malformed();
      if (piece.length <= rest) continue;
      this.#buffer = piece;
      this.#at = rest;
    }
  }
}
