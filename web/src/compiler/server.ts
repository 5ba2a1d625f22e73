/**
 * Compilation by the server that a page came from, as `wgfc serve` does it. The page says so by
 * `<meta name="wgfc-compiler" content="ADDRESS">`. Files stay in the page, which sends the bytes that the server asks for.
 */

import { WgfcError } from "../errors.js";
import { throwIfAborted } from "../fail.js";
import type { Blocks } from "../weights.js";
import type { Job, Reply, WorkerFile } from "./worker.js";

/** The address of the server's compiler. Undefined in other pages, and in workers. */
export function serverOf(): URL | undefined {
  const said = globalThis.document?.querySelector<HTMLMetaElement>('meta[name="wgfc-compiler"]')?.content;
  return said ? new URL(said, document.baseURI) : undefined;
}

async function send(address: URL, body: Blob, signal?: AbortSignal): Promise<Response> {
  const init = { method: "POST", headers: { "content-type": "application/octet-stream" }, body, signal: signal ?? null };
  let response: Response;
  try {
    response = await fetch(address, init);
  } catch (e) {
    throwIfAborted(signal);
    throw new WgfcError("network", `the server that compiles cannot be reached: see whether \`wgfc serve\` still runs, and what it says (${String(e)})`);
  }
  if (response.ok) return response;
  throw new WgfcError("network", `the server that compiles says ${response.status}: ${(await response.text()).trim()}`);
}

/** A request of the server for bytes of a file, or fewer at its end. */
interface Read {
  readonly job: number;
  readonly file: number;
  readonly offset: number;
  readonly bytes: number;
}

async function bytesOf(file: WorkerFile | undefined, { offset, bytes }: Read, signal?: AbortSignal): Promise<Blob> {
  if (file === undefined) return new Blob();
  if (typeof file !== "string") return file.slice(offset, offset + bytes);
  const response = await fetch(file, { headers: { range: `bytes=${offset}-${offset + bytes - 1}` }, signal: signal ?? null });
  if (!response.ok) return new Blob();
  const blob = await response.blob();
  // Status 200 means that the server sends the whole file.
  return response.status === 200 ? blob.slice(offset, offset + bytes) : blob;
}

/** Compiles a model there. The kernels have been validated. */
export async function inServer(server: URL, { model, request, files }: Job, signal?: AbortSignal): Promise<Extract<Reply, { json: string }>> {
  const start = performance.now();
  const text = new TextEncoder().encode(request);
  let response = await send(new URL("compile", server), new Blob([Uint32Array.of(text.length), text, model]), signal);
  while (response.status === 202) {
    const read = (await response.json()) as Read;
    // A file that cannot be read is an empty one, and the compiler says which it is.
    const bytes = await bytesOf(files[read.file], read, signal).catch(() => new Blob());
    response = await send(new URL(`compile/${read.job}`, server), bytes, signal);
  }
  const answer = await response.arrayBuffer();
  const length = new DataView(answer).getUint32(0, true);
  const json = new TextDecoder().decode(new Uint8Array(answer, 4, length));
  return { json, data: new Uint8Array(answer.slice(4 + length)), ms: performance.now() - start };
}

/** The bytes that whole blocks make. */
export async function deriveIn(server: URL, how: Blocks, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const response = await send(new URL(`blocks/${encodeURIComponent(how.name)}`, server), new Blob([bytes]));
  return new Uint8Array(await response.arrayBuffer());
}
