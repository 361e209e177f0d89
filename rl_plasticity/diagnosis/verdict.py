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
from rl_plasticity.diagnosis.remedies import ATTACHED, REMEDIES
from rl_plasticity.diagnosis.report import AS_IT_IS, EARLIER, FRESH, LONGER, NOW, Estimate, Remedy, Report, Verdict
from rl_plasticity.diagnosis.trainability import (
    HALF,
    RATE,
    UPDATES,
    Bank,
    Criterion,
    Data,
    Subject,
    learn,
    outputs_of,
)
from rl_plasticity.diagnosis.trials import LEARNS, RATES, Trials, longer_trials
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.attached import attach
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import Optimizers, TorchState
from rl_plasticity.seeding import derive, random_states_kept
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import unwrapped

PLASTIC, LOST = 0.9, 0.5  # of what a fresh network learns, see docs/diagnose.md for how they were found
FIRST = 20  # updates whose gradients are checked one by one
LONG = 60  # seconds from which the time is said before the trials start
HALF_LEARNED, LOWER = 0.5, 0.1  # where a fresh network removes less than this share, this multiple of the rate is tried
SLOW = 1.5  # a start is slow with this many times a fresh network's loss
FEW = 3  # repeats of longer trials
MOST = 3  # times so many, where those leave a verdict open
BAD: tuple[Verdict, ...] = ("losing", "lost")
SYMPTOMS = ("dead", "dormant", "saturated", "feature_rank", "weight_norm", "sigma1", "stable_rank")


def diagnose(
    net: nn.Module,
    inputs: Example | None = None,
    *,
    loss: Criterion | None = None,
    targets: Any = None,
    batches: Sequence[Any] | None = None,
    make: Callable[[], nn.Module] | None = None,
    optimizer: Optimizers | None = None,
    earlier: nn.Module | Mapping[str, Tensor] | None = None,
    max_grad_norm: float | None = None,
    remedies: bool = True,
    repeats: int = 5,
    updates: int | None = None,
    seed: int = 0,
) -> Report:
    """Find out whether a network still learns as a fresh one does, by letting copies of both learn the same tasks::

        print(diagnose(net, batches=next_batches, loss=loss, make=make_net))   # on your own next task
        print(diagnose(net, x))                                               # on targets that are drawn
        print(diagnose(net, x, loss=F.cross_entropy, targets=y, optimizer=optimizer))

    The score of a network is (L_0 - L) / (L_0 - L_fresh): what it removed of the loss, as a share of what a fresh
    network removed. L is the mean loss over the last tenth of the updates, at the best of several learning rates. L_0
    is the loss of a network that has learned nothing. The scores of the drawn targets are averaged. With the user's own
    loss, the score is the smaller one of that mean and the score of the user's loss.

    Drawn targets are learned in two kinds of trials. The short ones have 256 inputs and 100 updates. The longer ones
    have up to 1024 inputs, the user's loss alone where it is given, and twice the updates after which a fresh network
    has removed 0.9 of the loss, 2400 at most. So a network that only has to unlearn more is not taken for a lost one.
    The verdict on the 95 % interval over the repeats of the longer trials (of the only ones with `updates` or
    `batches`):

    - ``plastic``: it lies above 0.9;
    - ``losing``: it lies below 0.9, or more than 0.1 below the earlier network in the short trials;
    - ``lost``: it lies below 0.9, and that of the short or the longer trials below 0.5;
    - ``something else``: it learns with a fresh optimizer in float32, but less than half as much as it is trained; or
      values are not finite, or targets are constant. `causes` has the findings;
    - ``not detectable``: the interval contains 0.9, or a fresh network hardly learns either. `smallest_gap` is the
      smallest gap that this number of repeats would have shown.

    The network, its optimizer, modes, gradients and all global random states do not change. Copies learn without an
    attached regularizer.

    Source: the comparison with a fresh network on the same task is Ash and Adams (2020) and Berariu et al. (2021); the
    drawn targets follow Lyle et al. (2022, 2023), but keep what the network computes, so that nothing has to be
    unlearned. Thresholds: docs/diagnose.md.

    Args:
        net: any network. A `Learner` stands for its network, and makes the new weights.
        inputs: a fixed batch: a tensor, a tuple (``net(*inputs)``) or a dict (``net(**inputs)``), with at least 4 times
            as many rows as the network has outputs. At most 256 rows are used.
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
        repeats: number of draws of fresh weights, targets and order; 3 of them in longer trials. As many are added,
            twice at most, where the interval leaves the verdict open.
        updates: updates of each trial. Then there are no longer trials. With `batches` it is by default 100, or the
            number of batches if that is larger.
        seed: seed of all draws.

    Raises:
        SettingsError: a network without parameters, inputs that do not fit it or are too few, a `make` that returns a
            network of another shape, or arguments that do not go together.
    """
    if repeats < 2:
        raise SettingsError(f"repeats must be at least 2 for an interval, got {repeats}")
    if updates is not None and updates < 10:
        raise SettingsError(f"updates must be at least 10, got {updates}")
    subject = _subject(net, optimizer, make, drawn=batches is None)
    if subject.runs:
        raise SettingsError(f"a network of {[*subject.runs]} runs: rl_plasticity.diagnose FOLDER looks at each of them")
    data = Data.of(subject.copied().net, inputs, loss, targets, batches)
    chosen = updates if batches is None else updates or max(100, len(batches))
    (report,) = reports(subject, data, earlier, max_grad_norm, remedies, repeats, chosen, seed)
    return report


