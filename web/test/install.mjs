// The package as people have it: packed, installed into an empty project of Vite and beside a plain page, and run in Chromium.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { extname, join } from "node:path";
import { after, before, test } from "node:test";
import { openPage } from "./chromium.mjs";
import { field, product } from "./protobuf.mjs";

const web = new URL("..", import.meta.url).pathname;
const project = join(web, "../target/web/vite");
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };

const [K, N] = [64, 80];
const w = Float32Array.from({ length: K * N }, (_, i) => (i % 7) - 3);
const y = [0, 1, 2, 3].map((n) => Array.from({ length: K }, (_, k) => (k % 5) * w[k * N + n]).reduce((a, b) => a + b));

const npm = (...args) => execFileSync("npm", args, { cwd: project, stdio: ["ignore", "pipe", "inherit"] });

let opened;
let vite;
before(async () => {
  assert(existsSync(join(web, "dist/compiler/compiler.wasm")), "the package was built without the compiler's module");
  rmSync(project, { recursive: true, force: true });
  cpSync(join(web, "test/vite"), project, { recursive: true });
  mkdirSync(join(project, "public"));
  writeFileSync(join(project, "public/model.onnx"), product(K, N, [field(9, new Uint8Array(w.buffer))]));
  // The package's scripts do this, and build it.
  for (const f of readdirSync(join(web, "..")).filter((f) => f.startsWith("LICENSE-"))) cpSync(join(web, "..", f), join(web, f));
  execFileSync("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", project], { cwd: web, stdio: ["ignore", "ignore", "inherit"] });
  const [packed] = readdirSync(project).filter((f) => f.endsWith(".tgz"));
  npm("ci", "--silent");
  npm("install", "--silent", "--no-save", `./${packed}`);
  vite = await import(join(project, "node_modules/vite/dist/node/index.js"));
  opened = await openPage("/test/loading.html", answer);
});
after(() => opened?.close());

/** Files of the project, below `/at/`, each with no more than its type. */
function answer(request, response) {
  const { pathname } = new URL(request.url, "http://127.0.0.1");
  if (!pathname.startsWith("/at/")) return false;
  const file = join(project, pathname.slice(3));
  if (!existsSync(file)) return response.writeHead(404).end();
  return response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream" }).end(readFileSync(file));
}

/** The outputs of a page. */
async function results(address) {
  const page = await opened.newPage();
  await page.goto(new URL(address, page.url()).href);
  await page.waitForFunction(() => window.results, undefined, { timeout: 50_000 });
  const found = await page.evaluate(() => window.results);
  await page.close();
  return found;
}
const want = [y, y, y, "model"];
const settings = { root: project, configFile: false, logLevel: "error" };

test("what is packed is the package, with its licences", () => {
  const files = readdirSync(join(project, "node_modules/wgfc"));
  for (const f of ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "dist", "package.json"]) assert.ok(files.includes(f), f);
});

test("a project of Vite is built", async () => {
  await vite.build({ ...settings, base: "./" });
  assert.deepEqual(await results("/at/dist/index.html"), want);
});

test("Vite serves it while it is developed", async () => {
  const server = await vite.createServer({ ...settings, server: { host: "127.0.0.1", port: 0 } });
  try {
    await server.listen();
    assert.deepEqual(await results(`http://127.0.0.1:${server.httpServer.address().port}/`), want);
  } finally {
    await server.close();
  }
});

test("a plain page has it by an import map, or by its path", async () => {
  const head = '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>wgfc</title>';
  const script = readFileSync(join(project, "main.js"), "utf8");
  const imports = { wgfc: "./node_modules/wgfc/dist/index.js", "wgfc/compiler": "./node_modules/wgfc/dist/compiler/index.js", "wgfc/cpu": "./node_modules/wgfc/dist/cpu/index.js" };
  const plain = Object.entries(imports).reduce((s, [name, path]) => s.replaceAll(`"${name}"`, `"${path}"`), script);
  cpSync(join(project, "public/model.onnx"), join(project, "model.onnx"));
  writeFileSync(join(project, "map.html"), `${head}<script type="importmap">${JSON.stringify({ imports })}</script><script type="module">${script}</script>`);
  // This one may run nothing but its own scripts and WebAssembly: no eval, no blobs.
  const policy = "default-src 'self'; img-src data:; script-src 'self' 'wasm-unsafe-eval'";
  writeFileSync(join(project, "path.js"), plain);
  writeFileSync(join(project, "path.html"), `${head}<meta http-equiv="Content-Security-Policy" content="${policy}"><script type="module" src="path.js"></script>`);
  for (const page of ["map", "path"]) assert.deepEqual(await results(`/at/${page}.html`), want, page);
});
