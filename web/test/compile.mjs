// Compiles models in a page of headless Chromium, and holds plans and kernels against those of the command line.
//
// WGFC names the command line's program (target/debug/wgfc); WGFC_CASES=text takes only models whose name contains it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPage } from "./chromium.mjs";
import { external, field, product } from "./protobuf.mjs";

const root = new URL("../../", import.meta.url).pathname;
const wgfc = process.env.WGFC ?? join(root, "target/debug/wgfc");
const selected = process.env.WGFC_CASES ?? "";
const folder = mkdtempSync(join(tmpdir(), "wgfc-web-"));

let opened;
let page;
before(async () => {
  assert(existsSync(wgfc), `${wgfc} is missing: cargo build makes it`);
  assert(existsSync(new URL("../dist/compiler/compiler.wasm", import.meta.url)), "the package was built without the compiler's module");
  opened = await openPage("/test/page.html", answer);
  page = opened.page;
  await page.waitForFunction(() => window.ready, undefined, { timeout: 300_000 });
});
after(async () => {
  rmSync(folder, { recursive: true });
  await opened?.close();
});

const [K, N] = [96, 128];
const w = Float32Array.from({ length: K * N }, (_, i) => (i % 11) - 5);
/** A model at an address, with a weight in a file beside it. */
const made = {
  "/made/inside.onnx": Buffer.from(product(K, N, [field(9, new Uint8Array(w.buffer))])),
  "/made/twice.onnx": Buffer.from(product(K, N, external("data.bin", 8, 4 * K * N), true)), "/made/data.bin": Buffer.concat([Buffer.alloc(8), Buffer.from(w.buffer)]),
};
let asked = [];

function answer(request, response) {
  const bytes = made[request.url];
  if (!bytes) return false;
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  asked.push(`${request.method} ${request.url} ${range?.[0] ?? ""}`.trim());
  const part = range ? bytes.subarray(+range[1], +(range[2] || 1e9) + 1) : bytes;
  response.writeHead(range ? 206 : 200, { "content-length": part.length, etag: `"${bytes.length}"`, ...(range ? { "content-range": `bytes ${range[1]}-${+range[1] + part.length - 1}/${bytes.length}` } : {}) });
  return response.end(request.method === "HEAD" ? undefined : part);
}

/** The command line's result for a model and a profile: the plan and its kernels by name, or its message. */
function native(model, profile, more = []) {
  const [out, file] = [join(folder, "out"), join(folder, "profile.json")];
  writeFileSync(file, JSON.stringify(profile));
  try {
    execFileSync(wgfc, ["compile", model, "-o", out, "--quiet", "--force", "--profile", file, ...more], { stdio: "pipe" });
  } catch (e) {
    return { error: e.stderr.toString() };
  }
  const { producer, plans: [plan] } = JSON.parse(readFileSync(join(out, "plan.json"), "utf8"));
  const kernels = readdirSync(join(out, "kernels")).map((f) => [f.replace(/\.wgsl$/, ""), readFileSync(join(out, "kernels", f), "utf8")]);
  return { producer, plan, kernels: Object.fromEntries(kernels) };
}

test("models are compiled to what the command line makes, and run", async (t) => {
  for (const name of readdirSync(join(root, "fixtures/small")).filter((n) => n.includes(selected)))
    await t.test(name, async () => {
      const { profile, producer, plan, kernels, problem } = await page.evaluate((n) => window.compileCase(n), `small/${name}`);
      const want = native(join(root, "fixtures/small", name, "model.onnx"), profile);
      assert.deepEqual(Object.keys(kernels).sort(), Object.keys(want.kernels).sort());
      assert.deepEqual(kernels, want.kernels);
      assert.deepEqual(plan, want.plan);
      assert.deepEqual([producer, plan.name], [want.producer, ""]);
      assert.equal(problem, undefined);
    });
});

test("archives of torch.export are compiled to what the command line makes", async () => {
  for (const name of ["torch/blocks/decoder.pt2", "torch/blocks/branches.pt2"]) {
    const want = native(join(root, "fixtures", name), { version: 1 });
    const { plan, kernels } = await page.evaluate((address) => window.compile(address), `/fixtures/${name}`);
    assert.deepEqual(kernels, want.kernels);
    assert.deepEqual(plan.plans[0], want.plan);
  }
});

test("tensors that runs return, add to and replace are those of the command line", async () => {
  const name = "small/decoder/model.onnx";
  const want = native(join(root, "fixtures", name), { version: 1 }, ["--tap", "layer1/middle", "--add", "layer0/out", "--replace", "layer1/mlp"]);
  const how = { taps: ["layer1/middle"], added: ["layer0/out"], replaced: ["layer1/mlp"] };
  const { plan, kernels } = await page.evaluate(([address, how]) => window.compile(address, how), [`/fixtures/${name}`, how]);
  assert.deepEqual(kernels, want.kernels);
  assert.deepEqual(plan.plans[0], want.plan);
});

