import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { chart, table } from "../bench/report.mjs";

const LARGEST = 15 * 1024;

test("the package is small", () => {
  const bytes = gzipSync(readFileSync(new URL("../dist/index.js", import.meta.url)), { level: 9 }).length;
  assert.ok(bytes <= LARGEST, `dist/index.js has ${bytes} bytes gzipped, and may have ${LARGEST}`);
});

test("the table of the documentation is that of the measurements", () => {
  const root = new URL("../../", import.meta.url);
  const { rows } = JSON.parse(readFileSync(new URL("measurements/web/swiftshader.json", root), "utf8"));
  assert.ok(readFileSync(new URL("docs/benchmarks-web.md", root), "utf8").includes(table(rows, true)), "docs/benchmarks-web.md has another table");
  assert.equal(readFileSync(new URL("docs/benchmarks-web.svg", root), "utf8"), chart(rows));
});

const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");

test("what builds it has licences that we may use", () => {
  const allowed = ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT OR Apache-2.0"];
  const others = (file, more = []) => {
    const packages = Object.entries(JSON.parse(read(file)).packages).filter(([name]) => name);
    return packages.filter(([, p]) => ![...allowed, ...more].includes(p.license)).map(([name, p]) => `${name}: ${p.license}`);
  };
  assert.deepEqual(others("package-lock.json"), []);
  // Vite is there to test that the package can be installed; nothing of it is in what we give away.
  assert.deepEqual(others("test/vite/package-lock.json", ["MPL-2.0"]), []);
});

test("the package has no dependency, and its lock file names no host", () => {
  assert.equal(JSON.parse(read("package.json")).dependencies, undefined);
  for (const file of ["package-lock.json", "test/vite/package-lock.json"]) assert.doesNotMatch(read(file).replaceAll(/"url": "[^"]*"/g, ""), /"resolved"|https?:/);
});
