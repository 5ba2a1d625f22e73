#!/usr/bin/env python3
"""Sequential simulations as ONNX graphs, for fixtures/simulations.

    python3 scripts/simulations.py                                        the fixtures
    python3 scripts/simulations.py portfolio --population 10000 --steps 1500 --out DIR
                                                                          one of another size
    python3 scripts/simulations.py --check                                compare, write nothing
                                             (needs: pip install onnx numpy onnxruntime)

Each is a model in which the number of individuals is the dimension `population` (`bodies` of the N-body problem), with inputs and
with outputs of the numpy reference in simulation_reference.py. Loops take their number of steps from the input `steps`, which has
an initializer as its default and determines no shape. A scan has as many steps as there are signals. Before anything is written,
each graph must pass onnx.checker, and ONNX Runtime's outputs must agree with the reference's (rel. 1e-4).

The fixtures have only individuals whose course does not depend on rounding: a policy that compares values is chaotic, and the
last bit of a sine may change an individual's course. More individuals than needed are drawn, and those are kept whose results
agree in f64 and in f32 with inputs changed by 1e-6.
"""
import argparse
from pathlib import Path

import numpy as np
from onnx import helper

import onnx_data
import simulation_reference as reference
from onnx_expressions import Graph, loop, op, scan
from onnx_models import BOOL, FIXTURES, FLOAT, INT64, UINT32
from simulation_reference import agree

PI = float(np.pi)
BODIES, POPULATION, STEPS = "bodies", "population", ("steps", INT64, [])
# The population, the steps (one number if they are an input) and the dims of each fixture's data sets.
FIXED = {
    "rastrigin": [(37, 1, 13), (5, 1, 301)],
    "cartpole": [(37, 50), (1, 50)],
    "cartpole-until": [(37, 300), (1, 300)],
    "acrobot": [(37, 30), (3, 30)],
    "acrobot-rk4": [(37, 8), (3, 8)],
    "mountaincar": [(37, 90), (65, 90)],
    "mountaincar-51": [(37, 90), (5, 90)],
    "montecarlo": [(37, 75), (5, 75)],
    "nbody": [(37, 20), (5, 20)],
    "portfolio": [(37, 45), (7, 13)],
}


def filled(like, dtype, value, *shape):
    """A constant tensor of shape [population, *shape] with the population of `like`."""
    n = op("Shape", like, start=0, end=1)
    size = op("Concat", n, list(shape), axis=0) if shape else n
    return op("ConstantOfShape", size, value=helper.make_tensor("value", dtype, [1], [value]))


def genes(genomes, begin, end):
    return op("Slice", genomes, [begin], [end], [1])


def layer(x, genomes, begin, n, m):
    """A layer x·W + b with weights of each individual: [population, n] to [population, m]."""
    weights = op("Reshape", genes(genomes, begin, begin + n * m), [0, n, m])
    product = op("MatMul", op("Unsqueeze", x, [1]), weights)
    return op("Squeeze", product, [1]) + genes(genomes, begin + n * m, begin + n * m + m)


def cast(x, to):
    return op("Cast", x, to=to)


def clip(x, low, high):
    return op("Clip", x, low, high)


def columns(state, n):
    return [op("Squeeze", c, [1]) for c in op("Split", state, outputs=n, axis=1, num_outputs=n)]


def stacked(values):
    return op("Concat", *(op("Unsqueeze", v, [1]) for v in values), axis=1)


def column(x):
    return op("Unsqueeze", x, [1])


def rastrigin(_):
    with Graph("rastrigin", [("x", FLOAT, [POPULATION, "dims"])]) as g:
        (x,) = g.values
        terms = x * x - 10.0 * op("Cos", 2 * PI * x)
        dims = cast(op("Shape", x, start=1, end=2), FLOAT)
        y = 10.0 * dims + op("ReduceSum", terms, [1], keepdims=0)
        return g.model([("y", FLOAT, [POPULATION], y)])


PUSH, TAU = 10.0, 0.02
"""The force on a cart, and the duration of a step in seconds."""


