// The playground as `wgfc serve` has it built in: models are compiled by the server, and no module of the compiler is fetched. WGFC names the
// program, which is target/debug/wgfc without it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { after, afterEach, before, test } from "node:test";
import { launch, visit } from "./chromium.mjs";

const root = new URL("../..", import.meta.url).pathname;
const folder = mkdtempSync(`${tmpdir()}/wgfc-serve-`);
const errors = [];
const fetched = [];
let child, browser, page, address;

before(async () => {
  child = spawn(resolve(process.env.WGFC ?? `${root}target/debug/wgfc`), ["serve", "--no-open"], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: child.stdout })) {
    address = line.trim();
    break;
  }
  browser = await launch();
  page = await visit(browser, address);
  page.on("pageerror", (e) => errors.push(e.message));
  page.on("request", (r) => fetched.push(new URL(r.url()).pathname));
  page.setDefaultTimeout(40_000);
});
after(async () => {
  await browser?.close();
  child?.kill();
  rmSync(folder, { recursive: true });
});
afterEach(() => assert.deepEqual(errors.splice(0), []));

const text = (selector) => page.locator(selector).first().textContent();
async function does(action) {
  await page.evaluate(() => delete document.querySelector(".workbench").dataset.done);
  await page.click(`[data-action="${action}"]`);
  await page.waitForFunction(() => document.querySelector(".workbench").dataset.done !== undefined);
  return page.evaluate(() => document.querySelector(".workbench").dataset.done);
}

test("a model that is dropped is compiled by the server", async () => {
  await page.waitForSelector(".welcome");
  await page.setInputFiles('input[type="file"]', `${root}web/playground/models/digits.onnx`);
  await page.waitForSelector(".kernels button");
  assert.match(await text('[data-figure="dispatches"]'), /5of 8 nodes unfused/);
  assert.equal(await does("run"), "run");
  assert.match(await text(".histogram"), /elements768/);
  assert.equal(await does("unfused"), "unfused");
  assert.match(await text(".status"), /Unfused: \d+ dispatches.*Fused: 5/);
  assert.ok(fetched.includes("/api/compile"));
  assert.equal(await does("device"), "device");
});

test("a model that is not supported is explained", async () => {
  await page.goto("about:blank");
  await page.goto(address);
  await page.waitForSelector(".welcome");
  await page.setInputFiles('input[type="file"]', { name: "no.onnx", mimeType: "application/octet-stream", buffer: Buffer.from([8, 10, 58, 0]) });
  await page.waitForSelector(".failed");
  assert.match(await text(".failed pre"), /^error/);
});

test("blocks of a GGUF file are made into weights by the server", async () => {
  const bytes = readFileSync(`${root}fixtures/decoders/llama-tied/model.gguf`);
  const made = await page.evaluate(async (numbers) => {
    const [{ compile }, { load }] = [await import("wgfc/compiler"), await import("wgfc")];
    const { source, plan } = await compile(new File([new Uint8Array(numbers)], "model.gguf"), { generate: true });
    const model = await load(source);
    model.dispose();
    return plan.plans.map((p) => p.name);
  }, [...bytes]);
  assert.deepEqual(made, ["decode", "prefill"]);
  assert.ok(fetched.some((f) => f.startsWith("/api/blocks/")), fetched.join(" "));
  assert.ok(fetched.some((f) => /^\/api\/compile\/\d+$/.test(f)), "files are read piece by piece");
});

test("demos run, compiled when they are asked for", async () => {
  await page.goto("about:blank");
  await page.goto(`${address}#digits`);
  await page.locator(".pad").press("7");
  await page.waitForSelector('.digits .status[data-digit="7"]');
  await page.goto("about:blank");
  await page.goto(`${address}#stories`);
  await page.waitForFunction(() => /[1-9]\d tokens/.test(document.querySelector(".stories .status")?.textContent ?? ""));
  await page.click(".stories .primary");
  assert.ok(!fetched.some((f) => /\.wasm$|worker\.js$/.test(f)), fetched.join(" "));
});
