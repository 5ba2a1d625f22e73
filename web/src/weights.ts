/** The places of weights' bytes in files, and their upload to the device. */

import { WgfcError } from "./errors.js";
import { corrupt, throwIfAborted } from "./fail.js";
import { type Json, count, optional, string } from "./json.js";
import type { Header } from "./safetensors.js";
import type { Source } from "./source.js";

/** A range of a file whose bytes belong to a tensor. */
export interface WeightPart {
  readonly file: string;
  readonly offset: number;
  readonly bytes: number;
  readonly sha256: string | undefined;
  /** The bytes of a row. In the tensor, the first row is at offset `at`, and rows are `pitch` bytes apart. */
  readonly row: number;
  readonly at: number;
  readonly pitch: number;
  /** How bytes of the tensor are made of those in the file, if they differ. `row`, `at` and `pitch` are in bytes of the tensor. */
  readonly how: Blocks | undefined;
}

/** A computation of bytes from whole blocks of bytes: each makes as many. */
export interface Blocks {
  readonly name: string;
  readonly block: number;
  readonly makes: number;
}

/** Elements that are f32 in the file and f16 in the tensor. */
const HALVED: Blocks = { name: "halved", block: 4, makes: 2 };
/** The number of bytes that some bytes of a file make. */
const made = (bytes: number, how: Blocks | undefined) => (how ? (bytes / how.block) * how.makes : bytes);

/** The parts of each weight, by name. */
export type WeightParts = ReadonlyMap<string, readonly WeightPart[]>;

/** A part of a weight to be uploaded. */
interface Job extends WeightPart {
  readonly name: string;
  readonly buffer: GPUBuffer;
}

/** A range of a file, and the parts of weights that are made of it. */
interface Range extends Job {
  readonly all: Job[];
}

export type Progress = (loaded: number, total: number) => void;

/** The largest size in bytes of a part, which is in memory as a whole while it is checked and uploaded. */
const LARGEST_PART = 16 << 20;
/** Parts at most this many bytes apart are fetched with one request, together with the bytes between them. */
const GAP = 64 << 10;
/** The number of bytes after which an upload waits for the device. */
const UNDER_WAY = 64 << 20;

/** The tensors of a safetensors file, split into parts. */
export function partsOfHeader(file: string, header: Header): Map<string, WeightPart[]> {
  const cut = (offset: number, bytes: number) => {
    const parts: WeightPart[] = [];
    for (let at = 0; at < bytes; at += LARGEST_PART) {
      const row = Math.min(LARGEST_PART, bytes - at);
      parts.push({ file, offset: offset + at, bytes: row, sha256: undefined, row, at, pitch: 0, how: undefined });
    }
    return parts;
  };
  return new Map([...header.tensors].map(([name, t]) => [name, cut(t.offset, t.bytes)]));
}

