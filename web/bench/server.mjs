// Serves the pages, both engines, plans and models, compressed as a web server would, and counts the bytes that it sends.
import { createReadStream, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { extname, join, normalize } from "node:path";
import { brotliCompressSync } from "node:zlib";
import { serve } from "../test/server.mjs";

const bench = new URL(".", import.meta.url).pathname;
const root = join(bench, "../..");
export const work = join(root, "target/web/bench/");
const FOLDERS = {
  "/bench/": bench,
  "/wgfc/": join(root, "web/dist/"),
  "/ort/": join(bench, "node_modules/onnxruntime-web/dist/"),
  "/plans/": join(work, "plans/"),
  "/models/": join(work, "models/"),
};
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm" };
/** Files that are sent uncompressed: weights, and models with weights in them. */
const PLAIN = /\.(data|safetensors)$/;

/** A compressed copy, made once. */
function compressed(file) {
  const { mtimeMs, size } = statSync(file);
  const kept = join(work, "compressed", createHash("sha256").update(`${file} ${mtimeMs} ${size}`).digest("hex"));
  if (!existsSync(kept)) {
    mkdirSync(join(work, "compressed"), { recursive: true });
    writeFileSync(kept, brotliCompressSync(readFileSync(file)));
  }
  return kept;
}

/** The files sent since the last question: `{ path, bytes, size }`, bytes on the wire and of the file. */
let sent = [];
export function takeSent() {
  const all = sent;
  sent = [];
  return all;
}

export function fileOf(path) {
  const folder = Object.keys(FOLDERS).find((f) => path.startsWith(f));
  const file = folder && join(FOLDERS[folder], normalize(path.slice(folder.length)));
  return file && existsSync(file) ? file : undefined;
}

/** Makes what is sent of these files, so that nobody waits for it. */
export function prepare(files) {
  for (const file of files) if (!PLAIN.test(file)) compressed(file);
}

export function start() {
  return serve((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://127.0.0.1").pathname);
    const file = fileOf(path);
    if (!file) return void response.writeHead(404).end();
    const size = statSync(file).size;
    const plain = PLAIN.test(file);
    const from = plain ? file : compressed(file);
    const all = statSync(from).size;
    const range = plain ? /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "") : null;
    const [begin, end] = range ? [Number(range[1]), Math.min(all, Number(range[2] || all - 1) + 1)] : [0, all];
    sent.push({ path, bytes: end - begin, size: range ? end - begin : size });
    response.writeHead(range ? 206 : 200, {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "content-length": end - begin,
      ...(plain ? {} : { "content-encoding": "br" }),
      ...(range ? { "content-range": `bytes ${begin}-${end - 1}/${all}` } : {}),
    });
    if (end > begin) createReadStream(from, { start: begin, end: end - 1 }).pipe(response);
    else response.end();
  });
}
