#!/usr/bin/env python3
"""Genetic algorithms as ONNX graphs, whole: a loop over generations, each of which computes the fitness of a population and makes the next one.

    python3 scripts/evolution.py             the fixtures in fixtures/evolution      (needs: pip install onnx numpy onnxruntime)

The first population is an input, whose dimensions are `population` and `genes`. A generation selects two parents for each individual, each the best of three
that are drawn (tournament), takes each gene from either with equal probability (uniform crossover), adds noise to some genes (mutation), and keeps the best
individual as it is (elitism). Random numbers are a hash of their place, the generation and the input `seed`, so that a run is determined by its seed. The
fitness is minimised. CartPole's is minus the number of steps that a policy of 4 x 8 x 2 keeps the pole upright, at most 500, from a start that is drawn for
each generation and is the same for all individuals.
"""
import numpy as np

import onnx_data
from onnx_expressions import Graph, loop, op
from onnx_models import BOOL, FIXTURES, FLOAT, INT64, UINT32
from simulations import POPULATION, accelerations, cast, column, columns, euler, filled, layer, upright

PI = float(np.pi)
u32 = np.uint32
# The ranges in which genes are drawn at first, and the standard deviation of a mutation as a share of it.
RANGES = {"sphere": 5.12, "ackley": 32.768, "schwefel": 500.0, "griewank": 600.0, "rastrigin": 5.12, "cartpole": 1.0}
SPREAD = {"cartpole": 0.2}
# The share of genes that mutate, where it is not one gene of an individual.
SHARE = {"cartpole": 0.1}
TOURNAMENT = 3
KEPT = 1024
"""The generations whose best fitness is an output."""
STEPS = 500
"""The steps after which an episode of CartPole ends."""


def extent(x, axis):
    """The extent of an axis, as a number."""
    return op("Squeeze", op("Shape", x, start=axis, end=axis + 1), [0])


def counted(like, columns=None):
    """0, 1, 2, … in the shape of `like`, or in [population, columns] with its population."""
    n = extent(like, 0)
    shape = op("Shape", like) if columns is None else op("Concat", op("Unsqueeze", n, [0]), [columns], axis=0)
    each = extent(like, 1) if columns is None else columns
    return op("Reshape", cast(op("Range", 0, op("Mul", n, each), 1), UINT32), shape)


def numbers(place, stream, generation, seed):
    """Random words of 32 bits: the hash of PCG (pcg-random.org, RXS-M-XS) of places that are mixed with a stream, the generation and the seed."""

    def mixed(x):
        x = x * u32(747796405) + u32(2891336453)
        word = ((x >> ((x >> u32(28)) + u32(4))) ^ x) * u32(277803737)
        return (word >> u32(22)) ^ word

    start = mixed(mixed(seed + u32(stream)) + cast(generation, UINT32))
    return mixed(mixed(start + place))


def unit(words):
    """Numbers in [0, 1)."""
    return cast(words >> u32(8), FLOAT) * 2.0**-24


def total(x):
    return op("ReduceSum", x, [1], keepdims=0)


def sphere(x, _):
    return total(x * x)


def ackley(x, n):
    mean = lambda y: total(y) / n
    return -20.0 * op("Exp", -0.2 * op("Sqrt", mean(x * x))) - op("Exp", mean(op("Cos", 2 * PI * x))) + (20.0 + float(np.e))


def schwefel(x, n):
    return n * 418.9828872724338 - total(x * op("Sin", op("Sqrt", op("Abs", x))))


def griewank(x, n):
    places = cast(op("Range", 1, extent(x, 1) + 1, 1), FLOAT)
    return total(x * x) * (1.0 / 4000.0) - op("ReduceProd", op("Cos", x / op("Sqrt", places)), [1], keepdims=0) + 1.0


def rastrigin(x, n):
    return n * 10.0 + total(x * x - 10.0 * op("Cos", 2 * PI * x))


FUNCTIONS = {"sphere": sphere, "ackley": ackley, "schwefel": schwefel, "griewank": griewank, "rastrigin": rastrigin}