/** The parts of weights according to a plan's recipes. `named` converts a file's name in the plan to its name in the source. */
export function partsOfRecipes(weights: Json | undefined, named = (name: string) => name): Map<string, WeightPart[]> {
  if (!weights) return new Map();
  const files = weights.get("files").list((f) => f.object({ name: (n) => named(n.string()), bytes: optional(count) }));
  const part = (j: Json) => {
    const { file: i, column = 0, ...part } = j.object({
      column: optional(count), file: (f) => f.index(files.length), offset: count, bytes: count, sha256: optional(string),
    });
    const { name, bytes = Infinity } = files[i]!;
    if (part.bytes > LARGEST_PART) j.fail(`a part of ${part.bytes} bytes is larger than ${LARGEST_PART}`);
    if (part.offset + part.bytes > bytes) j.fail(`it is beyond the ${bytes} bytes of "${name}"`);
    return { file: name, column, ...part };
  };
  const tensor = (t: Json): WeightPart[] => {
    const { rows = 1, parts, dtype, from, derived } = t.object({
      rows: optional(count), parts: (p) => p.list(part), dtype: optional(string), from: optional(string),
      derived: optional((d) => d.object<Blocks>({ name: string, block: count, makes: count })),
    });
    const how = from === undefined ? derived : HALVED;
    if (how === HALVED && (from !== "f32" || dtype !== "f16")) t.fail(`elements of ${from} are not made into ${dtype}, only f32 into f16`);
    const columns: number[] = [];
    for (const { column, bytes } of parts) {
      if (column > columns.length) t.fail(`column ${column} where column ${columns.length} is the next`);
      columns[column] = (columns[column] ?? 0) + bytes;
    }
    const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
    const pitch = sum(columns) / rows;
    const done = columns.map(() => 0);
    return parts.map(({ column, ...part }) => {
      const row = rows > 1 ? columns[column]! / rows : part.bytes;
      if (row % 1 || part.bytes % row) t.fail(`column ${column} has ${columns[column]} bytes, and parts that are not whole ones of ${rows} rows`);
      const before = sum(columns.slice(0, column)) / rows;
      const at = before + (rows > 1 ? (done[column]! / row) * pitch : done[column]!);
      done[column]! += part.bytes;
      if (how && [row, at, part.bytes].some((n) => n % how.block)) t.fail(`column ${column} has parts that are not whole blocks of ${how.block} bytes`);
      return { ...part, row: made(row, how), at: made(at, how), pitch: made(pitch, how), how };
    });
  };
  return new Map(weights.get("tensors").entries().map(([name, t]) => [name, tensor(t)]));
}

/** Throws if a weight is missing or has another size than in the plan. */
export function checkParts(source: Source, parts: WeightParts, name: string, bytes: number): void {
  const have = parts.get(name)?.reduce((n, p) => n + made(p.bytes, p.how), 0);
  if (have === undefined) throw corrupt(source.name, `the weight "${name}" is in none of the files`);
  if (have !== bytes) throw corrupt(source.name, `the weight "${name}" has ${have} bytes, and the plan needs ${bytes}`);
}

/** Uploads weights, which must have been [checked](checkParts), to their buffers, whose sizes are multiples of a word. */
export async function upload(
  device: GPUDevice,
  source: Source,
  parts: WeightParts,
  targets: ReadonlyMap<string, GPUBuffer>,
  options: { signal?: AbortSignal | undefined; progress?: Progress | undefined } = {},
): Promise<void> {
  // A range is read once, however many weights are made of it.
  const ranges = new Map<string, Range>();
  for (const [name, buffer] of targets)
    for (const part of parts.get(name)!) {
      const key = [part.file, part.offset, part.bytes, part.sha256].join("\n");
      const job = { ...part, name, buffer };
      const range = ranges.get(key) ?? { ...job, all: [] };
      ranges.set(key, range);
      range.all.push(job);
    }
  const jobs = [...ranges.values()];
  const total = jobs.reduce((n, j) => n + j.bytes, 0);
  const writer = new Writer(device);
  let loaded = 0;
  options.progress?.(loaded, total);
  for (const run of runs(jobs))
    for await (const [range, bytes] of fetchRun(source, run, options.signal)) {
      for (const job of range.all) await writer.write(job, await bytesOf(job, bytes));
      loaded += range.bytes;
      options.progress?.(loaded, total);
    }
}

/** The bytes of a part of a weight, of those in the file. */
async function bytesOf({ how, name }: Job, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  if (!how) return bytes;
  return how === HALVED ? (await import("./halves.js")).halves(name, bytes) : (await import("./compiler/derive.js")).derive(how, bytes);
}

/** Groups ranges into runs, each of which is read with one request. */
function runs(jobs: Range[]): Range[][] {
  const sorted = jobs.filter((j) => j.bytes > 0);
  sorted.sort((a, b) => (a.file === b.file ? a.offset - b.offset : a.file < b.file ? -1 : 1));
  const out: Range[][] = [];
  let last: Range | undefined;
  for (const job of sorted) {
    const gap = last && last.file === job.file ? job.offset - (last.offset + last.bytes) : -1;
    if (gap >= 0 && gap <= GAP) out.at(-1)!.push(job);
    else out.push([job]);
    last = job;
  }
  return out;
}

