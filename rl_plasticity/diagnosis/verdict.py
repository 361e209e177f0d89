"""`diagnose`: a verdict by trial on whether a network has lost its plasticity."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis import checks
from rl_plasticity.diagnosis.probe import Probe
from rl_plasticity.diagnosis.remedies import REMEDIES, ranked, try_on_copies
from rl_plasticity.diagnosis.report import (
    AS_IT_IS,
    AS_LONG,
    EARLIER,
    FRESH,
    NOW,
    AgentReport,
    Estimate,
    Remedy,
    Report,
    Verdict,
)
from rl_plasticity.diagnosis.subject import RATE, Change, Subject, groups_of, restart_, set_rate_, subject_of
from rl_plasticity.diagnosis.tasks import Criterion, TaskSource
from rl_plasticity.diagnosis.trials import LEARNS, RATES, TIMES, Trials
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import Optimizers, TorchState
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import unwrapped

PLASTIC, LOST = 0.9, 0.5  # of what a fresh network learns, see docs/diagnose.md for how they were found
HALF_LEARNED, LOWER = 0.5, 0.1  # where a fresh network removes less than this part, this multiple of the rate is tried
TINY = 1 / 30  # where Adam's rate is less than this part of `RATE`, fresh networks learn at that
CLOSER = 0.8  # curves approach each other if the gap falls to this part of what it was after a third of the updates
MOST = 3  # times so many repeats, where they leave a verdict open
BAD: tuple[Verdict, ...] = ("losing", "lost")
SYMPTOMS = ("dead", "dormant", "saturated", "feature_rank", "weight_norm", "sigma1", "stable_rank")

Judged = tuple[Verdict, str, float | None]
"""The verdict on a run, the reason for it, and the smallest gap that would have been detected."""
Metrics = Mapping[str, Tensor]


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
    is the loss of a network that has learned nothing. The scores of drawn targets are averaged; with `loss` and
    `targets` those of the user's loss count alone.

    Trials take twice the updates after which a fresh network has removed 0.9 of the loss. They go on, three times as
    long each time and up to 2400 updates, while the network is behind and still catching up: a network that unlearns
    an old task first has not lost its plasticity. The verdict on the 95 % interval over the repeats:

    - ``plastic``: it lies above 0.9;
    - ``losing``: it lies below 0.9, or more than 0.1 below the earlier network, and the gap no longer closes;
    - ``lost``: the same, below 0.5;
    - ``something else``: it learns with a fresh optimizer in float32, but less than half as much as it is trained; or
      no network could learn these data, and nothing was tried. `causes` has the findings;
    - ``not detectable``: the interval contains 0.9; or the network is behind but still catches up at the end; or a
      fresh network hardly learns either. `smallest_gap` is the smallest gap that so many repeats would have shown.

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
        targets: the targets of `inputs`. A third kind of task draws new targets like them and learns them with `loss`.
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

        found = {}
        for name, (subject, task, findings) in of_model(net, env).items():
            (found[name],) = reports(subject, task, None, None, remedies, repeats, updates, seed, [findings])
        return AgentReport.of_networks(found)
    subject = subject_from(net, optimizer, make, drawn=batches is None)
    if subject.runs:
        raise SettingsError(f"a network of {[*subject.runs]} runs: rl_plasticity.diagnose FOLDER looks at each of them")
    if batches is None:
        source = TaskSource.of_inputs(inputs, subject.runs, loss, targets)
    elif inputs is not None or targets is not None:
        raise SettingsError("batches= stands in place of inputs and targets=: leave them out")
    else:
        source = TaskSource.of_batches(subject.copied().net, batches, loss)
    (report,) = reports(subject, source, earlier, max_grad_norm, remedies, repeats, updates, seed)
    return report


# --- what is learned --------------------------------------------------------------------------------------------------


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
        raise SettingsError(f"net must be a network, got {type(net).__name__}")
    inner = unwrapped(net)
    if not any(True for _ in inner.parameters()):
        raise SettingsError("nothing can be learned: the network has no parameters")
    optimizers = [] if optimizer is None else [*TorchState(inner, optimizer).optimizers]
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
    if unusable := checks.not_finite(subject.net) or checks.of_data(trials):
        return [Report("something else", f"{unusable[0]}: nothing else was tried", tuple(unusable)) for _ in every]
    causes = _let_arms_learn(trials, earlier)
    judged = _all_judged(trials, every)
    tried = try_on_copies(trials) if remedies and any(verdict in BAD for verdict, *_ in judged) else {}
    protocol = _protocol(trials) | {"not_applicable": [name for name in REMEDIES if tried and name not in tried]}
    mine, fresh = _metrics(trials)
    found = []
    for run, (verdict, why, gap) in enumerate(judged):
        said = [*beside[run], *causes]
        better: tuple[Remedy, ...] = ()
        if verdict in BAD:
            said += _dead_layers(mine, fresh, run)
            better = ranked(trials, tried, run)
        elif verdict == "plastic":
            verdict = "something else" if beside[run] else verdict
            said += _slow_start(trials, run)
        elif AS_LONG in trials.arms:
            name, rate = type(trials.subject.optimizers[0]).__name__, groups_of(trials.subject.optimizers)[0]["lr"]
            said.append(f"optimizer: {name} at its rate of {float(rate):g} learns less than half")
        numbers = *_numbers(trials, run), _symptoms(mine, fresh, run)
        found.append(Report(verdict, why, tuple(said), *numbers, better, gap, protocol))
    return found


def _let_arms_learn(trials: Trials, earlier: nn.Module | Mapping[str, Tensor] | None) -> list[str]:
    """Let every arm learn; returns what was found that keeps the network from learning."""
    subject = trials.subject
    hindrances = checks.of_updates(trials)
    halves = any(p.dtype in checks.HALF for p in subject.net.parameters())
    trials.keeps_own_rate = bool(subject.optimizers or hindrances or halves)
    causes = checks.learning_rate(subject.optimizers) + _let_fresh_learn(trials)
    trials.run(NOW, lambda r: subject)
    if trials.keeps_own_rate:
        trials.run(AS_IT_IS, lambda r: subject, [1.0])
        causes += hindrances + _otherwise(trials)
    if earlier is not None:
        old = _earlier(subject, earlier)
        trials.run(EARLIER, lambda r: old)
    return causes


def _let_fresh_learn(trials: Trials) -> list[str]:
    """Let fresh networks learn; at another learning rate if they learn nothing, or little, with the optimizer's own."""
    subject = trials.subject
    if subject.optimizers and subject.is_adam and subject.rate(trials.tasks[0][0]) < TINY * RATE:
        subject.another_rate = RATE
        trials.run(FRESH)
        if bool((trials.removed() >= HALF_LEARNED).any()):
            return []  # `_otherwise` finds out whether the network learns at its own rate
        subject.another_rate = None
    trials.run(FRESH)
    removed, rate = trials.removed(), subject.rate(trials.tasks[0][0])
    if rate < RATE / 3 and bool((removed.mean(0) < LEARNS).all()):
        cause = f"learning rate: with {rate:g} a fresh network learns nothing in so many updates either"
        subject.another_rate = RATE
    elif rate > RATE and bool((removed < HALF_LEARNED).any()):
        slower = "a fresh network at a lower rate"
        trials.run(slower, rates=[LOWER])
        lower = trials.removed(arm=slower)
        del trials.arms[slower]
        if not float((lower - removed).mean()) > HALF_LEARNED / 2:
            return []
        cause = (
            f"learning rate: with {rate:g} a fresh network removes {float(removed.mean()):.0%} of the loss, with a "
            f"tenth of that {float(lower.mean()):.0%}: it is too high"
        )
        subject.another_rate = LOWER * rate
    else:
        return []
    trials.run(FRESH)
    return [cause]


