#!/usr/bin/env python3
"""The simulations in JAX: one individual, `vmap` over the population, `lax.scan` over the steps, one `jit`.

    python3 benches/peers/jax_loops.py [WORKLOAD …] [--population N] [--steps N] [--out FILE]
                                             (needs: pip install jax[cuda12] numpy)
"""
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import common

# f32 products, not TF32.
jax.config.update("jax_default_matmul_precision", "highest")
PI = jnp.pi


def layer(x, genome, begin, n, m):
    end = begin + n * m
    return x @ genome[begin:end].reshape(n, m) + genome[end : end + m]


def scanned(step, first, steps):
    return lax.scan(lambda carry, _: (step(*carry), None), first, None, length=steps)[0]


def rastrigin(x, steps):
    return (10 * x.shape[0] + jnp.sum(x * x - 10 * jnp.cos(2 * PI * x)),)


def cartpole(genome, state, steps):
    gravity, cart, pole, half_length, push, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    mass, moment = cart + pole, pole * half_length

    def step(state, alive, reward):
        x, v, angle, spin = state
        hidden = jax.nn.relu(layer(state, genome, 0, 4, 8))
        force = jnp.where(jnp.argmax(layer(hidden, genome, 40, 8, 2)) == 1, push, -push)
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        thrust = (force + moment * spin * spin * sin) / mass
        spin_rate = (gravity * sin - cos * thrust) / (half_length * (4 / 3 - pole * cos * cos / mass))
        rate = thrust - moment * spin_rate * cos / mass
        after = jnp.stack([x + tau * v, v + tau * rate, angle + tau * spin, spin + tau * spin_rate])
        state = jnp.where(alive, after, state)
        upright = (jnp.abs(state[0]) <= 2.4) & (jnp.abs(state[2]) <= 12 * 2 * PI / 360)
        return state, alive & upright, reward + alive.astype(jnp.float32)

    state, _, reward = scanned(step, (state, jnp.bool_(True), jnp.float32(0)), steps)
    return reward, state


def acrobot_rates(a, b, da, db, torque):
    length, centre, mass, inertia, gravity = 1.0, 0.5, 1.0, 1.0, 9.8
    arm = mass * length * centre
    d1 = mass * centre**2 + mass * (length**2 + centre**2 + 2 * length * centre * jnp.cos(b)) + 2 * inertia
    d2 = mass * (centre**2 + length * centre * jnp.cos(b)) + inertia
    phi2 = mass * centre * gravity * jnp.cos(a + b - PI / 2)
    phi1 = -arm * db * db * jnp.sin(b) - 2 * arm * db * da * jnp.sin(b)
    phi1 += (mass * centre + mass * length) * gravity * jnp.cos(a - PI / 2) + phi2
    moved = torque + d2 / d1 * phi1 - arm * da * da * jnp.sin(b) - phi2
    ddb = moved / (mass * centre**2 + inertia - d2 * d2 / d1)
    return -(d2 * ddb + phi1) / d1, ddb


def slope(state, torque):
    return jnp.stack([state[2], state[3], *acrobot_rates(*state, torque)])


def euler_step(state, torque):
    return state + 0.05 * slope(state, torque)


def runge_kutta_step(state, torque):
    dt = 0.2
    k1 = slope(state, torque)
    k2 = slope(state + dt / 2 * k1, torque)
    k3 = slope(state + dt / 2 * k2, torque)
    k4 = slope(state + dt * k3, torque)
    return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def acrobot(genome, state, steps, method=euler_step):
    def wrapped(angle):
        return angle - 2 * PI * jnp.floor((angle + PI) / (2 * PI))

    def step(state, reward):
        a, b, da, db = state
        seen = jnp.stack([jnp.cos(a), jnp.sin(a), jnp.cos(b), jnp.sin(b), da, db])
        hidden = jnp.tanh(layer(seen, genome, 0, 6, 16))
        torque = (jnp.argmax(layer(hidden, genome, 112, 16, 3)) - 1).astype(jnp.float32)
        a, b, da, db = method(state, torque)
        a, b, da, db = wrapped(a), wrapped(b), jnp.clip(da, -4 * PI, 4 * PI), jnp.clip(db, -9 * PI, 9 * PI)
        high = -jnp.cos(a) - jnp.cos(a + b) > 1
        return jnp.stack([a, b, da, db]), reward + jnp.where(high, 1.0, -0.01)

    state, reward = scanned(step, (state, jnp.float32(0)), steps)
    return reward, state