def accelerations(angle, spin, force):
    """The accelerations of the cart and of its pole."""
    gravity, cart, pole, half_length = 9.8, 1.0, 0.1, 0.5
    mass, moment = cart + pole, pole * half_length
    sin, cos = op("Sin", angle), op("Cos", angle)
    common = (force + moment * spin * spin * sin) / mass
    spin_rate = (gravity * sin - cos * common) / (half_length * (4 / 3 - pole * cos * cos / mass))
    return common - moment * spin_rate * cos / mass, spin_rate


def euler(x, v, angle, spin, rate, spin_rate):
    """The state of a cart after a step."""
    return stacked([x + TAU * v, v + TAU * rate, angle + TAU * spin, spin + TAU * spin_rate])


def upright(x, angle):
    return (op("Abs", x) <= 2.4) & (op("Abs", angle) <= 12 * 2 * PI / 360)


def cartpole(trips, until=False):
    inputs = [("genomes", FLOAT, [POPULATION, 58]), ("state", FLOAT, [POPULATION, 4]), STEPS]
    with Graph("cartpole", inputs) as g:
        genomes, first, steps = g.values

        def step(_, state, alive, reward):
            x, v, angle, spin = columns(state, 4)
            hidden = op("Relu", layer(state, genomes, 0, 4, 8))
            action = op("ArgMax", layer(hidden, genomes, 40, 8, 2), axis=1, keepdims=0)
            force = op("Where", op("Equal", action, 1), PUSH, -PUSH)
            after = euler(x, v, angle, spin, *accelerations(angle, spin, force))
            state = op("Where", column(alive), after, state)
            reward = reward + cast(alive, FLOAT)
            x, _, angle, _ = columns(state, 4)
            return state, alive & upright(x, angle), reward

        carried = [
            ("cart", FLOAT, [POPULATION, 4], first),
            ("alive", BOOL, [POPULATION], filled(first, BOOL, True)),
            ("survived", FLOAT, [POPULATION], filled(first, FLOAT, 0.0)),
        ]
        any_alive = lambda state, alive, reward: op("ReduceMax", alive, keepdims=0)
        state, _, reward = loop(steps, carried, step, any_alive if until else None)
        return g.model([("reward", FLOAT, [POPULATION], reward), ("last", FLOAT, [POPULATION, 4], state)], trips)


def acrobot_rates(a, b, da, db, torque):
    """The accelerations of both links."""
    length, centre, mass, inertia, gravity = 1.0, 0.5, 1.0, 1.0, 9.8
    cos_b, sin_b = op("Cos", b), op("Sin", b)
    arm = mass * length * centre
    d1 = mass * (length**2 + centre**2 + 2 * length * centre * cos_b) + (mass * centre**2 + 2 * inertia)
    d2 = mass * (centre**2 + length * centre * cos_b) + inertia
    phi2 = mass * centre * gravity * op("Cos", a + b - PI / 2)
    phi1 = -arm * db * db * sin_b - 2 * arm * db * da * sin_b
    phi1 = phi1 + (mass * centre + mass * length) * gravity * op("Cos", a - PI / 2) + phi2
    moved = torque + d2 / d1 * phi1 - arm * da * da * sin_b - phi2
    ddb = moved / (mass * centre**2 + inertia - d2 * d2 / d1)
    return -((d2 * ddb + phi1) / d1), ddb


def euler_step(state, torque):
    dt, (dda, ddb) = 0.05, acrobot_rates(*state, torque)
    a, b, da, db = state
    return a + dt * da, b + dt * db, da + dt * dda, db + dt * ddb


def runge_kutta_step(state, torque):
    return reference.runge_kutta(lambda s: (s[2], s[3], *acrobot_rates(*s, torque)), state, 0.2)


