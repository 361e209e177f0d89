import numpy as np
import pytest
import torch
from conftest import assert_equal_states, refused

from rl_plasticity.agents import Batch, ReplayBuffer, Step


def no(runs):
    return torch.zeros(runs, dtype=torch.bool)


class Recorder:
    """Feeds a buffer with numbered transitions and remembers each as it should come back."""

    def __init__(self, buffer):
        self.buffer, self.runs, self.t = buffer, buffer.runs, 0
        self.episode = 0
        self.obs = self.observe()
        self.expected = [[] for _ in range(self.runs)]
        buffer.start(self.obs)

    def observe(self):
        self.t += 1
        return torch.arange(self.runs).float().unsqueeze(1) * 1000 + torch.tensor([float(self.t), -self.t])

    def step(self, terminated=None, truncated=None):
        terminated = no(self.runs) if terminated is None else terminated
        truncated = no(self.runs) if truncated is None else truncated
        act, reward = torch.randn(self.runs, 1), torch.randn(self.runs)
        last = self.observe()
        fresh = self.observe()
        following = torch.where((terminated | truncated).unsqueeze(1), fresh, last)
        self.buffer.add(act, Step(*(x.numpy() for x in (following, reward, terminated, truncated, last))))
        for run in range(self.runs):
            ends = bool(terminated[run]), bool(truncated[run])
            self.expected[run].append((self.obs[run], act[run], reward[run], last[run], *ends))
        self.obs = following

    def check(self, num_steps=1):
        size, discount = self.buffer.size, self.buffer.discount
        order = torch.stack([torch.randperm(size) for _ in range(self.runs)])  # each run's own
        batch = self.buffer.sample(order, num_steps)
        batch = Batch(*(torch.stack([x[run, i] for run, i in enumerate(order.argsort())]) for x in batch))
        for run in range(self.runs):
            rows = self.expected[run][-size:]
            for i, (obs, act, *_) in enumerate(rows):
                assert torch.equal(batch.obs[run, i], obs)
                assert torch.equal(batch.act[run, i], act)
                reward, next_obs, factor = by_hand(rows, i, num_steps, discount)
                assert batch.reward[run, i].item() == pytest.approx(reward, abs=1e-6)
                assert batch.discount[run, i].item() == pytest.approx(factor)
                if factor:
                    assert torch.equal(batch.next_obs[run, i], next_obs)


def by_hand(expected, i, num_steps, discount):
    """Reward, next_obs and discount of transition i over several steps, one step at a time."""
    total, factor = 0.0, 1.0
    for row in expected[i : i + num_steps]:
        _, _, reward, next_obs, terminated, truncated = row
        total += factor * float(reward)
        factor *= discount
        if terminated or truncated:
            break
    return total, next_obs, 0.0 if terminated else factor


def test_slots_of_truncated_episodes_are_used_again_after_their_transition_has_gone():
    recorder = Recorder(ReplayBuffer(1, 8, 2, 1))
    for _ in range(500):
        recorder.step(truncated=torch.tensor([True]))
    recorder.check()
    assert len(recorder.buffer.last_obs) == 16  # at most 9 rows are alive; never 500


@pytest.mark.parametrize("capacity", [7, 100])
def test_the_rows_since_each_of_several_moments_put_together_are_the_whole_buffer(capacity):
    torch.manual_seed(1)
    recorder, parts, position = Recorder(ReplayBuffer(2, capacity, 2, 1)), [], 0
    for moment in (0, 3, 4, 9, 15):
        while recorder.buffer.added < moment:
            step = recorder.buffer.added
            terminated = torch.tensor([step % 7 == 3, False])
            recorder.step(terminated, truncated=torch.tensor([step % 3 == 2, step % 4 == 1]))
        parts.append(recorder.buffer.since(position))
        position = moment
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    for name in ("obs", "act", "reward", "end"):
        assert joined[name].shape[:2] == (15, 2)
        assert torch.equal(joined[name][-recorder.buffer.size :], recorder.buffer.since(0)[name])
    assert len(joined["last_obs"]) == (joined["end"] == 1).sum() > 5
    recorder.buffer, old = ReplayBuffer(2, capacity, 2, 1), recorder.buffer
    recorder.buffer.load_state_dict(old.position() | joined)  # older rows than fit are left out
    recorder.check()
    assert_equal_states(old.state_dict(), recorder.buffer.state_dict())
    for step in range(20):
        recorder.step(truncated=torch.tensor([step % 3 == 2, False]))
        recorder.check()


