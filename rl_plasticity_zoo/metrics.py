"""Measures that no run logs, ``-> [*runs]``, in the dtype of the input."""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity import Learner
from rl_plasticity.structure import arguments_of
from rl_plasticity.structure.layer import runs_of, wide


def plasticity_score(loss_before: Tensor, loss_after: Tensor) -> Tensor:
    """1 - L_after / max(L_before, 1e-8), clamped to [0, 1]: the share of a batch's loss that an update on it removed.

    1: the batch is fitted; 0: no progress. For losses that are not negative. Source: Elsayed and Mahmood (2024,
    arXiv 2404.00781), "sample plasticity". Variants: the drop L_before - L_after itself; the drop over a whole task.
    """
    return (1 - loss_after / loss_before.clamp(min=1e-8)).clamp(0, 1)


def policy_entropy(log_prob: Tensor) -> Tensor:
    """-mean log pi(a|s) over ``[*runs, batch]`` of actions drawn from the policy, ``[*runs]``, in nats.

    A Monte-Carlo estimate. For a tanh-Gaussian `log_prob` must include the tanh's correction; the entropy of the
    Gaussian before the tanh, a variant under the same name, is larger.
    """
    return -log_prob.mean(-1)


def fit_fresh_targets(
    net: nn.Module,
    example: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    updates: int = 100,
    lr: float = 1e-3,
    generator: torch.Generator | int = 0,
) -> Tensor:
    """How badly a copy of any network learns a random change of its own outputs, ``[*runs]``: 0 is perfect::

        fit_fresh_targets(net, x)

    The targets are y = f_0(x) + e: the network's present outputs plus independent standard normal noise. The value is
    mean (f(x) - y)^2 / var(e) over examples and outputs, after `updates` full-batch steps of a fresh Adam on the mean
    squared error. A network that learns nothing, or no more than a constant, has 1. What the network predicts now does
    not count: a function added to it for good leaves the value as it is. The noise is the same for all runs and depends
    on the generator only, so values are comparable between runs and over time.

    The budget matters: with many more updates than a task gives, networks that learn slowly pass for plastic. Compare
    with a fresh network of the same shape at the same `updates` and `lr`. The noise has unit size whatever the size of
    the outputs: a critic whose values reach thousands is asked for a small change.

    Source: Lyle et al. (2023), "Understanding plasticity in neural networks" (a probe of an agent's checkpoints), and
    target-fitting capacity, Lyle et al. (2022). Deviations: their targets are the mean of the network's predictions
    plus functions of the input, outputs of random networks, so the spread of the predictions has to be unlearned first.
    Ours keep the predictions and add independent noise, which measures memorizing.

    The copy is in evaluation mode, and float32 or wider. The network, its gradients and every global random state are
    untouched. Parameters with requires_grad false stay fixed.

    Args:
        net: returns a tensor or a tuple of tensors ``[*runs, ...]``, all of them fitted. A `Learner` stands for its
            network.
        example: tensors ``[*runs, n, ...]``: one, a tuple (``net(*example)``) or a dict (``net(**example)``).
        updates, lr: the budget. A fresh network must come well below 1 with it.
        generator: the generator of the noise, which is advanced, or its seed.
    """
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    student = copy.deepcopy(net.net if isinstance(net, Learner) else net).eval()
    k = len(runs_of(student))
    for tensor in (*student.parameters(), *student.buffers()):
        tensor.data = _wide(tensor.data)
    args, named = arguments_of(example)
    args = tuple(map(_wide, args))
    named = {name: _wide(x) for name, x in named.items()}

    def predict() -> Tensor:  # [*runs, outputs of all examples]
        output = student(*args, **named)
        several = output if isinstance(output, tuple | list) else (output,)
        return torch.cat([part.flatten(k) for part in several], dim=-1)

    start = predict().detach()
    noise = torch.randn(start.shape[-1], generator=generator, device=generator.device).to(start)
    optimizer = torch.optim.Adam(student.parameters(), lr=lr)
    for _ in range(updates):
        optimizer.zero_grad()
        (predict() - start - noise).square().mean(-1).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (predict() - start - noise).detach().square().mean(-1) / noise.var(correction=0)


def _wide(tensor: Tensor) -> Tensor:
    return wide(tensor.detach()) if tensor.is_floating_point() else tensor
