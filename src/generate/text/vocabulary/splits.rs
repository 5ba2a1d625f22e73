//! Pre-tokenizers of byte-level BPE: how a text is cut into words, inside of which merges apply.
//!
//! A GGUF file only names its pre-tokenizer (`tokenizer.ggml.pre`). The regular expressions behind a name are those of the
//! `tokenizer.json` from which such files are converted. They apply in turn: each cuts the pieces that the one before it
//! left into its matches and what lies between them.

/// A pre-tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Splits {
    /// The regular expressions, which apply in turn.
    pub regexes: Vec<String>,
    /// Whether the text is brought to the normal form C before.
    pub nfc: bool,
    /// Whether a word that is a token is taken whole, even where merges would not make it.
    pub whole_words: bool,
    /// Whether texts begin with the token of the beginning if the file does not say.
    pub add_bos: bool,
}

/// The regular expression of GPT-2.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const CONTRACTION: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORD: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const SPACES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
/// A digit, and up to three.
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}{1,3}";
/// A word that starts with a symbol of ASCII; words with marks; runs of punctuation.
const MARKED: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##;
/// Han ideographs and kana.
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
/// A word up to punctuation, of which some is of other scripts.
const UNPUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// The alternatives of GPT-4, of which models change single ones.
fn gpt4(word: &str, number: &str, symbols: &str) -> String {
    [CONTRACTION, word, number, symbols, SPACES].join("|")
}

/// The alternatives of GPT-4o: a word is cut where a small letter is followed by a capital one.
fn gpt4o(contraction: &str, number: &str) -> String {
    let (upper, lower) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
    let before = r"[^\r\n\p{L}\p{N}]?";
    let small = format!("{before}{upper}*{lower}+{contraction}");
    let capital = format!("{before}{upper}+{lower}*{contraction}");
    [&small, &capital, number, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES].join("|")
}

/// The pre-tokenizer of a name; without one, llama.cpp's for files that do not say.
pub fn named(name: Option<&str>) -> Result<Splits, String> {
    let after = |first: &[&str], last: &str| first.iter().copied().chain([last]).map(str::to_owned).collect();
    let plain = |regexes: Vec<String>| Splits { regexes, ..Splits::default() };
    let one = |regex: String| plain(vec![regex]);
    let whole = |s: Splits| Splits { whole_words: true, ..s };
    let begun = |s: Splits| Splits { add_bos: true, ..s };
    let composed = |s: Splits| Splits { nfc: true, ..s };
    let contraction = format!("{CONTRACTION}?");
    Ok(match name.unwrap_or("default") {
        "default" => plain(after(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+"], "[0-9][0-9][0-9]")),
        "gpt-2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "jais" | "trillion"
        | "granite-docling" => one(GPT2.into()),
        "mpt" | "olmo" => composed(one(GPT2.into())),
        "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            plain(after(&[DIGIT], GPT2))
        }
        "command-r" => composed(plain(after(&[DIGIT], GPT2))),
        "falcon" => plain(after(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2], "[0-9][0-9][0-9]")),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            begun(whole(one(gpt4(WORD, DIGITS, SYMBOLS))))
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => one(gpt4(WORD, DIGITS, SYMBOLS)),
        "jais-2" => {
            let runs: Vec<String> =
                [512, 256, 128, 64, 32, 16, 8, 4].iter().map(|n| format!(r"\s{{{n}}}(?!\S)")).collect();
            let spaces = format!(r"\s*[\r\n]+|{}|\s{{1,2}}(?!\S)|\s{{1}}", runs.join("|"));
            one([CONTRACTION, WORD, DIGITS, SYMBOLS, &spaces].join("|"))
        }
        "minicpm5" => whole(plain(after(&[DIGITS], &gpt4(WORD, r"\p{N}+", SYMBOLS)))),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" => {
            composed(one(gpt4(WORD, DIGIT, SYMBOLS)))
        }
        "solar-open" | "grok-2" => one(gpt4(WORD, DIGIT, SYMBOLS)),
        "qwen35" => {
            composed(one(gpt4(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")))
        }
        "laguna" => plain(after(&[r"[^\n]+|[\n]+"], &gpt4(WORD, DIGIT, SYMBOLS))),
        "ufakzeka" => one([WORD, DIGIT, SYMBOLS, SPACES].join("|")),
        "seed-coder" => one(gpt4(WORD, DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+")),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => {
            let spaces = r"\s*[\r\n]|\s+(?!\S)|\s+";
            one(["'(?i:[sdmt]|ll|ve|re)", WORD, DIGIT, SYMBOLS, spaces].join("|"))
        }
        "exaone-moe" => one([
            CONTRACTION,
            r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            DIGIT,
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"\s*[\r\n]|\s+(?!\S)|\s+",
        ]
        .join("|")),
        "tekken" => begun(whole(one(gpt4o("", DIGIT)))),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => one(gpt4o(&contraction, DIGITS)),
        "tiny_aya" | "cohere2moe" => {
            plain(after(&[r"\d{1,3}(?=(?:\d{3})*\b)"], &gpt4o(&contraction, DIGITS)))
        }
        "youtu" => {
            let scripts = "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+\
                |[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\
                \\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+\
                |[\\x{3105}-\\x{312F}]+\
                |[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+";
            whole(plain(after(&[scripts], &gpt4o(&contraction, DIGIT))))
        }
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            plain(after(&[DIGITS, CJK], &format!(r"{MARKED}[\r\n]*|{SPACES}")))
        }
        "spark2_5" => plain(after(&[DIGITS, CJK, &format!(r"{MARKED}|[\r\n]|\s+(?!\S)|\s+")], DIGIT)),
        "deepseek-coder" => {
            let ideographs = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
            plain(after(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ideographs], DIGIT))
        }
        "bloom" | "poro-chat" | "gpt3-finnish" => one(UNPUNCTUATED.into()),
        "viking" => plain(after(&[UNPUNCTUATED], DIGIT)),
        other => {
            return Err(format!(
                "the pre-tokenizer {} (tokenizer.ggml.pre) is not known",
                super::shown(other)
            ));
        }
    })
}

/// All names.
#[cfg(test)]
pub const NAMES: &[&str] = &[
    "default",
    "gpt-2",
    "phi-2",
    "gigachat",
    "a.x-4.0",
    "mellum",
    "exaone4",
    "jais",
    "trillion",
    "granite-docling",
    "mpt",
    "olmo",
    "starcoder",
    "refact",
    "smollm",
    "codeshell",
    "exaone",
    "minerva-7b",
    "mellum2",
    "command-r",
    "falcon",
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "dbrx",
    "smaug-bpe",
    "glm4",
    "chatglm-bpe",
    "jais-2",
    "minicpm5",
    "qwen2",
    "deepseek-r1-qwen",
    "kormo",
    "f2llmv2",
    "megrez",
    "stablelm2",
    "hunyuan",
    "solar-open",
    "grok-2",
    "qwen35",
    "laguna",
    "ufakzeka",
    "seed-coder",
    "bailingmoe",
    "bailingmoe2",
    "llada-moe",
    "exaone-moe",
    "tekken",
    "gpt-4o",
    "llama4",
    "kanana2",
    "talkie",
    "minimax-m2",
    "tiny_aya",
    "cohere2moe",
    "youtu",
    "deepseek-v3",
    "hunyuan-dense",
    "joyai-llm",
    "hy_v4",
    "spark2_5",
    "deepseek-coder",
    "bloom",
    "poro-chat",
    "gpt3-finnish",
    "viking",
];
