"""`Regularize`: an algorithm of Stable-Baselines3 learns as with a regularizer attached to each of its optimizers."""

import functools
import random
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import refused
from torch import nn

from rl_plasticity import attach, make_intervention
from rl_plasticity.diagnosis.report import Estimate
from rl_plasticity.interventions import ReDo
from rl_plasticity.regularizers import hidden_units, make_regularizer

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common import logger as sb3_logger  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.envs import BitFlippingEnv  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

from rl_plasticity.integrations.stable_baselines3 import Regularize, branch, trained_by  # noqa: E402

# Strong enough that each changes the weights far beyond the tolerance within 20 steps.
SETTINGS = {
    "spectral": {"coef": 0.1},
    "swr": {"coef": 0.1},
    "wrs": {"every_updates": 3},
    "ewc": {"coef": 300.0, "fisher_decay": 0.9, "anchor_decay": 0.9},
}
OFF_POLICY = {"learning_starts": 20, "batch_size": 16, "buffer_size": 200, "train_freq": 1, "gradient_steps": 1}
ON_POLICY = {"n_steps": 16, "max_grad_norm": 0.1}
# 30 env steps of each are 10 updates, but for A2C with 2; the gradients are clipped where the algorithm does it.
CASES = {
    "SAC": ("Pendulum-v1", OFF_POLICY),
    "TD3": ("Pendulum-v1", OFF_POLICY),
    "DDPG": ("Pendulum-v1", OFF_POLICY),
    "DQN": ("CartPole-v1", {**OFF_POLICY, "target_update_interval": 5, "max_grad_norm": 0.1}),
    "PPO": ("CartPole-v1", {**ON_POLICY, "batch_size": 8, "n_epochs": 5}),
    "A2C": ("CartPole-v1", ON_POLICY),
}
STEPS = {"PPO": 32}


def environment(name):
    return gym.make(name, max_episode_steps=10)


def make(kind, cls=None, env=None, policy_kwargs=None, **settings):
    task, defaults = CASES[kind]
    return (cls or getattr(sb3, kind))(
        "MlpPolicy",
        env or environment(task),
        policy_kwargs={"net_arch": [8, 8], **(policy_kwargs or {})},
        **{"learning_rate": 1e-2, "seed": 3, "device": "cpu", **defaults, **settings},
    )


def learn(model, callback=None):
    model.set_random_seed(5)  # torch's, numpy's, the env's, the spaces': whatever has been drawn before
    return model.learn(STEPS.get(type(model).__name__, 30), callback)


def state_of(model):
    """All weights: of the networks, the targets, the temperature."""
    weights = {name: p.detach().clone() for name, p in model.policy.state_dict().items()}
    if getattr(model, "log_ent_coef", None) is not None:
        weights["log_ent_coef"] = model.log_ent_coef.detach().clone()
    return weights


@functools.cache
def unregularized(kind):
    return state_of(learn(make(kind)))


def furthest(a, b):
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


OBS, ACT = torch.tensor([[0.3, -0.5, 0.8]]), torch.tensor([[0.2]])
CART = torch.tensor([[0.1, -0.2, 0.3, 0.4]])
EXAMPLES = {"actor": (OBS, True), "critic": (OBS, ACT), "policy": (CART, True)}


def attached_by_hand(kind, name, networks):
    """A model with the regularizer in the steps of its optimizers, as tests/learning has it, and the handles."""
    model = make(kind)
    parts = {key: getattr(model, key) for key in networks}
    return model, {
        key: attach(make_regularizer(name, net, example=EXAMPLES[key], **SETTINGS[name]), net.optimizer, net)
        for key, net in parts.items()
    }


@pytest.mark.parametrize(
    ("kind", "name", "networks"),
    [("SAC", "swr", None), ("SAC", "ewc", None), ("SAC", "wrs", ["critic"]), ("PPO", "spectral", None)],
)
def test_what_is_learned_with_the_callback_is_what_is_learned_attached_to_every_optimizer(kind, name, networks):
    model = make(kind)
    hand, _ = attached_by_hand(kind, name, networks or (["policy"] if kind == "PPO" else ["actor", "critic"]))
    learn(model, Regularize(name, networks, **SETTINGS[name]))
    learn(hand)
    assert furthest(state_of(model), state_of(hand)) < 1e-6
    assert furthest(state_of(model), unregularized(kind)) > 1e-3


