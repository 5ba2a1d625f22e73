#!/usr/bin/env python3
"""Rows of `wgfc bench suite` by PyTorch, JAX, Triton, CUDA C++ and NumPy on a GPU with CUDA, in a file of the suite's form.

    wgfc bench kernels --list --json --work 20000 > problems.json
    python3 benches/peers/suite.py cuda.json --problems problems.json [--only WORD …] [--passes N] [--limit SECONDS]
    wgfc bench report wgfc.json cuda.json                     (needs: pip install numpy torch torchvision transformers jax triton cupy)

Rows that mean the same have the same names: kernels, models, decoders and training are PyTorch's. Simulations have a row for each
peer. Each task runs in a process of its own, which is ended at the limit; the file is replaced after each, and continued if it is there.
TF32 is off.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
DECODER = "qwen2.5-0.5b"
TASKS = {}
# Parts that must not take the limit from each other: a process each.
COMPILED_STEPS = [10, 100, 1000]


def task(*names):
    """Makes a function of a name the code of these tasks. It yields rows."""

    def add(function):
        TASKS.update({name: function for name in names})
        return function

    return add


def row(name, samples, unit="s", better="less"):
    return {"id": name, "unit": unit, "better": better, "passes": [[float(s) for s in samples]]}


def missing(name, why, unit="s", better="less"):
    return {"id": name, "unit": unit, "better": better, "missing": why}


def timed(run, wait, count=10, warm=0.5):
    """Times of single runs that are waited for, in seconds, after `warm` seconds of them."""
    until = time.perf_counter() + warm
    samples = []
    while time.perf_counter() < until or len(samples) < count:
        begin = time.perf_counter()
        run()
        wait()
        took = time.perf_counter() - begin
        samples = [*samples, took] if time.perf_counter() >= until or took > warm else []
    return samples


@task("dispatch")
def dispatch(_):
    """What starting a kernel costs: alone and waited for, one of many, and one of many in a CUDA graph."""
    import torch

    x = torch.zeros(256, device="cuda")
    wait, count = torch.cuda.synchronize, 1000

    def many():
        for _ in range(count):
            x.add_(1)

    yield row("dispatch/single-op/wall", timed(lambda: x.add_(1), wait, 200))
    submitted, whole = [], []
    for _ in range(50):
        begin = time.perf_counter()
        many()
        submitted.append((time.perf_counter() - begin) / count)
        wait()
        whole.append((time.perf_counter() - begin) / count)
    yield row("dispatch/sequential/wall", whole[10:])
    yield row("dispatch/sequential/submit", submitted[10:])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    yield row("dispatch/one of many in a CUDA graph/wall", [t / count for t in timed(graph.replay, wait, 50)])


@task("kernels")
def kernels(_, problems):
    import torch
    import torch_kernels

    torch_kernels.WARM_UP_SECONDS = 0.1
    torch_kernels.settle()
    with torch.inference_mode():
        for problem in problems:
            name = f"kernels/{problem['key']}"
            try:
                samples = torch_kernels.samples(problem)
            except Exception as e:  # any error of an operator about sizes or types
                yield missing(name, str(e).splitlines()[0])
                continue
            yield row(name, samples) if samples else missing(name, "PyTorch has no such operator")


@task("models")
def models(_):
    import torch
    import torch_kernels
    import torchvision
    import transformers

    torch_kernels.settle()
    picture, tokens = torch.randn(1, 3, 224, 224), torch.randint(0, 30000, (1, 128))
    bert = transformers.BertModel(transformers.BertConfig())
    for name, model, x in [
        ("mobilenetv2", torchvision.models.mobilenet_v2(weights=None), picture),
        ("resnet50", torchvision.models.resnet50(weights=None), picture),
        ("bert-base 1 x 128", bert, tokens),
    ]:
        model, x = model.eval().cuda(), x.cuda()
        torch._dynamo.reset()
        forms = {"eager": model, "torch.compile": torch.compile(model, mode="reduce-overhead")}
        with torch.inference_mode():
            for form, run in forms.items():
                for _ in range(4):
                    run(x)
                part = "a run, in a row" if form == "torch.compile" else "a run in a row, eager"
                several = lambda run=run: [run(x) for _ in range(20)] and None
                yield row(f"models/{name}/{part}", [t / 20 for t in timed(several, torch.cuda.synchronize, 12)])


def decoder(capacity, dtype, fused):
    import torch_decode

    return torch_decode.decoder(DECODER, capacity, "cuda", dtype, frozenset(fused))


def tokens(model, step, past=64, count=32, samples=12):
    """Seconds a token, from several runs of `count` tokens behind `past` positions."""
    import torch

    def run():
        model.at.fill_(past)
        for _ in range(count):
            step()

    return [t / count for t in timed(run, torch.cuda.synchronize, samples, warm=1.0)]


def recorded(step):
    """A function that runs the step by a CUDA graph."""
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def kernel_count(step):
    import torch
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        step()
        torch.cuda.synchronize()
    return sum(str(e.device_type).endswith("CUDA") for e in p.events())


@task("fusion")
def fusion(_):
    """The control on CUDA: the same decoder with more and less fusion, started kernel by kernel or as one CUDA graph."""
    import torch
    import torch_kernels

    torch_kernels.settle()
    variants = {"no fusion": [], "norms": ["norms"], "qkv": ["qkv"], "mlp": ["mlp"], "norms, qkv, mlp": ["norms", "qkv", "mlp"]}
    with torch.no_grad():
        for name, fused in variants.items():
            model = decoder(256, torch.float32, fused)
            prefix = f"fusion/{DECODER}/CUDA, fused by hand: {name}" if fused else f"fusion/{DECODER}/CUDA, no fusion"
            model.at.fill_(64)
            yield row(f"{prefix}/dispatches", [kernel_count(model.step)], "1")
            yield row(f"{prefix}/a token, kernel by kernel", tokens(model, model.step))
            prompt = torch.randint(0, 1000, (64,), device="cuda")
            yield row(f"{prefix}/first token", timed(lambda m=model: m.prompt(prompt), torch.cuda.synchronize))
            model.at.fill_(64)
            yield row(f"{prefix}/a token, CUDA graph", tokens(model, recorded(model.step)))
            if name in ("no fusion", "norms, qkv, mlp"):
                on_host = lambda m=model: (m.step(), m.token.item())
                yield row(f"{prefix}/a token, kernel by kernel, the host waits for each", tokens(model, on_host))
            torch.cuda.empty_cache()


@task("decode")
def decode(_):
    import torch
    import torch_kernels

    torch_kernels.settle()
    with torch.no_grad():
        for name, dtype in [("f32", torch.float32), ("f16", torch.float16)]:
            model = decoder(1024, dtype, ["norms", "qkv", "mlp"])
            for length in [64, 512]:
                prompt = torch.randint(0, 1000, (length,), device="cuda")
                times = timed(lambda: model.prompt(prompt), torch.cuda.synchronize)
                yield row(f"decode/{DECODER} {name}/first token after {length}", times)
                speeds = [length / t for t in times]
                yield row(f"decode/{DECODER} {name}/prompt of {length}, tokens", speeds, "1/s", "more")
            # The norms' operations are what the compiler fuses.
            model = decoder(1024, dtype, ["qkv"])
            compiled = torch.compile(model.step, mode="reduce-overhead", fullgraph=True)

            def step():
                torch.compiler.cudagraph_mark_step_begin()
                compiled()

            each = tokens(model, step)
            yield row(f"decode/{DECODER} {name}/a token", each)
            yield row(f"decode/{DECODER} {name}/tokens", [1 / t for t in each], "1/s", "more")
            torch.cuda.empty_cache()


@task("training")
def training(_):
    from types import SimpleNamespace

    import numpy as np
    import torch_kernels
    import torch_train

    torch_kernels.settle()
    rng = np.random.default_rng(1)
    draw = lambda *shape: 0.02 * rng.standard_normal(shape, dtype=np.float32)
    settings = SimpleNamespace(device="cuda", rate=1e-4, batch=4096, steps=60)
    vectors = {"threshold": np.zeros(12288, np.float32), "centre": np.zeros(768, np.float32)}
    x, start = draw(2 * 4096, 768), {"encoder": draw(768, 12288), "decoder": draw(12288, 768), **vectors}
    for compiled in [False, True]:
        times = [torch_train.train(settings, x, start, compiled)[1] for _ in range(6)]
        name = "training/autoencoder 768 x 12288, batch 4096, a step"
        yield row(name if compiled else f"{name}, eager", times)


def loops(form, prepare, names, seconds=1.0):
    """A row of each simulation."""
    from types import SimpleNamespace

    import common

    for name in names:
        population, steps, dims = common.reference.USUAL[name]
        id = f"loops/{name}, {population} x {steps}/{form}"
        try:
            found = common.measure(name, population, steps, dims, SimpleNamespace(seed=1, seconds=seconds), prepare)
            yield row(id, found["seconds"])
        except (Exception, SystemExit) as e:  # a simulation that a peer cannot run is a row with the reason
            yield missing(id, str(e).splitlines()[0] if str(e) else type(e).__name__)


@task("loops/torch", "loops/torch montecarlo")
def torch_eager(name):
    import torch_loops

    short = [n for n in torch_loops.SIMULATIONS if n != "montecarlo"]
    yield from loops("PyTorch", torch_loops.prepare, ["montecarlo"] if name.endswith("montecarlo") else short)


@task("loops/torch in a CUDA graph")
def torch_graph(_):
    import torch
    import torch_loops

    def prepare(name, inputs, steps):
        start, wait, fetch = torch_loops.prepare(name, inputs, steps)
        with torch.inference_mode():
            outputs = start()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = start()
        return lambda: graph.replay() or outputs, wait, fetch

    yield from loops("PyTorch in a CUDA graph", prepare, [n for n in torch_loops.SIMULATIONS if n not in ("rastrigin", "montecarlo")])


@task(*[f"loops/torch.compile {n}" for n in COMPILED_STEPS])
def compiled(name):
    """torch.compile of a whole simulation: it unrolls the loop over the steps."""
    import common
    import torch
    import torch_loops

    steps = int(name.split()[-1])
    torch._dynamo.config.recompile_limit = 64
    inputs = common.reference.draw("cartpole", 4096, steps, 1, 1)
    given = [torch.from_numpy(v).to("cuda") for v in inputs.values()]
    whole = torch.compile(lambda *a: torch_loops.cartpole(*a, steps=steps), fullgraph=True)
    with torch.inference_mode():
        begin = time.perf_counter()
        whole(*given)
        torch.cuda.synchronize()
        yield row(f"loops/cartpole, 4096 x {steps}, torch.compile/to the first result", [time.perf_counter() - begin])
        yield row(f"loops/cartpole, 4096 x {steps}, torch.compile/a run", timed(lambda: whole(*given), torch.cuda.synchronize))


@task("loops/jax", "loops/jax on the processor")
def jax_scan(name):
    if name.endswith("processor"):
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax_loops

    form = "JAX on the processor" if name.endswith("processor") else "JAX"
    yield from loops(form, jax_loops.prepare, jax_loops.common.reference.WORKLOADS)


@task("loops/numpy")
def numpy_loops(_):
    import common

    def prepare(name, inputs, steps):
        return lambda: common.reference.run(name, inputs, steps), lambda _: None, lambda output: output

    yield from loops("NumPy", prepare, [n for n in common.reference.WORKLOADS if n != "montecarlo"], seconds=0.5)


@task("loops/triton")
def triton(_):
    import triton_loops

    yield from loops("Triton", triton_loops.prepare, triton_loops.KERNELS)


@task("loops/cuda")
def cuda(_):
    import cuda_loops

    yield from loops("CUDA C++", cuda_loops.prepare, cuda_loops.NAMES)


@task("evolution")
def evolution(_):
    """Whole evolutions in JAX."""
    import jax_evolution
    import numpy as np

    for name, reach in jax_evolution.REACH.items():
        kinds = [("", 4096, 58, 20)]
        if name != "cartpole":
            kinds = [("", 4096, 10, 200), (" of few", 256, 10, 200), (" of many", 65536, 10, 200), (" of 100 genes", 4096, 100, 200)]
        for kind, population, genes, generations in kinds:
            share, spread = (0.1, 0.2) if name == "cartpole" else (1 / genes, 0.1 * reach)
            run = jax_evolution.evolution(name, share, spread)
            genomes = np.random.default_rng(1).uniform(-reach, reach, (population, genes)).astype(np.float32)
            best = [float(run(genomes, seed, generations)[1]) for seed in range(8)]
            seconds = timed(lambda: run(genomes, 1, generations)[1].block_until_ready(), lambda: None, 12)
            id = f"evolution/{name}{kind}, {population} x {generations}"
            yield row(f"{id}/a whole evolution", seconds)
            if name != "cartpole":
                yield row(f"{id}/best fitness", best, "1")


@task("ranks")
def ranks(_):
    """How far the order of individuals in f32 is that in f64: Spearman's rank correlation of their fitness, by NumPy."""
    import common
    import numpy as np

    def ranked(values):
        """Ranks from 0 on; equal values have their mean rank."""
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts + 1) / 2)[inverse]

    for name in [n for n in common.reference.WORKLOADS if n not in ("montecarlo", "nbody")]:
        population, steps, dims = common.reference.USUAL[name]
        found = []
        for seed in range(1, 4):
            inputs = common.reference.draw(name, min(population, 4096), steps, dims, seed)
            singles, doubles = (common.reference.run(name, inputs, steps, t)[0] for t in (np.float32, np.float64))
            # One constant fitness has no order.
            found.append(np.corrcoef(ranked(singles), ranked(doubles))[0, 1])
        yield row(f"ranks/{name}, {steps} steps/Spearman's correlation of f32 and f64", found, "1", "more")


