"""Regularizers for Stable-Baselines3: a callback; nothing of the algorithm is changed or subclassed."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import sync_envs_normalization, unwrap_vec_normalize

from rl_plasticity.diagnosis.report import Estimate
from rl_plasticity.errors import SettingsError, choose, nearest, warn
from rl_plasticity.integrations.attaching import Attaching, Trained
from rl_plasticity.interventions import INTERVENTIONS, make_intervention
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.seeding import random_states_kept

BATCH = 256  # observations by which a unit is dormant or not
AS_IT_IS = "as it is"
REMEDIES: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in ("redo", "head", "periodic", "spectral", "swr", "wrs", "l2_init")},
    "shrink_perturb": {"coef": 0.5, "init": "fresh"},
}


class Regularize(Attaching, BaseCallback):
    """Regularize what an algorithm trains, while it learns::

        callback = Regularize("spectral", coef=1e-4)
        SAC("MlpPolicy", "Pendulum-v1").learn(100_000, callback)

    The networks are ``actor`` and ``critic`` of SAC, TD3 and DDPG, ``q_net`` of DQN, ``policy`` (both heads, one
    penalty) of PPO and A2C. Each is attached (`rl_plasticity.attach`) to the optimizer that trains it, so everything
    happens once at each of its steps: DQN's, PPO's and A2C's clipping cuts the loss's gradient alone, and SAC's targets
    average weights that are projected already. Targets, the temperature and the exploration noise's ``log_std`` of PPO,
    A2C and gSDE are never touched. Several callbacks in a list act in order.

    The penalty of the last step is logged as ``regularizer/critic_spectral``, and so on.

    Between two calls of ``learn`` the hooks are gone and the state stays. ``model.save`` saves it with the optimizers,
    and a model that is loaded goes on from it::

        model = SAC.load("model.zip", env)
        model.learn(100_000, Regularize("spectral", coef=1e-4), reset_num_timesteps=False)

    With ``share_features_extractor=True`` SAC's and TD3's extractor is regularized with the actor, whose optimizer
    trains it; SWR's factors there do not reach the critic's biases.

    Args:
        regularizer: its name.
        networks: some of the networks; all by default.
        settings: the regularizer's, and ``heads`` and ``roles`` of `make_regularizer`.

    Attributes:
        regularizers: the regularizers by network; empty before the first ``learn``.
        handles: what `attach` gave for each. After an exception has ended ``learn``, ``callback.end()`` detaches them.

    Raises:
        SettingsError: from ``learn``, before the first step: an unknown name or setting, an algorithm or network that
            is not known.
        ValueError: from ``learn``, before the first step: a network that the method cannot act on.
    """

    def __init__(
        self, regularizer: str = "spectral", networks: Sequence[str] | None = None, *, verbose: int = 0, **settings: Any
    ) -> None:
        super().__init__(regularizer, settings)
        BaseCallback.__init__(self, verbose)
        self.networks = [networks] if isinstance(networks, str) else networks

    def _on_training_start(self) -> None:
        trained = trained_by(self.model)
        chosen = [*trained] if self.networks is None else self.networks
        for name in chosen:
            if name not in trained:
                kind = type(self.model).__name__
                raise SettingsError(f"networks: {kind} trains no network {name!r}{nearest(name, trained)}")
        self.begin({name: trained[name] for name in chosen})

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._on_rollout_start()
        self.end()

    def _on_rollout_start(self) -> None:
        """Log the last updates' penalties: SB3 writes the log during or after the rollout."""
        for name, handle in self.handles.items():
            if handle.penalty is not None:
                self.logger.record(f"regularizer/{name}_{self.regularizer}", handle.penalty.item())
            for counted, number in handle.counts.items():
                self.logger.record(f"regularizer/{name}_{counted}", number.item())


