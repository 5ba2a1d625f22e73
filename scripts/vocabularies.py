#!/usr/bin/env python3
"""Make fixtures/tokenizers/vocabularies.json: vocabularies as GGUF files carry them, and the token ids of texts.

    python3 scripts/vocabularies.py          (needs: pip install gguf sentencepiece tokenizers torch transformers)

Vocabularies are trained here and written to GGUF files, whose metadata is then read back. Token ids are those of the tokenizer that
was trained. Where transformers' reader of GGUF files claims to make the same tokenizer, its ids must be the same, or nothing is
written. Where it does not, the reason is beside the name of the case (`differs`); the ids of other texts must be the same.
The tests of src/generate/text/vocabulary.rs make a tokenizer.json of each vocabulary and compare its ids.
"""
import json
import logging
import sys
import tempfile
from pathlib import Path

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, import_protobuf
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

OUT = Path(__file__).resolve().parent.parent / "fixtures/tokenizers/vocabularies.json"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 7 o'clock, and they'll say we're late; I'm sure you'd've known!",
    "In 1984 and 2024 there were 365 and 366 days: 12,345,678.90 is a number, 3.14159 another, and 0x1F a third one.",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(100):\n\tprint(add(i, -i), end='')  # two  spaces   three\n",
    "DON'T SHOUT, WE'LL HEAR IT'S HERE. camelCase and PascalCase and snake_case; XMLHttpRequest, iPhone, McDonald's.",
    "Größe, naïve, café, Straße, Ærø, œuvre, İstanbul, Ελλάδα, Москва и Санкт-Петербург, Україна, שלום, مرحبا بالعالم.",
    "我们今天学习分词。日本語のテキストも、ひらがなとカタカナを使います。한국어 문장도 있습니다. ภาษาไทย हिन्दी में पाठ",
    "An emoji 🦀 or two 🎉🎉, a family 👨‍👩‍👧, a flag 🇩🇪, maths ∑∫√2 ≠ ½ ¾ ² ³, arrows → ⇒, quotes “a” ‘b’ «c», ellipsis…",
    "tokens, tokenizers, tokenization, tokenized; the theory of the thing that they thought through thoroughly.",
]

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  two spaces before, and two after  ",
    "many      spaces\t\ttabs \t mixed\n\n\nnew lines\r\nand \n others \n\n",
    "It's they'll WE'RE I'M you'd've 'tis rock'n'roll 'S 'LL",
    "1 12 123 1234 12345 123456 1,234.5 3rd 2nd 4x4 x10 ²³ ½ ٣٤ Ⅻ",
    "camelCase PascalCase XMLHttpRequest snake_case SHOUTING iPhone15Pro",
    "我们今天学习分词。日本語のテキスト、カタカナ。한국어 문장 ภาษาไทย हिन्दी",
    "emoji 🦀🎉 👨‍👩‍👧 🇩🇪 ∑ ≠ → …",
    "naïve nai\u0308ve café cafe\u0301 Å \u212b ﬁ",
    "!!! ... ?! (a) [b] {c} <d> a/b c\\d e=f+g $5 100% #1 @me ~x^y `z` | &amp;",
    "def add(a, b):\n    return a + b  # sum\n",
    "https://example.com/path?q=1&r=2",
    "<s>a control</s> token<unk>",
    "before<|endoftext|>after <|endoftext|> between<|endoftext|>\n\n<|endoftext|>",
    "a <tool> b<tool>c",
    "whole wholes awhole whole",
    "\u00a0no\u2009break\u3000ideographic\u200bzero\ufeff",
    "x" * 70 + " " * 40 + "y",
    "\u0000\u0001\u007f",
]


