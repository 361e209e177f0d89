"""Plasticity injection: a new head learns a change of what the old head, which is frozen, says."""

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.base import EveryTasks, EveryUpdates, Intervention, Target
from rl_plasticity.learning.learner import copy_runs_
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.settings import checked


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

    forgets = False

    @checked
    def __init__(self, every_updates: EveryUpdates = 100_000, every_tasks: EveryTasks = None) -> None:
        super().__init__(every_updates, every_tasks)

    @torch.no_grad()
    def _apply_(self, target: Target, runs: Tensor | None) -> None:
        prepared = []  # written at the end, so that an error changes nothing
        for _, learner, followers, _ in target.parts.values():
            heads = _heads(learner.net)
            if not heads:
                raise SettingsError(
                    "plasticity_injection needs a network with room for it: agent.injected_layers=2 with "
                    "agent.network=mlp, net.injected_layers=2 with net=mlp, or an Injectable in a network of your own"
                )
            names = {f"{name}.head.{n}".lstrip(".") for name, m in heads.items() for n, _ in m.head.named_parameters()}
            moments = [moment for name in sorted(names) for moment in learner.optimizer.moments(name)]
            injected = next(iter(heads.values())).injected.flatten().cpu()
            asked = torch.arange(len(injected)) if runs is None else runs.cpu()  # a network without runs counts as one
            if len(new := asked[~injected[asked]]):
                prepared.append((learner, followers, heads, names, moments, new if learner.runs else None))
        for learner, followers, heads, names, moments, left in prepared:
            fresh = learner.fresh(left, names)
            learner.recapture_(fresh, left, only=names)
            for name, head in heads.items():
                head.inject_(_heads(fresh)[name].head, left)
            for moment in moments:
                moment[... if left is None else left] = 0
            for follower in followers:
                copy_runs_(follower, learner.net, left)


def _heads(net: nn.Module) -> dict[str, Injectable]:
    return {name: module for name, module in net.named_modules() if isinstance(module, Injectable)}
