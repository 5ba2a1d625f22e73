/** The interface of a demo. */

import { h, messageOf } from "../dom.js";

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

/** A button that starts work, and stops it while it runs. `status` shows errors. */
export class Toggle {
  readonly button: HTMLButtonElement;
  #running: AbortController | undefined;

  constructor(label: string, action: string, status: HTMLElement, work: (signal: AbortSignal) => Promise<void>) {
    const run = async () => {
      if (this.#running) return this.stop();
      const mine = (this.#running = new AbortController());
      this.button.textContent = "Stop";
      status.classList.remove("error");
      delete status.dataset.done;
      try {
        await work(mine.signal);
      } catch (e) {
        if (mine.signal.aborted) return;
        status.classList.add("error");
        status.textContent = messageOf(e);
      } finally {
        if (this.#running === mine) this.#running = undefined;
        this.button.textContent = label;
      }
    };
    this.button = h("button", { type: "button", class: "primary", "data-action": action, onclick: () => void run() }, label);
  }

  stop(): void {
    this.#running?.abort();
  }
}

/** A colour of the style sheet in the current colour scheme, in a form that a canvas accepts. */
export function css(name: string): string {
  probe ??= document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
let probe: HTMLElement | undefined;
