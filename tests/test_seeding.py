import torch

from rl_plasticity.seeding import RunStreams, derive, key_of, uniform_at


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
    numbers = together.normal(6)
    assert not torch.equal(numbers[0], numbers[2])
    state, other = together.state_dict(), RunStreams([7, 8, 9])
    expected = together.normal(3)
    other.load_state_dict(state)
    assert torch.equal(other.normal(3), expected)


def test_draws_at_a_place_are_uniform_unrelated_to_those_elsewhere_and_the_same_for_a_run_among_others():
    keys = torch.tensor([5, 6, 7])
    draws = torch.stack([uniform_at(keys, 2000, layer, torch.tensor([n, n, n])) for layer in (0, 1) for n in (0, 1, 2)])
    assert draws.min() > 0
    assert draws.max() < 1
    flat = draws.reshape(-1, 2000)  # of each run, layer and time
    # Of n draws, a share has at most the standard error 1 / 2 sqrt(n), a correlation 1 / sqrt(n): five of them.
    even = torch.linspace(0, 1, 2000).expand_as(flat)
    torch.testing.assert_close(flat.sort(-1).values, even, atol=2.5 / 2000**0.5, rtol=0)
    assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 5 / 2000**0.5
    pairs = torch.stack([flat[:, :-1].flatten(), flat[:, 1:].flatten()])
    assert torch.corrcoef(pairs)[0, 1].abs() < 5 / pairs.shape[1] ** 0.5
    assert torch.equal(uniform_at(keys[1:2], 2000, 1, torch.tensor([2])), draws[5, 1:2])


def test_a_runs_key_is_of_its_own_numbers():
    tensors = [torch.randn(3, 4, 2), torch.randn(3, 5)]
    keys = key_of(tensors, 1)
    assert len(set(keys.tolist())) == 3
    assert torch.equal(key_of([t[1:2] for t in tensors], 1), keys[1:2])
    assert key_of([t[1] for t in tensors], 0) == keys[1]
    tensors[1][1, 3] += 1e-6
    changed = key_of(tensors, 1)
    assert changed[1] != keys[1]
    assert changed[0] == keys[0]


def test_a_place_is_never_made_a_tensor_which_a_gpu_would_have_to_be_sent(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("a number of the host was sent to the device")

    key, expected = torch.tensor([3, 4]), uniform_at(torch.tensor([3, 4]), 5, torch.tensor(2**31), torch.tensor([1]))
    monkeypatch.setattr(torch, "tensor", refuse)
    monkeypatch.setattr(torch, "as_tensor", refuse)
    assert torch.equal(uniform_at(key, 5, 2**31, 1), expected)
