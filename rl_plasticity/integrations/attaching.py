"""What the callbacks share: regularizers that are attached while another library's loop runs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from rl_plasticity.errors import SettingsError
from rl_plasticity.learning.attached import Attached, attach
from rl_plasticity.regularizers import Regularizer, make_regularizer
from rl_plasticity.structure import with_tensors


class Trained(NamedTuple):
    """A network, what trains it, and what `make_regularizer` must know of it beside the user's settings."""

    net: nn.Module
    optimizers: Sequence[Optimizer]
    settings: Mapping[str, Any] = {}


class Attaching:
    """Regularizers of one or more networks, attached from `begin` to `end`.

    They are made at the first `begin`, of the weights that the networks have then, and are kept for as long as the
    networks are the same. Their state is saved in the first group of the optimizer's state, and so wherever a library
    saves its optimizers; a `begin` after those are loaded continues from it.

    Args:
        regularizer: a name for `make_regularizer`, with the `settings`; or a regularizer made for the network.
        settings: of the regularizer, and ``example``, ``heads`` and ``roles`` of `make_regularizer`.

    Attributes:
        regularizers: the regularizers by network.
        handles: what `attach` gave for each; empty while nothing is attached.

    Raises:
        SettingsError: settings for a regularizer that is made already.
    """

    def __init__(self, regularizer: Regularizer | str, settings: Mapping[str, Any]) -> None:
        if settings and isinstance(regularizer, Regularizer):
            raise SettingsError(f"settings are for a regularizer given by name; this one is made already: {settings}")
        self.regularizer, self.settings = regularizer, settings
        self.regularizers: dict[str, Regularizer] = {}
        self.handles: dict[str, Attached] = {}
        self._nets: dict[str, nn.Module] = {}  # that the regularizers were made for

    def begin(self, trained: Mapping[str, Trained], is_resumed: bool = False) -> None:
        """Attach a regularizer to each network, and continue from the state that its optimizer was loaded with.

        Raises:
            SettingsError: `is_resumed`, and there is no such state; what `attach` raises.
        """
        self.end()  # an earlier training may have ended with an error
        nets = {name: one.net for name, one in trained.items()}
        if self._nets != nets:
            self.regularizers = {name: self._made(one) for name, one in trained.items()}
            self._nets = nets
        try:
            for name, (net, optimizers, _) in trained.items():
                regularizer = self.regularizers[name].to(next(net.parameters()).device)
                self.handles[name] = handle = attach(regularizer, optimizers, net)
                key = f"{type(regularizer).__name__} {name}"
                first = handle.optimizers[0]  # unwrapped
                if state := first.param_groups[0].pop(key, None):
                    handle.load_state_dict(state)
                elif is_resumed:
                    raise SettingsError(
                        f"the checkpoint has no state of the regularizer {key!r}: it was trained without one. To "
                        "start from its weights, load them into the network and do not resume"
                    )
                first.register_state_dict_post_hook(partial(_save, key=key, regularizer=regularizer))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Detach the regularizers. What they know is still saved with the optimizers."""
        for handle in self.handles.values():
            handle.remove()
        self.handles = {}

    def _made(self, one: Trained) -> Regularizer:
        if isinstance(self.regularizer, Regularizer):
            return self.regularizer
        device = next(one.net.parameters()).device
        settings = with_tensors({**one.settings, **self.settings}, lambda tensor: tensor.to(device))
        return make_regularizer(self.regularizer, one.net, **settings)


def _save(optimizer: Optimizer, state: dict[str, Any], *, key: str, regularizer: Regularizer) -> None:
    state["param_groups"][0][key] = dict(regularizer.state_dict())
