/** A tiny language model that tells stories. */

import { Generator } from "wgfc/generate";
import { h, messageOf } from "../dom.js";
import { deviceOf } from "../runs.js";
import { type Demo, frame } from "./demo.js";

const BEGINNINGS = ["Once upon a time", "There once was a shy", "One rainy day", "Tom was a", "Lily was a curious girl who lived by the sea. One"];

export async function stories(lookInside: () => void): Promise<Demo> {
  const generator = await Generator.load("./models/stories.wgfc", { device: await deviceOf() });
  let stop: AbortController | undefined;
  const prompt = h("input", { type: "text", value: BEGINNINGS[0], maxlength: 200, "aria-label": "How the story begins", autocomplete: "off" });
  const temperature = h("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0.7 });
  const shown = h("span", { class: "mono" }, "0.7");
  temperature.addEventListener("input", () => (shown.textContent = Number(temperature.value).toFixed(1)));
  const text = h("p", { class: "story", "aria-live": "polite" });
  const status = h("output", { class: "status", role: "status" });
  const tell = h("button", { type: "submit", class: "primary" }, "Tell");

  const run = async () => {
    if (stop) return stop.abort();
    const mine = (stop = new AbortController());
    tell.textContent = "Stop";
    status.className = "status";
    text.replaceChildren(h("span", { class: "given" }, prompt.value));
    const start = performance.now();
    let [pieces, first] = [0, 0];
    try {
      await generator.reset();
      for await (const piece of generator.generate(prompt.value, { maxTokens: 220, temperature: Number(temperature.value), signal: mine.signal })) {
        first ||= performance.now() - start;
        text.append(piece);
        pieces++;
        const seconds = (performance.now() - start) / 1000;
        status.textContent = `${pieces} tokens, ${(pieces / seconds).toFixed(0)} a second`;
      }
      status.dataset.done = String(pieces);
    } catch (e) {
      if (!mine.signal.aborted) {
        status.className = "status error";
        status.textContent = messageOf(e);
      }
    } finally {
      if (stop === mine) stop = undefined;
      tell.textContent = "Tell";
    }
  };
  const form = h("form", { class: "tell", onsubmit: (e: Event) => { e.preventDefault(); void run(); } },
    h("div", { class: "line" }, prompt, tell),
    h("div", { class: "beginnings" }, ...BEGINNINGS.map((b) => h("button", { type: "button", class: "chip", onclick: () => { prompt.value = b; if (!stop) void run(); } }, `${b.split(" ").slice(0, 5).join(" ")} …`))),
    h("label", { class: "slider" }, h("span", {}, "temperature"), temperature, shown),
  );
  const body = h("div", { class: "stories" }, form, text, status);
  const words = "A decoder of 166,000 weights and 384 tokens, which has read sixty thousand made-up stories for ten minutes. Its cache of keys and values stays on the device: a prompt is one run, and each token another.";
  void run();
  return {
    element: frame("A tiny language model", words, [body], lookInside),
    stop() {
      stop?.abort();
      generator.dispose();
    },
  };
}