/**
 * The parts of a run with their bytes, whose hashes are checked. After a network error or a wrong hash, the rest of the run is
 * requested once more.
 */
async function* fetchRun(source: Source, run: readonly Range[], signal?: AbortSignal): AsyncGenerator<[Range, Uint8Array<ArrayBuffer>]> {
  const end = run.at(-1)!.offset + run.at(-1)!.bytes;
  let next = 0;
  for (let retried = -1; next < run.length; ) {
    try {
      for await (const [job, bytes] of cut(source.stream(run[0]!.file, run[next]!.offset, end, signal), run, next)) {
        await check(job, bytes);
        throwIfAborted(signal);
        yield [job, bytes];
        next++;
      }
    } catch (e) {
      const again = e instanceof WgfcError && (e.kind === "network" || e.kind === "corrupt");
      if (!again || retried === next) throw e;
      retried = next;
      const { file, offset, bytes } = run[next]!;
      if (e.kind === "corrupt") await source.forget?.(file, offset, offset + bytes);
    }
  }
}

/** Splits a stream, which begins at part number `next`, into the parts. */
async function* cut(
  stream: AsyncIterable<Uint8Array>,
  run: readonly Range[],
  next: number,
): AsyncGenerator<[Range, Uint8Array<ArrayBuffer>]> {
  let at = run[next]!.offset;
  let filled = 0;
  let bytes = new Uint8Array(run[next]!.bytes);
  for await (let piece of stream) {
    while (next < run.length) {
      const job = run[next]!;
      const skip = Math.min(Math.max(0, job.offset - at), piece.length);
      const taken = piece.subarray(skip, skip + job.bytes - filled);
      bytes.set(taken, filled);
      filled += taken.length;
      at += skip + taken.length;
      piece = piece.subarray(skip + taken.length);
      if (filled < job.bytes) break;
      yield [job, bytes];
      filled = 0;
      bytes = new Uint8Array(run[++next]?.bytes ?? 0);
    }
  }
  const job = run[next];
  if (job) throw corrupt(job.file || "the bundle", `it ends at byte ${at}, inside of the weight "${job.name}"`);
}

async function check(job: Job, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
  if (job.sha256 === undefined) return;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("");
  if (hex !== job.sha256)
    throw corrupt(
      job.file || "the bundle",
      `bytes ${job.offset} to ${job.offset + job.bytes}, of the weight "${job.name}", do not have the hash that the plan says`,
    );
}

/** Writes parts to buffers. WebGPU writes only whole words, so words that parts share are assembled first. */
class Writer {
  readonly #device: GPUDevice;
  readonly #edges = new Map<GPUBuffer, Map<number, Uint8Array<ArrayBuffer>>>();
  #sent = 0;

  constructor(device: GPUDevice) {
    this.#device = device;
  }

  async write({ buffer, at, row, pitch }: Job, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    for (let from = 0; from < bytes.length; from += row, at += pitch) {
      const end = at + row;
      const first = Math.min(Math.ceil(at / 4) * 4, end);
      const last = Math.max(Math.floor(end / 4) * 4, first);
      const begin = from - at;
      if (last > first) this.#device.queue.writeBuffer(buffer, first, bytes, begin + first, last - first);
      this.#edge(buffer, at, bytes.subarray(from, begin + first));
      this.#edge(buffer, last, bytes.subarray(begin + last, from + row));
    }
    this.#sent += bytes.length;
    if (this.#sent < UNDER_WAY) return;
    this.#sent = 0;
    await this.#device.queue.onSubmittedWorkDone();
  }

  /** Writes a part of a word. */
  #edge(buffer: GPUBuffer, at: number, bytes: Uint8Array): void {
    if (bytes.length === 0) return;
    const edges = this.#edges.get(buffer) ?? new Map<number, Uint8Array<ArrayBuffer>>();
    this.#edges.set(buffer, edges);
    const start = Math.floor(at / 4) * 4;
    const word = edges.get(start) ?? new Uint8Array(4);
    edges.set(start, word);
    word.set(bytes, at - start);
    this.#device.queue.writeBuffer(buffer, start, word);
  }
}
