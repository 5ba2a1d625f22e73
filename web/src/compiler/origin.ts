/** The places of a model's files, and streams of their bytes. */

import { WgfcError } from "../errors.js";
import { throwIfAborted } from "../fail.js";
import { decoded } from "../files.js";
import { type Files, type ModelSource, type Source, UrlSource, concat } from "../source.js";
import type { Bytes } from "./onnx.js";

/** A file in memory or on disk, or an address. */
export type Place = Blob | URL;

export interface Origin {
  /** The name of the model's file, without folders. */
  readonly name: string;
  readonly place: Place;
  /** The place of a file relative to the model's file. */
  beside(location: string): Place | undefined;
}

const MODEL = /\.(onnx|pt2|gguf)$/i;

/** The model's files for a source that the page gives. */
export function originOf(source: ModelSource): Origin {
  if (typeof source === "string" || source instanceof URL) {
    const url = new URL(source, globalThis.location?.href);
    const folder = new URL(".", url);
    return {
      name: decoded(url.pathname.split("/").pop() || "model"),
      place: url,
      beside: (location) => {
        const at = new URL(location.split("/").map(encodeURIComponent).join("/"), folder);
        return at.href.startsWith(folder.href) ? at : undefined;
      },
    };
  }
  if (source instanceof Blob) return { name: (source as Partial<File>).name || "model", place: source, beside: () => undefined };
  const names = Object.keys(source);
  const models = names.filter((n) => MODEL.test(n));
  const name = models.length === 1 ? models[0]! : models.find((n) => /(^|\/)model\.onnx$/i.test(n));
  if (name === undefined) {
    const what = models.length ? `several models, of which none is called model.onnx: ${models.join(", ")}` : `no .onnx, .pt2 or .gguf file, but ${names.join(", ") || "none"}`;
    throw new WgfcError("model", `among the files given there is ${what}`);
  }
  const folder = name.slice(0, name.lastIndexOf("/") + 1);
  return { name: name.slice(folder.length), place: place(source, name)!, beside: (location) => place(source, folder + location) ?? place(source, location) };
}

function place(files: Files, name: string): Place | undefined {
  const file = Object.hasOwn(files, name) ? files[name] : undefined;
  return file === undefined || file instanceof Blob || file instanceof URL ? file : new Blob([file as Uint8Array<ArrayBuffer> | string]);
}

export interface Found {
  readonly bytes?: number | undefined;
  /** The version of the file: an entity tag or a hash. */
  readonly version?: string | undefined;
  readonly missing?: boolean | undefined;
}

/** The size and version of a file, as far as the server reports them. */
export async function sizeOf(at: Place, signal?: AbortSignal): Promise<Found> {
  if (at instanceof Blob) {
    const date = (at as Partial<File>).lastModified;
    return { bytes: at.size, version: date === undefined ? undefined : `${at.size} ${date}` };
  }
  const response = await fetch(at, { method: "HEAD", signal: signal ?? null }).catch(() => undefined);
  throwIfAborted(signal);
  if (!response?.ok) return { missing: response?.status === 404 };
  const { headers } = response;
  const bytes = headers.has("content-encoding") ? 0 : Number(headers.get("content-length"));
  const version = headers.get("etag") ?? headers.get("last-modified") ?? undefined;
  return { bytes: bytes || undefined, version: version && `${at.href} ${version} ${bytes}` };
}

/** Whether a server sends parts of a file. */
export async function hasRanges(at: URL, signal?: AbortSignal): Promise<boolean> {
  const response = await fetch(at, { headers: { range: "bytes=0-3" }, signal: signal ?? null }).catch(() => undefined);
  throwIfAborted(signal);
  response?.body?.cancel().catch(() => {});
  return response?.status === 206;
}

const STEP = 1 << 20;

/** The bytes of a file with random access. Skipped bytes are not read. */
export class RandomBytes implements Bytes {
  readonly #size: number;
  readonly #read: (from: number, to: number) => Promise<Uint8Array>;
  #at = 0;

  constructor(size: number, read: (from: number, to: number) => Promise<Uint8Array>) {
    this.#size = size;
    this.#read = read;
  }

  static of(blob: Blob, signal?: AbortSignal): RandomBytes {
    return new RandomBytes(blob.size, async (from, to) => {
      throwIfAborted(signal);
      return new Uint8Array(await blob.slice(from, to).arrayBuffer());
    });
  }

  /** Reads a file through the cache, range by range. */
  static kept(source: Source, file: string, size: number, signal?: AbortSignal): RandomBytes {
    return new RandomBytes(size, async (from, to) => {
      const pieces: Uint8Array[] = [];
      for await (const piece of source.stream(file, from, to, signal)) pieces.push(piece);
      return concat(pieces);
    });
  }

  async next(): Promise<Uint8Array | undefined> {
    const from = this.#at;
    this.#at = Math.min(this.#size, from + STEP);
    return from < this.#size ? this.#read(from, this.#at) : undefined;
  }

  skip(bytes: number): boolean {
    this.#at += bytes;
    return this.#at <= this.#size;
  }
}

/** The number of bytes that are collected before they are appended to the `Blob`. */
const BATCH = 16 << 20;

/** A download. The bytes are collected in a `Blob`, which browsers need not hold in memory, and hashed. */
export class Download implements Bytes {
  readonly #open: () => AsyncIterator<Uint8Array>;
  readonly #progress: (loaded: number) => void;
  #pieces: AsyncIterator<Uint8Array>;
  #blob = new Blob([]);
  #batch: Uint8Array<ArrayBuffer>[] = [];
  #waiting = 0;
  #loaded = 0;
  /** The position at which the download was last interrupted. */
  #broken = -1;
  readonly #hashes: Promise<ArrayBuffer>[] = [];

  constructor(source: Source, file: string, signal: AbortSignal | undefined, progress: (loaded: number) => void) {
    this.#open = () => source.stream(file, this.#loaded, Infinity, signal)[Symbol.asyncIterator]();
    this.#pieces = this.#open();
    this.#progress = progress;
  }

  async next(): Promise<Uint8Array | undefined> {
    const { done, value } = await this.#pieces.next().catch((e: unknown) => {
      // After a network error, the download resumes once at the same position.
      if (!(e instanceof WgfcError) || e.kind !== "network" || this.#loaded <= Math.max(0, this.#broken)) throw e;
      this.#broken = this.#loaded;
      return (this.#pieces = this.#open()).next();
    });
    if (done) return undefined;
    this.#batch.push(value as Uint8Array<ArrayBuffer>);
    this.#waiting += value.length;
    this.#loaded += value.length;
    if (this.#waiting >= BATCH) this.#put();
    this.#progress(this.#loaded);
    return value;
  }

  /** Downloads the rest and returns the whole file with a version made of its hashes. */
  async whole(): Promise<{ blob: Blob; version: string }> {
    while (await this.next());
    this.#put();
    const hashes = (await Promise.all(this.#hashes)).map((h) => new Uint8Array(h).join());
    return { blob: this.#blob, version: `${this.#loaded} ${hashes.join(" ")}` };
  }

  #put(): void {
    const batch = new Blob(this.#batch);
    this.#hashes.push(batch.arrayBuffer().then((b) => crypto.subtle.digest("SHA-256", b)));
    this.#blob = new Blob([this.#blob, batch]);
    this.#batch = [];
    this.#waiting = 0;
  }
}

/** The source of a file at an address, with a cache unless `cache` is false. */
export async function sourceAt(url: URL, cache: boolean | string | undefined): Promise<Source> {
  const source = new UrlSource(url);
  return cache === false ? source : (await import("../cache.js")).keep(source, undefined, cache);
}
