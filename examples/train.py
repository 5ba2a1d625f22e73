"""Trains a sparse autoencoder with the Python package: a step that PyTorch exported, with its gradients and Adam, runs on batches of
made-up sparse data. Parameters and moments stay on the device; the losses come back behind the runs.

    pip install ./bindings/python
    python examples/train.py
    python examples/train.py --width 64 --features 512 --batch 256     # another size: exports it, which needs torch

Writes losses.csv, trained.npz, and loss.png where matplotlib is installed. `wgfc train` does the same from files; `--resume` goes on
from what was written."""

import argparse
import pathlib
import sys

import numpy as np
import wgfc

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "torch"


def exported(a):
    """The path of the archive of a step: the fixture, or a new export for another size."""
    if (a.width, a.features) == (6, 10):
        return FIXTURES / "train_step.pt2"
    sys.path.insert(0, str(FIXTURES))
    import train_step

    path = a.out / "train_step.pt2"
    train_step.export(train_step.Autoencoder(a.width, a.features), False, path)
    return path


def sparse_rows(rng, rows, width):
    """Rows that are sums of a few out of many directions."""
    directions = rng.standard_normal((2 * width, width), dtype=np.float32) / width**0.5
    strengths = rng.random((rows, 2 * width), dtype=np.float32) * (rng.random((rows, 2 * width)) < 0.1)
    return (strengths @ directions).astype(np.float32)


def batches(rng, rows, a):
    """Yields the inputs of each step; each epoch goes through all rows in a new random order."""
    order = np.empty(0, np.int64)
    for _ in range(a.steps):
        if len(order) < a.batch:
            order = np.concatenate([order, rng.permutation(len(rows))])
        chosen, order = order[: a.batch], order[a.batch :]
        yield {"x": rows[chosen], "rate": a.rate}


def plot(losses, path):
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: losses.csv has the losses")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.plot(range(1, len(losses) + 1), losses)
    plt.xlabel("step")
    plt.ylabel("loss")
    plt.savefig(path)
    print("wrote", path)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--width", type=int, default=6)
    p.add_argument("--features", type=int, default=10)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--rate", type=float, default=0.01)
    p.add_argument("--resume", type=pathlib.Path, help="trained.npz of an earlier run")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)

    session = wgfc.Session(wgfc.compile(exported(a)))
    if a.resume:
        session.write_states(dict(np.load(a.resume)))
    rng = np.random.default_rng(0)
    rows = sparse_rows(rng, 20 * a.batch, a.width)

    losses = []
    # While the device works on a step, the next batch is assembled and uploaded.
    for run in session.stream(batches(rng, rows, a), in_flight=2):
        losses.append(float(run["output"]))
        if len(losses) % max(1, a.steps // 10) == 0:
            print(f"step {len(losses)}: loss {losses[-1]:.4f}")

    np.savez(a.out / "trained.npz", **session.read_states())
    lines = [f"{i},{loss}" for i, loss in enumerate(losses, 1)]
    (a.out / "losses.csv").write_text("\n".join(["step,loss", *lines]) + "\n")
    plot(losses, a.out / "loss.png")
