#!/usr/bin/env python3
"""Models of torchvision, timm and transformers in PyTorch and in wgfc: exported to ONNX with random weights, compared, timed.

    python3 benches/peers/torch_models.py [NAME …] [--wgfc target/release/wgfc] [--precision f32,f16] [--folder DIR] [--out FILE]
                                          (needs: pip install torch torchvision timm transformers onnx, and a GPU)

Times are ms a run, inputs and outputs on the device: of torch with `torch.compile(mode="reduce-overhead")` and without, of wgfc
one of many runs that do not wait for each other. TF32 is off. Each model runs in a process of its own.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = {  # name: batch, size
    "convnext_tiny": (1, 224),
    "densenet121": (1, 224),
    "efficientnet_b0": (1, 224),
    "mobilenet_v3_large": (1, 224),
    "regnet_y_3_2gf": (1, 224),
    "swin_t": (1, 224),
    "vgg16": (8, 224),
    "vit_b_16": (1, 224),
}
OTHERS = ["cspdarknet53", "fcn_resnet50", "gpt2", "t5_encoder", "unet", "wav2vec2", "whisper_encoder"]


def unet():
    import torch
    from torch import nn

    def double(i, o):
        each = lambda i: [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
        return nn.Sequential(*each(i), *each(o))

    class UNet(nn.Module):
        def __init__(self, widths=(64, 128, 256, 512)):
            super().__init__()
            up = widths[::-1]
            self.down = nn.ModuleList([double(i, o) for i, o in zip((3, *widths), widths)])
            self.middle = double(widths[-1], 2 * widths[-1])
            self.widen = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in up])
            self.up = nn.ModuleList([double(2 * w, w) for w in up])
            self.last = nn.Conv2d(widths[0], 4, 1)

        def forward(self, x):
            kept = []
            for layer in self.down:
                kept.append(layer(x))
                x = nn.functional.max_pool2d(kept[-1], 2)
            x = self.middle(x)
            for widen, layer, skipped in zip(self.widen, self.up, kept[::-1]):
                x = layer(torch.cat([widen(x), skipped], 1))
            return self.last(x)

    return UNet()


def model(name):
    """A model of one input and one output, and an input."""
    import torch

    class Only(torch.nn.Module):
        def __init__(self, of, key):
            super().__init__()
            self.of, self.key = of, key

        def forward(self, x):
            return self.of(x)[self.key]

    image = lambda batch, size: torch.randn(batch, 3, size, size)
    if name in IMAGES:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), image(*IMAGES[name])
    if name == "fcn_resnet50":
        from torchvision.models.segmentation import fcn_resnet50

        return Only(fcn_resnet50(weights=None, weights_backbone=None), "out"), image(1, 256)
    if name == "unet":
        return unet(), image(1, 256)
    if name == "cspdarknet53":
        import timm

        return timm.create_model(name, pretrained=False), image(1, 256)
    import transformers as t

    eager = {"attn_implementation": "eager"}
    tokens = torch.randint(0, 30000, (1, 128))
    if name == "gpt2":
        return Only(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False, **eager)), "logits"), tokens
    if name == "t5_encoder":
        config = t.T5Config(d_model=512, num_heads=8, num_layers=6, d_ff=2048, use_cache=False)
        return Only(t.T5EncoderModel(config), "last_hidden_state"), tokens
    if name == "wav2vec2":
        return Only(t.Wav2Vec2Model(t.Wav2Vec2Config(**eager)), "last_hidden_state"), torch.randn(1, 16000)
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = t.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, **eager)
    return Only(WhisperEncoder(config), "last_hidden_state"), torch.randn(1, 80, 3000)


def milliseconds(run):
    import torch

    best = float("inf")
    for _ in range(6):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            run()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 10)
    return round(best, 4)


def in_torch(name, folder, precisions):
    """Exports the model, and measures it in torch."""
    import copy

    import numpy as np
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    m, x = model(name)
    m.eval()
    with torch.no_grad():
        for p in m.parameters():  # a head of zeros would make all results equal
            if not p.any():
                p.normal_(std=0.02)
        file, io = folder / f"{name}.onnx", {"input_names": ["x"], "output_names": ["y"]}
        try:
            torch.onnx.export(m, (x,), file, opset_version=17, dynamo=False, **io)
        except Exception:  # operators that only the newer exporter knows
            torch.onnx.export(m, (x,), file, dynamo=True, external_data=False, verbose=False, **io)
        m, x = m.cuda(), x.cuda()
        np.save(folder / f"{name}.x.npy", x.cpu().numpy())
        np.save(folder / f"{name}.y.npy", m(x).cpu().numpy())
        times = {}
        for precision in precisions:
            dtype = {"f32": torch.float32, "f16": torch.float16}[precision]
            own, given = copy.deepcopy(m).to(dtype), x.to(dtype) if x.is_floating_point() else x
            compiled = torch.compile(own, mode="reduce-overhead")
            for run in [own, compiled] * 4:
                run(given)
            times[precision] = {"eager": milliseconds(lambda: own(given)), "compile": milliseconds(lambda: compiled(given))}
    (folder / f"{name}.torch.json").write_text(json.dumps(times))


def in_wgfc(name, folder, wgfc, precision):
    """Dispatches, ms a run and the relative error against torch's f32."""
    import numpy as np

    given = [str(folder / f"{name}.onnx"), "--input", f"x={folder / name}.x.npy", "--precision", precision]
    run = lambda *words: subprocess.run([wgfc, *words], check=True, capture_output=True, text=True).stdout
    out = folder / f"{name}.{precision}"
    run("run", *given, "--output-dir", str(out))
    want, got = np.load(folder / f"{name}.y.npy"), np.load(out / "y.npy")
    error = float(np.linalg.norm((got - want).astype(np.float64)) / np.linalg.norm(want.astype(np.float64)))
    report = json.loads(run("bench", *given, "--json"))
    return {"dispatches": report["dispatches"], "ms": report["profile"]["back_to_back_ns"] / 1e6, "error": error}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted([*IMAGES, *OTHERS])
    p.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    p.add_argument("--wgfc", default="target/release/wgfc")
    p.add_argument("--precision", default="f32,f16")
    p.add_argument("--folder", type=Path, help="keep what is exported there")
    p.add_argument("--out", type=Path, help="write the figures there as JSON")
    p.add_argument("--torch-only", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if wrong := [n for n in a.names if n not in names]:
        p.error(f"{', '.join(wrong)}: none of {', '.join(names)}")
    precisions = a.precision.split(",")
    if a.torch_only:
        return in_torch(a.names[0], a.folder, precisions)
    folder = a.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print("| model | precision | dispatches | wgfc, ms | torch compile, ms | eager | torch compile : wgfc | error |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    rows = []
    for name in a.names or names:
        words = [sys.executable, os.path.abspath(__file__), name, "--torch-only"]
        done = subprocess.run([*words, "--folder", str(folder), "--precision", a.precision], capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: torch failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        times = json.loads((folder / f"{name}.torch.json").read_text())
        for precision in precisions:
            try:
                own = in_wgfc(name, folder, a.wgfc, precision)
            except subprocess.CalledProcessError as e:
                print(f"{name}, {precision}: {e.stderr.strip()}", file=sys.stderr)
                continue
            t = times[precision]
            rows.append({"model": name, "precision": precision, "torch": t, "wgfc": own})
            ratio = t["compile"] / own["ms"]
            figures = [f"{own['ms']:.2f}", f"{t['compile']:.2f}", f"{t['eager']:.2f}", f"{ratio:.2f}", f"{own['error']:.0e}"]
            print(f"| {name} | {precision} | {own['dispatches']} | {' | '.join(figures)} |", flush=True)
    if a.out:
        a.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