def about():
    import torch

    versions = [f"PyTorch {torch.__version__}"]
    for name, package in [("JAX", "jax"), ("Triton", "triton"), ("CuPy", "cupy"), ("NumPy", "numpy")]:
        try:
            versions.append(f"{name} {__import__('importlib.metadata').metadata.version(package if package != 'cupy' else 'cupy-cuda13x')}")
        except Exception:  # it is not installed
            pass
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(smi, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    processor = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "version": 1, "producer": "benches/peers/suite.py", "began": int(time.time()), "quick": False,
        "device": {
            "name": torch.cuda.get_device_name(), "kind": "discrete", "driver": f"NVIDIA {driver}", "backend": "CUDA",
            "implementation": ", ".join(versions), "features": [], "limits": {},
        },
        "host": {
            "os": sys.platform, "architecture": platform.machine(), "processor": next(iter(processor), ""), "threads": os.cpu_count(),
        },
        "tasks": [], "rows": [],
    }


def one(name, problems):
    """Runs a task in this process, and prints its rows, a line each."""
    more = [problems] if name == "kernels" else []
    for found in TASKS[name](name, *more):
        print(json.dumps(found), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path, metavar="FILE")
    p.add_argument("--problems", type=Path, help="what `wgfc bench kernels --list --json` wrote")
    p.add_argument("--only", nargs="*", default=[], metavar="WORD", help=f"tasks with this in their names: {', '.join(TASKS)}")
    p.add_argument("--passes", type=int, default=1)
    p.add_argument("--limit", type=float, default=120.0, help="seconds of a task")
    p.add_argument("--task", help=argparse.SUPPRESS)
    a = p.parse_args()
    problems = json.loads(a.problems.read_text())["rows"] if a.problems else []
    if a.task:
        return one(a.task, problems)
    record = json.loads(a.out.read_text()) if a.out.exists() else about()
    done = {(t["name"], t["pass"]) for t in record["tasks"]}
    chosen = [n for n in TASKS if (not a.only or any(w in n for w in a.only)) and (problems or n != "kernels")]
    for i in range(a.passes):
        for name in chosen:
            if (name, i) in done:
                continue
            begin = time.perf_counter()
            rows, why = run(name, a)
            if why:
                print(f"{name}: {why}", file=sys.stderr)
                if not rows:
                    rows = [missing(f"{name}/first result", why)]
            merge(record["rows"], rows)
            seconds = time.perf_counter() - begin
            record["tasks"].append({"name": name, "pass": i, "seconds": seconds})
            whole = a.out.with_suffix(".part")
            whole.write_text(json.dumps(record) + "\n")
            whole.replace(a.out)
            print(f"{name}, pass {i + 1}: {len(rows)} rows in {seconds:.1f} s", file=sys.stderr, flush=True)


def run(name, a):
    """The rows of a task, and why it ended early."""
    words = [sys.executable, __file__, str(a.out), "--task", name, *(["--problems", str(a.problems)] if a.problems else [])]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(timeout=a.limit)
        why = child.returncode and (err.strip().splitlines() or ["it failed"])[-1]
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
        why = f"it was ended after {a.limit:.0f} s"
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"id"')], why


def merge(all, rows):
    """Adds rows of a pass to those of the passes before."""
    known = {r["id"]: r for r in all}
    for found in rows:
        before = known.get(found["id"])
        if before is None:
            all.append(found)
        elif "passes" in found:
            before.setdefault("passes", []).extend(found["passes"])
            before.pop("missing", None)


if __name__ == "__main__":
    main()
