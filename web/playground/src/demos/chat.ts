/** Conversations with a language model: a GGUF file, or what `wgfc compile --generate` compiled. */

import { Generator, type Message } from "wgfc/generate";
import { h, messageOf } from "../dom.js";
import { filesByName } from "../open.js";
import { deviceOf } from "../runs.js";
import { type Demo, frame } from "./demo.js";

/** The model of the demo tells stories: it goes on from a beginning, and each answer ends one. */
const STORIES = "./models/stories.wgfc";
const TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}";

export async function chat(lookInside: () => void): Promise<Demo> {
  const device = await deviceOf();
  let generator: Generator | undefined;
  let stop: AbortController | undefined;
  let running: Promise<void> | undefined;
  const messages: Message[] = [];
  const list = h("ol", { class: "messages", "aria-live": "polite" });
  const status = h("output", { class: "status", role: "status" });
  const name = h("b", {});
  const address = h("input", { type: "text", placeholder: "Address of a .gguf or .wgfc file", "aria-label": "Address of a model", autocomplete: "off" });
  const files = h("input", { type: "file", multiple: true, class: "hidden", onchange: () => void use([...(files.files ?? [])]) });
  const input = h("input", { type: "text", value: "Once upon a time", maxlength: 20_000, "aria-label": "Your message", autocomplete: "off" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");

  const say = (words: string, error = false) => {
    status.className = error ? "status error" : "status";
    status.textContent = words;
  };
  const clear = async () => {
    stop?.abort();
    await running;
    messages.length = 0;
    list.replaceChildren();
    say("");
    delete status.dataset.done;
    await generator?.reset();
  };

  /** Loads another model, with whose tokenizer and template the conversation begins anew. */
  const open = async (title: string, load: () => Promise<Generator>) => {
    await clear();
    say(`Loading ${title}`);
    try {
      const loaded = await load();
      generator?.dispose();
      generator = loaded;
      name.textContent = title;
      say("");
    } catch (e) {
      say(messageOf(e), true);
    }
  };
  const use = (given: readonly File[]) =>
    open(given.find((f) => /\.(wgfc|gguf|onnx)$/i.test(f.name))?.name ?? "the files", () => Generator.load(filesByName(given), { device }));

  const answer = async () => {
    const using = generator;
    if (!using || input.value === "") return;
    const mine = (stop = new AbortController());
    send.textContent = "Stop";
    messages.push({ role: "user", content: input.value });
    const text = h("span", {});
    list.append(h("li", { class: "user" }, input.value), h("li", { class: "assistant" }, text));
    input.value = "";
    let said = "";
    let [start, before, seconds] = [0, 0, 0];
    const figures = () => {
      const tokens = using.length - before;
      return seconds > 0 ? `${tokens} tokens, ${(tokens / seconds).toFixed(0)} a second` : "";
    };
    try {
      for await (const piece of using.chat(messages, { maxTokens: 300, signal: mine.signal })) {
        said += piece;
        text.textContent = said;
        list.scrollTop = list.scrollHeight;
        // The first token takes as long as the prompt: speed is that of the tokens behind it.
        if (start === 0) [start, before] = [performance.now(), using.length];
        seconds = (performance.now() - start) / 1000;
        say(figures());
      }
    } catch (e) {
      if (!mine.signal.aborted) say(messageOf(e), true);
    } finally {
      messages.push({ role: "assistant", content: said });
      stop = undefined;
      send.textContent = "Send";
      status.dataset.done = String(messages.length);
    }
  };

  const form = h("form", { class: "tell", onsubmit: (e: Event) => { e.preventDefault(); if (stop) stop.abort(); else running = answer(); } }, h("div", { class: "line" }, input, send));
  const choose = h("form", { class: "choose", onsubmit: (e: Event) => { e.preventDefault(); const at = address.value; if (at) void open(at, () => Generator.load(new URL(at, location.href), { device })); } },
    name, address,
    h("button", { type: "submit" }, "Load"),
    h("button", { type: "button", "data-action": "files", onclick: () => files.click() }, "Files"), files,
    h("button", { type: "button", "data-action": "reset", onclick: () => void clear() }, "Reset"),
  );
  const words = "Messages go through the model's own chat template, and the conversation stays in the cache on the device. Load a GGUF file or what wgfc compile --generate wrote, from an address or from files, also dropped here; the small model that is loaded first goes on with the beginnings of stories.";
  await open("stories", () => Generator.load(STORIES, { device, chatTemplate: TEMPLATE }));
  return {
    element: frame("Chat", words, [h("div", { class: "chat" }, choose, list, form, status)], lookInside),
    drop: (given) => void use(given),
    stop() {
      stop?.abort();
      generator?.dispose();
    },
  };
}
