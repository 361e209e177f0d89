"""The networks of an agent that Stable-Baselines3 saved, read without running anything that the file holds.

``SAC.load`` unpickles objects from the file, and unpickling runs whatever code it names. Here nothing is unpickled. The
kind of agent, its spaces and its settings are read from the file's JSON. The weights and learning rates are loaded with
``weights_only=True``. What JSON does not say is refused.
"""

import inspect
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import torch_layers
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import Tensor, nn

from rl_plasticity.diagnosis.checks import of_actions, of_log_std, of_values
from rl_plasticity.diagnosis.report import Report
from rl_plasticity.diagnosis.trainability import BANK, Bank, Data, Subject
from rl_plasticity.diagnosis.verdict import reports
from rl_plasticity.envs.control import check_name
from rl_plasticity.errors import SettingsError, first_line, nearest, refused, shown

MOST = 1 << 30  # bytes that one part of the file may have when it is unpacked
POLICIES = {
    "SAC": SACPolicy,
    "TD3": TD3Policy,
    "DDPG": TD3Policy,
    "DQN": DQNPolicy,
    "PPO": ActorCriticPolicy,
    "A2C": ActorCriticPolicy,
}
EXTRACTORS = {kind.__name__: kind for kind in (torch_layers.FlattenExtractor, torch_layers.NatureCNN)}
STEPS = 4 * BANK  # random actions in the env, of which every fourth observation is used


@dataclass(frozen=True)
class Network:
    """One network of an agent.

    Args:
        net: from preprocessed observations, and actions for a critic of both, to outputs without bounds.
        optimizers: those that train it, at their saved learning rate.
        with_actions: whether actions are an input.
    """

    net: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    with_actions: bool = False


