/** The cache of compiled plans, which is part of the cache of downloads. */

import type { Reply } from "./worker.js";

/** The identity of the compiler. */
declare const COMPILER: string;

export type Made = Extract<Reply, { json: string }>;
/** The key of a compiled plan in the cache: the model's graph, the request, and the versions of the model's files. */
export type Key = readonly (string | Uint8Array<ArrayBuffer>)[];

/** A plan's entry in the cache. */
export interface Place {
  get(): Promise<Made | undefined>;
  /** Stores the plan. Nothing is stored if there is no room. */
  put(made: Made): Promise<void>;
}

/** The cache entry for a key; undefined if caching is off or not possible. */
export async function placeOf(key: Key, name: boolean | string = true): Promise<Place | undefined> {
  const open = async () => (name === false ? undefined : globalThis.caches?.open(name === true ? "wgfc" : name));
  const cache = await open().catch(() => undefined);
  if (!cache) return undefined;
  const bytes = await new Blob([COMPILER, ...key.flatMap((k) => ["\n", String(k.length), "\n", k])]).arrayBuffer();
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const at = `https://wgfc.invalid/plan?${Array.from(hash, (b) => b.toString(16).padStart(2, "0")).join("")}`;
  return {
    get: async () => {
      const bytes = new Uint8Array((await cache.match(at).then((r) => r?.arrayBuffer()).catch(() => undefined)) ?? new ArrayBuffer());
      if (bytes.length < 8) return undefined;
      const length = new DataView(bytes.buffer).getUint32(0, true);
      return { json: new TextDecoder().decode(bytes.subarray(8, 8 + length)), data: bytes.slice(8 + length), ms: 0 };
    },
    put: async ({ json, data }) => {
      const text = new TextEncoder().encode(json);
      await cache.put(at, new Response(new Blob([Uint32Array.of(text.length, 0), text, data]))).catch(() => {});
    },
  };
}
