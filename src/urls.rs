//! Percent-encoding of file names in URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All characters except those that RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A file name as one segment of a URL's path.
pub fn escaped(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// The decoded text of one or several segments; `None` if a `%` is not followed by two hexadecimal digits, or the result is
/// not UTF-8.
pub fn unescaped(part: &str) -> Option<String> {
    let digits = |s: &str| s.len() >= 2 && s.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    let whole = part.split('%').skip(1).all(digits);
    whole.then(|| percent_decode_str(part).decode_utf8().ok().map(|s| s.into_owned())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_through_addresses_and_back() {
        for name in ["model.onnx", "my model #1 (ü).onnx", "100%", "a-b_c~d", ""] {
            assert_eq!(unescaped(&escaped(name)).as_deref(), Some(name));
        }
        assert_eq!(escaped("50% of/#1?ö"), "50%25%20of%2F%231%3F%C3%B6");
        for wrong in ["%", "%4", "%zz", "%ff", "a%2", "%+1"] {
            assert_eq!(unescaped(wrong), None, "{wrong}");
        }
    }
}
