#!/usr/bin/env python3
"""The simulations in PyTorch, eager: each operation of a step is a kernel over the whole population.

    python3 benches/peers/torch_loops.py [WORKLOAD …] [--population N] [--steps N] [--out FILE]
                                             (needs: pip install torch numpy)
"""
import math
from functools import partial

import torch

import common

PI = math.pi
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layers(genomes, *sizes):
    """A function for each layer; its weights and biases are views that are made once."""
    begin = 0
    made = []
    for n, m in sizes:
        weights = genomes[:, begin : begin + n * m].reshape(-1, n, m)
        biases = genomes[:, begin + n * m : begin + n * m + m].unsqueeze(1)
        made.append(lambda x, w=weights, b=biases: torch.baddbmm(b, x.unsqueeze(1), w).squeeze(1))
        begin += n * m + m
    return made


def rastrigin(x, steps):
    return (10 * x.shape[1] + (x * x - 10 * torch.cos(2 * PI * x)).sum(dim=1),)


def cartpole(genomes, state, steps):
    gravity, cart, pole, half_length, push, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    mass, moment = cart + pole, pole * half_length
    first, second = layers(genomes, (4, 8), (8, 2))
    alive = torch.ones(len(genomes), dtype=torch.bool, device=genomes.device)
    reward = torch.zeros_like(genomes[:, 0])
    for _ in range(steps):
        x, v, angle, spin = state.unbind(1)
        action = second(torch.relu(first(state))).argmax(dim=1)
        force = torch.where(action == 1, push, -push)
        sin, cos = torch.sin(angle), torch.cos(angle)
        thrust = (force + moment * spin * spin * sin) / mass
        spin_rate = (gravity * sin - cos * thrust) / (half_length * (4 / 3 - pole * cos * cos / mass))
        rate = thrust - moment * spin_rate * cos / mass
        after = torch.stack([x + tau * v, v + tau * rate, angle + tau * spin, spin + tau * spin_rate], dim=1)
        state = torch.where(alive.unsqueeze(1), after, state)
        reward = reward + alive
        alive = alive & (state[:, 0].abs() <= 2.4) & (state[:, 2].abs() <= 12 * 2 * PI / 360)
    return reward, state


def acrobot_rates(a, b, da, db, torque):
    length, centre, mass, inertia, gravity = 1.0, 0.5, 1.0, 1.0, 9.8
    arm = mass * length * centre
    cos_b, sin_b = torch.cos(b), torch.sin(b)
    d1 = mass * centre**2 + mass * (length**2 + centre**2 + 2 * length * centre * cos_b) + 2 * inertia
    d2 = mass * (centre**2 + length * centre * cos_b) + inertia
    phi2 = mass * centre * gravity * torch.cos(a + b - PI / 2)
    phi1 = -arm * db * db * sin_b - 2 * arm * db * da * sin_b
    phi1 = phi1 + (mass * centre + mass * length) * gravity * torch.cos(a - PI / 2) + phi2
    moved = torque + d2 / d1 * phi1 - arm * da * da * sin_b - phi2
    ddb = moved / (mass * centre**2 + inertia - d2 * d2 / d1)
    return -(d2 * ddb + phi1) / d1, ddb


def euler_step(state, torque):
    dt, (dda, ddb) = 0.05, acrobot_rates(*state, torque)
    a, b, da, db = state
    return a + dt * da, b + dt * db, da + dt * dda, db + dt * ddb


def runge_kutta_step(state, torque):
    return common.reference.runge_kutta(lambda s: (s[2], s[3], *acrobot_rates(*s, torque)), state, 0.2)


def acrobot(genomes, state, steps, method=euler_step):
    first, second = layers(genomes, (6, 16), (16, 3))

    def wrapped(angle):
        return angle - 2 * PI * torch.floor((angle + PI) / (2 * PI))

    a, b, da, db = state.unbind(1)
    reward = torch.zeros_like(a)
    for _ in range(steps):
        seen = torch.stack([torch.cos(a), torch.sin(a), torch.cos(b), torch.sin(b), da, db], dim=1)
        torque = (second(torch.tanh(first(seen))).argmax(dim=1) - 1).float()
        a, b, da, db = method((a, b, da, db), torque)
        a, b, da, db = wrapped(a), wrapped(b), da.clamp(-4 * PI, 4 * PI), db.clamp(-9 * PI, 9 * PI)
        high = -torch.cos(a) - torch.cos(a + b) > 1
        reward = reward + torch.where(high, 1.0, -0.01)
    return reward, torch.stack([a, b, da, db], dim=1)


