#!/usr/bin/env python3
"""Drive `wgfc api` with the package `openai`: completions whole and streamed, embeddings, several clients, errors, clients that
go away.

    python3 scripts/openai_client.py [WGFC]      the program; without it target/debug/wgfc

Not part of CI: it needs the Python package openai. The model is fixtures/small/decoder-batch with a tokenizer of letters, on the
adapter that WGFC_ADAPTER names.
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import openai

ROOT = Path(__file__).parent.parent
KEY = "a-key"


def make_model(folder):
    """A folder with the decoder, which knows 37 tokens, and a tokenizer of as many."""
    folder.mkdir()
    shutil.copy(ROOT / "fixtures/small/decoder-batch/model.onnx", folder)
    tokenizer = json.loads((ROOT / "fixtures/tokenizers/bpe.json").read_text())
    letters = {t: i for t, i in tokenizer["model"]["vocab"].items() if i < 32}
    tokenizer["model"]["vocab"] = letters | {str(i): 32 + i for i in range(5)}
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def make_model_of_json(folder):
    """Writes a model whose tokens spell JSON, with a chat template."""
    make_model(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = ["<s>", "</s>", *'{}":,[]', "Ġ", *"0123456789", *"truefalsnmgobi-ck"]
    tokenizer["model"]["vocab"] = {t: i for i, t in enumerate(dict.fromkeys(tokens))}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')


def check_forms(client):
    """Answers by a schema and calls of functions, whole and streamed."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a", "n"],
        "additionalProperties": False,
    }
    asked = {"model": "json", "messages": [{"role": "user", "content": "a"}], "max_tokens": 300, "temperature": 1.5}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answers = client.chat.completions.create(**asked, n=3, seed=1, response_format=form, logprobs=True, top_logprobs=3)
    for choice in answers.choices:
        made = json.loads(choice.message.content)
        assert isinstance(made["a"], bool) and 0 <= made["n"] <= 99 and choice.finish_reason == "stop"
        assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in choice.logprobs.content)
    assert len(answers.choices) == 3
    tools = [{"type": "function", "function": {"name": "sum", "parameters": schema}}]
    for choice in ("required", {"type": "function", "function": {"name": "sum"}}):
        answer = client.chat.completions.create(**asked, tools=tools, tool_choice=choice).choices[0]
        call = answer.message.tool_calls[0].function
        assert call.name == "sum" and set(json.loads(call.arguments)) == {"a", "n"} and answer.finish_reason == "tool_calls"
        parts = list(client.chat.completions.create(**asked, tools=tools, tool_choice=choice, stream=True))
        calls = [c for p in parts for c in p.choices[0].delta.tool_calls or []]
        assert [c.function.name for c in calls] == ["sum"] and json.loads(calls[0].function.arguments)
    for bad in ({"type": "strange"}, {"$ref": "#"}, {"type": "string", "pattern": "(" * 3000}):
        try:
            client.chat.completions.create(**asked, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": bad}})
            raise AssertionError(f"{bad} is accepted")
        except openai.BadRequestError as e:
            assert e.param == "response_format", e


def check_embeddings(client):
    """Vectors of several texts, by themselves and together; the client asks for base64 unless it is told otherwise."""

    def vectors(**asked):
        return [d.embedding for d in client.embeddings.create(model="model", **asked).data]

    def near(a, b):
        return len(a) == len(b) and all(abs(x - y) < 1e-5 for x, y in zip(a, b))

    texts = ["the sea", "a", "the sea the sea", "salt"]
    together = vectors(input=texts)
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        alone = list(clients.map(lambda t: vectors(input=t, encoding_format="float")[0], texts * 4))
    assert all(near(a, b) for a, b in zip(alone, together * 4))
    assert all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in together) and not near(together[0], together[1])
    answer = client.embeddings.create(model="model", input=[[3, 1], [5]], dimensions=4)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 3 and len(answer.data[1].embedding) == 4
    for bad in ({"input": []}, {"input": [[99]]}, {"input": "a", "dimensions": 9999}, {"input": ["a"] * 2049}):
        try:
            vectors(**bad)
            raise AssertionError(f"{bad} is accepted")
        except openai.BadRequestError as e:
            assert e.param in bad, e


def fails(kind, **arguments):
    """The error of a completion that the client must raise."""
    try:
        client.completions.create(**({"model": "model", "prompt": "a"} | arguments))
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__} for {arguments}")


