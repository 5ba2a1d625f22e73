/** The worker that runs one model on the CPU, in the evaluator's WebAssembly module. Node imports it, as it has no such workers. */

/** A model to open, or a run of the open model. */
export type Task =
  | {
      /** The model, or its graph. */
      readonly model: Uint8Array<ArrayBuffer>;
      /** The request as JSON. */
      readonly request: string;
      /** The model's files, in the order of the request. */
      readonly files: readonly Blob[];
    }
  | {
      readonly request: string;
      /** The elements of all inputs. */
      readonly data: Uint8Array<ArrayBuffer>;
    };

export type Result = { readonly json: string; readonly data: Uint8Array<ArrayBuffer> } | { readonly kind: "network" | "internal" | "limits"; readonly message: string };

/** The exports of the module, documented in `bindings/cpu`. */
interface Evaluator {
  readonly memory: WebAssembly.Memory;
  allocate(bytes: number): number;
  open(model: number, modelBytes: number, request: number, requestBytes: number): number;
  run(model: number, request: number, requestBytes: number, data: number, dataBytes: number): number;
  release(answer: number): void;
}

class Full extends Error {}

// TypeScript's types for workers conflict with those for pages, so this one is declared here.
declare function postMessage(result: Result, transfer: Transferable[]): void;
/** Node, whose `fetch` does not read files. */
declare const process: { getBuiltinModule?(name: "node:fs"): { readFileSync(path: URL): Uint8Array<ArrayBuffer> } } | undefined;

// Bundlers recognize addresses only in this form.
const ADDRESS = new URL("./cpu.wasm", import.meta.url);

async function compiled(): Promise<WebAssembly.Module> {
  const files = ADDRESS.protocol === "file:" && typeof process === "object" ? process.getBuiltinModule?.("node:fs") : undefined;
  if (files) return WebAssembly.compile(files.readFileSync(ADDRESS));
  const response = await fetch(ADDRESS);
  if (!response.ok) throw new Error(`the server says ${response.status}`);
  if (response.headers.get("content-type")?.startsWith("application/wasm")) return WebAssembly.compileStreaming(response);
  return WebAssembly.compile(await response.arrayBuffer());
}

const said = (e: unknown) => (e instanceof Error ? e.message : String(e));

/** A model in an instance of the module, whose memory is freed with the instance. */
export class Host {
  #evaluator: Evaluator | undefined;
  #model = 0;

  async answer(task: Task): Promise<Result> {
    if ("files" in task) {
      try {
        await this.#load(task.files);
      } catch (e) {
        return { kind: "network", message: `the module that runs models on the CPU cannot be loaded from ${ADDRESS.href}: ${said(e)}` };
      }
    }
    try {
      return "files" in task ? this.#open(task.model, task.request) : this.#run(task.request, task.data);
    } catch (e) {
      if (e instanceof Full) return { kind: "limits", message: e.message };
      return { kind: "internal", message: `the CPU's module broke off, as it does where the page has no more memory, or by a bug in it: ${said(e)}` };
    }
  }

  async #load(files: readonly Blob[]): Promise<void> {
    let contents: readonly Uint8Array[] = await Promise.all(files.map(async (f) => new Uint8Array(await f.arrayBuffer())));
    const read = (file: number, offset: bigint, into: number, length: number) => {
      const bytes = contents[file]?.subarray(Number(offset), Number(offset) + length);
      if (bytes?.length !== length) return 0;
      new Uint8Array(this.#evaluator!.memory.buffer, into >>> 0, length).set(bytes);
      return 1;
    };
    const { exports } = await WebAssembly.instantiate(await compiled(), { wgfc: { read } });
    this.#evaluator = exports as unknown as Evaluator;
    this.#forget = () => (contents = []);
  }

  /** Frees the contents of the model's files. */
  #forget = () => {};

  #open(model: Uint8Array, request: string): Result {
    const answer = this.#evaluator!.open(...this.#put(model), ...this.#put(new TextEncoder().encode(request)));
    this.#forget();
    return this.#take(answer, (at) => (this.#model = at));
  }

  #run(request: string, data: Uint8Array): Result {
    return this.#take(this.#evaluator!.run(this.#model, ...this.#put(new TextEncoder().encode(request)), ...this.#put(data)));
  }

  #put(bytes: Uint8Array): [at: number, bytes: number] {
    const { allocate, memory } = this.#evaluator!;
    const at = allocate(bytes.length) >>> 0;
    if (at === 0) throw new Full(`there is no memory for ${bytes.length} bytes beside the model`);
    new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
    return [at, bytes.length];
  }

  #take(at: number, opened?: (model: number) => void): Result {
    const { memory, release } = this.#evaluator!;
    const [json, jsonBytes, data, dataBytes, model] = new Uint32Array(memory.buffer, at >>> 0, 5) as unknown as [number, number, number, number, number];
    const result = {
      json: new TextDecoder().decode(new Uint8Array(memory.buffer, json, jsonBytes)),
      data: new Uint8Array(memory.buffer, data, dataBytes).slice(),
    };
    opened?.(model);
    release(at);
    return result;
  }
}

if (typeof window === "undefined" && typeof addEventListener === "function") {
  const host = new Host();
  addEventListener("message", ({ data }: MessageEvent<Task>) => {
    void host.answer(data).then((result) => postMessage(result, "data" in result ? [result.data.buffer] : []));
  });
}