def trained_by(model: BaseAlgorithm, last: Any = None) -> dict[str, Trained]:
    """The networks that a model trains, each with its optimizer and real inputs.

    Args:
        last: the observations of these inputs; by default the model's last ones.

    Raises:
        SettingsError: an algorithm of which that is not known.
    """
    last = model._last_obs if last is None else last
    obs, _ = model.policy.obs_to_tensor(last)
    found: dict[str, tuple[Any, object]]
    if isinstance(model, SAC | TD3):  # DDPG is a TD3
        actions = torch.as_tensor(model.predict(last, deterministic=True)[0], device=model.device)
        of_actor = {"obs": obs} | ({"deterministic": True} if isinstance(model, SAC) else {})  # gSDE's noise is old
        found = {"actor": (model.actor, of_actor), "critic": (model.critic, {"obs": obs, "actions": actions})}
    elif isinstance(model, DQN):
        found = {"q_net": (model.q_net, {"obs": obs})}
    elif isinstance(model, PPO | A2C):
        found = {"policy": (model.policy, {"obs": obs, "deterministic": True})}
    else:
        raise SettingsError(
            f"{type(model).__name__} is not supported: A2C, DDPG, DQN, PPO, SAC, TD3 and classes derived from them "
            "are; use rl_plasticity.attach on its optimizers"
        )
    trained, taken = {}, set[torch.Tensor]()  # TD3's optimizers both hold a shared extractor
    for name, (net, example) in found.items():
        optimizer = (net if hasattr(net, "optimizer") else model.policy).optimizer
        held = {p for group in optimizer.param_groups for p in group["params"]}
        noise = getattr(net, "log_std", None)  # a layer of SAC's actor; a parameter where it is no output
        only = [p for p in net.parameters() if p in held - taken and p is not noise]
        taken.update(only)
        trained[name] = Trained(net, [optimizer], {"example": example, "only": only})
    return trained


class Branch(NamedTuple):
    """The returns of a model that trained on, and how far they are above those of the model as it is, by seed."""

    returns: Estimate
    gain: Estimate


def branch(
    model: BaseAlgorithm,
    make_env: Callable[[], Any],
    env_steps: int,
    remedies: Mapping[str, Mapping[str, Any]] = REMEDIES,
    repeats: int = 5,
    episodes: int = 10,
) -> dict[str, Branch]:
    """Which remedy raises the return: copies of a model train on with each, by Stable-Baselines3 itself::

        branch(SAC.load("model.zip"), lambda: gym.make("Pendulum-v1"), 10_000)

    An intervention acts once on each network, with its target. A regularizer acts while the copy learns: ``l2_init``
    pulls towards the weights that the model has now. A `Regularize` that the model learned with does not act in any
    copy. Each repeat has its own seed, the same for all remedies. The model does not change. An off-policy model
    needs its replay buffer, or its copies fill one first.

    Args:
        make_env: makes an environment as the model was trained in; for several environments, a vectorized one. Where
            the model has a `VecNormalize`, it makes one too, which gets the model's statistics.
        env_steps: env steps of each copy.
        remedies: names of `INTERVENTIONS` and `REGULARIZERS`, with their settings. Before any training, a warning
            names those that cannot act on the model's networks, which are left out.
        repeats: copies for each remedy, at least 2.
        episodes: episodes after which a copy's mean return is taken.

    Raises:
        SettingsError: an unknown remedy, an algorithm of which the networks are not known, too few repeats, or an
            environment of another kind.
    """
    if repeats < 2:
        raise SettingsError(f"repeats must be at least 2, got {repeats}")
    for name, settings in remedies.items():
        choose({**INTERVENTIONS, **REGULARIZERS}, name, settings, "remedy")
    chosen = {AS_IT_IS: {}, **remedies}
    saved = io.BytesIO()
    model.save(saved)
    with random_states_kept(model.policy.parameters()):
        for name, settings in [*chosen.items()]:
            try:
                _return(model, saved, make_env, 0, 1, name, settings, 0)
            except ValueError as error:
                if name == AS_IT_IS:
                    raise
                warn(f"{name} is left out: {error}")
                del chosen[name]
        found = {
            name: [
                _return(model, saved, make_env, env_steps, episodes, name, settings, seed) for seed in range(repeats)
            ]
            for name, settings in chosen.items()
        }
    return {
        name: Branch(Estimate.of(own), Estimate.of([a - b for a, b in zip(own, found[AS_IT_IS], strict=True)]))
        for name, own in found.items()
    }