def mountaincar(genomes, position, steps, hidden=0):
    if hidden:
        first, second = layers(genomes, (2, hidden), (hidden, 3))
        policy = lambda x: second(torch.tanh(first(x)))
    else:
        (policy,) = layers(genomes, (2, 3))
    velocity, reward = torch.zeros_like(position), torch.zeros_like(position)
    alive = torch.ones_like(position, dtype=torch.bool)
    for _ in range(steps):
        action = policy(torch.stack([position, velocity], dim=1)).argmax(dim=1)
        v = velocity + (action - 1).float() * 0.001 - 0.0025 * torch.cos(3 * position)
        v = v.clamp(-0.07, 0.07)
        p = (position + v).clamp(-1.2, 0.6)
        v = torch.where((p <= -1.2) & (v < 0), 0.0, v)
        position, velocity = torch.where(alive, p, position), torch.where(alive, v, velocity)
        reward = reward - alive.float()
        alive = alive & ~((position >= 0.5) & (velocity >= 0))
    return reward, position


def montecarlo(seeds, steps):
    """Computes u32 values in the lower half of i64, because PyTorch has no u32 arithmetic."""
    low = 0xFFFFFFFF

    def pcg(state):
        word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & low
        return (state * 747796405 + 2891336453) & low, (word >> 22) ^ word

    def unit(word):
        return (word >> 8).float() * 2.0**-24

    state, inside = seeds, torch.zeros_like(seeds)
    for _ in range(steps):
        state, first = pcg(state)
        state, second = pcg(state)
        x, y = unit(first), unit(second)
        inside = inside + (x * x + y * y <= 1)
    return inside, state


def nbody(position, velocity, mass, steps):
    gravity, dt, softening = 6.674e-3, 0.01, 0.01
    for _ in range(steps):
        apart = position.unsqueeze(0) - position.unsqueeze(1)
        square = (apart * apart).sum(dim=2) + softening**2
        pull = gravity * mass.unsqueeze(0) / (square * torch.sqrt(square))
        velocity = velocity + dt * (apart * pull.unsqueeze(2)).sum(dim=1)
        position = position + dt * velocity
    return position, velocity


def portfolio(genomes, signals, steps):
    first, second = layers(genomes, (8, 16), (16, 6))
    value = torch.ones_like(genomes[:, 0])
    zero, peak = torch.zeros_like(value), value
    m0, m1, worst = zero, zero, zero
    held = torch.zeros_like(genomes[:, :16])
    alive = torch.ones_like(value, dtype=torch.bool)
    for s in signals:
        drawdown = 1 - value / peak
        rise = (10 * (value / peak - 1)).clamp(0, 1)
        market = [zero + s[i] for i in range(3)]
        seen = torch.stack([market[0], (5 * drawdown).clamp(max=1), zero, rise, *market[1:], m0, m1], dim=1)
        hidden = torch.tanh(first(seen).clamp(-20, 20))
        out = torch.sigmoid(second(hidden).clamp(-20, 20))
        leverage, cap = 1 + 2 * out[:, 1], (1 - 0.8 * out[:, 0]) * (0.2 + 0.8 * out[:, 3])
        scores = torch.relu(s[4:20])
        wanted = torch.minimum(scores / scores.sum().clamp(min=1e-8), cap.unsqueeze(1))
        wanted = wanted / wanted.sum(dim=1, keepdim=True).clamp(min=1e-8)
        wanted = torch.where((wanted - held).abs() < 0.05, held, wanted)
        change = wanted - held
        cost = (change.abs() * torch.where(change > 0, 0.0004, 0.0002)).sum(dim=1)
        gain = leverage * (wanted * s[20:36]).sum(dim=1) - leverage * cost - 1e-5
        value = torch.where(alive, value * (1 + gain), value)
        m0, m1 = torch.where(alive, out[:, 4], m0), torch.where(alive, out[:, 5], m1)
        held = torch.where(alive.unsqueeze(1), wanted, held)
        peak = torch.maximum(peak, value)
        worst = torch.maximum(worst, 1 - value / peak)
        alive = alive & (value > 0.05)
    return (torch.where(worst > 0.85, -9999.0, value),)


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
    wide = lambda v: v.astype("int64") if v.dtype == "uint32" else v
    given = [torch.from_numpy(wide(v)).to(DEVICE) for v in inputs.values()]

    def start():
        with torch.inference_mode():
            return SIMULATIONS[name](*given, steps=steps)

    def wait(_):
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return start, wait, lambda output: output.cpu().numpy()


if __name__ == "__main__":
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    about = {"engine": "torch", "versions": {"torch": torch.__version__}, "ran_on": name, "platform": DEVICE.type}
    common.main(__doc__.splitlines()[0], about, prepare)
