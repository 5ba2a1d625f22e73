//! Random maps of views with random schedules, on every adapter, compared with the evaluator.

use crate::draw::Draw;
use crate::run::inputs;
use crate::schedules::{Case, every, run, seeds};
use std::collections::BTreeMap;
use wgfc_compiler::kernel::bounds::prove_all;
use wgfc_compiler::passes::fuse;
use wgfc_compiler::schedule::Schedule;
use wgfc_compiler::{DeviceProfile, Options};
use wgfc_ir::{eval, text, verify};

const EXTENTS: [usize; 16] = [1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 48];

/// A graph under construction.
struct Lines {
    inputs: Vec<String>,
    nodes: Vec<String>,
}

impl Lines {
    fn input(&mut self, ty: &str, shape: &[usize]) -> String {
        let name = format!("I{}", self.inputs.len());
        self.inputs.push(format!("{ty}{shape:?}"));
        name
    }
    fn node(&mut self, line: String, ty: &str, shape: &[usize]) -> String {
        self.nodes.push(format!("{line} : {ty}{shape:?} @ \"n{}\"", self.nodes.len()));
        format!("N{}", self.nodes.len() - 1)
    }
    fn text(&self, result: &str) -> String {
        let n = self.inputs.len();
        let borders: Vec<String> = (0..n).map(|i| format!("x{i}: %{i}")).collect();
        let lines =
            self.inputs.iter().enumerate().map(|(i, t)| format!("  %{i} = input : {t} as \"x{i}\"\n"));
        let nodes = self.nodes.iter().enumerate().map(|(i, l)| format!("  %{} = {l}\n", n + i));
        let all: String = lines.chain(nodes).collect();
        let text = format!("graph ({}) -> (y: {result}) {{\n{all}}}\n", borders.join(", "));
        // Longer names are replaced first, since shorter ones are their prefixes.
        let text = (0..self.nodes.len())
            .rev()
            .fold(text, |t, i| t.replace(&format!("N{i}"), &format!("%{}", n + i)));
        (0..n).rev().fold(text, |t, i| t.replace(&format!("I{i}"), &format!("%{i}")))
    }
}

/// A value of this shape: an input, or a view of other values.
fn view(d: &mut Draw, out: &mut Lines, ty: &str, shape: &[usize], depth: usize) -> String {
    let rank = shape.len();
    let axis = |i: usize| format!("%{i}");
    match if depth == 0 { 0 } else { d.below(7) } {
        // A permutation.
        1 | 2 => {
            let order = d.order(rank);
            let from: Vec<usize> = order.iter().map(|k| shape[*k]).collect();
            let x = view(d, out, ty, &from, depth - 1);
            let reads: Vec<String> = order.iter().map(|k| axis(*k)).collect();
            out.node(format!("view {shape:?} reads [{}] ({x})", reads.join(", ")), ty, shape)
        }
        // A slice, possibly strided, or a reversal.
        3 => {
            let k = d.below(rank);
            let (step, first) = (d.one(&[1, 1, 2]), d.below(5));
            let mut from = shape.to_vec();
            from[k] = first + step * shape[k] + d.below(4);
            let x = view(d, out, ty, &from, depth - 1);
            let mut reads: Vec<String> = (0..rank).map(axis).collect();
            reads[k] = match d.below(4) {
                0 => format!("{} - %{k}", from[k] - 1),
                _ => format!("{step}*%{k} + {first}"),
            };
            out.node(format!("view {shape:?} reads [{}] ({x})", reads.join(", ")), ty, shape)
        }
        // Every element repeated, or one element broadcast along the axis.
        4 => {
            let k = d.below(rank);
            let mut from = shape.to_vec();
            let mut reads: Vec<String> = (0..rank).map(axis).collect();
            if shape[k].is_multiple_of(2) && d.below(2) == 0 {
                from[k] = shape[k] / 2;
                reads[k] = format!("%{k}/2");
            } else {
                from[k] = 1;
                reads[k] = "0".into();
            }
            let x = view(d, out, ty, &from, depth - 1);
            out.node(format!("view {shape:?} reads [{}] ({x})", reads.join(", ")), ty, shape)
        }
        // A concatenation of two values.
        5 if shape.iter().any(|n| *n > 1) => {
            let k = (0..rank).max_by_key(|k| shape[*k]).unwrap_or(0);
            let cut = if shape[k] > 8 && d.below(2) == 0 { 4 * (1 + d.below(shape[k] / 4 - 1)) } else { 1 };
            let (mut a, mut b) = (shape.to_vec(), shape.to_vec());
            (a[k], b[k]) = (cut, shape[k] - cut);
            let (x, y) = (view(d, out, ty, &a, depth - 1), view(d, out, ty, &b, depth - 1));
            out.node(format!("concat axis {k} ({x}, {y})"), ty, shape)
        }
        // Rows gathered by index.
        6 if ty != "bool" => {
            let rows = d.one(&EXTENTS);
            let mut table = shape.to_vec();
            table[0] = rows;
            let x = view(d, out, ty, &table, depth - 1);
            let ids = out.input("i64", &shape[..1]);
            let mut reads: Vec<String> = (0..rank).map(axis).collect();
            reads[0] = "$1[%0]".into();
            out.node(format!("gather {shape:?} reads [{}] ({x}, {ids})", reads.join(", ")), ty, shape)
        }
        _ => {
            let mut own = shape.to_vec();
            // An operand that broadcasts.
            if d.below(4) == 0 {
                let k = d.below(rank);
                own[k] = 1;
            }
            let x = out.input(ty, &own);
            if own == shape {
                return x;
            }
            let reads: Vec<String> =
                (0..rank).map(|k| if own[k] == shape[k] { axis(k) } else { "0".into() }).collect();
            out.node(format!("view {shape:?} reads [{}] ({x})", reads.join(", ")), ty, shape)
        }
    }
}

