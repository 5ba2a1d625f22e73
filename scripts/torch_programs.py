#!/usr/bin/env python3
"""Makes fixtures/aten/programs.tar.gz: graphs of random PyTorch programs with their inputs and torch's outputs.

    torch_programs.py [--count 200] [--graphs 1] [--minutes N] [--first SEED] [--out FILE]

The programs are those of `bindings/python/tests/programs.py`, compiled with `torch.compile(backend="wgfc")`: inference, forward
and backward graphs, with symbols for dynamic sizes. The last run of each graph is recorded, whose sizes differ from those of the
tracing. The tolerance is a thousandth plus 1e-5 of the largest result. A graph is omitted if rounding its inputs changes results
by more than a tenth of that. Cases have the format that `aten_cases.py` describes."""
import argparse, io, json, pathlib, sys, tarfile, tempfile, time, warnings, zipfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bindings/python/tests"))

import aten_cases
import numpy as np
import programs
import torch
from wgfc import _fx, _plan, _resident

NODES = range(3, 90)
TYPES = {torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


class Recorder:
    """Keeps the last arguments of each part of a graph."""

    def __init__(self):
        self.runs = {}

    def run(self, part, values):
        sizes = {name: values.symbols[s] for name, s in part.carriers}
        # Copies, as programs write to their arguments later.
        given = {name: values.on_host(n).detach().clone() for name, n in part.inputs}
        given |= {name: torch.empty(n, 0, dtype=torch.uint8) for name, n in sizes.items()}
        given |= {name: torch.tensor([values.on_host(n) for n in nodes], dtype=dtype) for name, dtype, nodes in part.numbers}
        arguments = [values.on_host(n) for n in part.part.inputs]
        self.runs[id(part)] = (part, given, [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments])
        RUN(part, values)


RUN = _plan.Computed.run


def results(part, arguments):
    with torch.no_grad():
        made = part.part.module(*arguments)
    return [_resident._plain(_plan._as_said(m, n.meta["val"])) for m, n in zip(made, part.outputs)]


def rounded(x, g):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    eps = torch.finfo(x.dtype).eps / 2
    return (x.double() * (1 + eps * torch.randn(x.shape, generator=g, dtype=torch.float64))).to(x.dtype)


def certain(part, arguments, want):
    """Whether results are finite and change by at most a tenth of the tolerance if the inputs are rounded."""
    g = torch.Generator().manual_seed(0)
    for _ in range(6):
        for a, b in zip(results(part, [rounded(x, g) for x in arguments]), want):
            a, b = a.double(), b.double()
            if not b.isfinite().all() or not ((a - b).abs() <= 1e-4 * b.abs() + 0.1 * absolute(want)).all():
                return False
    return True


def absolute(want):
    return 1e-5 * max([1.0, *(w.double().abs().max().item() for w in want if w.is_floating_point() and w.numel())])


def constants(part):
    found = _fx.constants(part.part.module)
    return {f"constant_{i}": found[n.target] for i, n in enumerate(n for n in part.part.module.graph.nodes if n.op == "get_attr" and n.target in found)}


def case(part, given, arguments):
    """The files of a case, or a string with the reason for which it is omitted."""
    nodes = sum(n.op == "call_function" for n in part.part.module.graph.nodes)
    if nodes not in NODES:
        return f"it has {nodes} nodes"
    want = results(part, arguments)
    inputs = [_resident._plain(given[p.name]) for p in part.session.inputs]
    held = constants(part)
    if any(t.dtype not in TYPES for t in [*inputs, *want, *held.values()]):
        return "NumPy lacks one of its types"
    if not certain(part, arguments, want):
        return "roundings change its results"
    archive = zipfile.ZipFile(io.BytesIO(_fx.archive(part.part.module, part.part.results)))
    model = json.loads(archive.read(next(n for n in archive.namelist() if n.endswith("models/model.json"))))
    for node in aten_cases.nodes(model["graph_module"]["graph"]):
        node["metadata"] = {}
    files = {"model.json": json.dumps(model, separators=(",", ":")).encode(), "tolerance.txt": f"0.001\t{absolute(want):.3g}".encode()}
    for kind, tensors in (("in", dict(enumerate(inputs))), ("out", dict(enumerate(want))), ("const", held)):
        for name, t in tensors.items():
            file = io.BytesIO()
            np.save(file, t.detach().contiguous().numpy())
            files[f"{kind}_{name}.npy"] = file.getvalue()
    return files


def record(seed, graphs):
    """The cases of a seed by name: the `graphs` graphs with the most nodes."""
    recorder = Recorder()
    _plan.Computed.run = lambda part, values: recorder.run(part, values)
    _plan._SESSIONS.clear()
    found = programs.verdict(seed)
    if found.verdict != "right":
        print(f"# {seed}: {found.verdict}", flush=True)
        return {}
    made = {}
    for part, given, arguments in recorder.runs.values():
        files = case(part, given, arguments)
        if isinstance(files, str):
            print(f"# {seed}: left out, as {files}", flush=True)
        elif files["model.json"] not in [f["model.json"] for f in made.values()]:
            made[f"program-{seed}-{len(made)}"] = files
    longest = sorted(made, key=lambda name: -made[name]["model.json"].count(b'"target"'))[:graphs]
    return {name: made[name] for name in longest}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="programs")
    parser.add_argument("--graphs", type=int, default=1, help="graphs of a program, at most")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", default=str(ROOT / "fixtures/aten/programs.tar.gz"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept, seed, cases, start = 0, options.first, 0, time.time()
    with tempfile.TemporaryDirectory() as folder:
        while kept < options.count and time.time() - start < 60 * options.minutes:
            made = record(seed, options.graphs)
            for name, files in made.items():
                where = pathlib.Path(folder, "cases", name)
                where.mkdir(parents=True)
                for file, content in files.items():
                    (where / file).write_bytes(content)
            kept, seed, cases = kept + bool(made), seed + 1, cases + len(made)
            print(f"{seed}: {kept} programs, {cases} graphs", flush=True)
        # Similar files are adjacent for better compression.
        with tarfile.open(options.out, "w:gz", compresslevel=9) as archive:
            files = sorted(pathlib.Path(folder).rglob("*.*"), key=lambda f: (f.name.split("_")[0], f.parent.name, f.name))
            for file in files:
                about = tarfile.TarInfo(str(file.relative_to(folder)))
                about.size = file.stat().st_size
                archive.addfile(about, io.BytesIO(file.read_bytes()))
    print(options.out, pathlib.Path(options.out).stat().st_size)


if __name__ == "__main__":
    main()
