use super::*;
use crate::options::{Fusion, Options};
use crate::passes::fuse;
use wgfc_ir::testing::{Config, random_graph};

/// Kernels of all families, and of everything else that a text can have.
const ALL: &str = r#"t0: f32[n, 7] input 0 as "x"
t1: f32[7] const [1.0, 2.5, inf, nan, -0.0, 1e-7, 7.0] as "a \"name\""
t2: f16[100, 3] const hash 00112233445566ff
t3: f32[3] const absent as "w"
t4: f32[1, capacity] state 0 grows as "cache"
t5: f32[1, capacity] state 0 grows updated
t6: f32[n, 7] intermediate
t7: i32[] intermediate as "count"
t8: f32[n, 7] output 0 as "y"
t9: f32[n, 7] under t8
t10: i64[n] input 1 as "i"
t11: i32[7] output 1 as "sums"
compute m = t7
bound m = 7*n

kernel 0 map [7*n] @ "gather", "a, \"b\""
  e0: i64 = t10[%0/7]
  e1: i32 = cast(i32, e0)
  e2: i32 = 0:i32
  e3: bool = ge(e1, e2)
  e4: i32 = index(n)
  e5: bool = lt(e1, e4)
  e6: bool = and(e3, e5)
  e7: f32 = t0[7*@1 + %0%7] if e6
  e8: f32 = -0.5:f32
  e9: f32 = select(e6, e7, e8)
  e10: bool = true
  e11: u32 = bitcast(u32, e9)
  e12: i32 = cast(i32, e11)
  t6[%0] = e9 if e10
  t11[%0%7] = sum e12

kernel 1 row [n, 7]
  e0: f32 = t6[7*%0 + %1]
  e1: f32 = acc0
  e2: f32 = sub(e0, e1)
  e3: f32 = exp(e2)
  e4: f32 = acc1
  e5: f32 = div(e3, e4)
  e6: bool = gt(e0, e1)
  acc0 = max(e0): f32
  acc1 = sum(e3): f32
  acc2 = arg_max_last(e0): i64
  acc3 = last(e0 when e6 else e1): f32
  row t6[%0] = e4 if e6
  t8[7*%0 + %1] = e5

kernel 2 prefix_scan [n, 7] exclusive reverse @ "cumsum"
  e0: f32 = t6[7*%0 + %1]
  e1: f32 = acc0
  acc0 = running sum(e0): f32
  t8[7*%0 + %1] = e1

kernel 3 loop [n, 7] steps [m]
  e0: f32 = t0[7*%0 + %1]
  e1: f32 = acc0
  e2: f32 = add(e1, e0)
  e3: bool = acc1
  e4: i32 = t7[0]
  e5: bool = false
  from e4 most 64
  acc0 = e0 then e2
  acc1 = e5 then e3
  while e3
  step t8[7*%0 + %1] = e2
  t6[7*%0 + %1] = e1

kernel 4 staged_loop [n] steps [10] as "it \"must\""
  e0: f32 = t0[7*%0 + %2]
  e1: f32 = s0[%3]
  e2: f32 = acc3
  e3: f32 = s0[%2] if e4x
  s0: f32[7]
  s1: bool[1]
  while s1
  first [7] {
    s0 = e0
  }
  each [7] {
    acc3 = sum(e1): f32 terms 7
    s0 = e2
  }
  each [1] {
    t8[%0] = e2
  }
  last [7] {
    t6[7*%0 + %2] = e3
  }

kernel 5 matmul [1, 3, n, 7]
  e0: f32 = t2[7*%1 + %3]
  e1: f32 = t0[7*%2 + %3]
  e2: f32 = mul(e0, e0)
  e3: f32 = acc0
  acc0 = sum(e0 * e1)
  acc1 = sum(e0 * e2)
  acc2 = sum(e2)
  t8[n*%1 + %2] = e3