fn graph(d: &mut Draw) -> String {
    let rank = 1 + d.below(4);
    let mut shape: Vec<usize> = (0..rank).map(|_| d.one(&EXTENTS)).collect();
    while shape.iter().product::<usize>() > 12_000 {
        let k = d.below(rank);
        shape[k] = 1 + shape[k] / 3;
    }
    let ty = d.one(&["f32", "f32", "f32", "f16", "i64", "i32", "i8", "u4", "bool", "f64"]);
    let mut out = Lines { inputs: vec![], nodes: vec![] };
    let terms: Vec<String> = (0..1 + d.below(3)).map(|_| view(d, &mut out, ty, &shape, 3)).collect();
    let (mut sum, mut result) = ("a0".to_owned(), ty);
    for i in 1..terms.len() {
        sum = if ty == "bool" { format!("xor({sum}, a{i})") } else { format!("sub({sum}, a{i})") };
    }
    if d.below(3) == 0 && ty != "bool" {
        result = d.one(&["f32", "f16", "i32"]);
        sum = format!("cast({result}, {sum})");
    }
    let x = out.node(format!("map {shape:?} {{ {sum} }} ({})", terms.join(", ")), result, &shape);
    out.text(&x)
}

#[test]
fn views_in_any_schedule() {
    let (mut kinds, mut unproven) = (BTreeMap::<String, usize>::new(), 0);
    for seed in seeds() {
        let mut d = Draw(seed * 7919);
        let source = graph(&mut d);
        let fail = |what: String| -> ! { panic!("seed {seed}: {what}\n{source}") };
        let graph = text::parse(&source).unwrap_or_else(|e| fail(e.to_string()));
        if verify::verify(&graph).is_err() {
            continue;
        }
        let given = inputs(&graph, &BTreeMap::new());
        let want = eval::evaluate(&graph, &given).unwrap_or_else(|e| fail(e.to_string()));
        let profile = DeviceProfile { f16: d.below(2) == 0, ..DeviceProfile::default() };
        let options = Options { profile, ..Options::default() };
        let kernels = fuse(&graph, &options).unwrap_or_else(|e| fail(format!("{e:?}")));
        unproven += prove_all(&graph, &kernels).0.iter().filter(|p| !p.is_in_bounds()).count();
        let case = Case { graph: &graph, options: &options, given, want, on: every };
        let pick = |round, list: &[Schedule]| {
            let tiled = |s: &Schedule| s.to_string().starts_with("map tiled");
            let tiles: Vec<Schedule> = list.iter().filter(|s| tiled(s)).cloned().collect();
            if round > 0 && !tiles.is_empty() { d.one(&tiles) } else { d.one(list) }
        };
        run(&case, kernels, 3, pick, &mut kinds).unwrap_or_else(|e| fail(e));
    }
    assert_eq!(unproven, 0);
    assert!(kinds.len() > 1, "{kinds:?}");
    eprintln!("seeds {:?}: {kinds:?}", seeds());
}
