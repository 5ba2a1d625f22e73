"""Makes cartpole.onnx: a population of carts with poles, each with a policy of its own, for some steps.

    pip install onnx onnxruntime numpy
    python cartpole.py

The physics is that of Gymnasium's CartPole (Barto, Sutton and Anderson, 1983), as in scripts/simulations.py. A policy is linear: five numbers, by which
position, speed, angle and spin are weighted. States go in and come out, so that a page can let a generation live as long as it
likes. Two steps are taken, or as many as `wgfc compile --fix steps=N` says."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts"))

import numpy as np
import onnx
from onnx_expressions import Graph, loop, op
from onnx_models import FLOAT, INT64
from simulations import PUSH, accelerations, column, columns, euler, upright


def cartpole():
    inputs = [("policy", FLOAT, ["population", 5]), ("state", FLOAT, ["population", 4]), ("age", FLOAT, ["population"]), ("wind", FLOAT, []), ("steps", INT64, [])]
    with Graph("cartpole", inputs) as g:
        policy, first, age, wind, steps = g.values

        def step(_, state, age):
            x, v, angle, spin = columns(state, 4)
            weights = columns(policy, 5)
            drive = x * weights[0] + v * weights[1] + angle * weights[2] + spin * weights[3] + weights[4]
            force = op("Where", op("Greater", drive, 0.0), PUSH, -PUSH) + wind
            rates = accelerations(angle, spin, force)
            stands = upright(x, angle)
            after = euler(x, v, angle, spin, *rates)
            return op("Where", column(stands), after, state), age + op("Cast", stands, to=FLOAT)

        carried = [("cart", FLOAT, ["population", 4], first), ("lived", FLOAT, ["population"], age)]
        state, lived = loop(steps, carried, step)
        return g.model([("after", FLOAT, ["population", 4], state), ("lived_after", FLOAT, ["population"], lived)], [("steps", np.int64(2))])


if __name__ == "__main__":
    onnx.save(cartpole(), HERE / "cartpole.onnx")
