"""`diagnose`: a verdict by trial on whether a network has lost its plasticity."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from rl_plasticity.diagnosis import checks
from rl_plasticity.diagnosis.judging import Judge, all_judged
from rl_plasticity.diagnosis.probe import Probe
from rl_plasticity.diagnosis.remedies import REMEDIES, try_on_copies
from rl_plasticity.diagnosis.report import (
    AS_IT_IS,
    EARLIER,
    FRESH,
    NOW,
    ORDER,
    AgentReport,
    Remedy,
    Report,
    Verdict,
)
from rl_plasticity.diagnosis.subject import RATE, Change, Subject, groups_of, restart_, set_rate_, subject_of
from rl_plasticity.diagnosis.tasks import Criterion, TaskSource
from rl_plasticity.diagnosis.trials import BRIEF, LEARNS, RATES, Trials
from rl_plasticity.errors import SettingsError, one_line
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import Optimizers, TorchState
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import unwrapped

HALF_LEARNED, LOWER = 0.5, 0.1  # where a fresh network removes less than this part, this multiple of the rate is tried
TINY = 1 / 30  # where Adam's rate is less than this part of `RATE`, fresh networks learn at that
NOTHING = 0.02  # of the loss: where fresh networks remove less, the optimizer's settings are in question
BAD: tuple[Verdict, ...] = ("losing", "lost")
SYMPTOMS = ("dead", "dormant", "saturated", "feature_rank", "weight_norm", "sigma1", "stable_rank")

Metrics = Mapping[str, tuple[float, float]]
"""Of the network and of a fresh one."""


def diagnose(
    net: Any,
    inputs: Example | None = None,
    *,
    env: Any = None,
    loss: Criterion | None = None,
    targets: Any = None,
    batches: Sequence[Any] | None = None,
    make: Callable[[], nn.Module] | None = None,
    optimizer: Optimizers | None = None,
    earlier: nn.Module | Mapping[str, Tensor] | None = None,
    max_grad_norm: float | None = None,
    remedies: bool = True,
    repeats: int = 3,
    updates: int | None = None,
    seed: int = 0,
) -> Report:
    """Find out whether a network still learns as a fresh one does, by letting copies of both learn the same tasks::

        print(diagnose(net, batches=next_batches, loss=loss, make=make_net))   # on your own next task
        print(diagnose(net, x))                                               # on targets that are drawn
        print(diagnose(net, x, loss=F.cross_entropy, targets=y, optimizer=optimizer))
        print(diagnose(SAC.load("model.zip"), env=env))                       # an agent of Stable-Baselines3

    The score of a network is (L_0 - L) / (L_0 - L_fresh): what it removed of the loss, as a share of what a fresh
    network removed. L is the mean loss over the last tenth of the updates, at the best of several learning rates. L_0
    is the loss of a network that has learned nothing.

    Trials take twice the updates after which a fresh network has removed 0.9 of the loss. They go on, three times as
    long each time and up to 2400 updates, while the network is behind and still catching up, or its loss is above that
    of a network that learned nothing and still moves: a network that unlearns an old task first has not lost its
    plasticity. The verdict on the 95 % interval over the repeats:

    - ``plastic``: it lies above 0.9;
    - ``losing``: it lies below 0.9, or more than 0.1 below the earlier network, and the gap no longer closes;
    - ``lost``: the same, below 0.5;
    - ``something else``: it learns with a fresh optimizer in float32, but less than half as much as it is trained; no
      update changes it; or it or any network cannot learn these data, and nothing was tried. `causes` has the findings;
    - ``not detectable``: the interval contains 0.9; or the network is behind but still catches up at the end; or a
      fresh network hardly learns either. `smallest_gap` is the smallest gap that these repeats would have shown.

    The network, its optimizer, modes, gradients and all global random states do not change. Copies learn without an
    attached regularizer.

    Source: the comparison with a fresh network on the same task is Ash and Adams (2020) and Berariu et al. (2021); the
    drawn targets follow Lyle et al. (2022, 2023), but keep what the network computes, so that nothing has to be
    unlearned. Thresholds: docs/diagnose.md.

    Args:
        net: any network. A `Learner` stands for its network, and makes the new weights. Or an agent that
            Stable-Baselines3 or sb3-contrib has loaded: each of its networks learns what the agent has to learn next,
            see docs/diagnose.md.
        inputs: a fixed batch: a tensor, a tuple (``net(*inputs)``) or a dict (``net(**inputs)``), with at least 4 times
            as many rows as the network has outputs. At most 1024 rows are used.
        env: the environment of such an agent; without it its replay buffer is read.
        loss: ``loss(output, targets)``, a mean over the batch, with `targets` or `batches`; ``loss(output)`` for
            batches that are a dict or a tensor.
        targets: the targets of `inputs`. New ones like them are drawn, and learned with `loss`.
        batches: the next task, in place of drawn targets: a list of ``(inputs, targets)``, dicts or tensors.
        make: returns a network with new weights; by default the modules' own ``reset_parameters``.
        optimizer: one or several torch optimizers. Then the network is also tried as it is trained, with their state
            and learning rate.
        earlier: the network at an earlier time, or its state_dict.
        max_grad_norm: the norm to which training clips the gradients.
        remedies: whether to try remedies on copies if plasticity was lost.
        repeats: number of draws of fresh weights, targets and order. As many are added, twice at most, where the
            interval leaves the verdict open.
        updates: updates of each trial, which then does not go on.
        seed: seed of all draws.

    Raises:
        SettingsError: a network without parameters, inputs that do not fit it or are too few, a `make` that returns a
            network of another shape, or arguments that do not go together.
    """
    if repeats < 2:
        raise SettingsError(f"repeats must be at least 2 for an interval, got {repeats}")
    if updates is not None and updates < 10:
        raise SettingsError(f"updates must be at least 10, got {updates}")
    if not isinstance(net, nn.Module) and hasattr(net, "policy"):
        from rl_plasticity.diagnosis.agents import of_model  # after all networks of agents

        networks = {}
        for name, (subject, task, findings) in of_model(net, env).items():
            (networks[name],) = reports(subject, task, None, None, remedies, repeats, updates, seed, [findings])
        worst = max(networks, key=lambda name: ORDER.index(networks[name].verdict))
        values = vars(networks[worst]) | {"why": f"{worst}: {networks[worst].why}"}
        return AgentReport(**values, networks=networks)
    subject = subject_from(net, optimizer, make, drawn=batches is None)
    if subject.runs:
        raise SettingsError(
            f"net has the runs axes {[*subject.runs]}: python -m rl_plasticity.diagnose FOLDER diagnoses each run"
        )
    source = TaskSource.of(inputs, loss, targets, batches)
    (report,) = reports(subject, source, earlier, max_grad_norm, remedies, repeats, updates, seed)
    return report


def subject_from(
    net: nn.Module, optimizer: Optimizers | None, make: Callable[[], nn.Module] | None, drawn: bool
) -> Subject:
    """The network, with a function that makes one like it.

    Raises:
        SettingsError: `net` is no network with parameters.
    """
    if isinstance(net, Learner):
        make, net = make or subject_of(net).fresh, net.net
    if not isinstance(net, nn.Module):
        raise SettingsError(f"net must be a network, or an agent that its library has loaded, got {type(net).__name__}")
    inner = unwrapped(net)
    if not [*inner.parameters()]:
        raise SettingsError("nothing can be learned: the network has no parameters")
    optimizers = [] if optimizer is None else TorchState(inner, optimizer).optimizers
    return Subject(inner, optimizers, PlainNet(inner, make=make).fresh, without_dropout=drawn)


# --- what follows from it ---------------------------------------------------------------------------------------------


def reports(
    subject: Subject,
    source: TaskSource,
    earlier: nn.Module | Mapping[str, Tensor] | None,
    clip: float | None,
    remedies: bool,
    repeats: int,
    updates: int | None,
    seed: int,
    beside: Sequence[Sequence[str]] = (),
) -> list[Report]:
    """The report of each run, in order; one report for an ordinary network.

    Args:
        updates: updates of each trial; None: as many as a verdict needs.
        beside: further findings for each run, which explain why it does not learn although nothing is lost.
    """
    every = range(math.prod(subject.runs))
    beside = beside or [()] * len(every)
    trials = Trials(subject, source.whole(subject.copied().net), repeats, updates, clip, seed)
    broken = checks.not_finite(subject.net)
    if not all(broken) and (unusable := checks.of_data(trials)):
        broken = [unusable for _ in every]
    if all(broken):
        return [*map(_untried, broken)]
    causes, learns = _let_arms_learn(trials, earlier)
    judged = all_judged(trials)
    ill = [verdict in BAD and not bad for (verdict, *_), bad in zip(judged, broken, strict=True)]
    if remedies and any(ill):
        try_on_copies(trials)
    tried = [name for name in REMEDIES if name in trials.arms]
    protocol = _protocol(trials) | {"not_applicable": [name for name in REMEDIES if tried and name not in tried]}
    metrics, found = _metrics(trials), []
    for run, (verdict, why, gap) in enumerate(judged):
        if broken[run]:
            found.append(_untried(broken[run]))
            continue
        judge, said = Judge(trials, run), [*beside[run], *causes]
        better: tuple[Remedy, ...] = ()
        if ill[run]:
            said += _dead_layers(metrics[run])
            better = judge.ranked(tried)
        elif verdict == "something else":
            said += _otherwise(judge)
        elif not learns:
            verdict, why = "something else", f"no update changes the network as it is trained; {why}"
        elif verdict == "plastic":
            verdict = "something else" if beside[run] else verdict
            said += judge.slow_start()
        numbers = *judge.numbers(), _symptoms(metrics[run])
        found.append(Report(verdict, why, tuple(said), *numbers, better, gap, protocol))
    return found


def _untried(findings: Sequence[str]) -> Report:
    return Report("something else", f"{findings[0]}: nothing else was tried", tuple(findings))


def _let_arms_learn(trials: Trials, earlier: nn.Module | Mapping[str, Tensor] | None) -> tuple[list[str], bool]:
    """Let every arm learn; returns what keeps the network from learning, and whether any of it learns all the same."""
    subject = trials.subject
    hindrances, learns = checks.of_updates(trials)
    halves = any(p.dtype in checks.HALF for p in subject.net.parameters())
    trials.keeps_own_rate = subject.knows(trials.tasks[0]) and bool(subject.optimizers or hindrances or halves)
    causes = _let_fresh_learn(trials) + hindrances
    trials.run(NOW, [subject])
    if trials.keeps_own_rate:
        trials.run(AS_IT_IS, [subject], [1.0])
    if earlier is not None:
        trials.run(EARLIER, [_earlier(subject, earlier)])
    return causes, learns


def _let_fresh_learn(trials: Trials) -> list[str]:
    """Let fresh networks learn; at another learning rate if they learn nothing, or little, with the optimizer's own."""
    subject = trials.subject
    if subject.optimizers and subject.is_adam and trials.rate < TINY * RATE:
        subject.another_rate = RATE  # `_otherwise` finds out whether the network learns at its own rate
    trials.run(FRESH)
    if trials.gives_statistics:  # those with which fresh ones learn less are no statistics, but a mask or a scale
        removed, theirs = trials.removed(), trials.statistics
        trials.draw_anew({})
        if not bool((trials.removed() > removed + LEARNS).any()):
            trials.draw_anew(theirs)
    removed, rate = trials.removed(), trials.rate
    too_low = rate < RATE / 3 and bool((removed < LEARNS).all())
    if not too_low and not (rate > RATE and bool((removed < HALF_LEARNED).any())):
        return _settings(trials)
    arm, times = "a fresh network at another rate", RATE / rate if too_low else LOWER
    trials.run(arm, rates=[times], most=BRIEF)
    at = trials.at(arm)
    was, better = (float(part.mean()) for part in (trials.removed(at=at), trials.removed(arm)))
    del trials.arms[arm]
    helps = better - was > (LEARNS if too_low else HALF_LEARNED / 2)
    if not helps and not too_low:
        return _settings(trials)
    subject.another_rate = times * rate
    trials.run(FRESH)
    learned = f"removes {was:.0%} of the loss in {at} updates" if math.isfinite(was) else "diverges"
    said = f"learning rate: with {rate:g} a fresh network {learned}, and with {times * rate:g} it removes {better:.0%}"
    return [said] if helps else _settings(trials)


