//! Every template, filled for operators with odd and unequal sizes.

use super::agree;
use crate::backend::{Failure, run_session, session};
use std::collections::BTreeMap;
use wgfc::random::Rng;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::kernel::integers;
use wgfc_compiler::passes::fuse;
use wgfc_compiler::pipeline::schedule;
use wgfc_compiler::schedule::{Context, candidates};
use wgfc_compiler::{Activations, Options};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{Class, DType, Graph, Program, Scalar, Tensor, text, verify};
use wgfc_runtime::Gpu;

/// An operator, its schedule, and the device.
pub struct Family {
    /// The name of the snapshot.
    pub name: &'static str,
    /// The beginning of the text of a schedule; the first matching schedule that the device can run is used.
    schedule: &'static str,
    /// The values of symbols.
    sizes: &'static [(&'static str, i64)],
    /// Adjusts the options, such as the device profile; `None` for the portable device.
    options: Option<fn(&mut Options)>,
    graph: &'static str,
}

/// A case on the portable device.
const fn portable(
    name: &'static str,
    schedule: &'static str,
    sizes: &'static [(&'static str, i64)],
    graph: &'static str,
) -> Family {
    Family { name, schedule, sizes, options: None, graph }
}

const fn on(options: fn(&mut Options), family: Family) -> Family {
    Family { options: Some(options), ..family }
}

fn subgroups(options: &mut Options) {
    options.profile.subgroup = Some(8);
}

fn subgroups_and_halves(options: &mut Options) {
    options.profile.subgroup = Some(8);
    options.profile.f16 = true;
}

/// No software adapter has matrix units, so their kernels are only validated.
fn matrix_units(options: &mut Options) {
    options.profile.subgroup = Some(32);
    options.profile.f16 = true;
    options.profile.cooperative_matrix = true;
    options.profile.max_workgroup_bytes = 49152;
}

fn together(options: &mut Options) {
    options.profile.speeds.resident_workgroups = 16.0;
    options.profile.speeds.exchange = 1e-3;
}

fn rounded(options: &mut Options) {
    options.activations = Activations::Q8;
}

