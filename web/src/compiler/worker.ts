/** The worker that compiles models. It reads the model's files when the compiler requests bytes of them, and makes weights of blocks. */

import type { Blocks } from "../weights.js";

/** A file of a model: its bytes, or its address. */
export type WorkerFile = Blob | string;

export interface Job {
  /** The model, or its graph. */
  readonly model: Uint8Array<ArrayBuffer>;
  /** The request as JSON. */
  readonly request: string;
  /** The model's files, in the order of the request. */
  readonly files: readonly WorkerFile[];
  /** Whether naga validates the kernels. */
  readonly validate: boolean;
}

export type Reply =
  | { readonly json: string; readonly data: Uint8Array<ArrayBuffer>; readonly ms: number }
  | Failure;
/** Blocks of a file, of which a weight is made. */
export interface DeriveJob {
  readonly how: Blocks;
  readonly bytes: Uint8Array<ArrayBuffer>;
}
export type DeriveReply = { readonly made: Uint8Array<ArrayBuffer> } | Failure;
export interface Failure {
  readonly kind: "network" | "internal";
  readonly message: string;
}

/** The exports of the compiler's module, documented in `bindings/wasm`. */
interface Compiler {
  readonly memory: WebAssembly.Memory;
  allocate(bytes: number): number;
  compile(model: number, modelBytes: number, request: number, requestBytes: number): number;
  release(answer: number): void;
  derive(name: number, nameBytes: number, blocks: number, blocksBytes: number, made: number, madeBytes: number): number;
  free(at: number, bytes: number): void;
}

/** The exports of naga's module, documented in `bindings/validator`. */
interface Validator {
  readonly memory: WebAssembly.Memory;
  allocate(bytes: number): number;
  validate(answer: number, answerBytes: number): number;
}

// TypeScript's types for workers conflict with those for pages, so this one is declared here.
declare const FileReaderSync: new () => { readAsArrayBuffer(blob: Blob): ArrayBuffer };
declare function postMessage(reply: Reply | DeriveReply, transfer: Transferable[]): void;

/** A WebAssembly module of the package, which is loaded on first use. */
class Module {
  readonly #what: string;
  readonly #address: URL;
  #loaded: Promise<WebAssembly.Module> | undefined;

  constructor(what: string, address: URL) {
    this.#what = what;
    this.#address = address;
  }

