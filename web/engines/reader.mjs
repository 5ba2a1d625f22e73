// Reads bytes for a thread that waits.
import { workerData } from "node:worker_threads";

const { blob, address, headers, done, port } = workerData;
try {
  const response = blob ? undefined : await fetch(address, { headers });
  const bytes = await (blob ?? response).arrayBuffer();
  port.postMessage({ bytes, status: response?.status }, [bytes]);
} catch (e) {
  port.postMessage({ error: `${e}` });
}
Atomics.store(done, 0, 1);
Atomics.notify(done, 0);