kernel 6 attention [2, n, capacity, 4, 8] parts 3
  e0: f32 = t0[%0 + %3]
  e1: f32 = t4[%2]
  e2: f32 = t1[%4]
  e3: f32 = acc0
  e4: f32 = acc1
  acc0 = attention(q e0, k e1, v e2, mask e1, scale 0.125)
  part t6[2*%1 + %5] = e4
  t8[%1] = e3

repeat 1..4 times [m] keeps [t6, t8] until t7 rounds 100 as "because"

repeat 2..3 times [4] keeps [] as ""
"#;

fn all() -> String {
    // The guard of an array, a bool.
    ALL.replace("  e3: f32 = s0[%2] if e4x\n", "  e3: bool = s1[0]\n  e4: f32 = s0[%2] if e3\n")
        .replace("    t6[7*%0 + %2] = e3\n", "    t6[7*%0 + %2] = e4\n")
}

#[test]
fn all_families_round_trip() {
    let text = all();
    let g = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(g.to_string(), text);
}

#[test]
fn expressions_can_be_named_otherwise() {
    let text = "t0: f32[9] input 0\nt1: i32[9] input 1 // a comment\nkernel 0 map [3]\n  e7: i32 = t1[%0]\n  \
                e30: f32 = t0[@7 + %0]\n  e1: f32 = exp(e30)\n  t0[@7] = e1\n";
    let g = parse(text).unwrap();
    let shown =
        "kernel 0 map [3]\n  e0: i32 = t1[%0]\n  e1: f32 = t0[%0 + @0]\n  e2: f32 = exp(e1)\n  t0[@0] = e2\n";
    assert!(g.to_string().ends_with(shown), "{g}");
}

#[test]
fn what_random_graphs_become_round_trips() {
    for seed in 0..60 {
        let (graph, _) = random_graph(seed, &Config::default());
        for fusion in [Fusion::Full, Fusion::None] {
            let Ok(g) = fuse(&graph, &Options { fusion, ..Options::default() }) else { continue };
            let text = g.to_string();
            let again = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            assert_eq!(again.to_string(), text, "seed {seed}");
        }
    }
}

#[test]
fn errors_have_a_place() {
    let err = |t: &str| parse(t).unwrap_err().to_string();
    assert_eq!(
        err("t0: f32[n] inpt 0"),
        "1:12: expected `input`, `output`, `const`, `state`, `intermediate` or `under`, found `inpt`"
    );
    assert_eq!(err("t1: f32[n] input 0"), "1:1: expected `t0`: they are numbered in order");
    assert_eq!(err("t0: f32[n] const [1]"), "1:5: a constant needs a constant shape");
    assert_eq!(err("t0: f32[2] const [1]"), "1:18: 1 numbers for f32[2]");
    assert_eq!(
        err("nothing"),
        "1:1: expected a tensor, `compute`, `bound`, `kernel` or `repeat`, found `nothing`"
    );
    let kernel = |statement: &str| err(&format!("kernel 0 row [3, 4] @ \"x\"\n  {statement}\n"));
    assert_eq!(kernel("e0: f32 = frob(e1)"), "2:18: e1 is used before it is computed");
    assert_eq!(kernel("e0: f32 = t0[@4]"), "2:16: e4 is used before it is computed");
    assert_eq!(
        kernel("e0: f32 = 1:f32\n  e1: f32 = frob(e0)"),
        "3:13: no scalar operator `frob` of 1 operands"
    );
    assert_eq!(kernel("e0: f32 = 1:f32\n  e0: f32 = 1:f32"), "3:3: e0 is computed twice");
    assert_eq!(
        kernel("step t0[%0] = e0"),
        "2:3: expected a statement of a kernel of family `row`, found `step`"
    );
    assert_eq!(kernel("acc1 = sum(e0): f32"), "2:3: expected `acc0`: they are numbered in order");
    assert_eq!(kernel("e0: f32 = 1:f32\n  acc0 = sun(e0): f32"), "3:10: no reduction is called `sun`");
    assert_eq!(err("kernel 0 rows [3, 4]"), "1:10: no family of kernels is called `rows`");
    assert_eq!(err("kernel 0 row [3]"), "1:14: `row` has extents [rows, positions], not 1");
    assert_eq!(err("kernel 1 map [3]"), "1:8: expected `kernel 0`: they are numbered in order");
    assert_eq!(
        err("kernel 0 prefix_scan [3, 4]"),
        "1:28: expected `acc0 = running …` in the kernel that ends here"
    );
    assert_eq!(err("kernel 0 map [3"), "1:16: expected `,` or `]`, found the end");
}

