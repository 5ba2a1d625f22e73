"""Sequential simulations: seeded inputs and their outputs, computed with numpy alone.

This module is independent of the ONNX graphs of scripts/simulations.py, which are compared with it. The population is the first
axis of all arrays, and `float_type` is the type of the arithmetic. Inputs are dictionaries in the order of the graph's inputs,
outputs are tuples in the order of its outputs.
"""
from functools import partial

import numpy as np

PI = float(np.pi)
# The individuals, steps and dims of each benchmark.
USUAL = {
    "rastrigin": (4096, 1, 2000),
    "cartpole": (4096, 500, 1),
    "acrobot": (4096, 500, 1),
    "acrobot-rk4": (4096, 500, 1),
    "mountaincar": (4096, 200, 1),
    "mountaincar-51": (4096, 200, 1),
    "montecarlo": (4096, 100_000, 1),
    "nbody": (512, 200, 1),
    "portfolio": (10_000, 1500, 1),
}
# The number of steps after which results are still comparable. With chaotic dynamics, the last bit of a sine decides the course
# in the long run; up to this number only a few individuals diverge.
HORIZON = {"cartpole": 100, "acrobot": 100, "acrobot-rk4": 30, "mountaincar": 200, "mountaincar-51": 200, "nbody": 50, "portfolio": 500}


def columns(genomes, begin, n, m):
    """The weights [population, n, m] and biases [population, m] of the layer whose genes begin at this index."""
    end = begin + n * m
    return genomes[:, begin:end].reshape(-1, n, m), genomes[:, end : end + m]


def layer(x, genomes, begin, n, m):
    weights, biases = columns(genomes, begin, n, m)
    return np.einsum("pn,pnm->pm", x, weights) + biases


def rastrigin(x, steps):
    """10·D + Σ(x² − 10·cos 2πx)."""
    return (10 * x.shape[1] + np.sum(x * x - 10 * np.cos(2 * PI * x), axis=1, dtype=x.dtype),)


def cartpole(genomes, state, steps):
    """Gym's CartPole-v1 with explicit Euler steps. An individual no longer moves once its pole has fallen."""
    gravity, cart, pole, half_length, push, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    mass, moment = cart + pole, pole * half_length
    state = state.copy()
    alive = np.ones(len(genomes), bool)
    reward = np.zeros(len(genomes), genomes.dtype)
    for _ in range(steps):
        x, v, angle, spin = state.T
        hidden = np.maximum(layer(state, genomes, 0, 4, 8), 0)
        force = np.where(np.argmax(layer(hidden, genomes, 40, 8, 2), axis=1) == 1, push, -push).astype(genomes.dtype)
        sin, cos = np.sin(angle), np.cos(angle)
        common = (force + moment * spin * spin * sin) / mass
        spin_rate = (gravity * sin - cos * common) / (half_length * (4 / 3 - pole * cos * cos / mass))
        rate = common - moment * spin_rate * cos / mass
        after = np.stack([x + tau * v, v + tau * rate, angle + tau * spin, spin + tau * spin_rate], axis=1)
        state = np.where(alive[:, None], after, state)
        reward += alive
        alive &= (np.abs(state[:, 0]) <= 2.4) & (np.abs(state[:, 2]) <= 12 * 2 * PI / 360)
    return reward, state


def acrobot_rates(a, b, da, db, torque):
    """The accelerations of Gym's Acrobot by the "book" equations."""
    length, centre, mass, inertia, gravity = 1.0, 0.5, 1.0, 1.0, 9.8
    arm = mass * length * centre
    d1 = mass * centre**2 + mass * (length**2 + centre**2 + 2 * length * centre * np.cos(b)) + 2 * inertia
    d2 = mass * (centre**2 + length * centre * np.cos(b)) + inertia
    phi2 = mass * centre * gravity * np.cos(a + b - PI / 2)
    phi1 = (
        -arm * db * db * np.sin(b)
        - 2 * arm * db * da * np.sin(b)
        + (mass * centre + mass * length) * gravity * np.cos(a - PI / 2)
        + phi2
    )
    moved = torque + d2 / d1 * phi1 - arm * da * da * np.sin(b) - phi2
    ddb = moved / (mass * centre**2 + inertia - d2 * d2 / d1)
    return -(d2 * ddb + phi1) / d1, ddb


