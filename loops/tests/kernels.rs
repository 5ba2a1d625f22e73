//! Kernels as text: what they compute, and what is wrong with those that a device must not run.

use wgfc_ir::{DType, Scalar};
use wgfc_loops::interpret::{Counts, Options, run};
use wgfc_loops::{races, text::parse, verify};

fn f32s(all: &[f64]) -> Vec<Scalar> {
    all.iter().map(|v| Scalar::from_f64(DType::F32, *v)).collect()
}

/// Runs a kernel with `n = 5` and gives the elements of its last tensor in storage.
fn execute(text: &str, buffers: Vec<Vec<Scalar>>) -> Result<(Vec<Scalar>, Counts), String> {
    let kernel = parse(text).map_err(|e| e.to_string())?;
    assert_eq!(parse(&kernel.to_string()).unwrap(), kernel, "{kernel}");
    verify(&kernel).map_err(|e| e.join("\n"))?;
    let last = buffers.len() - 1;
    let mut buffers = buffers;
    let options = Options { subgroup: 4, ..Options::default() };
    let counts =
        run(&kernel, &|s| (s == "n").then_some(5), &mut buffers, &options).map_err(|e| e.to_string())?;
    Ok((buffers.swap_remove(last), counts))
}

/// A sum of 8 elements by 4 invocations, whose last step is `last`.
fn sum(barrier: &str, combine: &str) -> String {
    format!(
        "kernel
  x: f32[8] storage read
  y: f32[1] storage write
  part: f32[4] workgroup
  for lane in 0..4 invocation
    part[lane] = x[lane] + x[lane + 4]
    {barrier}
    if index(lane) < index(2)
      part[lane] = part[lane] + part[lane + 2]
    {combine}
    if index(lane) == index(0)
      y[0] = part[0] + part[1]
"
    )
}

#[test]
fn invocations_meet_at_barriers() {
    let x = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let all = vec![x, f32s(&[0.0])];
    let (y, counts) = execute(&sum("barrier", "barrier"), all.clone()).unwrap();
    assert_eq!(y, f32s(&[36.0]));
    assert_eq!((counts.barriers, counts.loads[0], counts.workgroups), (2, 8, 1));
    // Without a barrier one invocation reads what another one writes.
    for text in [sum("// none", "barrier"), sum("barrier", "// none")] {
        let why = execute(&text, all.clone()).unwrap_err();
        assert!(why.contains("another invocation without a barrier between them"), "{why}");
    }
}

#[test]
fn subgroups_combine_and_exchange_values() {
    let text = |e: &str| {
        format!(
            "kernel
  y: f32[8] storage write
  for lane in 0..8 invocation
    y[lane] = {e}
"
        )
    };
    let lane = "cast(f32, index(lane))";
    let (y, _) = execute(&text(&format!("subgroup_sum({lane})")), vec![f32s(&[0.0; 8])]).unwrap();
    assert_eq!(y, f32s(&[6.0, 6.0, 6.0, 6.0, 22.0, 22.0, 22.0, 22.0]));
    let (y, _) = execute(&text(&format!("shuffle_xor({lane}, 1)")), vec![f32s(&[0.0; 8])]).unwrap();
    assert_eq!(y, f32s(&[1.0, 0.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0]));
    let guarded = text(&format!("subgroup_sum({lane})")).replace(
        "    y[lane]",
        "    if index(lane) < index(3)
      y[lane]",
    );
    let why = execute(&guarded, vec![f32s(&[0.0; 8])]).unwrap_err();
    assert!(why.contains("not all invocations of the workgroup reach a subgroup operation"), "{why}");
}

