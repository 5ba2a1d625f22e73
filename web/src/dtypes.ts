/** Element types: their formats in memory and conversions to numbers. */

export type DType =
  | "f32" | "f16" | "bf16" | "f64"
  | "f8e4m3" | "f8e4m3uz" | "f8e5m2" | "f8e5m2uz" | "f8e8m0" | "f4e2m1"
  | "i64" | "i32" | "i16" | "i8" | "i4" | "i2"
  | "u64" | "u32" | "u16" | "u8" | "u4" | "u2"
  | "bool";

/**
 * The arrays that hold elements. `f16` has a `Float16Array` if the browser supports it, otherwise a `Uint16Array` of bits. Types
 * of fewer than 8 bits are packed.
 */
export type TypedArray =
  | Float32Array | Float64Array | Float16Array
  | BigInt64Array | BigUint64Array
  | Int32Array | Int16Array | Int8Array
  | Uint32Array | Uint16Array | Uint8Array;

interface ArrayType {
  new (buffer: ArrayBufferLike, offset?: number, length?: number): TypedArray;
  new (length: number): TypedArray;
  readonly BYTES_PER_ELEMENT: number;
}

/** The numbers of exponent and mantissa bits, the exponent's bias, and the meaning of the largest exponent. */
type SmallFloat = [exponent: number, mantissa: number, bias: number, special: "ieee" | "nan" | "zero" | "none"];

interface Layout {
  readonly array: ArrayType;
  readonly float?: SmallFloat;
  /** The number of bits of an element, if it is smaller than an element of the array. */
  readonly bits?: number;
  readonly signed?: boolean;
}

// Copies of f16 bits are the same with either class.
const HALF: ArrayType = typeof Float16Array === "undefined" ? Uint16Array : Float16Array;

const LAYOUTS: Record<DType, Layout> = {
  f64: { array: Float64Array },
  f32: { array: Float32Array },
  f16: { array: HALF, float: [5, 10, 15, "ieee"] },
  bf16: { array: Uint16Array, float: [8, 7, 127, "ieee"] },
  f8e4m3: { array: Uint8Array, float: [4, 3, 7, "nan"] },
  f8e4m3uz: { array: Uint8Array, float: [4, 3, 8, "zero"] },
  f8e5m2: { array: Uint8Array, float: [5, 2, 15, "ieee"] },
  f8e5m2uz: { array: Uint8Array, float: [5, 2, 16, "zero"] },
  f8e8m0: { array: Uint8Array },
  f4e2m1: { array: Uint8Array, bits: 4, float: [2, 1, 1, "none"] },
  i64: { array: BigInt64Array },
  u64: { array: BigUint64Array },
  i32: { array: Int32Array },
  u32: { array: Uint32Array },
  i16: { array: Int16Array },
  u16: { array: Uint16Array },
  i8: { array: Int8Array },
  u8: { array: Uint8Array },
  bool: { array: Uint8Array },
  i4: { array: Uint8Array, bits: 4, signed: true },
  u4: { array: Uint8Array, bits: 4 },
  i2: { array: Uint8Array, bits: 2, signed: true },
  u2: { array: Uint8Array, bits: 2 },
};

export function isDType(name: unknown): name is DType {
  return typeof name === "string" && Object.hasOwn(LAYOUTS, name);
}
export function isFloat(dtype: DType): boolean {
  return dtype.startsWith("f") || dtype === "bf16";
}
export function bitsOf(dtype: DType): number {
  const { array, bits = 8 * array.BYTES_PER_ELEMENT } = LAYOUTS[dtype];
  return bits;
}

/** The size in bytes of this many elements when packed. */
export function packedBytes(dtype: DType, elements: number): number {
  return Math.ceil((elements * bitsOf(dtype)) / 8);
}
/** The size in bytes of a buffer for this many elements: a multiple of 4, at least 16. */
export function bufferBytes(dtype: DType, elements: number): number {
  return Math.max(16, Math.ceil(packedBytes(dtype, elements) / 4) * 4);
}

/** The typed array of a tensor of this type over these bytes, which are copied if they are not aligned. */
export function arrayOver(dtype: DType, bytes: Uint8Array): TypedArray {
  const { array } = LAYOUTS[dtype];
  const at = bytes.byteOffset % array.BYTES_PER_ELEMENT === 0 ? bytes : bytes.slice();
  return new array(at.buffer, at.byteOffset, at.byteLength / array.BYTES_PER_ELEMENT);
}

