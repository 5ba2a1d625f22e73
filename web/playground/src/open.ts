/** Opening of programs and models that are dropped, fetched or linked. */

import type { ModelSource } from "wgfc";
import { LARGEST_FILE } from "./hash.js";
import { type Opened, graphOf, openFiles } from "./program.js";
import { deviceOf } from "./runs.js";

export interface HowToCompile {
  readonly dims?: Readonly<Record<string, number>>;
  readonly unfused?: boolean;
  readonly taps?: readonly string[];
  readonly schedules?: string;
  readonly listSchedules?: boolean;
}

const isModel = (name: string) => /\.(onnx|pt2|gguf)$/i.test(name);

/** A model to compile: its files, or its address, relative to which its external data is found. */
export type Source = readonly File[] | URL;

/** Compiles a model in the page. */
export async function compiled(from: Source, how: HowToCompile, say: (text: string) => void): Promise<Opened> {
  const file = from instanceof URL ? undefined : from.find((f) => isModel(f.name));
  const name = from instanceof URL ? decodeURIComponent(from.pathname.split("/").pop()!) : file?.name;
  if (name === undefined) throw new Error("there is no .onnx, .pt2 or .gguf file among these");
  say("Loading the compiler");
  const { compile } = await import("wgfc/compiler");
  const device = await deviceOf().catch(() => undefined);
  say(`Compiling ${name}`);
  const made = await compile(sourceOf(from), { ...how, validate: true, ...(device ? { device } : {}) });
  const graph = /\.onnx$/i.test(name) ? await graphOf(file ?? (await fetched(from as URL))) : undefined;
  const opened = await openFiles(name, made.source, graph);
  const small = file && file.size <= LARGEST_FILE ? { file: { name, bytes: new Uint8Array(await file.arrayBuffer()) } } : {};
  const { schedules } = made;
  return { ...opened, model: from, compiled: made.ms, ...small, ...(schedules === undefined ? {} : { schedules }) };
}

/** A model as the compiler takes it. */
export function sourceOf(from: Source): ModelSource {
  return from instanceof URL ? from : from.length > 1 ? Object.fromEntries(from.map((f) => [f.name, f])) : from[0]!;
}

/** Opens dropped files: a model, a program's bundle, or the files of a program's folder. */
export async function openDropped(files: readonly File[], say: (text: string) => void): Promise<Opened> {
  if (files.some((f) => isModel(f.name))) return compiled(files, {}, say);
  const bundle = files.find((f) => /\.wgfc$/i.test(f.name));
  if (bundle) return openFiles(bundle.name, { [bundle.name]: bundle });
  if (!files.some((f) => f.name === "plan.json")) throw new Error(`${files[0]?.name ?? "this"} is no .onnx, .pt2, .gguf or .wgfc file, and no folder with a plan.json`);
  return openFiles("program", filesByName(files));
}

/** The files of a program's folder by their names in it. */
export function filesByName(files: readonly File[]): Record<string, File> {
  return Object.fromEntries(files.map((f) => [f.name.endsWith(".wgsl") ? `kernels/${f.name}` : f.name, f] as const));
}

/** The files of a drop, including those in folders. */
export async function filesOf(data: DataTransfer): Promise<File[]> {
  const entries = [...data.items].map((i) => i.webkitGetAsEntry()).filter((e) => e !== null);
  const read = async (entry: FileSystemEntry): Promise<File[]> => {
    if (entry.isFile) return [await new Promise<File>((ok, bad) => (entry as FileSystemFileEntry).file(ok, bad))];
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    const out: File[] = [];
    for (;;) {
      const some = await new Promise<FileSystemEntry[]>((ok, bad) => reader.readEntries(ok, bad));
      if (some.length === 0) return out;
      for (const e of some) out.push(...(await read(e)));
    }
  };
  return (await Promise.all(entries.map(read))).flat();
}

async function fetched(url: URL): Promise<File> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.href} cannot be fetched: the server says ${response.status}`);
  return new File([await response.blob()], decodeURIComponent(url.pathname.split("/").pop()!));
}

/** Opens a program's folder at an address. Files other than the plan are passed on as addresses. */
async function openFolder(url: URL): Promise<Opened> {
  const plan = await (await fetched(new URL("plan.json", url))).text();
  const root = JSON.parse(plan) as { plans?: { kernels: { name: string }[] }[]; kernels?: { name: string }[]; weights?: { files: { name: string }[] } };
  const kernels = (root.plans ?? [root]).flatMap((p) => p.kernels ?? []).map((k) => `kernels/${k.name}.wgsl`);
  const names = [...new Set([...kernels, "weights.safetensors", ...(root.weights?.files ?? []).map((f) => f.name)])];
  const name = decodeURIComponent(url.pathname.split("/").at(-2) || "program");
  return openFiles(name, { "plan.json": plan, ...Object.fromEntries(names.map((n) => [n, new URL(n, url)])) });
}

/** Opens an address. Demos have a compiled program beside the model. */
export async function openAddress(address: string, say: (text: string) => void): Promise<Opened> {
  const url = new URL(address, location.href);
  say(`Fetching ${decodeURIComponent(url.pathname.split("/").pop()!)}`);
  if (url.pathname.endsWith("/")) return openFolder(url);
  if (isModel(url.pathname) && !address.startsWith("./models/")) return compiled(url, {}, say);
  if (!address.startsWith("./models/")) {
    const bundle = await fetched(url);
    return openFiles(bundle.name, { [bundle.name]: bundle }, undefined, url);
  }
  const [model, bundle] = await Promise.all([url, new URL(address.replace(/\.onnx$/, ".wgfc"), location.href)].map(fetched)) as [File, File];
  return { ...(await openFiles(model.name, { [bundle.name]: bundle }, await graphOf(model))), model: [model] };
}
