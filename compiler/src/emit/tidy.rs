//! The last touch on a kernel's text: what templates write generally and means nothing here goes.
//!
//! Templates are written for any extent; where one is 1 or an offset 0, their arithmetic on integers has terms that change
//! nothing (`base + 0`, `x / 1`, `(tx) ^ 0`). [`tidy`] removes these terms, parentheses around single names, and empty
//! lines that empty slots leave. Literals of floats have a point or a suffix and are left alone.

/// The text without what changes nothing.
pub fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    let mut after_blank = true;
    while let Some(line) = lines.next() {
        let blank = line.trim().is_empty();
        let last = lines.peek().is_none_or(|l| l.trim_start().starts_with('}') || l.trim().is_empty());
        if !blank || (!after_blank && !last) {
            out.push_str(&simpler(line.trim_end()));
            out.push('\n');
            after_blank = blank;
        }
    }
    out
}

/// A line without terms that change nothing.
fn simpler(line: &str) -> String {
    let (code, comment) = line.split_once("//").map_or((line, None), |(c, r)| (c, Some(r)));
    let mut tokens = tokens(code);
    while let Some((range, with)) = (0..tokens.len()).find_map(|i| step(&tokens, i)) {
        tokens.splice(range, with);
    }
    let mut out = tokens.concat();
    if let Some(c) = comment {
        out.push_str("//");
        out.push_str(c);
    }
    out
}

/// Words (names and numbers), operators and runs of spaces.
fn tokens(code: &str) -> Vec<&str> {
    const LONG: [&str; 12] = ["<<=", ">>=", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "+="];
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut out = vec![];
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let same = |f: &dyn Fn(char) -> bool| rest.find(|c| !f(c)).unwrap_or(rest.len());
        let len = if word(c) {
            same(&word)
        } else if c == ' ' {
            same(&|c| c == ' ')
        } else {
            LONG.iter().find(|l| rest.starts_with(**l)).map_or(c.len_utf8(), |l| l.len())
        };
        let (token, behind) = rest.split_at(len);
        out.push(token);
        rest = behind;
    }
    out
}

/// The tokens that can be replaced at token `i`, and their replacement.
fn step<'t>(tokens: &[&'t str], i: usize) -> Option<(std::ops::Range<usize>, Vec<&'t str>)> {
    let at = |j: usize| tokens.get(j).copied().unwrap_or_default();
    let before = || if i == 0 { "" } else { at(i - 1) };
    let name = |t: &str| {
        t.starts_with(|c: char| c.is_alphanumeric() || c == '_') && !["if", "return", "else"].contains(&t)
    };
    // Behind a term, all that binds no tighter than a sum; behind a factor, than a product.
    let ends = |t: &str, j: usize| {
        let t = if t == " " { at(j + 1) } else { t };
        matches!(
            t,
            ")" | "]"
                | ","
                | ";"
                | "+"
                | "-"
                | "<"
                | ">"
                | "<="
                | ">="
                | "=="
                | "!="
                | "{"
                | ""
                | "&&"
                | "||"
        )
    };
    let begins = |t: &str| matches!(t, "(" | "[");
    // Nothing that binds as tight as a product stands before token `j`.
    let first = |j: usize| {
        let before = |k: usize| if j >= k { at(j - k) } else { "" };
        let opens = |t: &str| {
            matches!(t, "+" | "-" | "<" | ">" | "<=" | ">=" | "==" | "!=" | "&&" | "||" | "=" | ",")
        };
        begins(before(1)) || before(1) == " " && j >= 2 && opens(before(2))
    };
    match at(i) {
        // ((...))
        "(" if at(i + 1) == "(" => {
            let mut depth = 0;
            let close = tokens.iter().skip(i + 1).position(|t| {
                depth += i32::from(*t == "(") - i32::from(*t == ")");
                depth == 0
            })?;
            let close = i + 1 + close;
            (at(close + 1) == ")").then(|| (i + 1..close + 1, tokens[i + 2..close].to_vec()))
        }
        // (name) that is neither a call nor a condition.
        "(" if name(at(i + 1)) && at(i + 2) == ")" => {
            let called = before().ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '>'));
            let condition = before() == " " && i >= 2 && ["if", "while", "switch"].contains(&at(i - 2));
            (!called && !condition).then(|| (i..i + 3, vec![at(i + 1)]))
        }
        // ... + 0, ... * 1, ... / 1
        " " if at(i + 2) == " " && at(i + 1) == "+" && at(i + 3) == "0" && ends(at(i + 4), i + 4) => {
            Some((i..i + 4, vec![]))
        }
        " " if at(i + 2) == " " && matches!(at(i + 1), "*" | "/") && at(i + 3) == "1" => {
            Some((i..i + 4, vec![]))
        }
        // ... ^ 0)
        " " if at(i + 2) == " " && at(i + 1) == "^" && at(i + 3) == "0" && matches!(at(i + 4), ")" | "]") => {
            Some((i..i + 4, vec![]))
        }
        // (0 + ..., (1 * ..., [0 + ...
        "0" if begins(before()) && at(i + 1) == " " && at(i + 2) == "+" && at(i + 3) == " " => {
            Some((i..i + 4, vec![]))
        }
        "1" if first(i) && at(i + 1) == " " && at(i + 2) == "*" && at(i + 3) == " " => {
            Some((i..i + 4, vec![]))
        }
        // (0 ^ ...
        "0" if begins(before()) && at(i + 1) == " " && at(i + 2) == "^" && at(i + 3) == " " => {
            Some((i..i + 4, vec![]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_change_nothing_go() {
        for (text, want) in [
            ("let x = tile[base + 0 + ty];", "let x = tile[base + ty];"),
            ("let x = tile[base + 32 + ((tx) ^ 0)];", "let x = tile[base + 32 + tx];"),
            ("if (block >= (1 * row_tiles * col_tiles)) {", "if (block >= (row_tiles * col_tiles)) {"),
            (
                "let y = y_line(batch, min(col0 + (t / 8) * 4 + 0, cols - 1));",
                "let y = y_line(batch, min(col0 + (t / 8) * 4, cols - 1));",
            ),
            ("let row = (0 + line / 8) * 8;", "let row = (line / 8) * 8;"),
            ("let a = (x / 1) & 7;", "let a = x & 7;"),
            ("let k = n * 1;", "let k = n;"),
            ("let k = tile[x * 8 + (0 ^ (x & 7))];", "let k = tile[x * 8 + (x & 7)];"),
            ("if (block >= 1 * row_tiles * col_tiles) {", "if (block >= row_tiles * col_tiles) {"),
            ("let k = n - 1 * m;", "let k = n - m;"),
            ("let k = f((a + b));", "let k = f(a + b);"),
            ("let k = ((a + b) * ((c)));", "let k = ((a + b) * c);"),
        ] {
            assert_eq!(simpler(text), want);
        }
    }

    #[test]
    fn what_counts_stays() {
        for text in [
            "let x = a + 0.0;",
            "let x = a + 0u;",
            "let x = a * 1.0f;",
            "let x = a * 10;",
            "let x = a + 0 * b;",
            "let x = a - 0;",
            "let x = b % 1 * a;",
            "let x = (a + b) * (c + d);",
            "let x = (a & (b + c));",
            "let x = f(a);",
            "let x = vec2<f32>(a);",
            "if (a) {",
            "    return a; // a + 0",
            "let x = a / 1u;",
            "let x = -0 + a;",
            "acc0 += x0.x * y0_0;",
            "for (var s = 1; s < 1; s++) {",
        ] {
            assert_eq!(simpler(text), text);
        }
    }
}
