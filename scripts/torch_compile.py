#!/usr/bin/env python3
"""Compares torch.compile(model, backend="wgfc") with eager PyTorch on models of torchvision and transformers.

  python scripts/torch_compile.py [NAME ...]     only models whose names contain one of these
  python scripts/torch_compile.py --steps 100    also trains for this many steps and compares the losses

Needs the Python packages wgfc (bindings/python), torch, torchvision and transformers. Models have random weights and few or small
layers, and nothing is downloaded. Prints a table with the largest differences of values in inference and of gradients (relative
to the largest element of each tensor), the largest difference of training losses, the numbers of programs and of operators that
stay in torch, and the total time in seconds. Fails if a difference exceeds 1e-3.
"""

import argparse
import sys
import time
import warnings

import torch

TOLERANCE = 1e-3


def vision(name, size=64, **options):
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, num_classes=10, **options)
    return model, {"x": torch.randn(2, 3, size, size)}


def text(config, name, heads=4, **options):
    import transformers

    common = {"vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 128}
    config = getattr(transformers, config)(**{**common, **options})
    model = getattr(transformers, name)(config)
    return model, {"input_ids": torch.randint(0, 101, (2, 13))}


def t5():
    import transformers

    config = transformers.T5Config(
        vocab_size=101, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    ids = torch.randint(0, 101, (2, 11))
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "decoder_input_ids": ids[:, :7]}


def gpt2():
    import transformers

    config = transformers.GPT2Config(vocab_size=101, n_embd=64, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 101, (2, 13))}


def vit():
    import transformers

    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


MODELS = {
    "resnet18": lambda: vision("resnet18"),
    "mobilenet_v3_small": lambda: vision("mobilenet_v3_small"),
    "efficientnet_b0": lambda: vision("efficientnet_b0"),
    "densenet121": lambda: vision("densenet121"),
    "shufflenet_v2": lambda: vision("shufflenet_v2_x0_5"),
    "bert": lambda: text("BertConfig", "BertForSequenceClassification"),
    "gpt2": gpt2,
    "llama": lambda: text("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, use_cache=False),
    "t5": t5,
    "vit": vit,
}


def first(result):
    """The main tensor of a model's output."""
    if isinstance(result, torch.Tensor):
        return result
    return result.logits


def gradients(model, run, inputs):
    model.zero_grad()
    y = first(run(**inputs))
    weight = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    (y * weight).mean().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def difference(got, want):
    """The largest difference relative to the largest value."""
    return ((got - want).abs().max() / want.abs().max()).item()


def relative(got, want, scale):
    """The largest error of a gradient, relative to the larger of its largest element and a thousandth of `scale`."""
    return ((got - want).abs().max() / want.abs().max().clamp(min=scale * 1e-3)).item()


def ready(make):
    """A model and its inputs. Normalisation uses the statistics of the inputs, and as in evaluation nothing is random."""
    torch.manual_seed(0)
    model, inputs = make()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = None
    with torch.no_grad():
        model.train()(**inputs)
    return model.eval(), inputs


def train(make, steps):
    """The largest difference of losses while both models are trained."""
    curves = []
    for compiled in [False, True]:
        model, inputs = ready(make)
        run = torch.compile(model, backend="wgfc") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        curves.append([])
        for _ in range(steps):
            optimizer.zero_grad()
            y = first(run(**inputs))
            target = torch.zeros(y.shape[:-1], dtype=torch.int64)
            loss = torch.nn.functional.cross_entropy(y.flatten(0, -2), target.flatten())
            loss.backward()
            optimizer.step()
            curves[-1].append(loss.item())
    return max(abs(a - b) for a, b in zip(*curves))


def compare(make, steps):
    from wgfc.torch_backend import statistics

    torch._dynamo.reset()
    model, inputs = ready(make)
    before, start = statistics(), time.time()
    run = torch.compile(model, backend="wgfc")
    with torch.no_grad():
        forward = difference(first(run(**inputs)), first(model(**inputs)))
    got, want = gradients(model, run, inputs), gradients(model, model, inputs)
    if got.keys() != want.keys():
        raise AssertionError(f"gradients of {sorted(got.keys() ^ want.keys())} on one side alone")
    scale = max(g.abs().max().item() for g in want.values())
    backward = max(relative(got[n], want[n], scale) for n in want)
    after = statistics()
    losses = train(make, steps) if steps else 0.0
    return {
        "forward": forward,
        "gradient": backward,
        "losses": losses,
        "graphs": after.graphs - before.graphs,
        "programs": after.programs - before.programs,
        "in torch": after.operators - before.operators,
        "seconds": time.time() - start,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    failed = []
    print(f"{'model':<20}{'forward':>10}{'gradient':>10}{'losses':>10}{'graphs':>8}{'programs':>10}{'in torch':>10}{'seconds':>9}")
    for name, make in MODELS.items():
        if options.names and not any(n in name for n in options.names):
            continue
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                r = compare(make, options.steps)
        except Exception as e:
            failed.append(name)
            print(f"{name:<20}{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", flush=True)
            continue
        print(
            f"{name:<20}{r['forward']:>10.1e}{r['gradient']:>10.1e}{r['losses']:>10.1e}{r['graphs']:>8}{r['programs']:>10}"
            f"{r['in torch']:>10}{r['seconds']:>9.1f}",
            flush=True,
        )
        for w in told:
            if w.category.__name__ in ("FallbackWarning", "CompileWarning"):
                print(f"  {w.message}")
        if not max(r["forward"], r["gradient"], r["losses"]) <= TOLERANCE:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
