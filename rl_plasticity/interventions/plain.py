"""A plain ``nn.Module`` with ``torch.optim`` optimizers, in the form that interventions need."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, first_line, warn
from rl_plasticity.learning.attached import attached_to
from rl_plasticity.learning.learner import copy_runs_
from rl_plasticity.learning.torch_state import Optimizers, TorchState
from rl_plasticity.regularizers import Regularizer
from rl_plasticity.settings import checked
from rl_plasticity.structure.calling import Sharing
from rl_plasticity.structure.layer import runs_of, unwrapped


class PlainNet:
    """A network trained by a loop of the user's own, with its optimizers, in the form that interventions need.

    Args:
        net: the network; its parameters change in place, so its optimizers still hold them.
        optimizer: one or several optimizers; ``()`` if it has none.
        make: a function that returns a new network like this one; without it, see `reinitialized`.
        regularizer, make_regularizer: the network's regularizer, and a function that makes one like it from a new
            network.
        followers: networks with the same parameters (targets).
        readers: other networks that share layers with this one, such as an actor on the critic's trunk.

    Raises:
        SettingsError: the arguments do not belong together.
    """

    @checked
    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizers | None = None,
        make: Callable[[], nn.Module] | None = None,
        regularizer: Regularizer | None = None,
        make_regularizer: Callable[[nn.Module], Regularizer] | None = None,
        followers: nn.Module | Sequence[nn.Module] = (),
        readers: nn.Module | Sequence[nn.Module] = (),
    ) -> None:
        if regularizer is not None and not isinstance(regularizer, Regularizer):
            kind = type(regularizer).__name__
            raise SettingsError(f"regularizer= takes a regularizer, got {kind}; with `attach`, pass handle.regularizer")
        if (regularizer is None) != (make_regularizer is None):
            raise SettingsError(
                "regularizer= and make_regularizer= go together: the latter is a function from a network to a "
                "regularizer like that one, such as lambda net: make_regularizer('l2_init', net)"
            )
        self.net, self.runs, self.make = unwrapped(net), runs_of(net), make
        self.regularizer, self.make_regularizer = regularizer, make_regularizer
        self.followers = [unwrapped(f) for f in ([followers] if isinstance(followers, nn.Module) else followers)]
        self.readers = [unwrapped(r) for r in ([readers] if isinstance(readers, nn.Module) else readers)]
        for follower in self.followers:
            _require_alike(self.net, follower, "followers=")
        self._optimizer = None if optimizer is None else TorchState(self.net, optimizer)

    @property
    def optimizer(self) -> TorchState:
        """The state of the network's optimizers."""
        if self._optimizer is None:
            raise SettingsError("pass the network's torch optimizers: apply_(net, optimizer), or () if it has none")
        return self._optimizer

    def copies(self, name: str) -> list[Tensor]:
        """The copies of the parameter called `name` that the optimizers keep, if they were given."""
        return [] if self._optimizer is None else self._optimizer.copies(name)

    def fresh(self, names: set[str] | None = None) -> nn.Module:
        """A network like this one with new weights, at least for the parameters `names` (all by default)."""
        if self.make is None:
            return reinitialized(self.net, names)
        made = self.make()
        if not isinstance(made, nn.Module):
            raise SettingsError(f"make= must return a network, got {type(made).__name__}")
        fresh = unwrapped(made)
        _require_alike(self.net, fresh, "make=")
        if any(p is q for p, q in zip(self.net.parameters(), fresh.parameters(), strict=True)):
            raise SettingsError("make= must return a new network each time, not the one that is to change")
        mine = _tensors(self.net)
        for name, tensor in _tensors(fresh).items():
            tensor.data = tensor.data.to(mine[name].device, mine[name].dtype)
            tensor.requires_grad_(mine[name].requires_grad)
        return fresh

    def initial(self) -> nn.Module:
        """Raises SettingsError, because the initial weights of a plain network are not known."""
        raise SettingsError(
            "the initial weights of a plain network are not known: use init='fresh', or a Learner, which knows them"
        )

    def restart_regularizer_(self, fresh: nn.Module, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        """Restart the regularizer, if there is one, from `fresh`, for the parameters `only`."""
        if self.regularizer is not None and self.make_regularizer is not None:
            self.regularizer.restart_from_(self.make_regularizer(fresh), runs, only)

    def restart_(self, runs: Tensor | None = None) -> None:
        """Give the network and its followers new weights and buffers, and reset optimizers and regularizer."""
        self.optimizer.require_all(runs)
        fresh = self.fresh()
        self.restart_regularizer_(fresh, runs)
        for net in (self.net, *self.followers):
            copy_runs_(net, fresh, runs)
        self.optimizer.restart_(runs)

    def scale_lr_(self, factor: float, rebase: bool = False) -> None:
        """Raises SettingsError, because a scheduler of torch changes the rate of a torch optimizer."""
        raise SettingsError(
            "decay the rate of a torch optimizer with torch.optim.lr_scheduler; then call SWR's capture_from_(net)"
        )

    def count_(self, done: Mapping[str, Tensor]) -> None:
        """Warn if an attached regularizer keeps values derived from the old weights; nothing is counted."""
        for regularizer in attached_to(self.net) if self.regularizer is None else ():
            if regularizer.keeps_reference:
                warn(
                    f"{type(regularizer).__name__} is attached to this network and keeps what it captured of the old "
                    "weights: pass regularizer=handle.regularizer and make_regularizer=, a function that makes one "
                    "like it (lambda net: make_regularizer('l2_init', net))"
                )


# --- new weights ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def reinitialized(net: nn.Module, names: set[str] | None = None) -> nn.Module:
    """A copy of `net` with new weights from its modules' own ``reset_parameters`` and torch's global random state.

    Children are reset first, so a module that initializes its children has the last word. Frozen parameters, and
    parameters that no module resets, keep their values. This is how torch initializes its own modules; a network that
    is initialized in another way needs ``make=``.

    Args:
        names: the parameters that must be new; by default all trainable parameters and all saved buffers.

    Raises:
        SettingsError: the network has runs, whose draws come from their seeds; it cannot be copied; or something that
            must be new is reset by no module or shared by several.
    """
    if runs_of(net):
        raise SettingsError("the runs of a stacked network start from seeds: pass make=, which returns a new network")
    try:
        with Sharing():
            copied = copy.deepcopy(net)
        for parameter in copied.parameters():
            if parameter.requires_grad:
                parameter.fill_(math.nan)  # parameters that are still NaN afterwards were not reset
        reset = {name for name, module in _children_first(copied) if _reset_(module)}
    except Exception as error:  # a module's own code may raise anything
        raise SettingsError(f"new weights need make=, which returns a new network: {first_line(error)}") from error

    def missing(name: str, why: str) -> SettingsError:
        return SettingsError(f"{name!r} {why}: pass make=, which returns a new network")

    owners = Counter(id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False))
    theirs = dict(copied.named_parameters())
    for name, mine in net.named_parameters():
        wanted = mine.requires_grad and (names is None or name in names)
        if wanted and owners[id(mine)] > 1:
            raise missing(name, "is shared by several modules, and which of them initializes it is not known")
        if not mine.requires_grad or theirs[name].isnan().any():
            if wanted:
                raise missing(name, "is reset by no module of the network")
            theirs[name].copy_(mine)
    saved = net.state_dict().keys()
    for name, _ in net.named_buffers():
        owner = name.rpartition(".")[0]
        if names is None and name in saved and owner not in reset and not _frozen(net.get_submodule(owner)):
            raise missing(name, "is a buffer that no module of the network resets")
    return copied


def _children_first(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield modules in the order of ``module.apply``, with their names."""
    for child_name, child in module.named_children():
        yield from _children_first(child, f"{name}.{child_name}".lstrip("."))
    yield name, module


def _reset_(module: nn.Module) -> bool:
    """Call the module's own initialization, unless it has none or is frozen; returns whether it was called."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if reset is None or _frozen(module):
        return False
    reset()
    return True


def _frozen(module: nn.Module) -> bool:
    """Whether the module has parameters and none of them is trainable."""
    trainable = [p.requires_grad for p in module.parameters()]
    return bool(trainable) and not any(trainable)


def _require_alike(net: nn.Module, other: nn.Module, what: str) -> None:
    mine, theirs = ({n: tuple(t.shape) for n, t in _tensors(one).items()} for one in (net, other))
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            shapes = f"{mine.get(name, 'missing')} here, {theirs.get(name, 'missing')} there"
            raise SettingsError(f"{what} must be of networks like this one, but {name!r} is {shapes}")


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}