def write(path, architecture, vocabulary):
    """A GGUF file with this vocabulary, and with what transformers needs of a model beside it."""
    w = gguf.GGUFWriter(path, architecture)
    w.add_context_length(128)
    w.add_embedding_length(8)
    w.add_block_count(1)
    w.add_feed_forward_length(8)
    w.add_head_count(1)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    v = vocabulary
    w.add_tokenizer_model(v["model"])
    if "pre" in v:
        w.add_tokenizer_pre(v["pre"])
    w.add_token_list(v["tokens"])
    w.add_token_types(v["types"])
    if "scores" in v:
        w.add_token_scores(v["scores"])
    if "merges" in v:
        w.add_token_merges(v["merges"])
    for key, add in [("bos", w.add_bos_token_id), ("eos", w.add_eos_token_id), ("unknown", w.add_unk_token_id), ("padding", w.add_pad_token_id),
                     ("add_bos", w.add_add_bos_token), ("add_eos", w.add_add_eos_token), ("add_space_prefix", w.add_add_space_prefix),
                     ("remove_extra_spaces", w.add_remove_extra_whitespaces), ("charsmap", w.add_precompiled_charsmap)]:
        if key in v:
            add(bytes(v[key]) if key == "charsmap" else v[key])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


KEYS = {"model": "model", "pre": "pre", "tokens": "tokens", "scores": "scores", "types": "token_type", "merges": "merges",
        "bos": "bos_token_id", "eos": "eos_token_id", "unknown": "unknown_token_id", "padding": "padding_token_id",
        "add_bos": "add_bos_token", "add_eos": "add_eos_token", "add_space_prefix": "add_space_prefix",
        "remove_extra_spaces": "remove_extra_whitespaces", "charsmap": "precompiled_charsmap"}


def read(path):
    """The vocabulary that a GGUF file carries."""
    fields = gguf.GGUFReader(path).fields
    found = {name: fields.get(f"tokenizer.ggml.{key}") for name, key in KEYS.items()}
    return {name: field.contents() for name, field in found.items() if field is not None}