def _settings(trials: Trials) -> list[str]:
    """Let trials take a new Adam, if no network learns with the optimizer's settings whatever its rate is."""
    subject, removed = trials.subject, trials.removed()
    least = NOTHING if subject.is_adam else 0.0  # other kinds may be slow
    if not (subject.optimizers and subject.knows(trials.tasks[0]) and bool((removed < least).all())):
        return []
    before, learned, length = subject.another_rate, trials.arms[FRESH], trials.length
    subject.takes_adam, subject.another_rate = True, RATE
    trials.run(FRESH)
    if bool(((with_adam := trials.removed()) >= LEARNS).any()):
        name, was = type(subject.optimizers[0]).__name__, max(0.0, float(removed.mean()))
        said = f"a fresh network removes {was:.0%} of the loss, and with Adam at {RATE:g}"
        return [f"optimizer: with a new {name} of these settings {said} {float(with_adam.mean()):.0%}"]
    subject.takes_adam, subject.another_rate = False, before
    trials.arms[FRESH], trials.length = learned, length
    return []


def _otherwise(judge: Judge) -> list[str]:
    """What it is about the optimizer: its rate, its state or both, if the network learns where only that is changed."""
    trials, subject, arm = judge.trials, judge.trials.subject, f"{AS_IT_IS}, but for one thing"
    if not subject.optimizers or subject.takes_adam:  # the latter is named already
        return []
    name, own, rate = type(subject.optimizers[0]).__name__, groups_of(subject.optimizers)[0]["lr"], trials.rate
    if not judge.falls_short():
        return [f"optimizer: with {name} at its learning rate of {float(own):g} it learns less than half"]
    state, can, was = f"the state of its {name}", judge.as_trained(NOW), judge.as_trained()
    at_rate = partial(set_rate_, rate=rate)
    tries: dict[str, list[Change]] = {
        f"learning rate: at {own:g} it learns {was}, and at {rate:g} with the same moments": [at_rate],
        f"optimizer: with {state} it learns {was}, and without it": [restart_],
        f"learning rate: at {own:g} and with {state} it learns {was}, and at {rate:g} without it": [at_rate, restart_],
    }
    for said, changes in tries.items():
        trials.run(arm, [replace(subject, changes=changes)], [1.0])
        now = judge.as_trained(arm)
        del trials.arms[arm]
        if now.low > was.high and now.mean > (was.mean + can.mean) / 2:
            return [f"{said} {now}"]
    return []


