"""Plasticity injection: a new head learns a change of what the old head, which is frozen, says."""

import torch
from torch import Tensor

from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.base import Change, EveryTasks, EveryUpdates, Intervention, Part
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.settings import checked
from rl_plasticity.structure.layer import lookup


class PlasticityInjection(Intervention):
    """Plasticity injection: freezes the head and adds a new one, without a change of the function.

    f(x) = h_theta(phi(x)) + h_theta1(phi(x)) - stopgrad h_theta1'(phi(x)), with theta frozen, and theta1 = theta1' new
    weights at the moment of injection. phi and theta1 are trained. The head's optimizer moments become 0, the step
    count stays. theta1 takes the place of theta among the parameters, and the frozen weights become buffers of the
    network's `Injectable`. So regularizers act on theta1, and its new weights are their reference.

    A run is injected once. Later calls leave it alone until a full reset has removed the injection. Targets become
    copies of the network, because averages of parameters do not follow buffers.

    Source: Nikishin et al. (2023), "Deep Reinforcement Learning with Plasticity Injection", arXiv 2305.15555. Only the
    abstract and Figure 2's caption could be read, and code of others: github.com/isaac7778/FIRE
    (rl/dqn/cleanrl/dqn_atari_resume.py) and Plasticine. Deviations:

    - Plasticine stops the gradient to the features through theta1' too, as here; Han et al. let it pass.
    - Han et al. begin with a new optimizer, and the target keeps its own old head.

    Raises:
        SettingsError: the network has no `Injectable` head.
    """

    forgets, targets = False, "copy"

    @checked
    def __init__(self, every_updates: EveryUpdates = 100_000, every_tasks: EveryTasks = None) -> None:
        super().__init__(every_updates, every_tasks)

    def change(self, part: Part, runs: Tensor | None) -> Change:
        net = part.learner.net
        heads = {name: module for name, module in net.named_modules() if isinstance(module, Injectable)}
        if not heads:
            raise SettingsError(
                "plasticity_injection needs a network with room for it: agent.injected_layers=2 with "
                "agent.network=mlp, net.injected_layers=2 with net=mlp, or an Injectable in a network of your own"
            )
        injected = next(iter(heads.values())).injected.flatten()  # one, for a network without runs
        left = torch.arange(len(injected), device=injected.device) if runs is None else runs.to(injected.device)
        left = left[~injected[left]]
        if not len(left):
            return Change({}, runs=left)
        chosen = left if part.learner.runs else None
        # Of each head, its parameters, and the buffers that keep their old and their new values.
        kept = {
            f"{head}.head.{name}".lstrip("."): [
                f"{head}.{copied}.{name}".lstrip(".") for copied in ("frozen", "offset")
            ]
            for head, module in heads.items()
            for name, _ in module.head.named_parameters()
        }
        fresh = part.fresh(chosen, {*kept})
        new = {f"{head}.injected".lstrip("."): torch.ones_like(module.injected) for head, module in heads.items()}
        for name, (frozen, offset) in kept.items():
            new |= {frozen: lookup(net, name).clone(), name: lookup(fresh, name), offset: lookup(fresh, name)}
        return Change(new, dict.fromkeys(kept), fresh, runs=chosen)
