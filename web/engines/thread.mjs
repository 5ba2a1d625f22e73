// A worker's thread in node: what a worker of a page has, as far as the package uses it.
import { register } from "node:module";
import { MessageChannel, Worker, parentPort, receiveMessageOnPort, workerData } from "node:worker_threads";

register("./hooks.mjs", import.meta.url);
Object.assign(globalThis, {
  addEventListener: (kind, f) => kind === "message" && parentPort.on("message", (data) => f({ data })),
  postMessage: (data, transfer) => parentPort.postMessage(data, transfer),
  location: new URL(workerData.page),
});

/** Waits for a thread that reads bytes: of a blob, or from an address. */
function readNow(of) {
  const done = new Int32Array(new SharedArrayBuffer(4));
  const { port1, port2 } = new MessageChannel();
  const reader = new Worker(new URL("./reader.mjs", import.meta.url), { workerData: { ...of, done, port: port2 }, transferList: [port2] });
  Atomics.wait(done, 0, 0);
  const { message } = receiveMessageOnPort(port1);
  void reader.terminate();
  if (message.error) throw new Error(message.error);
  return message;
}

globalThis.FileReaderSync = class {
  readAsArrayBuffer(blob) {
    return readNow({ blob }).bytes;
  }
};
globalThis.XMLHttpRequest = class {
  #headers = {};
  open(_, address) {
    this.address = address;
  }
  setRequestHeader(name, value) {
    this.#headers[name] = value;
  }
  send() {
    const { bytes, status } = readNow({ address: this.address, headers: this.#headers });
    [this.response, this.status] = [bytes, status];
  }
};

await import(workerData.address);
