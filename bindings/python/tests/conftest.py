import os
import pathlib

import onnx_files
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def pytest_configure(config):
    # Tests use a software adapter unless another one is named.
    os.environ.setdefault("WGFC_ADAPTER", "software")


@pytest.fixture
def small():
    """The path of a model in fixtures/small."""
    return lambda name: ROOT / "fixtures" / "small" / name / "model.onnx"


@pytest.fixture
def data(small):
    """The data sets of a model in fixtures/small: pairs of inputs and outputs, by the names of its ports."""

    def sets(name, inputs, outputs):
        for folder in sorted(small(name).parent.glob("test_data_set_*")):
            read = lambda kind, ports: {
                p.name: onnx_files.tensor((folder / f"{kind}_{i}.pb").read_bytes()) for i, p in enumerate(ports)
            }
            yield read("input", inputs), read("output", outputs)

    return sets
