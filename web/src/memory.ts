/** The memory layout of a run's intermediate buffers. Buffers of one arena share memory if their live ranges do not overlap. */

import { bufferBytes } from "./dtypes.js";
import { WgfcError } from "./errors.js";
import { corrupt } from "./fail.js";
import type { Plan } from "./plan.js";
import type { Values } from "./sizes.js";

/** The largest alignment that WebGPU may ask of a binding's offset. */
const ALIGNMENT = 256;

export interface Slot {
  /** Index into {@link Memory.arenas}. */
  readonly arena: number;
  readonly offset: number;
}

export interface Memory {
  /** The numbers of elements and of bytes of each buffer of the plan. */
  readonly elements: readonly number[];
  readonly bytes: readonly number[];
  /** The numbers of bytes that are set aside for them. */
  readonly room: readonly number[];
  /** The places of buffers in arenas. */
  readonly slots: readonly (Slot | undefined)[];
  /** The sizes in bytes of the buffers for arenas. An arena that is too large for one buffer has several. */
  readonly arenas: readonly number[];
}

interface Placed extends Slot {
  readonly end: number;
  readonly first: number;
  readonly last: number;
}

/**
 * Lays out memory for these values of the symbols, in buffers of at most `largest` bytes. Slots and arenas are the objects of `last`, the
 * layout for other values, where buffers take the same room.
 */
export function layOut(plan: Plan, values: Values, largest: number, last?: Memory): Memory {
  const elements = plan.buffers.map((b, i) => {
    const n = b.elements.at(values);
    if (!(n >= 0)) throw corrupt("plan.json", `buffer ${i}: its size ${b.elements.text} is ${n}`);
    return n;
  });
  const bytes = plan.buffers.map((b, i) => bufferBytes(b.dtype, elements[i]!));
  // Symbolic sizes are rounded up, so that the layout does not change with every position that a state grows by.
  const room = plan.buffers.map((b, i) => aligned(b.elements.powers.size ? rounded(bytes[i]!) : bytes[i]!));
  if (last && room.every((r, i) => r === last.room[i])) return { ...last, elements, bytes };
  const slots: (Slot | undefined)[] = plan.buffers.map(() => undefined);
  const arenas: number[] = [];
  const byArena = new Map<number, number[]>();
  plan.buffers.forEach(({ kind }, i) => {
    if (kind.kind === "arena") byArena.set(kind.arena, [...(byArena.get(kind.arena) ?? []), i]);
  });
  for (const members of [...byArena].sort(([a], [b]) => a - b).map(([, m]) => m)) {
    members.sort((a, b) => room[b]! - room[a]! || a - b);
    const placed: Placed[] = [];
    const base = arenas.length;
    for (const i of members) {
      const kind = plan.buffers[i]!.kind;
      if (kind.kind !== "arena") continue;
      const slot = place(placed, room[i]!, kind, base, largest);
      placed.push({ ...slot, end: slot.offset + room[i]!, first: kind.first, last: kind.last });
      arenas[slot.arena] = Math.max(arenas[slot.arena] ?? 0, slot.offset + room[i]!);
      slots[i] = slot;
    }
  }
  return { elements, bytes, room, slots, arenas };
}

/** The first gap that is large enough among buffers with overlapping live ranges. */
function place(placed: readonly Placed[], size: number, life: { first: number; last: number }, base: number, largest: number): Slot {
  for (let arena = base; ; arena++) {
    const alive = placed.filter((p) => p.arena === arena && p.first <= life.last && life.first <= p.last);
    alive.sort((a, b) => a.offset - b.offset);
    let offset = 0;
    for (const p of alive) {
      if (p.offset - offset >= size) break;
      offset = Math.max(offset, p.end);
    }
    // A tensor that is larger than any buffer may be is accepted here; creating the buffer reports the limit.
    if (offset === 0 || offset + size <= largest) return { arena, offset };
  }
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
}

/** Rounds up to a number with four significant bits. */
function rounded(bytes: number): number {
  const unit = 2 ** Math.max(0, Math.floor(Math.log2(bytes)) - 3);
  return Math.ceil(bytes / unit) * unit;
}

/** Throws if a size exceeds the device's limits for buffers or bindings. */
export function checkSize(what: string, bytes: number, limits: GPUSupportedLimits, node?: string): void {
  const limit = bytes > limits.maxBufferSize ? "maxBufferSize" : "maxStorageBufferBindingSize";
  if (bytes <= limits[limit]) return;
  throw new WgfcError("limits", `${what} takes ${bytes} bytes, and this device's ${limit} is ${limits[limit]}`, { node });
}
