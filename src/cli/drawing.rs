//! A picture of a program's dispatches: SVG, DOT, or an HTML page that pans and zooms.

use super::layout::{Size, place};
use super::repeats::{FEWEST, Repeats};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use wgfc::inspect::{Figures, Summary, bytes_text, family, flops_text, operators, time_text};
use wgfc::ir::Program;
use wgfc::ir::program::{Access, BufferKind, Port};

const FONT: f64 = 11.0;
const CHAR: f64 = 6.65;
const LINE: f64 = 15.0;
const PAD: f64 = 8.0;
/// The most characters in a line of a box.
const MOST: usize = 44;
/// The most model nodes that a box lists.
const NODES: usize = 4;

/// A picture of a program: boxes, and edges from writers to readers.
pub struct Drawing {
    title: String,
    boxes: Vec<Card>,
    edges: Vec<(usize, usize)>,
}

/// A box of the drawing, which stands for one dispatch or for several equal ones.
struct Card {
    heading: String,
    lines: Vec<String>,
    tooltip: String,
    /// The family of the kernel; `None` for an input or output of the model.
    family: Option<String>,
    /// The time bound of the dispatch relative to the largest one, from 0 to 1.
    heat: f64,
    /// The number of dispatches that it stands for.
    times: usize,
}

impl Card {
    fn size(&self) -> Size {
        let longest =
            self.lines.iter().chain([&self.heading]).map(|l| l.chars().count()).max().unwrap_or(0) as f64;
        Size {
            w: longest * CHAR + 2.0 * PAD + 6.0,
            h: (1 + self.lines.len()) as f64 * LINE + 2.0 * PAD - 3.0,
        }
    }
}

impl Drawing {
    /// The drawing of a program, with its figures.
    pub fn new(name: &str, program: &Program, summary: &Summary) -> Drawing {
        let mut boxes: Vec<Card> = program.inputs.iter().map(|p| port("input", p)).collect();
        let mut edges = Vec::new();
        // The last writer of each buffer.
        let mut writer: BTreeMap<usize, usize> =
            program.inputs.iter().enumerate().map(|(i, p)| (p.buffer, i)).collect();
        let hottest = summary.dispatches.iter().map(|f| f.seconds).fold(f64::MIN_POSITIVE, f64::max);
        let repeats = Repeats::of(program);
        // The box of each dispatch.
        let mut of = vec![0usize; program.dispatches.len()];
        for (i, (d, f)) in program.dispatches.iter().zip(&summary.dispatches).enumerate() {
            let first = repeats.first(i);
            let me = if first == i { boxes.len() } else { of[first] };
            of[i] = me;
            let Some(kernel) = program.kernels.get(d.kernel) else { continue };
            let mut weights = 0u64;
            let mut sources: Vec<usize> = Vec::new();
            for b in &d.bindings {
                if let Some(BufferKind::Weight { .. }) = program.buffers.get(*b).map(|b| &b.kind) {
                    let b = &program.buffers[*b];
                    let n = b.elements.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
                    weights = weights.saturating_add(b.dtype.bytes_for(n) as u64);
                } else if let Some(w) = writer.get(b).filter(|w| !sources.contains(w)) {
                    sources.push(*w);
                }
            }
            sources.sort_unstable();
            // Edges from a repetition to the next one, which would go upwards, are left out.
            edges.extend(sources.iter().filter(|s| **s < me).map(|s| (*s, me)));
            for (b, access) in d.bindings.iter().zip(&kernel.bindings) {
                if *access == Access::ReadWrite {
                    writer.insert(*b, me);
                }
            }
            if first != i {
                continue;
            }
            let what = What {
                index: i,
                family: family(program, i),
                kernel: &kernel.name,
                nodes: &d.nodes,
                operators: operators(program, i).join(", "),
                writes: d.writes.join(", "),
                times: repeats.times(i),
            };
            boxes.push(dispatch(&what, f, weights, f.seconds / hottest));
        }
        for p in &program.outputs {
            if let Some(w) = writer.get(&p.buffer) {
                edges.push((*w, boxes.len()));
            }
            boxes.push(port("output", p));
        }
        edges.sort_unstable();
        edges.dedup();
        fold_ports(&mut boxes, &mut edges);
        let dims = summary.at();
        let repeat = if repeats.any() { "; “n ×” stands for n such layers in a row" } else { "" };
        let title = format!(
            "{name}{dims}: {} nodes in {} dispatches of {} kernels; {} moved, unfused {}{repeat}",
            program.stats.model_nodes,
            program.dispatches.len(),
            program.kernels.len(),
            bytes_text(summary.bytes),
            bytes_text(summary.bytes_unfused),
        );
        Drawing { title, boxes, edges }
    }

