"""Regularizers for TorchRL, whose losses train parameters that no module of the user's holds."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDictParams
from torch.optim import Optimizer
from torchrl.objectives import LossModule

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.learning.attached import Attached, attach
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.structure import Example, read


def attach_to_loss(
    regularizer: str,
    optimizer: Optimizer,
    loss: LossModule,
    network: str,
    *,
    example: Example | None = None,
    heads: Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    **settings: Any,
) -> Attached:
    """Regularize a network of a TorchRL loss at each step of its optimizer::

        loss = SACLoss(actor, qvalue, num_qvalue_nets=2)
        optimizer = torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=3e-4)
        attach_to_loss("spectral", optimizer, loss, "qvalue_network", example=(obs, action), coef=1e-4)

    A loss trains the parameters ``loss.qvalue_network_params``, stacked ``[num_qvalue_nets, ...]``, while both the
    module it was made of and ``loss.qvalue_network`` keep weights that nothing trains. Here the stack is what is
    regularized, each network of it as one of its own, with its own norms, singular vectors and references; the handle's
    ``penalty`` is ``[num_qvalue_nets]``. Target parameters are others and stay as they are. As for `attach`, call it
    when the loss is on its device.

    Args:
        optimizer: what trains the network, and perhaps others.
        network: its name in the loss: ``"qvalue_network"``, ``"actor_network"``, ...
        example: real inputs of the module, where it cannot be read without (TorchRL's MLP cannot): in order of its
            ``in_keys``, as a mapping, or a tensordict in a tuple.
        heads, roles, settings: as for `make_regularizer`; the names are ``loss.qvalue_network``'s.

    Raises:
        SettingsError: as `attach`; a network that the loss does not have or has not made functional.
        ValueError: as `make_regularizer`.
    """
    parts = dict(loss.named_children())
    params = parts.get(f"{network}_params")
    if not isinstance(params, TensorDictParams) or network.startswith("target_"):
        raise SettingsError(
            f"{type(loss).__name__} trains no parameters of a network {network!r}{nearest(network, parts)}"
        )
    one = copy.deepcopy(getattr(loss, network))
    stack = copy.deepcopy(one)
    runs = stack.runs = tuple(params.batch_size)
    for name, parameter in params.named_parameters():
        one.get_parameter(name).requires_grad_(parameter.requires_grad)
        owner, _, key = name.rpartition(".")
        stack.get_submodule(owner)._parameters[key] = parameter
    # The stack can be called with vmap only, where nothing can be watched: what feeds what is read from one of it.
    structure = read(one, example, heads=heads, roles=roles)
    structure = replace(structure, nodes=tuple(replace(node, runs=runs) for node in structure.nodes))
    return attach(make_regularizer(regularizer, stack, structure=structure, **settings), optimizer, stack)