def _return(
    model: Any,
    saved: io.BytesIO,
    make_env: Callable[[], Any],
    env_steps: int,
    episodes: int,
    name: str,
    settings: Mapping[str, Any],
    seed: int,
) -> float:
    """The mean return of a copy of a saved model that trained on with a remedy."""
    with closing(model._wrap_env(make_env())) as env, closing(model._wrap_env(make_env())) as test_env:
        if env.num_envs != model.n_envs:
            raise SettingsError(f"make_env makes {env.num_envs} environments, but the model has {model.n_envs}")
        if model.get_vec_normalize_env():
            sync_envs_normalization(model.env, env)
        saved.seek(0)
        copied = type(model).load(saved, env=env, device=model.device)
        copied.replay_buffer = buffer = copy.deepcopy(getattr(model, "replay_buffer", None))
        copied.rollout_buffer = copy.deepcopy(getattr(model, "rollout_buffer", None))
        if isinstance(buffer, HerReplayBuffer):
            buffer.set_env(env)
            buffer.truncate_last_trajectory()
        copied.set_random_seed(seed)
        copied._last_obs = env.reset()
        _intervene(copied, name, settings, _observations(copied))
        copied.set_random_seed(seed)  # whatever has been drawn
        copied._last_obs = None  # so that learning begins a new episode
        copied.learn(
            env_steps, Regularize(name, **settings) if name in REGULARIZERS else None, reset_num_timesteps=False
        )
        sync_envs_normalization(env, test_env)
        if normalized := unwrap_vec_normalize(test_env):
            normalized.training = normalized.norm_reward = False
        test_env.seed(seed)
        return float(evaluate_policy(copied, test_env, episodes)[0])  # type: ignore[arg-type]


def _observations(model: Any) -> Any:
    """Observations that a model learned from, in the form of its environment; None without a buffer that has some."""
    if (buffer := getattr(model, "replay_buffer", None)) is not None and buffer.size():
        seen = buffer.sample(BATCH, env=model.get_vec_normalize_env()).observations
        return {key: x.cpu().numpy() for key, x in seen.items()} if isinstance(seen, dict) else seen.cpu().numpy()
    if (rollout := getattr(model, "rollout_buffer", None)) is None or not rollout.full:
        return None
    space, seen = model.observation_space, rollout.observations
    if not isinstance(seen, dict):
        return seen.reshape(-1, *space.shape)[-BATCH:]
    return {key: array.reshape(-1, *space[key].shape)[-BATCH:] for key, array in seen.items()}


def _intervene(model: Any, name: str, settings: Mapping[str, Any], seen: Any) -> None:
    """Let a remedy, if it is an intervention, act once on what is trained, and on the targets that follow it.

    The state of a `Regularize` that the model learned with is dropped from its optimizers.

    Args:
        seen: a batch of observations, or None.

    Raises:
        ValueError: the remedy looks at a batch, and there is none.
    """
    if name == "redo" and seen is None:
        raise ValueError("it looks at a batch of observations, and the model has no buffer with some")
    fresh = model.policy_class(**model.policy_kwargs | model.policy._get_constructor_parameters())
    # What stays as it is: the noise, and a features extractor after the first of the networks that share it.
    others: set[Any] = set()
    for of, (net, optimizers, known) in trained_by(model, seen).items():
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            for kept in [key for key in group if " " in key]:  # as `Attaching` names it
                del group[kept]
        if name in INTERVENTIONS:
            target = getattr(model, f"{of}_target", ())
            others |= {*net.parameters()} - {*known["only"]}
            before = [(p, p.detach().clone()) for p in others]
            make_intervention(name, **settings).apply_(
                net, optimizers, example=known["example"], make=partial(getattr, fresh, of, fresh), followers=target
            )
            for p, value in before:
                p.data = value
            others.update(net.parameters(), target.parameters() if target else ())
