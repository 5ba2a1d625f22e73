import numpy as np
import pytest
import wgfc


@pytest.fixture
def decoder(small):
    """A decoder whose caches stay on the device; each session sets their maximum length."""
    return wgfc.compile(small("decoder"), states="auto")


def step(session, ids):
    inputs = {}
    for p in session.inputs:
        n = session.state_length + len(ids)
        shape = {"batch": 1, "seq": len(ids)}
        dims = [d if isinstance(d, int) else shape.get(d, n) for d in p.shape]
        value = np.ones(dims, p.dtype)
        if "ids" in p.name:
            value = np.array([ids], p.dtype)
        elif "position" in p.name:
            value = np.arange(session.state_length, n, dtype=p.dtype)[None]
        inputs[p.name] = value
    return next(iter(session.run(inputs).values()))


def test_states_are_kept_read_and_written(decoder):
    assert decoder.states and all(s.axis is not None and isinstance(s.shape[s.axis], str) for s in decoder.states)
    session = wgfc.Session(decoder, capacity=16)
    assert (session.state_length, session.capacity) == (0, 16) and session.states == decoder.states
    step(session, [3, 1, 4])
    kept = session.read_states()
    assert sorted(kept) == sorted(s.name for s in decoder.states)
    assert all(kept[s.name].shape[s.axis] == 3 for s in decoder.states) and session.state_length == 3
    after = step(session, [1, 5])
    other = wgfc.Session(decoder, capacity=2)
    other.write_states(kept)
    assert other.state_length == 3 and other.capacity >= 3
    other.grow(8)
    np.testing.assert_allclose(step(other, [1, 5]), after, rtol=1e-5, atol=1e-6)
    session.rewind(3)
    np.testing.assert_allclose(step(session, [1, 5]), after, rtol=1e-5, atol=1e-6)
    fork = session.fork()
    session.reset()
    assert (session.state_length, fork.state_length) == (0, 5)
    assert session.memory()["states"] > 0


def test_some_of_the_states(decoder):
    session = wgfc.Session(decoder, capacity=8)
    step(session, [3, 1])
    name = decoder.states[0].name
    one = session.read_states([name])
    assert list(one) == [name]
    session.write_states({name: np.zeros_like(one[name])})
    assert not session.read_states([name])[name].any()
    for other in decoder.states[1:]:
        assert session.read_states([other.name])[other.name].any()
    last = decoder.states[-1].name
    session.reset([last])
    assert session.state_length == 2 and not session.read_states([last])[last].any()
    for call in [session.read_states, session.reset]:
        with pytest.raises(wgfc.ModelError, match='no state "k"'):
            call(["k"])
    with pytest.raises(wgfc.ModelError, match="must be as many"):
        session.write_states({name: np.zeros_like(one[name])[..., :1, :]})


def test_a_full_state_says_so(small):
    session = wgfc.Session(wgfc.compile(small("decoder"), state_capacity=4))
    step(session, [1, 2, 3])
    with pytest.raises(wgfc.ModelError, match="3 of at most 4 positions"):
        step(session, [1, 2])
    with pytest.raises(wgfc.ModelError, match="fixed when the program was compiled"):
        session.grow(9)
    assert session.state_length == 3


def test_states_by_name(small):
    pairs = {}
    plain = wgfc.compile(small("decoder"))
    outputs = [p.name for p in plain.outputs]
    for p in plain.inputs:
        if p.name.startswith("past"):
            pairs[p.name] = p.name.replace("past_key_values", "present")
    assert set(pairs.values()) <= set(outputs)
    program = wgfc.compile(small("decoder"), states=pairs, state_capacity=8)
    assert sorted(s.name for s in program.states) == sorted(pairs)