/// The cases.
pub const CASES: &[Family] = &[
    portable(
        "map",
        "map threads=64 elements=1 unroll=1",
        &[("n", 3)],
        r#"
graph (x: %0, z: %1) -> (y: %2) {
  %0 = input : f32[n, 13, 7] as "x"
  %1 = input : f32[13, 1] as "z"
  %2 = map [n, 13, 7] { add(exp(a0), sin(a1)) } (%0, %1) : f32[n, 13, 7] @ "sum"
}"#,
    ),
    portable(
        "map_vectors",
        "map threads=64 elements=4",
        &[("n", 3)],
        r#"
graph (x: %0, z: %1) -> (y: %2) {
  %0 = input : f32[n, 13, 28] as "x"
  %1 = input : f32[13, 1] as "z"
  %2 = map [n, 13, 28] { tanh(add(a0, a1)) } (%0, %1) : f32[n, 13, 28] @ "sum"
}"#,
    ),
    portable(
        "map_words",
        "map",
        &[("n", 3)],
        r#"
graph (x: %0, z: %1) -> (y: %2) {
  %0 = input : i8[n, 7] as "x"
  %1 = input : i8[7] as "z"
  %2 = map [n, 7] { max(neg(a0), a1) } (%0, %1) : i8[n, 7] @ "largest"
}"#,
    ),
    portable(
        "map_unrolled",
        "map threads=64 elements=1 unroll=4",
        &[("n", 3)],
        r#"
graph (x: %0, z: %1) -> (y: %2) {
  %0 = input : f32[n, 117] as "x"
  %1 = input : f32[117] as "z"
  %2 = map [n, 117] { add(exp(a0), a1) } (%0, %1) : f32[n, 117] @ "bias"
}"#,
    ),
    portable(
        "map_tiled",
        "map tiled",
        &[("n", 3)],
        r#"
graph (x: %0, z: %1) -> (y: %3) {
  %0 = input : f32[n, 37, 71] as "x"
  %1 = input : f32[37] as "z"
  %2 = view [n, 71, 37] reads [%0, %2, %1] (%0) : f32[n, 71, 37] @ "transpose"
  %3 = map [n, 71, 37] { add(exp(a0), a1) } (%2, %1) : f32[n, 71, 37] @ "bias"
}"#,
    ),
    portable(
        "map_gather",
        "map",
        &[("n", 5)],
        r#"
graph (x: %0, i: %1) -> (y: %3) {
  %0 = input : f32[11, 7] as "x"
  %1 = input : i64[n] as "i"
  %2 = gather [n, 7] reads [$1[%0], %1] (%0, %1) : f32[n, 7] @ "gather"
  %3 = map [n, 7] { mul(a0, 2.0:f32) } (%2) : f32[n, 7] @ "double"
}"#,
    ),
    portable(
        "map_scatter",
        "map",
        &[("n", 5)],
        r#"
graph (x: %0, u: %1, i: %2) -> (y: %3) {
  %0 = input : i32[11] as "x"
  %1 = input : i32[n] as "u"
  %2 = input : i64[n] as "i"
  %3 = scatter sum writes [$2[%0]] (%0, %1, %2) : i32[11] @ "scatter"
}"#,
    ),
    portable(
        "map_of_64_bits",
        "map",
        &[("n", 5)],
        r#"
graph (x: %0, z: %1) -> (y: %2) {
  %0 = input : i64[n, 3] as "x"
  %1 = input : i64[3] as "z"
  %2 = map [n, 3] { add(mul(a0, a1), div(a0, 7:i64)) } (%0, %1) : i64[n, 3] @ "sum"
}"#,
    ),
    portable(
        "row",
        "row threads=64 lanes=16 rows_first=false width=1 steps=0",
        &[("n", 5)],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[n, 41] as "x"
  %1 = reduce sum axes [1] (%0) : f32[n, 1] @ "sum"
}"#,
    ),
    portable(
        "row_kept",
        "row threads=64 lanes=16 rows_first=false width=1 steps=3 kept=true",
        &[],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[5, 41] as "x"
  %1 = softmax axis 1 (%0) : f32[5, 41] @ "softmax"
}"#,
    ),
    portable(
        "row_across_memory",
        "row",
        &[("n", 13)],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[29, n] as "x"
  %1 = reduce max axes [0] (%0) : f32[1, n] @ "largest"
}"#,
    ),
    portable(
        "row_of_a_norm",
        "row",
        &[("n", 3)],
        r#"
graph (x: %0, g: %1) -> (y: %3) {
  %0 = input : f32[n, 260] as "x"
  %1 = input : f32[260] as "g"
  %2 = norm layer axes [1] epsilon 0.00001 (%0) : f32[n, 260] @ "norm"
  %3 = map [n, 260] { mul(a0, a1) } (%2, %1) : f32[n, 260] @ "scale"
}"#,
    ),
    on(
        subgroups,
        portable(
            "row_in_subgroups",
            "row threads=128 lanes=128",
            &[],
            r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[5, 268] as "x"
  %1 = softmax axis 1 (%0) : f32[5, 268] @ "softmax"
}"#,
        ),
    ),
    portable(
        "row_top_k",
        "row",
        &[("n", 3)],
        r#"
graph (x: %0) -> (values: %1, positions: %2) {
  %0 = input : f32[n, 13] as "x"
  %1, %2 = top_k axis 1 k [4] largest (%0) : f32[n, 4], i64[n, 4] @ "top_k"
}"#,
    ),
    portable(
        "prefix_scan",
        "prefix_scan threads=64 lanes=1",
        &[("n", 3)],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[n, 41] as "x"
  %1 = prefix_scan sum axis 1 exclusive reverse (%0) : f32[n, 41] @ "cumsum"
}"#,
    ),
    portable(
        "prefix_scan_shared",
        "prefix_scan threads=256",
        &[],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : f32[3, 301] as "x"
  %1 = prefix_scan sum axis 1 (%0) : f32[3, 301] @ "cumsum"
}"#,
    ),
    portable(
        "sort_block",
        "sort block",
        &[],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : u64[3, 301] as "x"
  %1 = sort axis 1 sorted 1 part 128 keep 128 (%0) : u64[3, 301] @ "sort"
}"#,
    ),
    portable(
        "sort_select",
        "sort select",
        &[],
        r#"
graph (x: %0) -> (y: %1) {
  %0 = input : u64[3, 1001] as "x"
  %1 = sort axis 1 sorted 1 part 512 keep 21 (%0) : u64[3, 42] @ "sort"
}"#,
    ),
    portable(
        "sort_merge",
        "sort merge",
        &[],
        r#"
graph (x: %0) -> (y: %2) {
  %0 = input : u64[2, 301] as "x"
  %1 = sort axis 1 sorted 1 part 32 keep 32 (%0) : u64[2, 301] @ "runs"
  %2 = sort axis 1 sorted 32 part 128 keep 128 (%1) : u64[2, 301] @ "merge"
}"#,
    ),
    portable(
        "sort_path",
        "sort path",
        &[("n", 1101)],
        r#"
graph (x: %0) -> (y: %2) {
  %0 = input : u64[2, n] as "x"
  %1 = sort axis 1 sorted 1 part 256 keep 256 (%0) : u64[2, n] @ "runs"
  %2 = sort axis 1 sorted 256 part 512 keep 512 (%1) : u64[2, n] @ "merge"
}"#,
    ),
    portable(
        "loops",
        "loop",
        &[("n", 37)],
        r#"
graph (y0: %0, a: %1, x: %2) -> (last: %3, all: %4) {
  %0 = input : f32[n] as "y0"
  %1 = input : f32[n] as "a"
  %2 = input : f32[9, n] as "x"
  %3, %4 = scan carried 1 scanned 1 reverse [true] [false] graph (y: %0, x: %1, a: %2) -> (next: %3, out: %4) {
    %0 = input : f32[n] as "y"
    %1 = input : f32[n] as "x"
    %2 = input : f32[n] as "a"
    %3 = map [n] { tanh(add(mul(a0, a1), a2)) } (%0, %2, %1) : f32[n]
    %4 = map [n] { mul(a0, a0) } (%3) : f32[n]
  } (%0, %2, %1) : f32[n], f32[9, n] @ "the loop"
}"#,
    ),
    portable(
        "staged_loop",
        "staged_loop",
        &[],
        r#"
graph (h: %0, x: %1, w: %2) -> (y: %3) {
  %0 = input : f32[3, 47] as "h"
  %1 = input : f32[5] as "x"
  %2 = input : f32[47, 47] as "w"
  %3 = scan carried 1 scanned 1 reverse [false] [] graph (h: %0, x: %1, w: %2) -> (y: %4) {
    %0 = input : f32[3, 47] as "h"
    %1 = input : f32[] as "x"
    %2 = input : f32[47, 47] as "w"
    %3 = contract [ab, bc -> ac] (%0, %2) : f32[3, 47]
    %4 = map [3, 47] { tanh(add(mul(a0, 0.05:f32), a1)) } (%3, %1) : f32[3, 47]
  } (%0, %1, %2) : f32[3, 47] @ "the loop"
}"#,
    ),
    on(
        together,
        portable(
            "spread_loop",
            "staged_loop spread",
            &[],
            r#"
graph (h: %0, x: %1, w: %2) -> (y: %3, z: %4) {
  %0 = input : f32[161] as "h"
  %1 = input : f32[5] as "x"
  %2 = input : f32[161, 161] as "w"
  %3, %4 = scan carried 1 scanned 1 reverse [false] [false] graph (h: %0, x: %1, w: %2) -> (y: %4, z: %4) {
    %0 = input : f32[161] as "h"
    %1 = input : f32[] as "x"
    %2 = input : f32[161, 161] as "w"
    %3 = contract [b, bc -> c] (%0, %2) : f32[161]
    %4 = map [161] { tanh(add(mul(a0, 0.05:f32), a1)) } (%3, %1) : f32[161]
  } (%0, %1, %2) : f32[161], f32[5, 161] @ "the loop"
}"#,
        ),
    ),
    portable("matmul", "product tiled", &[("b", 2), ("m", 19), ("n", 33), ("k", 21)], PRODUCT),
    portable(
        "matmul_of_a_convolution",
        "product tiled",
        &[("n", 2)],
        r#"
graph (x: %0, w: %1, bias: %2) -> (y: %5) {
  %0 = input : f32[n, 3, 9, 7] as "x"
  %1 = input : f32[5, 3, 3, 3] as "w"
  %2 = input : f32[5, 1, 1] as "bias"
  %3 = view [n, 3, 9, 7, 3, 3] reads [%0, %1, %2 + %4 - 1, %3 + %5 - 1] else 0.0:f32 (%0) : f32[n, 3, 9, 7, 3, 3] @ "conv"
  %4 = contract [abcdef, gbef -> agcd] (%3, %1) : f32[n, 5, 9, 7] @ "conv"
  %5 = map [n, 5, 9, 7] { max(add(a0, a1), 0.0:f32) } (%4, %2) : f32[n, 5, 9, 7] @ "relu"
}"#,
    ),
    portable(
        "matmul_block",
        "product block threads=128 rows=2 cols=2 width=1",
        &[("b", 2), ("m", 3), ("n", 7), ("k", 5)],
        PRODUCT,
    ),
    portable(
        "matmul_block_vectors",
        "product block threads=128 rows=4 cols=8 width=4",
        &[("b", 2), ("m", 3), ("n", 2), ("k", 1)],
        r#"
graph (x: %0, w: %1, bias: %2) -> (y: %4) {
  %0 = input : f32[b, m, 4*k] as "x"
  %1 = input : f32[b, 4*k, 4*n] as "w"
  %2 = input : f32[4*n] as "bias"
  %3 = contract [abc, acd -> abd] (%0, %1) : f32[b, m, 4*n] @ "product"
  %4 = map [b, m, 4*n] { max(add(a0, a1), 0.0:f32) } (%3, %2) : f32[b, m, 4*n] @ "relu"
}"#,
    ),
    portable("matmul_serial", "product serial", &[("b", 2), ("m", 3), ("n", 7), ("k", 5)], PRODUCT),
    portable(
        "matmul_window",
        "product window",
        &[("n", 2)],
        r#"
graph (x: %0, w: %1) -> (y: %4) {
  %0 = input : f32[n, 6, 7, 12] as "x"
  %1 = input : f32[6, 1, 1, 3, 3] as "w"
  %2 = view [n, 6, 1, 7, 12, 3, 3] reads [%0, 1*%1 + %2, %3 + %5 - 1, %4 + %6 - 1] else 0.0:f32 (%0) : f32[n, 6, 1, 7, 12, 3, 3] @ "conv"
  %3 = contract [abcdefg, bhcfg -> abhde] (%2, %1) : f32[n, 6, 1, 7, 12] @ "conv"
  %4 = view [n, 6, 7, 12] reads [%0, %1/1, %1 % 1, %2, %3] (%3) : f32[n, 6, 7, 12] @ "conv"
}"#,
    ),
    // Each row has 127 among 32 neighbours, so that its integers are its elements.
    on(
        rounded,
        portable(
            "matmul_integers",
            "product tiled integers rows=16 cols=32 k=32",
            &[],
            r#"
graph (x: %0, w: %2, scale: %3) -> (y: %7) {
  %0 = input : i32[19, 32] as "x"
  %1 = const [127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127, -127] : i32[32] as "least"
  %2 = input : u4[37, 32] as "w"
  %3 = input : f32[37] as "scale"
  %4 = map [19, 32] { cast(f32, max(min(a0, 127:i32), a1)) } (%0, %1) : f32[19, 32] @ "rows"
  %5 = view [37, 32] reads [%0] (%3) : f32[37, 32] @ "scales"
  %6 = map [37, 32] { mul(sub(cast(f32, a0), 8.0:f32), a1) } (%2, %5) : f32[37, 32] @ "dequantize"
  %7 = contract [ab, cb -> ac] (%4, %6) : f32[19, 37] @ "product"
}"#,
        ),
    ),
    portable(
        "matmul_thin",
        "product thin",
        &[],
        r#"
graph (x: %0, w: %1, bias: %2) -> (y: %4) {
  %0 = input : f32[1, 3, 68] as "x"
  %1 = input : f32[1, 68, 28] as "w"
  %2 = input : f32[28] as "bias"
  %3 = contract [abc, acd -> abd] (%0, %1) : f32[1, 3, 28] @ "product"
  %4 = map [1, 3, 28] { max(add(a0, a1), 0.0:f32) } (%3, %2) : f32[1, 3, 28] @ "relu"
}"#,
    ),
    on(
        subgroups,
        portable(
            "matmul_thin_in_subgroups",
            "product thin",
            &[],
            r#"
graph (x: %0, w: %1, scale: %2) -> (y: %5) {
  %0 = input : f32[1, 96] as "x"
  %1 = input : u4[24, 96] as "w"
  %2 = input : f32[24, 6] as "scale"
  %3 = view [24, 96] reads [%0, %1/16] (%2) : f32[24, 96] @ "blocks"
  %4 = map [24, 96] { mul(sub(cast(f32, a0), 8.0:f32), a1) } (%1, %3) : f32[24, 96] @ "dequantize"
  %5 = contract [ab, cb -> ac] (%0, %4) : f32[1, 24] @ "product"
}"#,
        ),
    ),
    on(
        matrix_units,
        portable(
            "matmul_cooperative",
            "product cooperative",
            &[],
            r#"
graph (x: %0, w: %1, bias: %2) -> (y: %4) {
  %0 = input : f16[1, 40, 200] as "x"
  %1 = input : f16[1, 200, 72] as "w"
  %2 = input : f16[72] as "bias"
  %3 = contract [abc, acd -> abd] (%0, %1) : f16[1, 40, 72] @ "product"
  %4 = map [1, 40, 72] { max(add(a0, a1), 0.0:f16) } (%3, %2) : f16[1, 40, 72] @ "relu"
}"#,
        ),
    ),
    portable(
        "attention",
        "attention tiled",
        &[("s", 11), ("t", 37)],
        r#"
graph (q: %0, k: %1, v: %2, mask: %3) -> (y: %4) {
  %0 = input : f32[3, s, 6] as "q"
  %1 = input : f32[3, t, 6] as "k"
  %2 = input : f32[3, t, 5] as "v"
  %3 = input : f32[s, t] as "mask"
  %4 = attention scale 0.25 (%0, %1, %2, %3) : f32[3, s, 5] @ "attention"
}"#,
    ),
    portable(
        "attention_decode",
        "attention decode",
        &[("t", 47)],
        r#"
graph (q: %0, k: %1, v: %2, mask: %3) -> (y: %4) {
  %0 = input : f32[3, 1, 7] as "q"
  %1 = input : f32[3, t, 7] as "k"
  %2 = input : f32[3, t, 13] as "v"
  %3 = input : f32[1, t] as "mask"
  %4 = attention scale 0.25 (%0, %1, %2, %3) : f32[3, 1, 13] @ "attention"
}"#,
    ),
    on(
        subgroups,
        portable(
            "attention_streamed",
            "attention streamed",
            &[("t", 47)],
            r#"
graph (q: %0, k: %1, v: %2, mask: %3) -> (y: %6) {
  %0 = input : f32[6, 1, 16] as "q"
  %1 = input : f32[2, t, 16] as "k"
  %2 = input : f32[2, t, 16] as "v"
  %3 = input : f32[1, t] as "mask"
  %4 = view [6, t, 16] reads [%0/3, %1, %2] (%1) : f32[6, t, 16]
  %5 = view [6, t, 16] reads [%0/3, %1, %2] (%2) : f32[6, t, 16]
  %6 = attention scale 0.25 (%0, %4, %5, %3) : f32[6, 1, 16] @ "attention"
}"#,
        ),
    ),
    on(
        subgroups_and_halves,
        portable(
            "attention_streamed_halves",
            "attention streamed",
            &[("t", 47)],
            r#"
graph (q: %0, k: %1, v: %2) -> (y: %3) {
  %0 = input : f16[3, 2, 32] as "q"
  %1 = input : f16[3, t, 32] as "k"
  %2 = input : f16[3, t, 16] as "v"
  %3 = attention scale 0.25 (%0, %1, %2) : f16[3, 2, 16] @ "attention"
}"#,
        ),
    ),
    on(
        matrix_units,
        portable(
            "attention_cooperative",
            "attention cooperative",
            &[("s", 41), ("t", 71)],
            r#"
graph (q: %0, k: %1, v: %2) -> (y: %3) {
  %0 = input : f16[3, s, 32] as "q"
  %1 = input : f16[3, t, 32] as "k"
  %2 = input : f16[3, t, 48] as "v"
  %3 = attention scale 0.25 (%0, %1, %2) : f16[3, s, 48] @ "attention"
}"#,
        ),
    ),
];