#[test]
fn no_spoiled_text_makes_the_parser_panic() {
    let text = all();
    let mut rng = wgfc_ir::testing::Rng::new(1);
    for _ in 0..3000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(bytes.len());
            match rng.below(3) {
                0 => _ = bytes.remove(at),
                1 => bytes[at] = *rng.pick(b"0e[]{}@%:=, \n9ts").unwrap(),
                _ => bytes.insert(at, *rng.pick(b"0e[]{}@%:=, \n9ts").unwrap()),
            }
        }
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = parse(&text).map(|g| g.to_string());
        }
    }
}

fn hashes(text: &str, capacity: Capacity) -> Vec<u128> {
    let g = parse(text).unwrap_or_else(|e| panic!("{e}"));
    g.kernels.iter().map(|k| k.structural_hash(&g.tensors, capacity)).collect()
}

#[test]
fn hashes_are_of_the_structure() {
    let text = "t0: f32[9] input 0\nt1: f32[9] input 1\nt2: f32[9] output 0\n\
                kernel 0 map [9] @ \"a\"\n  e0: f32 = t0[%0]\n  e1: f32 = exp(e0)\n  t2[%0] = e1\n";
    let one = |from: &str, to: &str| hashes(&text.replace(from, to), Capacity::Counts)[0];
    let same = one("", "");
    // The hash is the same on every machine and in every version.
    assert_eq!(format!("{same:032x}"), "8e7316116eb9dc3fbd3d0ffc4f5ff9a8");
    assert_eq!(one("@ \"a\"", "@ \"b\""), same);
    assert_eq!(one("= t0", "= t1"), same);
    assert_eq!(one("  e1", "  e7: f32 = 1.0:f32\n  e1"), same);
    for (from, to) in [
        ("exp", "log"),
        ("[%0] = e1", "[%0] = e0"),
        ("[%0] = e1", "[8 - %0] = e1"),
        ("= t0[%0]", "= t0[8 - %0]"),
        ("= t0", "= t2"),
        ("map [9]", "map [8]"),
        ("t0: f32[9]", "t0: f32[n]"),
        ("t2[%0] = e1", "t2[%0] = max e1"),
    ] {
        assert_ne!(one(from, to), same, "{from} {to}");
    }
    let everything = hashes(&all(), Capacity::Counts);
    let mut distinct = everything.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), everything.len());
}

#[test]
fn capacities_need_not_count() {
    let text = |capacity: &str| {
        format!(
            "t0: f32[1, {capacity}] state 0 grows\nt1: f32[n] output 0\nkernel 0 map [n]\n  e0: i32 = index({capacity})\n  \
             e1: i32 = index(%0)\n  e2: bool = lt(e1, e0)\n  e3: f32 = t0[{capacity}*0 + %0] if e2\n  t1[%0] = e3\n"
        )
    };
    let both = |capacity| ["17", "c"].map(|c| hashes(&text(c), capacity)[0]);
    assert_eq!(both(Capacity::Ignored)[0], both(Capacity::Ignored)[1]);
    assert_ne!(both(Capacity::Counts)[0], both(Capacity::Counts)[1]);
    // The place of a read that does not grow matters.
    let read = |offset: &str| {
        let text = format!(
            "t0: f32[3, 5] state 0\nt1: f32[15] output 0\nkernel 0 map [15]\n  e0: f32 = t0[{offset}]\n  t1[%0] = e0\n"
        );
        hashes(&text, Capacity::Ignored)[0]
    };
    assert_ne!(read("%0"), read("3*(%0%5) + %0/5"));
}
