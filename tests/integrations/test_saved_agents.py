"""Agents that Stable-Baselines3 saved: their networks are found and diagnosed, and nothing of the file is run."""

import base64
import io
import json
import os
import pickle
import zipfile

import gymnasium
import pytest
import torch
from torch import nn

sb3 = pytest.importorskip("stable_baselines3")

from rl_plasticity.diagnose import act  # noqa: E402
from rl_plasticity.errors import SettingsError  # noqa: E402
from rl_plasticity.integrations.saved_agents import Agent, of_random_actions  # noqa: E402

BRIEF = ["repeats=2", "updates=20", "remedies=false"]
CASES = {
    "SAC": ("Pendulum-v1", {"actor", "critic"}),
    "TD3": ("Pendulum-v1", {"actor", "critic"}),
    "DDPG": ("Pendulum-v1", {"actor", "critic"}),
    "DQN": ("CartPole-v1", {"q_net"}),
    "PPO": ("CartPole-v1", {"policy", "value"}),
    "A2C": ("Pendulum-v1", {"policy", "value"}),
}


pytestmark = pytest.mark.usefixtures("no_further_repeats")


def saved(folder, kind, env=None, **settings):
    """A model, and the file that it is saved in."""
    given = {"policy_kwargs": {"net_arch": [16, 16], "activation_fn": nn.ELU}, "seed": 0, "device": "cpu"} | settings
    model = getattr(sb3, kind)("MlpPolicy", env or CASES[kind][0], **given)
    model.save(folder / "model.zip")
    return model, folder / "model.zip"


def changed(file, name, change):
    """Replace a part of the file, its bytes given to `change`."""
    with zipfile.ZipFile(file) as old:
        parts = {member: old.read(member) for member in old.namelist()}
    parts[name] = change(parts[name])
    with zipfile.ZipFile(file, "w") as new:
        for member, content in parts.items():
            new.writestr(member, content)


def with_setting(**settings):
    return lambda part: json.dumps(json.loads(part) | settings).encode()


@pytest.mark.parametrize("kind", CASES)
def test_each_algorithm_is_recognized_and_each_of_its_networks_is_diagnosed(kind, tmp_path, capsys):
    env, networks = CASES[kind]
    _, file = saved(tmp_path, kind)
    out = tmp_path / "out.json"
    act([str(file), f"env=gym:{env}", f"out={out}", *BRIEF])
    assert {row["network"] for row in json.loads(out.read_text())} == networks
    printed = capsys.readouterr().out
    assert printed.startswith({"DDPG": "TD3"}.get(kind, kind))  # one policy; only their settings differ
    assert all(network in printed for network in networks)


def test_the_networks_compute_what_the_saved_model_computes(tmp_path):
    model, file = saved(tmp_path, "SAC")
    agent = Agent(file)
    obs, _ = of_random_actions(agent, "gym:Pendulum-v1")
    action = agent.drawn_actions(len(obs))
    mine = agent.networks(agent.policy)
    with torch.no_grad():
        mean, log_std, _ = model.actor.get_action_dist_params(obs)
        assert torch.equal(mine["actor"].net(obs)[0], mean)
        assert torch.equal(mine["actor"].net(obs)[1].clamp(-20, 2), log_std)
        for q, theirs in zip(mine["critic"].net(obs, action), model.critic(obs, action), strict=True):
            assert torch.equal(q, theirs)


def test_the_heads_of_an_on_policy_agent_and_its_rate_are_the_saved_ones(tmp_path):
    model, file = saved(tmp_path, "PPO", learning_rate=2e-3)
    model.policy.optimizer.param_groups[0]["lr"] = 5e-4  # as a schedule leaves it
    model.save(file)
    agent = Agent(file)
    obs, rewards = of_random_actions(agent, "gym:CartPole-v1")
    assert (rewards == 1).float().mean() > 0.5
    mine = agent.networks(agent.policy)
    with torch.no_grad():
        assert torch.equal(mine["value"].net(obs), model.policy.predict_values(obs))
        logits = model.policy.get_distribution(obs).distribution.logits
        assert torch.allclose(mine["policy"].net(obs).log_softmax(-1), logits, atol=1e-6)
    (group,) = mine["value"].optimizers[0].param_groups
    assert (group["lr"], group["initial_lr"]) == (5e-4, 2e-3)


def test_state_dependent_exploration_and_pixels_are_read(tmp_path):
    _, file = saved(tmp_path, "SAC", use_sde=True, policy_kwargs={"net_arch": [16]})
    assert {*Agent(file).networks(Agent(file).policy)} == {"actor", "critic"}
    pixels = gymnasium.spaces.Box(0, 255, (3, 36, 36), "uint8")

    class Pixels(gymnasium.Env):
        observation_space, action_space = pixels, gymnasium.spaces.Discrete(3)

        def reset(self, seed=None, options=None):
            return self.observation_space.sample(), {}

    model = sb3.DQN("CnnPolicy", Pixels(), buffer_size=10, policy_kwargs={"net_arch": [16]}, device="cpu")
    model.save(file)
    agent = Agent(file)
    obs = torch.randint(0, 256, (5, 36, 36, 3), dtype=torch.uint8)  # the channels last, as environments return them
    with torch.no_grad():
        mine = agent.networks(agent.policy)["q_net"].net(agent.preprocessed(obs))
        assert torch.equal(mine, model.q_net(obs.movedim(-1, 1)))


