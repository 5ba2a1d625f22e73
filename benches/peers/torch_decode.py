#!/usr/bin/env python3
"""Decoding with torch.compile on CUDA in f16, as gpt-fast does it, for comparison with `wgfc bench decode`.

    python3 benches/peers/torch_decode.py [MODEL …] [--past 64 2048 16384] [--prompt 512 4096] [--tokens 128] [--no-tuning]
    python3 benches/peers/torch_decode.py --check     on the CPU: compiled steps give the tokens of runs over the whole sequence
                                                      (needs: pip install torch)

Decoders have random weights and the dimensions of published models. A step is one compiled graph, recorded by CUDA: it reads a token
and its position from static tensors, writes keys and values into a static cache, and leaves the most probable token and the next
position where it read them. Prompts are eager, from an empty cache, in one run. Prints a JSON object a line: tokens a second, the median
of three.
"""
import argparse
import json
import time

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import nn

# Layers, width, heads, heads of keys, width between gate and down, size of the vocabulary.
MODELS = {
    "qwen2.5-0.5b": (24, 896, 14, 2, 4864, 151936),
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 8960, 151936),
    "qwen2.5-3b": (36, 2048, 16, 2, 11008, 151936),
    "phi-3-mini": (32, 3072, 32, 32, 8192, 32064),
    "qwen2.5-7b": (28, 3584, 28, 4, 18944, 152064),
    "llama-3.1-8b": (32, 4096, 32, 8, 14336, 128256),
    "small": (2, 64, 4, 2, 96, 101),
}


class RMSNorm(nn.Module):
    """A norm of several operations, or of torch's own kernel."""

    def __init__(self, width, fused=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fused = fused

    def forward(self, x):
        if self.fused:
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Parts(nn.Module):
    """Products of one operand with several weights, merged or apart."""

    def __init__(self, width, parts, merged):
        super().__init__()
        parts = [sum(parts)] if merged else parts
        self.each = nn.ModuleList(nn.Linear(width, n, bias=False) for n in parts)

    def forward(self, x):
        return self.each[0](x) if len(self.each) == 1 else torch.cat([linear(x) for linear in self.each], -1)


class Layer(nn.Module):
    def __init__(self, width, heads, groups, between, capacity, fused=frozenset({"qkv"})):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.attention_norm, self.mlp_norm = RMSNorm(width, "norms" in fused), RMSNorm(width, "norms" in fused)
        parts = [n * self.size for n in (heads, groups, groups)]
        self.qkv = Parts(width, parts, "qkv" in fused)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_up = Parts(width, [between, between], "mlp" in fused)
        self.down = nn.Linear(between, width, bias=False)
        for name in ["keys", "values"]:
            self.register_buffer(name, torch.zeros(1, groups, capacity, self.size))

    def forward(self, x, at, cos, sin, mask):
        """`x` is [positions, width]; without a mask the positions are those of a prompt, from the first one on."""
        qkv = self.qkv(self.attention_norm(x)).view(x.shape[0], -1, self.size).transpose(0, 1)
        q, k, v = qkv.unsqueeze(0).split([self.heads, self.groups, self.groups], 1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        if mask is not None:
            k, v = self.keys, self.values
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.groups
        )
        x = x + self.output(y[0].transpose(0, 1).reshape(x.shape[0], -1))
        y = self.mlp_norm(x)
        gate, up = self.gate_up(y).chunk(2, -1) if len(self.gate_up.each) == 1 else (part(y) for part in self.gate_up.each)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, name, capacity, fused=frozenset({"qkv"})):
        """What is fused by hand: `norms` in one kernel, `qkv` and `mlp` (gate and up) in one product each."""
        super().__init__()
        layers, width, heads, groups, between, vocabulary = MODELS[name]
        size = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, between, capacity, fused) for _ in range(layers))
        self.norm, self.head = RMSNorm(width, "norms" in fused), nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(capacity).float(), 1e4 ** (-torch.arange(0, size, 2).float() / size))
        for key, value in {
            "cos": angles.cos().to(self.head.weight.dtype),
            "sin": angles.sin().to(self.head.weight.dtype),
            "positions": torch.arange(capacity),
            "token": torch.zeros(1, dtype=torch.long),
            "at": torch.zeros(1, dtype=torch.long),
        }.items():
            self.register_buffer(key, value)
        for buffer in self.buffers():
            torch._dynamo.mark_static_address(buffer)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02 if width > 64 else 0.2)

    def logits(self, tokens, at, mask):
        x, cos, sin = self.embedding(tokens), self.cos[at], self.sin[at]
        for layer in self.layers:
            x = layer(x, at, cos, sin, mask)
        return self.head(self.norm(x[-1:]))

    def prompt(self, tokens):
        return self.logits(tokens, self.positions[: len(tokens)], None).argmax(-1)

    def step(self):
        mask = (self.positions <= self.at).view(1, 1, 1, -1)
        self.token.copy_(self.logits(self.token, self.at, mask).argmax(-1))
        self.at.add_(1)


