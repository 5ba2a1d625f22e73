//! Proofs that results are stored once, beside the interpreter.

use wgfc_ir::{DType, Scalar};
use wgfc_loops::interpret::{Options, run};
use wgfc_loops::text::parse;
use wgfc_loops::{Access, Kernel, Space, once, verify};

const TILED: &str = include_str!("product_tiled.txt");

fn kernel(text: &str) -> Kernel {
    let kernel = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&kernel).unwrap_or_else(|e| panic!("{}\n{text}", e.join("\n")));
    kernel
}

/// Whether a run stores each element of all results once: as many as there are, and none keeps what it had. `None` if the run fails.
fn stored(k: &Kernel, sizes: &dyn Fn(&str) -> Option<i64>) -> Option<bool> {
    let mark = Scalar::from_f64(DType::F32, 12345.0);
    let elements = |t: &wgfc_loops::Tensor| match t.space {
        Space::Storage(_) => t.elements().eval_syms(sizes).unwrap_or(0) as usize,
        _ => 0,
    };
    let value = |t: &wgfc_loops::Tensor| match t.space {
        Space::Storage(Access::Write) => mark,
        _ if t.dtype.is_int() => Scalar::from_i64(t.dtype, 1),
        _ => Scalar::from_f64(t.dtype, 1.0),
    };
    let mut buffers: Vec<Vec<Scalar>> = k.tensors.iter().map(|t| vec![value(t); elements(t)]).collect();
    let counts = run(k, sizes, &mut buffers, &Options::default()).ok()?;
    let mut all = k.tensors.iter().zip(&buffers).zip(&counts.stores);
    Some(all.all(|((t, b), stores)| {
        t.space != Space::Storage(Access::Write) || *stores == b.len() as u64 && !b.contains(&mark)
    }))
}

fn sizes(n: i64, m: i64) -> impl Fn(&str) -> Option<i64> {
    move |s| Some(if s == "n" { n } else { m })
}

const SIZES: [(i64, i64); 7] = [(1, 1), (5, 7), (8, 16), (17, 9), (3, 33), (0, 4), (12, 2)];

fn text(body: &str) -> String {
    let lines: String = body.lines().map(|l| format!("  {l}\n")).collect();
    format!("kernel\n  x: f32[n] storage read\n  y: f32[n, m] storage write\n{lines}")
}

#[test]
fn results_that_are_stored_once_are_proven() {
    assert_eq!(once(&kernel(TILED)), [""; 0]);
    for body in [
        "for i in 0..n\n  for j in 0..m\n    y[i, j] = 1.0",
        "for j in 0..m grid\n  for i in 0..n\n    y[i, j] = 1.0",
        "for i in 0..n\n  for j in 0..m down\n    y[n - 1 - i, m - 1 - j] = 1.0",
        "for i in 0..n*m\n  y[i/m, i%m] = 1.0",
        "for i in 0..n*m\n  y[i%n, i/n] = 1.0",
        "for i in 0..(n*m + 7)/8 grid\n  for j in 0..8 invocation\n    y[(8*i + j)/m, (8*i + j)%m] = 1.0 if index(8*i + j) < index(m*n)",
        "for i in 0..(n + 7)/8 grid\n  for j in 0..(m + 3)/4\n    for k in 0..32\n      y[8*i + k/4, 4*j + k%4] = 1.0 if and(index(8*i + k/4) < index(n), index(4*j + k%4) < index(m))",
        "for i in 0..n grid\n  for lane in 0..4 invocation\n    for j in 0..m\n      y[i, j] = 1.0 if index(lane) == index(0)",
        "for i in 0..n grid\n  for lane in 0..4 invocation\n    for j in 0..(m + 3)/4\n      y[i, 4*j + lane] = 1.0 if index(4*j + lane) < index(m)",
        "for i in 0..n\n  for j in 0..m\n    if index(i) < index(n)\n      y[i, j] = 1.0 if index(j) <= index(m - 1)",
        "for a in 0..((n + 2)/3 + 3)/4\n  for b in 0..4\n    for c in 0..3\n      for j in 0..m\n        y[12*a + 3*b + c, j] = 1.0 if and(index(4*a + b) < index((n + 2)/3), index(12*a + 3*b + c) < index(n))",
    ] {
        let k = kernel(&text(body));
        assert_eq!(once(&k), [""; 0], "{k}");
        for (n, m) in SIZES {
            assert_ne!(stored(&k, &sizes(n, m)), Some(false), "{n} {m}\n{k}");
        }
    }
}