@pytest.mark.parametrize("kind", CASES)
def test_a_strength_of_zero_changes_nothing_so_that_no_random_stream_is_touched(kind):
    model = learn(make(kind), Regularize("spectral", coef=0.0))
    assert furthest(state_of(model), unregularized(kind)) == 0


HEADS = {
    "SAC": ["actor.mu", "actor.log_std", "critic.qf0.4", "critic.qf1.4"],
    "TD3": ["actor.mu.4", "critic.qf0.4", "critic.qf1.4"],
    "DDPG": ["actor.mu.4", "critic.qf0.4"],
    "DQN": ["q_net.q_net.4"],
    "PPO": ["action_net", "value_net"],
    "A2C": ["action_net", "value_net"],
}


@pytest.mark.parametrize("kind", CASES)
def test_wrs_gives_hidden_units_unit_norm_and_leaves_heads_alone(kind):
    model = make(kind, learning_rate=1e-3)
    learn(model, Regularize("wrs", every_updates=1))
    for name, p in model.policy.named_parameters():
        if "target" not in name and name.endswith("weight"):
            off = (p.norm(dim=1) - 1).abs().max()
            assert off > 1e-3 if name.removesuffix(".weight") in HEADS[kind] else off < 1e-5, name


@pytest.mark.parametrize("kind", ["TD3", "DQN"])
def test_targets_are_neither_projected_nor_penalized(kind):
    # They follow nothing here, so they would keep their first weights but for a regularizer.
    model = make(kind, tau=0.0)
    before = state_of(model)
    learn(model, [Regularize("wrs", every_updates=1), Regularize("l2", coef=1.0)])
    after = state_of(model)
    assert {name for name in before if torch.equal(before[name], after[name])} == {n for n in before if "target" in n}


