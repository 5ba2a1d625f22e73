#!/usr/bin/env python3
"""Simulations in Triton: one kernel has the loop over the steps, a lane an individual.

    python3 benches/peers/triton_loops.py [cartpole|mountaincar|montecarlo …] [--population N] [--steps N] [--out FILE]
                                             (needs: pip install triton torch numpy)
"""
import torch
import triton
import triton.language as tl

import common

BLOCK = 32


@triton.jit
def cartpole(genomes, state, reward_out, state_out, count, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = i < count
    unit = tl.arange(0, 8)[None, :]
    row, both = (genomes + i * 58)[:, None], given[:, None]
    # A row of the first layer's weights for each input, a column of the second layer's for each output.
    wx, wv = tl.load(row + unit, both, 0.0), tl.load(row + 8 + unit, both, 0.0)
    wa, ws = tl.load(row + 16 + unit, both, 0.0), tl.load(row + 24 + unit, both, 0.0)
    bias = tl.load(row + 32 + unit, both, 0.0)
    left, right = tl.load(row + 40 + 2 * unit, both, 0.0), tl.load(row + 41 + 2 * unit, both, 0.0)
    left_bias, right_bias = tl.load(genomes + i * 58 + 56, given, 0.0), tl.load(genomes + i * 58 + 57, given, 0.0)
    x, v = tl.load(state + 4 * i, given, 0.0), tl.load(state + 4 * i + 1, given, 0.0)
    angle, spin = tl.load(state + 4 * i + 2, given, 0.0), tl.load(state + 4 * i + 3, given, 0.0)
    alive, reward = given, tl.zeros([BLOCK], tl.float32)
    for _ in range(steps):
        hidden = x[:, None] * wx + v[:, None] * wv + angle[:, None] * wa + spin[:, None] * ws + bias
        hidden = tl.maximum(hidden, 0.0)
        push = tl.sum(hidden * right, 1) + right_bias > tl.sum(hidden * left, 1) + left_bias
        force = tl.where(push, 10.0, -10.0)
        sin, cos = tl.sin(angle), tl.cos(angle)
        thrust = (force + 0.05 * spin * spin * sin) / 1.1
        spin_rate = (9.8 * sin - cos * thrust) / (0.5 * (1.3333333333333333 - 0.1 * cos * cos / 1.1))
        rate = thrust - 0.05 * spin_rate * cos / 1.1
        x, v = tl.where(alive, x + 0.02 * v, x), tl.where(alive, v + 0.02 * rate, v)
        angle, spin = tl.where(alive, angle + 0.02 * spin, angle), tl.where(alive, spin + 0.02 * spin_rate, spin)
        reward += tl.where(alive, 1.0, 0.0)
        alive = alive & (tl.abs(x) <= 2.4) & (tl.abs(angle) <= 0.20943951023931953)
    tl.store(reward_out + i, reward, given)
    tl.store(state_out + 4 * i, x, given)
    tl.store(state_out + 4 * i + 1, v, given)
    tl.store(state_out + 4 * i + 2, angle, given)
    tl.store(state_out + 4 * i + 3, spin, given)


@triton.jit
def mountaincar(genomes, position, reward_out, position_out, count, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = i < count
    g = genomes + 9 * i
    a, b, c = tl.load(g, given, 0.0), tl.load(g + 1, given, 0.0), tl.load(g + 2, given, 0.0)
    d, e, f = tl.load(g + 3, given, 0.0), tl.load(g + 4, given, 0.0), tl.load(g + 5, given, 0.0)
    p, q, r = tl.load(g + 6, given, 0.0), tl.load(g + 7, given, 0.0), tl.load(g + 8, given, 0.0)
    x, v = tl.load(position + i, given, 0.0), tl.zeros([BLOCK], tl.float32)
    alive, reward = given, tl.zeros([BLOCK], tl.float32)
    for _ in range(steps):
        first, second, third = x * a + v * d + p, x * b + v * e + q, x * c + v * f + r
        action = tl.where(third > tl.maximum(first, second), 1.0, tl.where(second > first, 0.0, -1.0))
        w = v + action * 0.001 - 0.0025 * tl.cos(3 * x)
        w = tl.minimum(tl.maximum(w, -0.07), 0.07)
        y = tl.minimum(tl.maximum(x + w, -1.2), 0.6)
        w = tl.where((y <= -1.2) & (w < 0), 0.0, w)
        x, v = tl.where(alive, y, x), tl.where(alive, w, v)
        reward -= tl.where(alive, 1.0, 0.0)
        alive = alive & ~((x >= 0.5) & (v >= 0))
    tl.store(reward_out + i, reward, given)
    tl.store(position_out + i, x, given)


@triton.jit
def pcg(state):
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737
    return (state * 747796405 + 2891336453).to(tl.uint32), ((word >> 22) ^ word).to(tl.uint32)


@triton.jit
def montecarlo(seeds, inside_out, state_out, count, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = i < count
    state = tl.load(seeds + i, given, 0).to(tl.uint32)
    inside = tl.zeros([BLOCK], tl.int32)
    for _ in range(steps):
        state, first = pcg(state)
        state, second = pcg(state)
        x, y = (first >> 8).to(tl.float32) * 5.9604644775390625e-08, (second >> 8).to(tl.float32) * 5.9604644775390625e-08
        inside += (x * x + y * y <= 1.0).to(tl.int32)
    tl.store(inside_out + i, inside, given)
    tl.store(state_out + i, state.to(tl.int32, bitcast=True), given)


KERNELS = {"cartpole": cartpole, "mountaincar": mountaincar, "montecarlo": montecarlo}


def prepare(name, inputs, steps):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    same = lambda v: v.view("int32") if v.dtype == "uint32" else v
    given = [torch.from_numpy(same(v)).to(device) for v in inputs.values()]
    count = len(given[0])

    def start():
        state = torch.empty_like(given[-1])
        reward = torch.empty(count, device=device, dtype=torch.int32 if name == "montecarlo" else torch.float32)
        KERNELS[name][(triton.cdiv(count, BLOCK),)](*given, reward, state, count, steps, BLOCK=BLOCK, num_warps=1)
        return reward, state

    def wait(_):
        if device.type == "cuda":
            torch.cuda.synchronize()

    return start, wait, lambda output: output.cpu().numpy()


if __name__ == "__main__":
    about = {"engine": "triton", "versions": {"triton": triton.__version__}, "platform": "cuda"}
    common.main(__doc__.splitlines()[0], about, prepare, [*KERNELS])
