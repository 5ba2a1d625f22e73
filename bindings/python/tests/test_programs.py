"""Random programs by seed, compiled and compared with eager; `programs.py` describes how they are drawn and judged."""

import os

import pytest

pytest.importorskip("torch")
programs = pytest.importorskip("programs")

FIRST, COUNT = 1000, int(os.environ.get("WGFC_PROGRAMS", "20"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs_are_as_in_eager(seed):
    found = programs.verdict(seed)
    assert found.verdict == "right", programs.told(found) + "\n".join(found.useless)
