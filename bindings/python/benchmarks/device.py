"""Measures the device ``webgpu`` beside other devices of torch.

    python device.py decode --model qwen2.5-0.5b --device cuda webgpu --dtype f32
    python device.py step --model qwen2.5-0.5b --device cuda webgpu --dtype f32
    python device.py train --model resnet18 --device cuda cpu webgpu --steps 200
    python device.py operator --device cuda webgpu

``decode`` is ``generate`` of transformers, ``step`` a loop around one compiled step. Name ``webgpu`` last: with it, torch cannot train
on CUDA. Models have random weights from a fixed seed. A line for each measurement goes to the output, with ``--json`` as JSON.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

SHAPES = {
    "qwen2.5-0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2),
    "qwen2.5-1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2),
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
}
DTYPES = {"f32": torch.float32, "f16": torch.float16}


def wait(device):
    if device != "cpu":
        getattr(torch, device).synchronize()


def begin(device):
    """Registers the device ``webgpu`` when it is first measured."""
    if device == "webgpu":
        import wgfc.torch  # noqa: F401


def timed(f, device):
    """The seconds that ``f`` takes, and what it returns."""
    wait(device)
    start = time.perf_counter()
    made = f()
    wait(device)
    return time.perf_counter() - start, made


def interval(values):
    """The mean and the half width of its 95 % interval."""
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), half


def report(arguments, **figures):
    if arguments.json:
        print(json.dumps(figures), flush=True)
    else:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()), flush=True)


def counts(device):
    """The programs compiled and run so far on ``webgpu``."""
    if device != "webgpu":
        return {}
    import wgfc.torch

    made = wgfc.torch.statistics()
    return {"compiled": made.compiled, "runs": made.runs, "operators": made.operators, "on_host": sum(made.on_host.values())}


def language_model(name, dtype):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    small = name == "tiny"
    config = Qwen2Config(vocab_size=1000 if small else 151936, tie_word_embeddings=True, max_position_embeddings=4096, **SHAPES[name])
    return Qwen2ForCausalLM(config).eval().to(dtype)


def decode(arguments):
    """Tokens a second of greedy generation from a prompt."""
    texts = {}
    for device in arguments.device:
        begin(device)
        model = language_model(arguments.model, DTYPES[arguments.dtype]).to(device)
        prompt = torch.randint(3, 900, (1, arguments.prompt), generator=torch.Generator().manual_seed(1)).to(device)
        for compiled in (False, True) if arguments.compiled else (False,):
            options = {"disable_compile": True, "do_sample": False}
            if compiled:
                backend = "wgfc" if device == "webgpu" else "inductor"
                model.forward = torch.compile(model.forward, backend=backend)
            if compiled or arguments.static:
                options["cache_implementation"] = "static"

            def generate():
                count = arguments.tokens
                return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count, **options)

            first, text = timed(generate, device)
            second, _ = timed(generate, device)
            before = counts(device)
            rates = [arguments.tokens / timed(generate, device)[0] for _ in range(arguments.runs)]
            mean, half = interval(rates)
            after = {k: v - before[k] for k, v in counts(device).items()}
            texts.setdefault("text", text.tolist())
            same = texts["text"] == text.tolist()
            figures = dict(first_seconds=first, second_seconds=second, same_text=same, **after)
            kind = "compiled" if compiled else "eager"
            report(arguments, device=device, kind=kind, model=arguments.model, dtype=arguments.dtype, tokens_s=mean, half=half, **figures)


def step(arguments):
    """Tokens a second of greedy decoding by a loop around one compiled step, whose cache and tokens stay on the device."""
    from transformers import StaticCache

    texts = {}
    for device in arguments.device:
        begin(device)
        model = language_model(arguments.model, DTYPES[arguments.dtype]).to(device)

        @torch.no_grad()
        def one(token, cache, position):
            out = model(token, past_key_values=cache, cache_position=position, position_ids=position[None], use_cache=True)
            return out.logits[:, -1:].argmax(-1), position + 1

        compiled = torch.compile(one, backend="wgfc" if device == "webgpu" else "inductor")

        def run():
            cache = StaticCache(config=model.config, max_cache_len=arguments.tokens + 8)
            token, position = torch.tensor([[3]], device=device), torch.zeros(1, dtype=torch.int64, device=device)
            text = []
            for i in range(arguments.tokens + 3):
                if i == 3:
                    wait(device)
                    start = time.perf_counter()
                token, position = compiled(token, cache, position)
                text.append(token)
            text = torch.cat(text, 1).tolist()
            return arguments.tokens / (time.perf_counter() - start), text

        first, _ = timed(run, device)
        run()
        made = [run() for _ in range(arguments.runs)]
        mean, half = interval([rate for rate, _ in made])
        same = texts.setdefault("text", made[0][1]) == made[0][1]
        figures = dict(tokens_s=mean, half=half, first_seconds=first, same_text=same)
        report(arguments, device=device, kind="step", model=arguments.model, dtype=arguments.dtype, **figures)


def sae(steps):
    """The sparse autoencoder of fixtures/torch/train_step.py, of a useful size."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "torch"))
    from train_step import Autoencoder

    torch.manual_seed(0)
    model, rows = Autoencoder(768, 12288), torch.randn(4, 4096, 768)
    return model, lambda m, x: m(x), [(rows[i % 4],) for i in range(steps)]