def case(name, architecture, vocabulary, original=None, *, decode=None, differs=(None, lambda text: False), texts=TEXTS, like=None):
    """A case with the ids of `original`, or those of transformers' reader of GGUF files if there is none. `differs` says why
    that reader makes other ids, and of which texts it may. `like` is a case from whose vocabulary little changes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(path, architecture, vocabulary)
        held = read(path)
        reader = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    theirs = [reader.encode(t, add_special_tokens=False) for t in texts]
    ids = [original(t) for t in texts] if original else theirs
    reason, may_differ = differs
    different = [t for t, a, b in zip(texts, ids, theirs, strict=True) if a != b]
    print(f"{name}: {len(texts)} texts, transformers' reader differs in {len(different)}")
    if wrong := [t for t in different if not may_differ(t)]:
        sys.exit(f"{name}: transformers' reader of GGUF files makes other ids of {wrong}")
    if reason and not different:
        sys.exit(f"{name}: transformers' reader of GGUF files makes the same ids, so it is not true that it {reason}")
    before = [held["bos"]] if held.get("add_bos") else []
    after = [held["eos"]] if held.get("add_eos") else []
    # Equal vocabularies are written once.
    changes = {k: v for k, v in held.items() if like is None or like["vocabulary"].get(k) != v}
    made = [{"text": t, "ids": before + i + after} | ({"decoded": decode(i)} if decode else {}) for t, i in zip(texts, ids, strict=True)]
    return {"name": name, **({"differs": reason} if reason else {}), **({"like": like["name"]} if like else {}), "vocabulary": changes, "texts": made}


# Byte-level BPE. The vocabulary is trained on whole lines, so it has tokens that each way of splitting must not make.

ENDS = ["<|im_start|>", "<|endoftext|>"]


def byte_level():
    t = Tokenizer(BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    lines = [piece for line in CORPUS for piece in line.split(", ")] * 3
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    # No merges make this token: it is found only where words that are tokens are taken whole.
    tokens += ["Ġwhole", *ENDS, "<tool>", "[PAD]"]
    types = [NORMAL] * (len(tokens) - 4) + [CONTROL, CONTROL, USER, UNUSED]
    merges = [" ".join(m) for m in model["merges"]]
    return {"model": "gpt2", "tokens": tokens, "types": types, "merges": merges, "bos": len(tokens) - 4, "eos": len(tokens) - 3}


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)


def in_turn(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT4 = TikTokenConverter.__init__.__defaults__[1]
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
            r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")
DIGITS = pre_tokenizers.Digits(individual_digits=True)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
GPT2_WORDS = ("splits words as GPT-2 does", lambda text: True)
QWEN2_WORDS = ("splits words as Qwen2 does", lambda text: True)
NOT_USERS = ("knows no tokens that are user defined", lambda text: any(t in text for t in ["<tool>", "  ", "\n\n"]))
NOT_TOOL = ("knows no tokens that are user defined", lambda text: "<tool>" in text)

# The name of a pre-tokenizer, the tokenizers that have it, the architecture under which transformers reads it, and why its
# tokenizer is another one. A class of transformers stands for its normalizer and pre-tokenizer.
PRE = [
    ("gpt-2", GPT2Tokenizer, False, "gpt2", NOT_TOOL),
    ("llama-bpe", (None, in_turn(split(GPT4))), True, "llama", GPT2_WORDS),
    ("qwen2", Qwen2Tokenizer, False, "qwen2", NOT_TOOL),
    ("qwen35", Qwen3_5Tokenizer, False, "qwen2", QWEN2_WORDS),
    ("smollm", (None, pre_tokenizers.Sequence([DIGITS, WORDS])), False, "llama", GPT2_WORDS),
    ("command-r", CohereTokenizer, False, "llama", GPT2_WORDS),
    ("olmo", GPTNeoXTokenizer, False, "llama", GPT2_WORDS),
    ("tekken", (None, in_turn(split(TEKKEN))), True, "llama", GPT2_WORDS),
    ("gpt-4o", (None, in_turn(split(GPT4O))), False, "llama", GPT2_WORDS),
    ("deepseek-v3", (None, in_turn(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK))), False, "llama", GPT2_WORDS),
]


def tokenizer(vocabulary, normalizer, pre_tokenizer, whole_words):
    """The tokenizer of a byte-level vocabulary."""
    v = vocabulary
    t = Tokenizer(BPE({t: i for i, t in enumerate(v["tokens"])}, [tuple(m.split(" ")) for m in v["merges"]], ignore_merges=whole_words))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    added = [AddedToken(t, normalized=False, special=k == CONTROL) for t, k in zip(v["tokens"], v["types"], strict=True) if k in (CONTROL, USER)]
    t.add_tokens(added)
    return t


def byte_level_cases():
    vocabulary, like = byte_level(), None
    for pre, steps, whole_words, architecture, differs in PRE:
        if isinstance(steps, type):
            made = steps(vocab={"<|endoftext|>": 0}, merges=[])._tokenizer
            steps = (made.normalizer, made.pre_tokenizer)
        t = tokenizer(vocabulary, *steps, whole_words)
        begun = {"add_bos": True} if whole_words else {}
        made = case(pre, architecture, vocabulary | {"pre": pre} | begun, lambda x, t=t: t.encode(x).ids, decode=t.decode, differs=differs, like=like)
        like = like or made
        yield made


# SentencePiece.

# A few of the rules of NFKC and some for white space. All of them take a hundred times as many bytes.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "ﬁ": "fi", "½": "1/2", "²": "2", "e\u0301": "é", "\u212b": "Å"}


def trained(normalization_rules=None, **options):
    """A SentencePiece model, as a processor and as its message."""
    with tempfile.TemporaryDirectory() as folder:
        if normalization_rules:
            table = Path(folder) / "rules.tsv"
            hexadecimal = lambda text: " ".join(f"{ord(c):X}" for c in text)
            table.write_text("".join(f"{hexadecimal(a)}\t{hexadecimal(b)}\n" for a, b in normalization_rules.items()))
            options["normalization_rule_tsv"] = str(table)
        lines = [piece for line in CORPUS for piece in line.split("\n") if piece]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 3), model_prefix=f"{folder}/m", minloglevel=2, num_threads=1,
            hard_vocab_limit=False, **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **options})
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
        message = import_protobuf().ModelProto()
        message.ParseFromString(Path(f"{folder}/m.model").read_bytes())
    return model, message


def of_message(kind, message, **more):
    """A vocabulary with the pieces of a model, as converters write it."""
    pieces = message.pieces
    space = lambda p: p.piece.replace("▁", " ") if p.type == USER else p.piece
    return {"model": kind, "tokens": [space(p) for p in pieces], "scores": [p.score for p in pieces], "types": [p.type for p in pieces], **more}


def sentence_piece_cases():
    bpe = dict(model_type="bpe", vocab_size=700, byte_fallback=True, character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True)
    model, message = trained(**bpe)
    ends = {"bos": 1, "eos": 2, "unknown": 0}
    # SentencePiece itself finds no control tokens in texts.
    without = [t for t in TEXTS if "<s>" not in t]
    vocabulary = of_message("llama", message, **ends, add_bos=True)
    made = case("sentencepiece", "llama", vocabulary, model.encode, decode=model.decode, texts=without)
    yield made
    yield case("sentencepiece, control tokens", "llama", vocabulary, like=made, texts=["<s>a control</s> token<unk>", "</s>", " <s> <s>", "<0x0A>\n"])
    model, message = trained(**bpe, add_dummy_prefix=False, user_defined_symbols=["<tool>", "\n\n", "▁▁", "▁▁▁▁"])
    yield case("sentencepiece, no space before", "llama", of_message("llama", message, **ends, add_bos=True, add_eos=True, add_space_prefix=False),
               model.encode, decode=model.decode, texts=without, differs=NOT_USERS)
    model, message = trained(model_type="unigram", vocab_size=500, character_coverage=0.98, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    t5 = {"eos": 1, "unknown": 2, "padding": 0, "add_eos": True}
    yield case("unigram", "t5", of_message("t5", message, **t5), model.encode, texts=without)
    model, message = trained(model_type="unigram", vocab_size=500, character_coverage=0.98, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                             normalization_rules=RULES, remove_extra_whitespaces=True)
    charsmap = list(message.normalizer_spec.precompiled_charsmap)
    yield case("unigram, normalized", "t5", of_message("t5", message, **t5, remove_extra_spaces=True, charsmap=charsmap), model.encode, texts=without,
               differs=("knows no normalizers", lambda text: True))


# BPE as SentencePiece has it, trained by the package tokenizers, which lists merges.

PHI3 = ["<|endoftext|>", "<|assistant|>", *(f"<|placeholder{i}|>" for i in range(1, 7)), "<|system|>", "<|end|>", "<|user|>"]


def listed_cases():
    def made(specials):
        t = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        first = ["<unk>", "<s>", "</s>"]
        # The characters of other lines are unknown.
        lines = [piece for line in CORPUS[:4] for piece in line.split(", ")] * 3
        t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=600, special_tokens=first + bytes_, show_progress=False))
        model = json.loads(t.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get) + specials
        types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259 - len(specials)) + [CONTROL] * len(specials)
        merges = [tuple(m) for m in model["merges"]]
        # The trained tokenizer finds bytes in texts, as it was given them as special tokens.
        clean = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        clean.normalizer = t.normalizer
        clean.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        held = {"model": "llama", "tokens": tokens, "types": types, "scores": [0.0] * len(tokens), "merges": [" ".join(m) for m in merges],
                "bos": 1, "eos": 2, "unknown": 0}
        return clean, held

    t, held = made([])
    t.add_tokens([AddedToken(x, normalized=False, special=True) for x in ["<unk>", "<s>", "</s>"]])
    yield case("listed merges", "llama", held | {"add_bos": True}, lambda x: t.encode(x).ids, decode=t.decode)
    u, held = made(PHI3)
    strips = set(PHI3[1:]) | {"</s>"}
    u.add_tokens([AddedToken(x, normalized=False, special=True, rstrip=x in strips) for x in ["<unk>", "<s>", "</s>", *PHI3]])
    texts = ["<|user|>\n Hello, world!<|end|>\n<|assistant|>\n", "<|endoftext|>\n a<s>\n</s>\n b", "", "two  spaces\n"]
    yield case("phi3", "phi3", held | {"add_bos": False, "padding": len(held["tokens"]) - len(PHI3)}, lambda x: u.encode(x).ids, decode=u.decode, texts=texts,
               differs=("writes no ▁ for spaces", lambda text: True))


def main():
    logging.disable(logging.WARNING)
    cases = [*byte_level_cases(), *sentence_piece_cases(), *listed_cases()]
    OUT.write_text(json.dumps(cases, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
    print(OUT, OUT.stat().st_size, "bytes")


main()