const PRODUCT: &str = r#"
graph (x: %0, w: %1, bias: %2) -> (y: %4) {
  %0 = input : f32[b, m, k] as "x"
  %1 = input : f32[b, k, n] as "w"
  %2 = input : f32[n] as "bias"
  %3 = contract [abc, acd -> abd] (%0, %1) : f32[b, m, n] @ "product"
  %4 = map [b, m, n] { max(add(a0, a1), 0.0:f32) } (%3, %2) : f32[b, m, n] @ "relu"
}"#;

/// Values for the inputs of a graph: floats of variance 1, integers that may be negative.
fn inputs(graph: &Graph, sizes: &[(&str, i64)]) -> BTreeMap<String, Tensor> {
    let size = |s: &str| sizes.iter().find(|(n, _)| *n == s).map(|(_, v)| *v);
    let values = graph.inputs.iter().map(|i| {
        let ty = graph.ty(i.value);
        let shape = ty.shape.iter().map(|d| d.eval_syms(&size).unwrap() as usize).collect();
        let mut rng = Rng::new(1, &i.name);
        let tensor = Tensor::generate(ty.dtype, shape, |_| match ty.dtype {
            d if d.class() == Class::Float => Scalar::from_f64(d, f64::from(rng.unit_variance())),
            DType::U64 => Scalar::from_i64(DType::U64, (rng.bits() >> 1) as i64),
            d if d.class() == Class::Int => Scalar::from_i64(d, (rng.bits() % 37) as i64 - 12),
            d => Scalar::from_i64(d, (rng.bits() % 16) as i64),
        });
        (i.name.to_string(), tensor)
    });
    values.collect()
}

