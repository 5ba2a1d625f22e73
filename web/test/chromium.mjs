// A page of headless Chromium with WebGPU on SwiftShader, and a server for it on this machine.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { existsSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const web = new URL("..", import.meta.url).pathname;
const FOLDERS = { "/dist/": join(web, "dist/"), "/test/": join(web, "test/"), "/cases/": join(web, "../target/web/cases/") };
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json" };

const FLAGS = [
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  // It makes pipelines ten times as fast; no kernel reads workgroup memory that it has not written.
  "--enable-dawn-features=disable_workgroup_init",
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

/** Serves files, also parts of them. `/broken/N/…` ends after N bytes, `/whole/…` knows no ranges. */
function answer(request, response) {
  let path = decodeURIComponent(new URL(request.url, "http://127.0.0.1").pathname);
  const broken = /^\/broken\/(\d+)(\/.*)$/.exec(path);
  const whole = /^\/whole(\/.*)$/.exec(path);
  path = normalize(broken?.[2] ?? whole?.[1] ?? path);
  const folder = Object.keys(FOLDERS).find((f) => path.startsWith(f));
  const file = folder && join(FOLDERS[folder], path.slice(folder.length));
  if (!file || !existsSync(file)) return void response.writeHead(404).end();
  const size = statSync(file).size;
  const range = !whole && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const [from, to] = range ? [Number(range[1]), Math.min(size, Number(range[2] || size - 1) + 1)] : [0, size];
  response.writeHead(range ? 206 : 200, {
    "content-type": TYPES[extname(file)] ?? "application/octet-stream",
    "content-length": to - from,
    ...(range ? { "content-range": `bytes ${from}-${to - 1}/${size}` } : {}),
  });
  const end = broken ? Math.min(to, Number(broken[1])) : to;
  if (from >= end) return void response.destroy();
  const stream = createReadStream(file, { start: from, end: end - 1 });
  stream.pipe(response, { end: end === to });
  if (end < to) stream.on("end", () => response.destroy());
}

export async function openPage(path) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const browser = await chromium.launch({ executablePath, headless: true, args: FLAGS });
  const page = await browser.newPage();
  page.on("pageerror", (e) => console.log(`page: ${e.message}`));
  page.on("console", (m) => m.type() === "error" && console.log(`page: ${m.text()}`));
  await page.goto(`http://127.0.0.1:${server.address().port}${path}`);
  return {
    page,
    close: async () => {
      await browser.close();
      server.close();
    },
  };
}
