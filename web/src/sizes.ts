/**
 * Sizes: numbers, and expressions over the symbols of a plan. They become functions of the symbols' values. Unknown values are
 * NaN, and so are sizes that depend on them.
 *
 *     sum     := ["-"] product {("+" | "-") product}
 *     product := factor {("*" | "/" | "//" | "%") factor}
 *     factor  := number | symbol | "(" sum ")" | ("max" | "min") "(" sum "," sum ")"
 */

/** The values of a plan's symbols, in its order. */
export type Values = ArrayLike<number>;

export interface Size {
  readonly text: string;
  /** The size for values of the symbols; NaN if it depends on a symbol without a value, or is not a safe integer. */
  readonly at: (values: Values) => number;
  /** The symbols in it and their powers, which are infinite inside a quotient, a remainder, a minimum or a maximum. */
  readonly powers: ReadonlyMap<number, number>;
}

type Term = Omit<Size, "text">;

const exact = (x: number) => (Number.isSafeInteger(x) ? x : NaN);
const floorDiv = (a: number, b: number) => (b > 0 ? Math.floor(a / b) : NaN);
const remainder = (a: number, b: number) => (b > 0 ? ((a % b) + b) % b : NaN);

function binary(a: Term, b: Term, f: (a: number, b: number) => number, power: (a: number, b: number) => number): Term {
  const powers = new Map<number, number>();
  for (const s of [...a.powers.keys(), ...b.powers.keys()])
    powers.set(s, power(a.powers.get(s) ?? 0, b.powers.get(s) ?? 0));
  const [x, y] = [a.at, b.at];
  return { at: (v) => exact(f(x(v), y(v))), powers };
}

const total = (a: Term, b: Term) => binary(a, b, (x, y) => x + y, Math.max);
const difference = (a: Term, b: Term) => binary(a, b, (x, y) => x - y, Math.max);
const times = (a: Term, b: Term) => binary(a, b, (x, y) => x * y, (m, n) => m + n);
const opaque = (a: Term, b: Term, f: (a: number, b: number) => number) => binary(a, b, f, () => Infinity);

function constant(n: number): Term {
  return { at: () => n, powers: new Map() };
}

/** The tokens of a size expression. Other characters match singly and are rejected by the parser. */
const TOKENS = /\d+|[A-Za-z_][\w.]*|\/\/|\S/g;
const DEEPEST = 64;

function parse(text: string, symbol: (name: string) => number): Term {
  const tokens = text.match(TOKENS) ?? [];
  let [next, depth] = [0, 0];
  const fail = (): never => {
    throw new Error(`unexpected ${JSON.stringify(tokens[next] ?? "end")}`);
  };
  const eat = (token: string) => tokens[next] === token && ++next > 0;
  const expect = (token: string) => eat(token) || fail();
  const sum = (): Term => {
    if (++depth > DEEPEST) fail();
    let value = eat("-") ? difference(constant(0), product()) : product();
    for (;;)
      if (eat("+")) value = total(value, product());
      else if (eat("-")) value = difference(value, product());
      else break;
    depth--;
    return value;
  };
  const product = (): Term => {
    let value = factor();
    for (;;)
      if (eat("*")) value = times(value, factor());
      else if (eat("/") || eat("//")) value = opaque(value, factor(), floorDiv);
      else if (eat("%")) value = opaque(value, factor(), remainder);
      else return value;
  };
  const factor = (): Term => {
    if (eat("(")) {
      const value = sum();
      expect(")");
      return value;
    }
    const token = tokens[next] ?? "";
    if (/^\d/.test(token)) return next++, constant(exact(Number(token)));
    if (!/^[A-Za-z_]/.test(token)) fail();
    next++;
    if ((token === "max" || token === "min") && eat("(")) {
      const a = sum();
      expect(",");
      const b = sum();
      expect(")");
      return opaque(a, b, Math[token]);
    }
    const i = symbol(token);
    return { at: (v) => v[i] ?? NaN, powers: new Map([[i, 1]]) };
  };
  const value = sum();
  return next < tokens.length ? fail() : value;
}

/** Parses a size in a plan. `symbol` returns the index of a symbol's name. */
export function parseSize(value: number | string, symbol: (name: string) => number): Size {
  if (typeof value === "number") return { text: String(value), ...constant(exact(value)) };
  return { text: value, ...parse(value, symbol) };
}

/** The symbol that a size consists of; undefined for other sizes. */
export function loneSymbol(size: Size): number | undefined {
  return /^[A-Za-z_][\w.]*$/.test(size.text) ? [...size.powers.keys()][0] : undefined;
}

/** Solves `size == extent` for the only symbol without a value, if the size is linear in it. */
export function solve(size: Size, extent: number, values: Values): [symbol: number, value: number] | undefined {
  const open = [...size.powers].filter(([s]) => Number.isNaN(values[s] ?? NaN));
  const [symbol, power] = open[0] ?? [-1, 0];
  if (open.length !== 1 || power !== 1) return undefined;
  const at = (x: number) => size.at(Object.assign(Array.from(values), { [symbol]: x }));
  const slope = at(1) - at(0);
  const value = (extent - at(0)) / slope;
  return Number.isSafeInteger(value) && value >= 0 && at(value) === extent ? [symbol, value] : undefined;
}

export function showShape(shape: readonly Size[]): string {
  return `[${shape.map((s) => s.text).join(", ")}]`;
}
