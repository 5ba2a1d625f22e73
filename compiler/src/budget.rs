//! The memory that reading a model or its data may take in addition to that of its files.
//!
//! A small file can require much memory: through compressed records, views that repeat elements, or structures that
//! are larger in memory than in the file. Every reader asks a [`Budget`] before it allocates, so that the sum is
//! bounded and not only each part.

use crate::Diagnostic;
use std::cell::Cell;
use std::rc::Rc;

/// The number of bytes that every model may take.
const LEAST: u64 = 256 << 20;
/// The number of further bytes that each byte of the model's file permits.
const PER_BYTE: u64 = 16;
/// The approximate number of bytes of a parsed JSON value.
const JSON_VALUE: u64 = 96;

/// The memory that all readers of a model share. Clones draw from the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Rc<Account>);

#[derive(Debug)]
struct Account {
    /// The limit given by the user.
    limit: Option<u64>,
    taken: Cell<u64>,
    /// The files, in words for messages.
    read: &'static str,
    /// The total size of the files in bytes.
    files: Cell<u64>,
}

impl Budget {
    /// The budget of a model with a file of `file` bytes: 256 MiB plus 16 times the file, or the limit given by the
    /// user.
    pub fn new(file: u64, limit: Option<u64>) -> Budget {
        Budget(Rc::new(Account { limit, taken: Cell::new(0), read: "this model", files: Cell::new(file) }))
    }

    /// The budget of files beside a model: inputs, checkpoints, tokenizers. Each is [added](Budget::add_file) when it
    /// is opened.
    pub fn of_data(limit: Option<u64>) -> Budget {
        Budget(Rc::new(Account { limit, taken: Cell::new(0), read: "files", files: Cell::new(0) }))
    }

    /// Adds a file of `bytes` bytes, which raises the limit.
    pub fn add_file(&self, bytes: u64) {
        self.0.files.set(self.0.files.get().saturating_add(bytes));
    }

    /// Takes the memory of a parsed JSON text.
    ///
    /// # Errors
    /// Like [`Budget::take`].
    pub fn take_json(&self, text: &[u8]) -> Result<(), Diagnostic> {
        let values = text.iter().filter(|b| matches!(b, b',' | b'{' | b'[')).count() as u64;
        let need = (text.len() as u64).saturating_add(values.saturating_mul(JSON_VALUE));
        self.take(need, format_args!("reading {} bytes of JSON", text.len()))
    }

    /// Takes `bytes` bytes; `what` describes their use in the error, as in "unpacking `data/weight_0`".
    ///
    /// # Errors
    /// If they exceed the remaining budget; then nothing is taken.
    pub fn take(&self, bytes: u64, what: impl std::fmt::Display) -> Result<(), Diagnostic> {
        let Account { limit, taken, read, files } = &*self.0;
        let allowed = limit.unwrap_or(LEAST.saturating_add(files.get().saturating_mul(PER_BYTE)));
        let sum = taken.get().saturating_add(bytes);
        if sum <= allowed {
            taken.set(sum);
            return Ok(());
        }
        let before = match taken.get() < bytes / 10 {
            true => String::new(),
            false => format!(", {} with what is read already", size(sum)),
        };
        let message = format!(
            "{what} would take {} of memory{before}; reading {read} of {} may take {}",
            size(bytes),
            size(files.get()),
            size(allowed)
        );
        let enough = size(sum.saturating_add(sum / 4)).replace(' ', "");
        Err(Diagnostic::model(message).help(format!(
            "if the file is to be trusted, raise the limit: --memory-limit {enough} (`Options::memory_limit`)"
        )))
    }
}

/// The number of bytes in the largest unit of which there is at least one, rounded up so that it can be used as a
/// sufficient limit.
fn size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..10_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{} GB", bytes.div_ceil(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_what_a_file_allows() {
        let budget = Budget::new(1 << 20, None);
        let other = budget.clone();
        assert!(budget.take(200 << 20, "one part").is_ok());
        assert!(other.take(72 << 20, "another").is_ok());
        let e = budget.take(1, "a third").unwrap_err();
        assert_eq!(
            e.message,
            "a third would take 1 bytes of memory, 286 MB with what is read already; reading this model of 2 MB may take 286 MB"
        );
        assert!(e.help.unwrap().contains("--memory-limit 357MB"));
        budget.add_file(1);
        assert!(budget.take(16, "what another file allows").is_ok() && budget.take(1, "more").is_err());
        assert!(Budget::new(0, Some(1000)).take_json(b"[1, 2, {}]").is_ok());
        assert!(Budget::new(0, Some(300)).take_json(b"[1, 2, {}]").is_err());
        assert!(Budget::new(10, Some(4)).take(5, "x").is_err());
        assert!(Budget::new(u64::MAX, None).take(u64::MAX, "x").is_ok());
    }
}
