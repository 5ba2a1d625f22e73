//! Measurements of devices and of programs on them. They wait on the host and read its clock, as only native programs can.

pub mod measure;
pub mod overhead;
pub mod primitives;
pub mod together;
pub mod transfers;
pub mod trial;