def _otherwise(trials: Trials) -> list[str]:
    """What it is about the optimizer: its rate, its state or both, if the network learns where only that is changed."""
    subject, arm = trials.subject, f"{AS_IT_IS}, but for one thing"
    if not subject.optimizers or not (short := _short_of(trials, 0, 1.0)):
        return []
    own, rate = groups_of(subject.optimizers)[0]["lr"], subject.rate(trials.tasks[0][trials.kinds.index(short[0])])
    state = f"the state of its {type(subject.optimizers[0]).__name__}"
    can, was = (_as_trained(trials, short[0], one, 0) for one in (NOW, AS_IT_IS))

    def helps(*changes: Change) -> Estimate | None:
        trials.run(arm, lambda r: replace(subject, changes=changes), [1.0])
        now = _as_trained(trials, short[0], arm, 0)
        del trials.arms[arm]
        return now if now.low > was.high and now.mean > (was.mean + can.mean) / 2 else None

    if now := helps(at_rate := partial(set_rate_, rate=rate)):
        return [f"learning rate: at {own:g} it learns {was}, at {rate:g} with the same moments {now}"]
    if now := helps(restart_):
        return [f"optimizer: with {state} it learns {was}, without {now}"]
    if now := helps(at_rate, restart_):
        return [f"learning rate: at {own:g} and with {state} it learns {was}, at {rate:g} without {now}"]
    return []