class Agent:
    """A saved agent of Stable-Baselines3.

    Args:
        path: the file that ``model.save`` wrote.
        algorithm: one of `POLICIES`; None: the one that the file names.

    Raises:
        SettingsError: there is no such file, it is not an agent of Stable-Baselines3, or it cannot be rebuilt from what
            can be read safely.
    """

    def __init__(self, path: Path, algorithm: str | None = None) -> None:
        parts = _parts(path)
        self.path = path
        self.data = _described(path, parts["data"])
        self.algorithm = _algorithm(path, self.data, algorithm)
        self.obs_space, self.act_space = (_space(path, self.data, f"{of}_space") for of in ("observation", "action"))
        self.weights: dict[str, Tensor] = _tensors(path, "policy.pth", parts["policy.pth"])
        self.rates = {
            name.removesuffix(".optimizer.pth"): _rate(path, name, part)
            for name, part in parts.items()
            if name.endswith(".optimizer.pth")
        }
        self.kwargs = _policy_kwargs(path, self.data, self.weights, POLICIES[self.algorithm])
        self.policy = self.made()
        try:
            self.policy.load_state_dict(self.weights)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise SettingsError(f"{path}: the weights do not fit a {self.algorithm}: {_one(error)}") from error

    def made(self) -> nn.Module:
        """The policy with new weights.

        Raises:
            SettingsError: the settings in the file do not make one.
        """
        rate = next(iter(self.rates.values()), 3e-4)
        try:
            made = POLICIES[self.algorithm](self.obs_space, self.act_space, lambda _: rate, **self.kwargs)
        except Exception as error:  # whatever the constructor raises
            raise SettingsError(f"{self.path}: its policy cannot be made: {first_line(error)}") from error
        return cast(nn.Module, made)

    def networks(self, policy: Any) -> dict[str, Network]:
        """The networks of a policy by name, without the bounds of what they compute."""
        if self.algorithm in ("PPO", "A2C"):
            heads = {
                "policy": (policy.pi_features_extractor, policy.mlp_extractor.policy_net, policy.action_net),
                "value": (policy.vf_features_extractor, policy.mlp_extractor.value_net, policy.value_net),
            }
            optimizers = [self._at_its_rate("policy", policy.optimizer)]
            return {name: Network(nn.Sequential(*parts), optimizers) for name, parts in heads.items()}
        if self.algorithm == "DQN":
            net = nn.Sequential(policy.q_net.features_extractor, policy.q_net.q_net)
            return {"q_net": Network(net, [self._at_its_rate("policy", policy.optimizer)])}
        actor, critic = policy.actor, policy.critic
        of_actor, of_critic = (self._at_its_rate(name, getattr(policy, name).optimizer) for name in ("actor", "critic"))
        if self.algorithm != "SAC":  # without the hyperbolic tangent
            trunk = [*actor.mu[:-1]]
        elif actor.use_sde:  # without the bounds of the mean
            trunk = [actor.latent_pi, actor.mu[0] if isinstance(actor.mu, nn.Sequential) else actor.mu]
        else:
            trunk = [actor.latent_pi, Heads(actor.mu, actor.log_std)]
        shared = [of_actor] if critic.share_features_extractor else []  # whose optimizer trains the extractor
        return {
            "actor": Network(nn.Sequential(actor.features_extractor, *trunk), [of_actor]),
            "critic": Network(Critic(critic), [of_critic, *shared], with_actions=True),
        }

    def _at_its_rate(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimizer with its saved learning rate, and the one that it began with."""
        first = self.data.get("learning_rate")  # a schedule is no number
        for group in optimizer.param_groups:
            group["lr"] = self.rates.get(name, group["lr"])
            if isinstance(first, int | float) and math.isfinite(first):
                group["initial_lr"] = float(first)
        return optimizer

    def preprocessed(self, obs: Any) -> Tensor:
        """Observations as the networks read them: floats, and pixels from 0 to 1.

        Raises:
            SettingsError: they have another shape than the agent's.
        """
        obs = torch.as_tensor(obs)
        wanted = [*(self.obs_space.shape or ())]
        if [*obs.shape[1:]] != wanted and [*obs.shape[1:]] == [*wanted[1:], *wanted[:1]]:  # the channels come last
            obs = obs.movedim(-1, 1)
        if [*obs.shape[1:]] != wanted or not len(obs):
            raise SettingsError(f"observations have the shape {[*obs.shape[1:]]}; {self.path} reads {wanted}")
        normalized = bool(self.kwargs.get("normalize_images", True))
        return cast(Tensor, preprocess_obs(obs, self.obs_space, normalize_images=normalized))

    def drawn_actions(self, n: int) -> Tensor:
        """Actions from -1 to 1, as critics read them, ``[n, act_dim]``."""
        return 2 * torch.rand(n, math.prod(self.act_space.shape or ()), generator=torch.Generator().manual_seed(0)) - 1


class Heads(nn.Module):
    """Mean and log standard deviation, the latter without its bounds."""

    def __init__(self, mean: nn.Module, log_std: nn.Module) -> None:
        super().__init__()
        self.mean, self.log_std = mean, log_std

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(features), self.log_std(features)


class Critic(nn.Module):
    """All Q functions of a critic."""

    def __init__(self, critic: Any) -> None:
        super().__init__()
        self.extractor, self.q = critic.features_extractor, nn.ModuleList(critic.q_networks)

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat([self.extractor(obs), act], 1)
        return tuple(q(both) for q in self.q)


# --- reading the file -------------------------------------------------------------------------------------------------


def _one(error: Exception) -> str:
    return " ".join(str(error).split())


def _parts(path: Path) -> dict[str, bytes]:
    """The parts of the file that are read."""
    if not path.is_file():
        raise SettingsError(f"there is no file {path}")
    try:
        with refused(f"read {path}"), zipfile.ZipFile(path) as file:
            sizes = {member.filename: member.file_size for member in file.infolist()}
            for needed in ("data", "policy.pth"):
                if needed not in sizes:
                    raise SettingsError(f"{path} is no saved agent of Stable-Baselines3: it holds no {needed!r}")
            chosen = [name for name in sizes if name in ("data", "policy.pth") or name.endswith(".optimizer.pth")]
            if max(sizes[name] for name in chosen) > MOST:
                raise SettingsError(f"{path}: a part of it takes more than {MOST >> 30} GiB")
            return {name: file.read(name) for name in chosen}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise SettingsError(f"{path} is no saved agent of Stable-Baselines3: {first_line(error)}") from error


def _described(path: Path, part: bytes) -> dict[str, Any]:
    """The file's JSON. What is pickled in it stays text."""
    try:
        data = json.loads(part)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: its settings cannot be read: {first_line(error)}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: its settings are no dict, but {type(data).__name__}")
    return data


def _tensors(path: Path, name: str, part: bytes) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(part), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file holds; torch's own message advises to run the code
        what = "something else than tensors" if "weights_only" in str(error) else first_line(error)
        raise SettingsError(f"{path}: cannot read {name}: {what}") from error
    if not isinstance(state, dict):
        raise SettingsError(f"{path}: {name} holds a {type(state).__name__} in place of a dict")
    return state


def _rate(path: Path, name: str, part: bytes) -> float:
    groups = _tensors(path, name, part).get("param_groups")
    try:
        return float(groups[0]["lr"])  # type: ignore[index]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise SettingsError(f"{path}: {name} holds no learning rate") from error


def _algorithm(path: Path, data: Mapping[str, Any], given: str | None) -> str:
    """The agent's algorithm: `given`, or what the name of the policy's module says."""
    if given is not None:
        if given not in POLICIES:
            raise SettingsError(f"unknown algorithm {given!r}{nearest(given, POLICIES)}")
        return given
    described = data.get("policy_class")
    module = described.get("__module__") if isinstance(described, dict) else None
    on_policy = "PPO" if "clip_range" in data else "A2C"
    known = {"sac": "SAC", "td3": "TD3", "dqn": "DQN", "common": on_policy}
    names = {f"stable_baselines3.{folder}.policies": name for folder, name in known.items()}
    if not isinstance(module, str) or module not in names:
        raise SettingsError(f"{path}: its policy is from {shown(module)}: give algorithm={'|'.join(POLICIES)}")
    return names[module]


def _space(path: Path, data: Mapping[str, Any], key: str) -> Any:
    """A space, from what the JSON says about it.

    Bounds stand there only as a shortened text, so they are not kept, except for pixels.
    """
    described = data.get(key)
    described = described if isinstance(described, dict) else {}
    kind = re.sub(r"^<class '.*\.(\w+)'>$", r"\1", str(described.get(":type:")))
    try:
        if kind == "Box":
            shape, dtype = tuple(map(int, described["_shape"])), np.dtype(str(described["dtype"]))
            if not 0 < math.prod(shape) * dtype.itemsize <= MOST:
                raise ValueError(f"its shape is {[*shape]}")
            if key == "action_space":
                return spaces.Box(-1.0, 1.0, shape, np.float32)
            if dtype == np.uint8:
                return spaces.Box(0, 255, shape, np.uint8)
            return spaces.Box(-np.inf, np.inf, shape, np.float32)
        if kind == "Discrete":
            return spaces.Discrete(_small(described["n"]))
        if kind == "MultiBinary":
            return spaces.MultiBinary(_small(described["n"]))
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete([*map(_small, re.findall(r"\d+", str(described["nvec"])))])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"{path}: its {key} cannot be read: {first_line(error)}") from error
    raise SettingsError(f"{path}: its {key} is of the kind {shown(kind)}; Box, Discrete, MultiDiscrete are read")


