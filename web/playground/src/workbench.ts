/** The workbench: a model's graph, its kernels and their WGSL side by side, with their times on this device. */

import { type Model, type Tensor, type TensorLike, type TypedArray, load } from "wgfc";
import { type TunedKernel, tune } from "wgfc/tune";
import { type Measured, type Speeds, histogram, roofline } from "./charts.js";
import { h, hue, messageOf, si, time } from "./dom.js";
import { type Editor, editor } from "./editor.js";
import { type Drawn, dispatchPicture, draw, modelPicture } from "./graph.js";
import { type HowToCompile, compiled, sourceOf } from "./open.js";
import { type Opened, type Plan, Sizes, edited, freeSymbols, tapped } from "./program.js";
import { type Result, adapterName, deviceOf, inputsFor, measureDevice, measuredProfile, runModel, timeDispatches, titleOf } from "./runs.js";

/** The part of a workbench's state that links store. */
export interface WorkState {
  dims: Record<string, number>;
  dispatch: number | undefined;
  edits: Record<string, string>;
}

export class Workbench {
  readonly element = h("div", { class: "workbench" });
  readonly state: WorkState;
  readonly #changed: () => void;
  #opened: Opened;
  #plan: Plan;
  #sizes!: Sizes;
  #graph!: Drawn;
  #view: "model" | "kernels";
  #measured: readonly Measured[] = [];
  #speeds: Speeds | undefined;
  #last: Result | undefined;
  #device = "";
  readonly #editor: Editor;
  readonly #parts = {
    figures: h("div", { class: "figures" }),
    dims: h("form", { class: "dims" }),
    status: h("output", { class: "status", role: "status", "aria-live": "polite" }),
    graph: h("section", { class: "pane graph-pane", "aria-label": "Graph" }),
    kernels: h("ol", { class: "kernels", "aria-label": "Kernels" }),
    detail: h("div", { class: "detail" }),
    comparison: h("div", { class: "comparison" }),
    roofline: h("div", {}),
    tensor: h("div", { class: "tensor" }),
  };

  constructor(opened: Opened, state: Partial<WorkState>, changed: () => void) {
    this.#opened = opened;
    this.#plan = opened.plans[0]!;
    this.#view = opened.graph ? "model" : "kernels";
    this.#changed = changed;
    const dims = Object.fromEntries(freeSymbols(this.#plan).map((s) => [s, 1]));
    this.state = { dims: { ...dims, ...state.dims }, dispatch: state.dispatch, edits: { ...state.edits } };
    this.#editor = editor("WGSL of the kernel", (kernel, text) => this.#edit(kernel, text), () => void this.#guard("run", () => this.#run()));
    this.#build();
    this.#planChanged();
    if (state.dispatch !== undefined && state.dispatch < this.#plan.dispatches.length) this.select(state.dispatch);
    else if (this.#plan.dispatches.length) this.select(0);
  }

  #build(): void {
    const p = this.#parts;
    const button = (text: string, title: string, what: string, f: () => Promise<void>, primary = false) =>
      h("button", { type: "button", class: primary ? "primary" : "", title, "data-action": what, onclick: () => void this.#guard(what, f) }, text);
    const recompile = this.#opened.model !== undefined;
    const schedules = h("button", { type: "button", "data-action": "schedule", onclick: () => void this.#guard("schedule", () => this.#schedules()) }, "Schedules…");
    this.element.replaceChildren(
      h("div", { class: "head" },
        h("div", { class: "name" }, h("h1", {}, this.#opened.name), this.#planChoice()),
        p.dims,
        h("div", { class: "actions" }, button("Run", "Run with made-up inputs (Ctrl-Enter in the editor)", "run", () => this.#run(), true), button("Time kernels", "How long each kernel takes on this device", "time", () => this.#time()), recompile ? button("Compile unfused", "Every operator as a kernel of its own, to compare with", "unfused", () => this.#unfused()) : false, recompile ? button("Compile for this device", "Measure the device, and choose the kernels by its speeds", "device", () => this.#forDevice()) : false, recompile ? button("Tune kernels", "Time several schedules of each kernel on this device, and compile with the fastest", "tune", () => this.#tune()) : false, recompile ? schedules : false),
      ),
      p.figures, p.status,
      h("div", { class: "columns" },
        p.graph,
        h("section", { class: "pane kernel-pane", "aria-label": "Kernels" }, h("header", {}, h("h2", {}, "Kernels")), p.kernels),
        h("section", { class: "pane code-pane", "aria-label": "WGSL" }, p.detail, h("div", { class: "editor" }, this.#editor.element), p.comparison),
      ),
      h("div", { class: "below" },
        h("section", { class: "pane", "aria-label": "Tensor" }, h("header", {}, h("h2", {}, "Tensor"), this.#tapChoice()), p.tensor),
        h("section", { class: "pane", "aria-label": "Roofline" }, h("header", {}, h("h2", {}, "Roofline of this device")), p.roofline),
      ),
    );
    p.tensor.replaceChildren(h("p", { class: "empty" }, "Run the model: then the numbers that the chosen kernel writes are here."));
    p.roofline.replaceChildren(h("p", { class: "empty" }, "Time the kernels: then their distance from what this device can do is here."));
  }

  /** The choice of a tensor of the model to show, if the model can be compiled again. */
  #tapChoice(): HTMLElement | false {
    const { graph, model } = this.#opened;
    const names = [...new Set((graph ?? []).flatMap((n) => n.outputs))].filter((n) => n !== "");
    if (!model || names.length === 0) return false;
    const choose = (e: Event) => {
      const name = (e.target as HTMLInputElement).value;
      if (names.includes(name)) void this.#guard("tap", () => this.#tap(name));
    };
    return h("span", { class: "tap" }, h("input", { type: "text", list: "tensors", placeholder: "any tensor of the model", "aria-label": "Tensor of the model", onchange: choose }), h("datalist", { id: "tensors" }, ...names.map((n) => h("option", { value: n }))));
  }

  #planChoice(): HTMLElement | false {
    const { plans } = this.#opened;
    if (plans.length < 2) return false;
    const choose = (e: Event) => {
      this.#plan = plans[Number((e.target as HTMLSelectElement).value)]!;
      this.state.dims = { ...Object.fromEntries(freeSymbols(this.#plan).map((s) => [s, 1])), ...this.state.dims };
      this.#measured = [];
      this.#planChanged();
      this.select(0);
    };
    return h("select", { "aria-label": "Plan", onchange: choose }, ...plans.map((p, i) => h("option", { value: i }, p.name || `plan ${i}`)));
  }

  /** Updates everything that depends on the plan and its sizes. */
  #planChanged(): void {
    const states = (this.#plan.states ?? []).flatMap((s) => s.shape.filter((d) => typeof d === "string" && this.#plan.symbols.includes(d)) as string[]);
    this.#sizes = new Sizes(this.#plan, { ...Object.fromEntries(states.map((s) => [s, 256])), ...this.state.dims });
    const symbols = freeSymbols(this.#plan);
    this.#parts.dims.replaceChildren(
      ...symbols.map((s) =>
        h("label", {}, h("span", {}, s), h("input", { type: "number", min: 1, max: 65536, value: this.state.dims[s] ?? 1, name: s, onchange: (e: Event) => this.#resize(s, Number((e.target as HTMLInputElement).value)) })),
      ),
    );
    this.#drawGraph();
    this.#showFigures();
    this.#showKernels();
  }

  #resize(symbol: string, value: number): void {
    if (!(Number.isInteger(value) && value > 0)) return;
    this.state.dims[symbol] = value;
    this.#measured = [];
    this.#last = undefined;
    this.#planChanged();
    this.#changed();
    this.#mark();
  }

  #drawGraph(): void {
    const { graph } = this.#opened;
    const label = this.#view === "model" ? "The model's nodes, coloured by kernel" : "Kernels and what they pass on";
    const chosen = (d: number) => this.select(d);
    this.#graph = draw(this.#view === "model" && graph ? modelPicture(this.#plan, graph) : dispatchPicture(this.#plan), label, chosen);
    const tab = (view: "model" | "kernels", text: string) =>
      h("button", { type: "button", "aria-pressed": String(this.#view === view), onclick: () => { this.#view = view; this.#drawGraph(); this.#mark(); } }, text);
    const tabs = graph ? h("div", { class: "segmented", role: "group", "aria-label": "What is drawn" }, tab("model", "Model"), tab("kernels", "Kernels")) : false;
    this.#parts.graph.replaceChildren(h("header", {}, h("h2", {}, "Graph"), tabs), this.#graph.element);
  }

  #showFigures(): void {
    const { stats, dispatches } = this.#plan;
    const at = (s: number | string) => this.#sizes.at(s);
    const fused = dispatches.reduce((n, d) => n + at(d.bytes), 0);
    const unfused = at(stats.bytes_unfused);
    const share = Math.min(1, fused / unfused);
    const total = this.#measured.reduce((n, m) => n + (m.microseconds || 0), 0);
    const figure = (name: string, value: string, more: string, bar?: number) =>
      h("div", { class: "figure", "data-figure": name }, h("span", { class: "label" }, name), h("b", {}, value), h("small", {}, more), bar === undefined ? false : h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: `width:${(100 * bar).toFixed(1)}%` })));
    this.#parts.figures.replaceChildren(
      figure("dispatches", String(dispatches.length), `of ${stats.model_nodes} nodes unfused`, dispatches.length / Math.max(1, stats.model_nodes)),
      figure("bytes moved", si(fused, "B"), `of ${si(unfused, "B")} unfused`, share),
      figure("arithmetic", si(dispatches.reduce((n, d) => n + at(d.flops), 0), "FLOP"), "a run"),
      figure("run", this.#last ? time(this.#last.microseconds) : "–", total ? `kernels ${time(total)}` : "with outputs on the host"),
      figure("device", this.#device || "–", this.#opened.compiled === undefined ? "compiled ahead" : `compiled here in ${time(this.#opened.compiled * 1000)}`),
    );
  }

  #showKernels(): void {
    const most = Math.max(1e-9, ...this.#measured.map((m) => m.microseconds || 0));
    const most_bytes = Math.max(1, ...this.#plan.dispatches.map((d) => this.#sizes.at(d.bytes)));
    const rows = this.#plan.dispatches.map((d, i) => {
      const kernel = this.#plan.kernels[d.kernel]!;
      const m = this.#measured[i];
      const [value, share] = m ? [time(m.microseconds), (m.microseconds || 0) / most] : [si(this.#sizes.at(d.bytes), "B"), this.#sizes.at(d.bytes) / most_bytes];
      const operators = this.#plan.stats.operators ?? {};
      const chips = d.nodes.slice(0, 6).map((n) => h("span", { class: "chip", title: n }, operators[n] ?? n));
      return h("li", {},
        h("button", { type: "button", "data-dispatch": i, style: `--hue:${hue(i)};--share:${share.toFixed(3)}`, onclick: () => this.select(i) },
          h("span", { class: "line" }, h("span", { class: "swatch" }), h("span", { class: "mono ellipsis" }, kernel.name.replace(/^\d+_/, "")), this.state.edits[kernel.name] !== undefined ? h("em", {}, "edited") : false, h("span", { class: "value" }, value)),
          h("span", { class: "chips" }, ...chips, d.nodes.length > 6 ? h("span", { class: "chip more" }, `+${d.nodes.length - 6}`) : false),
        ));
    });
    this.#parts.kernels.replaceChildren(...rows);
    this.#mark();
  }

  /** Selects a dispatch in all views. */
  select(dispatch: number): void {
    this.state.dispatch = dispatch;
    const d = this.#plan.dispatches[dispatch];
    if (!d) return;
    const kernel = this.#plan.kernels[d.kernel]!;
    const groups = d.workgroups.map((w) => this.#sizes.at(w)).join(" × ");
    const facts: [string, string][] = [
      ["family", kernel.family], ["workgroups", `${groups} of ${kernel.workgroup_size.join(" × ")}`], ["writes", (d.writes ?? []).join(", ") || "–"],
      ["bytes", si(this.#sizes.at(d.bytes), "B")], ["arithmetic", si(this.#sizes.at(d.flops), "FLOP")],
      ...(kernel.workgroup_bytes ? [["workgroup memory", si(kernel.workgroup_bytes, "B")] as [string, string]] : []),
      ...(kernel.features.length ? [["features", kernel.features.join(", ")] as [string, string]] : []),
    ];
    const original = this.#opened.kernels[kernel.name] ?? "";
    this.#parts.detail.replaceChildren(
      h("header", {}, h("h2", { class: "mono ellipsis" }, `${kernel.name}.wgsl`), h("button", { type: "button", "data-action": "revert", hidden: this.state.edits[kernel.name] === undefined, onclick: () => this.#revert(kernel.name) }, "Undo edits")),
      h("dl", { class: "facts" }, ...facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v)))),
      h("div", { class: "chips", "aria-label": "Nodes of the model" }, ...d.nodes.map((n) => h("span", { class: "chip" }, this.#plan.stats.operators?.[n] ?? "", " ", h("small", {}, n)))),
    );
    this.#editor.show(kernel.name, this.state.edits[kernel.name] ?? original);
    this.#mark();
    this.#changed();
    if (this.#last) void this.#guard("tensor", () => this.#showTensor(), true);
  }

  #mark(): void {
    const { dispatch } = this.state;
    this.#graph.select(dispatch);
    for (const b of this.#parts.kernels.querySelectorAll<HTMLElement>("[data-dispatch]")) {
      const on = Number(b.dataset.dispatch) === dispatch;
      b.setAttribute("aria-current", String(on));
      if (on) b.scrollIntoView({ block: "nearest" });
    }
    if (this.#speeds && this.#measured.length) this.#parts.roofline.replaceChildren(roofline(this.#measured, this.#speeds, dispatch, (d) => this.select(d)));
  }

  #edit(kernel: string, text: string): void {
    if (text === this.#opened.kernels[kernel]) delete this.state.edits[kernel];
    else this.state.edits[kernel] = text;
    const undo = this.#parts.detail.querySelector<HTMLElement>('[data-action="revert"]');
    if (undo) undo.hidden = this.state.edits[kernel] === undefined;
    this.#changed();
  }
  #revert(kernel: string): void {
    delete this.state.edits[kernel];
    this.#parts.comparison.replaceChildren();
    this.#showKernels();
    if (this.state.dispatch !== undefined) this.select(this.state.dispatch);
  }

  /** Runs `f` and shows its progress and errors. */
  async #guard(what: string, f: () => Promise<void>, quiet = false): Promise<void> {
    const { status } = this.#parts;
    const buttons = quiet ? [] : [...this.element.querySelectorAll<HTMLButtonElement>(".actions button")];
    for (const b of buttons) b.disabled = true;
    if (!quiet) this.#say("");
    try {
      await f();
      if (!quiet) this.element.dataset.done = what;
    } catch (e) {
      status.className = "status error";
      status.textContent = messageOf(e);
      this.element.dataset.done = `${what} failed`;
    } finally {
      for (const b of buttons) b.disabled = false;
    }
  }
  #say(text: string): void {
    this.#parts.status.className = "status";
    this.#parts.status.textContent = text;
  }

  #inputs(): Record<string, TensorLike> {
    return inputsFor(this.#plan, this.#sizes);
  }
  #planNames(): string[] {
    return this.#opened.plans.length > 1 ? [this.#plan.name ?? ""] : [];
  }

  async #loaded<T>(edits: Readonly<Record<string, string>>, f: (model: Model) => Promise<T>, plan?: (p: Plan) => Plan): Promise<T> {
    const device = await deviceOf();
    this.#device = adapterName(device);
    const plans = this.#planNames();
    const model = await load(edited(this.#opened, edits, plan), { device, ...(plans.length ? { plans } : {}) });
    try {
      return await f(model);
    } finally {
      model.dispose();
    }
  }

  /** Runs the model. If kernels were edited, also runs the original ones and compares the outputs. */
  async #run(): Promise<void> {
    const { edits } = this.state;
    const inputs = this.#inputs();
    this.#say("Running");
    const before = await this.#loaded({}, (m) => runModel(m, inputs));
    this.#last = before;
    const changed = Object.keys(edits);
    if (changed.length) {
      const after = await this.#loaded(edits, (m) => runModel(m, inputs));
      this.#last = after;
      this.#compare(before, after);
    } else this.#parts.comparison.replaceChildren();
    this.#showFigures();
    this.#showKernels();
    this.#say("");
    await this.#showTensor();
  }

  #compare(before: Result, after: Result): void {
    const rows = Object.entries(before.outputs).map(([name, want]) => {
      const [a, b] = [want, after.outputs[name]!].map((t) => (t as Tensor<TypedArray>).toNumbers()) as [Float64Array, Float64Array];
      let [largest, equal] = [0, 0];
      a.forEach((x, i) => {
        if (Object.is(x, b[i]!)) equal++;
        else largest = Math.max(largest, Number.isFinite(x - b[i]!) ? Math.abs(x - b[i]!) : Infinity);
      });
      const same = equal === a.length;
      return h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: same ? "good" : "changed" }, same ? "the same bits" : `${a.length - equal} of ${a.length} differ`), h("td", {}, same ? "" : `by ${largest.toPrecision(3)} at most`));
    });
    const ratio = before.microseconds / after.microseconds;
    this.#parts.comparison.replaceChildren(
      h("table", { "aria-label": "Compared with the kernels as they were compiled" }, h("tbody", {}, ...rows, h("tr", {}, h("th", { scope: "row" }, "run"), h("td", {}, `${time(after.microseconds)}, before ${time(before.microseconds)}`), h("td", {}, `× ${ratio.toFixed(2)}`)))),
    );
  }

  /** Shows the buffer that the selected dispatch writes, which an edited plan returns as an additional output. This needs no compiler. */
  async #showTensor(): Promise<void> {
    const { dispatch } = this.state;
    const d = dispatch === undefined ? undefined : this.#plan.dispatches[dispatch];
    if (!d) return;
    const kernel = this.#plan.kernels[d.kernel]!;
    const written = d.bindings.filter((_, i) => kernel.bindings[i] === "read_write");
    const inputs = this.#inputs();
    const figures = [];
    for (const [i, buffer] of written.entries()) {
      const { kind } = this.#plan.buffers[buffer]!;
      const title = `${kind.kind === "output" ? this.#plan.outputs[kind.index!]!.name : titleOf(this.#plan, dispatch!)}  ${d.writes?.[i] ?? ""}`;
      if (kind.kind === "state") continue;
      const name = kind.kind === "output" ? this.#plan.outputs[kind.index!]!.name : " tap";
      const values = await this.#loaded(this.state.edits, async (m) => ((await m.run(inputs, { outputs: { [name]: "cpu" } }))[name] as Tensor<TypedArray>).toNumbers(), (p) => (p === this.#plan ? tapped(p, buffer, name) : p));
      figures.push(histogram(title, values));
    }
    const none = h("p", { class: "empty" }, "This kernel writes only to what stays on the device from run to run.");
    this.#parts.tensor.replaceChildren(...(figures.length ? figures : [none]));
  }

  async #time(): Promise<void> {
    this.#say("Measuring the device");
    this.#speeds = await measureDevice();
    this.#device = adapterName(await deviceOf());
    this.#measured = await timeDispatches(this.#opened, this.#plan, this.state.edits, this.#inputs(), this.#sizes, (done, all) => this.#say(`Timing kernels: ${done} of ${all}`));
    this.#showFigures();
    this.#showKernels();
    this.#say("");
  }

  /** Shows a tensor that may have no buffer: the model is compiled again with the tensor as an output. */
  async #tap(name: string): Promise<void> {
    const other = await compiled(this.#opened.model!, { taps: [name] }, (t) => this.#say(t));
    const model = await load(other.files, { device: await deviceOf() });
    try {
      const plan = other.plans[0]!;
      const values = (await model.run(inputsFor(plan, new Sizes(plan, this.state.dims))))[name]!;
      this.#parts.tensor.replaceChildren(histogram(`${name}  ${values.dtype}[${values.shape.join(", ")}]`, values.toNumbers()));
      this.#say("");
    } finally {
      model.dispose();
    }
  }

  /** Compiles the model without fusion and runs both versions. */
  async #unfused(): Promise<void> {
    const other = await compiled(this.#opened.model!, { unfused: true }, (t) => this.#say(t));
    const inputs = this.#inputs();
    const fused = await this.#loaded({}, (m) => runModel(m, inputs));
    const model = await load(other.files, { device: await deviceOf() });
    try {
      const slow = await runModel(model, inputs);
      const plan = other.plans[0]!;
      const sizes = new Sizes(plan, this.state.dims);
      const bytes = plan.dispatches.reduce((n, d) => n + sizes.at(d.bytes), 0);
      this.#compare(slow, fused);
      this.#say(`Unfused: ${plan.dispatches.length} dispatches, ${si(bytes, "B")}, ${time(slow.microseconds)}. Fused: ${this.#plan.dispatches.length}, ${time(fused.microseconds)}.`);
    } finally {
      model.dispose();
    }
  }

  /** Measures the device and compiles the model for its speeds. */
  async #forDevice(): Promise<void> {
    this.#say("Measuring the device");
    this.#speeds = await measureDevice();
    await this.#recompile({});
    const href = `data:application/json,${encodeURIComponent(JSON.stringify(await measuredProfile(), null, 1))}`;
    this.#parts.status.append("Compiled for this device as it was measured. ", h("a", { href, download: "profile.json" }, "Download its profile"));
  }

  /** Times the kernels' schedules on this device and compiles the model with the fastest. */
  async #tune(): Promise<void> {
    const onKernel = ({ done, total }: { done: number; total: number }) => this.#say(`Tuning kernels: ${done} of ${total}`);
    const { kernels, left, table } = await tune(sourceOf(this.#opened.model!), { device: await deviceOf(), values: this.state.dims, onKernel });
    await this.#recompile({});
    const faster = kernels.filter((k) => k.best.schedule !== k.own.schedule);
    const share = (k: TunedKernel) => `${k.title.split(/[ ,]/)[0]} ${Math.round(100 - (100 * k.best.microseconds) / k.own.microseconds)} %`;
    this.#parts.status.append(`${faster.length} of ${kernels.length} kernels became faster${faster.length ? `: ${faster.map(share).join(", ")}` : ""}.${left ? ` ${left} were left: tune again.` : ""} `);
    if (table) this.#parts.status.append(h("a", { href: `data:application/json,${encodeURIComponent(table)}`, download: "tuning.json" }, "Download the table"));
  }

  /** Shows the kernels' schedules as JSON, and compiles the model with the edited ones. */
  async #schedules(): Promise<void> {
    const { schedules = "" } = await compiled(this.#opened.model!, { listSchedules: true }, (t) => this.#say(t));
    this.#say("");
    const area = h("textarea", { rows: 16, spellcheck: "false", "aria-label": "Schedules" });
    area.value = schedules;
    const close = () => dialog.close();
    const apply = () => {
      close();
      void this.#guard("schedule", () => this.#recompile({ schedules: area.value }));
    };
    const dialog = h("dialog", {}, h("h2", {}, "Schedules"), area, h("div", { class: "actions" }, h("button", { type: "button", onclick: close }, "Cancel"), h("button", { type: "button", class: "primary", onclick: apply }, "Compile")));
    this.element.append(dialog);
    dialog.showModal();
  }

  async #recompile(how: HowToCompile): Promise<void> {
    const inputs = this.#inputs();
    const before = await this.#loaded({}, (m) => runModel(m, inputs));
    this.#opened = await compiled(this.#opened.model!, how, (t) => this.#say(t));
    this.#plan = this.#opened.plans[0]!;
    this.state.edits = {};
    this.#measured = [];
    this.#planChanged();
    this.select(Math.min(this.state.dispatch ?? 0, this.#plan.dispatches.length - 1));
    this.#last = await this.#loaded({}, (m) => runModel(m, inputs));
    this.#compare(before, this.#last);
    this.#showFigures();
    this.#say("");
  }
}
