"""Small models trained with each optimizer of torch.optim, by the backend and by eager PyTorch.

    python optimizers.py [--steps 100] [--models NAME ...] [--shard I/N] [OPTIMIZER ...]
    python optimizers.py --table LOG ...        a table of what such runs have written

Each optimizer writes parameters one after another (plain), all in an operator (foreach) or in one kernel (fused), behind a model that is compiled;
with `step` the optimizer's step is compiled too. A line for each combination comes as soon as it is known, with the largest difference of
losses from eager PyTorch's. The command fails where one is above 1e-3. Where losses of eager PyTorch differ from those in float64 by more, the training is
chaotic, and may be as far from float64 as eager PyTorch is, times three.
"""

import argparse
import sys
import unittest.mock
import warnings

import torch

NN = torch.nn
TOLERANCE = 1e-3
OPTIMIZERS = {
    "SGD": [{"lr": 0.05, "momentum": 0.9}, {"lr": 0.05, "nesterov": True, "momentum": 0.8, "weight_decay": 0.01}],
    "Adam": [{"lr": 0.01}, {"lr": 0.01, "amsgrad": True}],
    "AdamW": [{"lr": 0.01}],
    "Adagrad": [{"lr": 0.05}],
    "Adadelta": [{"lr": 1.0}],
    "Adafactor": [{"lr": 0.02}],
    "Adamax": [{"lr": 0.01}],
    "ASGD": [{"lr": 0.05}],
    "LBFGS": [{"lr": 0.1, "max_iter": 3}],
    "Muon": [{"lr": 0.01}],
    "NAdam": [{"lr": 0.01}],
    "RAdam": [{"lr": 0.01}],
    "RMSprop": [{"lr": 0.003}, {"lr": 0.003, "centered": True, "momentum": 0.5}],
    "Rprop": [{"lr": 0.01}],
}
"""Optimizers and options to draw from. ``SparseAdam`` needs gradients that are sparse."""


def ways(name):
    """The ways in which an optimizer can update parameters: one after another, all in one operator, or in one kernel."""
    import inspect

    known = inspect.signature(getattr(torch.optim, name)).parameters
    found = {"plain": {"foreach": False}, "foreach": {"foreach": True}} if "foreach" in known else {"plain": {}}
    return {**found, "fused": {"fused": True}} if "fused" in known else found


def optimizer(name, parameters, options):
    """The optimizer of this name. Muon accepts only matrices, so it does not change other parameters."""
    parameters = [p for p in parameters if name != "Muon" or p.ndim == 2]
    return getattr(torch.optim, name)(parameters or [torch.zeros(1, 1, requires_grad=True)], **options)


class Sum(NN.Module):
    """The sum of the input and the output of the parts (a residual connection)."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = NN.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


class Attention(NN.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = NN.Linear(8, 24), NN.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = NN.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class ByHand(NN.Module):
    """A recurrence and an attention pooling, written out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.score = NN.Linear(4, 6), NN.Linear(6, 6), NN.Parameter(torch.randn(6))

    def forward(self, x):
        h, states = torch.zeros(x.shape[0], 6, dtype=x.dtype), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.a(x[:, t]) + self.b(h))
            states.append(h)
        h = torch.stack(states, 1)
        s = h @ self.score / 6**0.5
        p = (s - s.amax(-1, keepdim=True)).exp()
        return (h * (p / p.sum(-1, keepdim=True))[..., None]).sum(1)


def image(*parts):
    return NN.Sequential(*parts, NN.AdaptiveAvgPool2d(1), NN.Flatten()), torch.randn(6, 3, 9, 7)


MODELS = {
    "mlp": lambda: (NN.Sequential(NN.Linear(7, 13), NN.GELU(), NN.Linear(13, 5)), torch.randn(16, 7)),
    "deep": lambda: (NN.Sequential(NN.Linear(7, 9), *(Sum(NN.LayerNorm(9), NN.Linear(9, 9), NN.SiLU()) for _ in range(3)), NN.Linear(9, 4)), torch.randn(8, 7)),
    "convolutions": lambda: image(NN.Conv2d(3, 5, 3, padding=1), NN.BatchNorm2d(5), NN.ReLU(), NN.MaxPool2d(2), NN.Conv2d(5, 6, 3)),
    "residual": lambda: image(NN.Conv2d(3, 6, 3), Sum(NN.GroupNorm(2, 6), NN.SiLU(), NN.Conv2d(6, 6, 3, padding=1)), NN.Conv2d(6, 4, 1)),
    "depthwise": lambda: image(NN.Conv2d(3, 6, 1), NN.Conv2d(6, 6, 3, groups=6), NN.InstanceNorm2d(6, affine=True), NN.Hardswish(), NN.Conv2d(6, 4, 1)),
    "transposed": lambda: image(NN.ConvTranspose2d(3, 4, 3, stride=2), NN.LeakyReLU(), NN.AvgPool2d(2), NN.Conv2d(4, 3, 3)),
    "attention": lambda: (NN.Sequential(NN.Embedding(11, 8), Sum(NN.LayerNorm(8), Attention()), Sum(NN.RMSNorm(8), NN.Linear(8, 8), NN.GELU()), NN.Linear(8, 11)), torch.arange(14).reshape(2, 7) % 11),
    "bag": lambda: (NN.Sequential(NN.EmbeddingBag(9, 6), NN.Linear(6, 4)), torch.arange(15).reshape(3, 5) % 9),
    "recurrence": lambda: (NN.Sequential(ByHand(), NN.Linear(6, 3)), torch.randn(4, 5, 4)),
    "bottleneck": lambda: (NN.Sequential(NN.Linear(12, 3), NN.Tanh(), NN.Linear(3, 12), NN.Sigmoid()), torch.randn(10, 12)),
}  # fmt: skip


