#!/usr/bin/env python3
"""Compare greedy decoding with ONNX Runtime's CPU provider, token by token.

    python3 scripts/greedy.py [--model target/models/qwen2-2l/model.onnx] [--wgfc target/release/wgfc]
                              [--steps 64] [--seeds 5]

Each seed is a prompt of five random tokens. `wgfc generate` runs it with the cache on the device
(WGFC_ADAPTER chooses which), ONNX Runtime with the cache handed from run to run. Prints a line a
seed; exits 1 when any token differs. Needs: pip install onnxruntime numpy, and the model's weights
(scripts/reference.py qwen2-2l).
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent


def reference(session, prompt, steps):
    """The tokens that ONNX Runtime chooses, and the least lead of a chosen logit over the next."""
    caches = [i for i in session.get_inputs() if i.name.startswith("past_key_values")]
    dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    shape = lambda i: [1, i.shape[1], 0, i.shape[3]]
    state = {i.name: np.zeros(shape(i), dtype[i.type]) for i in caches}
    names = [o.name for o in session.get_outputs()]
    tokens, feed, past, lead = [], list(prompt), 0, np.inf
    for _ in range(steps):
        inputs = {"input_ids": np.array([feed]), "position_ids": np.arange(past, past + len(feed))[None]}
        outputs = dict(zip(names, session.run(None, inputs | state)))
        logits = outputs["logits"][0, -1]
        top = np.sort(logits)[-2:]
        lead = min(lead, float(top[1] - top[0]))
        past += len(feed)
        feed = [int(logits.argmax())]
        tokens += feed
        state = {i.name: outputs[i.name.replace("past_key_values", "present")] for i in caches}
    return tokens, lead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "target/models/qwen2-2l/model.onnx")
    parser.add_argument("--wgfc", type=Path, default=ROOT / "target/release/wgfc")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    session = onnxruntime.InferenceSession(str(options.model), providers=["CPUExecutionProvider"])
    vocabulary = [o for o in session.get_outputs() if o.name == "logits"][0].shape[-1]
    bad = 0
    for seed in range(options.seeds):
        prompt = np.random.default_rng(seed).integers(0, vocabulary, 5).tolist()
        want, lead = reference(session, prompt, options.steps)
        command = [options.wgfc, "generate", options.model, "--tokens", ",".join(map(str, prompt))]
        command += ["--max-new-tokens", str(options.steps), "--capacity", "128", "--json", "--quiet"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        got = json.loads(run.stdout)["tokens"]
        same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
        bad += same < len(want)
        print(f"seed {seed}: {same} of {len(want)} tokens the same; the least lead of a choice {lead:.2e}", flush=True)
    sys.exit(bad > 0)


main()
