//! Memory that reading a model or its data may take, beside the memory of its files.
//!
//! A small file can ask for much: by compressed records, by views that repeat elements, by structures that are larger in memory than
//! in the file. Every reader asks a [`Budget`] before it allocates, so that the sum is bounded and not each part alone.

use crate::Diagnostic;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that every model may take.
const LEAST: u64 = 256 << 20;
/// Bytes that each byte of the model's file allows besides.
const PER_BYTE: u64 = 16;
/// Bytes that a value of a JSON text takes once it is read, about.
const JSON_VALUE: u64 = 96;

/// Memory that the readers of one model share. Clones draw from the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Rc<Account>);

#[derive(Debug)]
struct Account {
    /// The limit that the user gives.
    limit: Option<u64>,
    taken: Cell<u64>,
    /// The files, in words.
    read: &'static str,
    /// Bytes of the files.
    files: Cell<u64>,
}

impl Budget {
    /// The budget of a model whose file has so many bytes: 256 MiB and 16 times the file, or the limit that the user gives.
    pub fn new(file: u64, limit: Option<u64>) -> Budget {
        Budget(Rc::new(Account { limit, taken: Cell::new(0), read: "this model", files: Cell::new(file) }))
    }

    /// The budget of files beside a model: inputs, checkpoints, tokenizers. Each is [added](Budget::add_file) when it is opened.
    pub fn of_data(limit: Option<u64>) -> Budget {
        Budget(Rc::new(Account { limit, taken: Cell::new(0), read: "files", files: Cell::new(0) }))
    }

    /// Adds a file of so many bytes, which allow for more.
    pub fn add_file(&self, bytes: u64) {
        self.0.files.set(self.0.files.get().saturating_add(bytes));
    }

    /// Takes what a text of JSON needs once it is read.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn take_json(&self, text: &[u8]) -> Result<(), Diagnostic> {
        let values = text.iter().filter(|b| matches!(b, b',' | b'{' | b'[')).count() as u64;
        let need = (text.len() as u64).saturating_add(values.saturating_mul(JSON_VALUE));
        self.take(need, format_args!("reading {} bytes of JSON", text.len()))
    }

    /// Takes so many bytes; `what` needs them, as in "unpacking `data/weight_0`".
    ///
    /// # Errors
    /// Where they exceed what is left; nothing is taken then.
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

/// Bytes in the largest unit of which there is at least one, rounded up so that it reads as a sufficient limit.
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
