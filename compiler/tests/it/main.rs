//! What the compiler makes of graphs, and its kernels on every adapter.

mod attention;
mod dispatches;
mod emit_row;
mod emit_scalar;
mod fuse;
mod gpu;
mod layers;
mod maps;
mod quotient;
mod rewrite;
mod special;
mod states;
mod tiles;
mod tuning;
