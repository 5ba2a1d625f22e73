//! The substitute for templates in a build without the feature `chat`: there are none.

use super::{ChatOptions, Message};
use crate::Error;

/// A template; no value of this type exists.
#[derive(Clone, Debug)]
pub enum Template {}

impl Template {
    /// Always fails.
    pub fn parse(_: &str, _: Vec<(String, String)>) -> Result<Template, Error> {
        let message = "a chat template needs the feature `chat`, without which wgfc was built";
        Err(Error::usage(message, "give the prompt as text or token ids, or build wgfc with the feature"))
    }
    /// The prompt for messages.
    pub fn render(&self, _: &[Message], _: &ChatOptions) -> Result<String, Error> {
        match *self {}
    }
}
