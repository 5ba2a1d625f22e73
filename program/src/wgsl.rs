//! Directives of kernels' texts.

use std::borrow::Cow;

/// WebGPU's features that kernels can need, and the extension that a module enables for each. The last is wgpu's own.
const EXTENSIONS: [(&str, &str); 3] = [
    ("shader-f16", "f16"),
    ("subgroups", "subgroups"),
    ("wgpu-cooperative-matrix", "wgpu_cooperative_matrix"),
];

/// The extension that a module must enable to use a feature of WebGPU.
pub fn extension(feature: &str) -> Option<&'static str> {
    EXTENSIONS.iter().find(|e| e.0 == feature).map(|e| e.1)
}

/// The text with an `enable` directive for each of the features. Texts of plans before version 5 come without.
pub fn enabled<'a>(text: &'a str, features: &[String]) -> Cow<'a, str> {
    let there = |name: &str| directives(text).any(|(_, l)| l == name);
    let lacking = features.iter().filter_map(|f| extension(f)).filter(|name| !there(name));
    let header: String = lacking.map(|name| format!("enable {name};\n")).collect();
    if header.is_empty() { text.into() } else { (header + text).into() }
}

/// The text for naga, which has subgroups without knowing their directive: blanks stand in its place.
pub fn for_naga(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some((range, _)) = directives(&text).find(|(_, name)| *name == "subgroups") else { return text };
    let mut text = text.into_owned();
    let blanks = " ".repeat(range.len());
    text.replace_range(range, &blanks);
    text.into()
}

/// Where lines that enable one extension are, and which. Directives stand before all else but comments.
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
    fn directives_are_added_once_and_blanked() {
        let features = ["shader-f16".to_owned(), "subgroups".into()];
        let text = enabled("// A kernel.\nfn main() {}\n", &features);
        assert_eq!(text, "enable f16;\nenable subgroups;\n// A kernel.\nfn main() {}\n");
        assert_eq!(enabled(&text, &features), text);
        assert_eq!(for_naga(text), "enable f16;\n                 \n// A kernel.\nfn main() {}\n");
        assert_eq!(for_naga("fn main() {}".into()), "fn main() {}");
    }
}
