/** Reading of a model's graph, without its weights. */

import { type Diagnostic, WgfcError } from "../errors.js";
import { concat, readAll } from "../source.js";
import { headerOf, isGguf } from "./gguf.js";
import type { CompileProgress } from "./index.js";
import { type Graph, graphOf } from "./onnx.js";
import { Download, type Origin, type Place, RandomBytes, hasRanges, sizeOf, sourceAt } from "./origin.js";

export interface ReadOptions {
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: CompileProgress) => void) | undefined;
  readonly cache?: boolean | string | undefined;
}

/** The answer about a model that is refused. */
export interface Refusal {
  readonly errors: readonly Diagnostic[];
  readonly text: string;
}

export function refused({ errors, text }: Refusal): WgfcError {
  const [first] = errors;
  return new WgfcError(first?.kind ?? "internal", text.trimEnd(), { node: first?.node ?? undefined, diagnostics: errors });
}

/** A file with weights of the plan. */
export interface Located {
  readonly place: Place;
  readonly bytes: number;
  /** The version of the file: an entity tag or a hash. */
  readonly version: string | undefined;
}

export interface ModelFiles {
  /** The model, or its graph. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** Whether these bytes are the whole model. */
  readonly whole: boolean;
  /** The name of the file of which these bytes are the beginning, for GGUF files. */
  readonly begins?: string;
  readonly files: ReadonlyMap<string, Located>;
}

/** The largest file that is no ONNX model and that is passed to the compiler, which reports what is wrong with it. */
const LARGEST_UNKNOWN = 1 << 30;

/** Reads the graph of a model, and finds the files with its weights. */
export async function readModel(origin: Origin, options: ReadOptions): Promise<ModelFiles> {
  const { name } = origin;
  const gguf = await openGguf(origin, options);
  if (gguf) return gguf;
  const { graph, at, bytes, version, all } = await open(origin, options);
  if (bytes === 0) throw new WgfcError("model", `${name} is empty`);
  if (!graph) {
    if (bytes > LARGEST_UNKNOWN) throw new WgfcError("model", `${name} is no ONNX model, or cut off, and too large for an archive: it has ${bytes} bytes`);
    return { bytes: await all(), whole: true, files: new Map() };
  }
  const files = new Map<string, Located>();
  if (graph.moved) files.set(name, { place: at, bytes, version });
  for (const [location, least] of graph.external) {
    if (files.has(location)) continue;
    const place = origin.beside(location);
    const found = place ? await sizeOf(place, options.signal) : { missing: true };
    // Missing files are skipped, as the compiler reports them with their tensors.
    if (!place || found.missing) continue;
    files.set(location, { place, bytes: found.bytes ?? least, version: found.version });
  }
  return { bytes: graph.bytes, whole: files.size === 0, files };
}

/** A GGUF file, of which the compiler gets the header. Undefined for other files. */
async function openGguf({ name, place }: Origin, options: ReadOptions): Promise<ModelFiles | undefined> {
  const { signal, onProgress, cache } = options;
  const model = async (place: Place, size: number, version: string | undefined, read: (to: number) => Promise<Uint8Array>): Promise<ModelFiles> => {
    const bytes = await headerOf(size, read);
    onProgress?.({ stage: "model", loaded: bytes.length, total: bytes.length });
    return { bytes, whole: false, begins: name, files: new Map([[name, { place, bytes: size, version }]]) };
  };
  const ofBlob = async (blob: Blob, version: string | undefined) => {
    const read = async (to: number) => new Uint8Array(await blob.slice(0, to).arrayBuffer());
    return isGguf(await read(4)) ? model(blob, blob.size, version, read) : undefined;
  };
  if (place instanceof Blob) return ofBlob(place, (await sizeOf(place)).version);
  if (!/\.gguf$/i.test(place.pathname)) return undefined;
  const { bytes, version } = await sizeOf(place, signal);
  const source = await sourceAt(place, cache);
  if (bytes !== undefined && (await hasRanges(place, signal)))
    return model(place, bytes, version, async (to) => concat(await all(source.stream("", 0, to, signal))));
  // A server without ranges sends the whole file each time, so it is downloaded once.
  const whole = await new Download(source, "", signal, (loaded) => onProgress?.({ stage: "model", loaded, total: bytes ?? 0 })).whole();
  return ofBlob(whole.blob, version ?? whole.version);
}

async function all(stream: AsyncIterable<Uint8Array>): Promise<Uint8Array[]> {
  const pieces: Uint8Array[] = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

interface Opened {
  readonly graph: Graph | undefined;
  readonly at: Place;
  readonly bytes: number;
  readonly version: string | undefined;
  readonly all: () => Promise<Uint8Array<ArrayBuffer>>;
}

/**
 * Reads the model's graph. A file at an address is downloaded unless it is cached; of a cached file, or one on disk, only the
 * graph is read.
 */
async function open({ name, place }: Origin, { signal, onProgress, cache }: ReadOptions): Promise<Opened> {
  const ofBlob = (blob: Blob) => ({ at: blob, bytes: blob.size, all: async () => new Uint8Array(await blob.arrayBuffer()) });
  if (place instanceof Blob) {
    const graph = await graphOf(RandomBytes.of(place, signal), name);
    return { graph, ...ofBlob(place), version: (await sizeOf(place)).version };
  }
  const source = await sourceAt(place, cache);
  const kept = await source.kept?.("", signal);
  const total = kept?.bytes ?? 0;
  const progress = (loaded: number) => onProgress?.({ stage: "model", loaded, total });
  if (kept?.whole) {
    const graph = await graphOf(RandomBytes.kept(source, "", total, signal), name);
    progress(total);
    return { graph, at: place, bytes: total, version: kept.id, all: () => readAll(source, "", signal) };
  }
  const download = new Download(source, "", signal, progress);
  const graph = await graphOf(download, name);
  const { blob, version } = await download.whole();
  return { graph, ...ofBlob(blob), version: (await source.kept?.("", signal))?.id ?? version };
}