def test_dead_units_end_with_status_1_and_values_out_of_reach_are_named(tmp_path, capsys):
    model, file = saved(tmp_path, "TD3")
    with torch.no_grad():
        for parameter in model.critic.parameters():
            parameter.fill_(-1e5 if parameter.ndim == 1 else 0.0)
    model.save(file)
    assert act([str(file), "env=gym:Pendulum-v1", "network=critic", "repeats=3", "updates=50", "remedies=false"]) == 1
    assert "values: the mean is -1e+05" in capsys.readouterr().out


def test_observations_from_a_file_stand_in_place_of_the_environment(tmp_path, capsys):
    _, file = saved(tmp_path, "DQN")
    torch.save(torch.randn(64, 4), tmp_path / "inputs.pt")
    act([str(file), f"env={tmp_path}/inputs.pt", *BRIEF])
    assert "q_net" in capsys.readouterr().out
    torch.save(torch.randn(64, 5), tmp_path / "inputs.pt")
    with pytest.raises(SettingsError, match=r"\[5\].*\[4\]"):
        act([str(file), f"env={tmp_path}/inputs.pt", *BRIEF])


class Runs:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_what_the_file_has_pickled_is_never_unpickled(tmp_path):
    _, file = saved(tmp_path, "SAC")
    mark = tmp_path / "was run"
    code = base64.b64encode(pickle.dumps(Runs(mark))).decode()

    def harmful(part):
        data = json.loads(part)
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = code
        return json.dumps(data).encode()

    changed(file, "data", harmful)
    agent = Agent(file)
    assert agent.algorithm == "SAC"
    assert not mark.exists()

    def pickled(part):
        content = io.BytesIO()
        torch.save({"lr": Runs(mark)}, content)
        return content.getvalue()

    for name in ("critic.optimizer.pth", "policy.pth"):
        changed(file, name, pickled)
        with pytest.raises(SettingsError, match=name):
            Agent(file)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"policy_kwargs": {"net_arch": [10**9, 16]}}, ["net_arch", "1000000000"]),
        ({"policy_kwargs": {"net_arch": [16] * 100_000}}, ["net_arch", "100000"]),
        ({"policy_kwargs": {"n_critics": 10**6}}, ["n_critics"]),
        ({"policy_kwargs": {"activation_fn": "<class '__main__.Mine'>"}}, ["activation_fn", "Mine", "make_net"]),
        ({"policy_kwargs": {"features_extractor_class": "<class 'os.system'>"}}, ["features_extractor_class"]),
        ({"policy_kwargs": {"net_arch": [16, 8]}}, ["weights", "SAC"]),
        ({"policy_kwargs": {"nets": 1}}, ["nets"]),
        ({"policy_class": {"__module__": "mine"}}, ["mine", "algorithm="]),
        ({"observation_space": {":type:": "<class 'gymnasium.spaces.dict.Dict'>"}}, ["observation_space", "Dict"]),
        ({"observation_space": {":type:": "<class 'x.Box'>", "_shape": [1 << 40], "dtype": "float32"}}, ["shape"]),
        ({"action_space": 3}, ["action_space"]),
    ],
)
def test_settings_that_cannot_be_read_safely_or_do_not_fit_are_one_line(settings, names, tmp_path):
    _, file = saved(tmp_path, "SAC")
    changed(file, "data", with_setting(**settings))
    with pytest.raises(SettingsError) as error:
        Agent(file)
    assert all(name in str(error.value) for name in names), str(error.value)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["{folder}/none.zip", "env=gym:Pendulum-v1"], ["none.zip"]),
        (["{folder}/text.zip", "env=gym:Pendulum-v1"], ["text.zip", "Stable-Baselines3"]),
        (["{folder}/other.zip", "env=gym:Pendulum-v1"], ["other.zip", "data"]),
        (["{file}"], ["env="]),
        (["{file}", "env=gym:CartPole-v1"], ["CartPole", "actions"]),
        (["{file}", "env=gym:MountainCarContinuous-v0"], ["[2]", "[3]"]),
        (["{file}", "env=gym:Pendulm-v1"], ["Pendulm", "Pendulum"]),
        (["{file}", "env=gym:Pendulum-v1", "algorithm=PPO"], ["PPO"]),
        (["{file}", "env=gym:Pendulum-v1", "algorithm=SAK"], ["SAK", "SAC"]),
        (["{file}", "env=gym:Pendulum-v1", "network=critc"], ["critc", "critic"]),
        (["{file}", "env=gym:Pendulum-v1", "seed=1"], ["seed="]),
        (["{file}", "env={folder}/none.pt"], ["none.pt"]),
        (["results/mine", "env=gym:Pendulum-v1"], ["env=", "model.zip"]),
    ],
)
def test_bad_input_is_one_line_that_names_it(arguments, names, tmp_path):
    _, file = saved(tmp_path, "SAC")
    (tmp_path / "text.zip").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("a", "b")
    with pytest.raises(SettingsError) as error:
        act([argument.format(folder=tmp_path, file=file) for argument in arguments])
    assert all(name in str(error.value) for name in names), str(error.value)
    assert "\n" not in str(error.value)
