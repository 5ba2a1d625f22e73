/** The interface of a demo. */

import { h } from "../dom.js";

export interface Demo {
  readonly element: HTMLElement;
  /** Ends what runs by itself. */
  stop(): void;
}

/** A demo's frame: a title, words, what it shows, and a way to see its kernels. */
export function frame(title: string, words: string, body: readonly HTMLElement[], lookInside: () => void): HTMLElement {
  return h("div", { class: "demo" },
    h("div", { class: "demo-head" }, h("h1", {}, title), h("p", {}, words), h("button", { type: "button", "data-action": "inside", onclick: lookInside }, "Look inside")),
    ...body,
  );
}

/** A colour of the style sheet as a canvas takes it: the one of the scheme that is shown. */
export function css(name: string): string {
  probe ??= document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
let probe: HTMLElement | undefined;
