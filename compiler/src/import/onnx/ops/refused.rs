//! ONNX operators that are deliberately not supported, with reasons.

/// Reasons, and the operators that each applies to: names prefixed with their domain unless that is `ai.onnx`; `domain.*` is a whole
/// domain.
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
    ("text, dictionaries and categories of classical machine learning", &["ai.onnx.ml.*"]),
];

/// Advice for an operator that is not supported, if there is any beyond cutting the model.
pub fn instead(operator: &str) -> Option<String> {
    let name = operator.strip_prefix("ai.onnx.ml.")?;
    let mut known: Vec<&str> = super::all().filter(|d| d.domain == "ai.onnx.ml").map(|d| d.name).collect();
    known.sort_unstable();
    let known = format!("of ai.onnx.ml {} are supported", known.join(", "));
    Some(match name {
        "ZipMap" => {
            "convert with skl2onnx's option zipmap=False, which returns the probabilities as one tensor; \
             cut an existing model before it (onnx.utils.extract_model)"
                .to_owned()
        }
        n if n.ends_with("Encoder") || n.ends_with("Mapper") || n.ends_with("Vectorizer") => {
            format!(
                "encode categories as numbers before the model, and convert the rest of the pipeline; {known}"
            )
        }
        _ => format!("{known}; cut the model before this one (onnx.utils.extract_model)"),
    })
}

/// The reason why an operator is deliberately not supported. `operator` is prefixed with its domain unless that is `ai.onnx`.
pub fn why(operator: &str) -> Option<&'static str> {
    let is = |name: &&&str| match name.strip_suffix('*') {
        Some(domain) => operator.starts_with(domain),
        None => **name == operator,
    };
    REFUSED.iter().find(|(_, names)| names.iter().any(|n| is(&n))).map(|(why, _)| *why)
}