def _short_of(trials: Trials, run: int, best: float) -> list[str]:
    """The kinds of targets of which the network learns less than half as it is trained, although it could.

    Args:
        best: what it learned of all targets, at the best rate.
    """
    found = []
    for kind in trials.arms[AS_IT_IS].curves if AS_IT_IS in trials.arms else ():
        can, own = (_as_trained(trials, kind, arm, run) for arm in (NOW, AS_IT_IS))
        if max(can.mean, best) >= LOST and own.high < min(can.mean / 2, can.low):
            found.append(kind)
    return found


def _needs_another_rate(trials: Trials, run: int) -> Estimate | None:
    """What a network learned as it is trained, in all updates, of what a fresh one learns at that rate, if below half.

    It is that of the kind of targets of which it learned most; None if that is half or more.
    """
    for arm in (AS_IT_IS, AS_LONG) if trials.subject.optimizers and AS_IT_IS in trials.arms else ():
        if arm not in trials.arms:
            trials.run(arm, lambda r: trials.subject, [1.0])
        own = max(_estimate(trials.score(kind, arm, 1.0), run) for kind in trials.arms[arm].curves)
        if own.high >= LOST:
            return None
        if arm == AS_LONG:
            return own
    return None


def _as_trained(trials: Trials, kind: str, arm: str, run: int) -> Estimate:
    """What an arm learned at the first rate."""
    return _estimate(trials.score(kind, arm, 1.0, trials.first[kind]), run)


def _earlier(subject: Subject, earlier: nn.Module | Mapping[str, Tensor]) -> Subject:
    """The earlier network.

    Raises:
        SettingsError: its parameters have other names or shapes.
    """
    old, state = subject.copied(), unwrapped(earlier).state_dict() if isinstance(earlier, nn.Module) else earlier
    try:
        old.net.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise SettingsError(f"earlier does not fit the network: {' '.join(str(error).split())}") from error
    return old


def _estimate(values: Tensor, run: int) -> Estimate:
    """One run of ``[repeats, runs]``."""
    return Estimate.of(values[:, run].tolist())


def _all_judged(trials: Trials, every: range) -> list[Judged]:
    """The verdict on each run. Trials go on, and further repeats are drawn, while one is open that they may settle."""
    first = len(trials.tasks)
    while True:
        judged = [_judged(trials, run) for run in every]
        if any(one is None for one in judged) and trials.go_on([a for a in (FRESH, NOW, EARLIER) if a in trials.arms]):
            continue
        decided = [one or _open(trials, run) for run, one in enumerate(judged)]
        is_open = any(verdict == "not detectable" and gap is not None for verdict, _, gap in decided)
        if not is_open or None in judged or len(trials.tasks) >= MOST * first:
            return decided
        trials.draw(first)


def _judged(trials: Trials, run: int) -> Judged | None:
    """The verdict on a run; None where the network is behind, but may catch up if the trials go on."""
    if (removed := float(trials.removed()[:, run].amax())) < LEARNS:
        why = f"a fresh network removed only {removed:.0%} of the loss itself: give more updates, or another rate"
        return "not detectable", why, None
    score, gap, says = _said(trials, run)
    for kind in _short_of(trials, run, score.mean):
        own = _as_trained(trials, kind, AS_IT_IS, run)
        return "something else", f"{says}; as it is trained it learns only {own} of the task {kind!r}", gap
    if score.low >= LOST and checks.learning_rate(trials.subject.optimizers):
        return "something else", f"{says}; its learning rate is gone", gap
    behind = _behind(trials, run)
    if any(now.low > 1 - PLASTIC for now, _ in behind) and (
        trials.is_first or any(now.mean < CLOSER * before.mean for now, before in behind if now.low > 1 - PLASTIC)
    ):
        return None
    if score.high < PLASTIC:
        return _bad(trials, run)
    for fell, _ in behind[1:]:
        if fell.low > 1 - PLASTIC:
            return "losing", f"{says}; this is {fell} less than earlier, compared repeat by repeat", gap
    if score.low >= PLASTIC:
        if alone := _needs_another_rate(trials, run):
            return "something else", f"{says} at a higher rate; as it is trained it learns only {alone}", gap
        return "plastic", says, gap
    return "not detectable", f"{says}; so many repeats show only what is more than {gap:.2f} missing", gap


def _open(trials: Trials, run: int) -> Judged:
    """The verdict on a run that is behind when the trials are over: bad unless it would soon have caught up."""
    _, gap, says = _said(trials, run)
    behind = [(now, before) for now, before in _behind(trials, run) if now.low > 1 - PLASTIC]
    # In three times as many updates the gap would shrink by as much again.
    if all(now.mean**2 <= (1 - PLASTIC) * before.mean for now, before in behind):
        return "not detectable", f"{says}, and still catches up: give more updates", gap
    return _bad(trials, run)


