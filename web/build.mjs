// Writes dist/, the package, and build/, its modules one by one, which the tests import.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { minify } from "terser";

const here = new URL(".", import.meta.url).pathname;
for (const folder of ["dist", "build"]) rmSync(here + folder, { recursive: true, force: true });
// Names of our own objects' members, which are in no file, no option and no call of WebGPU.
const internal = /^(among|arenas|check|extent|groups|late|mapped|outputShapes|owned|piece|ports|positions|powers|progress|room|scoped|setLengths|settle|sized|slots|storage|taken|uses|watch|weightParts|where)$/;
// The compiler's module, which `scripts/wasm.sh` makes, and naga's beside it. Without them there is all but what compiles in the page.
const wasm = process.env.WGFC_COMPILER ?? `${here}../target/wasm/compiler.wasm`;
const COMPILER = existsSync(wasm) ? createHash("sha256").update(readFileSync(wasm)).digest("hex") : "none";
// The name goes in behind the minifier, which chooses other names by the letters that occur.
const PLACE = "compiler's name";
const define = { COMPILER: JSON.stringify(PLACE) };
const common = { absWorkingDir: here, format: "esm", target: "es2022", define, logLevel: "warning", loader: { ".wgsl": "text" } };
// Modules that few pages use are beside index.js, and loaded when they are needed. These have the errors' class from there.
const later = ["absent", "cache", "compiler/derive", "compiler/index", "compiler/worker", "files", "halves", "image", "inspect", "states", "timestamps", "verify"];
const beside = {
  name: "beside",
  setup: ({ initialOptions, onResolve }) =>
    onResolve({ filter: /^\./ }, ({ path, kind }) => {
      if (kind === "dynamic-import") return { path, external: true };
      // Modules in a folder are beside it, too: `../errors.js`.
      if (initialOptions.entryPoints[0] !== "src/index.ts" && /^\.\.?\/errors\.js$/.test(path))
        return { path: `${/\/(compiler|cpu)\//.test(initialOptions.entryPoints[0]) ? ".." : "."}/index.js`, external: true };
    }),
};
let mangleCache = {};
for (const name of ["index", ...later]) {
  const outfile = `dist/${name}.js`;
  const options = { entryPoints: [`src/${name}.ts`], outfile, bundle: true, minify: true, mangleProps: internal, mangleCache, plugins: [beside] };
  ({ mangleCache } = await build({ ...common, ...options }));
  const { code } = await minify(readFileSync(here + outfile, "utf8"), { module: true, ecma: 2020, compress: { passes: 3, unsafe_arrows: true } });
  writeFileSync(here + outfile, code.replaceAll(PLACE, COMPILER));
}
// Entries of their own, which share index.js with the page.
for (const name of ["measure", "tune"])
  await build({ ...common, define: { COMPILER: JSON.stringify(COMPILER) }, entryPoints: [`src/${name}.ts`], outfile: `dist/${name}.js`, bundle: true, minify: true, plugins: [beside] });
await build({ ...common, entryPoints: ["src/suite.ts"], outfile: "dist/suite.js", bundle: true, minify: true, external: ["./measure.js"], plugins: [beside] });
await build({ ...common, entryPoints: ["src/train.ts"], outfile: "dist/train.js", bundle: true, minify: true, external: ["./index.js"], plugins: [beside] });
for (const name of ["index", "worker"])
  await build({ ...common, entryPoints: [`src/cpu/${name}.ts`], outfile: `dist/cpu/${name}.js`, bundle: true, minify: true, external: ["../index.js"], plugins: [beside] });
await build({
  ...common, entryPoints: ["src/generate.ts"], outfile: "dist/generate.js", bundle: true, minify: true,
  external: ["./index.js", "@huggingface/jinja", "@huggingface/tokenizers"],
});
const modules = { "compiler/compiler": "compile models", "compiler/validator": "validate what it compiled", "cpu/cpu": "run models on the CPU" };
for (const [name, use] of Object.entries(modules)) {
  const from = name === "compiler/compiler" ? wasm : join(dirname(wasm), `${name.split("/")[1]}.wasm`);
  if (existsSync(from)) copyFileSync(from, `${here}dist/${name}.wasm`);
  else console.warn(`there is no ${from}: the package cannot ${use}`);
}
const sources = readdirSync(here + "src", { recursive: true }).filter((f) => f.endsWith(".ts") && !f.endsWith(".d.ts"));
await build({ ...common, define: { COMPILER: JSON.stringify(COMPILER) }, entryPoints: sources.map((f) => `src/${f}`), outbase: "src", outdir: "build" });
