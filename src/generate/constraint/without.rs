//! The substitute for constraints in a build without the feature `constraints`: there are none.

use crate::Error;
use std::sync::Arc;

/// The form of a description.
pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
}

/// Makes constraints; no value of this type exists.
pub enum Factory {}

/// A constraint; no value of this type exists.
pub enum Start {}

/// The state of a sequence; no value of this type exists.
pub enum Matching {}

impl Factory {
    /// Always fails.
    pub fn new(_: Vec<Vec<u8>>, _: &[i64]) -> Result<Factory, String> {
        Err("wgfc was built without the feature `constraints`".into())
    }
    /// A constraint.
    pub fn begin(this: &Arc<Factory>, _: Kind, _: String) -> Result<Start, String> {
        match **this {}
    }
}

impl Start {
    /// The state at the beginning of a sequence.
    pub fn begin(&self, _: &[i64], _: usize) -> Result<Matching, Error> {
        match *self {}
    }
}

impl Matching {
    /// Computes which tokens may follow.
    pub fn prepare(&mut self) -> Result<(), Error> {
        match *self {}
    }
    /// The tokens that may follow.
    pub fn mask(&self) -> &[u32] {
        match *self {}
    }
    /// Takes a token.
    pub fn add(&mut self, _: i64) -> Result<bool, Error> {
        match *self {}
    }
}
