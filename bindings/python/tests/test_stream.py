import itertools
import pathlib
import runpy
import sys

import numpy as np
import pytest
import wgfc

ROOT = pathlib.Path(__file__).resolve().parents[3]
TORCH = ROOT / "fixtures" / "torch"


@pytest.fixture
def step():
    """A training step whose parameters and moments are states."""
    return wgfc.compile(TORCH / "train_step.pt2")


def batches(count, rows=8):
    x = np.load(TORCH / "train_step.x.npy")
    for i in range(count):
        yield {"x": x[np.arange(i * rows, (i + 1) * rows) % len(x)], "rate": 0.01}


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_a_training_step_has_the_losses_of_torch(step, in_flight):
    session = wgfc.Session(step)
    losses = [run["output"] for run in session.stream(batches(50), in_flight=in_flight)]
    np.testing.assert_allclose(losses, np.load(TORCH / "train_step.losses.npy"), rtol=1e-4)
    assert session.read_states(["count"])["count"] == 50


def test_batches_are_taken_as_they_are_needed(step):
    session = wgfc.Session(step)
    taken = []
    endless = (taken.append(i) or b for i, b in enumerate(itertools.cycle(batches(5))))
    stream = session.stream(endless, outputs=["output"], in_flight=3)
    assert iter(stream) is stream and not taken
    for n in range(4):
        assert list(next(stream)) == ["output"]
        assert len(taken) == n + 3
    # Started steps are completed: the states include all of them.
    assert session.read_states(["count"])["count"] == 6
    assert list(session.stream([])) == []


def test_errors_of_streams(step):
    session = wgfc.Session(step)
    for bad, words in [(3, "iterable"), (None, "iterable")]:
        with pytest.raises(TypeError, match=words):
            session.stream(bad)
    for none in [0, -1]:
        with pytest.raises(ValueError, match=f"in_flight.*not {none}"):
            session.stream([], in_flight=none)
    with pytest.raises(ValueError, match="numpy"):
        session.stream([], to="device")
    with pytest.raises(wgfc.ModelError, match="nowhere"):
        session.stream([], outputs=["nowhere"])
    good = list(batches(2))
    stream = session.stream([*good, {"x": good[0]["x"][:, :3], "rate": 1.0}], in_flight=1)
    assert next(stream)["output"] > next(stream)["output"]
    with pytest.raises(wgfc.ModelError, match="of shape") as e:
        next(stream)
    if sys.version_info >= (3, 11):
        assert e.value.__notes__ == ["in step 2 of the stream"]

    def failing():
        yield good[0]
        raise KeyError("data")

    for in_flight in [1, 2, 3]:
        stream = session.stream(failing(), in_flight=in_flight)
        assert next(stream)["output"] > 0
        with pytest.raises(KeyError):
            next(stream)
        assert list(stream) == []

    # The results of batches started before a wrong one are returned first.
    stream = session.stream([good[0], {"x": good[0]["x"]}, good[1]], in_flight=3)
    assert next(stream)["output"] > 0
    with pytest.raises(wgfc.ModelError, match="rate"):
        next(stream)
    assert next(stream)["output"] > 0


def test_the_example_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "120", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "train.py"), run_name="__main__")
    lines = (tmp_path / "losses.csv").read_text().split()
    assert lines[0] == "step,loss" and len(lines) == 121
    losses = [float(line.split(",")[1]) for line in lines[1:]]
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    assert (tmp_path / "trained.npz").exists() and "loss" in capsys.readouterr().out