def metric(name):
    request = urllib.request.Request(f"{base}/../metrics".replace("/v1/..", ""), headers={"Authorization": f"Bearer {KEY}"})
    lines = urllib.request.urlopen(request).read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def complete(i, stream):
    """The text of a greedy completion."""
    arguments = {"model": "model", "prompt": "the sea "[: 1 + i % 8], "max_tokens": 5 + i, "temperature": 0}
    if not stream:
        return client.completions.create(**arguments).choices[0].text
    parts = client.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
    parts = list(parts)
    assert parts[-1].usage.completion_tokens == 5 + i and not parts[-1].choices
    return "".join(p.choices[0].text for p in parts[:-1])


with tempfile.TemporaryDirectory() as folder:
    make_model(Path(folder) / "model")
    program = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/wgfc").resolve()
    words = [program, "api", "model", "--batch", "3", "--queue", "32", "--capacity", "4096"]
    environment = os.environ | {"WGFC_API_KEY": KEY, "WGFC_CACHE_DIR": folder}
    server = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        base = server.stdout.readline().strip()
        client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
        assert [m.id for m in client.models.list()] == ["model"]
        assert client.models.retrieve("model").id == "model"

        alone = [complete(i, stream=False) for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            for stream in (True, False):
                assert list(clients.map(lambda i: complete(i, stream), range(12))) == alone
        drawn = [
            client.completions.create(model="model", prompt=[3, 1], max_tokens=20, seed=7, extra_body={"top_k": 9}) for _ in range(2)
        ]
        assert drawn[0].choices[0].text == drawn[1].choices[0].text
        assert drawn[0].usage.total_tokens == 22 and drawn[0].choices[0].finish_reason == "length"

        def text(**arguments):
            more = {"model": "model", "prompt": "the sea", "max_tokens": 12, "temperature": 0}
            return client.completions.create(**(more | arguments)).choices[0].text

        greedy = text()
        assert len(set(text(frequency_penalty=2, presence_penalty=2))) > len(set(greedy))
        assert text(extra_body={"repetition_penalty": 1.0, "min_p": 0.5}) == greedy
        assert set(text(logit_bias={"5": 100})) == {text(logit_bias={"5": 100}, max_tokens=1)}

        for n in (1, 3):
            several = client.completions.create(model="model", prompt=["a", "b"], max_tokens=4, n=n, seed=3, logprobs=2)
            assert [c.index for c in several.choices] == list(range(2 * n))
            assert all(len(c.logprobs.token_logprobs) == 4 and len(c.logprobs.top_logprobs[0]) == 2 for c in several.choices)
        said = text(max_tokens=30, temperature=1, seed=2, extra_body={"structured_outputs": {"regex": "(sea|the){4}"}})
        assert len(said) == 12 and set(said) <= set("seathe")

        assert fails(openai.BadRequestError, extra_body={"structured_outputs": {"regex": "("}}).param == "structured_outputs"
        assert fails(openai.BadRequestError, logit_bias={"5": 101}).param == "logit_bias"
        assert fails(openai.BadRequestError, logit_bias={"37": 1}).code == "invalid_value"
        assert fails(openai.BadRequestError, temperature=3).param == "temperature"
        assert fails(openai.BadRequestError, extra_body={"colour": "red"}).code == "unknown_parameter"
        assert fails(openai.BadRequestError, max_tokens=5000).code == "context_length_exceeded"
        assert fails(openai.NotFoundError, model="other").code == "model_not_found"
        stranger = openai.OpenAI(base_url=base, api_key="another", max_retries=0)
        try:
            stranger.models.list()
            raise AssertionError("a wrong key is accepted")
        except openai.AuthenticationError as e:
            assert e.code == "invalid_api_key"

        # A client that reads a part of a stream and leaves.
        stream = client.completions.create(model="model", prompt="a", max_tokens=4000, temperature=0, stream=True)
        next(iter(stream))
        stream.close()
        end = time.monotonic() + 30
        while metric("wgfc_sequences_running") and time.monotonic() < end:
            time.sleep(0.02)
        assert metric("wgfc_sequences_running") == 0 and metric("wgfc_cancelled_total") == 1
        server.terminate()
        server.wait()

        make_model_of_json(Path(folder) / "json")
        words[2] = "json"
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        check_forms(openai.OpenAI(base_url=server.stdout.readline().strip(), api_key=KEY, max_retries=0))
        server.terminate()
        server.wait()

        words = [program, "api", "model", "--embeddings"]
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        check_embeddings(openai.OpenAI(base_url=server.stdout.readline().strip(), api_key=KEY, max_retries=0))
    finally:
        server.terminate()
        server.wait()
print("all answers are as they should be")
