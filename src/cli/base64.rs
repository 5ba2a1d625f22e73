//! Base64 of RFC 4648, with padding.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text for these bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word = (0..3).fold(0, |w, i| w << 8 | usize::from(part.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = char::from(DIGITS[word >> (18 - 6 * i) & 63]);
            text.push(if i <= part.len() { digit } else { '=' });
        }
    }
    text
}

/// The bytes of a text, whose padding may be absent; `None` if it is no such text.
#[cfg(feature = "api")]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let value = |digit: &u8| match digit {
        b'A'..=b'Z' => Some(u32::from(digit - b'A')),
        b'a'..=b'z' => Some(u32::from(digit - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(digit - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.chunks(4) {
        let word = four.iter().try_fold(0, |word, digit| Some(word << 6 | value(digit)?))?;
        let word = word << (6 * (4 - four.len()));
        bytes.extend_from_slice(&word.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

#[cfg(all(test, feature = "api"))]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_to_what_they_were_made_of() {
        for n in 0..20u8 {
            let bytes: Vec<u8> = (0..n).map(|i| i.wrapping_mul(83).wrapping_add(n)).collect();
            let text = encode(&bytes);
            assert_eq!(decode(&text), Some(bytes.clone()));
            assert_eq!(decode(text.trim_end_matches('=')), Some(bytes));
        }
        for wrong in ["A", "AAA-", "AA A", "A===", "ÄÄ"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
