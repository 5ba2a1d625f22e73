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
/// Han ideographs and Hangul, and all between U+0800 and the first of them.
const IDEOGRAPHS: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// A word up to punctuation, of which some is of other scripts.
const UNPUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Letters that have a case, as DeepSeek-LLM lists them.
const CASED: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}",
    r"\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}",
    r"\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}",
    r"\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}",
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}",
    r"\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}",
    r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}",
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}",
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}",
    r"\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+",
);

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
        "deepseek-llm" => {
            let punctuation =
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
            plain(after(&[r"[\r\n]", CASED, punctuation, r"\s+$", IDEOGRAPHS], r"\p{N}+"))
        }
        "deepseek-coder" => plain(after(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS], DIGIT)),
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
    "deepseek-llm",
    "spark2_5",
    "deepseek-coder",
    "bloom",
    "poro-chat",
    "gpt3-finnish",
    "viking",
];
