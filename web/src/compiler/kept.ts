/** Plans that were compiled before, in the cache of downloads. */

import type { Reply } from "./worker.js";

/** Which compiler made them. */
declare const COMPILER: string;

type Made = Extract<Reply, { json: string }>;
/** What a plan is made of: the model's graph, the request, and what tells its files from others. */
type Key = readonly (string | Uint8Array<ArrayBuffer>)[];

async function open(key: Key, cache: boolean | string = true): Promise<[Cache, string] | undefined> {
  if (cache === false || !globalThis.caches) return undefined;
  const bytes = await new Blob([COMPILER, ...key.flatMap((k) => ["\n", String(k.length), "\n", k])]).arrayBuffer();
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(hash, (b) => b.toString(16).padStart(2, "0")).join("");
  return [await caches.open(cache === true ? "wgfc" : cache), `https://wgfc.invalid/plan?${hex}`];
}

export async function keptPlan(key: Key, cache?: boolean | string): Promise<Made | undefined> {
  try {
    const [opened, at] = (await open(key, cache)) ?? [];
    const found = await opened?.match(at!);
    if (!found) return undefined;
    const bytes = new Uint8Array(await found.arrayBuffer());
    const length = new DataView(bytes.buffer).getUint32(0, true);
    return { json: new TextDecoder().decode(bytes.subarray(8, 8 + length)), data: bytes.slice(8 + length), ms: 0 };
  } catch {
    return undefined;
  }
}

/** Where there is no room, nothing is kept. */
export async function keepPlan(key: Key, { json, data }: Made, cache?: boolean | string): Promise<void> {
  try {
    const [opened, at] = (await open(key, cache)) ?? [];
    const text = new TextEncoder().encode(json);
    await opened?.put(at!, new Response(new Blob([Uint32Array.of(text.length, 0), text, data])));
  } catch {
    // The page does as well without.
  }
}