def _bad(trials: Trials, run: int) -> Judged:
    """The verdict on a run that is behind, unless it learns one kind of drawn targets as a fresh network does."""
    score, gap, says = _said(trials, run)
    of_kinds = {kind: _estimate(trials.score(kind, NOW), run) for kind in trials.kinds}
    if equal := [kind for kind, one in of_kinds.items() if one.high >= PLASTIC and len(of_kinds) > 1]:
        return "not detectable", f"{says}, but all of the targets {equal[0]!r}: your next task decides, batches=", None
    return "lost" if score.high < LOST else "losing", says, gap


def _said(trials: Trials, run: int) -> tuple[Estimate, float, str]:
    """The score, the smallest gap that would have been detected, and a clause that states the score."""
    score = _estimate(trials.scores(NOW), run)
    gap = 1 - PLASTIC + (score.high - score.low) / 2
    return score, gap, f"with a fresh optimizer it learns {score} of what a fresh network learns"


def _behind(trials: Trials, run: int) -> list[tuple[Estimate, Estimate]]:
    """How far it is behind a fresh network, and an earlier one: at the end, and after a third of the updates."""
    of = [[trials.scores(arm, part, -1e3) for part in (1.0, 1 / TIMES)] for arm in (NOW, EARLIER) if arm in trials.arms]
    now, *earlier = of
    others = [[torch.ones_like(now[0])] * 2, *earlier]
    return [tuple(_estimate(o - n, run) for o, n in zip(other, now, strict=True)) for other in others]  # type: ignore[misc]


# --- what the report has ----------------------------------------------------------------------------------------------


def _numbers(trials: Trials, run: int) -> tuple[dict[str, Estimate], dict[str, float]]:
    """What each arm learned, over all targets and for each kind, and its mean losses at the end."""
    evidence: dict[str, Estimate] = {}
    arms = [arm for arm in (NOW, AS_IT_IS, EARLIER) if arm in trials.arms]
    for arm in arms:
        evidence[arm] = _estimate(trials.scores(arm), run)
        evidence |= {f"{arm}/{kind}": _estimate(trials.score(kind, arm), run) for kind in trials.arms[arm].curves}
    learned = [(arm, kind) for arm in (*arms, FRESH) for kind in trials.arms[arm].curves]
    return evidence, {f"{arm}/{kind}": float(trials.loss(kind, arm)[:, run].mean()) for arm, kind in learned}


def _protocol(trials: Trials) -> dict[str, Any]:
    """How the trials were made."""
    rates = dict.fromkeys(f"{t * trials.subject.rate(task):.3g}" for task in trials.tasks[0] for t in RATES)
    return {
        "repeats": len(trials.tasks),
        "updates": trials.lengths,
        "seed": trials.seed,
        "rates": ", ".join(rates),
        "targets": trials.kinds,
        "inputs": trials.source.bank and trials.source.bank.size,
    }


def _slow_start(trials: Trials, run: int) -> list[str]:
    """A network that ends well but was far behind a fresh one after a third of the updates: it unlearned first."""
    early = float(trials.scores(NOW, 1 / TIMES)[:, run].mean())
    if early >= PLASTIC:
        return []
    updates = max(trials.lengths.values())
    return [
        f"slow start: after {updates // TIMES} of {updates} updates it had learned {early:.2f} of what a fresh one had"
    ]


def _metrics(trials: Trials) -> tuple[Metrics, Metrics]:
    """Metrics of the network and of a fresh one, each ``[*runs]``, that both have; none if it cannot be looked into."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nets = (trials.subject.net, trials.fresh[0])
            mine, fresh = (Probe(net, trials.source.example).measure() for net in nets)
    except Exception:  # whatever a network may raise: it is judged all the same
        return {}, {}
    return {name: value for name, value in mine.items() if name in fresh}, fresh


def _symptoms(mine: Metrics, fresh: Metrics, run: int) -> dict[str, tuple[float, float]]:
    """Some of the metrics, and the dead units of the layer that has most of them in all runs."""
    names = [name for name in SYMPTOMS if name in mine]
    if layers := [name for name in mine if name.startswith("dead/")]:
        names.insert(1, max(layers, key=lambda name: float(mine[name].mean())))
    return {name: (float(mine[name].reshape(-1)[run]), float(fresh[name].reshape(-1)[run])) for name in names}


def _dead_layers(mine: Metrics, fresh: Metrics, run: int) -> list[str]:
    """Layers without a living unit, of which fresh networks have some."""
    return [
        f"dead layer: every unit of {name.removeprefix('dead/')!r} is 0 for every input, so no gradient passes"
        for name, value in mine.items()
        if name.startswith("dead/") and float((value * (fresh[name] < 1)).reshape(-1)[run]) == 1
    ]
