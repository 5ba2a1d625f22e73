/** The playground: a workbench for models, and demos. The address encodes the current view, so that it can be linked to. */

import { cartpole } from "./demos/cartpole.js";
import { chat } from "./demos/chat.js";
import type { Demo } from "./demos/demo.js";
import { digits } from "./demos/digits.js";
import { measure } from "./demos/measure.js";
import { stories } from "./demos/stories.js";
import { h, messageOf } from "./dom.js";
import { type Shared, decode, encode } from "./hash.js";
import { filesOf, openAddress, openDropped } from "./open.js";
import type { Opened } from "./program.js";
import { Workbench } from "./workbench.js";

const DEMOS = { digits, cartpole, stories, chat, measure } as const;
type DemoName = keyof typeof DEMOS;
const TITLES: Record<string, string> = { model: "Model", digits: "Digits", cartpole: "CartPole", stories: "Stories", chat: "Chat", measure: "Measure" };
const EXAMPLES = { digits: "./models/digits.onnx", cartpole: "./models/cartpole.onnx", stories: "./models/stories.onnx", chat: "./models/stories.onnx", measure: "./models/digits.onnx" } as const;

const main = h("main", { id: "main", tabindex: -1 });
const tabs = Object.entries(TITLES).map(([view, title]) => h("a", { href: `#${view}`, "data-view": view }, title));
const share = h("button", { type: "button", "data-action": "share", onclick: () => void copyLink() }, "Copy link");
const theme = h("button", { type: "button", "aria-label": "Light or dark", title: "Light or dark", class: "icon", onclick: turnTheme }, "◐");
const toast = h("output", { class: "toast", role: "status", "aria-live": "polite" });
document.body.append(
  h("a", { class: "skip", href: "#main", onclick: (e: Event) => { e.preventDefault(); main.focus(); } }, "To the content"),
  h("header", { class: "top" }, h("a", { class: "logo", href: "#model" }, h("b", {}, "wgfc"), " playground"), h("nav", { "aria-label": "Views" }, ...tabs), h("div", { class: "right" }, share, theme)),
  main, toast,
);

let view = "";
let demo: Demo | undefined;
let bench: Workbench | undefined;
let opened: Opened | undefined;
/** The address of the current model. */
let address: string | undefined;
let showing = 0;
/** The fragment that this page last wrote to the address. */
let written = "";

