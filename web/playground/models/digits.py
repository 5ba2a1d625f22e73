"""Makes digits.onnx: a classifier of digits drawn by hand, 8 × 8 pixels, trained by `wgfc train`. And the parts with which the page trains one
from zero: digits-step.pt2, the step; digits-weights.onnx, the classifier with its weights as inputs; digits.safetensors, the digits.

    pip install torch scikit-learn onnx onnxruntime numpy safetensors
    python digits.py --wgfc ../../../target/debug/wgfc
    python digits.py --parts                                # the parts alone

torch writes the step of training (the loss, its gradients and Adam, as one graph), and computes nothing else. The 1,797 digits are those that
scikit-learn ships (Optical Recognition of Handwritten Digits, Alpaydin and Kaynak, UCI, CC BY 4.0): 32 × 32 pixels, black or white, of which each of the
8 × 8 numbers counts a square of 4 × 4. Every fifth is kept to test with. The others are also moved, turned and made smaller or larger, as people draw
them; that is done on pixels twice as fine, so that what comes out is again a count from 0 to 16."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "fixtures" / "torch")]
C1, C2 = 12, 24


def spoilt(images, rng):
    """Images as somebody else might have drawn them."""
    n = len(images)
    angle, size = rng.uniform(-0.2, 0.2, n), rng.uniform(0.8, 1.15, n)
    slant, shift = rng.uniform(-0.2, 0.2, n), rng.uniform(-0.9, 0.9, (n, 2))
    grid = (np.arange(16) - 7.5) / 2
    y, x = np.meshgrid(grid, grid, indexing="ij")
    cos, sin = np.cos(angle)[:, None, None] / size[:, None, None], np.sin(angle)[:, None, None] / size[:, None, None]
    u = cos * x + sin * y + slant[:, None, None] * y + shift[:, 0, None, None] + 3.5
    v = -sin * x + cos * y + shift[:, 1, None, None] + 3.5
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    u, v = np.clip(u + 2, 0, 10.999), np.clip(v + 2, 0, 10.999)
    i, j = v.astype(int), u.astype(int)
    a, b, k = v - i, u - j, np.arange(n)[:, None, None]
    at = lambda i, j: padded[k, i, j]
    fine = (1 - a) * ((1 - b) * at(i, j) + b * at(i, j + 1)) + a * ((1 - b) * at(i + 1, j) + b * at(i + 1, j + 1))
    # Pens are thick or thin.
    fine = np.clip((fine - 0.5) * rng.uniform(1, 1.8, (n, 1, 1)) + 0.5 + rng.uniform(-0.15, 0.15, (n, 1, 1)), 0, 1) * (fine > 0.02)
    return fine.reshape(n, 8, 2, 8, 2).mean((2, 4)).astype(np.float32)


def export_step(path):
    import torch
    import train_step as t
    from torch import nn
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.func import functional_call
    from torch.nn import functional as F

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, C1, 3, padding=1), nn.Conv2d(C1, C2, 3, padding=1)
            self.dense = nn.Linear(C2 * 16, 10)

        def forward(self, image, label):
            x = F.relu(self.conv1(image))
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return F.cross_entropy(self.dense(x.flatten(1)), label)

    torch.manual_seed(0)
    module = Classifier()
    state = t.start(module)
    keys = list(state[0])
    given = torch.rand(8, 1, 8, 8), torch.arange(8), torch.tensor(1e-3)

    def traced(*args):
        *tensors, image, label, rate = args
        p, m, v, count = t.unflat(keys, tensors)
        with torch.enable_grad():
            p = {k: x.detach().requires_grad_() for k, x in p.items()}
            loss = functional_call(module, p, (image, label))
            g = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        with torch.no_grad():
            return (loss.detach(), *t.flat(t.adam(p, g, m, v, count, rate)))

    graph = make_fx(traced, tracing_mode="symbolic")(*t.flat(state), *given)

    class Step(t.Step):
        def forward(self, image, label, rate):
            before = [self.get_buffer(n) for n in self.names]
            loss, *after = self.graph(*before, image, label, rate)
            for old, new in zip(before, after):
                old.copy_(new)
            return loss

    rows = {0: torch.export.Dim("batch", min=2)}
    torch.export.save(torch.export.export(Step(graph, state), given, dynamic_shapes=(rows, rows, None)), path)
    t.pack(path)


def read_states(path):
    """The tensors of a safetensors file."""
    import json

    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    take = lambda t: np.frombuffer(data, np.float32, offset=start + t["data_offsets"][0], count=int(np.prod(t["shape"]))).reshape(t["shape"])
    return {k: take(t) for k, t in header.items() if k != "__metadata__" and t["dtype"] == "F32"}


def export(weights, path, as_inputs=False):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["strokes"], name="relu1"),
        helper.make_node("Conv", ["strokes", "conv2.weight", "conv2.bias"], ["conv2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2"], ["shapes"], name="relu2"),
        helper.make_node("MaxPool", ["shapes"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "dense.weight", "dense.bias"], ["logits"], name="dense", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1),
    ]
    info = helper.make_tensor_value_info
    ports = [info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])], [info("probabilities", TensorProto.FLOAT, ["batch", 10])]
    names = [n for n in sorted(weights) if n.startswith(("conv", "dense"))]
    constants = [] if as_inputs else [numpy_helper.from_array(weights[n], n) for n in names]
    if as_inputs:
        ports[0].extend(info(n, TensorProto.FLOAT, weights[n].shape) for n in names)
    model = helper.make_model(helper.make_graph(nodes, "digits", *ports, constants), opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_parts(digits):
    from safetensors.numpy import save_file

    export_step(HERE / "digits-step.pt2")
    shapes = {"conv1.weight": (C1, 1, 3, 3), "conv1.bias": (C1,), "conv2.weight": (C2, C1, 3, 3), "conv2.bias": (C2,)}
    shapes |= {"dense.weight": (10, C2 * 16), "dense.bias": (10,)}
    export({n: np.zeros(s, np.float32) for n, s in shapes.items()}, HERE / "digits-weights.onnx", as_inputs=True)
    tensors = {"images": digits.images.astype(np.uint8), "labels": digits.target.astype(np.uint8)}
    save_file(tensors, HERE / "digits.safetensors")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wgfc", default="wgfc")
    p.add_argument("--steps", type=int, default=2400)
    p.add_argument("--parts", action="store_true", help="write only the parts with which the page trains")
    p.add_argument("--out", type=Path, default=HERE / "digits.onnx")
    p.add_argument("--work", type=Path, default=Path("."), help="where files of the training go")
    a = p.parse_args()
    from sklearn.datasets import load_digits

    digits = load_digits()
    write_parts(digits)
    if a.parts:
        sys.exit()
    import onnxruntime

    images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    test = np.arange(len(images)) % 5 == 0
    rng = np.random.default_rng(4)
    many = np.concatenate([images[~test]] + [spoilt(images[~test], rng) for _ in range(12)])
    files = {n: a.work / n for n in ["step.pt2", "image.npy", "label.npy", "trained.safetensors", "losses.csv"]}
    np.save(files["image.npy"], many[:, None])
    np.save(files["label.npy"], np.tile(labels[~test], 13))
    export_step(files["step.pt2"])
    rates, resume = [(0.003, a.steps // 2), (0.001, a.steps * 5 // 6), (0.0003, a.steps)], []
    for rate, steps in rates:
        subprocess.run(
            [a.wgfc, "train", files["step.pt2"], "--data", f"image={files['image.npy']}", "--data", f"label={files['label.npy']}"]
            + ["--batch", "128", "--input", f"rate={rate}", "--steps", str(steps), "--checkpoint", files["trained.safetensors"], *resume],
            check=True,
        )
        resume = ["--resume", files["trained.safetensors"]]
    export(read_states(files["trained.safetensors"]), a.out)
    session = onnxruntime.InferenceSession(str(a.out), providers=["CPUExecutionProvider"])
    right = lambda x: (session.run(None, {"image": x[:, None]})[0].argmax(-1) == labels[test]).mean()
    print(f"{a.out}: {right(images[test]):.1%} of {test.sum()} digits, {right(spoilt(images[test], rng)):.1%} of them changed")