    /// The drawing as Graphviz text.
    pub fn dot(&self) -> String {
        let quote =
            |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
        let mut s = format!(
            "digraph wgfc {{\n  label={};\n  node [shape=box, style=\"rounded,filled\", fontname=\"monospace\", fontsize=10];\n",
            quote(&self.title)
        );
        for (i, b) in self.boxes.iter().enumerate() {
            let label = std::iter::once(&b.heading).chain(&b.lines).cloned().collect::<Vec<_>>().join("\n");
            let _ = writeln!(
                s,
                "  n{i} [label={}, tooltip={}, fillcolor=\"{}\"];",
                quote(&label),
                quote(&b.tooltip),
                colours(b.family.as_deref()).1
            );
        }
        for (a, b) in &self.edges {
            let _ = writeln!(s, "  n{a} -> n{b};");
        }
        s + "}\n"
    }

    /// The drawing as a complete SVG file.
    pub fn svg(&self) -> String {
        let sizes: Vec<Size> = self.boxes.iter().map(Card::size).collect();
        let placed = place(&sizes, &self.edges);
        let legend = self.legend();
        let top = 62.0;
        let width = placed.width.max(self.title.chars().count() as f64 * 7.9 + 40.0);
        let (shift, height) = ((width - placed.width) / 2.0, placed.height + top);
        let mut s = String::new();
        let _ = write!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
             font-size=\"{FONT}\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"20\" y=\"28\" font-size=\"13\" font-weight=\"600\" fill=\"#1f2430\">{}</text>\n",
            escape(&self.title),
            escape(&self.title)
        );
        let mut x = 20.0;
        for family in legend {
            let (line, fill) = colours(Some(&family));
            let _ = writeln!(
                s,
                "<rect x=\"{x:.0}\" y=\"41\" width=\"12\" height=\"12\" rx=\"3\" fill=\"{fill}\" stroke=\"{line}\"/>\
                 <text x=\"{:.0}\" y=\"51\" fill=\"#4a5162\">{}</text>",
                x + 17.0,
                escape(&family)
            );
            x += 17.0 + family.chars().count() as f64 * CHAR + 18.0;
        }
        let _ = writeln!(s, "<g transform=\"translate({shift:.1} {top})\">");
        s += "<g fill=\"none\" stroke=\"#9aa3b5\" stroke-width=\"1.3\">\n";
        for points in &placed.edges {
            let _ = writeln!(s, "<path d=\"{}\"/>", curve(points));
        }
        s += "</g>\n<g fill=\"#7d8799\">\n";
        for (x, y) in placed.edges.iter().filter_map(|p| p.last()) {
            let _ = writeln!(s, "<path d=\"M{:.1} {:.1}l-3.5 -7h7z\"/>", x, y);
        }
        s += "</g>\n";
        for ((b, size), (cx, cy)) in self.boxes.iter().zip(&sizes).zip(&placed.centres) {
            s += &card(b, *size, cx - size.w / 2.0, cy - size.h / 2.0);
        }
        s + "</g>\n</svg>\n"
    }

    /// An HTML page that pans with the mouse and zooms with the wheel.
    pub fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n<style>\n\
             html, body {{ margin: 0; height: 100%; overflow: hidden; background: #fff; }}\n\
             #view {{ width: 100%; height: 100%; cursor: grab; touch-action: none; }}\n\
             #view:active {{ cursor: grabbing; }}\n#view > svg {{ transform-origin: 0 0; }}\n</style>\n\
             <div id=\"view\">\n{}</div>\n<script>\n{}</script>\n</html>\n",
            escape(&self.title),
            self.svg(),
            PAN_AND_ZOOM
        )
    }

    fn legend(&self) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        for f in self.boxes.iter().filter_map(|b| b.family.clone()) {
            if !seen.contains(&f) {
                seen.push(f);
            }
        }
        seen
    }
}