test("what the compiler computes with it reads from external data at an address", async () => {
  const got = await page.evaluate(async ([k, n]) => {
    const { read, plan, source } = await window.compile("/made/twice.onnx", { cache: false });
    const model = await window.load(source, { cache: false });
    const { y } = await model.run({ x: { dtype: "f32", shape: [1, k], data: Float32Array.from({ length: k }, (_, i) => i % 3) } });
    model.dispose();
    return { read, own: source[""].length, files: plan.weights.files.map((f) => f.name), y: [...y.data] };
  }, [K, N]);
  const y = Array.from({ length: N }, (_, n) => Array.from({ length: K }, (_, k) => 2 * (k % 3) * w[k * N + n]).reduce((a, b) => a + b));
  assert.deepEqual(got, { read: 4 * K * N, own: 4 * K * N, files: ["data.bin", ""], y });
  assert.deepEqual(asked, ["GET /made/twice.onnx", "HEAD /made/data.bin", `GET /made/data.bin bytes=8-${8 + (256 << 10) - 1}`]);
});

test("a model is fetched once", async () => {
  asked = [];
  const load = () => page.evaluate(async () => {
    const stages = [];
    const model = await window.load("/made/inside.onnx", { cache: "models", onProgress: ({ stage, loaded, total }) => stages.push([stage, loaded / total]) });
    const { compiled } = await model.inspect();
    model.dispose();
    return [compiled.cached, stages.filter(([s]) => s === "model").at(-1)];
  });
  assert.deepEqual(await load(), [false, ["model", 1]]);
  assert.deepEqual(asked, ["HEAD /made/inside.onnx", `GET /made/inside.onnx bytes=0-${made["/made/inside.onnx"].length - 1}`]);
  asked = [];
  assert.deepEqual(await load(), [true, ["model", 1]]);
  // By what compiles, and by what loads the weights.
  assert.deepEqual(asked, ["HEAD /made/inside.onnx", "HEAD /made/inside.onnx"]);
});

test("a model that is refused has the command line's diagnostics", async () => {
  for (const [name, bytes] of Object.entries(spoilt())) {
    const file = join(folder, `${name}.onnx`);
    writeFileSync(file, bytes);
    const { kind, message, diagnostics } = await page.evaluate((b) => window.refuse(b), [...bytes]);
    const { error } = native(file, { version: 1 });
    for (const d of diagnostics) assert.ok(error.includes(d.message), `${name}: ${d.message}\n${error}`);
    assert.ok(diagnostics.length > 0 && ["model", "unsupported"].includes(kind), `${name}: ${kind} ${message}`);
    assert.equal(error.match(/^error/gm).length, message.match(/^error/gm).length, `${message}\n${error}`);
  }
});

/** Models that are wrong, cut off, or have what is not known. */
function spoilt() {
  const mlp = readFileSync(join(root, "fixtures/small/mlp/model.onnx"));
  const renamed = Buffer.from(mlp.toString("latin1").replaceAll("MatMul", "MatMuk").replaceAll("Gemm", "Gemn"), "latin1");
  return { cut: mlp.subarray(0, mlp.length - 40), renamed, text: Buffer.from("this is no model") };
}

test("naga is loaded where kernels are to be validated, and without it they are not used", async () => {
  const page = await opened.newPage();
  let fetched = 0;
  await page.route("**/validator.wasm", (route) => ++fetched && route.fulfill({ status: 404 }));
  await page.waitForFunction(() => window.ready);
  const compile = (validate) => page.evaluate((validate) => window.compile("/made/inside.onnx", { cache: false, validate }).then(() => "compiled", (e) => `${e.kind}: ${e.message}`), validate);
  assert.deepEqual([await compile(false), fetched], ["compiled", 0]);
  assert.match(await compile(true), /^network: naga, which validates kernels, cannot be loaded from http.*validator\.wasm: the server says 404$/);
  assert.equal(fetched, 1);
  await page.close();
});

test("checks", async (t) => {
  for (const name of await page.evaluate(() => window.compileCheckNames)) {
    if (!name.includes(selected)) continue;
    await t.test(name, async () => {
      assert.equal(await page.evaluate((n) => window.runCheck(n), name), undefined);
    });
  }
});

test("kernels of whole models are WGSL to the browser", async (t) => {
  const out = join(folder, "whole");
  for (const name of ["bert-base", "mobilenetv2", "phi3-shaped", "qwen2-2l", "qwen2.5-0.5b-q4f32", "resnet50"]) {
    if (!name.includes(selected)) continue;
    await t.test(name, async () => {
      execFileSync(wgfc, ["compile", join(root, `fixtures/${name}.onnx`), "--graph-only", "--quiet", "--force", "-o", out], { stdio: "pipe" });
      const kernels = join(out, "kernels");
      const texts = readdirSync(kernels).map((file) => [file, readFileSync(join(kernels, file), "utf8")]);
      assert(texts.length > 5);
      const errors = await page.evaluate(async (texts) => {
        const device = await (await navigator.gpu.requestAdapter()).requestDevice();
        device.onuncapturederror = (e) => e.preventDefault();
        const checked = texts.map(async ([file, code]) => {
          const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
          return messages.filter((m) => m.type === "error").map((m) => `${file}:${m.lineNum}: ${m.message}`);
        });
        const errors = (await Promise.all(checked)).flat();
        device.destroy();
        return errors;
      }, texts);
      assert.deepEqual(errors, []);
    });
  }
});
