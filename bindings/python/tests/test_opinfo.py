"""A selection of PyTorch's own operator tests listed in `opinfo.txt`; `opinfo.py` describes how they are judged."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
opinfo = pytest.importorskip("opinfo")

EVERY = int(os.environ.get("WGFC_OPINFO_EVERY", "60"))
LISTED = [(name, mode, in_torch) for name, modes in opinfo.listed().items() for mode, in_torch in modes.items()]


@pytest.fixture(scope="module")
def operators():
    return opinfo.database()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, mode, in_torch", LISTED[::EVERY], ids=lambda v: v if isinstance(v, str) else "")
def test_operators_are_as_in_eager(operators, name, mode, in_torch):
    if name not in operators:
        pytest.skip("this version of torch has no such operator")
    found = opinfo.check(operators[name], opinfo.Mode(mode), 2)
    assert found["status"] in (opinfo.PASSED if in_torch else opinfo.PASSED[:1]), "\n".join(found["notes"])
