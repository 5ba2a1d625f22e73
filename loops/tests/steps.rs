//! Scheduling steps: what they make of a kernel, what they refuse, and that results stay the same.

use wgfc_ir::bounds::Facts;
use wgfc_ir::{DType, Scalar};
use wgfc_loops::interpret::{Options, run};
use wgfc_loops::steps::{Step, apply, lift};
use wgfc_loops::text::parse;
use wgfc_loops::{Kernel, Space, bounds, once, races, verify};

const PRODUCT: &str = "kernel \"fc\"
  x: f32[n, 24] storage read
  w: f32[24, m] storage read
  y: f32[n, m] storage write
  acc: f32 register
  for i in 0..n
    for j in 0..m
      acc = 0.0
      for k in 0..24
        acc sum= x[i, k] * w[k, j]
      y[i, j] = max(acc, 0.0)
";

fn steps(kernel: &str, steps: &str) -> Result<Kernel, String> {
    let mut k = parse(kernel).unwrap();
    for s in steps.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        let step: Step = s.parse()?;
        assert_eq!(step.to_string(), s);
        k = apply(&k, &step).map_err(|e| format!("{e}\n{k}"))?;
        assert_eq!(parse(&k.to_string()).unwrap().to_string(), k.to_string());
    }
    Ok(k)
}