#[test]
fn results_that_are_not_stored_once_are_named() {
    for (body, want) in [
        ("for i in 0..n\n  for j in 0..m - 1\n    y[i, j] = 1.0", "is stored 0 times"),
        (
            "for i in 0..n\n  for j in 0..m\n    for k in 0..2\n      y[i, j] = 1.0",
            "element 0 is stored 2 times",
        ),
        ("for i in 0..n\n  for j in 0..m\n    y[i, j/2] = 1.0", "is stored 2 times"),
        ("for i in 0..n\n  for j in 0..m\n    y[i, j] = 1.0 if index(i) <= index(j)", "is stored 0 times"),
        ("for i in 0..n\n  for j in 0..m\n    y[i, j] = 1.0 if x[i] > 0.0", "is not one of positions"),
        ("for i in 0..n\n  for j in 0..m while x[i] > 0.0\n    y[i, j] = 1.0", "may end by its condition"),
        (
            "for i in 0..n\n  let e: i32 = cast(i32, x[i])\n  y[e, 0] any= 1.0",
            "may replace an element several times",
        ),
        ("for i in 0..n\n  let e: i32 = cast(i32, x[i])\n  y[e, 0] = 1.0", "data says where"),
        ("for i in 0..n\n  for j in 0..m\n    y[i, j] = 1.0\ny[0, 0] = 2.0", "2 statements store it"),
        ("for i in 0..n\n  if x[i] > 0.0\n    for j in 0..m\n      y[i, j] = 1.0", "is not one of positions"),
    ] {
        let k = kernel(&text(body));
        let found = once(&k);
        assert!(found.len() == 1 && found[0].contains(want), "{found:?}\n{k}");
    }
    let none = "kernel\n  y: f32[n] storage write\n";
    assert_eq!(once(&kernel(none)), ["`y`: no statement stores it"]);
}

/// Kernels with one number changed: those that are proven and run store each element once.
#[test]
fn what_is_proven_is_stored_once_when_it_runs() {
    let (mut proven, mut wrong) = (0, 0);
    let blocks = "kernel
  y: f32[n, m] storage write
  for i in 0..(n + 7)/8 grid
    for j in 0..(m + 3)/4 grid
      for k in 0..32 invocation
        for l in 0..1
          y[8*i + k/4, 4*j + k%4 + l] = 1.0 if and(index(8*i + k/4) < index(n), index(4*j + k%4) < index(m))
";
    let changes = [
        ("8*", "7*"),
        ("8*", "4*"),
        ("4*", "2*"),
        ("4*", "5*"),
        ("/4", "/2"),
        ("%4", "%2"),
        ("%4", "%8"),
        ("+ 7", "+ 8"),
        ("+ 7", "+ 15"),
        ("+ 7", "+ 3"),
        ("..32", "..16"),
        ("..1\n", "..2\n"),
        ("(n)", "(n - 1)"),
        ("(m)", "(m + 1)"),
        ("< index(", "<= index("),
        (")/8", ")/4"),
        (")/4", ")/3"),
        ("2*", "1*"),
        ("..2", "..1"),
        ("16*", "8*"),
        ("+ 15", "+ 16"),
        ("..8", "..4"),
    ];
    for original in [TILED, blocks] {
        for (from, to) in changes {
            for (at, _) in original.match_indices(from) {
                let spoiled = format!("{}{to}{}", &original[..at], &original[at + from.len()..]);
                let Ok(k) = parse(&spoiled) else { continue };
                if verify(&k).is_err() {
                    continue;
                }
                let holds = once(&k).is_empty();
                let runs: Vec<Option<bool>> = SIZES.iter().map(|(n, m)| stored(&k, &sizes(*n, *m))).collect();
                assert!(!holds || !runs.contains(&Some(false)), "{runs:?}\n{k}");
                proven += usize::from(holds && runs.contains(&Some(true)));
                wrong += usize::from(runs.contains(&Some(false)));
            }
        }
    }
    assert!(proven > 5 && wrong > 5, "{proven} {wrong}");
}
