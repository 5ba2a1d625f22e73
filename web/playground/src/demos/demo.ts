/** The interface of a demo. */

import { h } from "../dom.js";

export interface Demo {
  readonly element: HTMLElement;
  /** Takes files that are dropped on the page; without it they are opened in the workbench. */
  drop?(files: readonly File[]): void;
  /** Stops everything that runs in the background. */
  stop(): void;
}

/** A demo's frame: a title, a description, the demo itself, and a button that shows its kernels. */
export function frame(title: string, words: string, body: readonly HTMLElement[], lookInside: () => void): HTMLElement {
  return h("div", { class: "demo" },
    h("div", { class: "demo-head" }, h("h1", {}, title), h("p", {}, words), h("button", { type: "button", "data-action": "inside", onclick: lookInside }, "Look inside")),
    ...body,
  );
}

/** A colour of the style sheet in the current colour scheme, in a form that a canvas accepts. */
export function css(name: string): string {
  probe ??= document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
let probe: HTMLElement | undefined;
