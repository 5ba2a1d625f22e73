import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { readPlans } from "../build/plan.js";
import { openProgram } from "../build/program.js";
import { FileSource } from "../build/files.js";
import { UrlSource, readAll } from "../build/source.js";
import { halfOf } from "../build/halves.js";
import { checkParts, partsOfRecipes, upload } from "../build/weights.js";
import { Json } from "../build/json.js";
import { endOf, headerOf } from "../build/compiler/gguf.js";
import { buffer, bundle, plan } from "./plans.mjs";

/** A device that keeps what is written to it. */
const device = { queue: { writeBuffer: (to, at, data, from = 0, size = data.length - from) => {
  assert.equal(at % 4, 0);
  assert.equal(size % 4, 0);
  to.bytes.set(data.subarray(from, from + size), at);
}, onSubmittedWorkDone: async () => {} } };
const target = (bytes) => ({ bytes, buffer: { bytes: new Uint8Array(Math.ceil(bytes / 4) * 4).fill(99) } });
const random = (n) => Uint8Array.from({ length: n }, (_, i) => (i * 7919 + (i >> 8)) & 255);
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** A file of tensors, with files in its metadata. */
function safetensors(tensors, metadata) {
  let at = 0;
  const entries = Object.entries(tensors).map(([n, b]) => [n, { dtype: "U8", shape: [b.length], data_offsets: [at, (at += b.length)] }]);
  const header = new TextEncoder().encode(JSON.stringify({ ...(metadata && { __metadata__: metadata }), ...Object.fromEntries(entries) }));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(header.length), true);
  return Buffer.concat([length, header, ...Object.values(tensors)]);
}

const tensors = { a: random(1001), b: random(70), c: random(40_000) };
const file = safetensors(tensors);
const withWeights = plan({ buffers: [...plan().buffers, buffer(1001, { kind: "weight", name: "a" }, "u8")] });