const PAN_AND_ZOOM: &str = "\
const view = document.getElementById('view'), svg = view.querySelector('svg');
let k = Math.min(1, innerWidth / svg.width.baseVal.value), x = 0, y = 0;
const show = () => { svg.style.transform = `translate(${x}px, ${y}px) scale(${k})`; };
view.addEventListener('wheel', e => {
  e.preventDefault();
  if (!e.ctrlKey && !e.metaKey && Math.abs(e.deltaX) > Math.abs(e.deltaY)) { x -= e.deltaX; return show(); }
  const f = Math.exp(-e.deltaY / 500);
  x = e.clientX - (e.clientX - x) * f; y = e.clientY - (e.clientY - y) * f; k *= f; show();
}, { passive: false });
view.addEventListener('pointerdown', e => view.setPointerCapture(e.pointerId));
view.addEventListener('pointermove', e => { if (e.buttons & 1) { x += e.movementX; y += e.movementY; show(); } });
show();
";

fn port(what: &str, p: &Port) -> Card {
    let shape: Vec<String> =
        p.broadcast.as_ref().unwrap_or(&p.shape).iter().map(ToString::to_string).collect();
    let heading = format!("{what} {}", shorten(&p.name, MOST - 8));
    let line = format!("{}[{}]", p.dtype, shape.join(", "));
    Card {
        tooltip: format!("{what} {}: {line}", p.name),
        heading,
        lines: vec![line],
        family: None,
        heat: 0.0,
        times: 1,
    }
}

/// Merges inputs, or outputs, of the same type that are connected to the same box of repeated layers.
fn fold_ports(boxes: &mut Vec<Card>, edges: &mut Vec<(usize, usize)>) {
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, b) in boxes.iter().enumerate().filter(|(_, b)| b.family.is_none()) {
        let from: Vec<usize> = edges.iter().filter(|e| e.1 == i).map(|e| e.0).collect();
        let to: Vec<usize> = edges.iter().filter(|e| e.0 == i).map(|e| e.1).collect();
        if from.iter().chain(&to).any(|n| boxes[*n].times > 1) {
            alike.entry((from, to, b.lines.clone())).or_default().push(i);
        }
    }
    let mut kept = vec![true; boxes.len()];
    for same in alike.values().filter(|s| s.len() >= FEWEST) {
        boxes[same[0]].heading = format!("{} ×  {}", same.len(), boxes[same[0]].heading);
        same[1..].iter().for_each(|i| kept[*i] = false);
    }
    let number: Vec<usize> = (0..boxes.len()).map(|i| kept[..i].iter().filter(|k| **k).count()).collect();
    edges.retain(|(a, b)| kept[*a] && kept[*b]);
    edges.iter_mut().for_each(|(a, b)| (*a, *b) = (number[*a], number[*b]));
    let mut keep = kept.iter();
    boxes.retain(|_| keep.next().copied().unwrap_or(true));
}

/// The data for the box of a dispatch.
struct What<'p> {
    index: usize,
    family: &'p str,
    kernel: &'p str,
    nodes: &'p [String],
    operators: String,
    writes: String,
    /// The number of dispatches that the box stands for.
    times: usize,
}

fn dispatch(what: &What<'_>, f: &Figures, weights: u64, heat: f64) -> Card {
    let What { index, family, kernel, nodes, operators, writes, times } = what;
    let mut lines: Vec<String> = Vec::new();
    if !operators.is_empty() {
        lines.push(shorten(operators, MOST));
    }
    lines.extend(nodes.iter().take(NODES).map(|n| shorten(n, MOST)));
    if nodes.len() > NODES {
        lines.push(format!("+ {} more", nodes.len() - NODES));
    }
    if !writes.is_empty() {
        lines.push(format!("→ {}", shorten(writes, MOST - 2)));
    }
    let mut figures = bytes_text(f.bytes);
    if weights > f.bytes {
        // For instance a lookup table of which a dispatch reads few rows.
        let _ = write!(figures, " (from {} of weights)", bytes_text(weights));
    } else if weights > 0 {
        let _ = write!(figures, " ({} weights)", bytes_text(weights));
    }
    if f.flops > 0 {
        let _ = write!(figures, ", {}", flops_text(f.flops));
    }
    lines.push(figures.clone());
    let tooltip = format!(
        "dispatch {index}: {kernel} ({family})\n{operators}\n{}\n→ {writes}\n{figures}\nat least {} ({}-bound)",
        nodes.join("\n"),
        time_text(f.seconds),
        f.bound
    );
    Card {
        heading: match times {
            1 => format!("{index}  {}", shorten(kernel, MOST - 5)),
            n => format!("{n} ×  {index}  {}", shorten(kernel, MOST - 10)),
        },
        lines,
        tooltip,
        family: Some((*family).to_owned()),
        heat,
        times: *times,
    }
}

