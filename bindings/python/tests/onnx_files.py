"""Reads tensors of ONNX's test data and writes small models, with NumPy alone."""

import numpy as np

TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18,
    "float8_e5m2": 19, "float8_e5m2fnuz": 20, "uint4": 21, "int4": 22, "float4_e2m1fn": 23,
}  # fmt: skip
NAMES = {code: name for name, code in TYPES.items()}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 5:
            value, at = data[at : at + 4], at + 4
        else:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def tensor(data):
    """The array of a `TensorProto` whose data is stored as raw bytes, as in the fixtures."""
    shape, kind, raw = [], 1, b""
    for field, value in fields(data):
        if field == 1:
            values, at = ([value], None) if isinstance(value, int) else ([], 0)
            while at is not None and at < len(value):
                n, at = varint(value, at)
                values.append(n)
            shape += values
        elif field == 2:
            kind = value
        elif field == 9:
            raw = value
    return np.frombuffer(raw, NAMES[kind]).reshape(shape)


def number(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(key, value):
    if isinstance(value, int):
        return number(key << 3) + number(value)
    value = value.encode() if isinstance(value, str) else value
    return number(key << 3 | 2) + number(len(value)) + value


def port(name, dtype, shape):
    dims = b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in shape)
    return field(1, name) + field(2, field(1, field(1, TYPES[dtype]) + field(2, dims)))


def node(operator, inputs, outputs, name="", **attributes):
    out = b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs)
    out += field(3, name) + field(4, operator)
    for key, value in attributes.items():
        out += field(5, field(1, key) + field(3, value) + field(20, 2))
    return out


def constant(name, array):
    """An initializer."""
    shape = b"".join(field(1, n) for n in array.shape)
    return shape + field(2, TYPES[array.dtype.name]) + field(8, name) + field(9, array.tobytes())


def external(name, dtype, shape, file):
    """An initializer whose values fill a separate file beside the model."""
    at = field(13, field(1, "location") + field(2, file))
    return b"".join(field(1, n) for n in shape) + field(2, TYPES[dtype]) + field(8, name) + at + field(14, 1)


def model(nodes, inputs, outputs, initializers=(), opset=23):
    """A model of nodes, and ports as (name, dtype, shape)."""
    graph = b"".join(field(1, n) for n in nodes) + field(2, "graph") + b"".join(field(5, i) for i in initializers)
    graph += b"".join(field(11, port(*p)) for p in inputs) + b"".join(field(12, port(*p)) for p in outputs)
    return field(1, 10) + field(7, graph) + field(8, field(2, opset))