def _small(number: Any) -> int:
    if not 0 < int(number) <= 1_000_000:
        raise ValueError(f"a size of {shown(number)}")
    return int(number)


def _policy_kwargs(
    path: Path, data: Mapping[str, Any], weights: Mapping[str, Any], policy: Callable[..., Any]
) -> dict[str, Any]:
    """The arguments that the policy was made with.

    A class stands in the JSON as ``<class 'torch.nn.modules.activation.ReLU'>``. Only activations and optimizers of
    torch and the extractors of Stable-Baselines3 are known by such a name.

    Raises:
        SettingsError: another class, an unknown argument, or sizes that no saved weight has.
    """
    given = data.get("policy_kwargs") or {}
    given = {k: v for k, v in given.items() if k not in (":type:", ":serialized:", "device")}
    sizes = [n for w in weights.values() if isinstance(w, Tensor) for n in w.shape]
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        if name not in inspect.signature(policy).parameters:
            raise SettingsError(f"{path}: unknown policy_kwargs {name!r}")
        _require_modest(path, name, value, max(sizes, default=0), len(sizes))
        kwargs[name] = _class(path, name, value) if isinstance(value, str) else value
    arch = kwargs.get("net_arch")
    if isinstance(arch, list) and arch and isinstance(arch[0], dict):  # before SB3 1.8
        kwargs["net_arch"] = arch[0]
    if policy is ActorCriticPolicy:  # the others have it in policy_kwargs
        kwargs["use_sde"] = bool(data.get("use_sde"))
    if any(".cnn." in str(name) for name in weights):  # the default of CnnPolicy, which no setting names
        kwargs.setdefault("features_extractor_class", torch_layers.NatureCNN)
    return kwargs


def _require_modest(path: Path, name: str, value: Any, largest: int, most: int) -> None:
    """Refuse numbers from which a network would be made that is larger than the saved one."""
    if isinstance(value, dict | list):
        if len(value) > most:
            raise SettingsError(f"{path}: policy_kwargs {name!r} has {len(value)} entries")
        for one in value.values() if isinstance(value, dict) else value:
            _require_modest(path, name, one, largest, most)
    elif isinstance(value, int) and value > largest:
        raise SettingsError(f"{path}: policy_kwargs {name!r} has a size of {shown(value)}, and no saved weight has it")


