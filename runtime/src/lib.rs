//! wgfc
