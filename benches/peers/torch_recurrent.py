#!/usr/bin/env python3
"""Recurrent layers in PyTorch, which calls cuDNN: the time of a layer over all positions, products of the input included.

    python3 benches/peers/torch_recurrent.py [LSTM|GRU|RNN …] [--steps 512] [--size 64] [--batch 1,32] [--hidden 32,64,128,256]
                                             (needs: pip install torch)
"""
import argparse

import torch


def milliseconds(layer, x, runs=20):
    with torch.inference_mode():
        for _ in range(3):
            layer(x)
        torch.cuda.synchronize()
        times = []
        for _ in range(runs):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            layer(x)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("layers", nargs="*", default=["LSTM", "GRU", "RNN"])
    p.add_argument("--steps", type=int, default=512)
    p.add_argument("--size", type=int, default=64)
    p.add_argument("--batch", type=numbers, default=[1, 32])
    p.add_argument("--hidden", type=numbers, default=[32, 64, 128, 256])
    args = p.parse_args()
    # Products in f32, not TF32.
    torch.backends.cudnn.allow_tf32 = False
    for name in args.layers:
        for batch in args.batch:
            for hidden in args.hidden:
                layer = getattr(torch.nn, name)(args.size, hidden).cuda().eval()
                x = torch.randn(args.steps, batch, args.size, device="cuda")
                print(f"{name} batch {batch} hidden {hidden}: {milliseconds(layer, x):.3f} ms")


main()
