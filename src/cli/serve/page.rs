//! The playground's files, which `web/playground/build.mjs --page` writes, and the models of its demos.

/// Files of the page, with their names.
#[cfg(feature = "playground")]
macro_rules! page {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../web/playground/page/", $name)).as_slice())),*]
    };
}

/// Files of models, with the names that they are served by.
#[cfg(feature = "playground")]
macro_rules! models {
    ($($file:literal as $name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../web/playground/models/", $file)).as_slice())),*]
    };
}

/// The page, for a server that compiles: without the compiler's module. Empty without the feature `playground`.
#[cfg(feature = "playground")]
pub static PAGE: &[(&str, &[u8])] = page![
    "index.html",
    "main.js",
    "main.js.LEGAL.txt",
    "style.css",
    "vendor/jinja.js",
    "vendor/tokenizers.js",
    "wgfc/absent.js",
    "wgfc/cache.js",
    "wgfc/compiler/derive.js",
    "wgfc/compiler/index.js",
    "wgfc/files.js",
    "wgfc/generate.js",
    "wgfc/halves.js",
    "wgfc/image.js",
    "wgfc/index.js",
    "wgfc/inspect.js",
    "wgfc/measure.js",
    "wgfc/states.js",
    "wgfc/suite.js",
    "wgfc/timestamps.js",
    "wgfc/train.js",
    "wgfc/tune.js",
    "wgfc/verify.js",
];

/// The demos' models.
#[cfg(feature = "playground")]
pub static MODELS: &[(&str, &[u8])] = models![
    "digits.onnx" as "models/digits.onnx",
    "digits-step.pt2" as "models/digits-step.pt2",
    "digits-weights.onnx" as "models/digits-weights.onnx",
    "digits.safetensors" as "models/digits.safetensors",
    "cartpole.onnx" as "models/cartpole.onnx",
    "features-step.pt2" as "models/features-step.pt2",
    "stories/model.onnx" as "models/stories.onnx",
    "stories/tokenizer.json" as "models/tokenizer.json",
    "stories/generation_config.json" as "models/generation_config.json",
];

#[cfg(not(feature = "playground"))]
pub static PAGE: &[(&str, &[u8])] = &[];
#[cfg(not(feature = "playground"))]
pub static MODELS: &[(&str, &[u8])] = &[];

#[cfg(all(test, feature = "playground"))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn list(folder: &Path, prefix: &str, into: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            match entry.path().is_dir() {
                true => list(&entry.path(), &format!("{name}/"), into),
                false => _ = into.insert(name),
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_built_in() {
        let mut there = BTreeSet::new();
        list(&Path::new(env!("CARGO_MANIFEST_DIR")).join("web/playground/page"), "", &mut there);
        let built: BTreeSet<String> = PAGE.iter().map(|f| f.0.to_owned()).collect();
        assert_eq!(there, built);
    }
}
