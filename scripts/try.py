"""Tests an installed wheel with one fixture: a program runs on each adapter, is saved, and loaded again.

    python scripts/try.py
"""
import tempfile
from pathlib import Path

import numpy as np
import wgfc

model = Path(__file__).resolve().parents[1] / "fixtures/small/mlp/model.onnx"
x = np.linspace(-1, 1, 26, dtype=np.float32).reshape(2, 13)
program = wgfc.compile(str(model))
with tempfile.TemporaryDirectory() as folder:
    program.save(f"{folder}/mlp")
    again = wgfc.load(f"{folder}/mlp")
adapters = [a.name for a in wgfc.adapters()]
assert adapters, "there is no adapter: install a software Vulkan driver"
for name in adapters:
    for p in [program, again]:
        y = wgfc.Session(p, adapter=name).run({"x": x})["probabilities"]
        assert y.shape == (2, 5) and np.allclose(y.sum(1), 1, atol=1e-5), y
    print(f"{name}: right")