def test_a_state_that_does_not_fit_and_no_capacity_are_errors():
    recorder = Recorder(ReplayBuffer(2, 7, 2, 1))
    for _ in range(7):
        recorder.step()
    for other in (ReplayBuffer(2, 5, 2, 1), ReplayBuffer(1, 7, 2, 1), ReplayBuffer(2, 7, 3, 1)):
        with pytest.raises(ValueError, match="7 transitions"):
            other.load_state_dict(recorder.buffer.state_dict())
    state = recorder.buffer.state_dict()
    with pytest.raises(ValueError, match="a replay buffer"):
        ReplayBuffer(2, 7, 2, 1).load_state_dict(state | {"act": state["act"][:3]})  # rows that are not counted
    refused(lambda: ReplayBuffer(1, 0, 2, 1), "capacity", error=ValueError)


def test_a_cleared_buffer_holds_nothing_but_the_newest_obs_and_goes_on():
    buffer = ReplayBuffer(2, 6, 1, 1)
    buffer.start(torch.zeros(2, 1))

    def add(number, truncated=False):
        obs = np.full((2, 1), number, np.float32)
        ended = np.array([truncated, False])
        buffer.add(torch.zeros(2, 1), Step(obs, obs[:, 0], np.zeros(2, bool), ended, obs + 0.5))

    for number in range(1, 6):
        add(number, truncated=number % 2 == 0)
    buffer.clear()
    assert buffer.size == 0
    assert buffer.newest_obs.flatten().tolist() == [5, 5]
    for number in range(6, 9):
        add(number, truncated=number == 7)
    batch = buffer.sample(torch.arange(3).expand(2, -1))
    assert batch.obs.squeeze(-1).tolist() == [[5, 6, 7]] * 2
    assert batch.next_obs.squeeze(-1).tolist() == [[6, 7.5, 8], [6, 7, 8]]
    other = ReplayBuffer(2, 6, 1, 1)
    other.load_state_dict(buffer.state_dict())
    for number in range(9, 15):
        add(number, truncated=True)
    assert other.sample(torch.arange(3).expand(2, -1)).next_obs.tolist() == batch.next_obs.tolist()
    everything = buffer.sample(torch.arange(6).expand(2, -1))
    assert everything.next_obs[0, :, 0].tolist() == [n + 0.5 for n in range(9, 15)]


@pytest.mark.parametrize("capacity", [7, 100])
def test_every_transition_of_one_step_or_several_comes_back_in_each_run_s_order_and_ends_with_its_episode(capacity):
    recorder = Recorder(ReplayBuffer(2, capacity, 2, 1, discount=0.9))
    for step in range(25):
        recorder.step(torch.tensor([step % 5 == 4, False]), torch.tensor([step % 10 == 4, step % 6 == 3]))
        recorder.check()
    for num_steps in (2, 3, 30):
        recorder.check(num_steps)
    assert recorder.buffer.size == min(25, capacity)


@pytest.mark.parametrize("levels", [1, 255])
def test_images_take_a_byte_a_number_and_come_back_bit_for_bit_also_from_a_saved_state(levels):
    buffer = ReplayBuffer(1, 6, 18, 1, levels=levels)
    assert buffer.obs.dtype == buffer.last_obs.dtype == torch.uint8
    images = [np.random.default_rng(i).integers(0, levels + 1, (1, 18)).astype(np.float32) / levels for i in range(20)]
    buffer.start(torch.from_numpy(images[0]))
    for t in range(9):
        ended = np.array([t % 4 == 3])
        last, first = images[t + 1], images[t + 10]
        step = Step(first if ended else last, np.zeros(1, np.float32), ended & False, ended, last)
        buffer.add(torch.tensor([[float(t % 4)]]), step)
    again = ReplayBuffer(1, 6, 18, 1, levels=levels)
    again.load_state_dict(buffer.state_dict())
    for one in (buffer, again):
        batch = one.sample(torch.arange(6).expand(1, 6))
        for i, t in enumerate(range(3, 9)):
            begins = images[t + 9] if t % 4 == 0 else images[t]
            assert np.array_equal(batch.obs[0, i].numpy(), begins[0])
            assert np.array_equal(batch.next_obs[0, i].numpy(), images[t + 1][0])
        assert np.array_equal(one.newest_obs.numpy(), images[9])
