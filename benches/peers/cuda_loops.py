#!/usr/bin/env python3
"""Simulations in CUDA C++, compiled by CuPy: one kernel has the loop over the steps, a thread an individual.

    python3 benches/peers/cuda_loops.py [cartpole|mountaincar|montecarlo …] [--population N] [--steps N] [--out FILE]
                                             (needs: pip install cupy-cuda13x numpy)
"""
import cupy
import numpy as np

import common

THREADS = 32
SOURCE = r"""
extern "C" __global__ void cartpole(const float* genomes, const float* given, float* reward_out, float* state_out, int count, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float g[58];
    #pragma unroll
    for (int k = 0; k < 58; k++) g[k] = genomes[i * 58 + k];
    float x = given[4 * i], v = given[4 * i + 1], angle = given[4 * i + 2], spin = given[4 * i + 3], reward = 0;
    for (int s = 0; s < steps; s++) {
        float left = g[56], right = g[57];
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            float h = fmaxf(g[32 + k] + x * g[k] + v * g[8 + k] + angle * g[16 + k] + spin * g[24 + k], 0.f);
            left += h * g[40 + 2 * k];
            right += h * g[41 + 2 * k];
        }
        float force = right > left ? 10.f : -10.f, sine, cosine;
        sincosf(angle, &sine, &cosine);
        float thrust = (force + 0.05f * spin * spin * sine) / 1.1f;
        float spin_rate = (9.8f * sine - cosine * thrust) / (0.5f * (4.f / 3.f - 0.1f * cosine * cosine / 1.1f));
        float rate = thrust - 0.05f * spin_rate * cosine / 1.1f;
        x += 0.02f * v; v += 0.02f * rate; angle += 0.02f * spin; spin += 0.02f * spin_rate;
        reward += 1.f;
        if (fabsf(x) > 2.4f || fabsf(angle) > 0.20943951f) break;
    }
    reward_out[i] = reward;
    state_out[4 * i] = x; state_out[4 * i + 1] = v; state_out[4 * i + 2] = angle; state_out[4 * i + 3] = spin;
}

extern "C" __global__ void mountaincar(const float* genomes, const float* given, float* reward_out, float* position_out, int count, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float* g = genomes + 9 * i;
    float a = g[0], b = g[1], c = g[2], d = g[3], e = g[4], f = g[5], p = g[6], q = g[7], r = g[8];
    float x = given[i], v = 0, reward = 0;
    for (int s = 0; s < steps; s++) {
        float first = x * a + v * d + p, second = x * b + v * e + q, third = x * c + v * f + r;
        float action = third > fmaxf(first, second) ? 1.f : second > first ? 0.f : -1.f;
        v = fminf(fmaxf(v + action * 0.001f - 0.0025f * cosf(3.f * x), -0.07f), 0.07f);
        x = fminf(fmaxf(x + v, -1.2f), 0.6f);
        if (x <= -1.2f && v < 0.f) v = 0.f;
        reward -= 1.f;
        if (x >= 0.5f && v >= 0.f) break;
    }
    reward_out[i] = reward;
    position_out[i] = x;
}

__device__ unsigned pcg(unsigned& state) {
    unsigned word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    state = state * 747796405u + 2891336453u;
    return (word >> 22) ^ word;
}

extern "C" __global__ void montecarlo(const unsigned* seeds, unsigned* inside_out, unsigned* state_out, int count, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned state = seeds[i], inside = 0;
    for (int s = 0; s < steps; s++) {
        float x = (pcg(state) >> 8) * 5.9604644775390625e-08f, y = (pcg(state) >> 8) * 5.9604644775390625e-08f;
        inside += x * x + y * y <= 1.f;
    }
    inside_out[i] = inside;
    state_out[i] = state;
}
"""
NAMES = ["cartpole", "mountaincar", "montecarlo"]


def prepare(name, inputs, steps):
    kernel = cupy.RawKernel(SOURCE, name)
    given = [cupy.asarray(v) for v in inputs.values()]
    count = len(given[0])

    def start():
        state = cupy.empty_like(given[-1])
        reward = cupy.empty(count, given[-1].dtype)
        grid = ((count + THREADS - 1) // THREADS,)
        kernel(grid, (THREADS,), (*given, reward, state, np.int32(count), np.int32(steps)))
        return reward, state

    return start, lambda _: cupy.cuda.Stream.null.synchronize(), cupy.asnumpy


if __name__ == "__main__":
    about = {"engine": "cuda", "versions": {"cupy": cupy.__version__}, "platform": "cuda"}
    common.main(__doc__.splitlines()[0], about, prepare, NAMES)
