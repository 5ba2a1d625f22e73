// A page of headless Chromium with WebGPU on SwiftShader, and a server for it on this machine.
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const web = new URL("..", import.meta.url).pathname;
const FOLDERS = {
  "/dist/": join(web, "dist/"), "/build/": join(web, "build/"), "/test/": join(web, "test/"), "/playground/": join(web, "playground/dist/"),
  "/cases/": join(web, "../target/web/cases/"), "/fixtures/": join(web, "../fixtures/"), "/examples/": join(web, "../examples/"), "/modules/": join(web, "node_modules/"),
};
const TYPES = {
  ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm",
};

/** It makes pipelines ten times as fast; no kernel reads workgroup memory that it has not written. */
const QUICKLY = "--enable-dawn-features=disable_workgroup_init";
const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  // Nothing is looked for beyond this machine.
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-default-apps",
  "--disable-domain-reliability",
  "--disable-quic",
  "--disable-sync",
  "--no-first-run",
  "--no-default-browser-check",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

/** A file of ours, or of the program in a case: `/program/small/mlp/plan.json`. */
function bytesOf(path) {
  const read = (file) => (existsSync(file) ? readFileSync(file) : undefined);
  const folder = Object.keys(FOLDERS).find((f) => path.startsWith(f));
  if (folder) return read(join(FOLDERS[folder], path.slice(folder.length)));
  const [, name, file] = /^\/program\/([^/]+\/[^/]+)\/(.*)$/.exec(path) ?? [];
  const bytes = name && read(join(FOLDERS["/cases/"], `${name}.case`));
  if (!bytes) return undefined;
  const start = 8 + Number(bytes.readBigUInt64LE());
  const [offset, size] = JSON.parse(bytes.subarray(8, start)).files[file] ?? [];
  return size === undefined ? undefined : bytes.subarray(start + offset, start + offset + size);
}

/** Serves files, also parts of them. `/broken/N/…` ends weights after N bytes, `/whole/…` knows no ranges. */
function answerFiles(request, response) {
  const [, broken, whole, rest] = /^(\/broken\/\d+)?(\/whole)?(\/.*)$/.exec(new URL(request.url, "http://127.0.0.1").pathname);
  const bytes = bytesOf(normalize(decodeURIComponent(rest)));
  if (!bytes) return void response.writeHead(404).end();
  const range = !whole && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const [from, to] = range ? [Number(range[1]), Math.min(bytes.length, Number(range[2] || bytes.length - 1) + 1)] : [0, bytes.length];
  response.writeHead(range ? 206 : 200, {
    "content-type": TYPES[extname(rest)] ?? "application/octet-stream",
    "content-length": to - from,
    ...(range ? { "content-range": `bytes ${from}-${to - 1}/${bytes.length}` } : {}),
  });
  if (!broken || !rest.endsWith(".safetensors")) return void response.end(bytes.subarray(from, to));
  const end = Math.max(from, Math.min(to, Number(broken.split("/")[2])));
  response.write(bytes.subarray(from, end), () => response.destroy());
}

/** A server on this machine, and the beginning of its addresses. */
export async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}

/** A browser of its own, with nothing kept from others. */
export function launch(flags = [QUICKLY]) {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, headless: true, args: [...FLAGS, ...flags], timeout: 120_000 });
}

/** A page whose errors are printed, of a browser or of one of its contexts. */
export async function visit(of, address) {
  const page = await of.newPage();
  page.on("pageerror", (e) => console.log(`page: ${e.message}`));
  page.on("console", (m) => m.type() === "error" && console.log(`page: ${m.text()}`));
  await page.goto(address);
  return page;
}

/** Opens a page. `answer` is asked first about every request, and says whether it has answered it. */
export async function openPage(path, answer = () => false) {
  const { server, address } = await serve((request, response) => answer(request, response) || answerFiles(request, response));
  const browser = await launch();
  // Pages of one context share what is kept.
  const context = await browser.newContext();
  const newPage = () => visit(context, `${address}${path}`);
  return {
    address: `${address}${path}`,
    page: await newPage(),
    newPage,
    close: async () => {
      await browser.close();
      server.closeAllConnections();
      server.close();
    },
  };
}
