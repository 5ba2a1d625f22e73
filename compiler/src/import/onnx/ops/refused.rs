//! Operators of ONNX that are left out on purpose, and why.

/// Why, and which: names with their domain unless that is `ai.onnx`; all of a domain as `domain.*`.
pub const REFUSED: &[(&str, &[&str])] = &[
    (
        "text is not an array of numbers",
        &["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"],
    ),
    (
        "a sequence holds a number of tensors that changes as it runs",
        &[
            "ConcatFromSequence",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
        ],
    ),
    (
        "an optional is a tensor that may not be there",
        &["Optional", "OptionalGetElement", "OptionalHasElement"],
    ),
    ("image formats are decoded before a model runs", &["ImageDecoder"]),
    ("models are not trained here", &["ai.onnx.preview.training.*"]),
    ("trees, dictionaries and categories of classical machine learning", &["ai.onnx.ml.*"]),
];

/// Why an operator is left out, if that is on purpose. `operator` has its domain unless that is `ai.onnx`.
pub fn why(operator: &str) -> Option<&'static str> {
    let is = |name: &&&str| match name.strip_suffix('*') {
        Some(domain) => operator.starts_with(domain),
        None => **name == operator,
    };
    REFUSED.iter().find(|(_, names)| names.iter().any(|n| is(&n))).map(|(why, _)| *why)
}
