#!/usr/bin/env python3
"""A diffusion model as one ONNX graph: a U-Net with the form of Stable Diffusion's, and a sampler as a loop around it.

    python3 scripts/diffusion.py                             the fixture in fixtures/diffusion: a narrow one, with onnxruntime's outputs
    python3 scripts/diffusion.py --out fixtures/unet.onnx    one of Stable Diffusion 1.5's size, without weights (860 million; `--random-weights` of wgfc makes some up)
                                                       (needs: pip install onnx numpy onnxruntime)

The U-Net has residual blocks with group norms and SiLU, a time embedding, and transformer blocks with attention to the picture, attention to the text's
states and a gated feed-forward layer (Rombach et al., arXiv 2112.10752). Inputs are the noise, the states of the text and of an empty text, and the schedule of the
sampler: for each step its time and the products of alphas at the step and at the one behind it. The sampler is DDIM without noise (Song et al., arXiv 2010.02502) with
classifier-free guidance, for which a step runs the U-Net on a batch of two.
"""
import argparse
from dataclasses import dataclass

import numpy as np
import onnx

import onnx_data
from onnx_expressions import OPEN, Graph, Value, op, scan
from onnx_models import FIXTURES, FLOAT

GUIDANCE = 7.5


@dataclass
class Shape:
    """The channels of each level, the levels with transformer blocks, heads, norm groups, the width of the text's states, and residual blocks of a level."""

    channels: tuple
    attended: int
    heads: int
    groups: int
    text: int
    blocks: int
    edge: int
    tokens: int


WHOLE = Shape(channels=(320, 640, 1280, 1280), attended=3, heads=8, groups=32, text=768, blocks=2, edge=64, tokens=77)
NARROW = Shape(channels=(8, 16), attended=1, heads=2, groups=4, text=12, blocks=1, edge=8, tokens=5)


class Weights:
    """Makes weights in the outermost graph: random ones, or references to a file that is not there."""

    def __init__(self, absent):
        self.absent, self.count, self.bytes, self.rng = absent, 0, 0, np.random.default_rng(3)
        self.parameters = 0

    def __call__(self, *shape, scale=None, ones=False):
        self.count += 1
        self.parameters += int(np.prod(shape))
        name = f"weight_{self.count}"
        if self.absent:
            tensor = onnx.TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
            length = 4 * int(np.prod(shape))
            for key, value in [("location", "unet.bin"), ("offset", self.bytes), ("length", length)]:
                tensor.external_data.add(key=key, value=str(value))
            self.bytes += length
        else:
            deviation = scale if scale is not None else float(np.prod(shape[1:])) ** -0.5
            values = self.rng.standard_normal(shape) * deviation + (1.0 if ones else 0.0)
            tensor = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        OPEN[0].constants[("weight", name)] = tensor
        return Value(name)


