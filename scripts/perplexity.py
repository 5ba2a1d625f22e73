#!/usr/bin/env python3
"""Trains a small language model on Python's own documentation and library, and measures what formats cost in perplexity.

    python3 scripts/perplexity.py train FOLDER              writes the model in every format, and the text that it has not seen
    python3 scripts/perplexity.py measure FOLDER WGFC       prints the table of docs/language-models.md

Needs: pip install torch transformers tokenizers gguf safetensors. Training takes less than ten minutes on one core. The text is the
documentation and the library that CPython ships (PSF licence): of the one that runs the script, so that numbers differ between
versions of Python.

FOLDER then has a checkpoint (checkpoint/config.json, model.safetensors in f32, tokenizer.json), f32.gguf, f16.gguf, q8_0.gguf, q4_0.gguf
and q4_k.gguf, held-out.txt, and reference.json, the perplexity that transformers computes in f32. Blocks of Q4_K are rounded to the nearest
by `q4_k` below, as the package `gguf` makes none; llama.cpp searches for better scales.
"""

import json
import pydoc_data.topics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import gguf
import language_models
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Q

SEED = 0
VOCABULARY = 4096
#: Tokens of a sequence while training, and of a window while measuring, which advances by half of it.
WINDOW = 256
BATCH = 8
STEPS = 400
RATE = 2e-3

CONFIG = transformers.LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=WINDOW,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=0,
    pad_token_id=None,
)


def documents():
    """The texts to train on, and those to measure: every tenth of the documentation."""
    library = Path(sysconfig.get_path("stdlib"))
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    sources = [p.read_text(encoding="utf-8") for p in sorted(library.glob("*.py"))]
    kept = [t for i, t in enumerate(topics + sources) if i % 10 != 9]
    held = [t for i, t in enumerate(topics) if i % 10 == 9]
    return kept, "\n".join(held)


def tokenizer(texts):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def trained(tokens):
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(CONFIG)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(tokens)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    warm = max(STEPS // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, 0.5 + 0.5 * np.cos(np.pi * min(i / STEPS, 1.0)))
    )
    random = np.random.default_rng(SEED)
    start = time.time()
    for step in range(STEPS):
        at = random.integers(0, len(tokens) - WINDOW, BATCH)
        batch = torch.from_numpy(np.stack([tokens[i : i + WINDOW] for i in at]))
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.time() - start:.0f} s", flush=True)
    return model.eval()


def windows(count):
    """The ends of each window, and its first token that counts: one behind those of earlier windows, with tokens before it."""
    begin, done = 0, 0
    while done < count:
        end = min(begin + WINDOW, count)
        yield begin, end, max(done, begin + 1)
        done = end
        begin += WINDOW // 2


def reference(model, ids):
    """The mean negative log-likelihood that transformers computes."""
    total = 0.0
    with torch.no_grad():
        for begin, end, first in windows(len(ids)):
            logits = model(torch.tensor([ids[begin:end]])).logits[0].double()
            chosen = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[begin + 1 : end])[:, None])
            total -= chosen[first - begin - 1 :].sum().item()
    return total / (len(ids) - 1)


