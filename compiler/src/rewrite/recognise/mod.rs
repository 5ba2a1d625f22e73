//! Recognition of raised operators that no pattern of fixed shape finds: matchers that follow the data flow.

pub mod attention;
pub mod nan_guard;
mod scores;
mod simple;
mod unseen;
