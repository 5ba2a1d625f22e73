use super::*;

fn round_trip(text: &str) {
    let g = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let once = print(&g);
    assert_eq!(print(&parse(&once).unwrap_or_else(|e| panic!("{e}\n{once}"))), once);
    let lines =
        |t: &str| t.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect::<Vec<_>>();
    assert_eq!(lines(&once), lines(text));
}

#[test]
fn every_operator_round_trips() {
    round_trip(
        r#"
graph (x: %0, "a b\"c": %1) -> (y: %5, "2": %14) {
  require past + seq == total @ "add"
  state "k.0": %0 -> %12 axis 0 from past by seq + 1
  state v: %1 -> %1
  state w: %22 -> %23 initial [nan, inf, 0.099975586, -0.0]
  state u: %23 -> %22 initial absent
  %0 = input : f32[n, 7] as "x"
  %1 = input : i64[n]
  %2 = const [0.5] : f32[]
  %3 = const absent : f16[3, 1000]
  %4 = map [n, 7] { let t0 = exp(a0); mul(t0, select(lt(t0, 1e-7:f32), a1, cast(f32, index(2*n + %0)))) } (%0, %2) : f32[n, 7] @ "act", "other"
  %5 = view [7, n] reads [%1, %0] (%4) : f32[7, n]
  %6 = view [9, n] reads [%0 - 1, %1%3] else -inf:f32 (%5) : f32[9, n]
  %7 = reduce max axes [0, 1] (%6) : f32[1, 1]
  %8 = arg_reduce min axis 1 last (%6) : i64[9, 1]
  %9 = prefix_scan sum axis 0 exclusive reverse (%6) : f32[9, n]
  %10 = contract [ab, ca -> bc] (%0, %5) : f32[7, 7] as "product"
  %11 = gather [n, 7] reads [$1[%0], %1] (%0, %1) : f32[n, 7]
  %12 = scatter set writes [$2[%0], %1] (%0, %11, %1) : f32[n, 7]
  %13 = scatter sum writes [%0, %1] (%0, %11) : f32[n, 7]
  %14, %15 = top_k axis 1 k [3] largest (%13) : f32[n, 3], i64[n, 3] as _, "places"
  %16 = concat axis 0 (%12, %13) : f32[2*n, 7]
  %17 = softmax axis 1 log (%16) : f32[2*n, 7]
  %18 = norm rms axes [1] epsilon 1e-5 (%17) : f32[2*n, 7]
  %19 = attention scale 0.125 (%18, %18, %18) : f32[2*n, 7]
  %20 = const [true, false] : bool[2]
  %21 = const [-3, 127] : i8[2]
  %22 = const [nan, inf, 0.099975586, -0.0] : f16[4]
  %23 = const [1.0, 2.0, 3.0, 4.0] : f16[4]
}
"#,
    );
}

#[test]
fn subgraphs_round_trip() {
    round_trip(
        r#"
graph (c: %0, x: %1) -> (y: %2, z: %5, w: %4) {
  %0 = input : bool[]
  %1 = input : f32[3]
  %2 = if then graph (a: %0) -> (o: %1) {
    %0 = input : f32[3] as "a"
    %1 = map [3] { neg(a0) } (%0) : f32[3]
  } else graph (a: %0) -> (o: %0) {
    %0 = input : f32[3] as "a"
  } (%0, %1) : f32[3]
  %3 = const [10] : i64[]
  %4 = scan carried 0 scanned 1 reverse [true] [false] graph (s: %0) -> (s: %0) {
    %0 = input : f32[]
  } (%1) : f32[3]
  %5 = while carried 1 graph (i: %0, c: %1, x: %2) -> (c: %1, x: %2) {
    %0 = input : i64[]
    %1 = input : bool[]
    %2 = input : f32[3]
  } (%3, %0, %1) : f32[3]
}
"#,
    );
}

#[test]
fn errors_have_a_place() {
    let err = |t: &str| parse(t).unwrap_err().to_string();
    assert_eq!(err("graph () -> () {\n  %0 = mop [3] (%1) : f32[3]\n}"), "2:8: unknown operator `mop`");
    assert_eq!(
        err("graph () -> () {\n  %0 = concat axis 0 (%7) : f32[3]\n}"),
        "2:23: %7 is used before it is made"
    );
    assert_eq!(err("graph () -> (y: %4) {\n}"), "1:17: no node makes %4");
    assert_eq!(err("graph () -> () {\n %0 = const [1, 2] : f32[3]\n}"), "2:13: 2 numbers for f32[3]");
    assert_eq!(
        err("graph () -> () {\n %0 = const [1.5] : i32[1]\n}"),
        "2:14: `1.5` is not a number of type i32"
    );
    assert_eq!(
        err("graph () -> () {\n %0 = map [] { frob(1:i32) } () : i32[]\n}"),
        "2:16: no scalar operator `frob` of 1 operands"
    );
    assert_eq!(err("graph () -> () {"), "1:17: expected `%`, found the end");
    assert!(err("graph () -> () {\n %0 = input : f99[3]\n}").starts_with("2:15: unknown element type"));
}

#[test]
fn large_constants_show_a_hash() {
    let mut g = crate::Graph::new();
    let t = crate::Tensor::from_f32(vec![65], &[1.0; 65]);
    crate::Builder::new(&mut g, "w").constant(t);
    let text = print(&g);
    assert!(text.contains("const hash "), "{text}");
    assert!(parse(&text).is_ok());
}

#[test]
fn computed_symbols_round_trip() {
    round_trip(
        r#"
graph (x: %0) -> (y: %2) {
  compute n = %1 up to 4*m + 1
  %0 = input : i32[m]
  %1 = reduce max axes [0] (%0) : i32[1]
  %2 = place [n] writes [$1[%0]] (%0, %0) : i32[n]
}
"#,
    );
}

#[test]
fn optional_inputs_round_trip() {
    round_trip(
        r#"
graph (x: %0, "h.add": %1) -> (y: %3) {
  optional "h.add" to [m, 3]
  %0 = input : f32[m, 3]
  %1 = input : f32[a, b]
  %2 = view [m, 3] reads [min(a - 1, %0), min(b - 1, %1)] else -0.0:f32 (%1) : f32[m, 3]
  %3 = map [m, 3] { add(a0, a1) } (%0, %2) : f32[m, 3]
}
"#,
    );
}
