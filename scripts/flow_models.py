#!/usr/bin/env python3
"""Makes random models with loops, scans, branches, recurrent and quantised operators, their inputs and ONNX Runtime's outputs.

    flow_models.py OUT FROM TO

OUT/SEED holds `model.onnx` and `test_data_set_0`, as for `nnsmith_models.py`. The seed determines the model. OUT/left_out.tsv
lists the seeds whose models ONNX Runtime rejects. It does not support recurrent operators with `layout = 1`, whose outputs are
computed from an equivalent model with `layout = 0` and transpositions.
"""
import random

import numpy as np
from onnx import helper, numpy_helper

import generated
from generated import BOOL, F32, I4, I8, I16, I32, I64, NUMPY, U4, U8, U16

CONTRIB = "com.microsoft"


def resized(shape, axis, *extents):
    """The shape with the axis replaced by these extents."""
    return shape[:axis] + extents + shape[axis + 1:]


class Value:
    def __init__(self, name, shape, dtype=F32):
        self.name, self.shape, self.dtype = name, tuple(shape), dtype

    @property
    def numel(self):
        return int(np.prod(self.shape))


class Maker:
    """Writes the nodes of the model's graph and of bodies for one seed."""

    def __init__(self, seed, reference):
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.reference = reference
        self.count = 0
        self.inputs, self.initializers, self.given = [], [], []
        self.scopes = []

    # Names, nodes, constants.
    def fresh(self, stem="v"):
        self.count += 1
        return f"{stem}{self.count}"

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        names = [self.fresh() for _ in range(outputs)] if isinstance(outputs, int) else outputs
        names_in = [i.name if isinstance(i, Value) else i for i in inputs]
        self.scopes[-1]["nodes"].append(helper.make_node(op, names_in, names, domain=domain, **attributes))
        return names

    def make(self, op, inputs, shape, dtype=F32, domain="", **attributes):
        return Value(self.node(op, inputs, domain=domain, **attributes)[0], shape, dtype)

    def constant(self, array, dtype=None):
        """A constant: an initializer of the model, or a node of the body."""
        array = np.asarray(array)
        name = self.fresh("c")
        if dtype in (U4, I4):
            tensor = helper.make_tensor(name, dtype, array.shape, array.ravel().tolist())
        else:
            tensor = numpy_helper.from_array(array, name)
            dtype = tensor.data_type
        if len(self.scopes) == 1 or self.rng.random() < 0.5:
            self.initializers.append(tensor)
        else:
            self.scopes[-1]["nodes"].append(helper.make_node("Constant", [], [name], value=tensor))
        return Value(name, array.shape, dtype)

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def floats(self, shape, by=1.0):
        return self.constant((self.numbers.standard_normal(shape) * by).astype(np.float32))

    def input(self, shape, dtype=F32):
        name = self.fresh("x")
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        if dtype == F32:
            array = (self.numbers.standard_normal(shape) * self.rng.choice([0.3, 1.0, 2.0])).astype(np.float32)
        elif dtype == BOOL:
            array = self.numbers.random(shape) < 0.5
        else:
            array = self.numbers.integers(-9 if dtype in (I64, I32, I8) else 0, 10, shape).astype(NUMPY[dtype])
        self.given.append(np.asarray(array, NUMPY[dtype]))
        return Value(name, shape, dtype)

    def pick(self, dtype=F32, shape=None):
        """A random existing value, preferably a recent one."""
        values = [v for s in self.scopes for v in s["values"] if v.dtype == dtype and shape in (None, v.shape)]
        if not values:
            return None
        if self.rng.random() < 0.6:
            values = values[-4:]
        return self.rng.choice(values)

    def keep(self, value):
        self.scopes[-1]["values"].append(value)
        return value

    def shape(self, rank=None):
        rank = self.rng.choice([1, 2, 2, 3]) if rank is None else rank
        sizes = [1, 2, 3, 4, 5, 7, 8, 13] + ([33, 300] if rank < 3 else [])
        return tuple(self.rng.choice(sizes) for _ in range(rank))

    def float(self, shape=None):
        """A float value of this shape, computed from existing values."""
        v = self.pick(F32, shape)
        if v is None:
            v = self.pick(F32)
            v = self.fitted(v, shape) if shape is not None else v
        return v

    def fitted(self, v, shape):
        """A value in another shape, with its elements repeated or truncated."""
        if v.shape == shape:
            return v
        want = int(np.prod(shape))
        if want == v.numel:
            return self.make("Reshape", [v, self.ints(*shape)], shape, v.dtype)
        try:
            if np.broadcast_shapes(v.shape, shape) == shape:
                return self.make("Expand", [v, self.ints(*shape)], shape, v.dtype)
        except ValueError:
            pass
        if len(v.shape) == len(shape) and self.rng.random() < 0.5:
            axes = [i for i, (a, b) in enumerate(zip(v.shape, shape)) if a != b]
            op = self.rng.choice(["ReduceMean", "ReduceMax", "ReduceMin"])
            if op == "ReduceMean" or self.rng.random() < 0.5:
                axes = list(range(len(shape)))
            kept = [1 if i in axes else n for i, n in enumerate(v.shape)]
            if v.dtype == F32:
                return self.fitted(self.make(op, [v, self.ints(*axes)], kept, keepdims=1), shape)
        flat = self.make("Reshape", [v, self.ints(-1)], (v.numel,), v.dtype)
        if want < v.numel:
            start = self.rng.randint(0, v.numel - want)
            flat = self.make("Slice", [flat, self.ints(start), self.ints(start + want)], (want,), v.dtype)
        else:
            at = self.constant(np.arange(want) * self.rng.choice([1, 3, 5]) % v.numel)
            flat = self.make("Gather", [flat, at], (want,), v.dtype)
        return self.make("Reshape", [flat, self.ints(*shape)], shape, v.dtype)

    def scaled(self, v, by):
        return self.make("Mul", [v, self.constant(np.float32(by))], v.shape)

    def halved(self, v):
        return self.scaled(v, self.rng.choice([0.5, 0.25, 0.3]))

    # Elementwise operators, reductions, views and selections that keep floats at a moderate size.
    def float_operation(self):
        r = self.rng
        x = self.float()
        axis = r.randrange(len(x.shape)) if x.shape else None
        kind = r.randrange(22)
        if kind < 3:
            y = self.float(x.shape)
            return self.halved(self.make(r.choice(["Add", "Sub"]), [x, y], x.shape))
        if kind == 3:
            op = r.choice(["Max", "Min", "Mul"])
            v = self.make(op, [x, self.float(x.shape)], x.shape)
            return self.make("Tanh", [v], x.shape) if op == "Mul" else v
        if kind == 4:
            op = r.choice(["Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Softsign", "Sin", "Cos", "Elu", "HardSigmoid"])
            return self.make(op, [x], x.shape)
        if kind == 5:
            return self.make("Sqrt", [self.make("Abs", [x], x.shape)], x.shape)
        if kind == 6:
            return self.make("Exp", [self.make("Neg", [self.make("Abs", [x], x.shape)], x.shape)], x.shape)
        if kind == 7:
            low, high = self.constant(np.float32(-1.5)), self.constant(np.float32(r.choice([0.5, 2.0])))
            return self.make("Clip", [x, low, high], x.shape)
        if kind == 8:
            return self.make("Where", [self.condition(x.shape), x, self.float(x.shape)], x.shape)
        if axis is None:
            return self.make("Tanh", [x], x.shape)
        n = x.shape[axis]
        if kind == 9:
            sums = self.make("CumSum", [x, self.constant(np.int64(axis))], x.shape,
                             exclusive=r.randrange(2), reverse=r.randrange(2))
            return self.scaled(sums, 1 / n)
        if kind == 10:
            op = r.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp"])
            all_ = self.make(op, [x, self.ints(axis)], resized(x.shape, axis, 1), keepdims=1)
            if op == "ReduceSum":
                all_ = self.scaled(all_, 1 / n)
            return self.make(r.choice(["Sub", "Add"]), [x, all_], x.shape)
        if kind == 11:
            return self.make("Softmax", [x], x.shape, axis=axis)
        if kind == 12:
            order = list(range(len(x.shape)))
            r.shuffle(order)
            return self.make("Transpose", [x], [x.shape[i] for i in order], perm=order)
        if kind == 13:
            ends = self.ints(-1), self.ints(-(1 << 40)), self.ints(axis), self.ints(-1)
            return self.make("Slice", [x, *ends], x.shape)
        if kind == 14:
            at = self.constant(self.numbers.permutation(n).astype(np.int64))
            return self.make("Gather", [x, at], x.shape, axis=axis)
        if kind == 15 and n > 1:
            cut = r.randrange(1, n)
            part = lambda a, b: self.make("Slice", [x, self.ints(a), self.ints(b), self.ints(axis)], resized(x.shape, axis, b - a))
            return self.make("Concat", [part(cut, n), part(0, cut)], x.shape, axis=axis)
        if kind == 16:
            m = r.choice([1, 3, 8, n])
            w = self.floats((x.shape[-1], m), 1 / np.sqrt(x.shape[-1]))
            rows = x if len(x.shape) > 1 else self.make("Unsqueeze", [x, self.ints(0)], (1,) + x.shape)
            return self.make("MatMul", [rows, w], rows.shape[:-1] + (m,))
        if kind == 17:
            k = r.randint(1, n)
            out = self.node("TopK", [x, self.ints(k)], 2, axis=axis, largest=r.randrange(2))
            shape = resized(x.shape, axis, k)
            self.keep(Value(out[1], shape, I64))
            return Value(out[0], shape)
        if kind == 18:
            at = self.integer(())
            at = self.make("Mod", [at, self.constant(np.int64(n))], (), I64)
            row = self.make("Gather", [x, at], resized(x.shape, axis), axis=axis)
            row = self.make("Unsqueeze", [row, self.ints(axis)], resized(x.shape, axis, 1))
            return self.halved(self.make("Add", [x, row], x.shape))
        if kind == 19:
            at = self.make("Mod", [self.integer((1, 1)), self.constant(np.int64(x.shape[0]))], (1, 1), I64)
            update = self.float((1,) + x.shape[1:])
            return self.make("ScatterND", [x, at, update], x.shape)
        if kind == 20:
            mean = self.make("ReduceMean", [x, self.ints(axis)], resized(x.shape, axis, 1), keepdims=1)
            return self.make("Sub", [self.halved(x), mean], x.shape)
        whole = self.make("Cast", [self.integer(x.shape)], x.shape, to=F32)
        return self.make("Tanh", [self.scaled(whole, 0.1)], x.shape)

    def condition(self, shape):
        v = self.pick(BOOL, shape)
        if v is not None and self.rng.random() < 0.3:
            return v
        op = self.rng.choice(["Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
        if self.rng.random() < 0.4:
            v = self.make(op, [self.integer(shape), self.constant(np.int64(self.rng.randint(-3, 4)))], shape, BOOL)
        else:
            by = self.constant(np.float32(self.rng.choice([-0.7101, 0.1357, 0.6201])))
            v = self.make(op, [self.float(shape), by], shape, BOOL)
        if self.rng.random() < 0.2:
            v = self.make("Not", [v], shape, BOOL)
        return self.keep(v)

    def integer(self, shape=None):
        """An i64 value of this shape."""
        v = self.pick(I64, shape)
        if v is None:
            v = self.pick(I64)
            if v is None:
                return self.constant(self.numbers.integers(-9, 10, (3,) if shape is None else shape))
            v = self.fitted(v, shape) if shape is not None else v
        return v

    def integer_operation(self):
        r = self.rng
        x = self.integer()
        kind = r.randrange(6)
        if kind == 0:
            y = self.integer(x.shape)
            v = self.make(r.choice(["Add", "Sub", "Mul"]), [x, y], x.shape, I64)
            return self.make("Mod", [v, self.constant(np.int64(1009))], x.shape, I64)
        if kind == 1:
            return self.make("Div", [x, self.constant(np.int64(r.choice([2, 3, 7, -4])))], x.shape, I64)
        if kind == 2:
            return self.make("Mod", [x, self.constant(np.int64(r.choice([2, 5, 16, -3])))], x.shape, I64)
        if kind == 3:
            return self.make(r.choice(["Max", "Min"]), [x, self.integer(x.shape)], x.shape, I64)
        if kind == 4:
            return self.make("Where", [self.condition(x.shape), x, self.integer(x.shape)], x.shape, I64)
        f = self.float()
        if not f.shape or r.random() < 0.5:
            f = self.make("Floor", [self.scaled(f, 3.137)], f.shape)
            return self.make("Cast", [f], f.shape, I64, to=I64)
        axis = r.randrange(len(f.shape))
        return self.make(r.choice(["ArgMax", "ArgMin"]), [f], resized(f.shape, axis, 1), I64, axis=axis, keepdims=1)

    def operations(self, count, depth, step=False):
        for _ in range(count):
            c = self.rng.random()
            if depth > 0 and c < (0.25 if step else 0.35):
                self.rng.choice([self.loop, self.loop, self.scan, self.branch])(depth)
            elif c < 0.45 and not step:
                self.recurrent()
            elif c < (0.5 if step else 0.6):
                self.quantised()
            elif c < 0.72:
                self.keep(self.integer_operation())
            else:
                self.keep(self.float_operation())

    # Bodies.
    def body(self, name, inputs, results, count, depth, step=True):
        """A graph of several operations. `results` makes its outputs as values."""
        self.scopes.append({"nodes": [], "values": list(inputs)})
        self.operations(count, depth, step)
        outputs = []
        for v in results():
            # Each output must be the result of a node in the body and occur only once.
            outputs.append(Value(self.node("Identity", [v])[0], v.shape, v.dtype))
        nodes = self.scopes.pop()["nodes"]
        info = lambda v: helper.make_tensor_value_info(v.name, v.dtype, v.shape)
        return helper.make_graph(nodes, name, [info(v) for v in inputs], [info(v) for v in outputs])

    def states(self):
        """Loop-carried values: floats, sometimes integers or a condition."""
        given = [self.float() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        if self.rng.random() < 0.4:
            given.append(self.integer())
        if self.rng.random() < 0.15:
            given.append(self.condition(self.rng.choice([(), (3,)])))
        return given

    def next_state(self, state):
        r = self.rng.random()
        if r < 0.12:
            return state
        if state.dtype == F32:
            v = self.float(state.shape) if r < 0.6 else self.fitted(self.float(), state.shape)
            return self.make("Tanh", [v], v.shape) if r > 0.9 else v
        return self.integer(state.shape) if state.dtype == I64 else self.condition(state.shape)

    def per_step(self):
        return [self.float() for _ in range(self.rng.choice([0, 0, 1, 2]))]

    def loop(self, depth):
        r = self.rng
        given = self.states()
        kind = r.choice(["for", "for", "for", "while", "both", "computed"])
        steps = r.choice([1, 2, 3, 5, 9])
        if kind == "while":
            trips = ""
        elif kind == "computed":
            n = self.make("Mod", [self.integer(()), self.constant(np.int64(7))], (), I64)
            trips = n
        else:
            trips = self.constant(np.int64(steps))
        carried = [Value(self.fresh("s"), v.shape, v.dtype) for v in given]
        number, go = Value(self.fresh("i"), (), I64), Value(self.fresh("go"), (), BOOL)
        stacked = []

        def results():
            nexts = [self.next_state(c) for c in carried]
            if kind == "while":
                limit = self.constant(np.int64(steps))
                again = self.make("Less", [number, limit], (), BOOL)
                if r.random() < 0.6:
                    again = self.make("And", [again, self.condition(())], (), BOOL)
            elif kind == "both":
                again = self.condition(())
            else:
                again = go if r.random() < 0.5 else self.constant(np.bool_(True))
            if kind == "for":
                stacked.extend(self.per_step())
            return [again] + nexts + stacked

        body = self.body("step", [number, go] + carried, results, r.randint(1, 5), depth - 1)
        first = "" if kind in ("for", "computed") and r.random() < 0.5 else self.constant(np.bool_(True))
        if kind in ("while", "both") and r.random() < 0.15:
            first = self.condition(())
        names = self.node("Loop", [trips, first] + given, len(given) + len(stacked), body=body)
        self.results(names, given, [Value("", (steps,) + v.shape, v.dtype) for v in stacked])

    def results(self, names, given, stacked):
        for name, like in zip(names, given + stacked):
            self.keep(Value(name, like.shape, like.dtype))

    def scan(self, depth):
        r = self.rng
        given = self.states()
        length = r.choice([1, 2, 3, 7, 12])
        rows = [self.float(self.shape(r.choice([0, 1, 2]))) for _ in range(r.choice([1, 1, 2]))]
        axes = [r.randint(0, len(v.shape)) for v in rows]
        scanned = [self.fitted(self.float(), v.shape[:a] + (length,) + v.shape[a:]) for v, a in zip(rows, axes)]
        carried = [Value(self.fresh("s"), v.shape, v.dtype) for v in given]
        at = [Value(self.fresh("r"), v.shape, v.dtype) for v in rows]
        stacked = []

        def results():
            stacked.extend(self.per_step())
            return [self.next_state(c) for c in carried] + stacked

        body = self.body("step", carried + at, results, r.randint(1, 5), depth - 1)
        back = lambda n: [r.randrange(2) for _ in range(n)]
        out_axes = [r.randint(0, len(v.shape)) for v in stacked]
        attributes = {"scan_input_axes": axes, "scan_input_directions": back(len(rows))}
        if stacked:
            attributes |= {"scan_output_axes": out_axes, "scan_output_directions": back(len(stacked))}
        if not given and not stacked:
            return
        names = self.node("Scan", given + scanned, len(given) + len(stacked), body=body,
                          num_scan_inputs=len(rows), **attributes)
        self.results(names, given, [Value("", v.shape[:a] + (length,) + v.shape[a:], v.dtype)
                                    for v, a in zip(stacked, out_axes)])

    def branch(self, depth):
        given = self.states()
        condition = self.condition(())
        if self.rng.random() < 0.1:
            condition = self.constant(np.bool_(self.rng.randrange(2)))

        def side(name):
            return self.body(name, [], lambda: [self.next_state(v) for v in given], self.rng.randint(0, 3), depth - 1)

        names = self.node("If", [condition], len(given), then_branch=side("then"), else_branch=side("else"))
        self.results(names, given, [])

    # Recurrent operators.
    def recurrent(self):
        r = self.rng
        op = r.choice(["RNN", "GRU", "LSTM"])
        gates, functions = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}[op]
        seq, batch, width, hidden = r.choice([1, 2, 3, 6]), r.choice([1, 2, 3]), r.choice([1, 2, 5, 8]), r.choice([1, 2, 3, 8])
        direction = r.choice(["forward", "reverse", "bidirectional"])
        dirs = 2 if direction == "bidirectional" else 1
        layout = r.randrange(2) if r.random() < 0.4 else 0
        x = self.fitted(self.float(), (seq, batch, width))
        w = self.floats((dirs, gates * hidden, width), 0.5)
        rec = self.floats((dirs, gates * hidden, hidden), 0.5)
        bias = self.floats((dirs, 2 * gates * hidden), 0.3) if r.random() < 0.7 else ""
        lens = ""
        if r.random() < 0.35:
            lens = self.constant(self.numbers.integers(1, seq + 1, batch).astype(np.int32))
        state = lambda: self.fitted(self.float(), (dirs, batch, hidden)) if r.random() < 0.6 else ""
        states = [state()] + ([state()] if op == "LSTM" else [])
        peep = [self.floats((dirs, 3 * hidden), 0.3)] if op == "LSTM" and r.random() < 0.3 else []
        attributes = {"hidden_size": hidden, "direction": direction}
        if r.random() < 0.3:
            attributes["clip"] = r.choice([0.2, 1.0, 3.0])
        if r.random() < 0.35:
            names = ["Tanh", "Sigmoid", "Relu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu", "ScaledTanh", "Affine",
                     "Elu", "ThresholdedRelu"]
            chosen = [r.choice(names) for _ in range(functions * dirs)]
            alphas = {"HardSigmoid": 0.3, "LeakyRelu": 0.1, "ScaledTanh": 0.8, "Affine": 0.7, "Elu": 0.6, "ThresholdedRelu": 0.4}
            betas = {"HardSigmoid": 0.4, "ScaledTanh": 0.9, "Affine": 0.1}
            attributes["activations"] = chosen
            attributes["activation_alpha"] = [alphas[c] for c in chosen if c in alphas] or None
            attributes["activation_beta"] = [betas[c] for c in chosen if c in betas] or None
        if op == "GRU":
            attributes["linear_before_reset"] = r.randrange(2)
        if op == "LSTM" and r.random() < 0.2:
            attributes["input_forget"] = 1
        attributes = {k: v for k, v in attributes.items() if v is not None}
        turn = lambda v, order: v if v == "" else self.make("Transpose", [v], [v.shape[i] for i in order], perm=order)
        # With `layout = 1` the model's axes are transposed; the reference model keeps `layout = 0`.
        turned = layout and not self.reference
        if turned:
            attributes["layout"] = 1
            x, states = turn(x, [1, 0, 2]), [turn(s, [1, 0, 2]) for s in states]
        outputs = self.node(op, [x, w, rec, bias, lens] + states + peep, 3 if op == "LSTM" else 2, **attributes)
        y = Value(outputs[0], (batch, seq, dirs, hidden) if turned else (seq, dirs, batch, hidden))
        last = [Value(o, (batch, dirs, hidden) if turned else (dirs, batch, hidden)) for o in outputs[1:]]
        if turned:
            y, last = turn(y, [1, 2, 0, 3]), [turn(v, [1, 0, 2]) for v in last]
        elif layout:
            # The counter advances as in the other model, so that names agree.
            self.count += 1 + sum(s != "" for s in states) + 1 + len(last)
        for v in [y] + last:
            self.keep(v)

    # Quantised operators.
    def scale(self, shape=()):
        by = self.numbers.uniform(0.01, 0.05, shape) if self.rng.random() < 0.6 else np.full(shape, 1 / 32)
        return self.constant(np.asarray(by, np.float32))

    def zero(self, dtype, shape=()):
        low, high = {U8: (100, 150), I8: (-5, 6), U16: (30_000, 34_000), I16: (0, 1), U4: (5, 11), I4: (-2, 3)}[dtype]
        array = self.numbers.integers(low, high, shape)
        if dtype in (U4, I4):
            return self.constant(np.asarray(array), dtype)
        return self.constant(np.asarray(array, NUMPY[dtype]))

    def to_eight(self, v, dtype=None):
        """A value of 8 bits with its scale and zero point."""
        dtype = dtype or self.rng.choice([U8, I8])
        scale, zero = self.scale(), self.zero(dtype)
        return self.make("QuantizeLinear", [v, scale, zero], v.shape, dtype), scale, zero

    def weights(self, shape, dtype):
        low, high = (0, 256) if dtype == U8 else (-128, 128)
        return self.constant(self.numbers.integers(low, high, shape).astype(NUMPY[dtype]))

    def back(self, q, scale, zero):
        return self.keep(self.make("DequantizeLinear", [q, scale, zero], q.shape))

    def quantised(self):
        r = self.rng
        getattr(self, r.choice(["there_and_back", "there_and_back", "dynamic", "matmul_integer", "qlinear_matmul", "qlinear_conv",
                                "conv_integer", "qlinear_binary", "qlinear_pool", "qlinear_unary", "qlinear_concat",
                                "dequantised_weights", "dynamic_matmul", "qgemm"]))()

    def there_and_back(self):
        r = self.rng
        v = self.float()
        dtype = r.choice([U8, I8, U16, I16, U4, I4])
        if v.shape and r.random() < 0.4:
            axis = r.randrange(len(v.shape))
            n = v.shape[axis]
            scale, zero = self.scale((n,)), self.zero(dtype, (n,))
            q = self.make("QuantizeLinear", [v, scale, zero], v.shape, dtype, axis=axis)
            self.keep(self.make("DequantizeLinear", [q, scale, zero], v.shape, axis=axis))
        else:
            scale = self.constant(np.float32(r.choice([0.25, 0.13]))) if dtype in (U4, I4) else self.scale()
            zero = self.zero(dtype)
            self.back(self.make("QuantizeLinear", [v, scale, zero], v.shape, dtype), scale, zero)

    def dynamic(self):
        self.back(*self.dynamic_of(self.float()))

    def rows(self):
        return self.float(self.shape(2)[:1] + (self.rng.choice([1, 3, 4, 8, 13]),))

    def matmul_integer(self):
        r = self.rng
        x = self.rows()
        q, scale, zero = self.to_eight(x) if r.random() < 0.5 else self.dynamic_of(x)
        wt = r.choice([U8, I8])
        n = r.choice([1, 4, 5, 8])
        w = self.weights((x.shape[1], n), wt)
        ends = [zero, self.zero(wt)] if r.random() < 0.7 else []
        product = self.small_float(self.make("MatMulInteger", [q, w] + ends, (x.shape[0], n), I32))
        self.keep(self.make("Tanh", [product], product.shape))

    def small_float(self, sums):
        """Converts sums of 8-bit products to floats of moderate size."""
        by = self.constant(np.float32(1 / 4096))
        return self.make("Mul", [self.make("Cast", [sums], sums.shape, to=F32), by], sums.shape)

    def dynamic_of(self, x):
        q, scale, zero = self.node("DynamicQuantizeLinear", [x], 3)
        return Value(q, x.shape, U8), Value(scale, ()), Value(zero, (), U8)

    def qlinear_matmul(self):
        r = self.rng
        x = self.rows()
        q, scale, zero = self.to_eight(x)
        n = r.choice([1, 4, 5, 8])
        w, ws, wz = self.scaled_weights((x.shape[1], n), n, q.dtype, 0.6)
        ys, yz = self.constant(np.float32(0.07)), self.zero(q.dtype)
        self.back(self.make("QLinearMatMul", [q, scale, zero, w, ws, wz, ys, yz], (x.shape[0], n), q.dtype), ys, yz)

    def scaled_weights(self, shape, columns, dtype, whole):
        """Weights for values of this type. With the probability `whole` there is one scale and zero point for all, otherwise one
        for each column."""
        wt = I8 if dtype == I8 else self.rng.choice([U8, I8])
        w = self.weights(shape, wt)
        if self.rng.random() < whole:
            return w, self.scale(), self.zero(wt)
        return w, self.scale((columns,)), self.constant(np.zeros(columns, NUMPY[wt]))

    def picture(self):
        r = self.rng
        c, h, w = r.choice([1, 2, 4]), r.choice([3, 5, 8]), r.choice([3, 4, 7])
        return self.fitted(self.float(), (r.choice([1, 2]), c, h, w))

    def window(self, x):
        r = self.rng
        k = [r.choice([1, 2, 3]) for _ in range(2)]
        pads = [r.randrange(k[i % 2]) for i in range(4)]
        strides = [r.choice([1, 1, 2]) for _ in range(2)]
        size = [(x.shape[2 + i] + pads[i] + pads[2 + i] - k[i]) // strides[i] + 1 for i in range(2)]
        return k, pads, strides, size

    def qlinear_conv(self):
        r = self.rng
        x = self.picture()
        q, scale, zero = self.to_eight(x)
        k, pads, strides, size = self.window(x)
        m = r.choice([1, 2, 4])
        w, ws, wz = self.scaled_weights((m, x.shape[1], *k), m, q.dtype, 0.5)
        ys, yz = self.constant(np.float32(0.11)), self.zero(q.dtype)
        bias = [self.constant(self.numbers.integers(-500, 500, m).astype(np.int32))] if r.random() < 0.5 else []
        out = self.make("QLinearConv", [q, scale, zero, w, ws, wz, ys, yz] + bias, (x.shape[0], m, *size), q.dtype,
                        kernel_shape=k, pads=pads, strides=strides)
        self.back(out, ys, yz)

    def conv_integer(self):
        x = self.picture()
        q, _, zero = self.to_eight(x, U8)
        k, pads, strides, size = self.window(x)
        m = self.rng.choice([1, 3])
        w = self.weights((m, x.shape[1], *k), U8)
        out = self.make("ConvInteger", [q, w, zero, self.zero(U8)], (x.shape[0], m, *size), I32, kernel_shape=k, pads=pads,
                        strides=strides)
        self.keep(self.small_float(out))

    def qlinear_binary(self):
        x = self.float()
        q, scale, zero = self.to_eight(x)
        y, ys, yz = self.to_eight(self.float(x.shape), q.dtype)
        cs, cz = self.scale(), self.zero(q.dtype)
        op = self.rng.choice(["QLinearAdd", "QLinearMul"])
        self.back(self.make(op, [q, scale, zero, y, ys, yz, cs, cz], x.shape, q.dtype, CONTRIB), cs, cz)

    def qlinear_pool(self):
        x = self.picture()
        q, scale, zero = self.to_eight(x)
        ys, yz = self.scale(), self.zero(q.dtype)
        if self.rng.random() < 0.4:
            shape = x.shape[:2] + (1, 1)
            out = self.make("QLinearGlobalAveragePool", [q, scale, zero, ys, yz], shape, q.dtype, CONTRIB)
        else:
            k, pads, strides, size = self.window(x)
            out = self.make("QLinearAveragePool", [q, scale, zero, ys, yz], (*x.shape[:2], *size), q.dtype, CONTRIB,
                            kernel_shape=k, pads=pads, strides=strides, count_include_pad=self.rng.randrange(2))
        self.back(out, ys, yz)

    def qlinear_unary(self):
        x = self.float()
        q, scale, zero = self.to_eight(x)
        ys, yz = self.scale(), self.zero(q.dtype)
        op, attributes = self.rng.choice([("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})])
        self.back(self.make(op, [q, scale, zero, ys, yz], x.shape, q.dtype, CONTRIB, **attributes), ys, yz)

    def qlinear_concat(self):
        x = self.rows()
        y = self.float(x.shape)
        q, scale, zero = self.to_eight(x)
        p, ps, pz = self.to_eight(y, q.dtype)
        ys, yz = self.scale(), self.zero(q.dtype)
        shape = (x.shape[0] * 2, x.shape[1])
        self.back(self.make("QLinearConcat", [ys, yz, q, scale, zero, p, ps, pz], shape, q.dtype, CONTRIB, axis=0), ys, yz)

    def dequantised_weights(self):
        """A matrix product with weights of 4 or 8 bits that are quantised in blocks or by columns."""
        r = self.rng
        x = self.rows()
        k, n = x.shape[1], r.choice([1, 4, 8])
        dtype = r.choice([U4, I4, U8, I8])
        low, high = {U4: (0, 16), I4: (-8, 8), U8: (0, 256), I8: (-128, 128)}[dtype]
        array = self.numbers.integers(low, high, (k, n))
        w = self.constant(array, dtype) if dtype in (U4, I4) else self.constant(array.astype(NUMPY[dtype]))
        if k % 2 == 0 and r.random() < 0.5:
            shape, attributes = (2, n), {"axis": 0, "block_size": k // 2}
        else:
            shape, attributes = (n,), {"axis": 1}
        w = self.make("DequantizeLinear", [w, self.scale(shape), self.zero(dtype, shape)], (k, n), **attributes)
        self.keep(self.halved(self.make("MatMul", [x, w], (x.shape[0], n))))

    def dynamic_matmul(self):
        r = self.rng
        x = self.rows()
        n = r.choice([1, 4, 8])
        wt = r.choice([U8, I8])
        w = self.weights((x.shape[1], n), wt)
        shape = (n,) if r.random() < 0.3 else ()
        ends = [self.scale(shape), self.zero(wt, shape)]
        if r.random() < 0.5:
            v = self.make("DynamicQuantizeMatMul", [x, w] + ends, (x.shape[0], n), F32, CONTRIB)
        else:
            q, scale, zero = self.dynamic_of(x)
            v = self.make("MatMulIntegerToFloat", [q, w, scale, ends[0], zero, ends[1]], (x.shape[0], n), F32, CONTRIB)
        self.keep(self.make("Tanh", [v], v.shape))

    def qgemm(self):
        r = self.rng
        x = self.rows()
        q, scale, zero = self.to_eight(x)
        n = r.choice([1, 4, 8])
        wt = I8 if q.dtype == I8 else r.choice([U8, I8])
        w = self.weights((x.shape[1], n), wt)
        ys, yz = self.constant(np.float32(0.09)), self.zero(q.dtype)
        out = self.make("QGemm", [q, scale, zero, w, self.scale(), self.zero(wt), "", ys, yz], (x.shape[0], n), q.dtype, CONTRIB)
        self.back(out, ys, yz)

    # Models.
    def model(self):
        r = self.rng
        self.scopes.append({"nodes": [], "values": []})
        for _ in range(r.randint(1, 3)):
            self.keep(self.input(self.shape()))
        if r.random() < 0.5:
            self.keep(self.input(r.choice([(), (3,), (1,)]), I64))
        first = r.choice([self.loop, self.loop, self.loop, self.scan, self.scan, self.branch, None, None, None])
        if first is None:
            r.choice([self.recurrent, self.quantised])()
        else:
            self.operations(r.randint(0, 2), 0)
            first(2)
        self.operations(r.randint(0, 3), 1)
        scope = self.scopes[0]
        values = [v for v in scope["values"] if v.name not in {i.name for i in self.inputs}]
        outputs = values[-r.randint(1, 4):]
        info = [helper.make_tensor_value_info(v.name, v.dtype, v.shape) for v in outputs]
        graph = helper.make_graph(scope["nodes"], "random", self.inputs, info, self.initializers)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make(seed):
    made, reference = Maker(seed, False), Maker(seed, True)
    model, known = made.model(), reference.model()
    return model, known, {i.name: v for i, v in zip(reference.inputs, reference.given)}


if __name__ == "__main__":
    generated.main(__doc__, make)
