//! Random operators along rows (sorts, prefix scans, reductions, softmax), for random devices and with random
//! schedules, on every adapter, compared with the evaluator.

use crate::draw::Draw;
use crate::schedules::{Case, every, run, seeds};
use std::collections::BTreeMap;
use wgfc_compiler::device::Speeds;
use wgfc_compiler::kernel::bounds::prove_all;
use wgfc_compiler::passes::fuse;
use wgfc_compiler::passes::rewrite;
use wgfc_compiler::{DeviceProfile, Options};
use wgfc_ir::{Class, DType, Scalar, Tensor, eval, text, verify};

const LENGTHS: [usize; 22] =
    [0, 1, 2, 5, 17, 31, 32, 33, 40, 63, 64, 65, 127, 129, 200, 255, 256, 257, 300, 513, 1025, 2500];

/// A graph, and the sizes of its input.
struct Problem {
    text: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Whether infinities, NaN and both zeros are among the elements.
    specials: bool,
}

fn problem(d: &mut Draw) -> Problem {
    let rank = 1 + d.below(3);
    let axis = d.below(rank);
    let mut shape: Vec<usize> = (0..rank).map(|_| d.one(&[1, 2, 3, 5])).collect();
    shape[axis] = d.one(&LENGTHS);
    let len = shape[axis];
    // Each extent is a symbol or a number.
    let named: Vec<bool> = (0..rank).map(|k| d.below(if k == axis { 2 } else { 4 }) == 0).collect();
    let dims: Vec<String> =
        (0..rank).map(|k| if named[k] { format!("n{k}") } else { shape[k].to_string() }).collect();
    let with = |dim: &str| {
        let mut all = dims.clone();
        all[axis] = dim.to_owned();
        format!("[{}]", all.join(", "))
    };
    let all = with(&dims[axis]);
    let here: Vec<String> = (0..rank).map(|k| format!("%{k}")).collect();
    let at = |x: &str| {
        let mut reads = here.clone();
        reads[axis] = x.to_owned();
        format!("[{}]", reads.join(", "))
    };
    let kind = d.below(10);
    let types: &[&str] = match kind {
        0..5 => &["f32", "f32", "f16", "i8", "u8", "i32", "u32", "i64", "u64"],
        8.. => &["f32", "f16"],
        _ => &["f32", "f16", "i32", "i64"],
    };
    let ty = d.one(types);
    let mut lines = vec![format!("%0 = input : {ty}{all} as \"x\"")];
    // The operand is an input, computed, or moved.
    let x = match d.below(3) {
        0 => {
            lines.push(format!("%1 = map {all} {{ add(a0, a0) }} (%0) : {ty}{all} @ \"twice\""));
            1
        }
        1 if len > 0 => {
            let back = at(&format!("{} - 1 - %{axis}", dims[axis]));
            lines.push(format!("%1 = view {all} reads {back} (%0) : {ty}{all} @ \"backwards\""));
            1
        }
        _ => 0,
    };
    let n = x + 1;
    let mut outputs = vec![];
    match kind {
        0..5 => {
            let k = [0, 1, d.below(len + 2), d.below(9), len][d.below(5)].min(len);
            let k = if k == len && named[axis] { dims[axis].clone() } else { k.to_string() };
            if named[axis] {
                lines.push(format!("require max({k}, n{axis}) == n{axis} @ \"top\""));
            }
            let m = n + 1;
            let (s, largest) = (with(&k), d.one(&["largest", "smallest"]));
            lines.push(format!(
                "%{n}, %{m} = top_k axis {axis} k [{k}] {largest} (%{x}) : {ty}{s}, i64{s} @ \"top\""
            ));
            outputs = vec![format!("%{n}"), format!("%{m}")];
            match d.below(4) {
                // Elements gathered at the resulting positions.
                0 => {
                    let reads = at(&format!("$1[{}]", here.join(", ")));
                    lines
                        .push(format!("%{} = gather {s} reads {reads} (%0, %{m}) : {ty}{s} @ \"at\"", n + 2));
                    outputs.push(format!("%{}", n + 2));
                }
                // Reversed positions, used to index other positions of the same result.
                1 if k != "0" => {
                    let back = at(&format!("{k} - 1 - %{axis}"));
                    lines.push(format!("%{} = view {s} reads {back} (%{m}) : i64{s} @ \"flip\"", n + 2));
                    let reads = at(&format!("$1[{}]", here.join(", ")));
                    lines.push(format!(
                        "%{} = gather {s} reads {reads} (%{}, %{m}) : i64{s} @ \"at\"",
                        n + 3,
                        n + 2
                    ));
                    outputs.push(format!("%{}", n + 3));
                }
                2 => {
                    lines
                        .push(format!("%{} = map {s} {{ mul(a0, a0) }} (%{m}) : i64{s} @ \"square\"", n + 2));
                    outputs = vec![format!("%{}", n + 2)];
                }
                _ => {}
            }
        }
        5 | 6 => {
            let op = d.one(&["sum", "max", "min"]);
            let how = d.one(&["", " exclusive", " reverse", " exclusive reverse"]);
            lines.push(format!("%{n} = prefix_scan {op} axis {axis}{how} (%{x}) : {ty}{all} @ \"scan\""));
            outputs.push(format!("%{n}"));
            if d.below(2) == 0 {
                lines.push(format!(
                    "%{} = map {all} {{ sub(a0, a1) }} (%{n}, %{x}) : {ty}{all} @ \"less\"",
                    n + 1
                ));
                outputs = vec![format!("%{}", n + 1)];
            }
        }
        7 => {
            let one = with("1");
            let op = d.one(&["sum", "max", "min"]);
            lines.push(format!("%{n} = reduce {op} axes [{axis}] (%{x}) : {ty}{one} @ \"reduce\""));
            outputs.push(format!("%{n}"));
        }
        8 if len > 0 => {
            let one = with("1");
            let (op, last) = (d.one(&["max", "min"]), d.one(&["", " last"]));
            lines.push(format!("%{n} = arg_reduce {op} axis {axis}{last} (%{x}) : i64{one} @ \"extreme\""));
            outputs.push(format!("%{n}"));
        }
        _ => {
            let log = d.one(&["", " log"]);
            lines.push(format!("%{n} = softmax axis {axis}{log} (%{x}) : {ty}{all} @ \"softmax\""));
            outputs.push(format!("%{n}"));
        }
    }
    let results: Vec<String> = outputs.iter().enumerate().map(|(i, v)| format!("y{i}: {v}")).collect();
    let body: String = lines.iter().map(|l| format!("  {l}\n")).collect();
    let text = format!("graph (x: %0) -> ({}) {{\n{body}}}\n", results.join(", "));
    let dtype = text::parse(&text).map_or(DType::F32, |g| g.ty(g.inputs[0].value).dtype);
    Problem { text, dtype, shape, specials: kind < 5 }
}