def acrobot(trips, name="acrobot", method=euler_step):
    def wrapped(angle):
        return angle - 2 * PI * op("Floor", (angle + PI) / (2 * PI))

    inputs = [("genomes", FLOAT, [POPULATION, 163]), ("state", FLOAT, [POPULATION, 4]), STEPS]
    with Graph(name, inputs) as g:
        genomes, first, steps = g.values

        def step(_, a, b, da, db, reward):
            seen = stacked([op("Cos", a), op("Sin", a), op("Cos", b), op("Sin", b), da, db])
            hidden = op("Tanh", layer(seen, genomes, 0, 6, 16))
            action = op("ArgMax", layer(hidden, genomes, 112, 16, 3), axis=1, keepdims=0)
            a, b, da, db = method((a, b, da, db), cast(action, FLOAT) - 1.0)
            a, b, da, db = wrapped(a), wrapped(b), clip(da, -4 * PI, 4 * PI), clip(db, -9 * PI, 9 * PI)
            height = -op("Cos", a) - op("Cos", a + b)
            return a, b, da, db, reward + op("Where", height > 1.0, 1.0, -0.01)

        names = ["a", "b", "da", "db"]
        carried = [(n, FLOAT, [POPULATION], c) for n, c in zip(names, columns(first, 4))]
        carried += [("total", FLOAT, [POPULATION], filled(first, FLOAT, 0.0))]
        *state, reward = loop(steps, carried, step)
        outputs = [("reward", FLOAT, [POPULATION], reward), ("last", FLOAT, [POPULATION, 4], stacked(state))]
        return g.model(outputs, trips)


def mountaincar(trips, hidden=0):
    count = 9 if not hidden else 3 * hidden + 3 * hidden + 3
    inputs = [("genomes", FLOAT, [POPULATION, count]), ("position", FLOAT, [POPULATION]), STEPS]
    with Graph("mountaincar" if not hidden else f"mountaincar-{count}", inputs) as g:
        genomes, first, steps = g.values

        def action_of(position, velocity):
            seen = stacked([position, velocity])
            if hidden:
                return op("ArgMax", layer(op("Tanh", layer(seen, genomes, 0, 2, hidden)), genomes, 3 * hidden, hidden, 3), axis=1, keepdims=0)
            # A sum of products, where other models have a matrix product.
            weights = op("Reshape", genes(genomes, 0, 6), [0, 2, 3])
            logits = op("ReduceSum", op("Unsqueeze", seen, [2]) * weights, [1], keepdims=0) + genes(genomes, 6, 9)
            return op("ArgMax", logits, axis=1, keepdims=0)

        def step(_, position, velocity, alive, reward):
            action = action_of(position, velocity)
            v = velocity + (cast(action, FLOAT) - 1.0) * 0.001 - 0.0025 * op("Cos", 3.0 * position)
            v = clip(v, -0.07, 0.07)
            p = clip(position + v, -1.2, 0.6)
            v = op("Where", (p <= -1.2) & (v < 0.0), 0.0, v)
            position, velocity = op("Where", alive, p, position), op("Where", alive, v, velocity)
            reward = reward - cast(alive, FLOAT)
            return position, velocity, alive & ~((position >= 0.5) & (velocity >= 0.0)), reward

        carried = [
            ("place", FLOAT, [POPULATION], first),
            ("velocity", FLOAT, [POPULATION], filled(first, FLOAT, 0.0)),
            ("alive", BOOL, [POPULATION], filled(first, BOOL, True)),
            ("total", FLOAT, [POPULATION], filled(first, FLOAT, 0.0)),
        ]
        position, _, _, reward = loop(steps, carried, step)
        outputs = [("reward", FLOAT, [POPULATION], reward), ("last", FLOAT, [POPULATION], position)]
        return g.model(outputs, trips)


def montecarlo(trips):
    u32 = np.uint32

    def pcg(state):
        word = ((state >> ((state >> u32(28)) + u32(4))) ^ state) * u32(277803737)
        return state * u32(747796405) + u32(2891336453), (word >> u32(22)) ^ word

    def unit(word):
        return cast(word >> u32(8), FLOAT) * 2.0**-24

    with Graph("montecarlo", [("seeds", UINT32, [POPULATION]), STEPS]) as g:
        seeds, steps = g.values

        def step(_, state, inside):
            state, first = pcg(state)
            state, second = pcg(state)
            x, y = unit(first), unit(second)
            return state, inside + cast(x * x + y * y <= 1.0, UINT32)

        carried = [("state", UINT32, [POPULATION], seeds), ("count", UINT32, [POPULATION], filled(seeds, UINT32, 0))]
        state, inside = loop(steps, carried, step)
        outputs = [("inside", UINT32, [POPULATION], inside), ("last", UINT32, [POPULATION], state)]
        return g.model(outputs, trips)


