"""Whether a network has lost its plasticity, by trial: `diagnose`."""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from rl_plasticity.diagnosis import checks
from rl_plasticity.diagnosis.probe import Probe
from rl_plasticity.diagnosis.remedies import REMEDIES
from rl_plasticity.diagnosis.trainability import (
    BANK,
    HALF,
    RATE,
    UPDATES,
    Bank,
    Criterion,
    Steps,
    Subject,
    Task,
    at_end,
    drawn_tasks,
    learn,
    of_batch,
    outputs_of,
    own_batches,
    share,
)
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.torch_state import Optimizers, TorchState
from rl_plasticity.seeding import derive, random_states_kept
from rl_plasticity.structure import Example
from rl_plasticity.structure.layer import runs_of, unwrapped

Verdict = Literal["plastic", "losing", "lost", "something else", "not detectable"]

PLASTIC, LOST = 0.9, 0.5  # of what a fresh network learns, see docs/diagnose.md for how they were found
LEARNS = 0.1  # the share of the loss that a fresh network has to remove before anything is compared with it
RATES = (1.0, 3.0)  # times the learning rate: no arm loses by its rate
FIRST = 20  # updates that are looked at one by one
SLOW = 1.5  # times a fresh network's loss at the beginning
SYMPTOMS = ("dead", "dormant", "saturated", "feature_rank", "weight_norm", "sigma1", "stable_rank")
FRESH, NOW, AS_IT_IS, EARLIER = "a fresh network", "your network", "as it is trained", "the earlier one"
# Student's t at 0.975 for 1, 2, ... degrees of freedom; behind the last the normal distribution's is near enough.
STUDENT: tuple[float, ...] = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
STUDENT += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


