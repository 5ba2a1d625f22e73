#!/usr/bin/env python3
"""Make models with reference inputs and outputs, in the layout of the ONNX test data.

    python3 scripts/reference.py [--out FOLDER] [NAME ...]

NAME is one of the models below, `light` for the nine light_* models of the package onnx, or `all`.
FOLDER (target/models by default) gets NAME/model.onnx (weights beside it) and, per data set N,
NAME/test_data_set_N/{input,output}_I.pb. The data sets of one model differ in their symbolic
dimensions, so one compiled program must serve them all. What is there already is left alone.

Expected outputs of light_* come with the package; the others are computed by ONNX Runtime's CPU
provider in the model's own precision. Needs: pip install onnx numpy onnxruntime
"""
import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_NAMES = sorted(p.stem for p in LIGHT.glob("light_*.onnx"))


def images(batch):
    rng = np.random.default_rng(batch)
    return {"pixel_values": rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)}


def tokens(batch, seq):
    """Token ids and a mask that ends early in every row but the first."""
    rng = np.random.default_rng(batch * 1000 + seq)
    mask = np.ones((batch, seq), np.int64)
    for row in range(1, batch):
        mask[row, seq - seq // 3 - row :] = 0
    if batch == 1:
        mask[0, -2:] = 0
    return {"input_ids": rng.integers(0, 30522, (batch, seq)), "attention_mask": mask}


def decoder(layers, dtype, seq, past, state):
    """Inputs of a decoder: `seq` tokens after the `past` that `state` (the previous outputs) holds."""
    rng = np.random.default_rng(seq * 1000 + past)
    feed = {
        "input_ids": rng.integers(0, 151936, (1, seq)),
        "position_ids": np.arange(past, past + seq)[None, :],
    }
    for layer in range(layers):
        for kind in ["key", "value"]:
            cache = state.get(f"present.{layer}.{kind}", np.zeros((1, 2, 0, 64), dtype))
            assert cache.shape[2] == past
            feed[f"past_key_values.{layer}.{kind}"] = cache
    return feed


def qwen(layers, dtype=np.float32):
    return [
        lambda state: decoder(layers, dtype, 8, 0, state),
        lambda state: decoder(layers, dtype, 1, 8, state),
    ]


# Each data set is a function from the outputs of the one before to the inputs.
MODELS = {
    "resnet50": [lambda _: images(1), lambda _: images(2)],
    "mobilenetv2": [lambda _: images(1), lambda _: images(3)],
    "bert-base": [lambda _: tokens(1, 8), lambda _: tokens(2, 33)],
    "qwen2-2l": qwen(2),
    "qwen2.5-0.5b": qwen(24),
    "qwen2.5-0.5b-f16": qwen(24, np.float16),
    "qwen2.5-0.5b-q4f32": qwen(24),
    "qwen2.5-0.5b-q4f16": qwen(24, np.float16),
}
DEFAULT = [*LIGHT_NAMES, "resnet50", "mobilenetv2", "bert-base", "qwen2-2l"]


def graph_inputs(model):
    constants = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in constants]


def save(folder, kind, values):
    folder.mkdir(parents=True, exist_ok=True)
    for i, value in enumerate(values):
        (folder / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())


def light(name, folder):
    shutil.copyfile(LIGHT / f"{name}.onnx", folder / "model.onnx")
    [info] = graph_inputs(onnx.load(folder / "model.onnx"))
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    # The ramp that the package's own runner feeds.
    ramp = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    save(folder / "test_data_set_0", "input", [ramp])
    shutil.copyfile(LIGHT / f"{name}_output_0.pb", folder / "test_data_set_0/output_0.pb")


def large(name, folder):
    import onnxruntime

    # The name stays: the weights' file is named after it inside the model.
    source = FIXTURES / f"{name}.onnx"
    model = folder / f"{name}.onnx"
    shutil.copyfile(source, model)
    subprocess.run([sys.executable, str(FIXTURES / "weights.py"), str(model)], check=True, stdin=subprocess.DEVNULL)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = [i.name for i in session.get_inputs()]
    outputs = [o.name for o in session.get_outputs()]
    state = {}
    for n, data_set in enumerate(MODELS[name]):
        feed = data_set(state)
        state = dict(zip(outputs, session.run(outputs, feed)))
        save(folder / f"test_data_set_{n}", "input", [feed[i] for i in inputs])
        save(folder / f"test_data_set_{n}", "output", [state[o] for o in outputs])
    model.rename(folder / "model.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target/models")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(["light", "all", *MODELS]))
    args = parser.parse_args()
    groups = {"light": LIGHT_NAMES, "all": DEFAULT}
    for name in [m for n in args.names or ["all"] for m in groups.get(n, [n])]:
        folder = args.out / name
        if (folder / "model.onnx").exists():
            continue
        if name not in MODELS and name not in LIGHT_NAMES:
            sys.exit(f"no model {name!r}; there are {', '.join(['light', 'all', *DEFAULT, *MODELS])}")
        # Under another name until complete, so that an interrupted run is not taken for a finished one.
        partial = args.out / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (light if name in LIGHT_NAMES else large)(name, partial)
        partial.rename(folder)
        print(folder)


main()
