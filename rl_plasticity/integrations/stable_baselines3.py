"""Regularizers for Stable-Baselines3: a callback; nothing of the algorithm is changed or subclassed."""

from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.integrations.attaching import Attaching, Trained


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