def decoder(name, capacity, device, dtype, fused=frozenset({"qkv"})):
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        made = Decoder(name, capacity, fused).eval()
    torch.set_default_dtype(torch.float32)
    return made


def check():
    model = decoder("small", 48, "cpu", torch.float32)
    tokens = torch.tensor([5, 17, 3, 88, 41, 2, 60])
    step = torch.compile(model.step, fullgraph=True)
    model.token.copy_(model.prompt(tokens))
    model.at.fill_(len(tokens))
    for _ in range(20):
        tokens = torch.cat([tokens, model.token])
        step()
        own = model.token.clone()
        caches = [b.clone() for b in model.buffers()]
        expected = model.prompt(tokens)
        for buffer, kept in zip(model.buffers(), caches):
            buffer.copy_(kept)
        assert torch.equal(own, expected), f"behind {len(tokens)} tokens {own.item()} instead of {expected.item()}"
    print(f"20 tokens are the same: {tokens[7:].tolist()}")


def seconds(run):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def median(run):
    return sorted(seconds(run) for _ in range(3))[1]


def prompts(name, lengths):
    for length in lengths:
        model = decoder(name, length, "cuda", torch.float16)
        tokens = torch.randint(0, MODELS[name][-1], (length,), device="cuda")
        seconds(lambda: model.prompt(tokens))
        time_of_one = median(lambda: model.prompt(tokens))
        yield {"model": name, "prompt": length, "tokens_per_second": length / time_of_one}


def steps(name, pasts, count):
    for past in pasts:
        model = decoder(name, (past + count + 127) // 64 * 64, "cuda", torch.float16)
        step = torch.compile(model.step, mode="reduce-overhead", fullgraph=True)

        def run(number):
            model.at.fill_(past)
            for _ in range(number):
                torch.compiler.cudagraph_mark_step_begin()
                step()

        compiling = seconds(lambda: run(3))
        time_of_all = median(lambda: run(count))
        assert model.at.item() == past + count, "the recorded graph does not write where it reads"
        yield {
            "model": name,
            "past": past,
            "tokens_per_second": count / time_of_all,
            "compile_seconds": compiling,
            "memory_bytes": torch.cuda.max_memory_allocated(),
        }


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    p.add_argument("--past", nargs="*", type=int, default=[64, 2048, 16384])
    p.add_argument("--prompt", nargs="*", type=int, default=[512, 4096])
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--no-tuning", action="store_true", help="without coordinate descent tuning, which gpt-fast sets")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    unknown = [name for name in a.models if name not in MODELS]
    if unknown:
        p.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    torch._inductor.config.coordinate_descent_tuning = not a.no_tuning
    with torch.no_grad():
        if a.check:
            return check()
        for name in a.models or [name for name in MODELS if name != "small"]:
            for rows in [prompts(name, a.prompt), steps(name, a.past, a.tokens)]:
                for row in rows:
                    print(json.dumps(row), flush=True)
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