/// Elements with many duplicates.
fn elements(d: &mut Draw, p: &Problem) -> Tensor {
    const SPECIALS: [f64; 6] = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0];
    let n = p.shape.iter().product();
    let few = d.below(2) == 0;
    let values: Vec<Scalar> = (0..n)
        .map(|_| {
            let v = d.below(if few { 12 } else { 4000 }) as i64;
            match p.dtype {
                t if t.is_float() && p.specials && d.below(8) == 0 => Scalar::from_f64(t, d.one(&SPECIALS)),
                t if t.is_float() => Scalar::from_f64(t, v as f64 / 64.0 - 8.0),
                t if t.bits() == 64 && p.specials && d.below(3) == 0 => Scalar::from_i64(t, (v - 6) << 31),
                t if t.class() == Class::Int => Scalar::from_i64(t, v % 256 - 128),
                t => Scalar::from_i64(t, v % 256),
            }
        })
        .collect();
    Tensor::from_scalars(p.dtype, p.shape.clone(), &values)
}

fn device(d: &mut Draw) -> DeviceProfile {
    let speeds = Speeds {
        dispatch_cost: d.one(&[1e-12, 1e-6, 1e-5]),
        cores: d.one(&[1.0, 8.0, 128.0]),
        ..d.one(&[Speeds::PORTABLE, Speeds::DISCRETE, Speeds::SOFTWARE])
    };
    DeviceProfile {
        speeds,
        max_workgroup_bytes: d.one(&[1024, 2048, 16384]),
        max_invocations: d.one(&[32, 64, 256]),
        f16: d.below(2) == 0,
        ..DeviceProfile::default()
    }
}

#[test]
fn rows_in_any_schedule() {
    let mut kinds = BTreeMap::<String, usize>::new();
    for seed in seeds() {
        let mut d = Draw(seed * 7919);
        let p = problem(&mut d);
        let fail = |what: String| -> ! { panic!("seed {seed}: {what}\n{}", p.text) };
        let given = BTreeMap::from([("x".to_owned(), elements(&mut d, &p))]);
        let mut graph = text::parse(&p.text).unwrap_or_else(|e| fail(e.to_string()));
        verify::verify(&graph).unwrap_or_else(|e| fail(format!("{e:?}")));
        let want = eval::evaluate(&graph, &given).unwrap_or_else(|e| fail(e.to_string()));
        let options = Options { profile: device(&mut d), ..Options::default() };
        rewrite(&mut graph, &options).unwrap_or_else(|e| fail(format!("{e:?}")));
        let kernels = fuse(&graph, &options).unwrap_or_else(|e| fail(format!("{e:?}")));
        for p in prove_all(&graph, &kernels).0 {
            if !p.is_in_bounds() {
                fail(format!("not proven: {p:?}"));
            }
        }
        let case = Case { graph: &graph, options: &options, given, want, on: every };
        run(&case, kernels, 2, |_, list| d.one(list), &mut kinds).unwrap_or_else(|e| fail(e));
    }
    assert!(kinds.len() > 3, "{kinds:?}");
    eprintln!("seeds {:?}: {kinds:?}", seeds());
}