def euler_step(state, torque):
    a, b, da, db = state
    dda, ddb = acrobot_rates(*state, torque)
    dt = 0.05
    return a + dt * da, b + dt * db, da + dt * dda, db + dt * ddb


def runge_kutta(slope, state, dt):
    """A step of the classical method of fourth order, of numbers of any kind."""
    moved = lambda by, k: [x + by * d for x, d in zip(state, k)]
    k1 = slope(state)
    k2 = slope(moved(dt / 2, k1))
    k3 = slope(moved(dt / 2, k2))
    k4 = slope(moved(dt, k3))
    return [x + dt / 6 * (p + 2.0 * q + 2.0 * r + s) for x, p, q, r, s in zip(state, k1, k2, k3, k4)]


def runge_kutta_step(state, torque):
    """0.2 s, as Gym's Acrobot-v1 takes them."""
    return runge_kutta(lambda s: (s[2], s[3], *acrobot_rates(*s, torque)), state, 0.2)


def acrobot(genomes, state, steps, method=euler_step):
    """Gym's Acrobot with the "book" equations. The reward is +1 with the tip above 1, else −0.01."""

    def wrapped(angle):
        return angle - 2 * PI * np.floor((angle + PI) / (2 * PI))

    a, b, da, db = state.T
    reward = np.zeros(len(genomes), genomes.dtype)
    for _ in range(steps):
        seen = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b), da, db], axis=1)
        hidden = np.tanh(layer(seen, genomes, 0, 6, 16))
        torque = (np.argmax(layer(hidden, genomes, 112, 16, 3), axis=1) - 1).astype(genomes.dtype)
        a, b, da, db = method((a, b, da, db), torque)
        a, b = wrapped(a), wrapped(b)
        da, db = np.clip(da, -4 * PI, 4 * PI), np.clip(db, -9 * PI, 9 * PI)
        reward += np.where(-np.cos(a) - np.cos(a + b) > 1, 1.0, -0.01).astype(genomes.dtype)
    return reward, np.stack([a, b, da, db], axis=1)


def mountaincar(genomes, position, steps, hidden=0):
    """Gym's MountainCar-v0 under a policy over 3 actions, linear or with a hidden layer. The reward is −1 for each step until the flag."""
    velocity = np.zeros_like(position)
    alive = np.ones(len(genomes), bool)
    reward = np.zeros(len(genomes), genomes.dtype)
    for _ in range(steps):
        seen = np.stack([position, velocity], axis=1)
        if hidden:
            seen = np.tanh(layer(seen, genomes, 0, 2, hidden))
        action = np.argmax(layer(seen, genomes, 3 * hidden, hidden or 2, 3), axis=1)
        v = velocity + (action - 1).astype(genomes.dtype) * 0.001 - 0.0025 * np.cos(3 * position)
        v = np.clip(v, -0.07, 0.07)
        p = np.clip(position + v, -1.2, 0.6)
        v = np.where((p <= -1.2) & (v < 0), 0, v).astype(genomes.dtype)
        position, velocity = np.where(alive, p, position), np.where(alive, v, velocity)
        reward -= alive
        alive &= ~((position >= 0.5) & (velocity >= 0))
    return reward, position


def pcg(state):
    """The next state of a linear congruential generator of 32 bits, and the PCG-RXS-M-XS output of the given state."""
    word = ((state >> ((state >> np.uint32(28)) + np.uint32(4))) ^ state) * np.uint32(277803737)
    return state * np.uint32(747796405) + np.uint32(2891336453), (word >> np.uint32(22)) ^ word