def nbody(trips):
    gravity, dt, softening = 6.674e-3, 0.01, 0.01
    inputs = [("position", FLOAT, [BODIES, 3]), ("velocity", FLOAT, [BODIES, 3]), ("mass", FLOAT, [BODIES]), STEPS]
    with Graph("nbody", inputs) as g:
        position, velocity, mass, steps = g.values

        def step(_, p, v):
            apart = op("Unsqueeze", p, [0]) - op("Unsqueeze", p, [1])
            square = op("ReduceSum", apart * apart, [2], keepdims=0) + softening**2
            pull = gravity * op("Unsqueeze", mass, [0]) / (square * op("Sqrt", square))
            force = op("ReduceSum", apart * op("Unsqueeze", pull, [2]), [1], keepdims=0)
            v = v + dt * force
            return p + dt * v, v

        carried = [("p", FLOAT, [BODIES, 3], position), ("v", FLOAT, [BODIES, 3], velocity)]
        p, v = loop(steps, carried, step)
        outputs = [("last", FLOAT, [BODIES, 3], p), ("speed", FLOAT, [BODIES, 3], v)]
        return g.model(outputs, trips)


def portfolio(_):
    inputs = [("genomes", FLOAT, [POPULATION, 246]), ("signals", FLOAT, ["steps", 36])]
    with Graph("portfolio", inputs) as g:
        genomes, signals = g.values

        def step(value, peak, m0, m1, held, worst, alive, signal):
            market = [op("Expand", genes_of_row(signal, i, i + 1), op("Shape", value)) for i in range(3)]
            scores, returns = genes_of_row(signal, 4, 20), genes_of_row(signal, 20, 36)
            drawdown = 1.0 - value / peak
            zero = op("Mul", value, 0.0)
            rise = clip(10.0 * (value / peak - 1.0), 0.0, 1.0)
            seen = [market[0], op("Min", 5.0 * drawdown, 1.0), zero, rise, *market[1:], m0, m1]
            hidden = op("Tanh", clip(layer(stacked(seen), genomes, 0, 8, 16), -20.0, 20.0))
            out = columns(op("Sigmoid", clip(layer(hidden, genomes, 144, 16, 6), -20.0, 20.0)), 6)
            leverage, cap = 1.0 + 2.0 * out[1], (1.0 - 0.8 * out[0]) * (0.2 + 0.8 * out[3])
            positive = op("Relu", scores)
            share = positive / op("Max", op("ReduceSum", positive, [0], keepdims=1), 1e-8)
            wanted = op("Min", share, column(cap))
            wanted = wanted / op("Max", op("ReduceSum", wanted, [1], keepdims=1), 1e-8)
            wanted = op("Where", op("Abs", wanted - held) < 0.05, held, wanted)
            change = wanted - held
            cost = op("Abs", change) * op("Where", change > 0.0, 0.0004, 0.0002)
            earned = op("ReduceSum", wanted * returns, [1], keepdims=0)
            paid = op("ReduceSum", cost, [1], keepdims=0)
            gain = leverage * earned - leverage * paid - 1e-5
            value = op("Where", alive, value * (1.0 + gain), value)
            m0, m1 = op("Where", alive, out[4], m0), op("Where", alive, out[5], m1)
            held = op("Where", column(alive), wanted, held)
            peak = op("Max", peak, value)
            worst = op("Max", worst, 1.0 - value / peak)
            return value, peak, m0, m1, held, worst, alive & (value > 0.05)

        first = {"value": 1.0, "peak": 1.0, "m0": 0.0, "m1": 0.0}
        carried = [(n, FLOAT, [POPULATION], filled(genomes, FLOAT, v)) for n, v in first.items()]
        carried += [
            ("held", FLOAT, [POPULATION, 16], filled(genomes, FLOAT, 0.0, 16)),
            ("worst", FLOAT, [POPULATION], filled(genomes, FLOAT, 0.0)),
            ("alive", BOOL, [POPULATION], filled(genomes, BOOL, True)),
        ]
        value, _, _, _, _, worst, _ = scan(carried, [("signal", FLOAT, [36], signals)], step)
        fitness = op("Where", worst > 0.85, -9999.0, value)
        return g.model([("fitness", FLOAT, [POPULATION], fitness)])


