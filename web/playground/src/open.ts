/** From what is dropped, fetched or linked to a program. */

import { type Opened, graphOf, openFiles } from "./program.js";
import { deviceOf } from "./runs.js";

export interface HowToCompile {
  readonly dims?: Readonly<Record<string, number>>;
  readonly unfused?: boolean;
  readonly taps?: readonly string[];
  readonly schedules?: string;
}

const isModel = (name: string) => /\.(onnx|pt2)$/i.test(name);

/** Compiles a model in the page. */
export async function compiled(files: readonly File[], how: HowToCompile, say: (text: string) => void): Promise<Opened> {
  const model = files.find((f) => isModel(f.name));
  if (!model) throw new Error("there is no .onnx or .pt2 file among these");
  say("Loading the compiler");
  const { compile } = await import("wgfc/compiler");
  const device = await deviceOf().catch(() => undefined);
  say(`Compiling ${model.name}`);
  const source = files.length > 1 ? Object.fromEntries(files.map((f) => [f.name, f])) : model;
  const made = await compile(source, { ...how, ...(device ? { device } : {}) });
  const graph = /\.onnx$/i.test(model.name) ? await graphOf(model) : undefined;
  const opened = await openFiles(model.name, made.source, graph);
  const bytes = new Uint8Array(await model.arrayBuffer());
  return { ...opened, model: { name: model.name, bytes }, compiled: made.ms };
}

/** Opens dropped files: a model, a program's bundle, or the files of a program's folder. */
export async function openDropped(files: readonly File[], say: (text: string) => void): Promise<Opened> {
  if (files.some((f) => isModel(f.name))) return compiled(files, {}, say);
  const bundle = files.find((f) => /\.wgfc$/i.test(f.name));
  if (bundle) return openFiles(bundle.name, { [bundle.name]: bundle });
  if (!files.some((f) => f.name === "plan.json")) throw new Error(`${files[0]?.name ?? "this"} is no .onnx, .pt2 or .wgfc file, and no folder with a plan.json`);
  const named = files.map((f) => [f.name.endsWith(".wgsl") ? `kernels/${f.name}` : f.name, f] as const);
  return openFiles("program", Object.fromEntries(named));
}

/** The files of a drop, those in folders too. */
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

async function fetched(address: string): Promise<File> {
  const url = new URL(address, location.href);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.href} cannot be fetched: the server says ${response.status}`);
  return new File([await response.blob()], decodeURIComponent(url.pathname.split("/").pop()!));
}

/** Opens an address, beside which there may be a program that was compiled before: `digits.onnx` and `digits.wgfc`. */
export async function openAddress(address: string, say: (text: string) => void): Promise<Opened> {
  say(`Fetching ${address.split("/").pop()}`);
  if (!address.startsWith("./models/")) return openDropped([await fetched(address)], say);
  const [model, bundle] = await Promise.all([fetched(address), fetched(address.replace(/\.onnx$/, ".wgfc"))]);
  const opened = await openFiles(model.name, { [bundle.name]: bundle }, await graphOf(model));
  return { ...opened, model: { name: model.name, bytes: new Uint8Array(await model.arrayBuffer()) } };
}
