/** Sources of a program's files. */

import { WgfcError } from "./errors.js";
import { aborted, messageOf } from "./fail.js";

/** The source of a model: the address of a folder or of a bundle (`.wgfc`), a bundle, or files by name. A file may also be an address. */
export type ModelSource = string | URL | Blob | Files;

export type Files = Readonly<Record<string, Uint8Array | string | Blob | URL>>;

export interface Source {
  /** The source's name in messages. */
  readonly name: string;
  /** The number of bytes that came from the cache. */
  readonly cached?: number;
  /** The bytes of a file between two positions, in pieces as they arrive. The stream ends early if the file does. */
  stream(file: string, from: number, to: number, signal?: AbortSignal): AsyncIterable<Uint8Array>;
  /** The record of a file whose bytes can be cached; undefined for other files. */
  kept?(file: string, signal?: AbortSignal): Promise<KeptFile | undefined>;
  /** Removes these bytes, which are corrupt, from the cache, so that the next request fetches them again. */
  forget?(file: string, from: number, to: number): Promise<void>;
}

export interface KeptFile {
  /** The identity of the file's content: its address and version. */
  readonly id: string;
  readonly bytes: number;
  /** Whether all of its bytes are in the cache. */
  readonly whole: boolean;
}

export async function readAll(source: Source, file: string, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
  const pieces: Uint8Array[] = [];
  for await (const piece of source.stream(file, 0, Infinity, signal)) pieces.push(piece);
  return concat(pieces);
}

export async function readText(source: Source, file: string, signal?: AbortSignal): Promise<string> {
  return new TextDecoder().decode(await readAll(source, file, signal));
}

export function concat(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of pieces) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

/** Files below an address, read with range requests. If a server does not support these, files are read from the beginning. */
export class UrlSource implements Source {
  readonly name: string;
  readonly #base: URL;

  constructor(base: URL) {
    this.#base = base;
    this.name = base.href;
  }

  /** `seen` is called with the response. */
  async *stream(file: string, from: number, to: number, signal?: AbortSignal, seen?: (response: Response) => void): AsyncGenerator<Uint8Array> {
    const url = new URL(file, this.#base);
    const part = from > 0 || to < Infinity;
    const headers = part ? { range: `bytes=${from}-${to < Infinity ? to - 1 : ""}` } : {};
    const response = await attempt(url, signal, () => fetch(url, { headers, signal: signal ?? null }));
    if (!response.ok)
      throw new WgfcError("network", `${url.href} cannot be fetched: the server says ${response.status}`);
    if (!response.body) return;
    seen?.(response);
    const reader = response.body.getReader();
    // Status 200 means that the server sends the whole file.
    let at = response.status === 206 ? from : 0;
    try {
      while (at < to) {
        const { done, value } = await attempt(url, signal, () => reader.read());
        if (done) return;
        const [begin, end] = [Math.max(0, from - at), Math.min(value.length, to - at)];
        at += value.length;
        if (begin < end) yield value.subarray(begin, end);
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }
}

async function attempt<T>(url: URL, signal: AbortSignal | undefined, f: () => Promise<T>): Promise<T> {
  try {
    return await f();
  } catch (cause) {
    if (signal?.aborted) throw aborted(signal);
    throw new WgfcError("network", `${url.href} cannot be fetched: ${messageOf(cause)}`, { cause });
  }
}
