use super::super::guarded::{Guarded, Stream};
use serde_json::Value;
use std::collections::HashMap;
use wgfc_compiler::import::gguf::vocabulary::{Vocabulary, splits, tokenizer_json};

/// Vocabularies read from GGUF files, with the ids that the tokenizers they were made of give (`scripts/vocabularies.py`).
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    /// An earlier case whose vocabulary this one has, with the changes of its own.
    like: Option<String>,
    vocabulary: serde_json::Map<String, Value>,
    texts: Vec<Made>,
}

#[derive(serde::Deserialize)]
struct Made {
    text: String,
    ids: Vec<u32>,
    decoded: Option<String>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Held {
    model: String,
    pre: Option<String>,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    merges: Vec<String>,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
    add_space_prefix: Option<bool>,
    remove_extra_spaces: Option<bool>,
    charsmap: Vec<u8>,
}

impl From<Held> for Vocabulary {
    fn from(h: Held) -> Vocabulary {
        Vocabulary {
            model: h.model,
            pre: h.pre,
            tokens: h.tokens,
            scores: h.scores,
            types: h.types,
            merges: h.merges,
            bos: h.bos,
            eos: h.eos,
            unknown: h.unknown,
            padding: h.padding,
            add_bos: h.add_bos,
            add_eos: h.add_eos,
            add_space_prefix: h.add_space_prefix,
            remove_extra_spaces: h.remove_extra_spaces,
            charsmap: h.charsmap,
        }
    }
}

fn read(v: &Vocabulary) -> Guarded {
    let json = tokenizer_json(v).unwrap();
    Guarded::read(json.clone()).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&json)))
}

fn refused(v: &Vocabulary) -> String {
    tokenizer_json(v).unwrap_err()
}