#[test]
fn loops_run_as_they_say() {
    let scan = "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  acc: f32 register
  going: bool register
  acc = 0.0
  going = true
  for i in 0..n down while going
    acc sum= x[i]
    y[i] = acc
    going = acc < 9.0
";
    let all = vec![f32s(&[1.0, 2.0, 3.0, 4.0, 5.0]), f32s(&[0.0; 5])];
    let (y, counts) = execute(scan, all).unwrap();
    assert_eq!(y, f32s(&[0.0, 0.0, 0.0, 9.0, 5.0]));
    assert_eq!(counts.stores[1], 2);
    // Loops of invocations may be of different lengths.
    let ragged = "kernel
  y: f32[4] storage write
  acc: f32 register
  for lane in 0..4 invocation
    acc = 0.0
    for i in 0..lane
      acc sum= 1.0
    y[lane] = acc
";
    let (y, _) = execute(ragged, vec![f32s(&[9.0; 4])]).unwrap();
    assert_eq!(y, f32s(&[0.0, 1.0, 2.0, 3.0]));
}

#[test]
fn faults_are_named() {
    let cases: &[(&str, &str)] = &[
        ("y[i + 1] = 1.0", "position 5 along axis 0 of `y`, whose extent is 5"),
        ("y[i] = acc", "reads an element before it is stored"),
        ("y[0] = 1.0", "writes an element that another workgroup writes too"),
        ("y[i] = y[i]", "reads `y`, which is only written"),
        ("y[i] = z[i]", "`z` is neither a tensor, a value nor an operator"),
        ("y[i] = 1.0 + 2:i32", "`add` of f32 and i32"),
        ("y[i] sum= 1.0", "invocations cannot combine values of type f32 by sum"),
        ("y[i, 0] = 1.0", "`y` has 1 axes and is written at 2 positions"),
        ("y[j] = 1.0", "`j` has no value"),
        ("barrier now", "unexpected `now`"),
    ];
    for (statement, want) in cases {
        let text = format!(
            "kernel
  y: f32[n] storage write
  acc: f32 register
  for i in 0..n grid
    {statement}
"
        );
        let result = execute(&text, vec![f32s(&[0.0; 5])]);
        let why = result.unwrap_err();
        assert!(why.contains(want), "{statement}: {why}");
    }
}

#[test]
fn a_barrier_is_reached_by_all_or_none() {
    let text = |condition: &str| {
        format!(
            "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  s: f32[4] workgroup
  for g in 0..1 grid
    for lane in 0..4 invocation
      s[lane] = 1.0
      if {condition}
        barrier
      y[lane] = s[lane]
"
        )
    };
    let all = vec![f32s(&[1.0; 5]), f32s(&[0.0; 5])];
    assert!(execute(&text("x[g] > 0.0"), all.clone()).is_ok());
    for varying in ["index(lane) < index(2)", "x[lane] > 0.0", "s[g] > 0.0"] {
        let why = execute(&text(varying), all.clone()).unwrap_err();
        assert!(why.contains("not all invocations of the workgroup reach it together"), "{why}");
    }
}

#[test]
fn operators_are_printed_with_few_parentheses() {
    for e in [
        "a[i] * (b[i] + c[i]) - d[i] / 2.0",
        "a[i] - (b[i] - c[i])",
        "select(a[i] + 1.0 < b[i], a[i if index(i) < index(n)], max(b[i], -inf))",
        "(a[i] < b[i]) == true",
        "cast(f32, bitcast(i32, a[i])) * nan:f32",
        "cast(f32, 18446744073709551615:u64)",
    ] {
        let text = format!(
            "kernel \"a \\\"name\\\"\"
  a: f32[n] storage read
  b: f32[n] storage read
  c: f32[n] storage read
  d: f32[n] storage read
  y: {} [n] storage write
  for i in 0..n
    y[i] = {e}
",
            if e.ends_with("true") { "bool" } else { "f32" }
        );
        let kernel = parse(&text).unwrap();
        verify(&kernel).unwrap();
        assert!(kernel.to_string().contains(&format!("y[i] = {e}\n")), "{kernel}");
        assert_eq!(parse(&kernel.to_string()).unwrap(), kernel);
    }
}

