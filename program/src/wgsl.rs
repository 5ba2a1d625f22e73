//! Directives in the text of kernels, and extensions that naga has by other names.

use std::borrow::Cow;

/// The feature of devices whose kernels may use matrix units with wgpu's extension.
pub const WGPU_MATRICES: &str = "wgpu-cooperative-matrix";
/// The feature of devices whose kernels may use matrix units with Chrome's extension.
pub const CHROMIUM_MATRICES: &str = "chromium-experimental-subgroup-matrix";

/// The WebGPU features that kernels can need, and the WGSL extension that each enables. The last two are specific to
/// wgpu and to Chrome.
const EXTENSIONS: [(&str, &str); 4] = [
    ("shader-f16", "f16"),
    ("subgroups", "subgroups"),
    (WGPU_MATRICES, "wgpu_cooperative_matrix"),
    (CHROMIUM_MATRICES, "chromium_experimental_subgroup_matrix"),
];

/// Names in Chrome's extension for matrices, and those in wgpu's.
const MATRIX_NAMES: [(&str, &str); 5] = [
    ("chromium_experimental_subgroup_matrix", "wgpu_cooperative_matrix"),
    ("subgroup_matrix_left<f16, 16, 16>", "coop_mat16x16<f16, A>"),
    ("subgroup_matrix_right<f16, 16, 16>", "coop_mat16x16<f16, B>"),
    ("subgroup_matrix_result<f32, 16, 16>", "coop_mat16x16<f32, C>"),
    ("subgroupMatrixMultiplyAccumulate", "coopMultiplyAdd"),
];

/// The text preceded by an `enable` directive for each of the features.
///
/// ```
/// use wgfc_program::wgsl::{enabled, for_naga};
/// let text = enabled("fn main() {}", &["subgroups".to_owned()]);
/// assert_eq!(text, "enable subgroups;\nfn main() {}");
/// assert!(!for_naga(&text).contains("enable"));
/// ```
pub fn enabled(text: &str, features: &[String]) -> String {
    let names = EXTENSIONS.iter().filter(|e| features.iter().any(|f| f == e.0));
    names.map(|e| format!("enable {};\n", e.1)).chain([text.to_owned()]).collect()
}

/// The text for naga, which supports subgroups but not their directive: it is replaced with spaces. Matrices of
/// Chrome's extension are written as in wgpu's, the one that naga supports.
pub fn for_naga(text: &str) -> Cow<'_, str> {
    let (mut out, mut matrices) = (Cow::from(text), false);
    for (range, name) in directives(text) {
        if name == "subgroups" {
            let blanks = " ".repeat(range.len());
            out.to_mut().replace_range(range, &blanks);
        }
        matrices |= name == MATRIX_NAMES[0].0;
    }
    if matrices { with_cooperative_matrices(&out).into() } else { out }
}

/// The text with Chrome's matrices written as wgpu's: `subgroupMatrixLoad<T, col_major>(&array, place, pitch)` as
/// `coopLoad<T>(&array[place], pitch)`, with `row_major` as `coopLoadT`, and `subgroupMatrixStore` likewise. Calls of
/// other forms stay as they are.
fn with_cooperative_matrices(text: &str) -> String {
    let text = MATRIX_NAMES.iter().fold(text.to_owned(), |t, (own, naga)| t.replace(own, naga));
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find("subgroupMatrix") {
        let (before, call) = rest.split_at(at);
        out.push_str(before);
        match cooperative_call(call) {
            Some((written, behind)) => {
                out.push_str(&written);
                rest = behind;
            }
            None => {
                let name = "subgroupMatrix".len();
                out.push_str(&call[..name]);
                rest = &call[name..];
            }
        }
    }
    out + rest
}

/// A call of `subgroupMatrixLoad` or `subgroupMatrixStore` as one of wgpu's extension, and the text behind it.
fn cooperative_call(text: &str) -> Option<(String, &str)> {
    let (name, behind) = text.split_once('(')?;
    let (arguments, behind) = arguments(behind)?;
    let (name, kinds) = name.strip_suffix('>')?.split_once('<')?;
    let (kind, order) = kinds.rsplit_once(", ").map_or((None, kinds), |(kind, order)| (Some(kind), order));
    let transposed = match order {
        "col_major" => "",
        "row_major" => "T",
        _ => return None,
    };
    let written = match (name, kind, &arguments[..]) {
        ("subgroupMatrixLoad", Some(kind), [array, place, pitch]) => {
            format!("coopLoad{transposed}<{kind}>({array}[{place}], {pitch})")
        }
        ("subgroupMatrixStore", None, [array, place, matrix, pitch]) => {
            format!("coopStore{transposed}({matrix}, {array}[{place}], {pitch})")
        }
        _ => return None,
    };
    Some((written, behind))
}

/// The arguments of a call and the text behind its closing parenthesis.
fn arguments(text: &str) -> Option<(Vec<&str>, &str)> {
    let (mut list, mut from, mut depth) = (vec![], 0, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                list.push(text[from..at].trim());
                return Some((list, &text[at + 1..]));
            }
            ')' | ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                list.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    None
}

/// The ranges of lines that enable one extension, with its name. Only comments may precede directives.
fn directives(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        let code = line.trim_end();
        let name = code.trim_start().strip_prefix("enable ")?.strip_suffix(';')?.trim();
        Some((start..start + code.len(), name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_added_and_blanked() {
        let features = ["shader-f16".to_owned(), "subgroups".into()];
        let text = enabled("// A kernel.\nfn main() {}\n", &features);
        assert_eq!(text, "enable f16;\nenable subgroups;\n// A kernel.\nfn main() {}\n");
        assert_eq!(for_naga(&text), "enable f16;\n                 \n// A kernel.\nfn main() {}\n");
        assert_eq!(for_naga("fn main() {}"), "fn main() {}");
    }

    #[test]
    fn matrices_of_chrome_are_written_as_wgpus() {
        let features = ["subgroups".to_owned(), CHROMIUM_MATRICES.into()];
        for (chrome, wgpu) in [
            (
                "let a = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>(&tile, f(i, 2) + 1, 40u);",
                "let a = coopLoadT<coop_mat16x16<f16, A>>(&tile[f(i, 2) + 1], 40u);",
            ),
            (
                "subgroupMatrixStore<col_major>(&strip, own[0], subgroupMatrixMultiplyAccumulate(a, b, c), 8u);",
                "coopStore(coopMultiplyAdd(a, b, c), &strip[own[0]], 8u);",
            ),
            ("subgroupMatrixLoad<T, row_major>(&tile, 0)", "subgroupMatrixLoad<T, row_major>(&tile, 0)"),
            ("subgroupMatrixScalarAdd(m, 1.0", "subgroupMatrixScalarAdd(m, 1.0"),
        ] {
            let text = enabled(chrome, &features);
            let expected = format!("                 \nenable wgpu_cooperative_matrix;\n{wgpu}");
            assert_eq!(for_naga(&text), expected);
        }
    }
}
