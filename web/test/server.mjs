// A server on this machine for pages of tests: the package, the tests, cases, fixtures.
import { closeSync, createReadStream, openSync, readSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { Readable } from "node:stream";

const web = new URL("..", import.meta.url).pathname;
/** The folder of cases that tests/it/web.rs has written. */
export const CASES = process.env.WGFC_CASE_FOLDER ?? join(web, "../target/web/cases/");
const FOLDERS = {
  "/dist/": join(web, "dist/"), "/build/": join(web, "build/"), "/test/": join(web, "test/"), "/playground/": join(web, "playground/dist/"), "/engines/": join(web, "engines/"),
  "/cases/": CASES, "/plans/": process.env.WGFC_PLANS ?? join(web, "../target/web/plans/"), "/fixtures/": join(web, "../fixtures/"), "/examples/": join(web, "../examples/"), "/modules/": join(web, "node_modules/"), "/ort/": process.env.WGFC_ORT ?? join(web, "bench/node_modules/onnxruntime-web/dist/"),
};
const TYPES = {
  ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm",
};

/** A file of ours, or of the program in a case (`/program/small/mlp/plan.json`): the file that has it, and where. */
function find(path) {
  const whole = (file) => (statSync(file, { throwIfNoEntry: false })?.isFile() ? { file, start: 0, size: statSync(file).size } : undefined);
  const folder = Object.keys(FOLDERS).find((f) => path.startsWith(f));
  if (folder) return whole(join(FOLDERS[folder], path.slice(folder.length)));
  const [, name, file] = /^\/program\/([^/]+\/[^/]+)\/(.*)$/.exec(path) ?? [];
  const all = name && whole(join(CASES, `${name}.case`));
  if (!all) return undefined;
  const start = 8 + Number(bytesOf(all, 0, 8).readBigUInt64LE());
  const [offset, size] = JSON.parse(bytesOf(all, 8, start)).files[file] ?? [];
  return size === undefined ? undefined : { file: all.file, start: start + offset, size };
}

function bytesOf({ file, start }, from, to) {
  const [open, bytes] = [openSync(file), Buffer.alloc(to - from)];
  readSync(open, bytes, 0, bytes.length, start + from);
  closeSync(open);
  return bytes;
}

/** Zeros, as the weights of models of which only times are measured. */
function* zeros(bytes) {
  const piece = Buffer.alloc(1 << 20);
  for (let at = 0; at < bytes; at += piece.length) yield piece.subarray(0, Math.min(piece.length, bytes - at));
}

/** Serves files, also parts of them. `/broken/N/…` ends weights after N bytes, `/whole/…` knows no ranges, `/zeros/N` has N zeros. */
export function answerFiles(request, response) {
  const [, none] = /^\/zeros\/(\d+)$/.exec(request.url) ?? [];
  if (none) {
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": none, "cross-origin-embedder-policy": "require-corp" });
    return void Readable.from(zeros(Number(none))).pipe(response);
  }
  const [, broken, whole, rest] = /^(\/broken\/\d+)?(\/whole)?(\/.*)$/.exec(new URL(request.url, "http://127.0.0.1").pathname);
  const found = find(normalize(decodeURIComponent(rest)));
  if (!found) return void response.writeHead(404).end();
  const range = !whole && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const [from, to] = range ? [Number(range[1]), Math.min(found.size, Number(range[2] || found.size - 1) + 1)] : [0, found.size];
  response.writeHead(range ? 206 : 200, {
    "content-type": TYPES[extname(rest)] ?? "application/octet-stream",
    "content-length": to - from,
    // A page of its own origin alone has exact times.
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    ...(range ? { "content-range": `bytes ${from}-${to - 1}/${found.size}` } : {}),
  });
  const { file, start } = found;
  if (from >= to) return void response.end();
  if (!broken || !rest.endsWith(".safetensors")) return void createReadStream(file, { start: start + from, end: start + to - 1 }).pipe(response);
  const end = Math.max(from, Math.min(to, Number(broken.split("/")[2])));
  response.write(bytesOf(found, from, end), () => response.destroy());
}

/** A server on this machine, and the beginning of its addresses. */
export async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}
