//! Conversations with a decoder: its files, its prompts and what stays in the cache.

use super::*;
use crate::generate::{Decoder, Generator, GeneratorOptions, Request};
use std::path::Path;

/// A folder with the small decoder, and these files beside it.
fn decoder(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Decoder, Error>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| std::fs::copy(root.join(from), folder.path().join(to)).unwrap();
    copy("small/decoder/model.onnx", "model.onnx");
    copy("chat/decoder/tokenizer.json", "tokenizer.json");
    copy("chat/decoder/tokenizer_config.json", "tokenizer_config.json");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let made = Decoder::open(folder.path());
    (folder, made)
}

#[test]
fn templates_and_special_tokens_come_from_the_files() {
    let messages = [Message::user("the sea")];
    let options = ChatOptions::default();
    let (_folder, plain) = decoder(&[]);
    let plain = plain.unwrap();
    assert!(plain.has_chat_template());
    assert_eq!(plain.chat_text(&messages, &options).unwrap(), "<s><|user|> the sea<|assistant|>");
    // The tokenizer would add a second <s>.
    assert_eq!(plain.chat_prompt(&messages, &options).unwrap(), [1, 3, 6, 8, 4]);
    assert_eq!(plain.encode("the sea").unwrap(), [1, 6, 8]);
    let tools = ChatOptions { tools: Some(Json::List(vec![Json::Null])), ..options.clone() };
    assert_eq!(plain.chat_text(&messages, &tools).unwrap(), "<s><|system|> 1<|user|> the sea<|assistant|>");
    // The end token of the tokenizer joins those of the configuration.
    assert_eq!(plain.stop_tokens(), [2]);
    let (_folder, more) = decoder(&[("generation_config.json", r#"{"eos_token_id": [7, 2]}"#)]);
    assert_eq!(more.unwrap().stop_tokens(), [7, 2]);
    let (_folder, own) =
        decoder(&[("chat_template.jinja", "own: {{ messages[0].content }}{{ eos_token }}\n")]);
    assert_eq!(own.unwrap().chat_text(&messages, &options).unwrap(), "own: the sea</s>");

    // A template that is not valid is no obstacle for those who do not use it.
    let (_folder, broken) = decoder(&[("chat_template.jinja", "{% if %}")]);
    let broken = broken.unwrap();
    assert!(broken.encode("the").is_ok());
    let e = broken.chat_text(&messages, &options).unwrap_err().to_string();
    assert!(e.contains("chat_template.jinja") && e.contains("line 1"), "{e}");
    let without = [("tokenizer_config.json", "{}")];
    let e = decoder(&without).1.unwrap().chat_text(&messages, &options).unwrap_err().to_string();
    assert!(e.contains("has no chat template"), "{e}");
    let template = ChatTemplate::parse("given", [("", ""); 0]).unwrap();
    let given = decoder(&without).1.unwrap().with_chat_template(template);
    assert_eq!(given.chat_text(&messages, &options).unwrap(), "given");
    for (config, says) in [
        ("{", "EOF while parsing"),
        (r#"{"chat_template": 1}"#, "`chat_template` is a number"),
        (r#"{"chat_template": [{"name": "default"}]}"#, "without `name` or `template`"),
        (r#"{"chat_template": [{"name": "rag", "template": ""}]}"#, "only rag"),
    ] {
        let made = decoder(&[("tokenizer_config.json", config)]).1;
        let e = made.and_then(|d| d.chat_text(&messages, &options)).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
}

#[test]
fn a_conversation_stays_in_the_cache() {
    let (_folder, decoder) = decoder(&[]);
    let decoder = decoder.unwrap();
    let options = ChatOptions::default();
    let request = Request { max_new_tokens: 6, ..Request::default() };
    for gpu in wgfc_runtime::testing::gpus().iter().take(1) {
        let how = GeneratorOptions { prompt_chunk: Some(4), ..GeneratorOptions::default() };
        let make = || Generator::on_device(gpu.clone(), &decoder, &how).unwrap();
        let mut one = make();
        let mut messages = vec![Message::system("you")];
        for (turn, question) in ["why is the sky blue ?", "and the sea ?", "when ?"].into_iter().enumerate() {
            messages.push(Message::user(question));
            let prompt = decoder.chat_prompt(&messages, &options).unwrap();
            let cached = one.in_common(&prompt);
            assert!(turn == 0 && cached == 0 || cached + 8 > prompt.len(), "{cached} of {}", prompt.len());
            let tokens = one.chat(&decoder, &messages, &options, &request).unwrap();
            let tokens: Vec<i64> = tokens.collect::<Result<_, _>>().unwrap();
            let all = request.clone();
            let mut other = make();
            let again = other.complete(&prompt, &Request { stop: vec![2], ..all }).unwrap();
            assert_eq!(tokens, again.collect::<Result<Vec<i64>, _>>().unwrap());
            assert_eq!(one.len(), prompt.len() + tokens.len());
            let text: Vec<i64> = tokens.into_iter().filter(|t| *t != 2).collect();
            messages.push(Message::assistant(decoder.decode(&text).unwrap()));
        }
        // Another answer to the same prompt, another conversation, and one token.
        for prompt in [&[1, 3, 6, 8, 4][..], &[1, 3, 6, 8, 4], &[1, 3, 9], &[1], &[7, 1]] {
            let got: Vec<i64> = one.complete(prompt, &request).unwrap().collect::<Result<_, _>>().unwrap();
            let want: Vec<i64> =
                make().complete(prompt, &request).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(got, want);
        }
        assert!(one.rewind(100).is_err());
        one.rewind(1).unwrap();
        assert_eq!(one.in_common(&[7, 1, 2]), 1);
        let (_, token) = one.logits(&[1]).unwrap();
        assert_eq!(token, make().logits(&[7, 1]).unwrap().1);
        assert_eq!(one.in_common(&[7, 1, 2]), 2);
        one.pretend(3).unwrap();
        assert_eq!(one.in_common(&[7, 1, 2]), 0);
        assert!(one.complete(&[], &request).is_err());
    }
}
