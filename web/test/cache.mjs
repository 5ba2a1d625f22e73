// The cache of fetched files, in headless Chromium: pages that are closed, files that change, chunks that are spoilt.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, beforeEach, test } from "node:test";
import { openPage } from "./chromium.mjs";
import { buffer, bundle, dispatch, kernel, plan, port } from "./plans.mjs";

const CHUNK = 4 << 20;
const ELEMENTS = 2.5 * CHUNK / 4;
const BYTES = 4 * ELEMENTS;
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** A file of one weight, of numbers that begin with `first`. */
function weights(first) {
  const header = Buffer.from(JSON.stringify({ w: { dtype: "F32", shape: [ELEMENTS], data_offsets: [0, BYTES] } }));
  const length = Buffer.alloc(8);
  length.writeUInt32LE(header.length);
  return Buffer.concat([length, header, Buffer.from(Float32Array.from({ length: ELEMENTS }, (_, i) => first + i).buffer)]);
}
const START = weights(0).length - BYTES;

/** It gives 4 of the weight's elements, one of each quarter. */
const model = plan({
  inputs: [port("x", [4])], outputs: [port("y", [4], 1)], symbols: [],
  buffers: [buffer(4, { kind: "input", index: 0 }), buffer(4, { kind: "output", index: 0 }), buffer(ELEMENTS, { kind: "weight", name: "w" })],
  kernels: [kernel({ workgroup_size: [4, 1, 1], bindings: ["read", "read", "read_write"] })], dispatches: [dispatch({ bindings: [0, 2, 1] })],
});
const text = `@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  y[id.x] = x[id.x] + w[id.x * ${ELEMENTS / 4} + ${ELEMENTS / 4 - 1}];
}`;
const results = (first) => [0, 1, 2, 3].map((i) => first + ((i + 1) * ELEMENTS) / 4 - 1);

/** A plan whose weights have the hashes of their parts. */
function hashed(file) {
  const parts = [];
  for (let at = START; at < file.length; at += 1_000_000) {
    const part = file.subarray(at, at + 1_000_000);
    parts.push({ file: 0, offset: at, bytes: part.length, sha256: sha256(part) });
  }
  const recipes = { files: [{ name: "weights.safetensors", bytes: file.length }], tensors: { w: { dtype: "f32", shape: [ELEMENTS], parts } } };
  return bundle([model], recipes);
}

const files = {};
/** The requests for the weights, as `HEAD` or `0-`, and how many bytes were sent. */
let asked = [];
let sent = 0;
/** How many bytes of the weights the server sends before it falls silent. */
let silentAfter = Infinity;
let validator = (headers) => headers;

function answer(request, response) {
  const name = /^\/kept\/(.*)$/.exec(request.url)?.[1];
  if (name === undefined) return false;
  const bytes = files[name];
  if (!bytes) return response.writeHead(404).end();
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const [from, to] = range ? [+range[1], Math.min(bytes.length, +(range[2] || 1e12) + 1)] : [0, bytes.length];
  const headers = { "content-length": to - from, ...(range ? { "content-range": `bytes ${from}-${to - 1}/${bytes.length}` } : {}) };
  const isWeights = name.endsWith("safetensors");
  const { get = undefined, ...more } = isWeights ? validator({ etag: `"${bytes.tag}"` }) : {};
  response.writeHead(range ? 206 : 200, { "cache-control": "no-store", ...headers, ...more, ...(request.method === "GET" ? get : {}) });
  if (isWeights) asked.push(request.method === "HEAD" ? "HEAD" : range ? `${range[1]}-` : "all");
  if (request.method === "HEAD") return response.end();
  const end = isWeights ? Math.max(from, Math.min(to, silentAfter)) : to;
  if (isWeights) sent += end - from;
  response.write(bytes.subarray(from, end));
  if (end === to) response.end();
  return true;
}

let opened;
let page;
before(async () => {
  opened = await openPage("/test/loading.html", answer);
  page = opened.page;
});
after(() => opened?.close());

/** Loads and runs in a page; what went wrong is given in words. */
const run = (options = {}, on = page) => on.evaluate(async (options) => {
  const { load, Tensor } = await window.ready;
  try {
    const model = await load("/kept/", options);
    const { y } = await model.run({ x: Tensor.from("f32", [4], [0, 0, 0, 0]) });
    model.dispose();
    return [...y.data];
  } catch (e) {
    return `${e.kind}: ${e.message}`;
  }
}, options);
const kept = () => page.evaluate(async () => {
  const keys = await (await caches.open("wgfc")).keys();
  return keys.map((k) => k.url).filter((u) => !u.includes("/at?")).length;
});
const clear = () => page.evaluate(() => window.ready.then((w) => w.clearCache()));

function serve(first, recipes = false) {
  files["weights.safetensors"] = Object.assign(weights(first), { tag: first });
  files["plan.json"] = Buffer.from(JSON.stringify(recipes ? hashed(files["weights.safetensors"]) : bundle([model])));
  files["kernels/k.wgsl"] = Buffer.from(text);
}
beforeEach(async () => {
  [asked, sent, silentAfter, validator] = [[], 0, Infinity, (h) => h];
  await clear();
});

