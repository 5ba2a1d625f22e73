/** What this device and this browser do, in the form of `wgfc bench suite`: a record to compare with those of others. */

import { Tensor, load } from "wgfc";
import { Generator } from "wgfc/generate";
import { type Reading, type SuiteRecord, type SuiteRow, type SuiteTask, median, suite } from "wgfc/suite";
import { h, time } from "../dom.js";
import { deviceOf, random } from "../runs.js";
import { type Demo, Toggle } from "./demo.js";

/** The seconds of a model in a pass, after others that are not counted. */
const SECONDS = 1;
const WARM_UP = 0.3;
const TOKENS = 100;
/** The tokens that come with the prompt and fill what runs ahead. */
const FILLING = 4;
const CARTS = 1024;

const seconds = (id: string, samples: readonly number[]): Reading => ({ id, unit: "s", better: "less", samples });

/** Seconds of runs that are waited for. */
async function timed(run: () => Promise<unknown>): Promise<number[]> {
  for (const until = performance.now() + 1000 * WARM_UP; performance.now() < until; ) await run();
  const all: number[] = [];
  for (const until = performance.now() + 1000 * SECONDS; performance.now() < until || all.length < 3; ) {
    const start = performance.now();
    await run();
    all.push((performance.now() - start) / 1000);
  }
  return all;
}

function noise(shape: readonly number[]): Tensor {
  const next = random(1);
  return Tensor.from("f32", shape, Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => next() - 0.5));
}

/** Runs of a model in `models/`, of which `inputs` are given. */
function model(file: string, name: string, inputs: Readonly<Record<string, Tensor>>): SuiteTask {
  return {
    name: `models/${name}`,
    run: async () => {
      const loaded = await load(`./models/${file}.wgfc`, { device: await deviceOf() });
      try {
        return [seconds(`models/${name}/a run, to its outputs`, await timed(() => loaded.run(inputs)))];
      } finally {
        loaded.dispose();
      }
    },
  };
}

const TASKS: readonly SuiteTask[] = [
  model("digits", "digits", { image: noise([1, 1, 8, 8]) }),
  model("cartpole-50", "cartpole, 1024 x 50", {
    policy: noise([CARTS, 5]), state: noise([CARTS, 4]), age: Tensor.from("f32", [CARTS], new Float32Array(CARTS)), wind: Tensor.from("f32", [], [0]),
  }),
  {
    name: "decode/stories",
    run: async (signal) => {
      const generator = await Generator.load("./models/stories.wgfc", { device: await deviceOf() });
      try {
        const each: number[] = [];
        // The first generation waits for memory.
        for (let round = 0; round < 2; round++) {
          await generator.reset();
          let before = performance.now();
          each.length = 0;
          for await (const _ of generator.generate("Once upon a time", { maxTokens: TOKENS, temperature: 0, ...(signal ? { signal } : {}) })) {
            const now = performance.now();
            each.push((now - before) / 1000);
            before = now;
          }
        }
        return [seconds("decode/stories/a token", each.slice(FILLING))];
      } finally {
        generator.dispose();
      }
    },
  },
];

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1, ""]] as const;

/** The median of a row with its unit, or the reason why there is none. */
export function valueOf({ unit, passes, missing }: SuiteRow): string {
  if (!passes) return missing ?? "";
  const value = median(passes.flat());
  if (unit === "s") return time(value * 1e6);
  const [factor, prefix] = PREFIXES.find(([factor]) => value >= factor) ?? [1, ""];
  return `${(value / factor).toPrecision(3)} ${prefix}${unit}`;
}

export async function measure(): Promise<Demo> {
  const status = h("output", { class: "status", role: "status" }, "It takes half a minute. Close what else uses the device.");
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "How much is measured" });
  const rows = h("tbody");
  const table = h("table", { class: "measured", hidden: true }, h("thead", {}, h("tr", {}, h("th", {}, "quantity"), h("th", {}, "median"))), rows);
  const save = h("a", { class: "save", hidden: true, download: "suite.json", "data-action": "save" }, "Save suite.json");
  let address = "";

  const show = (record: SuiteRecord) => {
    rows.replaceChildren(...record.rows.map((row) => h("tr", { "data-row": row.id }, h("td", {}, row.id), h("td", { class: "mono" }, valueOf(row)))));
    URL.revokeObjectURL(address);
    save.href = address = URL.createObjectURL(new Blob([JSON.stringify(record)], { type: "application/json" }));
    table.hidden = save.hidden = false;
  };
  const toggle = new Toggle("Measure", "measure", status, async (signal) => {
    bar.hidden = false;
    try {
      const record = await suite({
        tasks: TASKS, signal, iterations: 20,
        onProgress: ({ task, done, total }) => {
          status.textContent = `${task}, ${done + 1} of ${total}`;
          bar.value = done / total;
        },
      });
      show(record);
      status.textContent = `${record.device.name}: ${record.rows.length} rows. The command wgfc bench report suite.json makes a page of it, beside records of other devices.`;
      status.dataset.done = String(record.rows.length);
    } finally {
      bar.hidden = true;
    }
  });
  const element = h("div", { class: "demo measure" },
    h("div", { class: "demo-head" }, h("h1", {}, "Measure this device"), h("p", {}, "The speeds of the device, what a dispatch costs in this browser, and the demos' models, as wgfc bench suite measures them on the command line. Nothing is sent anywhere.")),
    h("p", {}, toggle.button, " ", save), bar, status, table,
  );
  return { element, stop: () => { toggle.stop(); URL.revokeObjectURL(address); } };
}