fn card(b: &Card, size: Size, x: f64, y: f64) -> String {
    let (line, fill) = colours(b.family.as_deref());
    let radius = if b.family.is_none() { size.h / 2.0 } else { 6.0 };
    let mut s = format!(
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{radius:.0}\" \
         fill=\"{fill}\" stroke=\"{line}\"/>",
        escape(&b.tooltip),
        size.w,
        size.h
    );
    if b.heat > 0.0 {
        // The height of the bar at the left edge is proportional to the dispatch's time bound.
        let h = (size.h - 8.0) * b.heat;
        let _ = write!(
            s,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"{h:.1}\" rx=\"1.5\" fill=\"{line}\"/>",
            x + 3.5,
            y + size.h - 4.0 - h
        );
    }
    let last = b.lines.len().saturating_sub(1);
    let mut at = y + PAD + FONT - 2.0;
    let (tx, anchor) = match b.family {
        None => (x + size.w / 2.0, " text-anchor=\"middle\""),
        Some(_) => (x + PAD + 4.0, ""),
    };
    let _ = write!(
        s,
        "<text x=\"{tx:.1}\" y=\"{at:.1}\"{anchor} font-weight=\"600\" fill=\"#1f2430\">{}</text>",
        escape(&b.heading)
    );
    for (i, l) in b.lines.iter().enumerate() {
        at += LINE;
        let colour = if i == last { "#6b7385" } else { "#343a48" };
        let _ = write!(s, "<text x=\"{tx:.1}\" y=\"{at:.1}\"{anchor} fill=\"{colour}\">{}</text>", escape(l));
    }
    s + "</g>\n"
}

/// A path through the points: straight along boxes, curved between layers.
fn curve(points: &[(f64, f64)]) -> String {
    let mut s = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        if i == 0 {
            let _ = write!(s, "M{x:.1} {y:.1}");
            continue;
        }
        let (px, py) = points[i - 1];
        if (px - x).abs() < 0.1 {
            let _ = write!(s, "L{x:.1} {y:.1}");
        } else {
            let m = (py + y) / 2.0;
            let _ = write!(s, "C{px:.1} {m:.1} {x:.1} {m:.1} {x:.1} {y:.1}");
        }
    }
    s
}

/// The stroke and fill colours of a family. A family that is not listed has a colour derived from its name.
pub fn colours(family: Option<&str>) -> (&'static str, &'static str) {
    const PALETTE: [(&str, &str); 8] = [
        ("#2f6fb5", "#e4effa"),
        ("#2e8b57", "#e2f4ea"),
        ("#b5651d", "#fbeedf"),
        ("#8a4fbf", "#f0e7fa"),
        ("#b8336a", "#fbe5ee"),
        ("#157f8a", "#def3f5"),
        ("#8a7a10", "#f7f3d8"),
        ("#5b6577", "#edf0f4"),
    ];
    let Some(family) = family else { return ("#c3c9d4", "#f6f7f9") };
    let known = ["matmul", "map", "reduce", "row", "conv", "attention", "gather"];
    let i = known.iter().position(|k| *k == family).unwrap_or_else(|| {
        family.bytes().fold(7usize, |h, b| h.wrapping_mul(31).wrapping_add(usize::from(b))) % PALETTE.len()
    });
    PALETTE[i]
}

/// A text shortened to `most` characters by removing its middle.
fn shorten(s: &str, most: usize) -> String {
    let n = s.chars().count();
    if n <= most {
        return s.to_owned();
    }
    let head = (most - 1) / 2;
    let tail = most - 1 - head;
    s.chars().take(head).chain(['…']).chain(s.chars().skip(n - tail)).collect()
}

/// Escapes a text for XML. Control characters, which XML cannot contain, become `�`.
pub fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\n' => out.push('\n'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
