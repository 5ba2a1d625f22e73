//! Proofs that kernels stay inside of their tensors, beside the interpreter.

use wgfc_ir::bounds::Facts;
use wgfc_ir::{DType, Poly, Scalar};
use wgfc_loops::interpret::{Options, run};
use wgfc_loops::text::parse;
use wgfc_loops::{Kernel, Outside, Space, bounds, verify};

const TILED: &str = include_str!("product_tiled.txt");

fn outside(text: &str) -> (Kernel, Vec<Outside>) {
    let kernel = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&kernel).unwrap_or_else(|e| panic!("{}\n{text}", e.join("\n")));
    let found = bounds(&kernel, &Facts::default());
    (kernel, found)
}

/// Runs a kernel with elements that are 1.
fn execute(k: &Kernel, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<(), String> {
    let elements = |t: &wgfc_loops::Tensor| match t.space {
        Space::Storage(_) => t.elements().eval_syms(sizes).unwrap_or(0),
        _ => 0,
    };
    let one = |t: DType| if t.is_int() { Scalar::from_i64(t, 1) } else { Scalar::from_f64(t, 1.0) };
    let mut buffers: Vec<Vec<Scalar>> =
        k.tensors.iter().map(|t| vec![one(t.dtype); elements(t) as usize]).collect();
    run(k, sizes, &mut buffers, &Options::default()).map(|_| ()).map_err(|e| e.to_string())
}

/// Checks that a kernel with a fault is not proven, and that the interpreter finds the fault where the witness says.
fn refuted(text: &str) -> Outside {
    let (kernel, found) = outside(text);
    let Some(first) = found.into_iter().next() else { panic!("proven:\n{text}") };
    let w = first.witness.as_ref().unwrap_or_else(|| panic!("no witness: {first}\n{text}"));
    let sizes = |s: &str| w.symbols.iter().find(|(n, _)| &**n == s).map(|(_, v)| *v).or(Some(1));
    let why = execute(&kernel, &sizes).unwrap_err();
    assert!(why.contains(" along axis "), "{first}, but {why}\n{text}");
    first
}

#[test]
fn a_tiled_product_is_proven_for_all_sizes() {
    let (_, found) = outside(TILED);
    assert_eq!(found, [], "{}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

/// Each place of a text at which `from` is replaced by `to`.
fn spoiled(text: &str, from: &str, to: &str) -> Vec<String> {
    text.match_indices(from)
        .map(|(at, _)| format!("{}{to}{}", &text[..at], &text[at + from.len()..]))
        .collect()
}

#[test]
fn planted_faults_are_refuted() {
    let once = |from: &str, to: &str| {
        assert_eq!(TILED.matches(from).count(), 1, "{from}");
        refuted(&TILED.replace(from, to))
    };
    // Extents that are too large.
    for (from, to) in [
        ("for k.0 in 0..4", "for k.0 in 0..5"),
        ("for k.1 in 0..6", "for k.1 in 0..7"),
        ("for w.turn in 0..3", "for w.turn in 0..4"),
        ("for i.1.1_1 in 0..2", "for i.1.1_1 in 0..3"),
    ] {
        once(from, to);
    }
    // Tensors that are too small.
    for (from, to) in [
        ("x.k.0: f32[8, 6]", "x.k.0: f32[7, 6]"),
        ("w.k.0: f32[6, 16]", "w.k.0: f32[6, 15]"),
        ("acc: f32[2, 2]", "acc: f32[2, 1]"),
    ] {
        once(from, to);
    }
    // Wrong steps.
    once("y[8*i.0 + 2*i.1.0", "y[8*i.0 + 3*i.1.0");
    once("x[8*i.0 + (8*", "x[9*i.0 + (8*");
    once("16*j.0 + j.1.0 + 8*(i.1.0%2)] if", "16*j.0 + 2*j.1.0 + 8*(i.1.0%2)] if");
    // Guards that are dropped or let one more through.
    let copied = "index((8*i.1.0 + j.1.0 + 32*x.turn)/6) < index(8)";
    once(copied, "index(0) < index(1)");
    once(copied, &copied.replace('<', "<="));
    // Guards of rows, where `acc` begins and where it is stored.
    for to in ["index(0) < index(1)", "index(8*i.0 + 2*i.1.0 + @) <= index(n)"] {
        let mut text = TILED.to_owned();
        for v in ["i.1.1", "i.1.1_2"] {
            text = text.replace(&format!("index(8*i.0 + 2*i.1.0 + {v}) < index(n)"), &to.replace('@', v));
        }
        assert_eq!(refuted(&text).tensor, "y");
    }
    let found = once("8*(i.1.0%2)] if index(16*j.0 + j.1.0 + 8*(i.1.0%2)) < index(m)", "8*(i.1.0%2)]");
    assert!(found.to_string().contains("along axis 1 of `w`, whose extent is "), "{found}");
}

#[test]
fn conditions_and_data_bound_positions() {
    let text = |statement: &str| {
        format!(
            "kernel
  x: f32[n] storage read
  at: i32[n] storage read
  small: u8[n] storage read
  y: f32[n, 4] storage write
  z: f32[256] storage write
  acc: f32 register
  count: i32 register
  acc = 0.0
  for i in 0..n
{}
",
            statement.lines().map(|l| format!("    {l}\n")).collect::<String>().trim_end()
        )
    };
    for proven in [
        "y[i, 3] = x[i]",
        "y[i, i%4] = x[n - 1 - i]",
        "if index(i) < index(n - 1)\n  acc = x[i + 1]\nelse\n  acc = x[i - n + 1]",
        "acc = x[i + 1 if index(i + 2) <= index(n)]",
        "for j in 0..i\n  acc sum= x[i - j - 1]",
        "for j in 0..max(n - i - 1, 0)\n  acc sum= x[i + j + 1]",
        "for j in 0..min(n - i, 4)\n  y[i + j, j] = 1.0",
        "for j in 0..4 while index(i + j) < index(n)\n  acc sum= x[i + j]",
        "let e: i32 = at[i]\nlet c: i32 = max(min(e, index(n - 1)), 0:i32)\ny[c, 0] any= 1.0",
        "let e: i32 = at[i]\nlet in: bool = and(e >= 0:i32, e < index(n))\nif in\n  y[e, 0] any= 1.0",
        "let e: i32 = at[i]\nif or(e < 0:i32, e >= index(n))\n  acc = 1.0\nelse\n  acc = x[e]",
        "let e: i32 = cast(i32, small[i])\nz[e] any= 1.0",
        "let e: i32 = at[i]\nlet c: i32 = select(e < 0:i32, index(0), index(n - 1))\nacc = x[c]",
        "let e: i32 = index(n - i)\nfor j in 0..e\n  acc sum= x[i + j]",
        "for a in 0..(4*n + 7)/8\n  for b in 0..8\n    y[(8*a + b)%n, (8*a + b)/n] = 1.0 if index(8*a + b) < index(4*n)",
        "count = 0:i32\nfor j in 0..n\n  count sum= cast(i32, x[j] < x[i])\nlet e: i32 = count\n\
         acc = x[e if e < index(n)]",
    ] {
        let proven = proven.replace("let in:", "let inside:").replace("if in\n", "if inside\n");
        let (kernel, found) = outside(&text(&proven));
        assert_eq!(found, [], "{kernel}\n{}", found[0]);
        for n in [1, 2, 5, 9] {
            let run = execute(&kernel, &|_| Some(n));
            assert!(!run.clone().is_err_and(|e| e.contains("along axis")), "{run:?}");
        }
    }
    for wrong in [
        "y[i, 4] = x[i]",
        "acc = x[n - i]",
        "if index(i) <= index(n - 1)\n  acc = x[i + 1]",
        "for j in 0..i\n  acc sum= x[i - j - 2]",
        "for j in 0..max(n - i, 1)\n  acc sum= x[i + j + 1]",
        "for j in 0..min(n - i, 5)\n  y[i + j, j] = 1.0",
        "acc = x[i + 1 if index(i + 1) <= index(n)]",
        "let e: i32 = index(n - i)\nfor j in 0..e\n  acc sum= x[i + j + 1]",
    ] {
        refuted(&text(wrong));
    }
    // Positions that data decides have no witness.
    for open in [
        "let e: i32 = at[i]\ny[e, 0] any= 1.0",
        "let e: i32 = at[i]\nlet c: i32 = max(min(e, index(n)), 0:i32)\ny[c, 0] any= 1.0",
        "let e: i32 = cast(i32, small[i]) + 1:i32\nz[e] any= 1.0",
        "let e: i32 = at[i]\nif e >= 0:i32\n  y[e, 0] any= 1.0",
        "count = 0:i32\nfor j in 0..n\n  count sum= cast(i32, x[j] < x[i])\nlet e: i32 = count\nacc = x[e]",
        "count = at[i]\nfor j in 0..n\n  count sum= cast(i32, x[j] < x[i])\nlet e: i32 = count\n\
         acc = x[e if e < index(n)]",
    ] {
        let (kernel, found) = outside(&text(open));
        assert!(!found.is_empty(), "{kernel}");
        assert!(found[0].to_string().contains("is not proven to be below"), "{}", found[0]);
    }
}

#[test]
fn facts_about_sizes_are_used() {
    let text = "kernel
  x: f32[total] storage read
  y: f32[n] storage write
  for i in 0..n
    y[i] = x[past + i]
";
    let kernel = parse(text).unwrap();
    assert_eq!(
        bounds(&kernel, &Facts::default())[0].to_string(),
        "`y[i] = x[past + i]`: position 1 along axis 0 of `x`, whose extent is 1, where n = 1, past = 1, total = 1, i = 0"
    );
    let parse = |s: &str| Poly::parse(s).unwrap();
    let equal = Facts { equal: vec![(parse("total"), parse("past + n"))], nonneg: vec![] };
    assert_eq!(bounds(&kernel, &equal), []);
    let room = Facts { equal: vec![], nonneg: vec![parse("total - past - n")] };
    assert_eq!(bounds(&kernel, &room), []);
    let less = Facts { equal: vec![], nonneg: vec![parse("total - past - n + 1")] };
    assert_eq!(bounds(&kernel, &less)[0].witness.as_ref().unwrap().symbols[0].1, 1);
}

/// Kernels with one number changed: those that are proven run without leaving their tensors.
#[test]
fn what_is_proven_holds_when_it_runs() {
    let (mut proven, mut refuted) = (0, 0);
    for (from, to) in [
        (" 2*", " 3*"),
        (" 8*", " 7*"),
        ("0..2", "0..3"),
        ("0..4", "0..3"),
        ("< index(", "<= index("),
        ("%6", "%7"),
        ("/6", "/5"),
        ("16*", "15*"),
        ("+ 7)/8", "+ 8)/8"),
        ("6*", "5*"),
    ] {
        for text in spoiled(TILED, from, to) {
            let (kernel, found) = outside(&text);
            let mut faults = 0;
            for (n, m) in [(1, 1), (5, 7), (8, 16), (17, 9), (9, 33)] {
                let why = execute(&kernel, &|s| Some(if s == "n" { n } else { m })).err();
                let fault = why.filter(|w| w.contains(" along axis "));
                faults += usize::from(fault.is_some());
                assert!(!found.is_empty() || fault.is_none(), "{fault:?}\n{kernel}");
            }
            proven += usize::from(found.is_empty());
            refuted += usize::from(faults > 0);
            if let Some(w) = found.first().and_then(|f| f.witness.as_ref()) {
                let why = execute(&kernel, &|s| w.symbols.iter().find(|(n, _)| &**n == s).map(|s| s.1));
                assert!(why.is_err(), "{}\n{kernel}", found[0]);
            }
        }
    }
    assert!(proven > 10 && refuted > 10, "{proven} {refuted}");
}
