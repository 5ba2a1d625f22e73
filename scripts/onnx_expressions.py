"""ONNX graphs written as expressions, with loops whose bodies are functions.

    with Graph("square", [("x", FLOAT, ["n"])]) as g:
        x, = g.values
        model = g.model([("y", FLOAT, ["n"], x * x + 1.0)])

An operation becomes a node of the innermost open graph. Numbers become constants of that graph: floats are f32, integers and
lists of them i64, and numpy values keep their types.
"""
from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPEN = []


class Value:
    """A tensor's name, with arithmetic."""

    def __init__(self, name):
        self.name = name

    def __neg__(a):
        return op("Neg", a)

    def __invert__(a):
        return op("Not", a)


def operators():
    binary = {
        "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "and": "And", "or": "Or", "xor": "BitwiseXor",
    }
    for python, kind in binary.items():
        setattr(Value, f"__{python}__", lambda a, b, kind=kind: op(kind, a, b))
        setattr(Value, f"__r{python}__", lambda a, b, kind=kind: op(kind, b, a))
    for python, kind in {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
        setattr(Value, f"__{python}__", lambda a, b, kind=kind: op(kind, a, b))
    Value.__rshift__ = lambda a, b: op("BitShift", a, b, direction="RIGHT")


operators()


class Graph:
    """A graph under construction. Inputs are (name, element type, shape)."""

    def __init__(self, name, inputs):
        self.name, self.inputs = name, inputs
        self.nodes, self.constants = [], {}
        self.names = OPEN[-1].names if OPEN else Counter()
        self.values = [Value(n) for n, _, _ in inputs]

    def __enter__(self):
        OPEN.append(self)
        return self

    def __exit__(self, *_):
        OPEN.pop()

    def fresh(self, kind):
        self.names[kind] += 1
        return f"{kind}_{self.names[kind]}"

    def constant(self, value):
        if not isinstance(value, (np.ndarray, np.generic)):
            first = value[0] if isinstance(value, list) else value
            value = np.asarray(value, np.float32 if isinstance(first, float) else np.int64)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(np.asarray(value), self.fresh("constant"))
        return self.constants[key].name

    def proto(self, outputs, defaults=()):
        """`outputs` are (name, element type, shape, value). `defaults` are (name, value) of inputs that have a default."""
        for name, _, _, value in outputs:
            self.nodes.append(helper.make_node("Identity", [value.name], [name], name=f"{self.name}/{name}"))
        info = helper.make_tensor_value_info
        constants = [*self.constants.values(), *(numpy_helper.from_array(v, n) for n, v in defaults)]
        ports = [info(n, t, s) for n, t, s in self.inputs], [info(n, t, s) for n, t, s, _ in outputs]
        return helper.make_graph(self.nodes, self.name, *ports, constants)

    def model(self, outputs, defaults=(), opset=20, whole=True):
        """Checks the model, if it is whole: one whose weights are in a file that is not there cannot be checked."""
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(self.proto(outputs, defaults), opset_imports=opsets, ir_version=9)
        if whole:
            onnx.checker.check_model(model, full_check=True)
        return model


def op(kind, *inputs, outputs=1, **attributes):
    """The result of a node, or the list of its results."""
    g = OPEN[-1]
    names = [i.name if isinstance(i, Value) else "" if i is None else g.constant(i) for i in inputs]
    node = g.fresh(kind)
    made = [f"{node}:{i}" for i in range(outputs)] if outputs > 1 else [node]
    g.nodes.append(helper.make_node(kind, names, made, name=f"{g.name}/{node}", **attributes))
    values = [Value(n) for n in made]
    return values if outputs > 1 else values[0]


def loop(steps, carried, step, goes_on=None):
    """A loop that applies `step(iteration, *carried) -> carried` `steps` times. `carried` are (name, element type, shape, first).

    If `goes_on` is given, the loop ends early when the scalar `goes_on(*carried)` is false.
    """
    ports = [("iteration", onnx.TensorProto.INT64, []), ("going", onnx.TensorProto.BOOL, [])]
    with Graph("step", ports + [c[:3] for c in carried]) as body:
        iteration, going, *state = body.values
        state = step(iteration, *state)
        going = op("Identity", going) if goes_on is None else goes_on(*state)
        results = [("going_on", onnx.TensorProto.BOOL, [], going)]
        results += [(f"next_{n}", t, s, v) for (n, t, s, _), v in zip(carried, state, strict=True)]
        proto = body.proto(results)
    last = op("Loop", steps, np.bool_(True), *(c[3] for c in carried), outputs=len(carried), body=proto)
    return last if len(carried) > 1 else [last]


def scan(carried, scanned, step):
    """A scan of `step(*carried, *slices) -> carried` over axis 0. `scanned` are (name, element type, shape of a slice, value)."""
    with Graph("step", [c[:3] for c in [*carried, *scanned]]) as body:
        state = step(*body.values)
        results = [(f"next_{n}", t, s, v) for (n, t, s, _), v in zip(carried, state, strict=True)]
        proto = body.proto(results)
    operands = [c[3] for c in [*carried, *scanned]]
    last = op("Scan", *operands, outputs=len(carried), body=proto, num_scan_inputs=len(scanned))
    return last if len(carried) > 1 else [last]
