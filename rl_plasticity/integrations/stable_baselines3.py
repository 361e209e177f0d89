"""Regularizers for Stable-Baselines3: a callback; nothing of the algorithm is changed or subclassed."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from torch.optim import Optimizer

from rl_plasticity.errors import SettingsError, choose, nearest
from rl_plasticity.learning.attached import Attached, attach
from rl_plasticity.regularizers import REGULARIZERS, Regularizer, make_regularizer

Trained = dict[str, tuple[nn.Module, Optimizer]]
OF_ANY = ("heads", "roles", "from_update", "until_update")  # settings that are no regularizer's own


class Regularize(BaseCallback):
    """Regularize what an algorithm trains, while it learns::

        callback = Regularize("spectral", coef=1e-4)
        SAC("MlpPolicy", "Pendulum-v1").learn(100_000, callback)

    The networks are ``actor`` and ``critic`` of SAC, TD3 and DDPG, ``q_net`` of DQN, ``policy`` (both heads, one
    penalty) of PPO and A2C. Each is attached (`rl_plasticity.attach`) to the optimizer that trains it, so everything
    happens once at each of its steps: DQN's, PPO's and A2C's clipping cuts the loss's gradient alone, and SAC's targets
    average weights that are projected already. Targets, the temperature and the exploration noise's ``log_std`` of PPO,
    A2C and gSDE are never touched. Several callbacks in a list act in order.

    The penalty of the last step is logged as ``regularizer/critic_spectral``, and so on.

    Between two calls of ``learn`` the hooks are gone and the state stays. To go on with a model that was saved, save
    the callback's state beside it::

        torch.save(callback.state_dict(), "regularizer.pt")
        ...
        callback = Regularize("spectral", coef=1e-4)
        callback.load_state_dict(torch.load("regularizer.pt"))
        SAC.load("model.zip", env).learn(100_000, callback, reset_num_timesteps=False)

    With ``share_features_extractor=True`` SAC's and TD3's extractor is regularized with the actor, whose optimizer
    trains it; SWR's factors there do not reach the critic's biases.

    Args:
        regularizer: its name.
        networks: some of the networks; all by default.
        settings: the regularizer's, and those of any: ``heads``, ``roles``, ``from_update``, ``until_update``
            (`make_regularizer`).

    Raises:
        SettingsError: an unknown name or setting; from ``learn``, before the first step, an algorithm or network that
            is not known, or a model that is not the one of the last ``learn``.
        ValueError: from ``learn``, before the first step: a network that the method cannot act on.
    """

    def __init__(
        self, regularizer: str = "spectral", networks: Sequence[str] | None = None, *, verbose: int = 0, **settings: Any
    ) -> None:
        super().__init__(verbose)
        own = {name: value for name, value in settings.items() if name not in OF_ANY}
        choose(REGULARIZERS, regularizer, own, "regularizer")  # what is misspelt is said here, not when learning starts
        self.regularizer, self.settings = regularizer, settings
        self.networks = [networks] if isinstance(networks, str) else networks
        self.regularizers: dict[str, Regularizer] = {}
        self._of: BaseAlgorithm | None = None  # whose networks they were made for
        self._loaded: dict[str, Any] | None = None
        self._handles: dict[str, Attached] = {}

    def state_dict(self) -> dict[str, Any]:
        """The states of the regularizers by network; empty before the first ``learn``."""
        if self._loaded is not None:
            return self._loaded
        return {name: regularizer.state_dict() for name, regularizer in self.regularizers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state at the next ``learn``, of whatever model."""
        self._loaded, self._of, self.regularizers = dict(state), None, {}

    def remove(self) -> None:
        """Detach from the optimizers. This is needed only after an exception has ended ``learn``."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}

    # --- what the algorithm calls -----------------------------------------------------------------------------------

    def _on_training_start(self) -> None:
        self.remove()
        trained = self._chosen()
        if self._of is not self.model:
            self._make(trained)
        try:
            for name, (net, optimizer) in trained.items():
                self._handles[name] = attach(self.regularizers[name], optimizer, net)
        except Exception:
            self.remove()
            raise

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._log()  # the last updates' penalties: SB3 writes the log during or after the rollout

    def _on_training_end(self) -> None:
        self._log()
        self.remove()

    def _log(self) -> None:
        for name, handle in self._handles.items():
            if handle.penalty is not None:
                self.logger.record(f"regularizer/{name}_{self.regularizer}", handle.penalty.item())
            for counted, number in handle.counts.items():
                self.logger.record(f"regularizer/{name}_{counted}", number.item())

    def _chosen(self) -> Trained:
        trained = trained_by(self.model)
        chosen = [*trained] if self.networks is None else self.networks
        for name in chosen:
            if name not in trained:
                kind = type(self.model).__name__
                raise SettingsError(f"networks: {kind} trains no {name!r}{nearest(name, trained)}")
        if not chosen:
            raise SettingsError("networks: none is given")
        return {name: trained[name] for name in chosen}

    def _make(self, trained: Trained) -> None:
        if self._of is not None:
            raise SettingsError(
                "this callback has regularized another model: make a new one; to go on with a model that was saved and "
                "loaded, give it the state, callback.load_state_dict(callback.state_dict())"
            )
        if self._loaded is not None and self._loaded.keys() != trained.keys():
            have, want = ", ".join(self._loaded) or "none", ", ".join(trained)
            raise SettingsError(f"the loaded state is of the networks {have}; these are {want}")
        made = {}
        for name, (net, optimizer) in trained.items():
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            noise = getattr(net, "log_std", None)  # a layer of SAC's actor; a parameter where it is no output
            only = [p for p in net.parameters() if id(p) in held and p is not noise]
            example = example_of(self.model, net)
            made[name] = make_regularizer(self.regularizer, net, example=example, only=only, **self.settings)
        for name, state in (self._loaded or {}).items():
            made[name].load_state_dict(state)
        self.regularizers, self._of, self._loaded = made, self.model, None


def trained_by(model: BaseAlgorithm) -> Trained:
    """The networks that a model trains, each with its optimizer.

    Raises:
        SettingsError: an algorithm of which that is not known.
    """
    if isinstance(model, SAC | TD3):  # DDPG is a TD3
        return {"actor": (model.actor, model.actor.optimizer), "critic": (model.critic, model.critic.optimizer)}
    if isinstance(model, DQN):
        return {"q_net": (model.q_net, model.policy.optimizer)}
    if isinstance(model, PPO | A2C):
        return {"policy": (model.policy, model.policy.optimizer)}
    raise SettingsError(
        f"what {type(model).__name__} trains is not known here: A2C, DDPG, DQN, PPO, SAC and TD3 are, and what "
        "derives from them; use rl_plasticity.attach on its optimizers"
    )


def example_of(model: BaseAlgorithm, net: nn.Module) -> dict[str, Any]:
    """Named inputs for one call of one of the model's networks, drawn from copies of the spaces with seed 0."""
    spaces = copy.deepcopy((model.observation_space, model.action_space))
    for space in spaces:
        space.seed(0)
    obs, _ = model.policy.obs_to_tensor(spaces[0].sample())
    actions = torch.as_tensor(spaces[1].sample(), device=model.device)[None]
    known = {"obs": obs, "actions": actions, "deterministic": True}  # gSDE's noise is made before the call
    wanted = inspect.signature(net.forward).parameters
    return {name: value for name, value in known.items() if name in wanted}
