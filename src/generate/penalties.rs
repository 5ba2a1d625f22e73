//! Changes of the logits of single tokens: penalties for those that occur already, and biases.
//!
//! A program that chooses a token takes them as a list of `(token, factor, amount)`, one for each token whose logit `x`
//! changes: to `x · factor + amount` if `x` is negative, otherwise to `x / factor + amount`.

use super::Sampling;
use super::choose::Entry;
use crate::{Error, Tensor};
use std::collections::HashMap;
use wgfc_ir::DType;

/// The length of the shortest list that a program is given. Longer ones have twice, four times … as many entries, so that few
/// lengths occur.
const SHORTEST: usize = 16;

/// The changes of one sequence.
pub struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    entries: Vec<Entry>,
    /// The place of each token among the entries.
    places: HashMap<i64, usize>,
    /// How often the token of each entry has been generated, and its bias.
    counts: Vec<(u32, f32)>,
}

impl Penalties {
    /// The changes at the beginning of a sequence; `None` if there can be none.
    pub fn new(how: &Sampling) -> Option<Penalties> {
        if !how.adjusts() {
            return None;
        }
        let mut made = Penalties {
            repetition: how.repetition_penalty,
            presence: how.presence_penalty,
            frequency: how.frequency_penalty,
            entries: vec![],
            places: HashMap::new(),
            counts: vec![],
        };
        for (token, bias) in &how.logit_bias {
            let (entry, (_, own)) = made.entry(*token);
            *own += bias;
            entry.amount = *own;
        }
        Some(made)
    }

    fn entry(&mut self, token: i64) -> (&mut Entry, &mut (u32, f32)) {
        let place = *self.places.entry(token).or_insert_with(|| {
            self.entries.push(Entry { token, factor: 1.0, amount: 0.0 });
            self.counts.push((0, 0.0));
            self.entries.len() - 1
        });
        (&mut self.entries[place], &mut self.counts[place])
    }

    /// Takes into account that these tokens precede those of the request. Negative ones are not known and are ignored.
    pub fn follow(&mut self, tokens: &[i64]) {
        let repetition = self.repetition;
        if repetition != 1.0 {
            tokens.iter().filter(|t| **t >= 0).for_each(|t| self.entry(*t).0.factor = repetition);
        }
    }

    /// Takes into account that this token has been generated.
    pub fn add(&mut self, token: i64) {
        let (repetition, presence, frequency) = (self.repetition, self.presence, self.frequency);
        if repetition == 1.0 && presence == 0.0 && frequency == 0.0 {
            return;
        }
        let (entry, (count, bias)) = self.entry(token);
        *count = count.saturating_add(1);
        entry.factor = repetition;
        entry.amount = *bias - presence - frequency * *count as f32;
    }

    /// The list.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The lists of several rows as the input of a program: i32 `[rows, n, 3]`, where factors and amounts are the bits of f32. All have
/// the length of the longest; the entries beyond a row's own have tokens outside the vocabulary and change nothing.
pub fn tensor(rows: &[&[Entry]]) -> Result<Tensor, Error> {
    let longest = rows.iter().map(|r| r.len()).max().unwrap_or(0);
    let length = longest.max(SHORTEST).next_power_of_two();
    let mut bytes = Vec::with_capacity(rows.len() * length * 12);
    for row in rows {
        for i in 0..length {
            let none = Entry { token: i64::from(i32::MAX), factor: 1.0, amount: 0.0 };
            let entry = row.get(i).unwrap_or(&none);
            let token = i32::try_from(entry.token).unwrap_or(i32::MAX);
            bytes.extend(token.to_le_bytes());
            bytes.extend(entry.factor.to_le_bytes());
            bytes.extend(entry.amount.to_le_bytes());
        }
    }
    Tensor::new(DType::I32, vec![rows.len(), length, 3], bytes).map_err(Error::Internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_follow_the_tokens() {
        let how = Sampling {
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(7, 3.0), (2, -1.0), (7, 1.0)],
            ..Sampling::default()
        };
        let mut all = Penalties::new(&how).unwrap();
        all.follow(&[-1, 9, 2, 9]);
        [5, 2, 5, 5].into_iter().for_each(|t| all.add(t));
        let entry = |token, factor, amount| Entry { token, factor, amount };
        let want = [entry(7, 1.0, 4.0), entry(2, 1.5, -1.75), entry(9, 1.5, 0.0), entry(5, 1.5, -1.25)];
        assert_eq!(all.entries(), want);
        assert!(Penalties::new(&Sampling::default()).is_none());
        let list = tensor(&[all.entries(), &[]]).unwrap();
        assert_eq!(list.shape, [2, 16, 3]);
    }
}
