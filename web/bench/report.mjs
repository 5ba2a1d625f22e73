// A table and a picture of the results.

const KB = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} KB` : `${(n / 1e6).toFixed(1)} MB`);
const ms = (n) => (n < 1000 ? `${n.toPrecision(n < 1 ? 2 : 3)} ms` : `${(n / 1000).toFixed(n < 1e4 ? 2 : 1)} s`);
/** Compressed bytes of all downloads but weights. */
const download = ({ bytes }) => bytes.engine.wire + bytes.graph.wire;

/** Pairs of figures, ours first. */
export function table(rows, heading) {
  const lines = heading
    ? ["| model | download without weights | first result | a run: processor time | a run: wall | ÷ | error |", "|---|--:|--:|--:|--:|--:|--:|"]
    : [];
  for (const { title, engines: { wgfc, ort }, ratio, errors } of rows) {
    const both = (f) => `${f(wgfc)} / ${f(ort)}`;
    const cells = [title, both((e) => KB(download(e))), both((e) => ms(e.first_ms)), both((e) => ms(e.run_cpu_ms)), both((e) => ms(e.run_ms))];
    lines.push(`| ${[...cells, ratio.cpu.toFixed(2), `${errors.wgfc.toExponential(0)} / ${errors.ort.toExponential(0)}`].join(" | ")} |`);
  }
  return lines.join("\n");
}

/** How many times the processor time of a run and the wait for the first result onnxruntime-web takes, as bars. */
export function chart(rows) {
  const [left, width, line] = [150, 420, 40];
  const most = Math.max(2, ...rows.flatMap((r) => [r.ratio.cpu, r.ratio.first]));
  const x = (n) => left + (width * Math.log2(Math.max(n, 0.5) / 0.5)) / Math.log2(most / 0.5);
  const escape = (text) => text.replace(/[<>&"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const bar = (y, n, fill) =>
    `<rect x="${left}" y="${y}" width="${(x(n) - left).toFixed(1)}" height="12" fill="${fill}"/><text x="${(x(n) + 4).toFixed(1)}" y="${y + 10}">${n.toFixed(2)}</text>`;
  const height = rows.length * line + 50;
  const body = rows.map((r, i) => {
    const y = 40 + i * line;
    return `<text x="${left - 8}" y="${y + 16}" text-anchor="end">${escape(r.title)}</text>${bar(y, r.ratio.cpu, "#2b7a78")}${bar(y + 14, r.ratio.first, "#e09f3e")}`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${left + width + 60} ${height}" font-family="sans-serif" font-size="12">
<title>How many times as long onnxruntime-web takes</title>
<rect width="100%" height="100%" fill="#fff"/>
<text x="8" y="16">onnxruntime-web ÷ wgfc: <tspan fill="#2b7a78">a run</tspan>, <tspan fill="#e09f3e">first result</tspan></text>
<line x1="${x(1).toFixed(1)}" y1="28" x2="${x(1).toFixed(1)}" y2="${height - 14}" stroke="#888"/><text x="${x(1).toFixed(1)}" y="${height - 2}" text-anchor="middle">equal</text>
${body.join("\n")}
</svg>
`;
}
