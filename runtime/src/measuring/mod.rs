//! Measurements of devices and of programs on them. They block and read the host's clock, which only native programs can.

pub mod measure;
pub mod overhead;
pub mod primitives;
mod slope;
pub mod together;
pub mod transfers;
pub mod trial;