def cartpole(genomes, start):
    """Minus the steps for which each policy keeps the pole upright."""

    def step(_, state, alive, survived):
        x, v, angle, spin = columns(state, 4)
        hidden = op("Relu", layer(state, genomes, 0, 4, 8))
        action = op("ArgMax", layer(hidden, genomes, 40, 8, 2), axis=1, keepdims=0)
        force = op("Where", op("Equal", action, 1), 10.0, -10.0)
        after = euler(x, v, angle, spin, *accelerations(angle, spin, force))
        state = op("Where", column(alive), after, state)
        x, _, angle, _ = columns(state, 4)
        return state, alive & upright(x, angle), survived + cast(alive, FLOAT)

    carried = [
        ("cart", FLOAT, [POPULATION, 4], filled(genomes, FLOAT, 0.0, 4) + start),
        ("alive", BOOL, [POPULATION], filled(genomes, BOOL, True)),
        ("survived", FLOAT, [POPULATION], filled(genomes, FLOAT, 0.0)),
    ]
    return -loop(np.int64(STEPS), carried, step)[2]


def evolution(name):
    """Outputs are the best individual, its fitness, and the best fitness of each of the first 1,024 generations."""
    reach, spread = RANGES[name], SPREAD.get(name, 0.1) * RANGES[name]
    genes = 58 if name == "cartpole" else "genes"
    inputs = [("genomes", FLOAT, [POPULATION, genes]), ("seed", UINT32, []), ("generations", INT64, [])]
    with Graph(name, inputs) as g:
        first, seed, count = g.values
        individuals, n = extent(first, 0), cast(extent(first, 1), FLOAT)
        share = SHARE[name] if name in SHARE else op("Div", 1.0, n)
        genome_places, draw_places = counted(first), counted(first, TOURNAMENT)
        first_row = op("Equal", op("Range", 0, individuals, 1), 0)

        def fitness(genomes, generation):
            if name == "cartpole":
                start = unit(numbers(np.arange(4, dtype=u32)[None], 9, generation, seed)) * 0.1 - 0.05
                return cartpole(genomes, start)
            return FUNCTIONS[name](genomes, n)

        def parent(scores, genomes, stream, generation):
            draws = unit(numbers(draw_places, stream, generation, seed)) * cast(individuals, FLOAT)
            drawn = op("Min", cast(draws, INT64), individuals - 1)
            best = op("ArgMin", op("Gather", scores, drawn), axis=1, keepdims=1)
            return op("Gather", genomes, op("Squeeze", op("GatherElements", drawn, best, axis=1), [1]))

        def generation(i, genomes, history):
            scores = fitness(genomes, i)
            best = op("ArgMin", scores, axis=0, keepdims=0)
            mother, father = (parent(scores, genomes, s, i) for s in (1, 2))
            drawn = lambda stream: unit(numbers(genome_places, stream, i, seed))
            child = op("Where", drawn(3) < 0.5, mother, father)
            # A sum of four uniform numbers is nearly normal.
            noise = drawn(5) + drawn(6) + drawn(7) + drawn(8) - 2.0
            mutant = child + noise * (float(np.sqrt(3.0)) * spread)
            if name != "cartpole":
                mutant = op("Clip", mutant, -reach, reach)
            child = op("Where", drawn(4) < share, mutant, child)
            following = op("Where", column(first_row), op("Gather", genomes, op("Unsqueeze", best, [0])), child)
            history = op("Where", op("Equal", np.arange(KEPT), i), op("Gather", scores, best), history)
            return following, history

        carried = [
            ("individuals", FLOAT, [POPULATION, genes], first),
            ("bests", FLOAT, [KEPT], op("Identity", np.zeros(KEPT, np.float32))),
        ]
        genomes, history = loop(count, carried, generation)
        scores = fitness(genomes, count)
        best = op("ArgMin", scores, axis=0, keepdims=0)
        outputs = [
            ("best", FLOAT, [genes], op("Gather", genomes, best)),
            ("fitness", FLOAT, [], op("Gather", scores, best)),
            ("history", FLOAT, [KEPT], history),
        ]
        return g.model(outputs)


# Individuals, genes and generations of the fixtures' data.
FIXED = {**{name: (48, 7, 6) for name in FUNCTIONS}, "cartpole": (32, 58, 3)}


def main():
    for name, (individuals, genes, generations) in FIXED.items():
        model = evolution(name)
        sets = []
        for seed in [7, 1]:
            genomes = np.random.default_rng(seed).uniform(-RANGES[name], RANGES[name], (individuals, genes)).astype(np.float32)
            inputs = {"genomes": genomes, "seed": np.array(seed, u32), "generations": np.array(generations)}
            sets.append(([*inputs.values()], onnx_data.session(model).run(None, inputs)))
        print(f"{name}: {model.ByteSize()} bytes, fitness {', '.join(str(o[1]) for _, o in sets)}")
        onnx_data.write(FIXTURES / "evolution" / name, model, *sets)


if __name__ == "__main__":
    main()
