// Numbers from a seed, for both engines.

/** Numbers in 0..1 (mulberry32). */
export function draw(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** `{ dtype, shape, data }` by name; what the compiler was given is left out unless `all`. */
export function tensors(inputs, all) {
  const random = draw(7);
  const made = Object.entries(inputs).map(([name, { dtype, shape, below, value, fixed }]) => {
    const count = shape.reduce((a, b) => a * b, 1);
    const one = () => (value !== undefined ? value : below ? Math.floor(random() * below) : 2 * random() - 1);
    const numbers = Array.from({ length: count }, one);
    const data = dtype === "i64" ? BigInt64Array.from(numbers, BigInt) : Float32Array.from(numbers);
    return [name, { dtype, shape, data, fixed }];
  });
  return Object.fromEntries(made.filter(([, t]) => all || !t.fixed));
}

/** The tokens of a prompt, and of the run with this number that comes after it. */
export function tokens({ prompt, below }, run) {
  const token = (i) => Math.floor(draw(100 + i)() * below);
  return run === undefined ? Array.from({ length: prompt }, (_, i) => token(i)) : [token(prompt + run)];
}