def montecarlo(seeds, steps):
    """The number of each worker's points of the unit square that lie in the unit circle, and the generator's last state."""
    state, inside = seeds.copy(), np.zeros(len(seeds), np.uint32)
    unit = lambda word: (word >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    for _ in range(steps):
        state, first = pcg(state)
        state, second = pcg(state)
        x, y = unit(first), unit(second)
        inside += x * x + y * y <= 1
    return inside, state


def nbody(position, velocity, mass, steps):
    """Gravity between all pairs of bodies. Each step updates velocities, and then positions with the new velocities."""
    gravity, dt, softening = 6.674e-3, 0.01, 0.01
    for _ in range(steps):
        apart = position[None] - position[:, None]
        square = np.sum(apart * apart, axis=2) + softening**2
        pull = gravity * mass[None] / (square * np.sqrt(square))
        velocity = velocity + dt * np.sum(apart * pull[:, :, None], axis=1)
        position = position + dt * velocity
    return position, velocity


def portfolio(genomes, signals, band=0.05):
    """A policy of two layers that trades 16 assets. The result is the product of its returns.

    With a low cap there are many equal shares, which may differ by exactly the band, such as 1/4 and 1/5.
    """
    n, kind = len(genomes), genomes.dtype
    value, peak, m0, m1 = np.ones(n, kind), np.ones(n, kind), np.zeros(n, kind), np.zeros(n, kind)
    held, worst, alive = np.zeros((n, 16), kind), np.zeros(n, kind), np.ones(n, bool)
    for s in signals:
        drawdown = 1 - value / peak
        flat = np.zeros(n, kind)
        seen = [
            flat + s[0], np.minimum(1, 5 * drawdown), flat, np.clip(10 * (value / peak - 1), 0, 1),
            flat + s[1], flat + s[2], m0, m1,
        ]
        hidden = np.tanh(np.clip(layer(np.stack(seen, axis=1), genomes, 0, 8, 16), -20, 20))
        out = 1 / (1 + np.exp(-np.clip(layer(hidden, genomes, 144, 16, 6), -20, 20)))
        leverage, cap = 1 + 2 * out[:, 1], (1 - 0.8 * out[:, 0]) * (0.2 + 0.8 * out[:, 3])
        scores = np.maximum(s[4:20], 0)
        wanted = np.minimum(scores / np.maximum(scores.sum(dtype=kind), 1e-8), cap[:, None])
        wanted = wanted / np.maximum(wanted.sum(axis=1, keepdims=True, dtype=kind), 1e-8)
        wanted = np.where(np.abs(wanted - held) < band, held, wanted)
        change = wanted - held
        cost = np.where(change > 0, 0.0004 * change, -0.0002 * change).sum(axis=1, dtype=kind)
        gain = leverage * (wanted * s[20:36]).sum(axis=1, dtype=kind) - leverage * cost - 1e-5
        next_value = np.where(alive, value * (1 + gain), value)
        m0, m1 = np.where(alive, out[:, 4], m0), np.where(alive, out[:, 5], m1)
        held = np.where(alive[:, None], wanted, held)
        value = next_value
        peak = np.maximum(peak, value)
        worst = np.maximum(worst, 1 - value / peak)
        alive = alive & (value > 0.05)
    return (np.where(worst > 0.85, -9999, value).astype(kind),)


def agree(a, b, relative=1e-4):
    """For each individual, whether its outputs differ by at most the share `relative` of their largest element, or of 1e-3 if
    that is larger."""
    same = np.ones(len(b[0]), bool)
    for x, y in zip(a, b, strict=True):
        x, y = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (x, y))
        largest = np.maximum(np.abs(y).max(axis=1, keepdims=True), 1e-3)
        same &= np.all(np.abs(x - y) <= relative * largest, axis=1)
    return same