  /** Starts loading the module. */
  begin(): Promise<WebAssembly.Module> {
    return (this.#loaded ??= this.#load());
  }

  async #load(): Promise<WebAssembly.Module> {
    const response = await fetch(this.#address);
    if (!response.ok) throw new Error(`the server says ${response.status}`);
    if (response.headers.get("content-type")?.startsWith("application/wasm")) return WebAssembly.compileStreaming(response);
    return WebAssembly.compile(await response.arrayBuffer());
  }

  /** A new instance with its own memory, or the failure of loading. */
  async instance(imports: WebAssembly.Imports): Promise<WebAssembly.Instance | Failure> {
    try {
      return await WebAssembly.instantiate(await this.begin(), imports);
    } catch (e) {
      this.#loaded = undefined;
      return { kind: "network", message: `${this.#what} cannot be loaded from ${this.#address.href}: ${said(e)}` };
    }
  }
}

const said = (e: unknown) => (e instanceof Error ? e.message : String(e));
// Bundlers recognize addresses only in this form.
const compilerModule = new Module("the compiler", new URL("./compiler.wasm", import.meta.url));
const validatorModule = new Module("naga, which validates kernels,", new URL("./validator.wasm", import.meta.url));

/** The least number of bytes of one fetch from an address, as the compiler reads consecutive tensors. */
const WINDOW = 256 << 10;
/** The last bytes that were fetched. */
let fetched: { file: string; offset: number; bytes: Uint8Array } | undefined;

/** Reads bytes of a file synchronously; fewer at the end of the file. */
function read(file: WorkerFile, offset: number, length: number): Uint8Array {
  if (typeof file !== "string") return new Uint8Array(new FileReaderSync().readAsArrayBuffer(file.slice(offset, offset + length)));
  const from = fetched?.file === file ? offset - fetched.offset : -1;
  if (from < 0 || from + length > fetched!.bytes.length) fetched = { file, offset, bytes: fetchNow(file, offset, Math.max(length, WINDOW)) };
  return fetched!.bytes.subarray(offset - fetched!.offset, offset - fetched!.offset + length);
}

function fetchNow(file: string, offset: number, length: number): Uint8Array {
  const request = new XMLHttpRequest();
  request.open("GET", file, false);
  request.responseType = "arraybuffer";
  request.setRequestHeader("range", `bytes=${offset}-${offset + length - 1}`);
  request.send();
  const bytes = new Uint8Array(request.response as ArrayBuffer);
  // Status 200 means that the server sends the whole file.
  if (request.status === 200) return bytes.subarray(offset, offset + length);
  return request.status === 206 ? bytes : new Uint8Array();
}

type Memory = Pick<Compiler, "allocate" | "memory">;

/** The address of new memory in a module. */
function room({ allocate }: Memory, bytes: number): number {
  const at = allocate(bytes) >>> 0;
  if (at === 0) throw new Error(`there is no memory for ${bytes} bytes`);
  return at;
}

/** Copies bytes into a module's memory. */
function put(module: Memory, bytes: Uint8Array): [at: number, bytes: number] {
  const { memory } = module;
  const at = room(module, bytes.length);
  new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
  return [at, bytes.length];
}

function compile(compiler: Compiler, { model, request }: Job): Exclude<Reply, Failure> {
  const { memory } = compiler;
  const start = performance.now();
  const answer = compiler.compile(...put(compiler, model), ...put(compiler, new TextEncoder().encode(request))) >>> 0;
  const [json, jsonBytes, data, dataBytes] = new Uint32Array(memory.buffer, answer, 4) as unknown as [number, number, number, number];
  const reply = {
    json: new TextDecoder().decode(new Uint8Array(memory.buffer, json, jsonBytes)),
    data: new Uint8Array(memory.buffer, data, dataBytes).slice(),
    ms: performance.now() - start,
  };
  compiler.release(answer);
  return reply;
}

/** The errors that naga finds in the kernels of an answer; empty if there are none. */
function problems(validator: Validator, json: string): string {
  const { memory } = validator;
  // The call may grow the memory, which detaches earlier views.
  const result = validator.validate(...put(validator, new TextEncoder().encode(json))) >>> 0;
  const [text, length] = new Uint32Array(memory.buffer, result, 2) as unknown as [number, number];
  return new TextDecoder().decode(new Uint8Array(memory.buffer, text, length));
}

async function answer(job: Job): Promise<Reply> {
  fetched = undefined;
  // Both modules are fetched concurrently.
  if (job.validate) validatorModule.begin().catch(() => {});
  let memory: WebAssembly.Memory;
  const files = {
    read: (file: number, offset: bigint, into: number, length: number) => {
      try {
        const bytes = read(job.files[file]!, Number(offset), length);
        if (bytes.length !== length) return 0;
        new Uint8Array(memory.buffer, into >>> 0, length).set(bytes);
        return 1;
      } catch {
        return 0;
      }
    },
  };
  // Each model has its own instance, whose memory is freed afterwards.
  const compiler = await compilerModule.instance({ wgfc: files });
  if ("kind" in compiler) return compiler;
  memory = compiler.exports["memory"] as WebAssembly.Memory;
  let reply: Exclude<Reply, Failure>;
  try {
    reply = compile(compiler.exports as unknown as Compiler, job);
  } catch (e) {
    return { kind: "internal", message: `the compiler broke off, as it does where the page has no more memory, or by a bug in it: ${said(e)}` };
  }
  // An answer with errors has no kernels.
  if (!job.validate || reply.json.startsWith('{"errors"')) return reply;
  const validator = await validatorModule.instance({});
  if ("kind" in validator) return validator;
  try {
    const message = problems(validator.exports as unknown as Validator, reply.json);
    return message ? { kind: "internal", message } : reply;
  } catch (e) {
    return { kind: "internal", message: `naga broke off, as it does where the page has no more memory, or by a bug in it: ${said(e)}` };
  }
}

/** The instance that makes weights. */
let deriving: Promise<WebAssembly.Instance | Failure> | undefined;

async function derive({ how, bytes }: DeriveJob): Promise<DeriveReply> {
  deriving ??= compilerModule.instance({ wgfc: { read: () => 0 } });
  const instance = await deriving;
  if ("kind" in instance) {
    deriving = undefined;
    return instance;
  }
  const compiler = instance.exports as unknown as Compiler;
  const length = (bytes.length / how.block) * how.makes;
  try {
    const into = room(compiler, length);
    const done = compiler.derive(...put(compiler, new TextEncoder().encode(how.name)), ...put(compiler, bytes), into, length);
    const made = new Uint8Array(compiler.memory.buffer, into, length).slice();
    compiler.free(into, length);
    return done ? { made } : { kind: "internal", message: `the compiler does not know how "${how.name}" makes ${length} bytes of ${bytes.length}` };
  } catch (e) {
    deriving = undefined;
    return { kind: "internal", message: `weights could not be made, as where the page has no more memory: ${said(e)}` };
  }
}

addEventListener("message", ({ data }: MessageEvent<Job | DeriveJob>) => {
  if ("how" in data) return void derive(data).then((reply) => postMessage(reply, "made" in reply ? [reply.made.buffer] : []));
  void answer(data).then((reply) => postMessage(reply, "data" in reply ? [reply.data.buffer] : []));
});
