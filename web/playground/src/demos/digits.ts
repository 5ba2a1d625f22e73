/** Recognition of hand-drawn digits. */

import { type Model, Tensor, load } from "wgfc";
import { h, messageOf, time } from "../dom.js";
import { deviceOf } from "../runs.js";
import { type Demo, css, frame } from "./demo.js";
import { type Classifier, DigitsTraining } from "./digits-training.js";

/** The number of pixels along each side of the drawing, as in the bitmaps of the training data. */
const FINE = 32;
/** The side in pixels of the box to which a digit is scaled. */
const BOX = 30;

type Point = readonly [x: number, y: number];

/** Converts strokes, in units of the pad, to 8 × 8 shares of black. */
export function rasterize(strokes: readonly (readonly Point[])[]): Float32Array {
  const out = new Float32Array(64);
  const points = strokes.flat();
  if (points.length === 0) return out;
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = (BOX - 5) / Math.max(x1 - x0, y1 - y0, 0.08);
  const place = ([x, y]: Point): Point => [(x - (x0 + x1) / 2) * scale + FINE / 2, (y - (y0 + y1) / 2) * scale + FINE / 2];
  const radius = 2.1;
  const fine = new Uint8Array(FINE * FINE);
  for (const stroke of strokes)
    stroke.forEach((to, i) => {
      const [a, b] = [place(stroke[Math.max(0, i - 1)]!), place(to)];
      const steps = Math.ceil(Math.hypot(b[0] - a[0], b[1] - a[1])) + 1;
      for (let s = 0; s <= steps; s++) {
        const [cx, cy] = [a[0] + ((b[0] - a[0]) * s) / steps, a[1] + ((b[1] - a[1]) * s) / steps];
        for (let y = Math.max(0, Math.floor(cy - 3)); y < Math.min(FINE, cy + 3); y++)
          for (let x = Math.max(0, Math.floor(cx - 3)); x < Math.min(FINE, cx + 3); x++)
            if (Math.hypot(x + 0.5 - cx, y + 0.5 - cy) <= radius) fine[y * FINE + x] = 1;
      }
    });
  fine.forEach((v, i) => (out[(Math.floor(i / FINE / 4) * 8 + Math.floor((i % FINE) / 4))]! += v / 16));
  return out;
}

