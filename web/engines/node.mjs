// Modules from addresses, workers, and caches that last as long as the process, in node.
import { register } from "node:module";
import { Worker as Thread } from "node:worker_threads";

/** Lets this thread import modules from http addresses, and gives it `Worker` and `caches`. */
export function becomePage() {
  register("./hooks.mjs", import.meta.url);
  Object.assign(globalThis, { Worker, caches: new Caches() });
}

/** A worker as pages have it, as far as the package uses one. */
class Worker {
  onmessage = undefined;
  onerror = undefined;
  #thread;

  constructor(address) {
    this.#thread = new Thread(new URL("./thread.mjs", import.meta.url), { workerData: { address: `${address}`, page: `${globalThis.location}` } });
    this.#thread.on("message", (data) => this.onmessage?.({ data }));
    this.#thread.on("error", (e) => this.onerror?.(e));
    // A page ends with its workers.
    this.#thread.unref();
  }
  postMessage(data, transfer = []) {
    this.#thread.ref();
    this.#thread.postMessage(data, transfer);
  }
  terminate() {
    void this.#thread.terminate();
  }
}

/** The Cache API, as far as the package uses it. */
class Caches {
  #caches = new Map();
  async open(name) {
    if (!this.#caches.has(name)) this.#caches.set(name, new Cache());
    return this.#caches.get(name);
  }
  async delete(name) {
    return this.#caches.delete(name);
  }
}

class Cache {
  /** Blobs by address. */
  #blobs = new Map();
  async match(address) {
    const blob = this.#blobs.get(addressOf(address));
    return blob && new Response(blob);
  }
  async put(address, response) {
    this.#blobs.set(addressOf(address), await response.blob());
  }
  async delete(address, options) {
    const keys = await this.keys(address, options);
    return keys.map(({ url }) => this.#blobs.delete(url)).length > 0;
  }
  async keys(address, { ignoreSearch = false } = {}) {
    const plain = (url) => (ignoreSearch ? url.split("?")[0] : url);
    const all = [...this.#blobs.keys()].map((url) => ({ url }));
    return address === undefined ? all : all.filter(({ url }) => plain(url) === plain(addressOf(address)));
  }
}

function addressOf(of) {
  return new URL(of.url ?? of, globalThis.location).href;
}
