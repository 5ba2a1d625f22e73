#!/usr/bin/env python3
"""Drive `wgfc api` with the package `openai`: completions whole and streamed, several clients, errors, clients that go away.

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
    finally:
        server.terminate()
        server.wait()
print("all answers are as they should be")
