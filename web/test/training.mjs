// Promises of training, in a browser.
import { Tensor } from "/dist/index.js";
import { Trainer } from "/dist/train.js";
import { readTensors } from "/build/verify.js";
import { close, equal, refused } from "./expect.mjs";

const folder = "/fixtures/torch/";
const bytesAt = async (name) => new Uint8Array(await (await fetch(folder + name)).arrayBuffer());

/** A tensor of an npy file of f32 or f64. */
async function npy(name) {
  const bytes = await bytesAt(name);
  const start = 10 + new DataView(bytes.buffer).getUint16(8, true);
  const header = new TextDecoder().decode(bytes.subarray(10, start));
  const shape = /'shape': \(([^)]*)\)/.exec(header)[1].split(",").filter((n) => n.trim()).map(Number);
  return Tensor.fromBytes(header.includes("<f8") ? "f64" : "f32", shape, bytes.slice(start));
}

const rate = Tensor.from("f32", [], [0.01]);
const options = async () => ({ data: { x: await npy("train_step.x.npy") }, inputs: { rate }, batch: 8 });

async function losses(trainer, steps) {
  const out = [];
  for await (const { number, loss } of trainer.run(steps)) {
    equal(number, out.length + 1 + trainer.begun, "the step");
    out.push(loss);
  }
  return Float64Array.from(out);
}

/** Trains with a trainer, which is disposed of. */
async function training(source, more, f) {
  const trainer = await Trainer.load(folder + source, { ...(await options()), ...more });
  trainer.begun = 0;
  try {
    return await f(trainer);
  } finally {
    trainer.dispose();
  }
}

const near = (got, want, what) => close({ [what]: { dtype: "f64", shape: [got.length], data: got } }, { [what]: { dtype: "f64", shape: [want.length], data: Float64Array.from(want) } });

export async function losses_of_steps_are_those_of_torch() {
  const want = (await npy("train_step.losses.npy")).toNumbers();
  const begin = await training("train_step.pt2", { shuffle: false }, async (trainer) => {
    equal([trainer.loss, trainer.batch, trainer.rows, trainer.model.states.length > 12], ["output", 8, 44, true], "the trainer");
    const begin = await trainer.save();
    near(await losses(trainer, 50), want, "losses");
    equal(trainer.step, 50, "steps");
    return new Uint8Array(await begin.arrayBuffer());
  });
  // The states are inputs and outputs of the same name.
  const states = Object.fromEntries(Object.entries(readTensors(begin)).map(([name, t]) => [`state.${name}`, t]));
  await training("train_step_pure.pt2", { shuffle: false }, async (trainer) => {
    await trainer.begin(states);
    near(await losses(trainer, 50), want, "losses of the pure step");
  });
}

export async function checkpoints_are_those_of_the_command_line() {
  const native = await bytesAt("train_step.17.safetensors");
  const headerOf = (bytes) => JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true)))));
  await training("train_step.pt2", {}, async (trainer) => {
    await losses(trainer, 17);
    const file = new Uint8Array(await (await trainer.save()).arrayBuffer());
    // Keys of objects have no order.
    const sorted = (o) => (o && typeof o === "object" && !Array.isArray(o) ? Object.fromEntries(Object.entries(o).sort().map(([k, v]) => [k, sorted(v)])) : o);
    equal(sorted(headerOf(file)), sorted(headerOf(native)), "the header");
    equal(file.length, native.length, "bytes");
    close(readTensors(file), readTensors(native));
    trainer.begun = 17;
    const on = await losses(trainer, 23);
    const whole = new Uint8Array(await (await trainer.save()).arrayBuffer());
    for (const from of [new Blob([file]), native])
      await training("train_step.pt2", { seed: 9 }, async (again) => {
        await again.resume(from);
        equal(again.step, 17, "steps");
        again.begun = 17;
        near(await losses(again, 23), on, "losses");
        // Its own checkpoint continues to the last bit.
        if (from !== native) equal([...new Uint8Array(await (await again.save()).arrayBuffer())].join(), [...whole].join(), "the states");
      });
  });
}

export async function a_caller_may_break_off_and_save_between_steps() {
  await training("train_step.pt2", { inFlight: 3 }, async (trainer) => {
    let file;
    for await (const { number } of trainer.run(100)) {
      if (number === 4) file = await trainer.save();
      if (number === 6) break;
    }
    equal([trainer.step >= 6, trainer.step <= 9], [true, true], `${trainer.step} steps`);
    const { __metadata__ } = JSON.parse(new TextDecoder().decode(new Uint8Array(await file.slice(8, 8 + 4096).arrayBuffer())).split("   ")[0].replace(/\}\}[^]*$/, "}}"));
    const { step, samples } = JSON.parse(__metadata__.wgfc);
    equal([samples, step >= 4, step <= 7], [8 * step, true, true], "the progress");
    trainer.begun = trainer.step;
    await losses(trainer, 2);
  });
}

export async function inputs_change_and_training_begins_anew() {
  await training("train_step.pt2", {}, async (trainer) => {
    const first = await losses(trainer, 5);
    await trainer.reset();
    equal([...(await losses(trainer, 5))], [...first], "the same steps again");
    // Without a learning rate a step changes nothing but moments.
    trainer.set({ rate: Tensor.from("f32", [], [0]) });
    const encoder = async () => {
      const s = trainer.model.states.find((s) => s.name === "encoder");
      return [...(await new Tensor(s.dtype, s.shape, s.data).read(trainer.model.device)).data];
    };
    const before = await encoder();
    trainer.begun = 5;
    await losses(trainer, 3);
    equal(await encoder(), before, "parameters");
    try {
      trainer.set({ speed: rate });
    } catch (e) {
      return equal([e.kind, /"speed" was not given/.test(e.message)], ["shape", true], "the error");
    }
    throw new Error("an unknown input is set");
  });
}

export async function what_cannot_be_trained_is_refused() {
  const { data } = await options();
  const load = async (more, source = "train_step.pt2") => training(source, more, () => {});
  await refused(load({ data: {} }), "shape", /no data to train on/);
  await refused(load({ data: { ...data, y: Tensor.from("f32", [3], [1, 2, 3]) } }), "shape", /"x" has 44 rows, and "y" 3/);
  await refused(load({ inputs: {} }), "model", /input `rate` is f32\[\] and was not given[^]*inputs: \{ "rate": tensor \}/);
  await refused(load({ inputs: { rate, speed: rate } }), "model", /no input `speed`/);
  await refused(load({ batch: undefined }), "shape", /set `batch`/);
  await refused(load({ batch: 45 }), "shape", /44 rows, fewer than the 45/);
  await refused(load({ loss: "error" }), "model", /no output `error`/);
  await refused(load({ data: { x: Tensor.from("f32", [44, 5], Array(220).fill(0)) } }), "shape", /input "x" is f32\[rows, 6\], not f32\[rows, 5\]/);
  await refused(training("train_step.pt2", { inputs: { rate: Tensor.from("f32", [], [1e30]) } }, (t) => losses(t, 50)), "diverged", /the loss of step \d+ is (not a number|infinite)/);
  await training("train_step.pt2", {}, async (trainer) => {
    await refused(trainer.resume(new Blob(["no file"])), "corrupt", /not a safetensors file/);
    await refused(trainer.begin({ nothing: rate }), "shape", /no state "nothing"/);
    await refused(trainer.begin({ encoder: rate }), "shape", /"encoder" is f32\[\]/);
  });
}
