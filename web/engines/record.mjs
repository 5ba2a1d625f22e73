// Records of measurements in the format of `wgfc bench suite` (docs/suite.schema.json), with its statistics.

/** The order statistics that bound the median with a confidence of 95 %, as in `runtime/src/stats.rs`. */
function estimate(samples) {
  const sorted = [...samples].sort((a, b) => a - b);
  const n = sorted.length;
  const spread = (1.96 * Math.sqrt(n)) / 2;
  const rank = (r) => sorted[Math.min(Math.max(Math.ceil(r), 1), n) - 1];
  return { sorted, median: (rank(n / 2) + rank((n + 1) / 2)) / 2, low: rank(n / 2 - spread), high: rank(n / 2 + spread) };
}

/** The statistics of samples by passes. */
export function statistics(passes) {
  const all = passes.flat();
  const [each, { sorted, median }] = [passes.map(estimate), estimate(all)];
  const n = all.length;
  const mean = all.reduce((s, x) => s + x, 0) / n;
  const squares = all.reduce((s, x) => s + (x - mean) ** 2, 0);
  const middle = (of) => (of.length ? (of[(of.length - 1) >> 1] + of[of.length >> 1]) / 2 : median);
  const [first, third] = [middle(sorted.slice(0, Math.floor(n / 2))), middle(sorted.slice(Math.ceil(n / 2)))];
  const reach = 1.5 * (third - first);
  const apart = (a, b) => {
    const [less, more] = a.median < b.median ? [a, b] : [b, a];
    return less.high < more.low && more.median > 1.05 * less.median;
  };
  return {
    median,
    low: Math.min(median * 0.99, ...each.map((e) => e.low)),
    high: Math.max(median * 1.01, ...each.map((e) => e.high)),
    variation: n < 2 || mean === 0 ? 0 : Math.sqrt(squares / (n - 1)) / Math.abs(mean),
    outliers: all.filter((x) => x < first - reach || x > third + reach).length,
    unstable: each.some((a, i) => each.slice(0, i).some((b) => apart(a, b))),
    passes,
  };
}

/** The rows of readings, `{ id, unit, better, samples }` or `{ id, unit, better, missing }`, of one or several passes. */
export function rowsOf(passes) {
  const rows = new Map();
  for (const readings of passes)
    for (const { samples, ...row } of readings) {
      const known = rows.get(row.id) ?? { ...row, all: [] };
      if (samples) known.all.push(samples);
      rows.set(row.id, known);
    }
  return [...rows.values()].map(({ all, missing, ...row }) => (all.length ? { ...row, ...statistics(all) } : { ...row, missing }));
}