test("a model is fetched once", async () => {
  serve(1);
  assert.deepEqual(await run(), results(1));
  // The header is read first, and then the weight.
  assert.deepEqual(asked, ["HEAD", "0-", "0-"]);
  assert.equal(await kept(), 3);
  asked = [];
  assert.deepEqual(await run(), results(1));
  assert.deepEqual(asked, ["HEAD"]);
  await clear();
  assert.equal(await kept(), 0);
  assert.deepEqual(await run({ cache: false }), results(1));
  assert.equal(await kept(), 0);
  assert.deepEqual(await run({ cache: "another" }), results(1));
  assert.deepEqual(await page.evaluate(async () => [(await caches.keys()).includes("another"), await caches.delete("another")]), [true, true]);
  assert.equal(await kept(), 0);
});

test("a page that is closed while weights download leaves whole chunks, and another one goes on there", async () => {
  serve(2);
  silentAfter = 1.5 * CHUNK;
  const first = await opened.newPage();
  const running = run({}, first).catch(() => "closed");
  while ((await kept()) < 1) await new Promise((resolve) => setTimeout(resolve, 20));
  await first.close();
  assert.equal(await running, "closed");
  [asked, sent, silentAfter] = [[], 0, Infinity];
  assert.deepEqual(await run(), results(2));
  assert.deepEqual(asked, ["HEAD", `${CHUNK}-`]);
  assert.equal(sent, START + BYTES - CHUNK);
});

test("a signal ends a download, and the next one goes on there", async () => {
  serve(3, true);
  silentAfter = 2.25 * CHUNK;
  const kind = await page.evaluate(async (least) => {
    const stop = new AbortController();
    const onProgress = ({ stage, loaded }) => stage === "weights" && loaded >= least && stop.abort();
    const e = await window.ready.then((w) => w.load("/kept/", { signal: stop.signal, onProgress })).catch((e) => e);
    return e.kind;
  }, 2 * CHUNK + 500_000);
  assert.equal(kind, "aborted");
  assert.equal(await kept(), 2);
  [asked, silentAfter] = [[], Infinity];
  assert.deepEqual(await run(), results(3));
  assert.deepEqual(asked, [`${2 * CHUNK}-`]);
});

test("a file that has changed is fetched anew, and the old one forgotten", async () => {
  serve(4);
  assert.deepEqual(await run(), results(4));
  serve(5);
  asked = [];
  assert.deepEqual(await run(), results(5));
  assert.deepEqual(asked, ["HEAD", "0-", "0-"]);
  assert.equal(await kept(), 3);
});

test("a file that changes while it is loaded is refused, and loaded the next time", async () => {
  serve(6);
  assert.deepEqual(await run(), results(6));
  await page.evaluate(async () => {
    const cache = await caches.open("wgfc");
    for (const k of await cache.keys()) if (k.url.endsWith("?1")) await cache.delete(k);
  });
  validator = (headers) => ({ ...headers, get: { etag: '"another"' } });
  assert.match(await run(), /^corrupt: .*weights.safetensors: it was replaced while it was loaded/);
  validator = (h) => h;
  assert.deepEqual(await run(), results(6));
});

test("chunks that are spoilt are found by the plan's hashes and fetched anew", async () => {
  serve(7, true);
  assert.deepEqual(await run(), results(7));
  // The plan's hashes say which file it is.
  assert.deepEqual(asked, ["0-"]);
  await page.evaluate(async () => {
    const cache = await caches.open("wgfc");
    for (const k of await cache.keys()) {
      const bytes = new Uint8Array(await (await cache.match(k)).arrayBuffer());
      if (k.url.endsWith("?1")) bytes[2 << 20] ^= 1;
      await cache.put(k, new Response(k.url.endsWith("?2") ? bytes.subarray(1) : bytes));
    }
  });
  asked = [];
  assert.deepEqual(await run(), results(7));
  assert.deepEqual(asked, [`${CHUNK}-`, `${2 * CHUNK}-`]);
  asked = [];
  assert.deepEqual(await run(), results(7));
  assert.deepEqual(asked, []);
});

test("files of which nothing says whether they are the same are not kept", async () => {
  serve(8);
  validator = () => ({});
  assert.deepEqual(await run(), results(8));
  assert.equal(await kept(), 0);
  validator = () => ({ "last-modified": "Sun, 22 Nov 2026 10:00:00 GMT" });
  assert.deepEqual(await run(), results(8));
  assert.equal(await kept(), 3);
});

test("without room and without a Cache API it loads", async () => {
  serve(9);
  const other = await opened.newPage();
  await other.evaluate(() => {
    Cache.prototype.put = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  });
  assert.deepEqual(await run({}, other), results(9));
  await other.evaluate(() => Object.defineProperty(globalThis, "caches", { value: undefined, configurable: true }));
  assert.deepEqual(await run({}, other), results(9));
  const forbidden = () => {
    throw new DOMException("this frame has none", "SecurityError");
  };
  await other.evaluate(`Object.defineProperty(globalThis, "caches", { get: ${forbidden} })`);
  assert.deepEqual(await run({}, other), results(9));
  assert.equal(await kept(), 0);
  await other.close();
});
