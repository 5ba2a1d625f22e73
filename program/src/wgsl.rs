//! Directives in the text of kernels.

use std::borrow::Cow;

/// The WebGPU features that kernels can need, and the WGSL extension that each enables. The last one is specific to
/// wgpu.
const EXTENSIONS: [(&str, &str); 3] = [
    ("shader-f16", "f16"),
    ("subgroups", "subgroups"),
    ("wgpu-cooperative-matrix", "wgpu_cooperative_matrix"),
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

/// The text for naga, which supports subgroups but not their directive: it is replaced with spaces.
pub fn for_naga(text: &str) -> Cow<'_, str> {
    let Some((range, _)) = directives(text).find(|(_, name)| *name == "subgroups") else {
        return text.into();
    };
    let mut text = text.to_owned();
    let blanks = " ".repeat(range.len());
    text.replace_range(range, &blanks);
    text.into()
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
}
