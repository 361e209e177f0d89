"""Our soft actor-critic against Stable-Baselines3's: where they agree to the last digits, and where not."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_plasticity.agents import SAC, Batch
from rl_plasticity_zoo.later_sac import LaterSAC

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.type_aliases import ReplayBufferSamples  # noqa: E402

OBS_DIM, ACT_DIM, SIZE = 4, 2, 32


class Nothing(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACT_DIM,), np.float32)


def their_agent():
    """In float64, where rounding hides nothing."""
    theirs = sb3.SAC("MlpPolicy", Nothing(), policy_kwargs={"net_arch": [16, 16]}, seed=3, device="cpu")
    theirs.set_logger(Logger(None, []))
    theirs.policy.double()
    theirs.log_ent_coef = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    theirs.ent_coef_optimizer = torch.optim.Adam([theirs.log_ent_coef], lr=3e-4)
    return theirs


def our_agent(theirs, kind=SAC, **settings):
    """With the weights of `theirs`."""
    settings |= {"hidden": (16, 16), "num_critics": 2, "layer_norm": False, "target_entropy": -float(ACT_DIM)}
    ours = kind(OBS_DIM, ACT_DIM, [0], **settings).double()
    with torch.no_grad():
        for p, q in pairs(theirs, ours):
            p[0] = q
    return ours


def pairs(theirs, ours):
    """Each weight of our critics, targets and actor with theirs; their actor's two heads are one here."""
    mine = [*ours.critic.net.parameters(), *ours.critic_target.parameters(), *ours.actor.net.parameters()]
    critics = [*theirs.critic.parameters(), *theirs.critic_target.parameters()]
    heads = zip(theirs.actor.mu.parameters(), theirs.actor.log_std.parameters(), strict=True)
    return zip(mine, [*critics, *theirs.actor.latent_pi.parameters(), *map(torch.cat, heads)], strict=True)


def updated(theirs, ours, updates, monkeypatch):
    """The same batches and noise for both; a fifth of the transitions terminated."""
    ours, theirs = copy.deepcopy(ours), copy.deepcopy(theirs)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batches, draws = [], []
    for _ in range(updates):
        obs, next_obs, noise = normal(SIZE, OBS_DIM), normal(SIZE, OBS_DIM), normal(2, SIZE, ACT_DIM)
        act, reward, done = normal(SIZE, ACT_DIM).tanh(), normal(SIZE), (normal(SIZE) > 0.84).double()
        ours.update(Batch(*(x.unsqueeze(0) for x in (obs, act, reward, next_obs, 0.99 * (1 - done)))), noise[:, None])
        batches.append(ReplayBufferSamples(obs, act, next_obs, done.unsqueeze(1), reward.unsqueeze(1)))
        draws += [noise[1], noise[0]]  # they draw the action before the next action
    monkeypatch.setattr(theirs.replay_buffer, "sample", lambda size, env: batches.pop(0))
    monkeypatch.setattr(sb3.common.policies, "preprocess_obs", lambda obs, *_, **__: obs)  # which makes it float32
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *shape, **_: draws.pop(0))
    theirs.train(updates, SIZE)
    return theirs, ours


def furthest(theirs, ours):
    """The largest difference in any weight of critics, targets and actor, and the one in log alpha."""
    log_alpha = ours.temperature.net.log_alpha - theirs.log_ent_coef
    return max((p[0] - q).abs().max().item() for p, q in pairs(theirs, ours)), log_alpha.abs().item()


def test_two_small_numbers_are_all_that_tells_the_updates_apart_with_a_loss_in_log_alpha(monkeypatch):
    # They update alpha, critic, actor, target; we critic, target, actor, alpha. Both losses see the alpha and the actor
    # from before the update and the actor's the new critic, so the order makes no difference.
    theirs = their_agent()
    theirs.actor.action_dist.epsilon = 0.0  # 1e-6, within the logarithm of the tanh's slope
    theirs.critic.optimizer.param_groups[0]["eps"] /= 2  # their critic's loss is half of ours: Adam undoes all but this
    ours = our_agent(theirs, LaterSAC, temperature_loss="log_alpha")
    assert max(furthest(*updated(theirs, ours, 100, monkeypatch))) < 1e-9


def test_with_the_default_s_loss_in_alpha_the_first_update_is_theirs_and_then_the_temperature_falls_slower(monkeypatch):
    theirs = their_agent()
    ours = our_agent(theirs)
    assert max(furthest(*updated(theirs, ours, 1, monkeypatch))) < 1e-5
    after, mine = updated(theirs, ours, 100, monkeypatch)
    assert mine.temperature.net.log_alpha.item() > after.log_ent_coef.item() + 1e-4