def q4_k(values):
    """Blocks of 256 in Q4_K: eight groups of 32, each with a scale and a minimum in 6 bits, which have a scale each in f16."""
    x = values.astype(np.float32).reshape(-1, 8, 32)
    least = np.minimum(x.min(-1), 0)
    scale = (x.max(-1) - least) / 15
    d, dmin = ((s.max(-1, keepdims=True) / 63).astype(np.float16) for s in (scale, -least))

    def sixths(s, by):
        by = by.astype(np.float32)
        return np.clip(np.rint(s / np.where(by == 0, 1, by)), 0, 63).astype(np.uint8)

    sc, m = sixths(scale, d), sixths(-least, dmin)
    by = (sc * d.astype(np.float32))[..., None]
    low = (m * dmin.astype(np.float32))[..., None]
    q = np.clip(np.rint((x + low) / np.where(by == 0, 1, by)), 0, 15).astype(np.uint8)
    packed = np.empty((len(x), 12), np.uint8)
    packed[:, :4] = sc[:, :4] | (sc[:, 4:] >> 4 << 6)
    packed[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4 << 6)
    packed[:, 8:] = (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    pairs = q.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    whole = np.concatenate([d.view(np.uint8), dmin.view(np.uint8), packed, nibbles], axis=-1)
    blocks = whole.reshape(*values.shape[:-1], -1)
    # The layout is right if the package reads what was rounded.
    read = gguf.dequantize(blocks, Q.Q4_K).reshape(x.shape)
    assert np.allclose(read, q * by - low, atol=1e-6)
    return blocks


def write_gguf(path, model, kind, made):
    """The model with matrices of one type; embeddings, which are the head too, among them."""
    writer = gguf.GGUFWriter(path, "llama")
    language_models.metadata(writer, "llama", CONFIG)
    vocabulary = sorted(made.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(made.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([t for t, _ in vocabulary])
    writer.add_token_types([gguf.TokenType.CONTROL if i == 0 else gguf.TokenType.NORMAL for _, i in vocabulary])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    plain = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    for key, _, new, (change, _) in language_models.tensors(plain, "llama", CONFIG):
        value = change(np.ascontiguousarray(plain[key])).astype(np.float32)
        own = Q.F32 if value.ndim == 1 else kind
        data = q4_k(value) if own == Q.Q4_K else gguf.quantize(value, own)
        writer.add_tensor(new, data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train(folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    texts, held = documents()
    made = tokenizer(texts)
    tokens = np.array([i for e in made.encode_batch(texts) for i in [0, *e.ids]], dtype=np.int64)
    model = trained(tokens)
    model.save_pretrained(folder / "checkpoint")
    made.save(str(folder / "checkpoint" / "tokenizer.json"))
    (folder / "held-out.txt").write_text(held, encoding="utf-8")
    for name, kind in {"f32": Q.F32, "f16": Q.F16, "q8_0": Q.Q8_0, "q4_0": Q.Q4_0, "q4_k": Q.Q4_K}.items():
        write_gguf(folder / f"{name}.gguf", model, kind, made)
    ids = made.encode(held).ids
    loss = reference(model, ids)
    found = {"tokens": len(ids), "mean_nll": loss, "perplexity": float(np.exp(loss))}
    (folder / "reference.json").write_text(json.dumps(found))
    print(found)


def measure(folder, wgfc):
    print("| model | perplexity | relative to f32 |\n|---|--:|--:|")
    own = json.loads((folder / "reference.json").read_text())["perplexity"]
    print(f"| transformers, f32 | {own:.4f} | |")
    rows = [
        ("checkpoint, f32", "checkpoint", []),
        ("checkpoint, `--precision f16`", "checkpoint", ["--precision", "f16"]),
        ("checkpoint, `--cache f16`", "checkpoint", ["--cache", "f16"]),
        ("checkpoint, `--cache q8`", "checkpoint", ["--cache", "q8"]),
        ("checkpoint, `--weights q8`", "checkpoint", ["--weights", "q8"]),
        ("checkpoint, `--weights q4`", "checkpoint", ["--weights", "q4"]),
        *((f"GGUF, {n.upper()}", f"{n}.gguf", []) for n in ("f32", "f16", "q8_0", "q4_0", "q4_k")),
        *((f"GGUF, {n.upper()}, `--activations q8`", f"{n}.gguf", ["--activations", "q8", "--prompt-chunk", "1"]) for n in ("q4_0", "q4_k")),
        ("GGUF, Q4_K, `--cache q8`", "q4_k.gguf", ["--cache", "q8"]),
    ]
    first = None
    for name, model, options in rows:
        command = [wgfc, "bench", "perplexity", folder / model, "--text", folder / "held-out.txt", "--json", "--quiet"]
        command += ["--window", str(WINDOW), "--stride", str(WINDOW // 2), *options]
        out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        first = first or out["perplexity"]
        print(f"| {name} | {out['perplexity']:.4f} | {100 * (out['perplexity'] / first - 1):+.2f} % |", flush=True)


def main():
    match sys.argv[1:]:
        case ["train", folder]:
            train(Path(folder))
        case ["measure", folder, wgfc]:
            measure(Path(folder), wgfc)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
