"""The evolutions of scripts/evolution.py in JAX: a whole evolution is one `jit`, its generations a `lax.fori_loop`.

The algorithm is the same (tournaments of the same size, uniform crossover, normal mutation, one elite), the random numbers are JAX's.
"""
import jax
import jax.numpy as jnp
from jax import lax

import jax_loops

TOURNAMENT, STEPS = 3, 500
PI = jnp.pi
FUNCTIONS = {
    "sphere": lambda x: jnp.sum(x * x),
    "ackley": lambda x: -20 * jnp.exp(-0.2 * jnp.sqrt(jnp.mean(x * x))) - jnp.exp(jnp.mean(jnp.cos(2 * PI * x))) + 20 + jnp.e,
    "schwefel": lambda x: x.shape[0] * 418.9828872724338 - jnp.sum(x * jnp.sin(jnp.sqrt(jnp.abs(x)))),
    "griewank": lambda x: jnp.sum(x * x) / 4000 - jnp.prod(jnp.cos(x / jnp.sqrt(1.0 + jnp.arange(x.shape[0])))) + 1,
    "rastrigin": lambda x: 10 * x.shape[0] + jnp.sum(x * x - 10 * jnp.cos(2 * PI * x)),
}
REACH = {"cartpole": 1.0, "sphere": 5.12, "ackley": 32.768, "schwefel": 500.0, "griewank": 600.0, "rastrigin": 5.12}


def fitness(name, genomes, key):
    if name != "cartpole":
        return jax.vmap(FUNCTIONS[name])(genomes)
    state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return -jax.vmap(lambda genome: jax_loops.cartpole(genome, state, STEPS)[0])(genomes)


def evolution(name, share, spread):
    """A function of genomes, a seed and the number of generations: the best individual and its fitness."""

    def parent(scores, genomes, key):
        drawn = jax.random.randint(key, (len(genomes), TOURNAMENT), 0, len(genomes))
        best = jnp.argmin(scores[drawn], axis=1)
        return genomes[jnp.take_along_axis(drawn, best[:, None], 1)[:, 0]]

    def generation(i, carried):
        genomes, key = carried
        key, *keys = jax.random.split(key, 7)
        scores = fitness(name, genomes, keys[0])
        mother, father = parent(scores, genomes, keys[1]), parent(scores, genomes, keys[2])
        child = jnp.where(jax.random.uniform(keys[3], genomes.shape) < 0.5, mother, father)
        mutant = child + spread * jax.random.normal(keys[4], genomes.shape)
        if name != "cartpole":
            mutant = jnp.clip(mutant, -REACH[name], REACH[name])
        child = jnp.where(jax.random.uniform(keys[5], genomes.shape) < share, mutant, child)
        return child.at[0].set(genomes[jnp.argmin(scores)]), key

    @jax.jit
    def run(genomes, seed, count):
        genomes, key = lax.fori_loop(0, count, generation, (genomes, jax.random.PRNGKey(seed)))
        scores = fitness(name, genomes, key)
        best = jnp.argmin(scores)
        return genomes[best], scores[best]

    return run