let server;
let base;
const asked = [];
const files = { "/m/plan.json": JSON.stringify(bundle([withWeights])), "/m/kernels/k.wgsl": "// k", "/m/weights.safetensors": file, "/data": random(100_000) };
/** How the next requests are answered: with so many bytes only, or with other bytes. */
let spoilt = [];
let ranges = true;
before(async () => {
  server = createServer((request, response) => {
    const bytes = files[request.url];
    asked.push(`${request.url} ${request.headers.range ?? ""}`.trim());
    if (!bytes) return void response.writeHead(404).end();
    const range = ranges && /bytes=(\d+)-(\d*)/.exec(request.headers.range ?? "");
    let body = Buffer.from(bytes).subarray(range ? +range[1] : 0, range ? +(range[2] || 1e9) + 1 : undefined);
    const spoil = range || !ranges ? spoilt.shift() : undefined;
    if (spoil === "other") body = Buffer.from(body.map((b) => b ^ 1));
    response.writeHead(range ? 206 : 200, { "content-length": body.length });
    if (typeof spoil !== "number") return void response.end(body);
    response.write(body.subarray(0, spoil), () => response.destroy());
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  base = `http://127.0.0.1:${server.address().port}/`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});

async function uploaded(program, sizes, options) {
  const targets = new Map(Object.entries(sizes).map(([n, bytes]) => [n, target(bytes)]));
  const parts = await program.weightParts(targets.keys());
  for (const [n, t] of targets) checkParts(program.source, parts, n, t.bytes);
  await upload(device, program.source, parts, new Map([...targets].map(([n, t]) => [n, t.buffer])), options);
  return Object.fromEntries([...targets].map(([n, t]) => [n, t.buffer.bytes.subarray(0, t.bytes)]));
}
const sizes = { a: 1001, b: 70, c: 40_000 };
const recipes = (tensors, of = [{ name: "../data" }]) => partsOfRecipes(new Json({ files: of, tensors }, "weights"));
const slice = (offset, bytes, sha = sha256(files["/data"].subarray(offset, offset + bytes))) => ({ file: 0, offset, bytes, sha256: sha });
const fetched = (parts, sizes, options) => uploaded({ source: new UrlSource(new URL("m/", base)), weightParts: async () => parts }, sizes, options);
const kind = (kind, message) => (e) => {
  assert.equal(e.kind, kind, e.message);
  assert.match(e.message, message);
  return true;
};

test("a folder is loaded from an address, its weights in one request", async () => {
  for (const name of ["m", "m/", "m/plan.json"]) {
    const program = await openProgram(base + name);
    assert.equal(await program.text(program.plans[0].kernels[0]), "// k");
    asked.length = 0;
    const progress = [];
    assert.deepEqual(await uploaded(program, sizes, { progress: (n, all) => progress.push([n, all]) }), tensors);
    assert.equal(asked.length, 2);
    assert.deepEqual(progress, [[0, 41071], [1001, 41071], [1071, 41071], [41071, 41071]]);
  }
  await assert.rejects(openProgram(`${base}nowhere`), kind("network", /nowhere\/plan.json .* 404/));
  await assert.rejects(openProgram("http://127.0.0.1:1/m"), kind("network", /cannot be fetched/));
});

test("a bundle is a file, a blob, or an address", async () => {
  const metadata = { "plan.json": files["/m/plan.json"], "kernels/k.wgsl": "// k" };
  const whole = safetensors(tensors, metadata);
  files["/model.wgfc"] = whole;
  for (const source of [`${base}model.wgfc?v=1`.slice(0, -4), new Blob([whole]), { "x.wgfc": whole }]) {
    const program = await openProgram(source);
    assert.equal(await program.text(program.plans[0].kernels[0]), "// k");
    assert.deepEqual(await uploaded(program, sizes), tensors);
  }
  await assert.rejects(openProgram(new Blob([file])), kind("corrupt", /"plan.json" is not in its header/));
  await assert.rejects(openProgram(new Blob([random(64)])), kind("corrupt", /no|not/));
  await assert.rejects(openProgram(new Blob([whole.subarray(0, 50)])), kind("corrupt", /ends after 50/));
});

test("files may be in memory", async () => {
  const program = await openProgram({ "plan.json": files["/m/plan.json"], "kernels/k.wgsl": "// k", "weights.safetensors": new Blob([file]) });
  assert.deepEqual(await uploaded(program, sizes), tensors);
  await assert.rejects(program.text({ name: "z", features: [] }), kind("network", /no file "kernels\/z.wgsl" among/));
});

test("recipes put tensors together from parts of files", async () => {
  const parts = recipes({ t: { parts: [slice(501, 7), slice(90_000, 9_998), slice(3, 2), slice(508, 1)] }, u: { parts: [slice(600, 12)] }, e: { parts: [] } });
  asked.length = 0;
  const got = await fetched(parts, { t: 10_008, u: 12, e: 0 });
  const d = files["/data"];
  assert.deepEqual(got.t, Uint8Array.from([...d.slice(501, 508), ...d.slice(90_000, 99_998), ...d.slice(3, 5), d[508]]));
  assert.deepEqual(got.u, d.slice(600, 612));
  assert.deepEqual(asked, ["/data bytes=3-611", "/data bytes=90000-99997"]);
});

test("columns are put side by side", async () => {
  const data = files["/data"];
  // Three columns of 4 rows: of 8 bytes in two parts, of 6, and of 3, whose words are shared.
  const at = (column, offset, bytes) => ({ column, ...slice(offset, bytes) });
  const parts = [at(0, 1000, 16), at(0, 5000, 16), at(1, 70, 24), at(2, 3, 12)];
  const want = [0, 1, 2, 3].flatMap((i) => {
    const row = (from, n) => [...data.subarray(from + i * n, from + (i + 1) * n)];
    return [...row(i < 2 ? 1000 : 5000 - 16, 8), ...row(70, 6), ...row(3, 3)];
  });
  const recipe = { dtype: "u8", shape: [4, 17], rows: 4, parts };
  const { w } = await fetched(recipes({ w: recipe }), { w: 68 });
  assert.deepEqual([...w], want);
  const bad = { ...recipe, parts: [at(0, 0, 34), at(1, 0, 34)] };
  assert.throws(() => recipes({ w: bad }), kind("corrupt", /column 0 has 34 bytes/));
  assert.throws(() => recipes({ w: { ...recipe, parts: [at(2, 0, 68)] } }), kind("corrupt", /column 2/));
});

test("elements of f32 are rounded to f16", async () => {
  const bits = new DataView(new ArrayBuffer(4));
  const word = (value) => (bits.setFloat32(0, value), bits.getUint32(0));
  const value = (half) => {
    const [exponent, digits] = [(half >> 10) & 31, half & 1023];
    return exponent === 0 ? digits * 2 ** -24 : (1024 + digits) * 2 ** (exponent - 25);
  };
  for (let half = 0; half < 0x7c00; half++) {
    const [here, next] = [value(half), value(half + 1)];
    const even = half + (half & 1);
    const between = word((here + next) / 2);
    for (const [of, to] of [[word(here), half], [between, even], [between - 1, half], [between + 1, half + 1]]) {
      assert.equal(halfOf(of), to);
      assert.equal(halfOf((of | 0x80000000) >>> 0), to | 0x8000);
    }
  }
  for (const [of, to] of [[1e6, 0x7c00], [-Infinity, 0xfc00], [NaN, 0x7e00], [1e-9, 0]]) assert.equal(halfOf(word(of)), to);

  // Two columns of 3 rows of 2 and of 1 elements, whose halves share words.
  const numbers = Float32Array.from({ length: 9 }, (_, i) => 2 ** i);
  files["/numbers"] = Buffer.from(numbers.buffer);
  const at = (column, offset, bytes) => ({ column, file: 0, offset, bytes });
  const recipe = { dtype: "f16", shape: [3, 3], from: "f32", rows: 3, parts: [at(0, 0, 8), at(0, 8, 16), at(1, 24, 12)] };
  const of = (recipe) => recipes({ w: recipe }, [{ name: "../numbers" }]);
  const { w } = await fetched(of(recipe), { w: 18 });
  assert.deepEqual([...new Uint16Array(w.slice().buffer)], [0, 1, 6, 2, 3, 7, 4, 5, 8].map((i) => halfOf(word(2 ** i))));
  numbers[4] = 1e5;
  await assert.rejects(fetched(of(recipe), { w: 18 }), kind("unsupported", /the weight "w" has 100000, which is beyond f16/));
  assert.throws(() => of({ ...recipe, from: "i32" }), kind("corrupt", /elements of i32 are not made into f16/));
  assert.throws(() => of({ ...recipe, parts: [at(0, 0, 18)], rows: 1 }), kind("corrupt", /not whole blocks of 4 bytes/));
});

test("a range of which several weights are made is read once", async () => {
  const one = { parts: [slice(0, 40_000), slice(40_000, 30_000)] };
  const parts = recipes({ t: one, u: one, v: { parts: [slice(40_000, 30_000)] } });
  asked.length = 0;
  const { t, u, v } = await fetched(parts, { t: 70_000, u: 70_000, v: 30_000 });
  assert.deepEqual([asked, t, u], [["/data bytes=0-69999"], files["/data"].subarray(0, 70_000), t]);
  assert.deepEqual(v, t.subarray(40_000));
});

test("weights are made of whole blocks", () => {
  const derived = { name: "q8_0_scales", block: 34, makes: 2 };
  const recipe = { dtype: "f16", shape: [3], derived, parts: [{ file: 0, offset: 5, bytes: 68 }, { file: 0, offset: 200, bytes: 34 }] };
  const parts = recipes({ w: recipe }, [{ name: "x" }]);
  assert.deepEqual(parts.get("w").map(({ offset, bytes, at, row, how }) => [offset, bytes, at, row, how]), [[5, 68, 0, 4, derived], [200, 34, 4, 2, derived]]);
  checkParts({ name: "x" }, parts, "w", 6);
  const cut = { ...recipe, parts: [{ file: 0, offset: 5, bytes: 67 }] };
  assert.throws(() => recipes({ w: cut }, [{ name: "x" }]), kind("corrupt", /not whole blocks of 34 bytes/));
});

test("the header of a GGUF file ends before its weights", async () => {
  for (const name of ["llama", "phi3-long", "qwen3moe"]) {
    const file = new Uint8Array(readFileSync(new URL(`../../fixtures/decoders/${name}/model.gguf`, import.meta.url)));
    const end = endOf(file);
    assert.ok(end > 500 && end < 6000, `${name}: ${end}`);
    assert.deepEqual([endOf(file.subarray(0, end)), endOf(file.subarray(0, end - 1))], [end, undefined]);
    assert.deepEqual(await headerOf(file.length, async (to) => file.subarray(0, to)), file.slice(0, end));
    // A file that is cut off has fewer bytes.
    assert.equal((await headerOf(400, async () => file.subarray(0, 400))).length, 400);
  }
});

test("what breaks off goes on where it did, once", async () => {
  const parts = recipes({ t: { parts: [slice(0, 40_000), slice(40_000, 30_000)] } });
  const want = files["/data"].subarray(0, 70_000);
  for (spoilt of [[50_000], [100, 41_000], ["other"]]) assert.deepEqual((await fetched(parts, { t: 70_000 })).t, want);
  spoilt = [50_000, 5_000];
  await assert.rejects(fetched(parts, { t: 70_000 }), kind("network", /data cannot be fetched/));
  spoilt = ["other", "other"];
  await assert.rejects(fetched(parts, { t: 70_000 }), kind("corrupt", /bytes 0 to 40000, of the weight "t", do not have the hash/));
  spoilt = [];
});

test("servers without ranges are read from the beginning", async () => {
  ranges = false;
  const parts = recipes({ t: { parts: [slice(40_000, 30_000)] } });
  assert.deepEqual((await fetched(parts, { t: 30_000 })).t, files["/data"].subarray(40_000, 70_000));
  assert.deepEqual(await uploaded(await openProgram(`${base}m`), sizes), tensors);
  ranges = true;
});

test("weights that are missing, cut off or of another size are errors", async () => {
  const cut = { "plan.json": files["/m/plan.json"], "weights.safetensors": file.subarray(0, file.length - 1) };
  await assert.rejects(uploaded(await openProgram(cut), sizes), kind("corrupt", /weights.safetensors: it ends at byte \d+, inside of the weight "c"/));
  const whole = await openProgram({ ...cut, "weights.safetensors": file });
  await assert.rejects(uploaded(whole, { d: 4 }), kind("corrupt", /weight "d" is in none/));
  await assert.rejects(uploaded(whole, { a: 1000 }), kind("corrupt", /weight "a" has 1001 bytes, and the plan needs 1000/));
  await assert.rejects(fetched(recipes({ t: { parts: [slice(99_999, 8, undefined)] } }), { t: 8 }), kind("corrupt", /ends at byte 100000/));
  assert.throws(() => recipes({ t: { parts: [slice(10, 8)] } }, [{ name: "x", bytes: 16 }]), kind("corrupt", /beyond the 16 bytes of "x"/));
  assert.throws(() => recipes({ t: { parts: [{ file: 1, offset: 0, bytes: 1 }] } }), kind("corrupt", /beyond/));
});

test("a signal ends it", async () => {
  const stop = new AbortController();
  const parts = recipes({ t: { parts: [slice(0, 40_000), slice(40_000, 30_000)] } });
  const program = { source: new FileSource({ "../data": new Blob([files["/data"]]) }), weightParts: async () => parts };
  const aborted = uploaded(program, { t: 70_000 }, { signal: stop.signal, progress: (n) => n > 0 && stop.abort() });
  await assert.rejects(aborted, kind("aborted", /caller's signal/));
  await assert.rejects(readAll(new UrlSource(new URL(base)), "data", AbortSignal.abort()), kind("aborted", /./));
});

test("weights without a recipe are in the file of weights, or in the bundle", async () => {
  const weights = { files: [{ name: "of%20others" }], tensors: { x: { parts: [{ ...slice(7, 9) }] } } };
  const both = { "plan.json": JSON.stringify(bundle([withWeights], weights)), "of others": files["/data"], "weights.safetensors": file };
  const program = await openProgram(both);
  const got = await uploaded(program, { x: 9, a: 1001 });
  assert.deepEqual(got, { x: files["/data"].slice(7, 16), a: tensors.a });
  const own = { files: [{ name: "" }], tensors: { z: { parts: [{ file: 0, offset: 0, bytes: 8 }] } } };
  const whole = safetensors(tensors, { "plan.json": JSON.stringify(bundle([plan()], own)), "kernels/k.wgsl": "" });
  assert.deepEqual(await uploaded(await openProgram(new Blob([whole])), { z: 8, b: 70 }), { z: Uint8Array.from(whole.subarray(0, 8)), b: tensors.b });
});

test("plans may have recipes of no weights", () => {
  const { weights } = readPlans(JSON.stringify(bundle([plan()], { files: [{ name: "f" }], tensors: {} })));
  assert.equal(partsOfRecipes(weights).size, 0);
});
