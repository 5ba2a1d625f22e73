// Writes playground/dist/: static files that any server can serve. The demos' models are compiled ahead by the command line, whose path is
// in WGFC (target/debug/wgfc or target/release/wgfc without it); models that are dropped are compiled in the page.
import { build } from "esbuild";
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";

const here = new URL(".", import.meta.url).pathname;
const web = new URL("..", import.meta.url).pathname;
const out = `${here}dist/`;
const wgfc = [process.env.WGFC, `${web}../target/release/wgfc`, `${web}../target/debug/wgfc`].find((p) => p && existsSync(p));
if (!wgfc) throw new Error("there is no wgfc to compile the demos' models: `cargo build`, or say where it is in WGFC");
if (!existsSync(`${web}dist/index.js`)) throw new Error("build the package first: npm run build");

rmSync(out, { recursive: true, force: true });
mkdirSync(`${out}models`, { recursive: true });
mkdirSync(`${out}vendor`);
for (const file of ["index.html", "style.css"]) copyFileSync(here + file, out + file);
const common = { absWorkingDir: here, bundle: true, format: "esm", target: "es2022", minify: true, logLevel: "warning", legalComments: "linked" };
const external = ["wgfc", "wgfc/generate", "wgfc/compiler"];
await build({ ...common, entryPoints: ["src/main.ts"], outfile: "dist/main.js", external });
for (const name of ["jinja", "tokenizers"]) await build({ ...common, entryPoints: [`@huggingface/${name}`], outfile: `dist/vendor/${name}.js` });
// The package as it is: its modules find each other.
cpSync(`${web}dist`, `${out}wgfc`, { recursive: true, filter: (f) => !f.endsWith(".d.ts") });

const compile = (model, name, ...options) => execFileSync(wgfc, ["compile", model, "-o", `${out}models/${name}.wgfc`, "--target", "web", "--quiet", ...options]);
for (const name of ["digits", "cartpole"]) {
  compile(`${here}models/${name}.onnx`, name);
  copyFileSync(`${here}models/${name}.onnx`, `${out}models/${name}.onnx`);
}
compile(`${here}models/cartpole.onnx`, "cartpole-50", "--fix", "steps=50");
compile(`${here}models/stories`, "stories", "--generate");
for (const file of readdirSync(`${here}models/stories`)) copyFileSync(`${here}models/stories/${file}`, `${out}models/${file === "model.onnx" ? "stories.onnx" : file}`);
