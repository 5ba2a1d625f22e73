"""Language models in Python: files, prompts, tokens, chat."""

import json
import re
import shutil
import threading

import numpy as np
import pytest
import wgfc
from conftest import ROOT

CHAT = ROOT / "fixtures" / "chat"
DECODERS = ROOT / "fixtures" / "decoders"


@pytest.fixture
def folder(tmp_path):
    """A folder with a small decoder, a tokenizer and chat templates."""
    shutil.copy(ROOT / "fixtures" / "small" / "decoder" / "model.onnx", tmp_path)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(CHAT / "decoder" / name, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shared():
    """A small decoder that tests leave without tokens."""
    return wgfc.Generator(ROOT / "fixtures" / "small" / "decoder" / "model.onnx", capacity=128)


@pytest.fixture
def generator(folder):
    return wgfc.Generator(folder, capacity=128)


def test_templates_give_what_transformers_gives(folder):
    cases = json.loads((CHAT / "cases.json").read_text(encoding="utf-8"))
    count = 0
    for case in cases["cases"]:
        template = (CHAT / f"{case['template']}.jinja").read_text(encoding="utf-8")
        options = dict(case["options"])
        if "strftime_now" in template and "date_string" not in options:
            continue  # The text has the date of the day on which it was written.
        config = {**cases["special"], "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        decoder = wgfc.Decoder(folder)
        if "error" in case:
            with pytest.raises(wgfc.ModelError) as e:
                decoder.apply_chat_template(case["messages"], tokenize=False, **options)
            assert case["error"] in str(e.value)
        else:
            text = decoder.apply_chat_template(case["messages"], tokenize=False, **options)
            assert text == case["text"], case["template"]
        count += 1
    assert count > 20


def test_files_of_a_decoder(folder, small):
    decoder = wgfc.Decoder(folder)
    assert decoder.has_tokenizer and decoder.has_chat_template and decoder.stop_tokens == [2]
    ids = decoder.encode("why is the sky blue ?")
    assert ids[0] == 1 and decoder.decode(ids) == "why is the sky blue ?"
    messages = [{"role": "user", "content": "why ?"}]
    prompt = decoder.apply_chat_template(messages)
    assert prompt == [1, 3, *decoder.encode("why ?")[1:], 4]
    assert decoder.apply_chat_template(messages, tokenize=False) == "<s><|user|> why ?<|assistant|>"
    assert decoder.apply_chat_template(messages, add_generation_prompt=False) == prompt[:-1]
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert decoder.apply_chat_template(messages, tools, tokenize=False).startswith("<s><|system|> 1<|user|>")

    alone = wgfc.Decoder(small("decoder"))
    assert not alone.has_tokenizer and not alone.has_chat_template and alone.stop_tokens == []
    with pytest.raises(wgfc.ModelError, match="without a tokenizer"):
        alone.encode("why ?")
    with pytest.raises(wgfc.ModelError, match="chat template|tokenizer"):
        alone.apply_chat_template(messages)
    with pytest.raises(wgfc.ModelError):
        wgfc.Decoder(folder / "none")
    with pytest.raises(wgfc.UnsupportedError, match="not a decoder"):
        wgfc.Generator(small("mlp"))


@pytest.mark.parametrize(
    "name, model, logits",
    [("llama", "model.gguf", "gguf_logits.npy"), ("llama", ".", "logits.npy"), ("qwen3moe", ".", "logits.npy")],
)
def test_gguf_files_and_checkpoints(tmp_path, name, model, logits):
    path = DECODERS / name / model
    if model == ".":
        # The folder of the fixture also has the model as GGUF.
        path = tmp_path
        for file in ["config.json", "generation_config.json", "model.safetensors"]:
            shutil.copy(DECODERS / name / file, path)
    generator = wgfc.Generator(path, capacity=32, prompt_chunk=5)
    ids = np.load(DECODERS / "ids.npy")[0].tolist()
    want = np.load(DECODERS / name / logits)[0].argmax(-1)
    for n in [1, 4, 12]:
        assert list(generator.complete(ids[:n], max_new_tokens=1, temperature=0, stop=[])) == [want[n - 1]]
        assert len(generator) == n + 1
    assert generator.vocabulary == 96 and generator.capacity == 32


def test_tokens_stream_and_stay_in_the_cache(generator):
    ids = [1, 3, 6, 8, 4]
    tokens = generator.generate(ids, max_new_tokens=6, stop=[])
    assert iter(tokens) is tokens and len(generator) == 0
    first = next(tokens)
    assert len(generator) == len(ids) + 1
    rest = list(tokens)
    assert len(rest) == 5 and len(generator) == 11 and list(tokens) == []

    # The sequence goes on, or begins again; equal prompts have equal answers.
    list(generator.generate([7], max_new_tokens=2, stop=[]))
    assert len(generator) == 14
    assert list(generator.complete(ids, max_new_tokens=6, stop=[])) == [first, *rest]
    generator.rewind(2)
    assert len(generator) == 2
    assert list(generator.generate(ids[2:], max_new_tokens=6, stop=[])) == [first, *rest]
    generator.reset()
    assert len(generator) == 0
    assert list(generator.generate(ids, max_new_tokens=6, stop=[first])) == [first]
    # A text is encoded; without a number of tokens, the cache is filled.
    generator.reset()
    assert len(list(generator.generate("why is the sky blue ?", stop=[]))) == 128 - 7
    assert generator.memory()["total"] == sum(v for k, v in generator.memory().items() if k != "total")
    assert generator.adapter.name and generator.decoder.has_tokenizer


def test_sampling(generator):
    draw = lambda **options: list(generator.complete([1, 3], max_new_tokens=20, stop=[], **options))
    assert draw(temperature=1.0, seed=3) == draw(temperature=1.0, seed=3) != draw(temperature=1.0, seed=4)
    assert draw(temperature=0) == draw() == draw(top_k=1)
    for bad in [{"temperature": -1.0}, {"top_p": 2.0}, {"top_k": 0}]:
        with pytest.raises(wgfc.ModelError):
            draw(**bad)



def test_each_parameter_changes_what_is_drawn(generator):
    draw = lambda **options: list(generator.complete([1, 3], max_new_tokens=20, stop=[], **options))
    greedy, free = draw(), draw(temperature=3.0, seed=1)
    # Only the most likely token has the whole of the largest probability.
    assert draw(temperature=3.0, seed=1, min_p=1.0) == greedy != free
    assert draw(temperature=3.0, seed=1, min_p=0.0) == free
    # A bias decides, whatever the logits are; one against a token excludes it.
    assert draw(logit_bias={7: 1e6}) == [7] * 20
    assert greedy[0] not in draw(logit_bias={greedy[0]: -1e6})
    # A large penalty lets no token come twice.
    for name in ["presence_penalty", "frequency_penalty"]:
        assert len(set(draw(**{name: 1e4}))) == 20
    # The repetition penalty alone counts tokens of the prompt: less than 1, it makes the most likely of them certain.
    vocabulary = range(generator.vocabulary)
    for prompt in [list(vocabulary[::2]), list(vocabulary[1::2])]:
        first = lambda **options: next(generator.complete(prompt, max_new_tokens=1, stop=[], **options))
        likely = first(logit_bias={t: -1e6 for t in vocabulary if t not in prompt})
        assert first(repetition_penalty=1e-6) == likely in prompt
        assert first(presence_penalty=-1e6) == first(frequency_penalty=-1e6) == first()
    assert draw(repetition_penalty=1.0, presence_penalty=0.0, logit_bias={}, min_p=None) == greedy


def test_log_probabilities_are_those_of_the_model(generator):
    vocabulary = generator.vocabulary
    tokens = generator.complete([1, 3], max_new_tokens=4, stop=[], logprobs=20)
    assert tokens.logprobs is None
    seen = []
    for token in tokens:
        got = tokens.logprobs
        values = [p for _, p in got.top]
        assert len(got.top) == 20 == len({t for t, _ in got.top}) and values == sorted(values, reverse=True)
        # A greedy choice is the most likely token, and probabilities add up to no more than 1.
        assert got.top[0] == (token, got.chosen) and sum(np.exp(values)) <= 1 + 1e-5
        seen.append((token, got.chosen))
    # A bias changes the choice, and not the log-probabilities.
    other = next(t for t, _ in got.top[1:])
    tokens = generator.complete([1, 3], max_new_tokens=1, stop=[], logprobs=2, logit_bias={other: 1e6})
    assert list(tokens) == [other] and tokens.logprobs.top[0] == pytest.approx(seen[0], abs=1e-5)
    assert tokens.logprobs.chosen < seen[0][1] and "chosen=" in repr(tokens.logprobs)
    # Each token's probability, asked for one by one, is a distribution over the vocabulary.
    chosen = []
    for token in range(vocabulary):
        tokens = generator.complete([1, 3], max_new_tokens=1, stop=[], logprobs=0, logit_bias={token: 1e6})
        assert list(tokens) == [token] and tokens.logprobs.top == []
        chosen.append(tokens.logprobs.chosen)
    assert np.exp(np.array(chosen, np.float64)).sum() == pytest.approx(1, abs=1e-5)
    tokens = generator.complete([1, 3], max_new_tokens=1)
    assert next(tokens) >= 0 and tokens.logprobs is None


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "e": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a", "e"],
    "additionalProperties": False,
}


def test_output_has_the_form_that_is_asked_for(folder):
    # Tokens that spell JSON.
    tokenizer = json.loads((ROOT / "fixtures" / "tokenizers" / "bpe.json").read_text())
    words = ["<s>", "</s>", *"{}\":,[]", "Ġ", *"0123456789truefalsn"]
    words = [*dict.fromkeys(words), "true", "false", '":', '{"', "null", "\\", "-", "Ċ"]
    tokenizer["model"] |= {"vocab": {word: i for i, word in enumerate(words)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    generator = wgfc.Generator(folder, capacity=256)

    def drawn(seed, **form):
        # A high temperature and a bias against the end would break every form.
        options = {"temperature": 3.0, "seed": seed, "logit_bias": {1: -3.0}}
        return generator.complete([20, 3], max_new_tokens=150, **options, **form).text()

    for seed in range(3):
        for schema in [SCHEMA, json.dumps(SCHEMA)]:
            made = json.loads(drawn(seed, json_schema=schema))
            assert isinstance(made["a"], bool) and 0 <= made["e"] <= 99 and len(made) == 2
        assert re.fullmatch("(true|false|9{2,3}):[etr]{3}", drawn(seed, regex="(true|false|9{2,3}):[etr]{3}"))
        text = drawn(seed, grammar='start: list\nlist: "[" (list ("," list)?)? "]" | /[0-9]/')
        assert re.fullmatch(r"[\[\],0-9]+", text) and text.count("[") == text.count("]")
    assert drawn(0, regex="a{3}") == drawn(1, regex="a{3}") == "aaa"

    for form, told in [
        ({"json_schema": {"type": "strange"}}, "JSON schema"),
        ({"json_schema": "{"}, "JSON schema"),
        ({"regex": "("}, "regular expression"),
        ({"grammar": "begin: /a/"}, "grammar"),
    ]:
        with pytest.raises(wgfc.ModelError, match=told):
            drawn(0, **form)
    # A refused form leaves the sequence as it was.
    assert drawn(0, regex="a{3}") == "aaa"


def test_forms_need_a_tokenizer(small):
    generator = wgfc.Generator(small("decoder"), capacity=32)
    with pytest.raises(wgfc.ModelError, match="tokenizer"):
        generator.generate([1], regex="a")


@pytest.mark.parametrize(
    "error, options, told",
    [
        (TypeError, {"temperature": "hot"}, "temperature: give a number, not 'hot'"),
        (TypeError, {"top_k": 1.5}, "top_k: give a whole number"),
        (ValueError, {"top_k": -1}, "top_k: give a whole number, at least 0, not -1"),
        (TypeError, {"logit_bias": [(1, 2.0)]}, "logit_bias: give a dict from token ids to numbers"),
        (TypeError, {"logit_bias": {"a": 1.0}}, "logit_bias: give a dict"),
        (TypeError, {"regex": b"a"}, "regex: give a text"),
        (TypeError, {"json_schema": {1, 2}}, "json_schema: give a dict"),
        (TypeError, {"regex": "a", "grammar": "b"}, "json_schema, regex and grammar: give one"),
        (TypeError, {"temprature": 1.0}, "generate.* unexpected keyword argument 'temprature'"),
        (wgfc.ModelError, {"min_p": 1.5, "temperature": 1.0}, "min-p is 1.5"),
        (wgfc.ModelError, {"repetition_penalty": 0.0}, "repetition penalty is 0"),
        (wgfc.ModelError, {"presence_penalty": float("nan")}, "presence penalty"),
        (wgfc.ModelError, {"frequency_penalty": float("inf")}, "frequency penalty"),
        (wgfc.ModelError, {"logit_bias": {10**6: 1.0}}, "logit bias of token 1000000"),
        (wgfc.ModelError, {"logprobs": 21}, "log-probabilities of 21 tokens"),
    ],
)
def test_errors_name_the_parameter(shared, error, options, told):
    with pytest.raises(error, match=told):
        shared.generate([1, 3], **options)
    assert len(shared) == 0

def test_a_conversation(generator):
    decoder = generator.decoder
    messages = [{"role": "system", "content": "you"}]
    fresh = wgfc.Generator(decoder, capacity=128)
    for question in ["why is the sky blue ?", "and the sea ?"]:
        messages.append({"role": "user", "content": question})
        pieces = list(generator.chat(messages, max_new_tokens=5).pieces())
        answer = "".join(pieces)
        assert len(pieces) <= 5
        # The cache has the beginning of the conversation, and the answer is that of the whole prompt.
        prompt = decoder.apply_chat_template(messages)
        fresh.reset()
        tokens = list(fresh.generate(prompt, max_new_tokens=5))
        assert answer == decoder.decode([t for t in tokens if t != 2])
        fresh.reset()
        assert fresh.chat(messages, max_new_tokens=5).text() == answer
        messages.append({"role": "assistant", "content": answer})
    # Tools choose another template, and tokens of `stop` end an answer beside the model's own.
    tools = [{"type": "function", "function": {"name": "clock"}}]
    first = next(fresh.chat(messages[:2], tools, max_new_tokens=5))
    assert list(fresh.chat(messages[:2], tools, max_new_tokens=5, stop=[first])) == [first]
    assert fresh.chat(messages[:2], tools, max_new_tokens=5, stop=[first]).text() == ""


def test_errors_of_generators(generator, folder):
    for bad in ["hello", [{"role": 3}], [{"content": "x"}], [3], [{"role": "user", "content": 3}]]:
        with pytest.raises((TypeError, ValueError), match="messages"):
            generator.chat(bad)
    with pytest.raises((TypeError, ValueError)):
        generator.chat([{"role": "user", "content": float("nan")}])
    with pytest.raises(TypeError):
        generator.chat([{"role": "user", "content": object()}])
    with pytest.raises(TypeError, match="prompt"):
        generator.generate({"a": 1})
    for bad in [[], [10**6], [-1], list(range(5)) * 40]:
        with pytest.raises(wgfc.ModelError):
            generator.complete(bad)
    with pytest.raises(wgfc.ModelError, match="capacity"):
        generator.generate([1], max_new_tokens=1000)
    with pytest.raises(wgfc.ModelError):
        generator.rewind(1000)
    assert len(generator) == 0
    for options in [{"precision": "f8"}, {"weights": "q3"}, {"activations": "q4"}, {"keep_f32": ["a"]}]:
        with pytest.raises(ValueError):
            wgfc.Generator(folder, **options)
    with pytest.raises(wgfc.ModelError):
        wgfc.Generator(folder, capacity=0)

    # Another use of the generator ends the tokens before.
    tokens = generator.generate([1, 3], max_new_tokens=5, stop=[])
    next(tokens)
    other = generator.complete([1, 3], max_new_tokens=5, stop=[])
    assert next(other) >= 0
    with pytest.raises(wgfc.ModelError, match="gone on otherwise"):
        next(tokens)
    assert list(tokens) == [] and len(list(other)) == 4


def test_threads_share_a_generator(generator):
    want = list(generator.complete([1, 3], max_new_tokens=8, stop=[]))
    lock, got = threading.Lock(), []

    def work():
        for _ in range(3):
            with lock:
                got.append(list(generator.complete([1, 3], max_new_tokens=8, stop=[])))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == [want] * 9


def test_a_decoder_reads_what_an_encoder_made():
    at = ROOT / "fixtures" / "torch" / "whisper"
    encoder = wgfc.Session(wgfc.compile(at / "encoder.onnx"))
    encoded = encoder.run({"input_features": np.load(at / "input_features.npy")})["last_hidden_state"]
    generator = wgfc.Generator(at / "decoder.onnx", capacity=24, context={"encoder_hidden_states": encoded})
    want = np.load(at / "tokens.npy").tolist()
    for _ in range(2):
        assert list(generator.complete([1], max_new_tokens=len(want))) == want
    with pytest.raises(wgfc.UnsupportedError, match="encoder_hidden_states"):
        wgfc.Generator(at / "decoder.onnx")
    with pytest.raises(wgfc.ModelError, match="no input `encoded`"):
        wgfc.Generator(at / "decoder.onnx", context={"encoded": encoded, "encoder_hidden_states": encoded})


@pytest.mark.parametrize("name", ["idefics3", "llava"])
def test_pictures(name):
    at = ROOT / "fixtures" / "torch" / "vision-language"
    want = json.loads((at / name / "expected.json").read_text())
    generator = wgfc.Generator(at / name, capacity=96)
    pixels = np.load(at / name / "pixel_values.npy")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is this ?"}]}]
    ten = {"max_new_tokens": 10, "stop": [9999], "temperature": 0}
    assert list(generator.chat(messages, images=[pixels], **ten))[:8] == want["tokens"][:8]
    assert list(generator.complete(want["input_ids"], images=[pixels], **ten)) == want["tokens"]
    pictures = [at / "picture.png", (at / "other.png").read_bytes()]
    assert list(generator.complete("<s> compare <image> and <image> :", images=pictures, **ten)) == want["two_tokens"]
    assert list(generator.complete("<s> the sea is", **ten)) == want["text_tokens"]
    with pytest.raises(wgfc.ModelError, match="2 places for pictures"):
        generator.complete("<image> and <image>", images=pictures[:1])
    with pytest.raises(TypeError, match="a list of pictures"):
        generator.complete("<image>", images="picture.png")
    with pytest.raises(wgfc.ModelError, match="not a picture"):
        generator.complete("<image>", images=[b"text"])


def test_static_caches_of_torch():
    at = ROOT / "fixtures" / "torch" / "static-cache"
    generator = wgfc.Generator(at / "llama.pt2")
    assert generator.capacity == 24
    tokens = generator.generate(np.load(at / "ids.npy").tolist(), max_new_tokens=8, stop=[])
    assert list(tokens) == np.load(at / "llama.tokens.npy").tolist()


def test_fewer_bits(folder):
    told = []
    generator = wgfc.Generator(
        folder, precision="f16", weights="q8", cache=False, progress=lambda *now: told.append(now)
    )
    assert len(list(generator.generate([1, 3], max_new_tokens=3, stop=[]))) == 3
    assert all(what == "kernels" for what, _, _ in told)