class Estimate(NamedTuple):
    """The mean of the repeats, and the ends of its 95 % interval (Student's)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        mean = sum(values) / len(values)
        if len(values) < 2:
            return cls(mean, -math.inf, math.inf)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
        t = STUDENT[len(values) - 2] if len(values) - 2 < len(STUDENT) else 1.96
        half = t * deviation / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Remedy(NamedTuple):
    """What a remedy, applied to a copy, brought.

    Args:
        learned: what the copy then learned, as a share of what a fresh network learns.
        closes: the share of the gap between the network and a fresh one that it closed.
        changes: how far it moved the outputs on the inputs, as a share of their spread; None where they are not known.
    """

    name: str
    learned: Estimate
    closes: float
    changes: float | None


@dataclass(frozen=True)
class Report:
    """What `diagnose` found.

    Args:
        verdict: "plastic", "losing", "lost", "something else" or "not detectable".
        why: a sentence that says what the verdict rests on.
        causes: what was found beside the trials, each a sentence that begins with the name of the check.
        evidence: what each arm learned as a share of what a fresh network learns, by arm and by ``arm/targets``.
        losses: each arm's mean loss at the end, by ``arm/targets``.
        symptoms: metrics of the network and of a fresh one; they explain, and decide nothing.
        remedies: what was tried on copies, the best first.
        smallest_gap: the smallest missing share that so many repeats would have shown.
        protocol: how many inputs, repeats and updates, which targets and learning rates.
    """

    verdict: Verdict
    why: str
    causes: tuple[str, ...] = ()
    evidence: Mapping[str, Estimate] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    symptoms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    smallest_gap: float | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """All of it as JSON; numbers that are not finite are null."""

        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return value if math.isfinite(value) else None
            if hasattr(value, "_asdict"):
                value = value._asdict()
            if isinstance(value, Mapping):
                return {key: plain(one) for key, one in value.items()}
            return [plain(one) for one in value] if isinstance(value, list | tuple) else value

        return json.dumps(plain(vars(self)), indent=2)

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", f"  {self.why}"]
        lines += [f"  {cause}" for cause in self.causes]
        arms = [name for name in self.evidence if "/" not in name]
        kinds = list(dict.fromkeys(name.partition("/")[2] for name in self.losses))
        if arms:
            lines += ["", f"{'what it learned of what a fresh network learns':<48}{''.join(f'{k:>9}' for k in kinds)}"]
            for arm in arms:
                means = [self.evidence.get(f"{arm}/{k}") for k in kinds]
                each = "".join(" " * 9 if e is None else f"{e.mean:>9.2f}" for e in means)
                lines.append(f"  {arm:<22}{self.evidence[arm]!s:<24}{each}")
        if self.protocol:
            p = self.protocol
            lines.append(f"  ({p['repeats']} repeats of {p['updates']} updates, learning rates {p['rates']})")
        if self.remedies:
            lines += ["", f"{'tried on copies':<24}{'learned then':<24}{'closes':>8}{'changes outputs':>17}"]
            for r in self.remedies:
                changes = "" if r.changes is None else f"{r.changes:.0%}" if r.changes < 10 else "> 1000%"
                lines.append(f"  {r.name:<22}{r.learned!s:<24}{r.closes:>8.0%}{changes:>17}")
        if self.symptoms:
            lines += ["", f"{'symptoms, which decide nothing':<34}{'yours':>10}{'fresh':>10}"]
            lines += [f"  {name:<32}{mine:>10.3g}{fresh:>10.3g}" for name, (mine, fresh) in self.symptoms.items()]
        return "\n".join(lines)


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
    """Whether a network can still learn as a fresh one does, found by letting copies of both learn the same tasks::

        print(diagnose(net, batches=next_batches, loss=loss, make=make_net))   # on your own next task
        print(diagnose(net, x))                                               # on targets that are drawn
        print(diagnose(net, x, loss=F.cross_entropy, targets=y, optimizer=optimizer))

    The score of an arm is (L_0 - L) / (L_0 - L_fresh), the part it removed of the loss that a fresh network removed,
    from the mean loss L of the last tenth of the updates; L_0 is the loss of a network that has learned nothing. It is
    the mean over the kinds of targets, each at the better of two learning rates. The verdict:

    - ``plastic``: the 95 % interval over the repeats lies above 0.9;
    - ``lost``: below 0.5; ``losing``: below 0.9, or more than 0.1 below the earlier network;
    - ``something else``: it learns with a fresh optimizer in float32, and as it is trained not half of that; or values
      are not finite, or targets constant; `causes` says what was found;
    - ``not detectable``: the interval holds 0.9, or a fresh network hardly learns either; `smallest_gap` says what so
      many repeats would have shown.

    The network, its optimizer, modes, gradients and all global random states stay as they are. Copies learn without a
    regularizer that is attached.

    Source: the comparison with a fresh network on the same task is Ash and Adams (2020) and Berariu et al. (2021); the
    drawn targets follow Lyle et al. (2022, 2023), but keep what the network computes, so that nothing has to be
    unlearned. Thresholds: docs/diagnose.md.

    Args:
        net: any network; of a `Learner` its network, with new weights from the learner.
        inputs: a fixed batch that it reads, a tensor, a tuple (``net(*inputs)``) or a dict (``net(**inputs)``); at
            least 4 times as many rows as outputs. At most 256 are used.
        loss: with `targets` or `batches` ``loss(output, targets)``, a mean over the batch; ``loss(output)`` for
            batches that are a dict or a tensor.
        targets: those of `inputs`: a third kind of task draws such targets anew and learns them with the loss.
        batches: a list of ``(inputs, targets)``, dicts or tensors: the next task, in place of drawn targets.
        make: returns a network with new weights; by default the modules' own ``reset_parameters``.
        optimizer: torch's, one or several: the network is also tried as it is trained, with its state and its rate.
        earlier: the network at an earlier time, or its state_dict.
        max_grad_norm: to which gradients are clipped as it is trained.
        remedies: whether to try what would help, on copies, if plasticity was lost.
        repeats: draws of fresh weights, targets and order.
        updates: of each trial; 200, or as many as there are batches, at least 100.
        seed: of all draws.

    Raises:
        SettingsError: a network without parameters, inputs that do not fit it or are too few, a `make` of another
            shape, or arguments that do not go together.
    """
    if repeats < 2:
        raise SettingsError(f"repeats must be at least 2 for an interval, got {repeats}")
    if updates is not None and updates < 10:
        raise SettingsError(f"updates must be at least 10, got {updates}")
    subject = _subject(net, optimizer, make, drawn=batches is None)
    if subject.runs:
        raise SettingsError(f"a network of {[*subject.runs]} runs: rl_plasticity.diagnose FOLDER looks at each of them")
    data = Data.of(subject.net, inputs, loss, targets, batches)
    chosen = updates or (UPDATES if batches is None else max(100, len(batches)))
    (report,) = reports(subject, data, earlier, max_grad_norm, remedies, repeats, chosen, seed)
    return report


# --- what is learned --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """What tasks are made of.

    Args:
        bank: inputs that drawn targets are for; None with batches.
        own: the user's loss and targets of the bank.
        batches, criterion: the user's next task and its loss.
    """

    bank: Bank | None
    own: tuple[Criterion, Any] | None = None
    batches: Sequence[Any] = ()
    criterion: Criterion | None = None

    @classmethod
    def of(
        cls,
        net: nn.Module,
        inputs: Example | None,
        loss: Criterion | None,
        targets: Any,
        batches: Sequence[Any] | None,
    ) -> "Data":
        """Raises SettingsError where arguments do not go together."""
        if loss is not None and not callable(loss):
            raise SettingsError(f"loss must be a function, got {type(loss).__name__}")
        if batches is not None:
            if loss is None or inputs is not None or targets is not None:
                raise SettingsError("batches= takes loss=, and stands in place of inputs and targets=")
            if not isinstance(batches, Sequence) or not batches:
                raise SettingsError("batches must be a list of at least one batch: list(loader)")
            with random_states_kept(net), torch.no_grad():
                of_batch(net, batches[0], loss)
            return cls(None, batches=batches, criterion=loss)
        if inputs is None:
            raise SettingsError("give inputs to draw targets for, or batches= and loss=, your next task")
        if targets is not None and loss is None:
            raise SettingsError("targets= needs loss=, a function of output and targets")
        bank = Bank(inputs, runs_of(net), BANK)
        own = None
        if loss is not None:
            if targets is None:
                raise SettingsError("loss= needs targets= of the inputs, or batches=")
            own = (loss, bank.narrowed(targets))
        return cls(bank, own)

    @property
    def given_targets(self) -> Any:
        """The targets that the user gave."""
        if self.bank is not None:
            return None if self.own is None else self.own[1]
        return [batch[1] for batch in self.batches if isinstance(batch, tuple | list)]

    @property
    def example(self) -> Example:
        """Inputs for one call."""
        if self.bank is not None:
            return self.bank.example
        first: Any = self.batches[0]
        return cast(Example, first[0] if isinstance(first, tuple | list) else first)

    def tasks(self, fresh: nn.Module, seed: int, updates: int) -> list[Task]:
        """The tasks of one repeat."""
        if self.bank is not None:
            return drawn_tasks(fresh, self.bank, self.own, seed, updates)
        return [own_batches(self.batches, cast(Criterion, self.criterion), seed, updates)]


def _subject(
    net: nn.Module, optimizer: Optimizers | None, make: Callable[[], nn.Module] | None, drawn: bool
) -> Subject:
    """The network, with what makes one like it.

    Raises:
        SettingsError: no network with parameters, or no new weights.
    """
    if isinstance(net, Learner):
        learner, net = net, net.net
        make = make or learner.fresh
    if not isinstance(net, nn.Module):
        raise SettingsError(f"net must be a network, got {type(net).__name__}")
    inner = unwrapped(net)
    if not any(True for _ in inner.parameters()):
        raise SettingsError("nothing can be learned: the network has no parameters")
    optimizers = [] if optimizer is None else [*TorchState(inner, optimizer).optimizers]
    plain = PlainNet(inner, (), make, None, None, ())
    return Subject(inner, optimizers, plain.fresh, without_dropout=drawn)


_Start = Callable[[int, float, Task], tuple[nn.Module, Steps]]
"""The network and the optimizer that begin a task, of a repeat and at a learning rate."""


class Trials:
    """What every arm reached on every task: ``ends[kind, arm]`` ``[rates, repeats, *runs]``.

    Args:
        fresh: the fresh network of each repeat.
        bar: called after each trial.
    """

    def __init__(self, subject: Subject, data: Data, repeats: int, updates: int, clip: float | None, seed: int) -> None:
        self.subject, self.clip, self.seed = subject, clip, seed
        self.fresh: list[nn.Module] = []
        self.tasks: list[list[Task]] = []
        for r in range(repeats):
            with random_states_kept(subject.net):
                torch.manual_seed(derive(seed, r, 0))
                self.fresh.append(subject.fresh().train())
                example = Subject(self.fresh[-1], (), subject.fresh, subject.without_dropout)
                copied = example.widened()[0]
                self.tasks.append(data.tasks(copied, derive(seed, r, 1), updates))
        self.kinds = [task.name for task in self.tasks[0]]
        self.ends: dict[tuple[str, str], Tensor] = {}
        self.begins: dict[tuple[str, str], Tensor] = {}
        self.nothing: dict[str, Tensor] = {}

    def run(self, arm: str, start: _Start, rates: Sequence[float], bar: "_Bar") -> None:
        """Let an arm learn every task of every repeat, at every rate."""
        clip = self.clip if arm == AS_IT_IS else None
        for k, kind in enumerate(self.kinds):
            if arm == AS_IT_IS and not self.subject.knows(self.tasks[0][k]):
                continue
            ends, begins, firsts = [], [], []
            for times in rates:
                curves = [self._curve(start, r, times, self.tasks[r][k], clip, bar) for r in range(len(self.tasks))]
                ends.append(torch.stack([at_end(curve) for curve in curves]))
                begins.append(torch.stack([curve[: max(1, len(curve) // 5)].mean(0) for curve in curves]))
                firsts.append(torch.stack([curve[0] for curve in curves]))
            self.ends[kind, arm], self.begins[kind, arm] = torch.stack(ends), torch.stack(begins)
            if arm == FRESH:
                given = self.tasks[0][k].nothing
                first = firsts[0].mean(0, keepdim=True).expand_as(firsts[0])
                self.nothing[kind] = first if given is None else torch.full_like(first, float(given))

    def _curve(self, start: _Start, r: int, times: float, task: Task, clip: float | None, bar: "_Bar") -> Tensor:
        with random_states_kept(self.subject.net):
            net, optimizer = start(r, times, task)
            curve = learn(net, optimizer, task.begin(net), task.updates, derive(self.seed, r, 2), clip)
        bar.update()
        return curve

    def end(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """The loss at the end, ``[repeats, *runs]``: at this rate, or at the best one of each run."""
        return self._at_best(kind, arm, self.ends, rate)

    def begin(self, kind: str, arm: str) -> Tensor:
        """The mean loss of the first fifth of the updates at the rate that ends best, ``[repeats, *runs]``."""
        return self._at_best(kind, arm, self.begins, None)

    def _at_best(self, kind: str, arm: str, of: Mapping[tuple[str, str], Tensor], rate: int | None) -> Tensor:
        values = of[kind, arm]
        if rate is not None:
            return values[rate]
        best = self.ends[kind, arm].mean(1).argmin(0)  # [*runs]
        return values.gather(0, best.expand(1, *values.shape[1:]))[0]

    def share(self, kind: str, arm: str, rate: int | None = None) -> Tensor:
        """What the arm learned of what a fresh network learned, ``[repeats, *runs]``."""
        return share(self.nothing[kind], self.end(kind, arm, rate), self.end(kind, FRESH, rate))

    def shares(self, arm: str, rate: int | None = None) -> Tensor:
        """The mean of that over the kinds of targets."""
        return torch.stack([self.share(kind, arm, rate) for kind in self.kinds if (kind, arm) in self.ends]).mean(0)

    @property
    def arms(self) -> set[str]:
        """Those that have learned."""
        return {arm for _, arm in self.ends}

    def best_of_fresh(self) -> int:
        """The number of the learning rate at which fresh networks learn most, over all tasks and runs."""
        learned = [(self.nothing[k] - self.ends[k, FRESH]) / self.nothing[k].abs() for k in self.kinds]
        return int(torch.stack(learned).clamp(min=-1).flatten(2).mean((0, 2)).argmax())

    def removed_by_fresh(self) -> Tensor:
        """The part of the loss that a fresh network removed, the mean over kinds and repeats, ``[*runs]``."""
        parts = [(self.nothing[k] - self.end(k, FRESH)) / self.nothing[k].abs() for k in self.kinds]
        return torch.stack(parts).mean((0, 1))


class _Bar:
    """A progress bar on a terminal, where tqdm is installed; silent for what takes less than two seconds."""

    def __init__(self, total: int) -> None:
        try:
            from tqdm import tqdm

            self.bar: Any = tqdm(total=total, unit=" trials", delay=2, leave=False, desc="diagnose", disable=None)
        except ImportError:
            self.bar = None

    def more(self, trials: int) -> None:
        if self.bar is not None:
            self.bar.total += trials

    def update(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


# --- what follows from it ---------------------------------------------------------------------------------------------


def reports(
    subject: Subject,
    data: Data,
    earlier: nn.Module | Mapping[str, Tensor] | None,
    clip: float | None,
    remedies: bool,
    repeats: int,
    updates: int,
    seed: int,
    beside: Sequence[Sequence[str]] = (),
) -> list[Report]:
    """The report of each run, in order; of an ordinary network one.

    Args:
        beside: what else was found of each run, which explains why it does not learn where nothing is lost.
    """
    every = math.prod(subject.runs)
    decided = checks.not_finite(subject.net) or checks.constant(data.given_targets)
    if decided:
        return [Report("something else", f"{decided[0]}: nothing else was tried", tuple(decided))] * every
    trials = Trials(subject, data, repeats, updates, clip, seed)
    causes = checks.learning_rate(subject.optimizers)
    known = bool(subject.optimizers) or any(not p.requires_grad or p.dtype in HALF for p in subject.net.parameters())
    arms = 2 * len(RATES) + known + (earlier is not None) * len(RATES)
    bar = _Bar(arms * repeats * len(trials.kinds))
    try:
        _let_fresh_learn(trials, subject, causes, bar)
        trials.run(NOW, lambda r, times, task: subject.with_fresh_optimizer(task, times), RATES, bar)
        if known:
            trials.run(AS_IT_IS, lambda r, times, task: subject.as_it_is(task), RATES[:1], bar)
            causes += _hindrances(trials, subject, data, clip)
        if earlier is not None:
            old = _earlier(subject, earlier)
            trials.run(EARLIER, lambda r, times, task: subject.with_fresh_optimizer(task, times, old), RATES, bar)
        judged = [_judged(trials, run) for run in range(every)]
        tried = _tried(trials, subject, data, bar) if remedies and any(_is_bad(v) for v, *_ in judged) else {}
    finally:
        bar.close()
    symptoms = _symptoms(subject, trials, data)
    protocol: dict[str, Any] = {"repeats": repeats, "updates": updates, "seed": seed}
    protocol["rates"] = ", ".join(
        dict.fromkeys(f"{t * subject.rate(task):.3g}" for task in trials.tasks[0] for t in RATES)
    )
    protocol |= {"targets": trials.kinds, "inputs": None if data.bank is None else data.bank.size}
    found = []
    for run, (verdict, why, gap) in enumerate(judged):
        shown = [arm for arm in (NOW, AS_IT_IS, EARLIER) if arm in trials.arms]
        evidence = {arm: _estimate(trials.shares(arm), run) for arm in shown}
        pairs = [(k, arm) for arm in (*shown, FRESH) for k in trials.kinds if (k, arm) in trials.ends]
        evidence |= {f"{arm}/{k}": _estimate(trials.share(k, arm), run) for k, arm in pairs if arm != FRESH}
        losses = {f"{arm}/{k}": _mean(trials.end(k, arm), run) for k, arm in pairs}
        better = _ranked(trials, tried, run) if _is_bad(verdict) else ()
        of_run = {name: (float(a.reshape(-1)[run]), float(b.reshape(-1)[run])) for name, (a, b) in symptoms.items()}
        own = beside[run] if beside else ()
        if own and verdict == "plastic":
            verdict = "something else"
        said = (*own, *causes, *_slow_start(trials, run, verdict))
        found.append(Report(verdict, why, said, evidence, losses, of_run, better, gap, protocol))
    return found


def _let_fresh_learn(trials: Trials, subject: Subject, causes: list[str], bar: _Bar) -> None:
    """Let fresh networks learn, at Adam's usual rate where the optimizer's own is too low for them."""

    def start(r: int, times: float, task: Task) -> tuple[nn.Module, Steps]:
        return subject.with_fresh_optimizer(task, times, trials.fresh[r])

    trials.run(FRESH, start, RATES, bar)
    rate = subject.rate(trials.tasks[0][0])
    if rate < RATE / 3 and bool((trials.removed_by_fresh() < LEARNS).all()):
        causes.append(f"learning rate: with {rate:g} a fresh network learns nothing in so many updates either")
        subject.raised = True
        bar.more(len(RATES) * len(trials.tasks) * len(trials.kinds))
        trials.run(FRESH, start, RATES, bar)


def _estimate(values: Tensor, run: int) -> Estimate:
    """Of ``[repeats, *runs]``."""
    return Estimate.of(values.reshape(len(values), -1)[:, run].tolist())


def _mean(values: Tensor, run: int) -> float:
    return float(values.reshape(len(values), -1)[:, run].mean())


def _is_bad(verdict: Verdict) -> bool:
    return verdict in ("losing", "lost")


def _judged(trials: Trials, run: int) -> tuple[Verdict, str, float | None]:
    """The verdict on a run, what it rests on, and the smallest gap that would have been seen."""
    removed = float(trials.removed_by_fresh().reshape(-1)[run])
    if not removed >= LEARNS:
        why = f"a fresh network removed only {removed:.0%} of the loss itself: give more updates, or another rate"
        return "not detectable", why, None
    now = _estimate(trials.shares(NOW), run)
    gap = 1 - PLASTIC + (now.high - now.low) / 2
    says = f"with a fresh optimizer it learns {now} of what a fresh network learns"
    if AS_IT_IS in trials.arms:
        for kind in (k for k in trials.kinds if (k, AS_IT_IS) in trials.ends):
            can, own = (_estimate(trials.share(kind, arm, 0), run) for arm in (NOW, AS_IT_IS))
            if can.mean >= LOST and own.high < can.mean / 2:
                return "something else", f"{says}; as it is trained it learns the task {kind!r} only {own}", gap
    if now.low >= LOST and checks.learning_rate(trials.subject.optimizers):
        return "something else", f"{says}; its learning rate is gone", gap
    if now.high < LOST:
        return "lost", says, gap
    if now.high < PLASTIC:
        return "losing", says, gap
    if EARLIER in trials.arms:
        fell = _estimate(trials.shares(EARLIER) - trials.shares(NOW), run)
        if fell.low > 1 - PLASTIC:
            return "losing", f"{says}, {fell} less than earlier", gap
    if now.low >= PLASTIC:
        return "plastic", says, gap
    return "not detectable", f"{says}; so many repeats show only what is more than {gap:.2f} missing", gap


def _hindrances(trials: Trials, subject: Subject, data: Data, clip: float | None) -> list[str]:
    """What keeps the network, as it is trained, from learning."""
    found = checks.frozen(subject.net) + checks.not_held(subject.net, subject.optimizers)
    with random_states_kept(subject.net):
        task = trials.tasks[0][-1]
        net, optimizer = subject.as_it_is(task)
        loss, number = task.begin(net), min(FIRST, task.updates)
        gradients, norms, before = checks.first_updates(net, optimizer, loss, clip, number)
    found += checks.does_not_move(net, before)
    found += checks.clipped(norms, clip)
    named = dict(subject.net.named_parameters())
    return found + checks.stale_moments(named, subject.optimizers, gradients)


def _earlier(subject: Subject, earlier: nn.Module | Mapping[str, Tensor]) -> nn.Module:
    """The earlier network.

    Raises:
        SettingsError: it is of another shape.
    """
    if isinstance(earlier, nn.Module):
        earlier = unwrapped(earlier).state_dict()
    elif not isinstance(earlier, Mapping):
        raise SettingsError(f"earlier must be a network or its state_dict, got {type(earlier).__name__}")
    net = subject.widened()[0]
    try:
        net.load_state_dict(earlier)
    except RuntimeError as error:
        raise SettingsError(f"earlier does not fit the network: {' '.join(str(error).split())}") from error
    return net


def _tried(trials: Trials, subject: Subject, data: Data, bar: _Bar) -> dict[str, Tensor | None]:
    """Let copies learn to which each remedy was applied; what it changes of the outputs, ``[*runs]``, by its name."""
    tried: dict[str, Tensor | None] = {}
    times = RATES[trials.best_of_fresh()]
    for name, remedy in REMEDIES.items():
        try:
            with random_states_kept(subject.net), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                base = subject.widened()[0]
                changed = []
                for r, fresh in enumerate(trials.fresh):
                    torch.manual_seed(derive(trials.seed, r, 3))
                    changed.append(remedy(base, fresh, data.example))
        except Exception:  # whatever keeps it from being applied to such a network: it is left out
            continue
        bar.more(len(trials.tasks) * len(trials.kinds))

        def start(r: int, times: float, task: Task, changed: Sequence[nn.Module] = changed) -> tuple[nn.Module, Steps]:
            other = Subject(changed[r], (), subject.fresh, subject.without_dropout)
            if [*other.net.state_dict()] == [*subject.net.state_dict()] and not _hooked(other.net, subject.net):
                return subject.with_fresh_optimizer(task, times, other.net)
            return other.with_fresh_optimizer(task, times)

        trials.run(name, start, [times], bar)
        tried[name] = None if data.bank is None else _changes(base, changed[0], data.bank)
    return tried


def _hooked(net: nn.Module, other: nn.Module) -> bool:
    """Whether it computes more than the other, by hooks."""
    return sum(len(m._forward_hooks) for m in net.modules()) > sum(len(m._forward_hooks) for m in other.modules())


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
    """That a network which ends well begins far behind a fresh one, since it unlearns first."""
    if verdict != "plastic":
        return []
    ratios = [_mean(trials.begin(k, NOW), run) / _mean(trials.begin(k, FRESH), run) for k in trials.kinds]
    worst = max(ratios)
    if worst < SLOW:
        return []
    return [f"slow start: over the first fifth of the updates its loss is {worst:.1f} times a fresh network's"]


def _symptoms(subject: Subject, trials: Trials, data: Data) -> dict[str, tuple[Tensor, Tensor]]:
    """Metrics of the network and of a fresh one, ``[*runs]``, those that both have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine, theirs = (Probe(net, data.example).measure() for net in (subject.net, trials.fresh[0]))
    except Exception:  # a network that cannot be looked into is judged all the same
        return {}
    return {name: (mine[name], theirs[name]) for name in SYMPTOMS if name in mine and name in theirs}
