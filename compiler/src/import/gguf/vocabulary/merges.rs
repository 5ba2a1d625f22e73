//! Merges of a BPE vocabulary: which two tokens become one, in the order of their ranks.

use super::shown;
use std::cmp::Ordering;
use std::collections::HashMap;

/// The merges that a file lists: two tokens each, separated by a space.
pub fn listed<'m>(merges: &'m [String], ids: &HashMap<&str, u32>) -> Result<Vec<(&'m str, &'m str)>, String> {
    let mut joined = String::new();
    let pair = |(i, merge): (usize, &'m String)| {
        let wrong = |why: String| format!("the merge {i}, {}, {why}", shown(merge));
        // A space at the beginning belongs to the first token.
        let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
        let (space, _) = space.ok_or_else(|| wrong("is not of two tokens".into()))?;
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for part in [left, right, &joined] {
            if !ids.contains_key(part) {
                return Err(wrong(format!("needs the token {}, which the vocabulary lacks", shown(part))));
            }
        }
        Ok((left, right))
    };
    merges.iter().enumerate().map(pair).collect()
}

/// The most bytes of text that derived merges may have, as a multiple of the size of the vocabulary, and what a small one
/// may have beside. A vocabulary of 256,000 tokens has twice its size.
const DERIVED: (usize, usize) = (16, 1 << 20);

/// The merges of a SentencePiece vocabulary, whose ranks are the scores of the tokens that they make. Tokens of which `part`
/// is false neither are merged nor made. Equal scores are ordered by those of the two parts, and then as the tokens are.
pub fn derived(
    tokens: &[String],
    scores: &[f32],
    part: impl Fn(usize) -> bool,
) -> Result<Vec<(u32, u32)>, String> {
    let used: Vec<u32> =
        (0..tokens.len()).filter(|i| part(*i) && !tokens[*i].is_empty()).map(|i| i as u32).collect();
    let bytes = |i: u32| tokens[i as usize].as_bytes();
    let shorter = |is: fn(&[u8], &[u8]) -> bool, order: fn(&[u8], &[u8]) -> Ordering| {
        nearest(tokens, used.clone(), order, is)
    };
    let prefixes = shorter(|a, b| b.starts_with(a), Ord::cmp);
    let suffixes = shorter(|a, b| b.ends_with(a), |a, b| a.iter().rev().cmp(b.iter().rev()));

    let size: usize = used.iter().map(|i| bytes(*i).len() + 16).sum();
    let most = size.saturating_mul(DERIVED.0).saturating_add(DERIVED.1);
    let mut made = 0usize;
    let mut merges: Vec<(f32, u32, u32)> = vec![];
    let (mut lefts, mut rights) = (vec![], vec![]);
    for token in used {
        chain(&prefixes, token, &mut lefts);
        chain(&suffixes, token, &mut rights);
        let (length, first) = (bytes(token).len(), merges.len());
        // The shortest left part comes first, with the longest right one.
        let mut right = rights.iter().copied().peekable();
        for left in lefts.iter().rev().copied() {
            let rest = length - bytes(left).len();
            while right.next_if(|r| bytes(*r).len() > rest).is_some() {}
            if let Some(right) = right.next_if(|r| bytes(*r).len() == rest) {
                merges.push((scores[token as usize], left, right));
                made += length + 16;
            }
        }
        if made > most {
            return Err(format!("the merges of its tokens take more than {most} bytes"));
        }
        let score = |i: u32| scores[i as usize];
        merges[first..].sort_by(|a, b| falling(score(a.1), score(b.1)).then(falling(score(a.2), score(b.2))));
    }
    merges.sort_by(|a, b| falling(a.0, b.0));
    Ok(merges.into_iter().map(|(_, left, right)| (left, right)).collect())
}

/// The order from the greatest number to the least. Scores are finite, so all of them compare.
fn falling(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// For each token the longest other one of `used` that `is` a part of it; [`NONE`] if there is none. In the given order all
/// tokens that have a part follow it directly.
fn nearest(
    tokens: &[String],
    mut used: Vec<u32>,
    order: fn(&[u8], &[u8]) -> Ordering,
    is: fn(&[u8], &[u8]) -> bool,
) -> Vec<u32> {
    let bytes = |i: u32| tokens[i as usize].as_bytes();
    used.sort_unstable_by(|a, b| order(bytes(*a), bytes(*b)));
    let mut found = vec![NONE; tokens.len()];
    let mut open: Vec<u32> = vec![];
    for token in used {
        while open.pop_if(|o| !is(bytes(*o), bytes(token))).is_some() {}
        found[token as usize] = open.last().copied().unwrap_or(NONE);
        open.push(token);
    }
    found
}

/// No token.
const NONE: u32 = u32::MAX;

/// The parts of a token from the longest to the shortest.
fn chain(shorter: &[u32], token: u32, parts: &mut Vec<u32>) {
    parts.clear();
    parts.extend(std::iter::successors(Some(shorter[token as usize]), |i| shorter.get(*i as usize).copied()));
    parts.retain(|i| *i != NONE);
}
