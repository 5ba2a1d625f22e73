/** Creation of HTML elements. Strings are inserted as text, so names from models never become HTML. */

type Child = Node | string | number | false | undefined | null;
type Props = Record<string, unknown>;

function fill<E extends Element>(element: E, props: Props, children: readonly Child[]): E {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false || value === null) continue;
    if (name.startsWith("on") && typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((c) => c !== false && c !== undefined && c !== null).map((c) => (typeof c === "number" ? String(c) : (c as Node | string))));
  return element;
}

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), props, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

const UNITS = ["", "k", "M", "G", "T", "P"];

/** Formats a number with three digits and an SI prefix: `1.23 M`. */
export function si(x: number, unit: string): string {
  if (!Number.isFinite(x)) return `– ${unit}`;
  const step = Math.max(0, Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, Math.abs(x))) / 3 + 1e-9)));
  const y = x / 1000 ** step;
  return `${step === 0 && Number.isInteger(y) ? y : y.toPrecision(3)} ${UNITS[step]}${unit}`;
}

export function time(microseconds: number): string {
  if (!(microseconds >= 0)) return "–";
  if (microseconds < 1000) return `${microseconds.toPrecision(3)} µs`;
  return microseconds < 1e6 ? `${(microseconds / 1000).toPrecision(3)} ms` : `${(microseconds / 1e6).toPrecision(3)} s`;
}

/** A fixed hue for an index, far from those of neighbouring indices. */
export function hue(i: number): number {
  return Math.round((i * 137.508 + 215) % 360);
}

export function messageOf(e: unknown): string {
  return e instanceof Error ? e.message : String(e);
}
