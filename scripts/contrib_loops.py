"""Cases of scripts/contrib_cases.py: loops whose condition is only a counter, as in exporters' recurrent layers."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from contrib_harness import F32, case, numbers


def counted():
    node = helper.make_node
    constant = lambda name, v, t=np.int64: node("Constant", [], [name], value=numpy_helper.from_array(np.array(v, t)))

    def make(name, compare="Less", step=1, kind=TensorProto.INT64, after=True, first=None, trips=None, carried_bound=False, number=False, rows=6):
        """Running sums of the rows of x0 in a loop that ends when a counter reaches the number of rows."""
        integer, named = np.int32 if kind == TensorProto.INT32 else np.int64, "number" if number else "counter"
        value = lambda n, t, s: helper.make_tensor_value_info(n, t, s)
        wide = TensorProto.INT32 if kind == TensorProto.INT32 else TensorProto.INT64
        body = [constant("step", step, integer), node("Gather", ["x0", named], ["row"]), node("Add", ["sum", "row"], ["more"]),
                node("Identity", ["more"], ["stacked"]), node("Add", [named, "step"], ["next"])]
        if number:
            body += [node("Identity", ["counter"], ["kept"])]
        limit = "limit" if carried_bound else "rows"
        body += [node("Cast", ["next" if after else named], ["a"], to=kind), node("Cast", [limit], ["b"], to=kind),
                 node(compare, ["a", "b"] if compare.startswith("Less") else ["b", "a"], ["goes_on"])]
        inputs = [value("number", TensorProto.INT64, []), value("before", TensorProto.BOOL, []), value("counter", wide, []), value("sum", TensorProto.FLOAT, [3])]
        outputs = [value("goes_on", TensorProto.BOOL, []), value("kept" if number else "next", wide, []), value("more", TensorProto.FLOAT, [3])]
        given = ["start", "sums"]
        if carried_bound:
            inputs.append(value("limit", wide, []))
            body.append(node("Identity", ["limit"], ["same"]))
            outputs.append(value("same", wide, []))
            given.append("rows")
        outputs.append(value("stacked", TensorProto.FLOAT, [3]))
        results = ["last", "y0", *(["unused"] if carried_bound else []), "y1"]
        nodes = [node("Shape", ["x0"], ["shape"]), constant("zero", 0), constant("zeros", [0, 0, 0], F32), node("Identity", ["zeros"], ["sums"]),
                 node("Gather", ["shape", "zero"], ["many"]), node("Cast", ["many"], ["rows"], to=wide), constant("start", 0, integer)]
        if first is None:
            nodes += [node("Cast", ["start"], ["c"], to=kind), node("Cast", ["rows"], ["d"], to=kind), node("Less", ["c", "d"], ["begins"])]
        else:
            nodes += [constant("begins", first, bool)]
        if trips is not None:
            nodes += [constant("trips", trips)]
        body = helper.make_graph(body, "body", inputs, outputs)
        nodes += [node("Loop", ["" if trips is None else "trips", "begins", *given], results, body=body)]
        case(f"counted_loop_{name}", nodes, [numbers(name, rows, 3)], 2, {0: ["rows", 3]}, "")

    make("plain")
    make("floats", kind=TensorProto.FLOAT, carried_bound=True)
    make("i32", kind=TensorProto.INT32, carried_bound=True)
    make("greater", "Greater", step=2, rows=7)
    make("not_above", "LessOrEqual", step=2, first=True, rows=7)
    make("at_least_once", first=True)
    make("limited", trips=4)
    make("limit_not_met", trips=9)
    make("number", number=True)
    make("one", rows=1)