/// The elements of all tensors after a run with generated contents.
fn execute(k: &Kernel, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<Vec<Vec<Scalar>>, String> {
    verify(k).map_err(|e| e.join("\n"))?;
    let mut buffers = vec![];
    for (i, t) in k.tensors.iter().enumerate() {
        let n = t.elements().eval_syms(sizes).unwrap_or(0);
        let element = |e: i64| Scalar::from_f64(DType::F32, ((e * 7 + 3 * i as i64) % 11 - 5) as f64);
        let storage = matches!(t.space, Space::Storage(_));
        buffers.push(if storage { (0..n).map(element).collect() } else { vec![] });
    }
    run(k, sizes, &mut buffers, &Options::default()).map_err(|e| format!("{e}\n{k}"))?;
    buffers.retain(|b| !b.is_empty());
    Ok(buffers)
}

/// The tensors whose elements are not proven to be stored once.
fn several(k: &Kernel) -> Vec<String> {
    once(k).iter().map(|e| e.split(':').next().unwrap_or_default().to_owned()).collect()
}

/// Checks that steps leave the results as they are, for several sizes; gives the kernel that they make.
fn same(kernel: &str, list: &str) -> Kernel {
    let (before, after) = (parse(kernel).unwrap(), steps(kernel, list).unwrap());
    for (n, m) in [(5, 7), (8, 16), (1, 1), (17, 9)] {
        let sizes = |s: &str| match s {
            "n" => Some(n),
            "m" => Some(m),
            _ => None,
        };
        assert_eq!(execute(&before, &sizes).unwrap(), execute(&after, &sizes).unwrap(), "{n} {m}\n{after}");
    }
    assert_eq!(bounds(&after, &Facts::default()), [], "{after}");
    assert_eq!(several(&after), several(&before), "{after}");
    after
}

/// Blocks of 8 × 16 elements by workgroups of 4 × 8 invocations, each of which makes 2 × 2.
const TILED: &str = "split i 8; split j 16; swap i.1 j.0; grid i.0; grid j.0;
    split i.1 2; split j.1 2; swap i.1.1 j.1.0; invocation i.1.0; invocation j.1.0;
    expand acc i.1.1; expand acc j.1.1; distribute j.1.1; distribute i.1.1;
    swap j.1.1_1 k; swap i.1.1_1 k; split k 6; stage x k.0; stage w k.0;
    unroll i.1.1_1; vector j.1.1_1";

/// The steps of a tiled product, in a line.
fn tiled_steps() -> String {
    TILED.split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Checks that steps on a kernel are refused in these words.
fn refused(all: &[(&str, &str, &str)]) {
    for (kernel, list, want) in all {
        let why = steps(kernel, list).unwrap_err();
        assert!(why.contains(want), "{list}: {why}");
    }
}

#[test]
fn a_product_is_tiled_by_steps() {
    let steps = tiled_steps();
    let k = same(PRODUCT, &steps);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/product_tiled.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(file, k.to_string()).unwrap();
    }
    assert_eq!(races(&k), [""; 0]);
    // Each barrier is needed.
    let text = k.to_string();
    for (at, _) in text.match_indices("            barrier\n") {
        let without = format!("{}{}", &text[..at], &text[at + "            barrier\n".len()..]);
        let k = parse(&without).unwrap();
        assert!(races(&k)[0].contains("without a barrier between them"), "{:?}", races(&k));
        let sizes = |s: &str| Some(if s == "n" { 16 } else { 32 });
        assert!(execute(&k, &sizes).unwrap_err().contains("without a barrier between them"));
    }
    assert_eq!(k.to_string(), std::fs::read_to_string(file).unwrap(), "UPDATE_EXPECT=1 accepts this");
}

#[test]
fn elements_are_computed_by_invocations() {
    let map = "kernel
  x: f32[n*m] storage read
  y: f32[m*n] storage write
  for i in 0..n*m
    y[i] = x[i] * 2.0
";
    same(map, "split i 8; grid i.0; split i.1 4; invocation i.1.0; vector i.1.1");
    same(map, "split i 3; unroll i.1; split i.0 4; swap i.0.1 i.1; grid i.0.0");
    let axes = "kernel
  x: f32[n, m] storage read
  y: f32[m, n] storage write
  for i in 0..m
    for j in 0..n
      y[i, j] = x[j, i] * 2.0
";
    same(axes, "fuse i j; split i 4; grid i.0; invocation i.1");
    same(axes, "split i 4; split j 4; swap i.1 j.0; grid i.0; grid j.0; invocation i.1; invocation j.1");
}

#[test]
fn steps_that_would_change_results_are_refused() {
    let scan = "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  acc: f32 register
  acc = 0.0
  for i in 0..n
    acc sum= x[i]
    y[i] = acc
";
    refused(&[
        (scan, "invocation i", "handed from one point of the loop to another"),
        (scan, "split i 4; swap i.0 i.1", "may access the same elements of `acc`"),
        (scan, "distribute i", "may access the same elements of `acc`"),
        (scan, "expand acc i", "the extent n of `i` is no constant"),
        (scan, "split j 4", "there is no loop `j`; the loops are i"),
        (PRODUCT, "invocation k", "handed from one point"),
        (PRODUCT, "grid j", "`i` is around it"),
        (PRODUCT, "swap i k", "`k` is not the only statement in `i`"),
        (PRODUCT, "invocation i", "the number of invocations is no positive constant"),
        (PRODUCT, "stage x k", "no invocations that could share a copy"),
        (PRODUCT, "expand x k", "`x` is no register"),
        (PRODUCT, "split i 0", "0 points"),
        (PRODUCT, "twist i", "is no step"),
    ]);
    // The order of a sum may change, and that of stores that overlap may not.
    assert!(steps(PRODUCT, "split k 4; swap k.0 k.1").is_ok());
    let overlap = "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  for i in 0..n
    for j in 0..2
      y[i/2 + j] = x[i]
";
    let why = steps(overlap, "swap i j").unwrap_err();
    assert!(why.contains("may access the same elements of `y`"), "{why}");
}

const SOFTMAX: &str = "kernel \"softmax\"
  x: f32[n, m] storage read
  y: f32[n, m] storage write
  top: f32 register
  total: f32 register
  for i in 0..n
    top = -inf
    for k in 0..m
      top max= x[i, k]
    total = 0.0
    for k1 in 0..m
      total sum= floor(x[i, k1] - top)
    for j in 0..m
      y[i, j] = floor(x[i, j] - top) / total
";

const MAP: &str = "kernel
  x: f32[4*n] storage read
  y: f32[4*n] storage write
  for i in 0..4*n parallel
    let e: f32 = x[i] + 1.0
    y[i] = e * x[i] + max(e, x[4*n - 1 - i])
";

#[test]
fn points_of_a_map_load_first_and_store_inside() {
    let k = same(
        MAP,
        "split i 4; clamp i.0 16; split i.0.1 8; swap i.0.1.0 i.0.1.1; fuse i.0.1.0 i.1; fetch i.0.1.0; vector i.0.1.0",
    );
    let text = k.to_string();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("`{what}` is not in\n{text}"));
    let last_load = text.rfind(" = x[").unwrap_or_default();
    assert!(last_load < at("let e: f32"), "{text}");
    assert_eq!(text.matches("x[").count(), 2, "{text}");
    assert!(text.contains("min(") && text.contains("if index("), "{text}");
}

