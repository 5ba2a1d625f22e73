/** Weights that are made of blocks of a file: integers and scales each apart. The compiler's module makes them, in a worker, or the page's server. */

import { WgfcError } from "../errors.js";
import type { Blocks } from "../weights.js";
import { deriveIn, serverOf } from "./server.js";
import type { DeriveReply } from "./worker.js";

let worker: Worker | undefined;
let ending: ReturnType<typeof setTimeout> | undefined;
let last: Promise<unknown> = Promise.resolve();
const IDLE_MS = 10_000;

/** The bytes that whole blocks make. */
export function derive(how: Blocks, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const server = serverOf();
  const mine = last.then(() => (server ? deriveIn(server, how, bytes) : ask(how, bytes)));
  last = mine.catch(() => {});
  return mine;
}

async function ask(how: Blocks, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  clearTimeout(ending);
  const asked = (worker ??= new Worker(new URL("./worker.js", import.meta.url), { type: "module" }));
  const reply = await new Promise<DeriveReply>((resolve, reject) => {
    asked.onmessage = ({ data }: MessageEvent<DeriveReply>) => resolve(data);
    asked.onerror = (e) => reject(new WgfcError("network", `the compiler's worker cannot be loaded: ${e.message || "its file is not there, or is no module"}`));
    asked.postMessage({ how, bytes });
  });
  ending = setTimeout(() => {
    asked.terminate();
    if (worker === asked) worker = undefined;
  }, IDLE_MS);
  if ("made" in reply) return reply.made;
  throw new WgfcError(reply.kind, reply.message);
}
