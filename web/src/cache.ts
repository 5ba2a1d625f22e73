/**
 * A cache of downloads in the Cache API, so that a model is downloaded only once, even if the page is closed during the download.
 * This module is loaded by the first model that is fetched.
 *
 * A file is cached in chunks. Each chunk is stored as a whole under the file's identity and the chunk's number. The identity is
 * the file's hash in the plan, or the hashes of all parts that the plan uses; otherwise the file's address with its length and
 * its ETag or date from a HEAD request. A file without any of these is not cached.
 */

import { corrupt, throwIfAborted } from "./fail.js";
import type { Json } from "./json.js";
import { type KeptFile, type Source, UrlSource, concat } from "./source.js";

/** The name of the cache that `cache: true` opens. */
const CACHE = "wgfc";
const CHUNK = 4 << 20;
/** Entries of the cache need addresses. This domain does not exist. */
const BASE = "https://wgfc.invalid/";

/** A source with a cache; the same source if there is no Cache API. `weights` are the plan's recipes of weights. */
export async function keep(source: UrlSource, weights?: Json, name: boolean | string = true): Promise<Source> {
  if (name === false) return source;
  // In some frames and browser modes the Cache API exists but must not be used.
  const open = async () => globalThis.caches?.open(name === true ? CACHE : name);
  const cache = await open().catch(() => undefined);
  return cache ? new CachedSource(source, cache, weights) : source;
}

/** The record of a cached file. */
interface Kept {
  /** The identity as hexadecimal digits. */
  readonly id: string;
  readonly bytes: number;
  /** Its ETag or date, if the identity is based on it. */
  readonly validator: string | undefined;
  readonly chunks: Set<number>;
  /** Whether chunks are still stored. */
  open: boolean;
  /** Whether bytes from the cache have been returned. */
  used: boolean;
  changed: boolean;
}

class CachedSource implements Source {
  readonly name: string;
  /** The number of bytes that came from the cache. */
  cached = 0;
  readonly #source: UrlSource;
  readonly #cache: Cache;
  readonly #weights: Json | undefined;
  readonly #files = new Map<string, Promise<Kept | undefined>>();

  constructor(source: UrlSource, cache: Cache, weights: Json | undefined) {
    this.name = source.name;
    this.#source = source;
    this.#cache = cache;
    this.#weights = weights;
  }

  async *stream(file: string, from: number, to: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    const kept = await this.#file(file, signal);
    if (!kept) return yield* this.#source.stream(file, from, to, signal);
    const end = Math.min(to, kept.bytes);
    for (let at = from; at < end; ) {
      throwIfAborted(signal);
      const number = Math.floor(at / CHUNK);
      const chunk = await this.#get(kept, number);
      if (chunk) {
        const start = number * CHUNK;
        const piece = chunk.subarray(at - start, end - start);
        this.cached += piece.length;
        yield piece;
        at += piece.length;
        continue;
      }
      // Fetches up to the next chunk that is cached.
      let next = number + 1;
      while (next * CHUNK < end && !kept.chunks.has(next)) next++;
      const stop = Math.min(end, next * CHUNK);
      yield* this.#fetch(file, kept, at, stop, signal);
      at = stop;
    }
  }

  async kept(file: string, signal?: AbortSignal): Promise<KeptFile | undefined> {
    const kept = await this.#file(file, signal);
    if (!kept || kept.changed) return undefined;
    return { id: kept.id, bytes: kept.bytes, whole: kept.chunks.size === Math.ceil(kept.bytes / CHUNK) };
  }

  async forget(file: string, from: number, to: number): Promise<void> {
    const kept = await this.#files.get(file);
    for (let n = Math.floor(from / CHUNK); kept && n * CHUNK < to; n++) {
      kept.chunks.delete(n);
      await this.#cache.delete(entry(kept.id, n));
    }
  }

