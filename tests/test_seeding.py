import torch

from rl_plasticity.seeding import RunStreams, derive


def test_derived_seeds_differ_by_seed_and_by_key_and_repeat():
    seeds = {derive(s, *keys) for s in range(50) for keys in ((), (0,), (1,), (1, 0), (0, 1))}
    assert len(seeds) == 250
    assert derive(3, 4) == derive(3, 4)
    assert all(0 <= s < 2**63 for s in seeds)


def test_a_run_draws_the_same_numbers_alone_and_among_others():
    together, alone = RunStreams([1, 2, 3]), RunStreams([2])
    for draw in ("normal", "uniform"):
        assert torch.equal(getattr(together, draw)(4, 5)[1], getattr(alone, draw)(4, 5)[0])
    assert torch.equal(together.integers(100, 7)[1], alone.integers(100, 7)[0])
    assert not torch.equal(together.normal(6)[0], together.normal(6)[2])


def test_the_states_are_saved_and_loaded():
    streams = RunStreams([1, 2])
    streams.normal(3)
    state = streams.state_dict()
    expected = streams.normal(3)
    other = RunStreams([8, 9])
    other.load_state_dict(state)
    assert torch.equal(other.normal(3), expected)
