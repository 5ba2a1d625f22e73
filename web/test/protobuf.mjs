// ONNX models for tests, in bytes, of few words.
const bytes = (content) => (typeof content === "string" ? new TextEncoder().encode(content) : Uint8Array.from(content));
const varint = (n) => (n < 128 ? [n] : [(n % 128) | 128, ...varint(Math.floor(n / 128))]);

export function message(...fields) {
  const all = new Uint8Array(fields.reduce((n, f) => n + f.length, 0));
  let at = 0;
  for (const f of fields) {
    all.set(f, at);
    at += f.length;
  }
  return all;
}
export const field = (number, content) => message(bytes(varint(8 * number + 2)), bytes(varint(content.length)), bytes(content));
export const number = (field, n) => bytes([...varint(8 * field), ...varint(n)]);

/** A tensor of type f32, without its data. */
export const tensor = (name, ...more) => message(number(2, 1), field(8, name), ...more);
export const pair = (key, value) => field(13, message(field(1, key), field(2, value)));
/** Where the data of a tensor are. */
export const external = (location, offset, length) => [pair("location", location), pair("offset", `${offset}`), pair("length", `${length}`), number(14, 1)];

/** x · w, of a weight of these extents whose data are as `data` says; or x · (w + w), of which the sum is computed by the compiler. */
export function product(k, n, data, twice = false) {
  const extent = (e) => field(1, typeof e === "number" ? number(1, e) : field(2, e));
  const type = (extents) => field(1, message(number(1, 1), field(2, message(...extents.map(extent)))));
  const port = (name, ...extents) => message(field(1, name), field(2, type(extents)));
  const node = (name, operator, a, b, to) => field(1, message(field(1, a), field(1, b), field(2, to), field(3, name), field(4, operator)));
  const nodes = twice ? [node("sum", "Add", "w", "w", "ww"), node("product", "MatMul", "x", "ww", "y")] : [node("product", "MatMul", "x", "w", "y")];
  const weight = tensor("w", number(1, k), number(1, n), ...data);
  const graph = message(...nodes, field(2, "g"), field(5, weight), field(11, port("x", "batch", k)), field(12, port("y", "batch", n)));
  return message(number(1, 8), field(7, graph), field(8, message(field(1, ""), number(2, 17))));
}

const DTYPES = { 1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 12: "u32", 13: "u64", 16: "bf16" };

/** The type, the shape and the bytes of a tensor's message, whose data are raw. */
export function tensorOf(message) {
  let at = 0;
  const read = () => {
    let n = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = message[at++];
      n += (byte & 127) * factor;
      if (byte < 128) return n;
    }
  };
  const found = { shape: [], bytes: new Uint8Array() };
  while (at < message.length) {
    const tag = read();
    const [field, length] = [tag >> 3, read()];
    const end = tag % 8 === 2 ? at + length : at;
    if (field === 1 && tag % 8 === 0) found.shape.push(length);
    else if (field === 1) while (at < end) found.shape.push(read());
    else if (field === 2) found.dtype = DTYPES[length];
    else if (field === 9) found.bytes = Uint8Array.from(message.subarray(at, end));
    at = end;
  }
  return found;
}