def _class(path: Path, name: str, text: str) -> Any:
    """The class of that name, of those that are known."""
    found = re.fullmatch(r"<class '([\w.]+)\.(\w+)'>", text)
    module, kind = found.groups() if found else ("", "")
    known: object = None
    if module == "torch.nn.modules.activation":
        known = getattr(nn, kind, None)
    elif module.startswith("torch.optim."):
        known = getattr(torch.optim, kind, None)
    elif module.startswith("stable_baselines3."):
        known = {**EXTRACTORS, "RMSpropTFLike": RMSpropTFLike}.get(kind)
    if not inspect.isclass(known):
        raise SettingsError(
            f"{path}: policy_kwargs {name}={shown(text)} is not read, since that would run code of the file; "
            "use my_module:make_net weights.pt inputs.pt"
        )
    return known


# --- inputs -----------------------------------------------------------------------------------------------------------


def of_random_actions(agent: Agent, env: str) -> tuple[Tensor, Tensor]:
    """Observations ``[n, ...]`` and rewards ``[n]`` of random actions in an environment, always the same ones.

    Raises:
        SettingsError: no such environment, or its spaces are not the agent's.
    """
    check_name(env)
    if not env.startswith("gym:"):
        raise SettingsError(f"env={env}: an agent of Stable-Baselines3 needs a Gymnasium task, env=gym:NAME")
    try:
        made: gym.Env[Any, Any] = gym.make(env.removeprefix("gym:"))
    except Exception as error:  # whatever the environment raises
        raise SettingsError(f"cannot make {env}: {first_line(error)}") from error
    try:
        theirs, mine = ([type(s).__name__, *(s.shape or ())] for s in (made.action_space, agent.act_space))
        if theirs != mine or getattr(made.action_space, "n", 0) != getattr(agent.act_space, "n", 0):
            raise SettingsError(f"{env} takes actions {made.action_space}; those of {agent.path} are {agent.act_space}")
        made.action_space.seed(0)
        seen, rewards = [made.reset(seed=0)[0]], [0.0]
        agent.preprocessed(np.asarray(seen))
        for _ in range(STEPS):
            obs, reward, terminated, truncated, _ = made.step(made.action_space.sample())
            seen.append(made.reset()[0] if terminated or truncated else obs)
            rewards.append(float(reward))
    finally:
        made.close()
    every = STEPS // BANK
    return agent.preprocessed(np.asarray(seen[1::every])), torch.tensor(rewards[1::every])


def diagnosed(
    agent: Agent,
    obs: Tensor,
    rewards: Tensor | None,
    network: str | None,
    **given: Any,
) -> dict[str, Report]:
    """The report on each network of an agent.

    Args:
        obs: preprocessed observations, ``[n, ...]``.
        rewards: rewards there, which bound the values; None: unknown.
        network: the name of one of them; None: all.
        given: ``remedies``, ``repeats`` and ``updates`` of `diagnose`.

    Raises:
        SettingsError: no network of that name, or see `diagnose`.
    """
    mine = agent.networks(agent.policy)
    if network not in (None, *mine):
        raise SettingsError(f"no network {network!r}{nearest(network, mine)}")
    found = {}
    for name, one in mine.items():
        if network not in (None, name):
            continue
        inputs = (obs, agent.drawn_actions(len(obs))) if one.with_actions else (obs,)
        subject = Subject(one.net, one.optimizers, partial(_fresh, agent, name), without_dropout=True)
        beside = [_beside(agent, name, one, inputs, rewards)]
        (found[name],) = reports(subject, Data(Bank(inputs, ())), None, None, seed=0, beside=beside, **given)
    return found


def _fresh(agent: Agent, name: str) -> nn.Module:
    return agent.networks(agent.made())[name].net


@torch.no_grad()
def _beside(agent: Agent, name: str, network: Network, inputs: tuple[Tensor, ...], rewards: Tensor | None) -> list[str]:
    """Findings that are no matter of learning."""
    output = network.net(*inputs)
    discount = agent.data.get("gamma")
    if name in ("critic", "value") and rewards is not None and isinstance(discount, int | float):
        values = output[0] if isinstance(output, tuple) else output
        return of_values(values, rewards, float(discount))
    if name == "actor" and agent.algorithm != "SAC":
        return of_actions(output.tanh())
    if name == "actor" and isinstance(output, tuple):
        return of_log_std(output[1].clamp(LOG_STD_MIN, LOG_STD_MAX), LOG_STD_MIN, LOG_STD_MAX)
    return []
