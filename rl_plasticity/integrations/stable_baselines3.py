"""Regularizers for Stable-Baselines3: a callback; nothing of the algorithm is changed or subclassed."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from rl_plasticity.diagnosis.report import Estimate
from rl_plasticity.errors import SettingsError, choose, nearest
from rl_plasticity.integrations.attaching import Attaching, Trained
from rl_plasticity.interventions import INTERVENTIONS, make_intervention
from rl_plasticity.regularizers import REGULARIZERS

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
            is not known, or a model that is not the one of the last ``learn``.
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
                raise SettingsError(f"networks: {kind} trains no {name!r}{nearest(name, trained)}")
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


def trained_by(model: BaseAlgorithm) -> dict[str, Trained]:
    """The networks that a model trains, each with its optimizer and real inputs.

    Raises:
        SettingsError: an algorithm of which that is not known.
    """
    last: Any = model._last_obs
    obs, _ = model.policy.obs_to_tensor(last)
    found: dict[str, tuple[Any, object]]
    if isinstance(model, SAC | TD3):  # DDPG is a TD3
        actions = torch.as_tensor(model.predict(last, deterministic=True)[0])
        of_actor = {"obs": obs} | ({"deterministic": True} if isinstance(model, SAC) else {})  # gSDE's noise is old
        found = {"actor": (model.actor, of_actor), "critic": (model.critic, {"obs": obs, "actions": actions})}
    elif isinstance(model, DQN):
        found = {"q_net": (model.q_net, {"obs": obs})}
    elif isinstance(model, PPO | A2C):
        found = {"policy": (model.policy, {"obs": obs, "deterministic": True})}
    else:
        raise SettingsError(
            f"what {type(model).__name__} trains is not known here: A2C, DDPG, DQN, PPO, SAC and TD3 are, and what "
            "derives from them; use rl_plasticity.attach on its optimizers"
        )
    trained = {}
    for name, (net, example) in found.items():
        optimizer = (net if hasattr(net, "optimizer") else model.policy).optimizer
        held = {p for group in optimizer.param_groups for p in group["params"]}
        noise = getattr(net, "log_std", None)  # a layer of SAC's actor; a parameter where it is no output
        only = [p for p in net.parameters() if p in held and p is not noise]
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

    An intervention acts once on each network, with its target; a regularizer acts while the copy learns. Each repeat
    has its own seed, the same for all remedies. The model does not change. An off-policy model needs its replay
    buffer, or its copies fill one first.

    Args:
        make_env: makes an environment as the model was trained in.
        env_steps: env steps of each copy.
        remedies: names of `INTERVENTIONS` and `REGULARIZERS`, with their settings.
        repeats: copies for each remedy, at least 2.
        episodes: episodes after which a copy's mean return is taken.

    Raises:
        SettingsError: an unknown remedy, or an algorithm of which the networks are not known.
    """
    for name, settings in remedies.items():
        choose({**INTERVENTIONS, **REGULARIZERS}, name, settings, "remedy")
    saved = io.BytesIO()
    model.save(saved)
    found: dict[str, list[float]] = {}
    for name, settings in {AS_IT_IS: {}, **remedies}.items():
        for seed in range(repeats):
            saved.seek(0)
            copied: Any = type(model).load(saved, env=make_env(), device=model.device)
            if (buffer := getattr(model, "replay_buffer", None)) is not None:
                copied.replay_buffer = copy.deepcopy(buffer)
            copied.set_random_seed(seed)
            if name in INTERVENTIONS:
                _intervene(copied, name, settings)
            callback = Regularize(name, **settings) if name in REGULARIZERS else None
            copied.learn(env_steps, callback, reset_num_timesteps=False)
            env = copied._wrap_env(make_env())
            env.seed(seed)
            found.setdefault(name, []).append(float(evaluate_policy(copied, env, episodes)[0]))  # type: ignore[arg-type]
    gains = {name: [a - b for a, b in zip(own, found[AS_IT_IS], strict=True)] for name, own in found.items()}
    return {name: Branch(Estimate.of(found[name]), Estimate.of(gains[name])) for name in found}


def _intervene(model: Any, name: str, settings: Mapping[str, Any]) -> None:
    """Let an intervention act on each network of a model, and on the target that follows it."""
    spaces = model.observation_space, model.action_space
    model._last_obs = model.env.reset()
    for of, trained in trained_by(model).items():
        fresh = model.policy_class(*spaces, model.lr_schedule, **model.policy_kwargs).to(model.device)
        target = getattr(model, f"{of}_target", None)
        given: dict[str, Any] = {"make": lambda fresh=fresh, of=of: getattr(fresh, of, fresh)}
        if target is not None:
            given["followers"] = target
        make_intervention(name, **settings).apply_(
            trained.net, trained.optimizers, example=trained.settings["example"], **given
        )
    model._last_obs = None  # so that learning begins a new episode
