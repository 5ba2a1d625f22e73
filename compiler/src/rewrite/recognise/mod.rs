//! Raised operators that no pattern of fixed shape finds: matchers along the flow of data.

pub mod attention;
pub mod nan_guard;
mod scores;
mod simple;
mod unseen;
