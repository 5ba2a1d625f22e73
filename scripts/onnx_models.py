"""Small ONNX models with inputs and outputs beside them, for the scripts that make fixtures."""
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnx_data

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FLOAT, HALF, INT32, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64
BOOL, UINT8, UINT32 = TensorProto.BOOL, TensorProto.UINT8, TensorProto.UINT32


class Model:
    """A graph under construction. Node outputs have descriptive names."""

    def __init__(self, name, inputs, outputs, opset=20):
        self.name, self.opset, self.nodes, self.constants = name, opset, [], []
        self.inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        self.outputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs]
        self.rng = np.random.default_rng(sum(name.encode()))

    def op(self, operator, inputs, output, name=None, **attributes):
        outputs = [output] if isinstance(output, str) else output
        name = name or f"{self.name}/{outputs[0]}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return output

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name, *shape, scale=0.3, dtype=np.float32):
        return self.constant(name, (scale * self.rng.standard_normal(shape)).astype(dtype))

    def build(self, check=True):
        """With `check` all weights must be present."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        domains = {"": self.opset} | {n.domain: 1 for n in self.nodes if n.domain}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        if check:
            onnx.checker.check_model(model, full_check=True)
        return model

    def save(self, *feeds, reference=None):
        """`reference` computes the outputs if they are not to be those of ONNX Runtime."""
        model = self.build()
        if reference is None:
            session = onnx_data.session(model)
            reference = lambda feed: session.run(None, feed)
        data_sets = (([feed[info.name] for info in self.inputs], reference(feed)) for feed in feeds)
        onnx_data.write(FIXTURES / "small" / self.name, model, *data_sets)
