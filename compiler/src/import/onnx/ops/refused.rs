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

/// Advice for an operator that is not supported, where there is more to say than to cut the model.
pub fn instead(operator: &str) -> Option<&'static str> {
    let name = operator.strip_prefix("ai.onnx.ml.")?;
    Some(match name {
        n if n.starts_with("Tree") || n.starts_with("SVM") => {
            "of ai.onnx.ml ArrayFeatureExtractor, Binarizer, Imputer, LinearClassifier, LinearRegressor, Normalizer and Scaler are \
             supported: convert trees and support vector machines to tensor operators (hummingbird-ml, backend \"onnx\"), or fit a \
             linear model or MLPClassifier, which skl2onnx writes with operators that are"
        }
        "ZipMap" => {
            "convert with skl2onnx's option zipmap=False, which returns the probabilities as one tensor; \
             cut an existing model before it (onnx.utils.extract_model)"
        }
        n if n.ends_with("Encoder") || n.ends_with("Mapper") || n.ends_with("Vectorizer") => {
            "encode categories as numbers before the model, and convert the rest of the pipeline; of ai.onnx.ml \
             ArrayFeatureExtractor, Binarizer, Imputer, LinearClassifier, LinearRegressor, Normalizer and Scaler are supported"
        }
        _ => {
            "of ai.onnx.ml ArrayFeatureExtractor, Binarizer, Imputer, LinearClassifier, LinearRegressor, Normalizer and Scaler \
             are supported; cut the model before this one (onnx.utils.extract_model)"
        }
    })
}

/// Why an operator is left out, if that is on purpose. `operator` has its domain unless that is `ai.onnx`.
pub fn why(operator: &str) -> Option<&'static str> {
    let is = |name: &&&str| match name.strip_suffix('*') {
        Some(domain) => operator.starts_with(domain),
        None => **name == operator,
    };
    REFUSED.iter().find(|(_, names)| names.iter().any(|n| is(&n))).map(|(why, _)| *why)
}