/// Compiles a case, executes it on each adapter if it supports that, and returns the program.
pub fn program(case: &Family, gpus: &[Gpu]) -> Result<Program, Failure> {
    let wrong = |e: String| Failure::error(e);
    let graph = text::parse(case.graph).map_err(|e| wrong(e.to_string()))?;
    verify::verify(&graph).map_err(|e| wrong(e.join("\n")))?;
    let mut options = Options::default();
    if let Some(adjust) = case.options {
        adjust(&mut options);
    }
    let mut kernels = fuse(&graph, &options)?;
    if options.activations == Activations::Q8 {
        integers::allow(&mut kernels);
    }
    let mut all = schedule(kernels, &options)?;
    let cx = Context { graph: &all.graph, device: &options.profile, expect: &options.expect };
    let mut found = false;
    for (k, s) in all.graph.kernels.iter().zip(&mut all.schedules) {
        let list = candidates(k, &cx).map_err(|e| wrong(e.to_string()))?;
        if let Some(wanted) = list.iter().find(|s| s.to_string().starts_with(case.schedule)) {
            (*s, found) = (wanted.clone(), true);
        }
    }
    if !found {
        let kernels = all.graph.kernels.iter().map(wgfc_compiler::schedule::table::title);
        let given: Vec<String> =
            all.schedules.iter().zip(kernels).map(|(s, k)| format!("{s} for {k}")).collect();
        return Err(wrong(format!("no schedule begins so; chosen are {}", given.join("; "))));
    }
    let program = assemble(&graph, &all, &options, Stats::default())?;
    if !options.profile.cooperative_matrix && !gpus.is_empty() {
        let given = inputs(&graph, case.sizes);
        let want = evaluate(&graph, &given).map_err(|e| wrong(e.to_string()))?;
        for gpu in gpus {
            agree(&run_session(&mut session(gpu, &program)?, &given)?, &want, gpu)?;
        }
    }
    Ok(program)
}