class Wide:
    """The module ``torch`` with ``bfloat16`` replaced by ``float64``."""

    bfloat16 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class Trained:
    """A model that is trained repeatedly, each time from the same parameters."""

    def __init__(self, name, compiled, wide=False):
        torch.manual_seed(1)
        self.wide = wide
        self.model, x = MODELS[name]()
        if wide:
            self.model.double()
        self.x = x.double() if wide and x.is_floating_point() else x
        self.initial = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.run = torch.compile(self.model, backend="wgfc") if compiled else self.model
        with torch.no_grad():
            shape = self.model(self.x).shape
        self.model.load_state_dict(self.initial)
        self.target = (torch.arange(shape[:-1].numel()) * 7 % shape[-1]).reshape(-1)

    def losses(self, name, options, steps, compiled=False):
        """The losses of all steps; if ``compiled``, the optimizer's step is compiled too."""
        self.model.load_state_dict(self.initial)
        made = optimizer(name, self.model.parameters(), options)
        step = torch.compile(made.step, backend="wgfc") if compiled else made.step
        found = []

        def closure():
            made.zero_grad()
            loss = NN.functional.cross_entropy(self.run(self.x).flatten(0, -2), self.target)
            loss.backward()
            return loss

        # Muon computes in bf16.
        with unittest.mock.patch.object(torch.optim._muon, "torch", Wide() if self.wide else torch):
            for _ in range(steps):
                if compiled:
                    found.append(closure().item())
                    step()
                else:
                    found.append(step(closure).item())
        return found


def difference(a, b):
    return max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b))


def combinations(names, models):
    """Tuples of an optimizer's name, its options, the way of updating, the compiled part, and a model's name."""
    for model in models:
        for name in names:
            for options in OPTIMIZERS[name]:
                for way, more in ways(name).items():
                    for compiled in ("model", "step"):
                        # A step that calls a closure repeatedly cannot be traced as a graph.
                        if compiled == "model" or name != "LBFGS":
                            yield name, {**options, **more}, way, compiled, model


def table(logs):
    """A table with a row for each optimizer and a column for each model."""
    rows = {}
    for path in logs:
        for line in open(path):
            words = line.split()
            if len(words) > 4 and words[-1] in ("right", "chaotic", "wrong", "error"):
                rows.setdefault(" ".join(words[:-3]), {})[words[-3]] = words[-2] + {"right": "", "chaotic": "~"}.get(words[-1], "!")
    print(f"{'':<50}" + "".join(f"{m:>13}" for m in MODELS))
    for row, found in sorted(rows.items()):
        print(f"{row:<50}" + "".join(f"{found.get(m, ''):>13}" for m in MODELS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizers", nargs="*", default=list(OPTIMIZERS))
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--shard", default="0/1", help="I/N: the I-th of N parts of the combinations")
    parser.add_argument("--table", nargs="+", metavar="LOG")
    given = parser.parse_args()
    if given.table:
        return table(given.table)
    warnings.simplefilter("ignore")
    # Dynamo falls back to eager mode for a function that it has compiled too often.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    shard, shards = map(int, given.shard.split("/"))
    counts = dict.fromkeys(("right", "chaotic", "wrong", "error"), 0)
    every = list(combinations(given.optimizers, given.models))
    models, of = [], None
    for name, options, way, compiled, m in every[len(every) * shard // shards : len(every) * (shard + 1) // shards]:
        if m != of or compiled == "step":
            torch._dynamo.reset()
        if m != of:
            models, of = [Trained(m, True), Trained(m, False), Trained(m, False, True)], m
        try:
            steps = [compiled == "step", False, False]
            ours, eager, wide = (t.losses(name, options, given.steps, c) for t, c in zip(models, steps))
            d, chaos = difference(ours, eager), difference(eager, wide)
            status = "right" if d <= TOLERANCE else "chaotic" if difference(ours, wide) <= 3 * max(chaos, TOLERANCE / 3) else "wrong"
        except Exception as e:
            print(f"    {type(e).__name__}: {str(e)[:300]}")
            d, status = float("nan"), "error"
        counts[status] += 1
        rest = " ".join(f"{k}={v}" for k, v in options.items() if k not in ("lr", "foreach", "fused"))
        print(f"{' '.join([name, way, compiled, *rest.split()])} {m} {d:.1e} {status}", flush=True)
    print("# " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    return 1 if counts["wrong"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
