#!/usr/bin/env python3
"""Loads a server of OpenAI's protocol with clients that each wait for their answer before they ask again, as `vllm bench serve
--max-concurrency` does, and prints requests and tokens a second, the time to the first token, and the time between tokens.

    wgfc api model.gguf --port 8000 --batch 64 &
    scripts/load.py http://127.0.0.1:8000 --clients 1 --clients 64 --requests 256 --prompt 128 --tokens 128

Prompts are random token ids, which differ from request to request, so that no beginning is shared; answers have exactly `--tokens`
tokens (`ignore_eos`). `--kill N` makes N more requests whose clients go away in the middle. Needs nothing but Python."""

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.parse


async def ask(address, path, body, on_part, parts=None):
    """Sends a request and calls `on_part` for each event of the answer; goes away after `parts` of them."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        status = (await reader.readline()).decode().strip()
        if " 200 " not in status + " ":
            raise SystemExit(f"{status}: {(await reader.read()).decode(errors='replace')}")
        async for line in reader:
            line = line.strip()
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                on_part(json.loads(line[6:]))
                if parts is not None:
                    parts -= 1
                    if parts <= 0:
                        return
    finally:
        writer.close()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def load(address, options, clients, requests):
    """Figures of `requests` answers for `clients` clients."""
    rng = random.Random(clients)
    left = iter(range(requests))
    first, between, tokens = [], [], 0

    async def client():
        nonlocal tokens
        for _ in left:
            prompt = [rng.randrange(10, options.vocabulary) for _ in range(options.prompt)]
            body = dict(model=options.model, prompt=prompt, max_tokens=options.tokens, temperature=0,
                        ignore_eos=True, stream=True, return_token_ids=True)
            last = began = time.perf_counter()

            def part(event):
                nonlocal last, tokens
                count = sum(len(c.get("token_ids") or []) for c in event.get("choices", []))
                if count:
                    now = time.perf_counter()
                    (first if last == began else between).append(now - last)
                    last, tokens = now, tokens + count

            await ask(address, options.path, body, part)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    return {
        "clients": clients,
        "requests": requests,
        "requests_per_second": requests / seconds,
        "tokens_per_second": tokens / seconds,
        "first_token_ms": {"p50": 1e3 * percentile(first, 0.5), "p99": 1e3 * percentile(first, 0.99)},
        "inter_token_ms": {
            "mean": 1e3 * statistics.fmean(between) if between else float("nan"),
            "p50": 1e3 * percentile(between, 0.5),
            "p99": 1e3 * percentile(between, 0.99),
        },
    }


async def kill(address, options, count, at_once=32):
    """Makes `count` requests that end after a few tokens, as their clients go away."""
    rng = random.Random(count)
    left = iter(range(count))

    async def client():
        for _ in left:
            prompt = [rng.randrange(10, options.vocabulary) for _ in range(rng.randrange(1, options.prompt))]
            body = dict(model=options.model, prompt=prompt, max_tokens=options.tokens, ignore_eos=True, stream=True)
            await ask(address, options.path, body, lambda _: None, parts=rng.randrange(1, 8))

    await asyncio.gather(*(client() for _ in range(at_once)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--clients", type=int, action="append", help="the number of clients at once; may be repeated")
    p.add_argument("--requests", type=int, default=256, help="the number of answers for each number of clients")
    p.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    p.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    p.add_argument("--vocabulary", type=int, default=30000, help="prompts have ids from 10 to this")
    p.add_argument("--kill", type=int, default=0, help="requests whose clients go away")
    p.add_argument("--json", action="store_true")
    options = p.parse_args()
    url = urllib.parse.urlsplit(options.url)
    address = (url.hostname, url.port or 80)
    options.path = url.path.rstrip("/") + "/v1/completions"

    async def model():
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).split(b"\r\n\r\n", 1)[1]
        writer.close()
        return json.loads(answer[answer.index(b"{"):answer.rindex(b"}") + 1])["data"][0]["id"]

    options.model = asyncio.run(model())
    if options.kill:
        asyncio.run(kill(address, options, options.kill))
    if not options.json:
        print(f"{'clients':>8} {'requests/s':>11} {'tokens/s':>9} {'first p50':>10} {'p99 ms':>8} {'between p50':>12} {'p99 ms':>8}")
    for clients in options.clients or [1, 8, 64]:
        r = asyncio.run(load(address, options, clients, max(clients, options.requests if clients > 1 else options.requests // 16)))
        if options.json:
            print(json.dumps(r), flush=True)
        else:
            f, b = r["first_token_ms"], r["inter_token_ms"]
            print(f"{clients:8} {r['requests_per_second']:11.2f} {r['tokens_per_second']:9.0f} {f['p50']:10.1f} {f['p99']:8.1f} "
                  f"{b['p50']:12.2f} {b['p99']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
