#!/usr/bin/env python3
"""The training step of fixtures/torch/sae_step.pt2 in PyTorch, eager and compiled, from the same start on the same batches: milliseconds
a step, and how far the losses are from those of `wgfc train`.

    python3 benches/peers/torch_train.py --make x.npy --rows 16384 --width 768         (needs: pip install torch numpy)
    step="fixtures/torch/sae_step.pt2 --data x.npy --batch 4096 --no-shuffle --input rate=0.001"
    wgfc train $step --init state.encoder=random --init state.decoder=random --steps 0 --checkpoint start.safetensors
    wgfc train $step --init start.safetensors --steps 200 --log wgfc.csv
    python3 benches/peers/torch_train.py --start start.safetensors --data x.npy --batch 4096 --steps 200 --losses wgfc.csv

All products are in f32, not TF32. Batches are copied from pinned memory in each step, as wgfc copies them; Adam is torch's fused one."""

import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np


def tensors(path):
    """The f32 tensors of a safetensors file."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    part = lambda t: np.frombuffer(data[slice(*t["data_offsets"])], np.float32).reshape(t["shape"])
    return {name.removeprefix("state."): part(t).copy() for name, t in head.items()}


def rows(a):
    rng = np.random.default_rng(a.seed)
    directions = rng.standard_normal((2 * a.width, a.width), dtype=np.float32) / a.width**0.5
    strengths = rng.random((a.rows, 2 * a.width), dtype=np.float32)
    return (strengths * (rng.random(strengths.shape, dtype=np.float32) < 0.05)) @ directions


def train(a, x, start, compiled):
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures" / "torch"))
    from train_step import Autoencoder

    device = torch.device(a.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    module = Autoencoder(*start["encoder"].shape)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.from_numpy(start[name]))
    module.to(device)
    optimizer = torch.optim.Adam(module.parameters(), lr=a.rate, fused=True)
    forward = torch.compile(module) if compiled else module
    x = torch.from_numpy(x)
    staging = [torch.empty((a.batch, x.shape[1]), pin_memory=device.type == "cuda") for _ in range(2)]
    losses, begun = [], time.perf_counter()
    for i in range(a.steps):
        if i == min(10, a.steps // 2):
            losses[-1].item() if losses else None
            begun, warm = time.perf_counter(), i
        chosen = torch.arange(i * a.batch, (i + 1) * a.batch) % len(x)
        torch.index_select(x, 0, chosen, out=staging[i % 2])
        loss = forward(staging[i % 2].to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if i > 0:
            # The memory of the previous batch is free once its step has ended.
            losses[i - 1].item()
    losses = [loss.item() for loss in losses]
    return losses, (time.perf_counter() - begun) / (a.steps - warm)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--make", type=Path, help="write rows that are sums of a few directions there, and end")
    p.add_argument("--rows", type=int, default=16384)
    p.add_argument("--width", type=int, default=768)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--start", type=Path)
    p.add_argument("--data", type=Path)
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--rate", type=float, default=0.001)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--losses", type=Path, help="what `wgfc train --log` wrote")
    p.add_argument("--device")
    p.add_argument("--only", choices=["eager", "compiled"])
    a = p.parse_args()
    if a.make:
        np.save(a.make, rows(a))
        sys.exit()
    if not (a.start and a.data):
        p.error("give --start and --data")
    x, start = np.load(a.data), tensors(a.start)
    of_wgfc = np.loadtxt(a.losses, delimiter=",", skiprows=1, ndmin=2)[: a.steps, 1] if a.losses else None
    for form in [a.only] if a.only else ["eager", "compiled"]:
        losses, seconds = train(a, x, start, form == "compiled")
        row = {"form": form, "ms_per_step": 1e3 * seconds, "first": losses[0], "last": losses[-1]}
        if of_wgfc is not None:
            n = min(len(of_wgfc), len(losses))
            row["farthest"] = float(np.max(np.abs(of_wgfc[:n] / np.array(losses[:n]) - 1)))
        print(json.dumps(row))