SGD = {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_the_exploration_noise_is_no_weight(kind):
    # A step of l2 alone would take all that it acts on to zero.
    settings = {"learning_rate": 1e-3, "use_sde": kind == "SAC"}
    model = make(kind, env=environment("Pendulum-v1"), policy_kwargs={**SGD, "log_std_init": -2.0}, **settings)
    learn(model, Regularize("l2", coef=1e3))
    net = model.actor if kind == "SAC" else model.policy
    assert (net.log_std + 2).abs().max() < 0.5
    assert max(p.abs().max() for name, p in net.named_parameters() if name.endswith("weight")) < 0.1


def test_with_state_dependent_exploration_which_makes_its_noise_before_the_call_the_order_is_read_too():
    model = make("SAC", use_sde=True)
    learn(model, Regularize("wrs", ["actor"], every_updates=1))
    torch.testing.assert_close(model.actor.latent_pi[2].weight.norm(dim=1), torch.ones(8))
    assert (model.actor.mu[0].weight.norm(dim=1) - 1).abs().max() > 1e-3


class OneLayer(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 6)
        self.layer = nn.Linear(3, 6)

    def forward(self, observations):
        return self.layer(observations).relu()


@pytest.mark.parametrize(("kind", "shared"), [("SAC", False), ("SAC", True), ("TD3", True)])
def test_a_features_extractor_is_regularized_once_by_whoever_trains_it(kind, shared):
    model = make(kind, policy_kwargs={"features_extractor_class": OneLayer, "share_features_extractor": shared, **SGD})
    callback = Regularize("l2", coef=0.5)
    learn(model, callback)
    actor, critic = ({*callback.regularizers[network].names} for network in ("actor", "critic"))
    extractor = {"features_extractor.layer.weight", "features_extractor.layer.bias"}
    assert extractor <= actor
    assert critic & extractor == (set() if shared else extractor)


CHAINS = {
    "SAC": [(f"qf{i}.{n}", f"qf{i}.{n + 2}") for i in (0, 1) for n in (0, 2)],
    "PPO": [(f"mlp_extractor.{of}_net.0", f"mlp_extractor.{of}_net.2") for of in ("policy", "value")]
    + [("mlp_extractor.policy_net.2", "action_net"), ("mlp_extractor.value_net.2", "value_net")],
}


@pytest.mark.parametrize(("kind", "example"), [("SAC", (OBS, ACT)), ("PPO", (CART,))])
def test_redo_recycles_a_dead_unit_of_every_hidden_layer_with_its_moments_and_no_other(kind, example):
    model = learn(make(kind, policy_kwargs={"activation_fn": nn.ReLU}))
    net = model.critic if kind == "SAC" else model.policy
    units, layers = hidden_units(net, example), dict(net.named_modules())
    assert {(unit.incoming.name, *(layer.name for layer in unit.outgoing)) for unit in units} == {*CHAINS[kind]}
    with torch.no_grad():
        for into, _ in CHAINS[kind]:  # unit 3 is dead, the others are not dormant
            layers[into].weight[3], layers[into].bias[:] = 0, 5 if into.endswith("0") else 500
            layers[into].bias[3] = -1
    done = make_intervention("redo", threshold=0.0).apply_(net, net.optimizer, example=example)
    assert done["reset_units"] == len(CHAINS[kind])
    for into, out in CHAINS[kind]:
        assert layers[into].weight[3].any()
        assert not layers[out].weight[:, 3].any()
        assert not net.optimizer.state[layers[into].weight]["exp_avg_sq"][3].any()
        assert not net.optimizer.state[layers[out].weight]["exp_avg_sq"][:, 3].any()


def test_a_model_that_was_saved_and_loaded_goes_on_exactly_by_the_state_that_lies_with_its_optimizers(tmp_path):
    model, callback = make("SAC"), Regularize("ewc", **SETTINGS["ewc"])
    learn(model, callback)
    model.save(tmp_path / "model.zip")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    learn(model, callback)
    loaded = sb3.SAC.load(tmp_path / "model.zip", environment("Pendulum-v1"), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    learn(loaded, Regularize("ewc", **SETTINGS["ewc"]))
    assert furthest(state_of(model), state_of(loaded)) == 0


class Stopping(BaseCallback):
    """Raises at the last step."""

    def _on_step(self):
        if self.num_timesteps == 30:
            raise KeyboardInterrupt
        return True


def hooks_of(model):
    of = [part.optimizer for part in (model.actor, model.critic)]
    return [hook for o in of for hook in (*o._optimizer_step_pre_hooks, *o._optimizer_step_post_hooks)]


def test_a_learn_after_another_or_one_that_was_interrupted_neither_doubles_the_regularizer_nor_starts_it_anew():
    model, (hand, handles) = make("SAC"), attached_by_hand("SAC", "spectral", ["actor", "critic"])
    callback = Regularize("spectral", **SETTINGS["spectral"])
    for one, callbacks in ((model, [callback]), (hand, [])):
        learn(one, callbacks)
        assert not hooks_of(model)
        with pytest.raises(KeyboardInterrupt):
            learn(one, [*callbacks, Stopping()])
        learn(one, callbacks)
        assert not hooks_of(model)
    assert furthest(state_of(model), state_of(hand)) < 4e-6
    for network in ("actor", "critic"):
        states = (dict(of[network].state_dict()) for of in (callback.regularizers, handles))
        torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_another_model_of_the_same_callback_gets_a_regularizer_of_its_own():
    callback = Regularize("l2_init")
    learn(make("PPO"), callback)
    first = callback.regularizers["policy"]
    learn(make("PPO"), callback)
    assert callback.regularizers["policy"] is not first


def test_penalties_and_the_units_that_started_anew_stand_in_sb3_s_log(tmp_path):
    model = make("SAC")
    model.set_logger(sb3_logger.configure(str(tmp_path), ["csv"]))
    restarts = Regularize("continual_backprop", "critic", coef=1.0, maturity=0)
    model.learn(64, [Regularize("spectral", coef=0.1), Regularize("swr"), restarts], log_interval=1)
    model.logger.close()
    table = np.genfromtxt(tmp_path / "progress.csv", delimiter=",", names=True, deletechars="")
    for network in ("actor", "critic"):
        column = table[f"regularizer/{network}_spectral"]
        assert np.nanmin(column) > 0
        assert np.unique(column[~np.isnan(column)]).size > 1
        assert not table[f"regularizer/{network}_swr"][-1]
    units = table["regularizer/critic_reset_units"]
    assert (np.diff(units[~np.isnan(units)]) >= 0).all()
    assert np.nanmax(units) > 4


def test_what_is_misspelt_or_not_trained_is_refused_before_the_first_step_and_leaves_no_hook():
    model = make("SAC")
    for callback, names in (
        (Regularize("spektral"), ["'spektral'", "'spectral'"]),
        (Regularize("l2", coeff=1), ["'coeff'", "'l2'", "'coef'"]),
        (Regularize("l2", ["critic_target"]), ["SAC", "'critic_target'", "'critic'"]),
        (Regularize("wrs", heads=["mu"]), ["heads", "'mu'"]),  # the actor has one, the critic has not
    ):
        refused(lambda callback=callback: learn(model, callback), *names)
    assert model.num_timesteps == 0
    assert not hooks_of(model)
    handle = attach("l2", model.critic.optimizer, model.critic)
    refused(lambda: learn(model, Regularize("l2")), "L2", "remove()")
    handle.remove()
    assert not hooks_of(model)


def test_an_algorithm_that_is_not_known_is_refused_with_those_that_are():
    class Foreign(sb3.common.on_policy_algorithm.OnPolicyAlgorithm):
        def train(self):
            raise AssertionError

    rest = {"gae_lambda": 1, "ent_coef": 0, "vf_coef": 1, "max_grad_norm": 1, "use_sde": False, "sde_sample_freq": -1}
    policy, env = sb3.common.policies.ActorCriticPolicy, environment("CartPole-v1")
    model = Foreign(policy, env, learning_rate=1e-3, n_steps=8, gamma=0.9, device="cpu", **rest)
    refused(lambda: model.learn(8, Regularize("l2")), "Foreign", "A2C, DDPG, DQN, PPO, SAC, TD3")


@pytest.mark.parametrize("kind", ["SAC", "DQN"])
def test_copies_of_a_model_train_on_with_each_remedy_and_the_same_seeds_and_the_model_stays(kind):
    model = make(kind).learn(40)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    remedies = {"l2": {"coef": 0.0}, "periodic": {}, "redo": {"threshold": 0.5}}
    found = branch(model, lambda: gym.make(CASES[kind][0], max_episode_steps=30), 20, remedies, repeats=2, episodes=1)
    assert [*found] == ["as it is", *remedies]
    assert found["l2"].gain == Estimate(0, 0, 0)
    assert found["l2"].returns == found["as it is"].returns
    assert kind == "DQN" or any(found[name].gain.mean for name in ("periodic", "redo"))  # its poles fall at once
    assert all(torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    assert (model.num_timesteps, model.replay_buffer.size()) == (40, 40)
    refused(lambda: branch(model, lambda: None, 1, {"specral": {}}), "'spectral'")


@pytest.mark.parametrize(("kind", "steps"), [("SAC", 70), ("PPO", 64)])
def test_redo_looks_at_a_batch_of_what_was_learned_from_and_no_regularizer_of_before_goes_on(kind, steps, monkeypatch):
    seen, states = [], []

    def acted(_, net, optimizers, example, **__):
        seen.extend(len(x) for x in example.values() if isinstance(x, torch.Tensor))
        states.extend(key for o in optimizers for key in o.param_groups[0] if " " in key)

    model = make(kind).learn(steps, Regularize("l2_init"))
    held = [key for o in trained_by(model).values() for key in o.optimizers[0].state_dict()["param_groups"][0]]
    assert any(" " in key for key in held)
    monkeypatch.setattr(ReDo, "apply_", acted)
    branch(model, lambda: environment(CASES[kind][0]), 0, {"redo": {}}, repeats=2, episodes=1)
    assert min(seen) >= 16
    assert not states
    model.replay_buffer = model.rollout_buffer = None
    with pytest.warns(UserWarning, match=r"redo is left out: .*buffer"):
        branch(model, lambda: environment(CASES[kind][0]), 0, {"redo": {}}, repeats=2, episodes=1)


class Watched(gym.Wrapper):
    """Notes the first observation of every episode, and whether it was closed."""

    made: ClassVar = []

    def __init__(self, env):
        super().__init__(env)
        self.starts, self.closed = [], False
        self.made.append(self)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.starts.append(obs)
        return obs, info

    def close(self):
        self.closed = True
        super().close()


def test_every_remedy_begins_the_same_episode_its_environments_are_closed_and_no_random_state_changes():
    Watched.made.clear()
    model = make("SAC").learn(40)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    branch(model, lambda: Watched(environment("Pendulum-v1")), 5, {"periodic": {}, "redo": {}}, repeats=2, episodes=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]
    assert all(env.closed for env in Watched.made)
    starts = [env.starts for env in Watched.made[-12:]]  # 3 branches of 2 seeds, each of training and evaluation
    np.testing.assert_equal(starts, starts[:4] * 3)
    assert not np.array_equal(starts[0], starts[2])


def zeroed(build):
    def built(self, lr_schedule):
        build(self, lr_schedule)
        for p in self.parameters():
            p.data.zero_()

    return built


def after_half(kind, **settings):
    """The weights of a model, all 8, after shrink_perturb by a half towards zeros."""
    model = make(kind, env=environment("Pendulum-v1"), **settings)
    weights = []

    class Copy(type(model)):
        def learn(self, *args, **kwargs):
            weights.append(state_of(self))

    model.__class__ = Copy
    with torch.no_grad():
        for p in model.policy.parameters():
            p.fill_(8.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.policy_class, "_build", zeroed(model.policy_class._build))
        remedies = {"shrink_perturb": {"coef": 0.5, "init": "fresh"}}
        branch(model, lambda: environment("Pendulum-v1"), 0, remedies, repeats=2, episodes=1)
    return weights[-1]


@pytest.mark.parametrize("kind", ["SAC", "TD3", "PPO"])
def test_an_intervention_acts_once_on_a_shared_extractor_and_not_on_the_noise(kind):
    shared = {"features_extractor_class": OneLayer, "share_features_extractor": True}
    after = after_half(kind, policy_kwargs=shared)
    noise = {"log_std"} if kind == "PPO" else {"log_ent_coef"}
    for name, value in after.items():
        assert torch.equal(value, torch.full_like(value, 4.0)) or name in noise, name
    assert kind != "PPO" or (after["log_std"] == 8).all()


def test_remedies_that_cannot_act_are_left_out_before_any_training_and_what_cannot_be_studied_is_refused(monkeypatch):
    model, steps, saves, save = make("SAC", use_sde=True).learn(40), [], [], sb3.SAC.save
    monkeypatch.setattr(type(model), "save", lambda *given: saves.append(save(*given)))

    class Counting(gym.Wrapper):
        def step(self, action):
            steps.append(0)
            return self.env.step(action)

    def study(remedies, repeats=2, model=model):
        return branch(model, lambda: Counting(environment("Pendulum-v1")), 10, remedies, repeats, episodes=1)

    refused(lambda: study({}, repeats=1), "repeats", "2", "1")
    several = make("SAC", env=make_vec_env(lambda: environment("Pendulum-v1"), 2))
    refused(lambda: study({}, model=several), "environments", "1", "2")
    assert not steps
    with pytest.warns(UserWarning, match="is left out") as caught:
        found = study({"selective_reinit": {}, "plasticity_injection": {}, "head": {}, "l2": {"coef": 0.0}})
    assert [str(one.message).split()[0] for one in caught] == ["selective_reinit", "plasticity_injection", "head"]
    assert [*found] == ["as it is", "l2"]
    assert len(saves) == 2  # of the model with several environments, and of the other one


def test_copies_go_on_with_the_statistics_of_a_normalized_environment_and_are_compared_by_raw_returns():
    def normalized():
        return VecNormalize(make_vec_env(lambda: environment("Pendulum-v1")), training=training)

    training = True
    model = make("SAC", env=normalized()).learn(40)
    training = False  # so that the copies' statistics stay those that they got
    model.env.training = False
    found = branch(model, normalized, 0, {}, repeats=2, episodes=1)["as it is"].returns
    alone = normalized()
    alone.obs_rms, alone.norm_reward = model.env.obs_rms, False
    returns = []
    for seed in range(2):
        alone.seed(seed)
        returns.append(evaluate_policy(model, alone, 1)[0])
    assert found.mean == pytest.approx(np.mean(returns), abs=1e-3)
    with pytest.raises(AssertionError, match="normalization"):
        branch(model, lambda: environment("Pendulum-v1"), 0, {})


@pytest.mark.filterwarnings("ignore:The last trajectory")
def test_copies_of_a_model_with_hindsight_replay_get_its_buffer_with_their_own_environment():
    def goals():
        return BitFlippingEnv(n_bits=4, continuous=False, max_steps=4)

    settings = {**OFF_POLICY, "policy_kwargs": {"net_arch": [8]}, "device": "cpu"}
    model = sb3.DQN("MultiInputPolicy", goals(), replay_buffer_class=sb3.HerReplayBuffer, seed=3, **settings).learn(42)
    found = branch(model, goals, 10, {"l2": {"coef": 0.0}}, repeats=2, episodes=1)
    assert found["l2"].gain == Estimate(0, 0, 0)
    assert model.replay_buffer.env is model.env
