// Writes playground/dist/: static files that any server can serve. The demos' models are compiled ahead by the command line, whose path is
// in WGFC (target/debug/wgfc or target/release/wgfc without it); models that are dropped are compiled in the page.
//
//   node build.mjs --page     writes playground/page/ instead: what `wgfc serve` has built in, as it compiles these models itself
import { build } from "esbuild";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";

const here = new URL(".", import.meta.url).pathname;
const web = new URL("..", import.meta.url).pathname;
const page = process.argv.includes("--page");
const out = `${here}${page ? "page" : "dist"}/`;
const wgfc = [process.env.WGFC, `${web}../target/release/wgfc`, `${web}../target/debug/wgfc`].find((p) => p && existsSync(p));
if (!wgfc && !page) throw new Error("there is no wgfc to compile the demos' models: `cargo build`, or say where it is in WGFC");
if (!existsSync(`${web}dist/index.js`)) throw new Error("build the package first: npm run build");

rmSync(out, { recursive: true, force: true });
mkdirSync(`${out}vendor`, { recursive: true });
for (const file of ["index.html", "style.css"]) copyFileSync(here + file, out + file);
const common = { absWorkingDir: here, bundle: true, format: "esm", target: "es2022", minify: true, logLevel: "warning", legalComments: "linked" };
const external = ["wgfc", "wgfc/generate", "wgfc/compiler", "wgfc/measure", "wgfc/suite", "wgfc/train", "wgfc/tune"];
await build({ ...common, entryPoints: ["src/main.ts"], outfile: `${out}main.js`, external });
for (const name of ["jinja", "tokenizers"]) await build({ ...common, entryPoints: [`@huggingface/${name}`], outfile: `${out}vendor/${name}.js` });
// The package as it is: its modules find each other. Where a server compiles, without the compiler's module, its worker, and what no demo uses.
const left = page ? /\.d\.ts$|\.wasm$|worker\.js$|\/dist\/cpu$/ : /\.d\.ts$|\/dist\/cpu$/;
cpSync(`${web}dist`, `${out}wgfc`, { recursive: true, filter: (f) => !left.test(f) });
if (page) {
  // The name of the module that the package was built with is of no use without it, and differs from build to build.
  const module = `${web}dist/compiler/compiler.wasm`;
  const name = existsSync(module) ? createHash("sha256").update(readFileSync(module)).digest("hex") : "none";
  for (const file of ["compiler/index.js", "tune.js"].map((f) => `${out}wgfc/${f}`)) writeFileSync(file, readFileSync(file, "utf8").replaceAll(name, "none"));
  process.exit();
}

mkdirSync(`${out}models`);
const compile = (model, name, ...options) => execFileSync(wgfc, ["compile", model, "-o", `${out}models/${name}.wgfc`, "--target", "web", "--quiet", ...options]);
for (const name of ["digits", "cartpole"]) {
  compile(`${here}models/${name}.onnx`, name);
  copyFileSync(`${here}models/${name}.onnx`, `${out}models/${name}.onnx`);
}
for (const file of ["digits-step.pt2", "digits-weights.onnx", "digits.safetensors", "features-step.pt2"]) copyFileSync(`${here}models/${file}`, `${out}models/${file}`);
compile(`${here}models/cartpole.onnx`, "cartpole-50", "--fix", "steps=50");
compile(`${here}models/stories`, "stories", "--generate");
for (const file of readdirSync(`${here}models/stories`)) copyFileSync(`${here}models/stories/${file}`, `${out}models/${file === "model.onnx" ? "stories.onnx" : file}`);
