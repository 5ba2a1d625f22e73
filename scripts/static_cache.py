#!/usr/bin/env python3
"""Writes decoders that torch exports with transformers' static cache, and what transformers computes with them.

    python3 scripts/static_cache.py fixtures/torch/static-cache

Needs: pip install torch transformers. `llama.pt2` takes up to 8 tokens a run, `qwen2.pt2` one; both have a cache of 24 positions.
`NAME.logits.npy` has the logits f32[tokens, vocabulary] of the token ids in `ids.npy`, and `NAME.tokens.npy` the eight tokens that greedy
decoding appends to them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.integrations.executorch import convert_and_export_with_cache

IDS = [3, 17, 90, 41, 7, 7, 62, 11, 55, 28, 80, 4]
POSITIONS = 24
COMMON = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def model(kind):
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(kind(**COMMON), attn_implementation="sdpa").float().eval()
    for name, value in made.state_dict().items():
        if value.dim() == 1:
            value.copy_(float("bias" not in name) + 0.2 * torch.randn_like(value))
        else:
            value.copy_(torch.randn_like(value) / value.shape[-1] ** 0.5)
    return made


def expected(made):
    ids = torch.tensor([IDS])
    with torch.no_grad():
        logits = made(ids).logits[0].numpy()
        for _ in range(8):
            ids = torch.cat([ids, made(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return logits, ids[0, len(IDS) :].numpy()


def exported(made, several):
    made.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=POSITIONS,
        cache_config={"batch_size": 1, "max_cache_len": POSITIONS},
    )
    if not several:
        return convert_and_export_with_cache(made)
    tokens = torch.export.Dim("tokens", max=8)
    return convert_and_export_with_cache(
        made,
        example_input_ids=torch.zeros(1, 3, dtype=torch.long),
        example_cache_position=torch.arange(3),
        dynamic_shapes={"input_ids": {1: tokens}, "cache_position": {0: tokens}},
        strict=False,
    )


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    np.save(folder / "ids.npy", np.array(IDS, dtype=np.int64))
    for name, kind, several in [("llama", transformers.LlamaConfig, True), ("qwen2", transformers.Qwen2Config, False)]:
        made = model(kind)
        logits, tokens = expected(made)
        np.save(folder / f"{name}.logits.npy", logits)
        np.save(folder / f"{name}.tokens.npy", tokens)
        program = exported(made, several)
        # Places in source files are most of an archive.
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
            node.meta.pop("nn_module_stack", None)
            node.meta.pop("source_fn_stack", None)
        torch.export.save(program, folder / f"{name}.pt2")
        print(name, tokens)


if __name__ == "__main__":
    main()
