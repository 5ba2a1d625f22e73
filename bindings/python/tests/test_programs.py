"""Random programs by seed, compiled against eager: `programs.py` says how they are drawn and judged."""

import os

import pytest

pytest.importorskip("torch")
programs = pytest.importorskip("programs")

FIRST, COUNT = 1000, int(os.environ.get("WGFC_PROGRAMS", "20"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs_are_as_in_eager(seed):
    try:
        program = programs.draw(seed)
        wrong = programs.check(program)[0]
    except programs.Stranger:
        pytest.skip("torch itself cannot run the program, or its values leave the range in which they can be judged")
    assert not wrong, f"{program.describe()}\n{wrong}"
