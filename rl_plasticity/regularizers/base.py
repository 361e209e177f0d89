"""The contract of every regularizer, their composition, and the one function that makes them by name."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.layers import layers, runs_of
from rl_plasticity.settings import Setting, checked

Strength = Annotated[float | Tensor, Setting("strength, in the paper's convention", least=0)]


class Regularizer(nn.Module):
    """Keeps a network plastic while it trains; a subclass overrides the hook it needs.

    Use, in any training loop::

        regularizer = make_regularizer("spectral", net, coef=1e-4)
        loss = task_loss + regularizer.penalty(net)
        ...; optimizer.step(); regularizer.project_(net)

    All state lives in buffers, so ``state_dict`` saves it and ``.to`` moves it. Creating one captures what it needs of
    the initial weights and leaves every global random state alone. `penalty` and `project_` have no data-dependent
    branch and no host sync, keep every buffer's address, and trace under ``torch.compile(fullgraph=True)``.

    Args:
        net: the network; stacked networks have tensors ``[*runs, ...]``, ordinary ones have ``runs = ()``.
        coef: the strength, in the paper's convention: a number, or a tensor ``[*runs]``, one for each run.

    Raises:
        SettingsError: a setting is out of range, or a strength not of shape ``()`` or ``[*runs]``.
        ValueError: the network has no layer the method can act on.
    """

    coef: Tensor

    @checked
    def __init__(self, net: nn.Module, coef: Strength = 0.0) -> None:
        super().__init__()
        self.runs = runs_of(net)
        self.layers = layers(net)
        self.register_buffer("coef", self._strength("coef", coef, net))

    def penalty(self, net: nn.Module) -> Tensor:
        """The term ``[*runs]`` to add to the loss; zero by default."""
        return torch.zeros(self.runs, dtype=self.coef.dtype, device=self.coef.device)

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        """See the gradients of loss and penalty, by parameter name, before ``optimizer.step()``; only `ewc` looks."""

    def project_(self, net: nn.Module) -> None:
        """Change the weights in place, right after ``optimizer.step()``; nothing by default."""

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        """Take the current weights of `runs` (all by default) as the new reference; only SWR has one that moves."""

    def recapture_(self, fresh: "Regularizer", runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Take over what `fresh`, a regularizer of the same kind made for newly initialized weights, has captured.

        Args:
            fresh: made by the same call for a network of the same shape.
            runs: indices of the runs concerned; all by default.
            only: parameter names; by default everything, counters included.
        """
        theirs_by_name = fresh.state_dict()  # the buffers that are saved, of a chain's parts too
        for name, mine in self.state_dict().items():
            theirs = theirs_by_name[name]
            # "parts.0.initial/body/head/weight" belongs to the parameter body.head.weight
            if only is not None and name.rpartition(".")[2].partition("/")[2].replace("/", ".") not in only:
                continue
            chosen = ... if runs is None or not mine.ndim else runs
            mine[chosen] = theirs[chosen]

    # --- for subclasses -------------------------------------------------------------------------------------------

    def _strength(self, name: str, value: float | Tensor, net: nn.Module) -> Tensor:
        """`value` as a tensor of the network's type: one number, or one for each run."""
        like = next(net.parameters(), torch.zeros(()))
        strength = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach().clone()
        if strength.shape not in ((), self.runs):
            expected = f"a number or a tensor {list(self.runs)}" if self.runs else "a number"
            raise SettingsError(f"{name} must be {expected}, got shape {list(strength.shape)}: {value}")
        return strength

    def _require(self, parts: object, what: str) -> None:
        if not parts:
            raise ValueError(f"{type(self).__name__} has nothing to act on: the network has no {what}")

    def _trainable(self, net: nn.Module) -> list[str]:
        """The names of the parameters that require gradients: at least one."""
        names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
        self._require(names, "trainable parameter")
        return names

    def _remember(self, kind: str, parameter: str, value: Tensor) -> None:
        """A buffer of this `kind` that belongs to the parameter of that name."""
        self.register_buffer(_key(kind, parameter), value.detach().clone())

    def _recall(self, kind: str, parameter: str) -> Tensor:
        value = self._buffers[_key(kind, parameter)]
        assert value is not None
        return value


def _key(kind: str, parameter: str) -> str:
    return f"{kind}/{parameter.replace('.', '/')}"


class Unregularized(Regularizer):
    """No regularizer: zero penalty, no projection."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)


class Chain(Regularizer):
    """Several regularizers as one: penalties add up, projections run in the order given."""

    def __init__(self, net: nn.Module, *regularizers: Regularizer) -> None:
        super().__init__(net)
        self.parts = nn.ModuleList(regularizers)

    def penalty(self, net: nn.Module) -> Tensor:
        total = super().penalty(net)
        for part in self.parts:
            total = total + part.penalty(net)  # type: ignore[operator]
        return total

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        for part in self.parts:
            part.observe_(net, gradients)  # type: ignore[operator]

    def project_(self, net: nn.Module) -> None:
        for part in self.parts:
            part.project_(net)  # type: ignore[operator]

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        for part in self.parts:
            part.rebase_(net, runs)  # type: ignore[operator]


def make_regularizer(name: str, net: nn.Module, **settings: Any) -> Regularizer:
    """The regularizer called `name` for `net`, with its settings by keyword.

    Raises:
        SettingsError: an unknown name or setting (the nearest valid one is named), or a setting out of range.
    """
    return choose(REGULARIZERS, name, settings, "regularizer")(net)


REGULARIZERS: dict[str, type[Regularizer]] = {}