def bits(seed, name, n):
    """SplitMix64 from a seed and the purpose of the numbers, as in src/random.rs."""
    u64 = np.uint64
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    state ^= seed * 0x9E3779B97F4A7C15 % 2**64
    z = u64(state) + np.arange(1, n + 1, dtype=u64) * u64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
    return z ^ (z >> u64(31))


def draw(name, population, steps, dims=7, seed=1):
    """Seeded inputs of a workload without the number of steps, equal to those of src/cli/loops/inputs.rs."""
    f32 = np.float32

    def uniform(what, low, high, *shape):
        unit = (bits(seed, what, int(np.prod(shape))) >> np.uint64(40)) / 2.0**24
        return (low + (high - low) * unit).astype(f32).reshape(shape)

    def normal(what, *shape, scale=1.0):
        """Approximately normal numbers of this standard deviation: sums of four uniform numbers."""
        of_four = (bits(seed, what, 4 * int(np.prod(shape))) >> np.uint64(40)).reshape(-1, 4).sum(axis=1)
        return ((of_four / 2.0**24 - 2) * (np.sqrt(3) * scale)).astype(f32).reshape(shape)

    match name:
        case "rastrigin":
            return {"x": uniform("x", -5.12, 5.12, population, dims)}
        case "cartpole":
            # Genes near a policy that pushes towards the side to which the pole leans.
            lean = np.zeros(58, f32)
            lean[[16, 24]], lean[[17, 25]], lean[41], lean[42] = 1, -1, 1, 1
            genomes = lean + normal("genomes", population, 58, scale=0.3)
            return {"genomes": genomes, "state": uniform("state", -0.05, 0.05, population, 4)}
        case "acrobot" | "acrobot-rk4":
            state = uniform("state", -0.1, 0.1, population, 4)
            return {"genomes": normal("genomes", population, 163), "state": state}
        case "mountaincar":
            # Genes near a policy that accelerates in the direction of the velocity.
            along = np.array([0, 0, 0, -30, 0, 30, 0, 0, 0], f32)
            scale = np.repeat(np.array([0.3, 10, 0.2], f32), 3)
            genomes = along + scale * normal("genomes", population, 9)
            return {"genomes": genomes, "position": uniform("position", -0.6, -0.4, population)}
        case "mountaincar-51":
            # As above, by a hidden layer of 8.
            along, scale = np.zeros(51, f32), np.full(51, 0.3, f32)
            along[8:16], along[24:48:3], along[26:48:3], scale[8:16] = 30, -1, 1, 10
            genomes = along + scale * normal("genomes", population, 51)
            return {"genomes": genomes, "position": uniform("position", -0.6, -0.4, population)}
        case "montecarlo":
            return {"seeds": (bits(seed, "seeds", population) >> np.uint64(32)).astype(np.uint32)}
        case "nbody":
            return {
                "position": uniform("position", -4, 4, population, 3),
                "velocity": normal("velocity", population, 3, scale=0.1),
                "mass": uniform("mass", 0.5, 1.5, population),
            }
        case "portfolio":
            # Three of the market, an unused one, scores that change every eighth step and a little at each, returns.
            # Most scores are positive: of few equal shares some would differ by the band, and rounding decide.
            slow = np.repeat(normal("slow", steps // 8 + 1, 16), 8, axis=0)[:steps]
            scores = f32(0.7) + (slow + normal("scores", steps, 16, scale=0.1))
            returns = f32(0.0005) + normal("returns", steps, 16, scale=0.01)
            signals = np.concatenate([uniform("market", -1, 1, steps, 4), scores, returns], axis=1)
            return {"genomes": normal("genomes", population, 246), "signals": signals}


WORKLOADS = {
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


def run(name, inputs, steps, float_type=np.float32, **options):
    """The outputs of a workload for these inputs."""
    inputs = {k: v.astype(float_type) if v.dtype == np.float32 else v for k, v in inputs.items()}
    with np.errstate(over="ignore"):
        return WORKLOADS[name](**inputs, **options, **({} if name == "portfolio" else {"steps": steps}))