#[test]
fn loops_are_split_at_sizes_that_divide_them() {
    let k = same(MAP, "split i n; swap i.0 i.1; grid i.1");
    assert!(k.to_string().contains("for i.1 in 0..n grid"), "{k}");
    for (list, why) in [
        ("split i 3*n", "3*n does not divide the extent 4*n"),
        ("split i -2", "-2 points"),
        ("clamp i 0", "0 points"),
    ] {
        let refused = steps(MAP, list).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn whole_points_of_a_loop_have_no_conditions() {
    let map = MAP.replace("4*n", "n*m");
    let list = "split i 8; split i.1 4; grid i.0; invocation i.1.0; version i.1.1";
    let k = same(&map, &format!("{list}; vector i.1.1"));
    assert_eq!(
        k.to_string(),
        "kernel
  x: f32[m*n] storage read
  y: f32[m*n] storage write
  for i.0 in 0..(m*n + 7)/8 grid
    for i.1.0 in 0..2 invocation
      if index(8*i.0 + 4*i.1.0 + 3) < index(m*n)
        for i.1.1 in 0..4 vector
          let e: f32 = x[8*i.0 + 4*i.1.0 + i.1.1] + 1.0
          y[8*i.0 + 4*i.1.0 + i.1.1] = e * x[8*i.0 + 4*i.1.0 + i.1.1] + max(e, x[m*n - 8*i.0 - 4*i.1.0 - i.1.1 - 1])
      else
        for i.1.1_1 in 0..4 parallel
          if index(8*i.0 + 4*i.1.0 + i.1.1_1) < index(m*n)
            let e_1: f32 = x[8*i.0 + 4*i.1.0 + i.1.1_1] + 1.0
            y[8*i.0 + 4*i.1.0 + i.1.1_1] = e_1 * x[8*i.0 + 4*i.1.0 + i.1.1_1] + max(e_1, x[m*n - 8*i.0 - 4*i.1.0 - i.1.1_1 - 1])
"
    );
    // The condition is one of the last point, and what is executed elsewhere needs it.
    let text = k.to_string();
    for (from, to) in [("i.1.0 + 3)", "i.1.0 + 2)"), ("i.1.1_1) < index(m*n)", "i.1.1_1) < index(m*n - 1)")] {
        let spoiled = text.replace(from, to);
        let k = parse(&spoiled).unwrap();
        assert!(spoiled != text && once(&k) == ["`y`: 2 statements store it"], "{:?}", once(&k));
    }
    let sizes = |s: &str| Some(if s == "n" { 1 } else { 3 });
    let wide = parse(&text.replace("i.1.0 + 3)", "i.1.0 + 2)")).unwrap();
    assert!(execute(&wide, &sizes).is_err() && !bounds(&wide, &Facts::default()).is_empty());
    same(PRODUCT, "split i 4; version i.1; grid i.0");
    for (kernel, list, why) in [
        (map.as_str(), "split i 4; version i.0", "the extent (m*n + 3)/4 of `i.0` is no constant"),
        (MAP, "split i 4; version i.1", "no condition of all its stores holds up to one of its points"),
        (&map, "split i 4; swap i.0 i.1; grid i.1; version i.1", "the loop is no plain one"),
    ] {
        let refused = steps(kernel, list).unwrap_err();
        assert!(refused.contains(why), "{list}: {refused}");
    }
}

#[test]
fn loads_stay_behind_stores_that_they_may_see() {
    let update = MAP.replace("y: f32[4*n] storage write", "y: f32[4*n] storage update");
    let again = update.replace("max(e, x[4*n - 1 - i])", "y[i]");
    for (kernel, list, why) in [
        (again.as_str(), "clamp i 16", "it reads and writes `y`"),
        (&format!("{again}    y[i] = y[i] + 1.0\n"), "fetch i", "`y` is read after it is written"),
        (PRODUCT, "fetch i", "a point has loops"),
        (PRODUCT, "clamp j 16", "it stores to `acc`, which is no buffer"),
    ] {
        let refused = steps(kernel, list).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    same(&again, "split i 4; fetch i.1; vector i.1");
}

#[test]
fn a_team_divides_a_row() {
    // Differences of small integers, so that sums are exact in any order.
    let k = same(SOFTMAX, "grid i; team 4; spread k; spread k1; spread j");
    let text = k.to_string();
    assert!(
        text.contains("top.part max= x[i, lane + 4*k.turn] if index(lane + 4*k.turn) < index(m)"),
        "{text}"
    );
    assert_eq!(text.matches("barrier").count(), 8, "{text}");
    assert_eq!(races(&k), [""; 0]);
    same(SOFTMAX, "grid i; team 7; spread k1");
    same(PRODUCT, "grid i; grid j; team 5; spread k");
    same(PRODUCT, "grid i; team 5; spread j");
    for (list, want) in [
        ("spread k", "no single loop of invocations"),
        ("team 4; team 4", "has invocations already"),
        (
            "grid i; team 4; spread k; spread k.turn",
            "the invocations compute different things in `k.turn` already",
        ),
        ("team 4; spread i; spread k", "the invocations compute different things in `k` already"),
    ] {
        let why = steps(SOFTMAX, list).map(|k| k.to_string()).unwrap_err();
        assert!(why.contains(want), "{list}: {why}");
    }
}

/// Values that several statements read, some of which a statement between changes.
const NAMED: &str = "kernel
  x: f32[n, m] storage read
  u: f32[n, 6] storage update
  s: f32[n, 6] storage write
  y: f32[n, 6] storage write
  z: f32[n, 6] storage write
  for i in 0..n
    for j in 0..6
      let a: f32 = u[i, j] * 2.0
      let b: f32 = a + 1.0
      let e: i32 = index((i + j)%6)
      s[i, j] = a + b
      u[i, j] = b
      let c: f32 = b * b
      y[i, j] = c - a + cast(f32, index(e))
      for k in 0..e + 1
        z[i, j] = c - 1.0
";

#[test]
fn named_values_are_copied_or_kept() {
    let copied = "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  z: f32[n] storage write
  for i in 0..n
    let a: f32 = x[i] * 2.0
    let b: f32 = a + 1.0
    y[i] = a
    z[i] = b
";
    let k = same(copied, "distribute i");
    assert_eq!(
        k.to_string(),
        "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  z: f32[n] storage write
  for i in 0..n
    let a: f32 = x[i] * 2.0
    y[i] = a
  for i_1 in 0..n
    let a_1: f32 = x[i_1] * 2.0
    let b: f32 = a_1 + 1.0
    z[i_1] = b
"
    );
    let changed =
        copied.replace("y: f32[n] storage write", "y: f32[n] storage update").replace("x[i]", "y[i]");
    let why = steps(&changed, "distribute i").unwrap_err();
    assert!(why.contains("a statement between `a` and `z[i] = b` writes what `a` reads"), "{why}");
    let k = same(&changed, "split i 4; distribute i.1");
    let text = k.to_string();
    // The value is computed once.
    assert!(text.contains("a.kept: f32[4] register") && text.matches("* 2.0").count() == 1, "{text}");
    let k = same(NAMED, "distribute j; grid i");
    assert_eq!(k.to_string().matches("for j").count(), 5, "{k}");
}

#[test]
fn copies_have_the_layout_that_steps_say() {
    let steps_of = |x: &str| {
        let steps = tiled_steps();
        steps.replace("stage x k.0", x)
    };
    for (stage, shape, read) in [
        ("stage x k.0 order 1,0", "x.k.0: f32[6, 8]", "x.k.0[k.1, 2*i.1.0 + i.1.1_1]"),
        ("stage x k.0 pad 1", "x.k.0: f32[8, 7]", "x.k.0[2*i.1.0 + i.1.1_1, k.1]"),
        ("stage x k.0 order 1,0 pad 3", "x.k.0: f32[6, 11]", "x.k.0[k.1, 2*i.1.0 + i.1.1_1]"),
        ("stage x k.0 order 0,1", "x.k.0: f32[8, 6]", "x.k.0[2*i.1.0 + i.1.1_1, k.1]"),
        ("stage x k.0 by 2", "x.k.0: f32[8, 6]", "x.k.0[2*i.1.0 + i.1.1_1, k.1]"),
        ("stage x k.0 order 1,0 by 4,3", "x.k.0: f32[6, 8]", "x.k.0[k.1, 2*i.1.0 + i.1.1_1]"),
        (
            "stage x k.0 order 1,0 rotate 4",
            "x.k.0: f32[6, 8]",
            "x.k.0[k.1, i.1.1_1 + 2*(i.1.0%2) + 4*((k.1 + i.1.0/2)%2)]",
        ),
        (
            "stage x k.0 order 1,0 rotate 2 by 2,3",
            "x.k.0: f32[6, 8]",
            "x.k.0[k.1, i.1.1_1 + 2*((i.1.0 + k.1/3)%4)]",
        ),
        (
            "stage x k.0 rotate 3 by 2,3",
            "x.k.0: f32[8, 6]",
            "x.k.0[2*i.1.0 + i.1.1_1, 3*((i.1.0 + k.1/3)%2) + k.1%3]",
        ),
    ] {
        let k = same(PRODUCT, &steps_of(stage));
        assert_eq!(races(&k), [""; 0]);
        let text = k.to_string();
        assert!(text.contains(shape) && text.contains(read), "{text}");
    }
    for (stage, want) in [
        ("stage x k.0 order 0,0", "has 2 axes, which the order must be of"),
        ("stage x k.0 order 0,1,1", "has 2 axes, which the order must be of"),
        ("stage x k.0 order 2,0", "has 2 axes, which the order must be of"),
        ("stage x k.0 order a", "`a` is no axis"),
        ("stage x k.0 pad -1", "longer by -1 elements"),
        ("stage x k.0 pad 1 order 1,0", "`order 1,0` is no layout"),
        ("stage x k.0 by 4,4", "no groups of 4 × 4 neighbours"),
        ("stage x k.0 by 2,2,2", "no groups of 2 × 2 × 2 neighbours"),
        ("stage x k.0 rotate 4", "the rows of the copy of `x` have no groups of 4"),
        ("stage x k.0 rotate -2", "the rows of the copy of `x` have no groups of -2"),
    ] {
        let why = steps(PRODUCT, &steps_of(stage)).unwrap_err();
        assert!(why.contains(want), "{why}");
    }
}

#[test]
fn copies_have_two_buffers_in_turn() {
    let tiled = tiled_steps();
    let k = same(PRODUCT, &format!("{tiled}; double k.0"));
    assert_eq!(races(&k), [""; 0]);
    let text = k.to_string();
    // The first copies, then one barrier for each point.
    assert_eq!(text.matches("barrier").count(), 1, "{text}");
    assert!(text.contains("x.k.0: f32[2, 8, 6] workgroup"), "{text}");
    assert!(text.contains("x.k.0[k.0%2, 2*i.1.0 + i.1.1_1, k.1]"), "{text}");
    assert!(text.contains("w.k.0[(k.0 + 1)%2, "), "{text}");
    // The barrier is needed, and so are two buffers.
    let sizes = |s: &str| Some(if s == "n" { 16 } else { 32 });
    let without = text.replace("            barrier\n", "");
    let single = text.replace("(k.0 + 1)%2", "k.0%2");
    for (text, want) in [(without, "without a barrier"), (single, "")] {
        let k = parse(&text).unwrap();
        assert!(!races(&k).is_empty(), "{k}");
        let why = execute(&k, &sizes).unwrap_err();
        assert!(why.contains(want), "{why}");
    }
    // Copies that are made again for each point of a loop around, which the same buffer may still be read for.
    let batched = "kernel
  x: f32[n, 24] storage read
  w: f32[24, m] storage read
  y: f32[4, n, m] storage write
  acc: f32 register
  for b in 0..4
    for i in 0..n
      for j in 0..m
        acc = 0.0
        for k in 0..24
          acc sum= x[i, k] * w[k, j]
        y[b, i, j] = acc * cast(f32, index(b))
";
    let list = "swap b i; swap b j; split i 4; split j 4; swap i.1 j.0; grid i.0; grid j.0; invocation i.1; invocation j.1;
        split k 3; stage x k.0; stage w k.0 order 1,0 pad 1; double k.0";
    let list: String = list.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    let k = same(batched, &list);
    let text = k.to_string();
    assert_eq!((text.matches("barrier").count(), races(&k).len()), (2, 0), "{text}");
    // A number of points that is not known to be positive.
    let deep = PRODUCT.replace("24", "m");
    let k = same(&deep, &list.replace("swap b i; swap b j; ", ""));
    let text = k.to_string();
    assert_eq!(text.matches("index(0) < index((m + 2)/3)").count(), 2, "{text}");
    assert_eq!(text.matches("index(k.0 + 1) < index((m + 2)/3)").count(), 2, "{text}");
    refused(&[
        (PRODUCT, "double k", "no copies in workgroup memory are at the beginning"),
        (
            PRODUCT,
            &*format!("{tiled}; double k.0; double k.0"),
            "no copies in workgroup memory are at the beginning",
        ),
        (PRODUCT, &*format!("{tiled}; double k.2"), "there is no loop `k.2`"),
    ]);
}

#[test]
fn copies_go_through_registers() {
    let tiled = tiled_steps();
    let k = same(PRODUCT, &format!("{tiled}; pipeline k.0"));
    assert_eq!(races(&k), [""; 0]);
    let text = k.to_string();
    // The copies between two barriers read registers, and behind them registers are loaded for the next point.
    let (before, inside) = text.split_once("for k.0 in").unwrap();
    assert!(before.contains("x.k.0.next[") && !before.contains("barrier"), "{text}");
    let parts: Vec<&str> = inside.split("barrier").collect();
    let [_, copies, rest] = parts[..] else { panic!("{text}") };
    assert!(copies.contains("= x.k.0.next[") && !copies.contains(" x["), "{text}");
    assert!(rest.contains("index(k.0 + 1) < index(4)") && rest.contains("x.k.0.next["), "{text}");
    // A number of points that is not known to be positive, and copies that are made again for each point of a loop around.
    let deep = PRODUCT.replace("24", "m");
    let text = same(&deep, &format!("{tiled}; pipeline k.0")).to_string();
    assert!(text.contains("index(0) < index("), "{text}");
    refused(&[
        (PRODUCT, "pipeline k", "no copies in workgroup memory are at the beginning"),
        (PRODUCT, &*format!("{tiled}; double k.0; pipeline k.0"), "no copies in workgroup memory"),
        (PRODUCT, &*format!("{tiled}; pipeline k.0; pipeline k.0"), "changes in the loop"),
    ]);
}

#[test]
fn sums_have_no_conditions() {
    let tiled = tiled_steps();
    let filled = tiled.replace("stage x k.0;", "fill acc; stage x k.0;");
    let sum = |k: &Kernel| {
        let text = k.to_string();
        text.lines().find(|l| l.contains(" sum= ")).unwrap_or_default().trim().to_owned()
    };
    for (list, read) in [
        (filled.clone(), "x.k.0[2*i.1.0 + i.1.1_1, k.1] * w.k.0[k.1, 2*j.1.0 + j.1.1_1]"),
        (format!("{filled}; pipeline k.0"), "x.k.0[2*i.1.0 + i.1.1_1, k.1] * w.k.0[k.1, 2*j.1.0 + j.1.1_1]"),
        (
            format!("{filled}; double k.0"),
            "x.k.0[k.0%2, 2*i.1.0 + i.1.1_1, k.1] * w.k.0[k.0%2, k.1, 2*j.1.0 + j.1.1_1]",
        ),
        (
            filled.replace("stage x k.0;", "stage x k.0 order 1,0 rotate 4 by 4,2;"),
            "x.k.0[k.1, i.1.1_1 + 2*(i.1.0%2) + 4*((i.1.0/2 + k.1/2)%2)] * w.k.0[k.1, 2*j.1.0 + j.1.1_1]",
        ),
    ] {
        // Sizes that are multiples of no block, also along the sum.
        for deep in [PRODUCT.to_owned(), PRODUCT.replace("24", "m"), PRODUCT.replace("24", "23")] {
            let k = same(&deep, &list);
            assert_eq!(races(&k), [""; 0]);
            assert_eq!(sum(&k), format!("acc[i.1.1_1, j.1.1_1] sum= {read}"), "{k}");
        }
    }
    // A factor that is read from storage keeps its conditions.
    let k = same(PRODUCT, &filled.replace("stage x k.0; ", ""));
    assert_eq!(
        sum(&k),
        "acc[i.1.1_1, j.1.1_1] sum= select(index(8*i.0 + 2*i.1.0 + i.1.1_1) < index(n), \
         x[8*i.0 + 2*i.1.0 + i.1.1_1, 6*k.0 + k.1 if index(8*i.0 + 2*i.1.0 + i.1.1_1) < index(n)], 0.0) * \
         w.k.0[k.1, 2*j.1.0 + j.1.1_1]",
        "{k}"
    );
    let (blocks, _) = filled.split_once(" fill").unwrap();
    let other = |from: &str, to: &str| PRODUCT.replace(from, to);
    for (kernel, list, want) in [
        (PRODUCT.to_owned(), "fill acc".to_owned(), "sums into `acc` have no conditions"),
        (PRODUCT.to_owned(), "fill x".to_owned(), "`x` is no register"),
        (PRODUCT.to_owned(), "fill z".to_owned(), "there is no tensor `z`"),
        (other("acc = 0.0", "acc = 1.0"), format!("{blocks} fill acc"), "no sum that begins with 0"),
        (other("sum=", "max="), format!("{blocks} fill acc"), "no sum that begins with 0"),
        (other(" * w", " + w"), format!("{blocks} fill acc"), "no product of elements of tensors"),
        // An element that is read where its sum may be unknown.
        (other("max(acc", "max(acc + acc"), "split k 5; fill acc".to_owned(), ""),
    ] {
        match steps(&kernel, &list) {
            Ok(_) => assert_eq!(want, ""),
            Err(why) => assert!(!want.is_empty() && why.contains(want), "{why}"),
        }
    }
}

/// A matrix and its transposition.
const ACROSS: &str = "kernel
  x: f32[12*n] storage read
  z: f32[12] storage read
  y: f32[12*n] storage write
  for i in 0..12*n parallel
    y[i] = x[i/12 + n*(i%12)] * z[i%12] + x[i]
";

#[test]
fn tiles_are_copied_with_all_loads_first() {
    let tiles =
        "split i 12; split i.1 2; clamp i.0 8; clamp i.1.0 4; swap i.0.1 i.1.0.0; grid i.0.0; grid i.1.0.0;
        split i.0.1 2; swap i.0.1.0 i.0.1.1; swap i.0.1.0 i.1.0.1; invocation i.0.1.1; invocation i.1.0.1;
        fetch i.1.1; split i.0.1.0 4";
    let tiles: String = tiles.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    let copies = "stage x i.0.1.0.0 position 0 row 8 order 1,0 pad 1 by 2; fetch x.turn; vector x.turn";
    let list =
        format!("{tiles}; {copies}; fuse i.0.1.0.1 i.1.1; vector i.0.1.0.1; ahead i.0.1.0.1; ahead x.turn");
    let k = same(ACROSS, &list);
    assert_eq!(races(&k), [""; 0]);
    let text = lift(&k).to_string();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("`{what}` is not in\n{text}"));
    // All that is loaded, then all that is stored in workgroup memory, one barrier, and the results.
    let last_load = ["= x[", "= z["].iter().filter_map(|l| text.rfind(l)).max().unwrap_or_default();
    assert!(last_load < at("x.i.0.1.0.0[") && text.matches("barrier").count() == 1, "{text}");
    assert!(text.contains("x.i.0.1.0.0: f32[8, 9] workgroup"), "{text}");
    let sizes = |s: &str| Some(if s == "n" { 11 } else { 5 });
    let without: Vec<&str> = text.lines().filter(|l| l.trim() != "barrier").collect();
    let without = parse(&without.join("\n")).unwrap();
    assert!(!races(&without).is_empty() && execute(&without, &sizes).is_err(), "{without}");
    for (list, why) in [
        (format!("{tiles}; stage x i.0.1.0.0 order 1,0"), "`x` is read at several positions"),
        (format!("{tiles}; stage x i.0.1.0.0 position 2"), "`x` is read at 2 positions"),
        (format!("{tiles}; stage x i.0.1.0.0 position 0 row 7"), "the rows of the part of `x` are not of 7"),
        (format!("{tiles}; stage x i.0.1.0.0 position 0 by 3"), "the part of `x` has no groups of 3"),
        (format!("{tiles}; stage x i.0.1.0.0 position 0 by 0x"), "`0x` is no number of elements"),
        (format!("{tiles}; ahead i.0.1.0.1"), "a point does not begin with loads"),
        ("ahead i".into(), "the loop has no constant number of points"),
    ] {
        let refused = steps(ACROSS, &list).map(|k| k.to_string()).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    let shared = "kernel
  x: f32[n] storage read
  y: f32[n] storage write
  s: f32[4] workgroup
  for i in 0..4
    s[i] = x[i]
    let e: f32 = s[i] + 1.0
    y[i] = e
";
    let refused = steps(shared, "fetch i").unwrap_err();
    assert!(refused.contains("`s` is read after it is written"), "{refused}");
}

/// Numbers drawn from a seed, each below the argument.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

/// The sizes with which kernels under random steps are executed.
fn sizes(name: &str) -> Option<i64> {
    match name {
        "n" => Some(5),
        "m" => Some(6),
        _ => None,
    }
}

/// The names of a kernel's loops.
fn loops(k: &wgfc_loops::Kernel) -> Vec<wgfc_loops::Name> {
    let mut out = vec![];
    wgfc_loops::visit(&k.body, &mut |s| {
        if let wgfc_loops::Stmt::For(l) = s {
            out.push(k.vars[l.var].clone());
        }
    });
    out
}

/// A product in blocks, before its operands are copied.
fn tiled() -> String {
    let list = tiled_steps();
    let (list, _) = list.split_once("; stage").unwrap();
    steps(PRODUCT, list).unwrap().to_string()
}

/// Layouts of copies that random steps have.
const LAYOUTS: [&str; 7] = [
    "",
    " pad 1",
    " order 1,0",
    " order 1,0 pad 2",
    " order 1,0 rotate 2",
    " rotate 2 by 2",
    " order 1,0 rotate 2 by 2,2",
];

/// Steps in random order on kernels: those that apply leave the results as they are.
#[test]
fn random_steps_leave_results_as_they_are() {
    let mut next = numbers(9);
    let row = "kernel
  x: f32[n, m] storage read
  y: f32[n, m] storage write
  s: f32[n] storage write
  acc: f32 register
  for i in 0..n
    acc = 0.0
    for k in 0..m
      acc sum= x[i, k]
    s[i] = acc
    for j in 0..m
      y[i, j] = x[i, j] - acc
";
    let (mut applied, mut placed, mut unproven) = (0, 0, 0);
    let mut each = std::collections::BTreeMap::<String, usize>::new();
    let tiled = tiled();
    for kernel in [PRODUCT, row, NAMED, &tiled] {
        let original = parse(kernel).unwrap();
        let (want, results) = (execute(&original, &sizes).unwrap(), several(&original));
        for _ in 0..80 {
            let mut k = parse(kernel).unwrap();
            for _ in 0..14 {
                let loops = loops(&k);
                let (a, b) = (&loops[next(loops.len())], &loops[next(loops.len())]);
                let t = &k.tensors[next(k.tensors.len())].name;
                // Copies are for kernels that have invocations.
                let kind = if kernel == tiled { next(34) } else { next(15) };
                let step = match kind {
                    0..3 => format!("split {a} {}", [2, 3, 4][next(3)]),
                    3..5 => format!("swap {a} {b}"),
                    5 => format!("fuse {a} {b}"),
                    6 => format!("distribute {a}"),
                    7 => format!("expand {t} {a}"),
                    8 => format!("stage {t} {a}{}", LAYOUTS[next(LAYOUTS.len())]),
                    9 => format!("grid {a}"),
                    10 => format!("team {}", [2, 5][next(2)]),
                    11 | 12 => format!("spread {a}"),
                    15..23 => {
                        let sums: Vec<_> = loops.iter().filter(|l| l.starts_with('k')).collect();
                        format!("{} {}", ["double", "pipeline"][next(2)], sums[next(sums.len())])
                    }
                    23.. => format!("stage {} {a}{}", ["x", "w"][next(2)], LAYOUTS[next(LAYOUTS.len())]),
                    13 => "fill acc".into(),
                    _ => format!("invocation {a}"),
                };
                if let Ok(new) = apply(&k, &step.parse().unwrap()) {
                    assert_eq!(parse(&new.to_string()).unwrap().to_string(), new.to_string());
                    let got = execute(&new, &sizes).unwrap_or_else(|e| panic!("{step}: {e}\nbefore:\n{k}"));
                    // The interpreter found no race. Two buffers in turn are not proven to be free of races once their loop is split.
                    if !races(&new).is_empty() {
                        assert!(new.to_string().contains("%2, "), "{new}");
                        unproven += 1;
                        continue;
                    }
                    assert_eq!(bounds(&new, &Facts::default()), [], "{step} of\n{k}\nis\n{new}");
                    assert_eq!(several(&new), results, "{step} of\n{k}\nis\n{new}");
                    assert_eq!(got, want, "{step} of\n{k}\nis\n{new}");
                    k = new;
                    applied += 1;
                    *each.entry(step.split(' ').next().unwrap().to_owned()).or_default() += 1;
                    *each.entry("named".into()).or_default() +=
                        usize::from(step.starts_with("dist") && !k.values.is_empty());
                    *each.entry("layout".into()).or_default() +=
                        usize::from(step.contains(" pad ") || step.contains(" order "));
                    placed +=
                        usize::from(["grid", "inv", "team", "spread"].iter().any(|w| step.starts_with(w)));
                }
            }
        }
    }
    assert!(applied > 100 && placed > 10, "{applied} steps, {placed} places");
    assert!(unproven * 100 < applied, "{unproven} of {applied} steps");
    for name in ["distribute", "named", "stage", "layout", "double", "pipeline", "fill"] {
        assert!(each.get(name).is_some_and(|n| *n >= 5), "{each:?}");
    }
    println!("{each:?}");
}

/// Steps that move loads, in random order between others: those that apply leave the results as they are, and nothing is read that is not
/// there.
#[test]
fn random_loads_leave_results_as_they_are() {
    let mut next = numbers(5);
    let mut each = std::collections::BTreeMap::<String, usize>::new();
    let map = MAP.replace("4*n", "n*m");
    let tiled = tiled();
    let across = steps(ACROSS, "split i 12; split i.0 4; split i.1 3; swap i.0.1 i.1.0; swap i.0.1 i.1.1; grid i.0.0; invocation i.1.0; split i.1.1 3")
        .unwrap()
        .to_string();
    for kernel in [PRODUCT, NAMED, SOFTMAX, &map, ACROSS, &tiled, &across] {
        let want = execute(&parse(kernel).unwrap(), &sizes).unwrap();
        for _ in 0..40 {
            let mut k = parse(kernel).unwrap();
            for _ in 0..12 {
                let loops = loops(&k);
                let (a, b) = (&loops[next(loops.len())], &loops[next(loops.len())]);
                let t = &k.tensors[next(k.tensors.len())].name;
                let step = match next(14) {
                    0 => format!("split {a} {}", [2, 3, 4][next(3)]),
                    1 => format!("clamp {a} {}", [2, 3, 4][next(3)]),
                    2 => format!("swap {a} {b}"),
                    3 => format!("fuse {a} {b}"),
                    4 => format!("distribute {a}"),
                    5 => format!("invocation {a}"),
                    6 | 7 => format!("fetch {a}"),
                    8 | 9 => format!("ahead {a}"),
                    10 => format!("vector {a}"),
                    11 => format!("version {a}"),
                    _ => {
                        let layout = ["", " row 3", " row 4 order 1,0 pad 1", " by 2", " by 3"][next(5)];
                        format!("stage {t} {a} position {}{layout}", next(2))
                    }
                };
                let Ok(new) = apply(&k, &step.parse().unwrap()) else { continue };
                let got = execute(&new, &sizes).unwrap_or_else(|e| panic!("{step}: {e}\nbefore:\n{k}"));
                assert_eq!(got, want, "{step} of\n{k}\nis\n{new}");
                let lifted = lift(&new);
                assert_eq!(execute(&lifted, &sizes).as_ref(), Ok(&want), "lifted:\n{lifted}");
                k = new;
                *each.entry(step.split(' ').next().unwrap().to_owned()).or_default() += 1;
            }
        }
    }
    println!("{each:?}");
    for name in ["fetch", "ahead", "version", "stage", "clamp"] {
        assert!(each.get(name).is_some_and(|n| *n >= 5), "{each:?}");
    }
}
