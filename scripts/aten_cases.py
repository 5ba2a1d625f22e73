#!/usr/bin/env python3
"""Unpacks the cases of torch's operators in fixtures/aten to target/aten, and the archives of torch.export in
fixtures/fx/whole.tar.gz (with weights, inputs and results) and graphs.tar.gz (without weights) to target/fx.

    aten_cases.py [OUT]

Each case is a folder with `model.json`, the program of an exported module of one operator, `in_N.npy`, its inputs, and
`out_N.npy`, the outputs of torch 2.15 (none if they are random). The cases come from torch's own database of operators
(`torch.testing._internal.common_methods_invocations.op_db`), decomposed to core ATen operators. Cases `own-...`, from
`own.tar.gz`, are in torch.export's own dialect, which keeps composite operators. Cases `default-...`, from `default.tar.gz`, are
in that dialect, too: up to two of each operator in the undecomposed database that the other cases lack. Constants are laid out as
in an archive of torch.export. `aten.tsv` lists all cases: name, relative and absolute tolerance, operators. `programs.tsv` lists
the cases `program-...`, graphs of random programs that `torch_programs.py` records."""
import json, pathlib, shutil, sys, tarfile
import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8,
         "complex64": 10, "bool": 12}

def constants(case):
    """Writes the files `const_NAME.npy` of a case as records of an archive."""
    config = {}
    for i, file in enumerate(sorted(case.glob("const_*.npy"))):
        a = np.asarray(np.load(file), order="C")
        folder = case / "data/constants"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"tensor_{i}").write_bytes(a.tobytes())
        strides = [s // a.itemsize for s in a.strides]
        numbers = lambda v: [{"as_int": int(n)} for n in v]
        meta = {"dtype": CODES[str(a.dtype)], "sizes": numbers(a.shape), "strides": numbers(strides),
                "storage_offset": {"as_int": 0}, "layout": 7}
        config[file.stem.removeprefix("const_")] = {"path_name": f"tensor_{i}", "tensor_meta": meta}
        file.unlink()
    if config:
        (case / "data/constants/model_constants_config.json").write_text(json.dumps({"config": config}))

def nodes(graph):
    """The nodes of a graph and of the inner graphs that are arguments of its nodes."""
    for n in graph["nodes"]:
        yield n
        for a in n["inputs"]:
            if "as_graph" in a["arg"]:
                yield from nodes(a["arg"]["as_graph"]["graph"])

def unpack(archive, folder):
    with tarfile.open(archive) as t:
        t.extractall(folder, filter="data")

def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/aten"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for archive in sorted((ROOT / "fixtures/aten").glob("*.tar.gz")):
        unpack(archive, out)
    for case in (out / "cases").iterdir():
        if case.is_dir():
            case.rename(out / case.name)
    shutil.rmtree(out / "cases")
    for archives in ("whole", "graphs"):
        shutil.rmtree(ROOT / "target/fx" / archives, ignore_errors=True)
        unpack(ROOT / f"fixtures/fx/{archives}.tar.gz", ROOT / "target/fx")
    lines = []
    for case in sorted(p for p in out.iterdir() if p.is_dir()):
        constants(case)
        graph = json.loads((case / "model.json").read_text())["graph_module"]["graph"]
        names = sorted({n["target"].removeprefix("torch.ops.") for n in nodes(graph)})
        tolerance = case / "tolerance.txt"
        tolerance = tolerance.read_text() if tolerance.exists() else "0.0001\t0.00001"
        lines.append(f"{case.name}\t{tolerance}\t{','.join(names)}\n")
    for index, programs in (("aten", False), ("programs", True)):
        (out / f"{index}.tsv").write_text("".join(n for n in lines if n.startswith("program-") == programs))
    print(len(lines), "cases in", out)

if __name__ == "__main__":
    main()
