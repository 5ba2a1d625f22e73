/** SplitMix64, started from a seed and a name. The same two give the numbers that the command line draws. */

const MASK = (1n << 64n) - 1n;

export class Random {
  #state: bigint;

  constructor(seed: number | bigint, name: string) {
    let hash = 0xcbf29ce484222325n;
    for (const byte of new TextEncoder().encode(name)) hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & MASK;
    this.#state = hash ^ ((BigInt(seed) * 0x9e3779b97f4a7c15n) & MASK);
  }

  /** 64 random bits. */
  bits(): bigint {
    this.#state = (this.#state + 0x9e3779b97f4a7c15n) & MASK;
    let z = this.#state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return z ^ (z >> 31n);
  }

  /** A whole number below `n`. */
  below(n: number): number {
    return Number((this.bits() * BigInt(n)) >> 64n);
  }
}
