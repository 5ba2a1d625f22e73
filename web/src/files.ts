/** Files in memory or on disk. This module is loaded by the first model that needs it. */

import { WgfcError } from "./errors.js";
import { throwIfAborted } from "./fail.js";
import { type Files, type Source, UrlSource } from "./source.js";

/** Files in memory or on the user's disk, by name. */
export class FileSource implements Source {
  readonly name = "the files given";
  readonly #files: Files;
  readonly #cache: boolean | string | undefined;
  /** The sources of files that are addresses. */
  readonly #addresses = new Map<string, Promise<Source>>();
  readonly #fetched: Source[] = [];

  constructor(files: Files, cache?: boolean | string) {
    this.#files = files;
    this.#cache = cache;
  }

  get cached(): number {
    return this.#fetched.reduce((n, s) => n + (s.cached ?? 0), 0);
  }

  async *stream(file: string, from: number, to: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    throwIfAborted(signal);
    const found = this.#files[this.#named(file)]!;
    if (found instanceof URL) return yield* (await this.#at(found)).stream("", from, to, signal);
    const end = Math.min(to, Number.MAX_SAFE_INTEGER);
    if (!(found instanceof Blob)) {
      const bytes = typeof found === "string" ? new TextEncoder().encode(found) : found;
      yield bytes.subarray(from, end);
      return;
    }
    const STEP = 16 << 20;
    for (let at = from; at < Math.min(end, found.size); at += STEP) {
      throwIfAborted(signal);
      yield new Uint8Array(await found.slice(at, Math.min(at + STEP, end)).arrayBuffer());
    }
  }
  async forget(file: string, from: number, to: number): Promise<void> {
    const found = this.#files[this.#named(file)]!;
    if (found instanceof URL) await (await this.#at(found)).forget?.("", from, to);
  }

  /** The key in `#files` of a file. Recipes may encode names as addresses do. */
  #named(file: string): string {
    const has = (name: string) => Object.hasOwn(this.#files, name);
    const name = has(file) ? file : decoded(file);
    if (!has(name)) throw new WgfcError("network", `there is no file "${file}" among those given: ${Object.keys(this.#files).join(", ")}`);
    return name;
  }

  #at(url: URL): Promise<Source> {
    const source = new UrlSource(url);
    const open = async () => {
      const kept = this.#cache === false ? source : await (await import("./cache.js")).keep(source, undefined, this.#cache);
      this.#fetched.push(kept);
      return kept;
    };
    const known = this.#addresses.get(url.href) ?? open();
    this.#addresses.set(url.href, known);
    return known;
  }
}

/** Decodes a name in an address. */
export function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
