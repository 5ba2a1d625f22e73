import { corrupt } from "./fail.js";

/** A value in a JSON file with its path for messages. */
export class Json {
  readonly value: unknown;
  readonly where: string;

  constructor(value: unknown, where: string) {
    this.value = value;
    this.where = where;
  }

  static parse(text: string, where: string): Json {
    try {
      return new Json(JSON.parse(text), where);
    } catch {
      throw corrupt(where, `it is not JSON: it begins with ${JSON.stringify(text.slice(0, 16))}`);
    }
  }

  fail(what: string): never {
    throw corrupt(this.where, what);
  }
  get missing(): boolean {
    return this.value === undefined || this.value === null;
  }
  get(key: string): Json {
    const object = this.value;
    if (typeof object !== "object" || object === null || Array.isArray(object)) this.fail("it is not an object");
    const own = Object.hasOwn(object, key) ? (object as Record<string, unknown>)[key] : undefined;
    return new Json(own, `${this.where}: ${key}`);
  }
  /** Reads an object with a reader for each field. */
  object<T>(fields: { [K in keyof T]-?: (j: Json) => T[K] }): T {
    const read = Object.keys(fields).map((key) => [key, fields[key as keyof T](this.get(key))]);
    return Object.fromEntries(read) as T;
  }
  list<T>(read: (j: Json) => T): T[] {
    if (!Array.isArray(this.value)) this.fail("it is not a list");
    return this.value.map((v, i) => read(new Json(v, `${this.where}[${i}]`)));
  }
  /** The fields of an object; none if the object is missing. */
  entries(): [string, Json][] {
    return Object.keys(this.value ?? {}).map((k) => [k, this.get(k)]);
  }
  string(): string {
    return typeof this.value === "string" ? this.value : this.fail("it is not a string");
  }
  count(): number {
    return Number.isSafeInteger(this.value) && (this.value as number) >= 0
      ? (this.value as number)
      : this.fail("it is not a number that counts");
  }
  /** The index in `known` of a string. */
  among(known: readonly string[]): number {
    const i = known.indexOf(this.string());
    return i < 0 ? this.fail(`${JSON.stringify(this.value)} is not one of ${known.join(", ") || "none"}`) : i;
  }
  /** An index into a list of this length. */
  index(length: number): number {
    const i = this.count();
    return i < length ? i : this.fail(`${i} is beyond the ${length} there are`);
  }
}

export const string = (j: Json) => j.string();
export const count = (j: Json) => j.count();
/** Reads a list. */
export const list = <T>(read: (j: Json) => T) => (j: Json) => j.list(read);
/** Reads a value that may be missing. */
export const optional = <T>(read: (j: Json) => T) => (j: Json) => (j.missing ? undefined : read(j));
/** Reads a list that may be missing, which is empty then. */
export const listOrNone = <T>(read: (j: Json) => T) => (j: Json) => (j.missing ? [] : j.list(read));