def mountaincar(genome, position, steps, hidden=0):
    def policy(seen):
        if hidden:
            seen = jnp.tanh(layer(seen, genome, 0, 2, hidden))
        return jnp.argmax(layer(seen, genome, 3 * hidden, hidden or 2, 3))

    def step(position, velocity, alive, reward):
        action = policy(jnp.stack([position, velocity]))
        v = velocity + (action - 1).astype(jnp.float32) * 0.001 - 0.0025 * jnp.cos(3 * position)
        v = jnp.clip(v, -0.07, 0.07)
        p = jnp.clip(position + v, -1.2, 0.6)
        v = jnp.where((p <= -1.2) & (v < 0), 0.0, v)
        position, velocity = jnp.where(alive, p, position), jnp.where(alive, v, velocity)
        reward -= alive.astype(jnp.float32)
        return position, velocity, alive & ~((position >= 0.5) & (velocity >= 0)), reward

    first = (position, jnp.float32(0), jnp.bool_(True), jnp.float32(0))
    position, _, _, reward = scanned(step, first, steps)
    return reward, position


def pcg(state):
    word = ((state >> ((state >> 28) + 4)) ^ state) * jnp.uint32(277803737)
    return state * jnp.uint32(747796405) + jnp.uint32(2891336453), (word >> 22) ^ word


def montecarlo(seed, steps):
    def unit(word):
        return (word >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)

    def step(state, inside):
        state, first = pcg(state)
        state, second = pcg(state)
        x, y = unit(first), unit(second)
        return state, inside + (x * x + y * y <= 1).astype(jnp.uint32)

    state, inside = scanned(step, (seed, jnp.uint32(0)), steps)
    return inside, state


def nbody(position, velocity, mass, steps):
    gravity, dt, softening = 6.674e-3, 0.01, 0.01

    def step(position, velocity):
        apart = position[None] - position[:, None]
        square = jnp.sum(apart * apart, axis=2) + softening**2
        pull = gravity * mass[None] / (square * jnp.sqrt(square))
        velocity = velocity + dt * jnp.sum(apart * pull[:, :, None], axis=1)
        return position + dt * velocity, velocity

    return scanned(step, (position, velocity), steps)


def portfolio(genome, signals, steps):
    def step(carry, s):
        value, peak, m0, m1, held, worst, alive = carry
        drawdown = 1 - value / peak
        rise = jnp.clip(10 * (value / peak - 1), 0, 1)
        seen = jnp.stack([s[0], jnp.minimum(1, 5 * drawdown), 0 * value, rise, s[1], s[2], m0, m1])
        hidden = jnp.tanh(jnp.clip(layer(seen, genome, 0, 8, 16), -20, 20))
        out = jax.nn.sigmoid(jnp.clip(layer(hidden, genome, 144, 16, 6), -20, 20))
        leverage, cap = 1 + 2 * out[1], (1 - 0.8 * out[0]) * (0.2 + 0.8 * out[3])
        scores = jax.nn.relu(s[4:20])
        wanted = jnp.minimum(scores / jnp.maximum(scores.sum(), 1e-8), cap)
        wanted = wanted / jnp.maximum(wanted.sum(), 1e-8)
        wanted = jnp.where(jnp.abs(wanted - held) < 0.05, held, wanted)
        change = wanted - held
        cost = jnp.sum(jnp.abs(change) * jnp.where(change > 0, 0.0004, 0.0002))
        gain = leverage * jnp.sum(wanted * s[20:36]) - leverage * cost - 1e-5
        value = jnp.where(alive, value * (1 + gain), value)
        m0, m1, held = jnp.where(alive, out[4], m0), jnp.where(alive, out[5], m1), jnp.where(alive, wanted, held)
        peak = jnp.maximum(peak, value)
        worst = jnp.maximum(worst, 1 - value / peak)
        return (value, peak, m0, m1, held, worst, alive & (value > 0.05)), None

    one, zero = jnp.float32(1), jnp.float32(0)
    first = (one, one, zero, zero, jnp.zeros(16, jnp.float32), zero, jnp.bool_(True))
    value, _, _, _, _, worst, _ = lax.scan(step, first, signals)[0]
    return (jnp.where(worst > 0.85, -9999.0, value),)


SIMULATIONS = {
    "rastrigin": rastrigin,
    "cartpole": cartpole,
    "acrobot": acrobot,
    "acrobot-rk4": partial(acrobot, method=runge_kutta_step),
    "mountaincar": mountaincar,
    "mountaincar-51": partial(mountaincar, hidden=8),
    "montecarlo": montecarlo,
    "nbody": nbody,
    "portfolio": portfolio,
}


def prepare(name, inputs, steps):
    one = partial(SIMULATIONS[name], steps=steps)
    # Bodies interact, so they are not a population to map over. All individuals get the same signals.
    axes = tuple(None if k == "signals" else 0 for k in inputs)
    generation = jax.jit(one if name == "nbody" else jax.vmap(one, in_axes=axes))
    given = [jax.device_put(v) for v in inputs.values()]
    return lambda: generation(*given), jax.block_until_ready, np.asarray


if __name__ == "__main__":
    device = jax.devices()[0]
    about = {"engine": "jax", "versions": {"jax": jax.__version__}, "ran_on": device.device_kind, "platform": device.platform}
    common.main(__doc__.splitlines()[0], about, prepare)
