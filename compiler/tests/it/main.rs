//! Tests of the kernels that the compiler makes of graphs, and of their results on every adapter.

mod attention;
mod dispatches;
mod draw;
mod emit_row;
mod emit_scalar;
mod fuse;
mod gpu;
mod layers;
mod maps;
mod products;
mod quotient;
mod rewrite;
mod rows;
#[path = "../filetests/run.rs"]
#[expect(dead_code, reason = "what runs on the first adapter only is for file tests")]
mod run;
mod schedules;
mod special;
mod states;
mod tiles;
mod timings;
mod tuning;