def decoder(steps):
    """A decoder of 10 million parameters, its loss, and batches."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=384, n_layer=5, n_head=6, n_positions=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    ids = torch.randint(0, 4096, (steps, 8, 64))
    return model, lambda m, x: m(input_ids=x, labels=x).loss, [(x,) for x in ids]


def resnet(steps):
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)
    images, labels = torch.randn(16, 16, 3, 64, 64), torch.randint(0, 10, (16, 16))
    loss = torch.nn.functional.cross_entropy
    return model, lambda m, x, y: loss(m(x), y), [(images[i % 16], labels[i % 16]) for i in range(steps)]


def train(arguments):
    """Losses and milliseconds of training steps."""
    expected = None
    for device in arguments.device:
        begin(device)
        for compiled in (False, True) if arguments.compiled else (False,):
            model, loss_of, batches = {"resnet18": resnet, "decoder": decoder, "sae": sae}[arguments.model](arguments.steps)
            model.to(device).train()
            step_loss = torch.compile(loss_of, backend="wgfc" if device == "webgpu" else "inductor") if compiled else loss_of
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            placed = [tuple(x.to(device) for x in b) for b in batches]
            losses, times = [], []
            for batch in placed:

                def one():
                    loss = step_loss(model, *batch)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    return loss.item()

                seconds, loss = timed(one, device)
                losses.append(loss), times.append(seconds)
            expected = expected or losses
            differs = abs(losses[-1] - expected[-1]) / abs(expected[-1])
            kind = "compiled" if compiled else "eager"
            ms = statistics.median(times[len(times) // 2 :]) * 1e3
            figures = dict(step_ms=ms, first_seconds=times[0], loss=losses[-1], loss_differs=differs, **counts(device))
            report(arguments, device=device, kind=kind, model=arguments.model, steps=arguments.steps, **figures)


def operator(arguments):
    """Microseconds that the host spends for each operator."""
    for device in arguments.device:
        begin(device)
        x, y = torch.ones(64, device=device), torch.ones(64, device=device)
        for name, f in (("x + y", lambda: x + y), ("x[1:]", lambda: x[1:]), ("x.add_(y)", lambda: x.add_(y)), ("x.view(8, 8)", lambda: x.view(8, 8))):
            times = []
            for _ in range(8):
                wait(device)
                start = time.perf_counter()
                for _ in range(2000):
                    f()
                times.append((time.perf_counter() - start) / 2000 * 1e6)
            report(arguments, device=device, operator=name, us=min(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "step", "train", "operator"))
    parser.add_argument("--device", nargs="+", default=["webgpu"], help="the devices of torch to measure, in order")
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile too")
    parser.add_argument("--static", action="store_true", help="use a cache of constant size")
    parser.add_argument("--prompt", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    {"decode": decode, "step": step, "train": train, "operator": operator}[arguments.what](arguments)


if __name__ == "__main__":
    main()
