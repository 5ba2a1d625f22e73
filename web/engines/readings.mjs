// Readings of the suite in a page or in an engine: rows with their samples, named as those of `wgfc bench suite`.
import { suite } from "/dist/suite.js";
import { decode as tokens, times } from "./measure.mjs";

const seconds = (id, samples) => ({ id, unit: "s", better: "less", samples });

/** Runs of the program in a folder. */
export async function model(name, folder, inputs) {
  const { all, row } = await times(`/plans/${folder}/`, inputs, { seconds: 3 });
  return [seconds(`models/${name}/a run, to its outputs`, all.map((ms) => ms / 1000)), seconds(`models/${name}/a run, in a row`, [row / 1000])];
}

/** Tokens of the decoder in a folder. */
export async function decode(name, folder) {
  const rounds = await tokens(`/plans/${folder}/`, { past: 64, tokens: 192, rounds: 7 });
  const part = (of) => `decode/${name}/${of}`;
  return [
    seconds(part("first token after 64"), rounds.firsts.map((ms) => ms / 1000)),
    seconds(part("a token"), rounds.rates.map((n) => 1 / n)),
    { id: part("tokens"), unit: "1/s", better: "more", samples: rounds.rates },
  ];
}

/** Runs of a graph in fixtures/ by onnxruntime-web. */
export async function ortModel(name, fixture, inputs, dims) {
  const { all, first } = await (await import("./ort.mjs")).times(fixture, inputs, { seconds: 3, dims });
  return [seconds(`models/${name}/a run, to its outputs`, all.map((ms) => ms / 1000)), seconds(`models/${name}/to the first result`, [first / 1000])];
}

/** Tokens of a decoder in fixtures/ by onnxruntime-web, chosen by the page. */
export async function ortDecode(name, fixture) {
  const { decode } = await import("./ort.mjs");
  const half = fixture.endsWith("f16");
  const { perSecond, all } = await decode(fixture, { past: 64, tokens: 96, half });
  return [
    seconds(`decode/${name}/a token`, all.map((ms) => ms / 1000)),
    { id: `decode/${name}/tokens`, unit: "1/s", better: "more", samples: [perSecond] },
  ];
}

export const ortVersion = async () => (await import("./ort.mjs")).version();

/** A record of what `parts` name: a task's name, and a function of this module with its arguments, or the reason why there is none. */
export function record({ parts, ...options }) {
  const functions = { model, decode, ortModel, ortDecode };
  const tasks = parts.map(([name, what, ...rest]) => ({ name, run: async () => (rest.length ? functions[what](...rest) : Promise.reject(new Error(what))) }));
  const say = globalThis.process?.stderr ? (text) => process.stderr.write(`${text}\n`) : console.log;
  return suite({ ...options, tasks, onProgress: ({ task, done, total }) => say(`${task} (${done + 1} of ${total})`) });
}
