#!/usr/bin/env python3
"""Make models with reference inputs and outputs, in the layout of the ONNX test data.

    python3 scripts/reference.py [--out FOLDER] [NAME ...]

NAME is one of the models below, `light` for the nine light_* models of the package onnx, `filled` for some of them with random
weights (their own weights are constant, which makes outputs uniform and hides mistakes), or `all`. FOLDER (target/models by
default) gets NAME/model.onnx (weights beside it) and, per data set N, NAME/test_data_set_N/{input,output}_I.pb. The data sets of
one model differ in their symbolic dimensions, so one compiled program must serve them all. Existing files are left unchanged.

Expected outputs of light_* come with the package. ONNX Runtime's CPU provider computes all others in the model's own precision.
Needs: pip install onnx numpy onnxruntime
"""
import argparse
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_data import complete, graph_inputs, mask, session, write_values

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_NAMES = sorted(p.stem for p in LIGHT.glob("light_*.onnx"))
FILLED_NAMES = [f"filled_{n}" for n in ["densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet"]]


def images(batch):
    rng = np.random.default_rng(batch)
    return {"pixel_values": rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)}


def tokens(batch, seq):
    """Token ids and a mask that ends early in every row but the first."""
    rng = np.random.default_rng(batch * 1000 + seq)
    seen = mask(batch, seq)
    if batch == 1:
        seen[0, -2:] = 0
    return {"input_ids": rng.integers(0, 30522, (batch, seq)), "attention_mask": seen}


def decoder(layers, dtype, seq, past, state):
    """Inputs of a decoder: `seq` tokens after `past` tokens, whose cache is in `state`, the previous outputs."""
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


# Each data set is a function from the outputs of the previous one to the inputs.
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
DEFAULT = [*LIGHT_NAMES, *FILLED_NAMES, "resnet50", "mobilenetv2", "bert-base", "qwen2-2l"]


def light(name, folder):
    shutil.copyfile(LIGHT / f"{name}.onnx", folder / "model.onnx")
    [info] = graph_inputs(onnx.load(folder / "model.onnx"))
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    # The ramp that the package's own test runner uses as input.
    ramp = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    write_values(folder / "test_data_set_0", "input", [ramp])
    shutil.copyfile(LIGHT / f"{name}_output_0.pb", folder / "test_data_set_0/output_0.pb")


def filled(name, folder):
    """A light model with its weights replaced by random ones."""
    model = onnx.load(LIGHT / f"{name.replace('filled', 'light')}.onnx")
    graph = model.graph
    constants = {n.output[0]: n for n in graph.node if n.op_type == "ConstantOfShape"}
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    shapes = {n: v.shape for n, v in known.items() if v.dtype == np.float32}
    shapes |= {out: tuple(known[node.input[0]]) for out, node in constants.items()}
    factors = {n.input[1] for n in graph.node if n.op_type == "Mul"}
    positive = set()  # scales and variances
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            positive |= {node.input[1], node.input[4]}
        if node.op_type == "Unsqueeze" and node.output[0] in factors:
            positive.add(node.input[0])
    weights = []
    for name, shape in shapes.items():
        x = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)
        if name in positive:
            x = 1 + 0.2 * np.abs(x)
        else:
            x *= 0.1 if len(shape) == 1 else (2 / np.prod(shape[1:])) ** 0.5
        weights.append(numpy_helper.from_array(x.astype(np.float32), name))
    weights += [t for t in graph.initializer if t.name not in shapes and not t.name.endswith("__SHAPE")]
    nodes = [n for n in graph.node if n.output[0] not in constants]
    inputs = graph_inputs(model)
    for field, values in [(graph.node, nodes), (graph.initializer, weights), (graph.input, inputs)]:
        values = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(values)
    # The inputs of a final softmax become an output, too, as the softmax may round all but one of its results to 0.
    for node in graph.node:
        if node.op_type == "Softmax":
            graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    model.ir_version = 8  # from 4 on, initializers need not be inputs
    onnx.save(model, folder / "model.onnx")
    [info] = inputs
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    feed = {info.name: np.random.default_rng(7).standard_normal(shape, dtype=np.float32)}
    write_values(folder / "test_data_set_0", "input", feed.values())
    write_values(folder / "test_data_set_0", "output", session(folder / "model.onnx").run(None, feed))


def large(name, folder):
    # The name must stay, as the model refers to the weights' file by it.
    source = FIXTURES / f"{name}.onnx"
    model = folder / f"{name}.onnx"
    shutil.copyfile(source, model)
    subprocess.run([sys.executable, str(FIXTURES / "weights.py"), str(model)], check=True, stdin=subprocess.DEVNULL)
    runtime = session(model)
    inputs = [i.name for i in runtime.get_inputs()]
    outputs = [o.name for o in runtime.get_outputs()]
    state = {}
    for n, data_set in enumerate(MODELS[name]):
        feed = data_set(state)
        state = dict(zip(outputs, runtime.run(outputs, feed)))
        write_values(folder / f"test_data_set_{n}", "input", (feed[i] for i in inputs))
        write_values(folder / f"test_data_set_{n}", "output", state.values())
    model.rename(folder / "model.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target/models")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(["light", "filled", "all", *MODELS]))
    args = parser.parse_args()
    groups = {"light": LIGHT_NAMES, "filled": FILLED_NAMES, "all": DEFAULT}
    for name in [m for n in args.names or ["all"] for m in groups.get(n, [n])]:
        folder = args.out / name
        if (folder / "model.onnx").exists():
            continue
        if name not in MODELS and name not in DEFAULT:
            sys.exit(f"no model {name!r}; there are {', '.join([*groups, *DEFAULT, *MODELS])}")
        make = light if name in LIGHT_NAMES else filled if name in FILLED_NAMES else large
        with complete(folder) as partial:
            make(name, partial)
        print(folder)


main()