  /** Fetches bytes. Chunks of which at least half is requested are fetched and cached as a whole. */
  async *#fetch(file: string, kept: Kept, from: number, to: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    const whole = (n: number) => {
      const [begin, end] = bounds(kept, n);
      return kept.open && 2 * (Math.min(to, end) - Math.max(from, begin)) >= end - begin;
    };
    const [first, last] = [Math.floor(from / CHUNK), Math.ceil(to / CHUNK) - 1];
    let at = whole(first) ? first * CHUNK : from;
    const stop = whole(last) ? bounds(kept, last)[1] : to;
    const seen = (response: Response) => {
      const now = validatorOf(response.headers);
      if (kept.validator && now && now !== kept.validator) kept.changed = true;
    };
    let pieces: Uint8Array[] = [];
    let put: Promise<void> | undefined;
    for await (let piece of this.#source.stream(file, at, stop, signal, seen)) {
      if (kept.changed) {
        kept.open = false;
        if (kept.used) await this.#drop(file, kept);
      }
      while (piece.length) {
        const number = Math.floor(at / CHUNK);
        const [begin, end] = bounds(kept, number);
        const taken = piece.subarray(0, end - at);
        piece = piece.subarray(taken.length);
        if (whole(number)) pieces.push(taken);
        const given = taken.subarray(Math.max(0, from - at), Math.max(0, to - at));
        at += taken.length;
        if (at === end && pieces.reduce((n, p) => n + p.length, 0) === end - begin) {
          // A chunk is stored while the next one is fetched.
          await put;
          put = this.#put(file, kept, number, concat(pieces));
        }
        if (at === end) pieces = [];
        if (given.length) yield given;
      }
    }
    await put;
  }

  /** Deletes the chunks of a file that has changed on the server after bytes from the cache were returned, and throws. */
  async #drop(file: string, kept: Kept): Promise<never> {
    await deleteChunks(this.#cache, kept.id);
    throw corrupt(new URL(file, this.#source.name).href, "it was replaced while it was loaded");
  }

  async #get(kept: Kept, number: number): Promise<Uint8Array | undefined> {
    if (!kept.chunks.has(number)) return undefined;
    const [begin, end] = bounds(kept, number);
    const bytes = await this.#cache.match(entry(kept.id, number)).then((r) => r?.arrayBuffer()).catch(() => undefined);
    if (bytes?.byteLength === end - begin) {
      kept.used = true;
      return new Uint8Array(bytes);
    }
    kept.chunks.delete(number);
    return undefined;
  }

  /** Stores a chunk. After a failure, such as exceeding the quota, no further chunks of the file are stored. */
  async #put(file: string, kept: Kept, number: number, bytes: Uint8Array): Promise<void> {
    if (!kept.open) return;
    try {
      if (kept.chunks.size === 0 && kept.validator) await this.#replace(file, kept);
      await this.#cache.put(entry(kept.id, number), new Response(bytes as Uint8Array<ArrayBuffer>));
      kept.chunks.add(number);
    } catch {
      kept.open = false;
    }
  }

  /** Records the identity of the file at an address, and deletes the chunks of the file that was there before. */
  async #replace(file: string, kept: Kept): Promise<void> {
    const at = `${BASE}at?${encodeURIComponent(new URL(file, this.#source.name).href)}`;
    const before = await (await this.#cache.match(at))?.text();
    if (before !== undefined && before !== kept.id) await deleteChunks(this.#cache, before);
    await this.#cache.put(at, new Response(kept.id));
  }

  async #file(file: string, signal?: AbortSignal): Promise<Kept | undefined> {
    const known = this.#files.get(file) ?? this.#identify(file, signal);
    this.#files.set(file, known);
    try {
      const kept = await known;
      if (kept?.changed && kept.used) await this.#drop(file, kept);
      return kept;
    } catch (e) {
      this.#files.delete(file);
      throw e;
    }
  }

  async #identify(file: string, signal?: AbortSignal): Promise<Kept | undefined> {
    const found = this.#hashes(file) ?? (await this.#ask(new URL(file, this.#source.name), signal));
    if (!found) return undefined;
    const [bytes, text, validator] = found;
    const id = /^[\da-f]{64}$/i.test(text) ? text.toLowerCase() : await sha256(text);
    const keys = await this.#cache.keys(BASE + id, { ignoreSearch: true });
    const chunks = new Set(keys.map((k) => Number(new URL(k.url).search.slice(1))));
    return { id, bytes, validator, chunks, open: true, used: false, changed: false };
  }

  /** The length of a file and the hashes of it in the plan. */
  #hashes(file: string): [number, string] | undefined {
    const files = this.#weights?.get("files").list((f) => f);
    const i = files?.findIndex((f) => f.get("name").value === file) ?? -1;
    const [bytes, hash] = ["bytes", "sha256"].map((k) => files?.[i]?.get(k).value);
    if (typeof bytes !== "number") return undefined;
    if (typeof hash === "string") return [bytes, hash];
    const all = this.#weights!.get("tensors").entries().flatMap(([, t]) => t.get("parts").list((p) => p.value as Record<string, unknown>));
    const parts = all.filter((p) => p["file"] === i);
    if (!parts.length || parts.some((p) => typeof p["sha256"] !== "string")) return undefined;
    return [bytes, `${bytes} ${parts.map((p) => JSON.stringify([p["offset"], p["bytes"], p["sha256"]])).sort().join()}`];
  }

  /** Asks the server for a file's size and version with a HEAD request; undefined if it does not report them. */
  async #ask(url: URL, signal?: AbortSignal): Promise<[number, string, string] | undefined> {
    const response = await fetch(url, { method: "HEAD", signal: signal ?? null }).catch(() => undefined);
    throwIfAborted(signal);
    const headers = response?.ok ? response.headers : new Headers();
    const [bytes, validator] = [Number(headers.get("content-length")), validatorOf(headers)];
    // With a content encoding, the length is that of the compressed bytes.
    if (!(bytes > 0) || !validator || headers.has("content-encoding")) return undefined;
    return [bytes, `${url.href}\n${validator}\n${bytes}`, validator];
  }
}

const entry = (id: string, chunk: number) => `${BASE}${id}?${chunk}`;

/** The begin and the end of a chunk in its file. */
function bounds({ bytes }: Kept, chunk: number): [number, number] {
  return [chunk * CHUNK, Math.min((chunk + 1) * CHUNK, bytes)];
}

function validatorOf(headers: Headers): string | undefined {
  return headers.get("etag") ?? headers.get("last-modified") ?? undefined;
}

async function deleteChunks(cache: Cache, id: string): Promise<void> {
  await cache.delete(BASE + id, { ignoreSearch: true });
}

export async function sha256(data: string | Uint8Array<ArrayBuffer>): Promise<string> {
  const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
  return Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (b) => b.toString(16).padStart(2, "0")).join("");
}
