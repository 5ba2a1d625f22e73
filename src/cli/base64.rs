//! Base64 of RFC 4648, with padding.

/// The text for these bytes.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
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