#[test]
fn texts_that_are_cut_off_are_refused_without_a_panic() {
    let text = sum("barrier", "barrier storage");
    for end in 0..text.len() {
        let _ = parse(&text[..end]).map(|k| verify(&k));
        let _ = parse(&format!("{}{}", &text[..end], &text[(end + 7).min(text.len())..])).map(|k| verify(&k));
    }
    let deep = format!("kernel\n  y: f32 register\n  y = {}1.0{}\n", "(".repeat(5000), ")".repeat(5000));
    assert!(parse(&deep).unwrap_err().message.contains("nested too deeply"));
    let long = format!("kernel\n  y: f32 register\n  y = 1.0{}\n", " + 1.0".repeat(5000));
    assert!(parse(&long).unwrap_err().message.contains("too many operators"));
}

#[test]
fn races_are_seen_on_all_ways() {
    let text = |middle: &str| {
        format!(
            "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  s: f32[8] workgroup
  for lane in 0..4 invocation
    s[lane] = 1.0
{middle}
    y[lane] = s[3 - lane]
"
        )
    };
    let all = |middle: &str| {
        let kernel = parse(&text(middle)).unwrap();
        verify(&kernel).unwrap();
        races(&kernel)
    };
    assert_eq!(all("    barrier"), [""; 0]);
    assert_eq!(all("    for k in 0..3\n      barrier"), [""; 0]);
    assert_eq!(all("    if x[0] > 0.0\n      barrier\n    else\n      barrier"), [""; 0]);
    // A loop may have no points, and a branch may not be taken.
    for middle in ["    for k in 0..n\n      barrier", "    if x[0] > 0.0\n      barrier"] {
        let found = all(middle);
        assert!(
            found.len() == 1 && found[0].contains("without a barrier between them"),
            "{middle}: {found:?}"
        );
    }
    // The end of a point and the beginning of the next one; and of an inner loop in two points of an outer one.
    let turns = "    barrier
    for k in 0..n
      s[lane] = x[lane + k]
      barrier
      if s[3 - lane] > 0.0
        s[lane + 4] = s[3 - lane]
    barrier";
    assert!(all(turns)[0].contains("without a barrier between them"), "{:?}", all(turns));
    let nested = "    for k in 0..n
      for j in 0..2
        s[lane + 4*j] = 1.0
        barrier
        y[4*k + lane] = s[7 - lane - 4*j]
    barrier
    s[lane] = 1.0
    barrier";
    assert!(!all(nested).is_empty());
    // Forty loops in each other.
    let deep: String = (0..40).map(|i| format!("{}for k{i} in 0..n\n", "  ".repeat(i + 2))).collect();
    let deep = format!("{deep}{}barrier", "  ".repeat(42));
    for deep in [deep.replace("0..n", "0..3"), deep] {
        assert!(all(&deep).iter().any(|e| e.contains("than are looked at")), "{:?}", all(&deep));
    }
    // Accesses before a loop, and those of its last point, are on different ways.
    let apart = "    barrier
    s[lane + 4] = 1.0
    for k in 0..n
      barrier
      if s[7 - lane] > 0.0
        y[lane] = 1.0
    barrier";
    assert_eq!(all(apart), [""; 0]);
}

#[test]
fn loops_end() {
    let text = |head: &str| {
        format!(
            "kernel\n  y: f32[n] storage write\n  acc: f32 register\n  acc = 0.0\n  {head}\n    acc sum= 1.0\n  y[0] = acc\n"
        )
    };
    // A condition that is always true, and a number of points that a value says.
    for head in [
        "for i in 0..n while true",
        "let e: i32 = index(n)\n  for i in 0..e",
        "for i in 0..n down while acc < 9.0",
    ] {
        let (y, counts) = execute(&text(head), vec![f32s(&[0.0; 5])]).unwrap();
        assert_eq!((y[0].as_f64(), counts.stores[1]), (5.0, 6), "{head}");
    }
    for head in ["for i while true", "for i in 0.. while true", "for i in 0..acc"] {
        assert!(parse(&text(head)).is_err() || verify(&parse(&text(head)).unwrap()).is_err(), "{head}");
    }
    let mut endless = parse(&text("for i in 0..n while true")).unwrap();
    if let wgfc_loops::Stmt::For(l) = &mut endless.body[1] {
        l.extent = wgfc_ir::Poly::too_large();
    }
    assert!(verify(&endless).unwrap_err().iter().any(|e| e.contains("no known number of points")));
}