def _earlier(subject: Subject, earlier: nn.Module | Mapping[str, Tensor]) -> Subject:
    """The earlier network.

    Raises:
        SettingsError: its parameters have other names or shapes.
    """
    old, state = subject.copied(), unwrapped(earlier).state_dict() if isinstance(earlier, nn.Module) else earlier
    try:
        old.net.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise SettingsError(f"earlier does not fit the network: {one_line(str(error))}") from error
    return old


# --- what the report has ----------------------------------------------------------------------------------------------


def _protocol(trials: Trials) -> dict[str, Any]:
    """How the trials were made."""
    return {
        "repeats": len(trials.tasks),
        "updates": trials.length,
        "seed": trials.seed,
        "rates": ", ".join(f"{times * trials.rate:.3g}" for times in RATES),
        "targets": trials.tasks[0].name,
        "inputs": trials.source.bank and trials.source.bank.size,
    }


def _metrics(trials: Trials) -> list[Metrics]:
    """For each run the metrics that the network and a fresh one have; none if it cannot be looked into."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nets = (trials.subject.net, trials.fresh[0])
            measured = [Probe(net, trials.source.example).measure() for net in nets]
    except Exception:  # whatever a network may raise: it is judged all the same
        measured = [{}, {}]
    mine, fresh = ({name: value.flatten().tolist() for name, value in of_net.items()} for of_net in measured)
    every = range(math.prod(trials.subject.runs))
    return [{name: (mine[name][run], fresh[name][run]) for name in mine if name in fresh} for run in every]


def _symptoms(metrics: Metrics) -> Metrics:
    """Some of the metrics, and the dead units of the layer that has most of them."""
    names = [name for name in SYMPTOMS if name in metrics]
    if layers := [name for name in metrics if name.startswith("dead/")]:
        names.insert(1, max(layers, key=lambda name: metrics[name][0]))
    return {name: metrics[name] for name in names}


def _dead_layers(metrics: Metrics) -> list[str]:
    """Layers that are 0 everywhere, which those of fresh networks are not."""
    return [
        f"dead layer: every unit of {name.removeprefix('dormant/')!r} is 0 for every input, so no gradient passes"
        for name, (mine, fresh) in metrics.items()
        if name.startswith("dormant/") and fresh < mine == 1
    ]
