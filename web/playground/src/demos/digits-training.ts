/** Training of the digits' classifier from zero, in the page. */

import { type Model, Tensor, load } from "wgfc";
import { Trainer } from "wgfc/train";
import { h } from "../dom.js";
import { Curve } from "./curve.js";
import { type Digits, fetchDigits } from "./digits-data.js";
import { Toggle, css } from "./demo.js";

const BATCH = 64;
/** Learning rates, each with the number of steps that are trained with it. */
const RATES = [[3e-3, 500], [1e-3, 300], [3e-4, 200]] as const;
/** The number of steps between two tests. */
const EVERY = 50;

const rateOf = (rate: number) => Tensor.from("f32", [], [rate]);

/** A classifier that is being trained. */
export interface Classifier {
  /** The probabilities of images, with the weights as they are. */
  probabilities(image: Tensor): Promise<Float64Array>;
}

export class DigitsTraining {
  readonly element: HTMLElement;
  readonly #device: GPUDevice;
  readonly #changed: (classifier: Classifier | undefined) => void;
  readonly #curve = new Curve("The loss of each step");
  readonly #kernels = Array.from({ length: 12 }, () => h("canvas", { width: 3, height: 3 }));
  readonly #status = h("output", { class: "status training", role: "status" });
  readonly #toggle = new Toggle("Train from zero", "train", this.#status, (signal) => this.#train(signal));
  #trainer: Trainer | undefined;
  #model: Model | undefined;
  #digits: Digits | undefined;

  /** `changed` is called when the classifier has learned something. */
  constructor(device: GPUDevice, changed: (classifier: Classifier | undefined) => void) {
    this.#device = device;
    this.#changed = changed;
    const words =
      "A step is the loss, its gradients and Adam, as PyTorch exports them: one program, whose parameters and moments stay on the device. The classifier begins with random weights, which the guesses above then come from.";
    this.element = h("section", { class: "training" },
      h("div", { class: "line" }, h("h2", {}, "Training in this page"), this.#toggle.button), h("p", {}, words),
      h("div", { class: "line" }, h("figure", {}, this.#curve.element, h("figcaption", {}, "the loss, step by step")), h("figure", {}, h("div", { class: "filters" }, ...this.#kernels), h("figcaption", {}, "the first convolution's filters"))),
      this.#status,
    );
  }

  stop(): void {
    this.#toggle.stop();
    this.#trainer?.dispose();
    this.#model?.dispose();
  }

  async #train(signal: AbortSignal): Promise<void> {
    this.#status.textContent = "Compiling the step";
    const device = this.#device;
    const digits = (this.#digits ??= await fetchDigits("./models/digits.safetensors"));
    this.#model ??= await load("./models/digits-weights.onnx", { device });
    const inputs = { rate: rateOf(0) };
    this.#trainer ??= await Trainer.load("./models/digits-step.pt2", { device, data: digits.training, inputs, batch: BATCH, inFlight: 4 });
    const trainer = this.#trainer;
    await trainer.reset();
    this.#curve.clear();
    const classifier = this.#classifier(trainer);
    this.#changed(classifier);
    const begin = performance.now();
    let right = 0;
    for (const [rate, steps] of RATES) {
      trainer.set({ rate: rateOf(rate) });
      for await (const { number, loss } of trainer.run(steps, { signal })) {
        this.#curve.add(loss);
        if (number % EVERY) continue;
        right = await accuracy(classifier, digits);
        await this.#draw(trainer);
        this.#changed(classifier);
        const speed = (1000 * number) / (performance.now() - begin);
        this.#status.textContent = `${number} steps, ${speed.toFixed(0)} a second; ${(100 * right).toFixed(1)} % of ${digits.test.labels.length} digits that it has not seen are right`;
      }
    }
    this.#status.dataset.done = String(right);
  }

  /** The classifier reads the trainer's states where they are. */
  #classifier(trainer: Trainer): Classifier {
    const model = this.#model!;
    const names = model.inputs.map((p) => p.name).filter((n) => n !== "image");
    return {
      async probabilities(image) {
        const weights = Object.fromEntries(trainer.model.states.filter((s) => names.includes(s.name)).map((s) => [s.name, s]));
        const { probabilities } = await model.run({ ...weights, image });
        return probabilities!.toNumbers();
      },
    };
  }

  /** Draws the filters of the first convolution. */
  async #draw(trainer: Trainer): Promise<void> {
    const state = trainer.model.states.find((s) => s.name === "conv1.weight")!;
    const weights = (await new Tensor(state.dtype, state.shape, state.data).read(this.#device)).toNumbers();
    const [less, more] = [css("--warm"), css("--accent")].map((c) => c.match(/[\d.]+/g)!.slice(0, 3).map(Number));
    const most = Math.max(...weights.map(Math.abs));
    this.#kernels.forEach((canvas, k) => {
      const c = canvas.getContext("2d")!;
      const image = c.createImageData(3, 3);
      for (let i = 0; i < 9; i++) {
        const w = weights[9 * k + i]! / most;
        image.data.set([...(w < 0 ? less : more)!, Math.round(255 * Math.abs(w))], 4 * i);
      }
      c.putImageData(image, 0, 0);
    });
  }
}

/** The share of the test's digits that are recognised. */
async function accuracy(classifier: Classifier, { test }: Digits): Promise<number> {
  const p = await classifier.probabilities(test.image);
  let right = 0;
  test.labels.forEach((label, i) => {
    const own = p.subarray(10 * i, 10 * i + 10);
    if (own.indexOf(Math.max(...own)) === label) right++;
  });
  return right / test.labels.length;
}