#[test]
fn ids_and_texts_are_those_of_the_tokenizers_that_gguf_files_are_made_of() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../fixtures/tokenizers/vocabularies.json")).unwrap();
    let mut wrong = vec![];
    let mut earlier: HashMap<String, serde_json::Map<String, Value>> = HashMap::new();
    for Case { name, like, vocabulary: changes, texts } in cases {
        let mut vocabulary = like.map(|l| earlier[&l].clone()).unwrap_or_default();
        vocabulary.extend(changes);
        earlier.insert(name.clone(), vocabulary.clone());
        let held: Held = serde_json::from_value(vocabulary.into()).unwrap();
        let vocabulary = Vocabulary::from(held);
        let tokenizer = read(&vocabulary);
        for Made { text, ids, decoded } in texts {
            let found = tokenizer.encode(&text, true).unwrap();
            if found != ids {
                let shown =
                    |ids: &[u32]| ids.iter().map(|i| &vocabulary.tokens[*i as usize]).collect::<Vec<_>>();
                wrong.push(format!("{name}: {text:?}\n  {:?}\n  {:?}", shown(&found), shown(&ids)));
            }
            let found = tokenizer.decode(&ids).unwrap();
            if let Some(decoded) = decoded.filter(|d| *d != found) {
                wrong.push(format!("{name}: {text:?} is decoded as\n  {found:?}\n  {decoded:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong.join("\n"));
}

/// Byte-level BPE with the tokens a, b, c, ab, abc, two control tokens and one that the user defined.
fn bytes() -> Vocabulary {
    let texts = |t: &[&str]| t.iter().map(|t| (*t).to_owned()).collect::<Vec<String>>();
    Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: texts(&["a", "b", "c", "Ġ", "ab", "abc", "<begin>", "<end>", "<tool>"]),
        types: vec![1, 1, 1, 1, 1, 1, 3, 3, 4],
        merges: texts(&["a b", "ab c"]),
        bos: Some(6),
        eos: Some(7),
        ..Vocabulary::default()
    }
}

/// SentencePiece's BPE with the tokens ▁, a, b, ab, ▁ab and two bytes.
fn pieces() -> Vocabulary {
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x41>", "▁", "a", "b", "ab", "▁ab", "ba"];
    Vocabulary {
        model: "llama".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        scores: vec![0., 0., 0., 0., 0., -4., -5., -6., -1., -2., -3.],
        types: vec![2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1],
        ..Vocabulary::default()
    }
}

fn words() -> Vocabulary {
    let tokens = ["<pad>", "</s>", "<unk>", "▁a", "▁", "a", "b", "▁ab"];
    Vocabulary {
        model: "t5".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        scores: vec![0., 0., 0., -2., -3., -4., -4.5, -2.5],
        types: vec![3, 3, 2, 1, 1, 1, 1, 1],
        ..Vocabulary::default()
    }
}

#[test]
fn bytes_are_merged_and_tokens_in_a_text_are_found() {
    let t = read(&bytes());
    assert_eq!(t.encode("abc ab<end>ab<tool>", true).unwrap(), [5, 3, 4, 7, 4, 8]);
    assert_eq!(t.encode("", true).unwrap(), [0u32; 0]);
    assert_eq!(t.decode(&[6, 5, 3, 4, 8, 7]).unwrap(), "abc ab<tool>");
    let both = read(&Vocabulary { add_bos: Some(true), add_eos: Some(true), ..bytes() });
    assert_eq!(both.encode("ab", true).unwrap(), [6, 4, 7]);
    assert_eq!(both.encode("", true).unwrap(), [6, 7]);
    let prefixed = read(&Vocabulary { add_space_prefix: Some(true), ..bytes() });
    assert_eq!(prefixed.encode("ab", true).unwrap(), [3, 4]);
    // Without types, the tokens that have an id of their own are control tokens.
    let untyped = read(&Vocabulary { types: vec![], ..bytes() });
    assert_eq!(untyped.decode(&[6, 4, 8]).unwrap(), "ab<tool>");
}

#[test]
fn pieces_are_merged_by_score_and_unknown_characters_are_bytes() {
    let t = read(&pieces());
    // The pair of the highest score is merged first: ab before ▁ab and ba.
    assert_eq!(t.encode("ab", true).unwrap(), [1, 9]);
    assert_eq!(t.encode("bab\nA", true).unwrap(), [1, 5, 7, 8, 3, 4]);
    assert_eq!(t.encode("bé", true).unwrap(), [1, 5, 7, 0]);
    assert_eq!(t.encode("", true).unwrap(), [1]);
    assert_eq!(t.encode("ab</s>ab", true).unwrap(), [1, 9, 2, 9]);
    assert_eq!(t.decode(&[1, 9, 3, 9, 2]).unwrap(), "ab\n ab");
    let plain = read(&Vocabulary { add_space_prefix: Some(false), add_bos: Some(false), ..pieces() });
    assert_eq!(plain.encode("ab ab", true).unwrap(), [8, 9]);
    // The form of byte tokens, and the usual ids, stand in for missing types.
    let untyped = read(&Vocabulary { types: vec![], ..pieces() });
    assert_eq!(untyped.encode("<s>ab\n", true).unwrap(), [1, 1, 9, 3]);
    let mut stream = Stream::default();
    assert_eq!(t.push(&mut stream, 9).unwrap().as_deref(), Some("ab"));
}

#[test]
fn listed_merges_come_before_scores() {
    let listed = Vocabulary { merges: vec!["▁ a".into()], ..pieces() };
    assert!(refused(&listed).contains(r#"needs the token "▁a", which the vocabulary lacks"#));
    let listed = Vocabulary { merges: vec!["b a".into()], scores: vec![], ..pieces() };
    assert_eq!(read(&listed).encode("bab", true).unwrap(), [1, 5, 10, 7]);
}

#[test]
fn the_words_of_the_highest_scores_are_taken() {
    let t = read(&words());
    assert_eq!(t.encode("ab a", true).unwrap(), [7, 3, 1]);
    assert_eq!(t.encode("b", true).unwrap(), [4, 6, 1]);
    assert_eq!(t.encode("a?!b", true).unwrap(), [3, 2, 6, 1]);
    assert_eq!(t.encode("", true).unwrap(), [1]);
    assert_eq!(t.decode(&[7, 3, 1]).unwrap(), "ab a");
    let extra = read(&Vocabulary { remove_extra_spaces: Some(true), ..words() });
    assert_eq!(extra.encode("  ab   a ", true).unwrap(), [7, 3, 1]);
    assert_eq!(t.encode("ab  a", true).unwrap(), [7, 4, 3, 1]);
}

#[test]
fn every_pre_tokenizer_is_read() {
    for name in splits::NAMES {
        let v = Vocabulary { pre: Some((*name).into()), ..bytes() };
        let t = read(&v);
        let begin: &[u32] = if splits::named(Some(name)).unwrap().add_bos { &[6] } else { &[] };
        assert_eq!(t.encode("abc", true).unwrap(), [begin, &[5]].concat(), "{name}");
    }
    assert_eq!(read(&Vocabulary { pre: None, ..bytes() }).encode("abc", true).unwrap(), [5]);
    let unknown = Vocabulary { pre: Some("none\n".into()), ..bytes() };
    assert_eq!(refused(&unknown), r#"the pre-tokenizer "none\n" (tokenizer.ggml.pre) is not known"#);
}

#[test]
fn kinds_that_are_not_supported_are_named() {
    for model in ["gemma4", "bert", "rwkv", "plamo2", "no_vocab"] {
        let v = Vocabulary { model: model.into(), ..bytes() };
        assert_eq!(
            refused(&v),
            format!("its tokenizer is of the kind {model:?}; gpt2, llama and t5 are supported")
        );
    }
    assert!(refused(&Vocabulary::default()).contains("tokenizer.ggml.model"));
    let long = Vocabulary { model: "é".repeat(1 << 20), ..bytes() };
    assert!(refused(&long).len() < 300);
}

#[test]
fn what_is_missing_or_short_is_said() {
    let none = Vec::new;
    for (v, message) in [
        (Vocabulary { tokens: vec![], ..bytes() }, "it has no tokens (tokenizer.ggml.tokens)"),
        (Vocabulary { merges: vec![], ..bytes() }, "it has no merges (tokenizer.ggml.merges)"),
        (Vocabulary { scores: none(), ..pieces() }, "it has no scores (tokenizer.ggml.scores)"),
        (Vocabulary { scores: none(), ..words() }, "it has no scores (tokenizer.ggml.scores)"),
        (
            Vocabulary { scores: vec![1.0; 3], ..pieces() },
            "tokenizer.ggml.scores has 3 elements, and there are 11 tokens",
        ),
        (
            Vocabulary { types: vec![1; 3], ..pieces() },
            "tokenizer.ggml.token_type has 3 elements, and there are 11 tokens",
        ),
        (
            Vocabulary { bos: None, add_bos: Some(true), ..bytes() },
            "tokenizer.ggml.add_bos_token is true, and there is no bos_token_id",
        ),
        (
            Vocabulary { eos: None, add_eos: Some(true), ..bytes() },
            "tokenizer.ggml.add_eos_token is true, and there is no eos_token_id",
        ),
        (Vocabulary { bos: Some(9), ..bytes() }, "tokenizer.ggml.bos_token_id is 9, and there are 9 tokens"),
        (
            Vocabulary { eos: Some(u32::MAX), ..bytes() },
            "tokenizer.ggml.eos_token_id is 4294967295, and there are 9 tokens",
        ),
        (
            Vocabulary { unknown: Some(1 << 31), ..pieces() },
            "tokenizer.ggml.unknown_token_id is 2147483648, and there are 11 tokens",
        ),
    ] {
        assert_eq!(refused(&v), message);
    }
    let mut no_unknown = words();
    no_unknown.tokens[2] = "?".into();
    assert!(refused(&no_unknown).contains("tokenizer.ggml.unknown_token_id"));
    // Padding is for batches, and of the defaults only those that name the usual token count.
    read(&Vocabulary { padding: Some(u32::MAX), ..bytes() });
    let mut renamed = pieces();
    renamed.tokens[1] = "[other]".into();
    assert_eq!(read(&renamed).encode("ab", true).unwrap(), [9]);
}

#[test]
fn contradictions_are_errors() {
    let mut twice = bytes();
    twice.tokens[8] = "abc".into();
    assert_eq!(refused(&twice), r#"its tokens 5 and 8 are both "abc""#);
    let merged = |m: &str| refused(&Vocabulary { merges: vec!["a b".into(), m.into()], ..bytes() });
    assert_eq!(merged("b x"), r#"the merge 1, "b x", needs the token "x", which the vocabulary lacks"#);
    assert_eq!(merged("b c"), r#"the merge 1, "b c", needs the token "bc", which the vocabulary lacks"#);
    for one in ["", " ", "a", " a"] {
        assert_eq!(merged(one), format!("the merge 1, {one:?}, is not of two tokens"));
    }
    assert!(merged("a ").contains(r#"needs the token """#));
    assert!(merged("é b").contains("needs the token \"é\""));
    for score in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mut v in [pieces(), words()] {
            v.scores[6] = score;
            assert_eq!(refused(&v), format!("the score of its token 6, {:?}, is {score}", v.tokens[6]));
        }
    }
}

#[test]
fn odd_tokens_have_a_defined_result() {
    for mut v in [bytes(), pieces(), words()] {
        let plain = read(&v).encode("ab", true).unwrap();
        v.tokens.extend(["", "", "\u{0}", "\u{10ffff}", "\"\\\n"].map(str::to_owned));
        v.types.extend([1, 4, 3, -7, i32::MAX]);
        v.scores.extend([0.0, f32::MAX, f32::MIN, 1e-45, -0.0]);
        assert_eq!(read(&v).encode("ab", true).unwrap(), plain);
        read(&v).encode("\u{0}\"\\\n\u{10ffff}", true).unwrap();
        let all: Vec<u32> = (0..v.tokens.len() as u32).collect();
        read(&v).decode(&all).unwrap();
    }
    // A token that is too long for the reader of tokenizers is its error.
    let mut long = bytes();
    long.tokens.push("x".repeat(5000));
    long.types.push(1);
    assert!(Guarded::read(tokenizer_json(&long).unwrap()).is_err_and(|e| e.contains("5000 bytes")));
}

/// SentencePiece's algorithm, slowly: of the neighbours whose joined text is a token, the pair of the highest score, the first
/// of those, is merged, until there is none.
fn slowly(v: &Vocabulary, text: &str) -> Vec<u32> {
    let text = format!("▁{}", text.replace(' ', "▁"));
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    let id = |s: &str| v.tokens.iter().position(|t| t == s);
    loop {
        let joined = symbols.windows(2).enumerate().filter_map(|(i, w)| Some((i, id(&w.concat())?)));
        let Some((i, t)) = joined.min_by(|a, b| v.scores[b.1].total_cmp(&v.scores[a.1])) else { break };
        symbols.splice(i..i + 2, [v.tokens[t].clone()]);
    }
    symbols.iter().map(|s| id(s).unwrap() as u32).collect()
}

#[test]
fn derived_merges_give_what_the_scores_give() {
    let mut state = 1u32;
    let mut random = move |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % n
    };
    for _ in 0..200 {
        let mut tokens: Vec<String> = ["▁", "a", "b", "c", "é"].map(str::to_owned).to_vec();
        for _ in 0..random(40) {
            let joined = [0, 0].map(|_| tokens[random(tokens.len() as u32) as usize].clone()).concat();
            // The halves of a word of one repeated character can overlap, where ranks of merges cannot say which is first.
            let same = joined.chars().all(|c| joined.starts_with(c));
            if !tokens.contains(&joined) && joined.len() < 12 && !same {
                tokens.push(joined);
            }
        }
        let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
        let v = Vocabulary { model: "llama".into(), scores, tokens, ..Vocabulary::default() };
        let t = read(&v);
        for _ in 0..20 {
            let text: String =
                (0..random(30)).map(|_| [' ', 'a', 'b', 'c', 'é'][random(5) as usize]).collect();
            if !text.is_empty() {
                assert_eq!(t.encode(&text, true).unwrap(), slowly(&v, &text), "{:?} {text:?}", v.tokens);
            }
        }
    }
}

#[test]
fn derived_merges_take_time_and_memory_like_the_vocabulary() {
    let runs = |n: usize| {
        let tokens: Vec<String> = (1..=n).map(|k| "a".repeat(k)).collect();
        let scores = vec![0.0; n];
        Vocabulary { model: "llama".into(), tokens, scores, ..Vocabulary::default() }
    };
    assert!(tokenizer_json(&runs(64)).is_ok());
    assert!(refused(&runs(3000)).contains("the merges of its tokens take more than"));
    let many = (0..200_000u32).map(|i| format!("{i:x}")).collect::<Vec<_>>();
    let scores = vec![-1.0; many.len()];
    let v = Vocabulary { model: "llama".into(), tokens: many, scores, ..Vocabulary::default() };
    let began = std::time::Instant::now();
    tokenizer_json(&v).unwrap();
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

#[test]
fn phi3s_tokens_take_the_white_space_behind_them() {
    let mut v = pieces();
    v.tokens.extend(["<|assistant|>", "<|placeholder1|>", "<|endoftext|>"].map(str::to_owned));
    v.types.extend([3; 3]);
    v.scores.extend([0.0; 3]);
    assert_eq!(read(&v).encode("<|assistant|>\n ab<|endoftext|>\n", true).unwrap(), [1, 11, 9, 13, 5, 3]);
}
