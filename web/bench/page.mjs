// Opens a model with one engine and times it. run.mjs calls what is put on `window` here.
const query = new URLSearchParams(location.search);
let opened;
let engine;

/** Milliseconds since the page was asked for: engine there, model there, first result there; and the first result. */
window.first = async (spec) => {
  engine = await import(`./${query.get("engine")}.mjs`);
  const imported = performance.now();
  opened = await engine.open(spec);
  const loaded = performance.now();
  const outputs = engine.results(await opened.run());
  return { imported, loaded, first: performance.now(), outputs: packed(outputs) };
};

/** Runs one after the other. */
window.steady = async (runs) => {
  const start = performance.now();
  for (let i = 0; i < runs; i++) engine.results(await opened.run());
  return { ms: (performance.now() - start) / runs };
};

window.profile = () => opened.model.profile(opened.inputs);

/** Numbers as text, which is what leaves a page quickly. */
function packed(outputs) {
  return Object.fromEntries(
    Object.entries(outputs).map(([name, data]) => {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      const pieces = [];
      for (let i = 0; i < bytes.length; i += 0x8000) pieces.push(String.fromCharCode(...bytes.subarray(i, i + 0x8000)));
      return [name, { type: data.constructor.name, base64: btoa(pieces.join("")) }];
    }),
  );
}
window.ready = true;