# --- what is learned --------------------------------------------------------------------------------------------------


def _subject(
    net: nn.Module, optimizer: Optimizers | None, make: Callable[[], nn.Module] | None, drawn: bool
) -> Subject:
    """The network, with a function that makes one like it.

    Raises:
        SettingsError: `net` is no network with parameters.
    """
    if isinstance(net, Learner):
        learner, net = net, net.net
        make = make or learner.fresh
    if not isinstance(net, nn.Module):
        raise SettingsError(f"net must be a network, got {type(net).__name__}")
    if isinstance(make, nn.Module):
        raise SettingsError(f"make= must be a function that returns a new network, got a {type(make).__name__}")
    inner = unwrapped(net)
    if not any(True for _ in inner.parameters()):
        raise SettingsError("nothing can be learned: the network has no parameters")
    optimizers = [] if optimizer is None else [*TorchState(inner, optimizer).optimizers]
    plain = PlainNet(inner, (), make, None, None, ())
    return Subject(inner, optimizers, plain.fresh, without_dropout=drawn)


# --- what follows from it ---------------------------------------------------------------------------------------------


def reports(
    subject: Subject,
    data: Data,
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
        updates: updates of each trial; None: `UPDATES`, and longer trials of drawn targets, which decide.
        beside: further findings for each run, which explain why it does not learn although nothing is lost.
    """
    every = math.prod(subject.runs)
    decided = checks.not_finite(subject.net) or checks.constant(data.given_targets)
    if decided:
        return [Report("something else", f"{decided[0]}: nothing else was tried", tuple(decided))] * every
    longer_data = data.longer() if updates is None else None
    trials = Trials(subject, data, repeats, updates or UPDATES, clip, seed)
    causes = checks.learning_rate(subject.optimizers)
    known = bool(subject.optimizers) or any(not p.requires_grad or p.dtype in HALF for p in subject.net.parameters())
    _let_fresh_learn(trials, causes)
    trials.run(NOW, lambda r: subject, RATES)
    if known:
        trials.run(AS_IT_IS, lambda r: subject, RATES[:1])
        causes += _hindrances(trials)
    if earlier is not None:
        old = _earlier(subject, earlier)
        trials.run(EARLIER, lambda r: old, RATES)
    longer = longer_trials(trials, longer_data, min(repeats, FEW)) if longer_data else None
    judged = [_judged(trials, run, longer) for run in range(every)]
    more = longer or trials
    first = len(more.tasks)
    while len(more.tasks) < MOST * first and any(map(_undecided, judged)):
        more.draw(first)
        judged = [_judged(trials, run, longer) for run in range(every)]
    tried = _tried(trials, data) if remedies and any(verdict in BAD for verdict, *_ in judged) else {}
    protocol = _protocol(trials, data, tried) | ({} if longer is None else _protocol_of_longer(longer))
    symptoms, dead_layers = _symptoms(trials, data)
    found = []
    for run, (verdict, why, gap) in enumerate(judged):
        known_of_run = beside[run] if beside else ()
        if known_of_run and verdict == "plastic":
            verdict = "something else"
        said = (*known_of_run, *causes, *_slow_start(trials, run, verdict))
        if verdict in BAD:
            said += tuple(
                f"dead layer: every unit of {layer!r} is 0 for every input, so no gradient passes"
                for layer, share in dead_layers.items()
                if float(share.reshape(-1)[run]) == 1
            )
        better = _ranked(trials, tried, run) if verdict in BAD else ()
        of_run = {name: (float(a.reshape(-1)[run]), float(b.reshape(-1)[run])) for name, (a, b) in symptoms.items()}
        numbers = _numbers(trials, run, longer)
        found.append(Report(verdict, why, said, *numbers, of_run, better, gap, protocol))
    return found


def _protocol(trials: Trials, data: Data, tried: Mapping[str, Tensor | None]) -> dict[str, Any]:
    """How the trials were made, as the report has it."""
    rates = dict.fromkeys(f"{t * trials.subject.rate(task):.3g}" for task in trials.tasks[0] for t in RATES)
    return {
        "repeats": len(trials.tasks),
        "updates": trials.tasks[0][0].updates,
        "seed": trials.seed,
        "rates": ", ".join(rates),
        "targets": trials.kinds,
        "inputs": None if data.bank is None else data.bank.size,
        "not_applicable": [name for name in (*REMEDIES, *ATTACHED) if tried and name not in tried],
    }


def _protocol_of_longer(longer: Trials) -> dict[str, Any]:
    """How the longer trials were made."""
    bank = longer.data.bank
    updates = [longer.limits.get(kind, longer.updates) for kind in longer.kinds]
    return {
        "longer_repeats": len(longer.tasks),
        "longer_updates": dict(zip(longer.kinds, updates, strict=True)),
        "longer_inputs": None if bank is None else bank.size,
    }


def _numbers(trials: Trials, run: int, longer: Trials | None) -> tuple[dict[str, Estimate], dict[str, float]]:
    """What each arm learned, over all targets and for each kind, and its mean losses at the end."""
    shown = [arm for arm in (NOW, AS_IT_IS, EARLIER) if arm in trials.arms]
    evidence = {arm: _estimate(trials.shares(arm), run) for arm in shown}
    pairs = [(k, arm) for arm in (*shown, FRESH) for k in trials.kinds if (k, arm) in trials.curves]
    evidence |= {f"{arm}/{k}": _estimate(trials.share(k, arm), run) for k, arm in pairs if arm != FRESH}
    if longer is not None:
        evidence[LONGER] = _estimate(longer.shares(NOW), run)
        evidence |= {f"{LONGER}/{k}": _estimate(longer.share(k, NOW), run) for k in longer.kinds}
    return evidence, {f"{arm}/{k}": float(trials.end(k, arm)[:, run].mean()) for k, arm in pairs}


def _let_fresh_learn(trials: Trials, causes: list[str]) -> None:
    """Let fresh networks learn; with Adam's usual learning rate if they learn nothing with the optimizer's own."""
    subject = trials.subject
    trials.run_fresh(RATES)
    rate = subject.rate(trials.tasks[0][0])
    removed = trials.removed_by_fresh()
    least = removed.mean(0) if rate > RATE / 100 else removed.amin(0)  # a tiny rate may fit the easiest alone
    if rate < RATE / 3 and bool((least < LEARNS).all()):
        causes.append(f"learning rate: with {rate:g} a fresh network learns nothing in so many updates either")
        subject.raised = True
        trials.run_fresh(RATES)
    elif rate > RATE and bool((removed < HALF_LEARNED).any()):
        slower = "a fresh network at a lower rate"
        trials.run(slower, lambda r: subject.copied(trials.fresh[r]), [LOWER])
        lower = trials.removed_by(slower)
        trials.leave_out(slower)
        if float((lower - removed).mean()) > HALF_LEARNED / 2:
            causes.append(
                f"learning rate: with {rate:g} a fresh network removes {float(removed.mean()):.0%} of the loss, with a "
                f"tenth of that {float(lower.mean()):.0%}: it is too high"
            )
            subject.lowered = LOWER
            trials.run_fresh(RATES)


def _estimate(values: Tensor, run: int) -> Estimate:
    """One run of ``[repeats, runs]``."""
    return Estimate.of(values[:, run].tolist())


def _judged(trials: Trials, run: int, longer: Trials | None = None) -> tuple[Verdict, str, float | None]:
    """The verdict on a run, the reason for it, and the smallest gap that would have been seen."""
    most = [(float(made.removed_by_fresh()[:, run].amax()), made) for made in (longer, trials) if made is not None]
    removed, learned = most[0] if most[0][0] >= LEARNS else most[-1]
    if not removed >= LEARNS:
        why = f"a fresh network removed only {removed:.0%} of the loss itself: give more updates, or another rate"
        return "not detectable", why, None
    now, decides = _estimate(trials.shares(NOW), run), _estimate(learned.shares(NOW), run)
    gap = 1 - PLASTIC + (decides.high - decides.low) / 2
    says = f"with a fresh optimizer it learns {now} of what a fresh network learns"
    if AS_IT_IS in trials.arms:
        for kind in (k for k in trials.kinds if (k, AS_IT_IS) in trials.curves):
            can, own = (_estimate(trials.share(kind, arm, 0), run) for arm in (NOW, AS_IT_IS))
            can_learn = max(can.mean / LOST, decides.low / PLASTIC) >= 1
            if can_learn and own.high < min(can.mean / 2, can.low):
                alone = f"as it is trained it learns only {own} of the task {kind!r}, at its own learning rate"
                return "something else", f"{says}; {alone}", gap
    if now.low >= LOST and checks.learning_rate(trials.subject.optimizers):
        return "something else", f"{says}; its learning rate is gone", gap
    if learned is longer:
        says = f"{says} in {trials.updates} updates, and {decides} in a longer trial"
    if decides.high < PLASTIC:
        return "lost" if min(now.high, decides.high) < LOST else "losing", says, gap
    if EARLIER in trials.arms:
        fell = _estimate(trials.shares(EARLIER) - trials.shares(NOW), run)
        if fell.low > 1 - PLASTIC:
            return "losing", f"{says}; this is {fell} less than earlier, compared repeat by repeat", gap
    if decides.low >= PLASTIC:
        return "plastic", says, gap
    return "not detectable", f"{says}; so many repeats show only what is more than {gap:.2f} missing", gap


def _undecided(judged: tuple[Verdict, str, float | None]) -> bool:
    """Whether more repeats may still bring a verdict."""
    verdict, _, gap = judged
    return verdict == "not detectable" and gap is not None


def _hindrances(trials: Trials) -> list[str]:
    """What keeps the network from learning as it is trained."""
    subject = trials.subject
    found = checks.frozen(subject.net) + checks.not_held(subject.net, subject.optimizers)
    task = trials.tasks[0][-1]
    first: dict[str, Tensor] = {}  # the gradients of the first update
    norms: list[float] = []  # those of the whole gradient, of each update

    def look() -> None:
        gradients = {name: p.grad.detach().clone() for name, p in net.named_parameters() if p.grad is not None}
        first.update({} if first else gradients)
        norms.append(float(torch.stack([g.float().norm() for g in gradients.values()]).norm()))

    with random_states_kept(subject.net):
        net, optimizers = subject.as_it_is(task)
        loss, updates = task.begin(net), min(FIRST, task.updates)
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        learn(net, optimizers, loss, updates, derive(trials.seed, 0, 2), trials.clip, look)
    found += checks.does_not_move(net, before)
    found += checks.clipped(norms, trials.clip)
    if task.with_users_loss:  # drawn targets have gradients of another size than those that were remembered
        found += checks.stale_moments(subject.net, subject.optimizers, first)
    return found


def _earlier(subject: Subject, earlier: nn.Module | Mapping[str, Tensor]) -> Subject:
    """The earlier network.

    Raises:
        SettingsError: its parameters have other names or shapes.
    """
    if isinstance(earlier, nn.Module):
        earlier = unwrapped(earlier).state_dict()
    elif not isinstance(earlier, Mapping):
        raise SettingsError(f"earlier must be a network or its state_dict, got {type(earlier).__name__}")
    old = subject.copied()
    try:
        old.net.load_state_dict(earlier)
    except RuntimeError as error:
        raise SettingsError(f"earlier does not fit the network: {' '.join(str(error).split())}") from error
    return old


def _tried(trials: Trials, data: Data) -> dict[str, Tensor | None]:
    """Let copies learn after each remedy; returns how far each remedy changed the outputs, ``[*runs]``, by name."""
    subject = trials.subject
    tried: dict[str, Tensor | None] = {}
    times = RATES[trials.best_of_fresh()]
    for name, change in REMEDIES.items():
        changed = []
        try:
            with random_states_kept(subject.net), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for r, fresh in enumerate(trials.fresh):
                    torch.manual_seed(derive(trials.seed, r, 3))
                    changed.append(subject.copied())
                    change(changed[-1].net, fresh, data.example)
        except Exception:  # whatever keeps it from being applied to such a network: it is left out
            continue
        trials.run(name, changed.__getitem__, [times])
        tried[name] = None if data.bank is None else _changes(subject.copied().net, changed[0].net, data.bank)
    for name, (regularizer, coef) in ATTACHED.items():
        held = replace(subject, attach=partial(attach, regularizer, coef=coef, example=data.example))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trials.run(name, lambda r, held=held: held, [times])  # type: ignore[misc]
        except ValueError:  # the network has nothing that it can act on
            trials.leave_out(name)
            continue
        tried[name] = None if data.bank is None else torch.zeros(subject.runs)
    return tried


@torch.no_grad()
def _changes(net: nn.Module, changed: nn.Module, bank: Bank) -> Tensor:
    """||f'(x) - f(x)||_F / ||f(x) - mean f(x)||_F over the inputs, ``[*runs]``."""
    before, after = (outputs_of(one, bank)[1] for one in (net, changed))
    spread = torch.linalg.matrix_norm(before - before.mean(bank.axis, keepdim=True))
    moved = torch.linalg.matrix_norm(after - before)
    return torch.where(moved > 0, moved / spread, torch.zeros_like(moved))


def _ranked(trials: Trials, tried: Mapping[str, Tensor | None], run: int) -> tuple[Remedy, ...]:
    now = _estimate(trials.shares(NOW), run).mean
    found = []
    for name, changes in tried.items():
        learned = _estimate(trials.shares(name), run)
        closes = (learned.mean - now) / (1 - now)
        found.append(Remedy(name, learned, closes, None if changes is None else float(changes.reshape(-1)[run])))
    return tuple(sorted(found, key=lambda r: -r.learned.mean))


def _slow_start(trials: Trials, run: int, verdict: Verdict) -> list[str]:
    """A network that ends well but begins far behind a fresh one, because it unlearns first."""
    if verdict != "plastic":
        return []
    begins = [[float(trials.begin(k, arm)[:, run].mean()) for arm in (NOW, FRESH)] for k in trials.kinds]
    worst = max(now / fresh for now, fresh in begins)
    if worst < SLOW:
        return []
    return [f"slow start: over the first fifth of the updates its loss is {worst:.1f} times a fresh network's"]


def _symptoms(trials: Trials, data: Data) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Metrics of the network and of a fresh one, ``[*runs]``, and the network's share of dead units by layer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine, theirs = (Probe(net, data.example).measure() for net in (trials.subject.net, trials.fresh[0]))
    except Exception:  # a network that cannot be looked into is judged all the same
        return {}, {}
    both = {name: (mine[name], theirs[name]) for name in SYMPTOMS if name in mine and name in theirs}
    layers = [name for name in mine if name.startswith("dead/") and name in theirs]
    if layers:
        worst = max(layers, key=lambda name: float(mine[name].mean()))
        both = {"dead": both.pop("dead"), worst: (mine[worst], theirs[worst])} | both
    return both, {name.removeprefix("dead/"): mine[name] * (theirs[name] < 1) for name in layers}
