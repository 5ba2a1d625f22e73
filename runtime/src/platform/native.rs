//! The platforms that have threads and a clock, where wgpu runs in the process.

mod blocking;