export async function digits(lookInside: () => void): Promise<Demo> {
  const device = await deviceOf();
  const model: Model = await load("./models/digits.wgfc", { device });
  /** The classifier that is being trained, whose guesses are shown instead of the model's. */
  let learner: Classifier | undefined;
  const strokes: Point[][] = [];
  const pad = h("canvas", { class: "pad", width: 560, height: 560, tabindex: 0, role: "img", "aria-label": "Draw a digit here. Keys 0 to 9 draw one." });
  const seen = h("canvas", { class: "seen", width: 8, height: 8, role: "img", "aria-label": "What the model sees: 8 × 8 pixels" });
  const bars = Array.from({ length: 10 }, (_, d) => {
    const [bar, value] = [h("span", { class: "fill" }), h("span", { class: "value mono" })];
    return { bar, value, row: h("li", { "data-digit": d }, h("b", { class: "mono" }, d), h("span", { class: "track" }, bar), value) };
  });
  const took = h("output", { class: "status", role: "status" }, "Draw a digit.");

  const paint = () => {
    const c = pad.getContext("2d")!;
    c.clearRect(0, 0, pad.width, pad.height);
    [c.lineWidth, c.lineCap, c.lineJoin, c.strokeStyle] = [40, "round", "round", css("--ink")];
    for (const s of strokes) {
      c.beginPath();
      s.forEach(([x, y], i) => (i ? c.lineTo(x * pad.width, y * pad.height) : c.moveTo(x * pad.width, y * pad.height)));
      if (s.length === 1) c.lineTo(s[0]![0] * pad.width + 0.1, s[0]![1] * pad.height);
      c.stroke();
    }
  };
  let running = false;
  let again = false;
  const classify = async () => {
    if (running) return void (again = true);
    running = true;
    try {
      const pixels = rasterize(strokes);
      const c = seen.getContext("2d")!;
      const image = c.createImageData(8, 8);
      pixels.forEach((v, i) => image.data.set([79, 124, 255, Math.round(255 * v)], 4 * i));
      c.putImageData(image, 0, 0);
      const start = performance.now();
      const given = new Tensor("f32", [1, 1, 8, 8], pixels);
      const p = learner ? await learner.probabilities(given) : (await model.run({ image: given })).probabilities!.toNumbers();
      const ms = performance.now() - start;
      const best = p.indexOf(Math.max(...p));
      bars.forEach(({ bar, value, row }, d) => {
        bar.style.width = strokes.length ? `${100 * p[d]!}%` : "0";
        value.textContent = strokes.length ? `${(100 * p[d]!).toFixed(p[d]! > 0.1 ? 0 : 1)} %` : "";
        row.classList.toggle("best", strokes.length > 0 && d === best);
      });
      took.textContent = strokes.length ? `A ${best}, in ${time(ms * 1000)}.` : "Draw a digit.";
      took.dataset.digit = strokes.length ? String(best) : "";
    } catch (e) {
      took.className = "status error";
      took.textContent = messageOf(e);
    } finally {
      running = false;
      if (again) {
        again = false;
        void classify();
      }
    }
  };
  const redraw = () => {
    paint();
    void classify();
  };
  const at = (e: PointerEvent): Point => {
    const r = pad.getBoundingClientRect();
    return [(e.clientX - r.left) / r.width, (e.clientY - r.top) / r.height];
  };
  pad.addEventListener("pointerdown", (e) => {
    pad.setPointerCapture(e.pointerId);
    strokes.push([at(e)]);
    redraw();
  });
  pad.addEventListener("pointermove", (e) => {
    if (!pad.hasPointerCapture(e.pointerId)) return;
    for (const c of e.getCoalescedEvents?.() ?? [e]) strokes.at(-1)!.push(at(c));
    redraw();
  });
  const clear = () => {
    strokes.length = 0;
    redraw();
  };
  pad.addEventListener("keydown", (e) => {
    if (e.key in GLYPHS) {
      strokes.splice(0, strokes.length, ...GLYPHS[e.key]!.map((s) => curve(s)));
      redraw();
    } else if (e.key === "Escape" || e.key === "Backspace") clear();
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", paint);
  void classify();
  const training = new DigitsTraining(device, (now) => {
    learner = now;
    void classify();
  });
  const body = h("div", { class: "digits" },
    h("div", { class: "pad-box" }, pad, h("div", { class: "actions" }, h("button", { type: "button", onclick: clear }, "Clear"), h("small", {}, "or press a digit's key"))),
    h("div", { class: "guess" }, h("div", { class: "seen-box" }, seen, h("small", {}, "what the model sees: 8 × 8")), h("ol", { class: "bars", start: 0 }, ...bars.map((b) => b.row)), took),
  );
  const words = "Two convolutions and a dense layer, 6,638 weights, trained by wgfc's own training step on the digits that scikit-learn ships. Eight nodes of ONNX run as five kernels, each time the pen moves.";
  return {
    element: frame("Digits drawn by hand", words, [body, training.element], lookInside),
    stop() {
      dark.removeEventListener("change", paint);
      training.stop();
      model.dispose();
    },
  };
}

/** Digits for keyboard input: strokes as corner coordinates in hundredths of the pad. */
const GLYPHS: Record<string, readonly (readonly number[])[]> = {
  0: [[50, 15, 30, 25, 25, 50, 30, 75, 50, 85, 70, 75, 75, 50, 70, 25, 50, 15]],
  1: [[35, 30, 52, 15, 52, 85]],
  2: [[30, 30, 40, 17, 60, 17, 70, 32, 62, 50, 30, 82, 72, 82]],
  3: [[32, 20, 60, 16, 68, 32, 48, 47, 68, 62, 62, 82, 32, 82]],
  4: [[56, 15, 30, 55, 75, 55], [60, 35, 60, 85]],
  5: [[68, 16, 38, 16, 35, 46, 58, 44, 70, 60, 60, 82, 33, 82]],
  6: [[62, 15, 42, 35, 33, 62, 45, 84, 65, 78, 66, 58, 48, 52, 36, 64]],
  7: [[30, 17, 70, 17, 48, 85], [38, 50, 64, 50]],
  8: [[50, 48, 34, 32, 50, 16, 66, 32, 50, 48, 32, 66, 50, 84, 68, 66, 50, 48]],
  9: [[65, 35, 50, 17, 35, 32, 48, 48, 65, 35, 62, 60, 48, 85]],
};

/** A stroke through corners. */
function curve(corners: readonly number[]): Point[] {
  const points: Point[] = [];
  for (let i = 0; i < corners.length; i += 2) points.push([corners[i]! / 100, corners[i + 1]! / 100]);
  return points;
}