function say(text: string): void {
  main.replaceChildren(h("div", { class: "loading", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text));
}

function failed(e: unknown): void {
  main.replaceChildren(h("div", { class: "failed" }, h("h1", {}, "That did not work"), h("pre", { class: "error" }, messageOf(e)), h("button", { type: "button", onclick: () => welcome() }, "Another model")));
}

async function show(shared: Shared): Promise<void> {
  const mine = ++showing;
  demo?.stop();
  demo = bench = undefined;
  view = shared.view;
  for (const t of tabs) t.setAttribute("aria-current", t.dataset.view === view ? "page" : "false");
  document.title = `${TITLES[view] ?? "Model"} · wgfc playground`;
  share.hidden = view !== "model";
  if (view in DEMOS) {
    say("Loading");
    try {
      const made = await DEMOS[view as DemoName](() => void open(EXAMPLES[view as DemoName]));
      if (mine !== showing) return made.stop();
      demo = made;
      main.replaceChildren(made.element);
      main.querySelector<HTMLElement>(".pad")?.focus();
    } catch (e) {
      if (mine === showing) failed(e);
    }
    return;
  }
  view = "model";
  try {
    if (shared.file) opened = await openDropped([new File([shared.file.bytes as BlobPart], shared.file.name)], say);
    else if (shared.model && (shared.model !== address || !opened)) opened = await openAddress(shared.model, say);
    if (shared.model) address = shared.model;
    if (mine !== showing) return;
    if (opened) work(opened, shared);
    else welcome();
  } catch (e) {
    if (mine === showing) failed(e);
  }
}

function work(program: Opened, state: Partial<Shared> = {}): void {
  opened = program;
  bench = new Workbench(program, { dims: { ...state.dims }, dispatch: state.dispatch, edits: { ...state.edits } }, () => void keepAddress());
  const another = h("button", { type: "button", "data-action": "another", onclick: () => { opened = address = undefined; welcome(); } }, "Another model");
  bench.element.querySelector(".name")?.append(another);
  main.replaceChildren(bench.element);
  if (state.dispatch !== undefined) bench.select(state.dispatch);
}

async function open(from: string): Promise<void> {
  await show({ view: "model", model: from, dims: {}, edits: {} });
  void keepAddress();
}

/** Gives dropped files to the demo, if it takes any, or opens them in the workbench. */
async function taken(files: readonly File[]): Promise<void> {
  if (demo?.drop) demo.drop(files);
  else await drop(files);
}

async function drop(files: readonly File[]): Promise<void> {
  const mine = ++showing;
  demo?.stop();
  [demo, address, view] = [undefined, undefined, "model"];
  for (const t of tabs) t.setAttribute("aria-current", t.dataset.view === view ? "page" : "false");
  share.hidden = false;
  try {
    const program = await openDropped(files, say);
    if (mine === showing) work(program);
  } catch (e) {
    if (mine === showing) failed(e);
  }
}

function welcome(): void {
  bench = undefined;
  const input = h("input", { type: "file", multiple: true, accept: ".onnx,.pt2,.gguf,.wgfc,.data,.json,.wgsl,.safetensors", class: "hidden", onchange: () => void drop([...(input.files ?? [])]) });
  const example = (name: DemoName, words: string) =>
    h("button", { type: "button", class: "example", "data-example": name, onclick: () => void open(EXAMPLES[name]) }, h("b", {}, `${name}.onnx`), h("small", {}, words));
  main.replaceChildren(
    h("div", { class: "welcome" },
      h("h1", {}, "See what a model becomes"),
      h("p", {}, "wgfc compiles ONNX models and PyTorch programs to a few fused WebGPU kernels. Drop one to see its graph, its kernels and their WGSL side by side, to time and to change them. Nothing leaves this machine."),
      h("button", { type: "button", class: "drop", "data-action": "choose", onclick: () => input.click() }, h("span", { class: "big" }, "Drop a model here, or choose a file"), h("small", {}, ".onnx, .pt2, .gguf, or a .wgfc that was compiled before; with an ONNX model's external data, all its files")),
      input,
      h("div", { class: "examples" }, example("digits", "a classifier: 8 nodes, 5 kernels"), example("cartpole", "a simulation: a loop in one kernel"), example("stories", "a decoder: prompts and single tokens")),
    ),
  );
}

/** The content of a link to the current view. */
function current(): Shared {
  const { dims = {}, dispatch, edits = {} } = bench?.state ?? {};
  const file = !address && opened?.file ? { file: opened.file } : {};
  return { view, dims, edits, ...(dispatch === undefined ? {} : { dispatch }), ...(address ? { model: address } : file) };
}

async function keepAddress(): Promise<void> {
  if (view !== "model" || !bench) return;
  const { file: _, ...rest } = current();
  const hash = await encode(rest);
  if (view !== "model") return;
  written = hash;
  history.replaceState(null, "", hash);
}

async function copyLink(): Promise<void> {
  const shared = current();
  const hash = await encode(shared);
  written = hash;
  history.replaceState(null, "", hash);
  const words = shared.model || shared.file ? "Link copied" : opened ? "Link copied: without the model, which is too large for it" : "Link copied";
  await navigator.clipboard?.writeText(location.href).then(() => tell(words), () => tell("The link is in the address bar"));
}

function tell(words: string): void {
  toast.textContent = words;
  toast.classList.add("shown");
  setTimeout(() => toast.classList.remove("shown"), 2500);
}

function turnTheme(): void {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

addEventListener("dragover", (e) => {
  e.preventDefault();
  document.body.classList.add("dragging");
});
addEventListener("dragleave", (e) => e.relatedTarget === null && document.body.classList.remove("dragging"));
addEventListener("drop", (e) => {
  e.preventDefault();
  document.body.classList.remove("dragging");
  if (e.dataTransfer) void filesOf(e.dataTransfer).then((files) => (files.length ? taken(files) : undefined), failed);
});
addEventListener("hashchange", () => void begin());

async function begin(): Promise<void> {
  if (location.hash === written && written) return;
  const shared = (await decode(location.hash)) ?? { view: "model", dims: {}, edits: {} };
  await show(shared);
}

void begin();