export function bytesOf(data: TypedArray): Uint8Array<ArrayBuffer> {
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
}

/** Whether a typed array of this class may hold the data of a tensor of this type. */
export function holds(dtype: DType, data: TypedArray): boolean {
  const { array } = LAYOUTS[dtype];
  // f16 bits are accepted even if Float16Array exists, and the Uint8ClampedArray of a picture is accepted for bytes.
  return data instanceof array || (dtype === "f16" && data instanceof Uint16Array) ||
    (array === Uint8Array && (data as unknown) instanceof Uint8ClampedArray);
}
export function arrayName(dtype: DType): string {
  return (LAYOUTS[dtype].array as unknown as { name: string }).name;
}

function smallFloat(bits: number, [e, m, bias, special]: SmallFloat): number {
  const sign = bits >> (e + m) ? -1 : 1;
  const exponent = (bits >> m) & ((1 << e) - 1);
  const mantissa = bits & ((1 << m) - 1);
  const top = exponent === (1 << e) - 1;
  if (special === "ieee" && top) return mantissa ? NaN : sign * Infinity;
  if (special === "nan" && top && mantissa === (1 << m) - 1) return NaN;
  if (special === "zero" && bits === 1 << (e + m)) return NaN;
  const scale = 2 ** (Math.max(exponent, 1) - bias - m);
  return sign * ((exponent ? 1 << m : 0) + mantissa) * scale;
}

/** The bits of a number in a type of 16 bits, rounded to nearest, ties to even. */
function to16(value: number, [e, m, bias]: SmallFloat): number {
  const infinity = ((1 << e) - 1) << m;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  if (Number.isNaN(value)) return infinity | (1 << (m - 1));
  const x = Math.abs(value);
  const exponent = Math.max(Math.floor(Math.log2(x)), 1 - bias);
  // The value in units of the last place. If rounding overflows the mantissa, the carry increments the exponent.
  const units = x / 2 ** (exponent - m);
  const whole = Math.floor(units);
  const rounded = whole + Number(units - whole > 0.5 || (units - whole === 0.5 && whole % 2 === 1));
  return sign | (x === Infinity ? infinity : Math.min(((exponent + bias - 1) << m) + rounded, infinity));
}

/** The elements as numbers. 64-bit integers beyond 2^53 are rounded. */
export function toNumbers(dtype: DType, data: TypedArray, elements: number): Float64Array {
  const { float, signed } = LAYOUTS[dtype];
  const bits = bitsOf(dtype);
  if (!(float || bits < 8 || dtype === "f8e8m0")) return Float64Array.from(data as ArrayLike<number | bigint>, Number);
  const raw = bytesOf(data);
  return Float64Array.from({ length: elements }, (_, i) => {
    let code: number;
    if (bits === 16) code = raw[2 * i]! | (raw[2 * i + 1]! << 8);
    else code = (raw[(i * bits) >> 3]! >> ((i * bits) & 7)) & ((1 << bits) - 1);
    if (float) return smallFloat(code, float);
    if (dtype === "f8e8m0") return code === 255 ? NaN : 2 ** (code - 127);
    return signed && code >> (bits - 1) ? code - (1 << bits) : code;
  });
}

/** Packs numbers. Floats are rounded to nearest. Float types of at most 8 bits are not supported. */
export function fromNumbers(dtype: DType, numbers: ArrayLike<number | bigint | boolean>): TypedArray {
  const { array, float } = LAYOUTS[dtype];
  const [bits, n] = [bitsOf(dtype), numbers.length];
  if ((float && bits <= 8) || dtype === "f8e8m0") throw new TypeError(`numbers are not rounded to ${dtype}: give its bits`);
  if (dtype === "f16" || dtype === "bf16") {
    const words = new Uint16Array(n);
    for (let i = 0; i < n; i++) words[i] = to16(Number(numbers[i]), float!);
    return arrayOver(dtype, bytesOf(words));
  }
  if (bits < 8) {
    const bytes = new Uint8Array(packedBytes(dtype, n));
    for (let i = 0; i < n; i++) bytes[(i * bits) >> 3]! |= (Number(numbers[i]) & ((1 << bits) - 1)) << ((i * bits) & 7);
    return bytes;
  }
  const data = new array(n);
  for (let i = 0; i < n; i++)
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) data[i] = BigInt(numbers[i]!);
    else data[i] = dtype === "bool" ? Number(Boolean(numbers[i])) : Number(numbers[i]);
  return data;
}