def genes_of_row(row, begin, end):
    return op("Slice", row, [begin], [end], [0])


MODELS = {
    "rastrigin": rastrigin,
    "cartpole": cartpole,
    "cartpole-until": lambda trips: cartpole(trips, until=True),
    "acrobot": acrobot,
    "acrobot-rk4": lambda trips: acrobot(trips, "acrobot-rk4", runge_kutta_step),
    "mountaincar": mountaincar,
    "mountaincar-51": lambda trips: mountaincar(trips, hidden=8),
    "montecarlo": montecarlo,
    "nbody": nbody,
    "portfolio": portfolio,
}


def settled(name, inputs, steps):
    """The individuals whose course does not depend on rounding."""
    rng = np.random.default_rng(7)
    noisy = lambda v: v * (1 + 1e-6 * rng.standard_normal(v.shape)).astype(v.dtype)
    result = reference.run(name, inputs, steps)
    same = agree(reference.run(name, inputs, steps, np.float64), result, 1e-5)
    for sign in [-1, 1, -1, 1]:
        options = {"band": 0.05 * (1 + 1e-6 * sign)} if name == "portfolio" else {}
        noise = {k: noisy(v) for k, v in inputs.items()}
        same &= agree(reference.run(name, noise, steps, **options), result, 5e-5)
    return same


def data(name, population, steps, dims, settle=True):
    """Inputs of the graph without `steps`, and the reference's outputs."""
    workload = name.removesuffix("-until")
    if settle and workload not in ["nbody", "montecarlo"]:
        inputs = reference.draw(workload, 4 * population + 20, steps, dims)
        kept = np.flatnonzero(settled(workload, inputs, steps))[:population]
        assert len(kept) == population, f"{name}: only {len(kept)} individuals are settled"
        inputs = {k: v if k == "signals" else v[kept] for k, v in inputs.items()}
    else:
        inputs = reference.draw(workload, population, steps, dims)
    return inputs, reference.run(workload, inputs, steps)


def compare(name, model, inputs, outputs):
    """Compares ONNX Runtime with the reference and prints the share of individuals that agree."""
    share = agree(onnx_data.session(model).run(None, inputs), outputs).mean()
    print(f"{name}: {len(outputs[0])} individuals, {100 * share:.1f}% agree, {model.ByteSize()} bytes")
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help=", ".join(MODELS))
    parser.add_argument("--population", type=int, help="individuals of the only data set")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--dims", type=int, help="of rastrigin")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--out", type=Path, help="a folder for WORKLOAD/model.onnx and its data")
    a = parser.parse_args()
    other = any([a.population, a.steps, a.dims])
    if other and not (a.out or a.check):
        parser.error("models of another size need --out or --check")
    for name in a.workload or MODELS:
        if name not in MODELS:
            parser.error(f"{name}: none of {', '.join(MODELS)}")
        sets = FIXED[name]
        if other:
            population, steps, *dims = sets[0]
            sets = [(a.population or population, a.steps or steps, a.dims or (dims or [None])[0])]
        made = [data(name, p, s, *(d or [None]), settle=not other) for p, s, *d in sets]
        steps = sets[0][1]
        model = MODELS[name]([("steps", np.int64(steps))])
        shares = [compare(name, model, i, o) for i, o in made]
        if not other and min(shares) < 1:
            raise SystemExit(f"{name} does not agree with its reference")
        if not a.check:
            order = [i.name for i in model.graph.input if i.name != "steps"]
            data_sets = (([inputs[n] for n in order], outputs) for inputs, outputs in made)
            onnx_data.write((a.out or FIXTURES / "simulations") / name, model, *data_sets)


if __name__ == "__main__":
    main()
