#!/usr/bin/env python3
"""Tests examples/ray_serve.py with two replicas on a software adapter: answers are those of one server, both replicas give some, and requests
are answered again after the server of one has been killed.

    pip install "ray[serve]" aiohttp
    scripts/ray_serve.py target/debug/wgfc

Not part of CI: it installs Ray."""

import asyncio
import json
import os
import pathlib
import random
import signal
import sys

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
root = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "examples"))

import aiohttp  # noqa: E402
import ray  # noqa: E402
import ray_serve  # noqa: E402
from ray import serve  # noqa: E402

MODEL = root / "fixtures/decoders/llama/model.gguf"
PORT = 8765
URL = f"http://127.0.0.1:{PORT}/v1"


async def complete(session, prompt, stream):
    body = dict(model="model", prompt=prompt, max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True, stream=stream)
    async with session.post(f"{URL}/completions", json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, (answer.status, text)
        replica = answer.headers["x-replica"]
    if not stream:
        return json.loads(text)["choices"][0]["token_ids"], replica
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    ids = [i for e in events for c in json.loads(e)["choices"] for i in c.get("token_ids") or []]
    return ids, replica


async def test(prompts):
    async with aiohttp.ClientSession() as session:
        alone = [(await complete(session, p, False))[0] for p in prompts]
        both = await asyncio.gather(*(complete(session, p, i % 2 == 0) for i, p in enumerate(prompts * 4)))
        assert [ids for ids, _ in both] == alone * 4, "answers of requests at once are those of single ones"
        replicas = {r for _, r in both}
        assert len(replicas) == 2, replicas
        # One server is killed: its replica is started again.
        servers = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and is_server(p)]
        assert len(servers) == 2, servers
        os.kill(servers[0], signal.SIGKILL)
        for attempt in range(60):
            await asyncio.sleep(1)
            done = await asyncio.gather(*(complete(session, p, False) for p in prompts * 2), return_exceptions=True)
            if not any(isinstance(d, BaseException) for d in done) and len({r for _, r in done}) == 2:
                assert [ids for ids, _ in done] == alone * 2
                print(f"two replicas again after {attempt + 1} s")
                return
        raise SystemExit(f"the replica did not come back: {done}")


def is_server(process):
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(words) > 2 and words[1] == b"api" and words[2] == str(MODEL).encode()


def main():
    program = str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug/wgfc").resolve())
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    options = ["--adapter", os.environ.get("WGFC_ADAPTER", "llvmpipe"), "--batch", "4", "--capacity", "128"]
    serve.run(ray_serve.application(str(MODEL), options, replicas=2, program=program))
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 90) for _ in range(rng.randrange(1, 40))] for _ in range(8)]
    asyncio.run(test(prompts))
    serve.shutdown()
    ray.shutdown()
    print("passed")


if __name__ == "__main__":
    main()
