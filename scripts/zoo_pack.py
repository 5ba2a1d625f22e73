#!/usr/bin/env python3
"""Runs the zoo on another machine that has neither Python nor the packages.

    scripts/zoo_pack.py write FOLDER [--megabytes N] [--but FOLDER]... [NAME]...
    zoo_run.sh WGFC PACK OUT                                  on the other machine; needs only bash
    scripts/zoo_pack.py read OUT... --machine TEXT            writes docs/zoo.md from the results

Needs the Python environment of scripts/zoo.sh (target/zoo/venv). A pack has `models.tsv`, with a line for each model (its name,
its folder in the pack, the options for its compilation, its sizes as options, and the inputs of each data set as options), the
files that it names, and zoo_run.sh. The named models come first, followed by as many others as fit, without those of the packs
after --but. The expected outputs stay on this machine in target/zoo/packed, which has a folder for each model with ONNX Runtime's
outputs and the model's row of the table.
"""
import argparse
import json
import lzma
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import zoo
from zoo_models import MODELS

PACKED = zoo.ZOO / "packed"


def pack(models, folder, megabytes):
    """Writes as many of the models as fit to a folder, in their order."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(zoo.ROOT / "scripts/zoo_run.sh", folder)
    left = megabytes * 1e6
    for model in models:
        path = zoo.path_of(model)
        # Larger files are assumed not to compress enough.
        if path.stat().st_size * 0.6 > left or (size := len(lzma.compress(path.read_bytes(), preset=0))) > left:
            print(f"{model.name} does not fit")
            continue
        row, sets, data = zoo.prepare(model)
        name = model.folder
        shutil.rmtree(PACKED / name, ignore_errors=True)
        (folder / name).mkdir()
        shutil.copy(path, folder / name / "model.onnx")
        given = []
        for n, (arguments, (_, wanted)) in enumerate(zip(data, sets, strict=True)):
            for i, (argument, file) in enumerate(a.rsplit("=", 1) for a in arguments[1::2]):
                shutil.copy(file, folder / name / f"{n}-{i}.npy")
                left -= (folder / name / f"{n}-{i}.npy").stat().st_size / 2
                arguments[1 + 2 * i] = f"{argument}={name}/{n}-{i}.npy"
            given.append(" ".join(arguments))
            (PACKED / name / str(n)).mkdir(parents=True)
            for i, value in enumerate(wanted.values()):
                np.save(PACKED / name / str(n) / f"{i}.npy", value)
        row["outputs"] = list(sets[0][1])
        (PACKED / name / "row.json").write_text(json.dumps(row))
        fixed = " ".join(f"--fix {f}" for f in model.fix)
        with (folder / "models.tsv").open("a") as f:
            print(model.name, name, fixed, " ".join(zoo.dims(path, sets[0][0])), *given, sep="\t", file=f)
        left -= size
        print(f"{model.name}: {size / 1e6:.1f} MB, {left / 1e6:.1f} MB are left", flush=True)


def returned(models, folders):
    """The results in folders that zoo_run.sh wrote, each with `zoo.tsv` and `outputs`. Later results replace earlier ones."""
    said = {}
    for folder in folders:
        new = {}
        for line in (folder / "zoo.tsv").read_text().splitlines():
            name, level, stage, code, text = line.split("\t", 4)
            new.setdefault((name, level), {"from": folder})[stage] = (int(code), text)
        said |= new
    limit = next((int(s["limit"][1]) for s in said.values() if "limit" in s), 0)
    results = {"models": {}, "onnxruntime": zoo.onnxruntime.__version__, "limit": limit, "adapter": "?"}
    for model in models:
        name = model.folder
        if not any(k[0] == name for k in said):
            continue
        row = json.loads((PACKED / name / "row.json").read_text())
        sets = []
        for n in range(len(model.sets)):
            wanted = {o: np.load(PACKED / name / str(n) / f"{i}.npy") for i, o in enumerate(row["outputs"])}
            sets.append(({}, wanted))
        for level in zoo.LEVELS:
            if (name, level) in said:
                row["levels"][level] = at_level(name, level, said[name, level], sets)
        path = zoo.path_of(model)
        feeds = [f for f, _ in zoo.references(model, path, False)[0]] if zoo.needs_f64(row) else []
        zoo.compare_in_f64(path, row, [(f, w) for f, (_, w) in zip(feeds, sets)])
        results["models"][model.name] = row | zoo.verdict(model, row)
        results["adapter"] = next((l["ran_on"] for l in row["levels"].values() if "ran_on" in l), results["adapter"])
    return results


def at_level(name, level, said, sets):
    """The result at one fusion level in the form of `zoo.at_level`, from the output of the commands."""
    result = {"level": level, "errors": {}, "files": []}
    try:
        if "refused" in said:
            result["symbolic"] = zoo.first_error(said["refused"][1])
        for n, (_, wanted) in enumerate(sets):
            ran = answer(said, f"run{n}")
            if n == 0:
                result |= {"first": ran["seconds"][0], "ran_on": ran["ran_on"]}
            folder = said["from"] / "outputs" / f"{name}-{level}-{n}"
            zoo.compare(result, {o["name"]: str(folder / o["file"].rsplit("/", 1)[-1]) for o in ran["outputs"]}, wanted)
        result |= zoo.figures(answer(said, "compile"))
        if "time" in said and said["time"][0] == 0:
            result["seconds"] = min(answer(said, "time")["seconds"][1:])
    except zoo.Failed as e:
        return {"level": level, "failed": str(e), "code": e.code}
    return result


def answer(said, stage):
    if stage not in said:
        raise zoo.Failed(None, f"`{stage}` was not reached in time")
    code, text = said[stage]
    if code in (124, 137):
        raise zoo.Failed(None, f"`{stage}` had not ended after {said['limit'][1]} s")
    if code != 0:
        raise zoo.Failed(code, zoo.first_error(text) or f"exit code {code}: {text[:200]}")
    return json.loads(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("folder", type=Path)
    write.add_argument("names", nargs="*", help="parts of names of models, in the order of the pack")
    write.add_argument("--megabytes", type=float, default=40, help="how large the pack may be, compressed")
    write.add_argument("--but", type=Path, action="append", default=[], help="a pack whose models are left out")
    read = commands.add_parser("read")
    read.add_argument("folders", type=Path, nargs="+", metavar="OUT")
    read.add_argument("--machine", default="Measured", help="where that was, for the table")
    arguments = parser.parse_args()
    if arguments.command == "write":
        there = {l.split("\t")[0] for p in arguments.but for l in (p / "models.tsv").read_text().splitlines()}
        place = lambda m: next((i for i, n in enumerate(arguments.names) if n in m.name), len(arguments.names))
        pack(sorted((m for m in MODELS if m.name not in there), key=place), arguments.folder, arguments.megabytes)
        return 0
    results = returned(MODELS, arguments.folders)
    results["machine"] = f"{arguments.machine}, {time.strftime('%Y-%m-%d')}."
    for name, row in results["models"].items():
        print(f"{name}: {row['verdict']} {row.get('error', '')} {row['why']}")
    zoo.table(results)
    return min(sum(not r["good"] for r in results["models"].values()), 1)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    sys.exit(main())
