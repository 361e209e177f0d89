"""Checks of what was read of a network: calls with other weights show what reading misses."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_plasticity.structure.calling import Example, arguments_of, aside, tensors_in, with_tensors
from rl_plasticity.structure.layer import lookup, unwrapped
from rl_plasticity.structure.units import HiddenLayer

MOVED = 1e-4  # relative to the largest output: far above rounding, far below what a misread unit moves


def outputs(
    net: nn.Module, example: Example, values: Mapping[str, Tensor], *, batch_statistics: bool = False
) -> list[Tensor] | None:
    """The outputs of `net` in evaluation mode with these values of its parameters; None if the call fails.

    The call is in float64, or in float32 if the network makes tensors of that type itself. Parameters, buffers,
    attributes, modes and random states do not change.

    Args:
        batch_statistics: whether norm layers use the statistics of the example and no epsilon, so that the size of
            their input is lost.
    """
    net = unwrapped(net)
    for dtype in (torch.float64, torch.float32):

        def cast(tensor: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

        tensors = {name: cast(values.get(name, p)) for name, p in net.named_parameters()}
        tensors |= {name: cast(buffer) for name, buffer in net.named_buffers()}
        args, kwargs = with_tensors(arguments_of(example), cast)
        try:
            with aside(net) as called, torch.no_grad():
                if batch_statistics:
                    _without_epsilon(called)
                returned = tensors_in(functional_call(called, tensors, args, kwargs))
        except Exception:  # whatever a foreign network raises on another type
            continue
        return [t.detach().double() for t in returned if t.is_floating_point()]
    return None


def recyclable(net: nn.Module, units: Sequence[HiddenLayer], example: Example) -> list[HiddenLayer]:
    """The units that are read by nothing but the columns that are taken for theirs.

    With these columns at zero, the network's outputs must not depend on the weights that make the units. Half of each
    layer's units are tried. Units of computed weights are not tried.
    """
    tried = [u for u in units if not any(layer.is_computed for layer in u.layers)]
    if not tried or not _moves(net, tried, example):
        return [*units]
    return [unit for unit in units if unit not in tried or not _moves(net, [unit], example)]


def _moves(net: nn.Module, units: Sequence[HiddenLayer], example: Example) -> bool:
    generator = torch.Generator().manual_seed(0)
    names = {n for u in units for layer in u.layers for n in layer.parameter_names}
    silent = {name: lookup(net, name).detach().double().clone() for name in names}
    other = {name: tensor.clone() for name, tensor in silent.items()}
    masks = []
    for unit in units:
        masks.append(torch.randperm(unit.width, generator=generator, device="cpu") < max(1, unit.width // 2))
        # Behind a norm layer all units move with one: there the gains and shifts alone change.
        for name, where in (unit.norms[:1] or (unit.incoming,))[0].rows_of(net, masks[-1]):
            tensor = other[name]
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device="cpu").to(tensor)
            fresh = noise * (tensor.square().mean().sqrt() + 0.1) - tensor
            other[name] = torch.where(where.to(tensor.device), fresh, tensor)
    for unit, mask in zip(units, masks, strict=True):
        for layer in unit.outgoing:
            name, columns = layer.columns_of(net, mask)
            for tensors in (silent, other):
                tensors[name].masked_fill_(columns.to(tensors[name].device), 0)
    before, after = (outputs(net, example, tensors) for tensors in (silent, other))
    if before is None or after is None:
        return False
    return any(moved_by(a, b) > MOVED for a, b in zip(after, before, strict=True))


def moved_by(after: Tensor, before: Tensor) -> float:
    """The largest difference, relative to the largest entry of `before`."""
    if not before.numel():
        return 0.0
    largest, moved = before.nan_to_num(0, 0, 0).abs().amax(), (after - before).nan_to_num(0).abs().amax()
    return float(moved / largest) if largest > 0 else float(moved > 0)


def _without_epsilon(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.training = True
        for name in ("eps", "epsilon", "variance_epsilon"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 1e-30)