def conv(w, x, n, m, size=3, stride=1):
    pads = [size // 2] * 4
    return op("Conv", x, w(m, n, size, size), w(m, scale=0.02), kernel_shape=[size, size], pads=pads, strides=[stride, stride])


def linear(w, x, n, m, bias=True):
    y = op("MatMul", x, op("Transpose", w(m, n), perm=[1, 0]))
    return y + w(m, scale=0.02) if bias else y


def silu(x):
    return x * op("Sigmoid", x)


def group_norm(w, x, n, groups):
    flat = op("InstanceNormalization", op("Reshape", x, [0, groups, -1]), np.ones(groups, np.float32), np.zeros(groups, np.float32), epsilon=1e-5)
    return op("Reshape", flat, op("Shape", x)) * w(n, 1, 1, scale=0.02, ones=True) + w(n, 1, 1, scale=0.02)


def layer_norm(w, x, n):
    return op("LayerNormalization", x, w(n, scale=0.02, ones=True), w(n, scale=0.02), axis=-1, epsilon=1e-5)


def residual(w, s, x, time, n, m):
    y = conv(w, silu(group_norm(w, x, n, s.groups)), n, m)
    y = y + op("Unsqueeze", linear(w, silu(time), 4 * s.channels[0], m), [2, 3])
    y = conv(w, silu(group_norm(w, y, m, s.groups)), m, m)
    return y + (x if n == m else conv(w, x, n, m, 1))


def attention(w, s, x, of, n, width):
    """Attention of positions x [batch, positions, n] to states of a width."""
    head = n // s.heads
    split = lambda y, order: op("Transpose", op("Reshape", y, [0, 0, s.heads, head]), perm=order)
    q = split(linear(w, x, n, n, bias=False), [0, 2, 1, 3])
    k = split(linear(w, of, width, n, bias=False), [0, 2, 3, 1])
    v = split(linear(w, of, width, n, bias=False), [0, 2, 1, 3])
    y = op("MatMul", op("Softmax", op("MatMul", q, k) * (head**-0.5), axis=-1), v)
    return linear(w, op("Reshape", op("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, n]), n, n)


def transformer(w, s, x, text, n):
    y = conv(w, group_norm(w, x, n, s.groups), n, n, 1)
    y = op("Transpose", op("Reshape", y, [0, n, -1]), perm=[0, 2, 1])
    z = layer_norm(w, y, n)
    y = y + attention(w, s, z, z, n, n)
    y = y + attention(w, s, layer_norm(w, y, n), text, n, s.text)
    up, gate = op("Split", linear(w, layer_norm(w, y, n), n, 8 * n), outputs=2, axis=-1, num_outputs=2)
    y = y + linear(w, up * op("Gelu", gate), 4 * n, n)
    y = op("Reshape", op("Transpose", y, perm=[0, 2, 1]), op("Shape", x))
    return x + conv(w, y, n, n, 1)


def unet(w, s, x, time, text):
    """The noise in x [batch, 4, edge, edge] at a time (a scalar), for states of texts [batch, tokens, width]."""
    first = s.channels[0]
    rates = np.exp(-np.log(10000.0) * np.arange(first // 2) / (first // 2)).astype(np.float32)
    angles = time * rates
    embedded = op("Unsqueeze", op("Concat", op("Cos", angles), op("Sin", angles), axis=0), [0])
    embedded = linear(w, silu(linear(w, embedded, first, 4 * first)), 4 * first, 4 * first)
    x = conv(w, x, 4, first)
    skipped, n = [(x, first)], first
    for level, m in enumerate(s.channels):
        for _ in range(s.blocks):
            x, n = residual(w, s, x, embedded, n, m), m
            if level < s.attended:
                x = transformer(w, s, x, text, n)
            skipped.append((x, n))
        if level + 1 < len(s.channels):
            x = conv(w, x, n, n, stride=2)
            skipped.append((x, n))
    x = residual(w, s, x, embedded, n, n)
    x = residual(w, s, transformer(w, s, x, text, n), embedded, n, n)
    for level, m in reversed(list(enumerate(s.channels))):
        for _ in range(s.blocks + 1):
            beside, k = skipped.pop()
            x, n = residual(w, s, op("Concat", x, beside, axis=1), embedded, n + k, m), m
            if level < s.attended:
                x = transformer(w, s, x, text, n)
        if level > 0:
            x = op("Resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
            x = conv(w, x, n, n)
    return conv(w, silu(group_norm(w, x, n, s.groups)), n, 4)


def model(s, absent):
    w = Weights(absent)
    text = [1, s.tokens, s.text]
    latent = [1, 4, s.edge, s.edge]
    inputs = [("noise", FLOAT, latent), ("text", FLOAT, text), ("empty", FLOAT, text), ("schedule", FLOAT, ["steps", 3])]
    with Graph("diffusion", inputs) as g:
        noise, wanted, empty, schedule = g.values
        texts = op("Concat", empty, wanted, axis=0)

        def step(x, row):
            time, now, after = (op("Squeeze", v, [0]) for v in op("Split", row, outputs=3, axis=0, num_outputs=3))
            without, guided = op("Split", unet(w, s, op("Concat", x, x, axis=0), time, texts), outputs=2, axis=0, num_outputs=2)
            found = without + GUIDANCE * (guided - without)
            clean = (x - op("Sqrt", 1.0 - now) * found) / op("Sqrt", now)
            return (op("Sqrt", after) * clean + op("Sqrt", 1.0 - after) * found,)

        (latents,) = scan([("x", FLOAT, latent, noise)], [("row", FLOAT, [3], schedule)], step)
        return g.model([("latents", FLOAT, latent, latents)], whole=not absent), w.parameters


def schedule(steps):
    """Times and products of alphas of Stable Diffusion's scaled linear schedule of 1,000 steps."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    products = np.cumprod(1 - betas)
    times = (np.arange(steps) * (1000 // steps) + 1)[::-1]
    after = [*products[times[1:]], products[0]]
    return np.stack([times, products[times], after], axis=1).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    a = parser.parse_args()
    made, parameters = model(WHOLE if a.out else NARROW, absent=bool(a.out))
    print(f"{parameters:,} parameters, {made.ByteSize():,} bytes")
    if a.out:
        onnx.save(made, a.out)
        return
    s, sets = NARROW, []
    for seed, steps in [(1, 3), (2, 1)]:
        rng = np.random.default_rng(seed)
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
        inputs = {"noise": draw(1, 4, s.edge, s.edge), "text": draw(1, s.tokens, s.text), "empty": draw(1, s.tokens, s.text), "schedule": schedule(steps)}
        sets.append(([*inputs.values()], onnx_data.session(made).run(None, inputs)))
        print(f"{steps} steps: {np.abs(sets[-1][1][0]).mean():.3f}")
    onnx_data.write(FIXTURES / "diffusion" / "narrow", made, *sets)


if __name__ == "__main__":
    main()
