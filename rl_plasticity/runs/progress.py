"""How far a run is: what it counts with, the progress bar, the rates in ``timing.csv``, how long it will take."""

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from tqdm import tqdm

from rl_plasticity.errors import shown


@dataclass
class Progress:
    """Where a run is. A command's own adds what else its loop counts with; all of it is saved.

    Args:
        step: env steps or epochs made: what the bar counts.
        updates: made.
    """

    step: int = 0
    updates: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Every number and tensor."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is not the state of such a progress.
        """
        if any(not _alike(state.get(name), value) for name, value in vars(self).items()):
            raise ValueError(f"the checkpoint holds no progress of such a run: {shown(dict(state))}")
        for name, value in state.items():
            mine = vars(self).get(name)
            setattr(self, name, value.to(mine.device) if isinstance(mine, Tensor) else value)


def _alike(a: Any, b: Any) -> bool:
    """Whether both are numbers of one type, or tensors of one type and shape."""
    return type(a) is type(b) and all(getattr(a, n, None) == getattr(b, n, None) for n in ("dtype", "shape"))


INTERRUPTED = 100  # times a second: two threads were 280 to 330 times beside a busy process, at most 34 at rest
WATCHED = 10.0  # seconds of updates
TOLD = 10.0  # seconds of learning, before the first rates are written


class Clock:
    """The progress bar and the rates.

    Args:
        unit: what a step is.
        total, step: how many there are, and how many were made before.
        updates_per_step: to say how long the rest takes.
        device: for the same message.
        compiles: whether the first update may take a minute.
        threads: that work on one operation and wait for each other.
    """

    def __init__(
        self,
        unit: str,
        total: int,
        step: int,
        updates_per_step: float,
        device: str = "cpu",
        compiles: bool = False,
        threads: int = 1,
    ) -> None:
        self.unit, self.total, self.updates_per_step = unit, total, updates_per_step
        self.device, self.compiles, self.threads = device, compiles, threads
        self.bar = self._bar(step, "")  # random steps and compiling say nothing about how long updates take
        self.latest = "no evaluation yet"
        self.rate = 0.0
        self._count_from(step)
        self.warm = False  # the first updates may include compiling; they do not count
        self.started = self.learning_since = 0.0
        self.begins_anew = False  # at the first step behind the first updates
        self.announced = self.told = False
        self.interruptions, self.watched = 0, 0.0  # of updates by several threads
        self.evaluation_shown = time.perf_counter()

    def _bar(self, step: int, left: str) -> "tqdm[Any]":
        """One that begins at this step, with what is `left` as tqdm writes it."""
        form = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}{left}, {{rate_fmt}}{{postfix}}]"
        # miniters: left to itself tqdm learns from a thousand quick random steps to be silent for the next thousand.
        regular: dict[str, Any] = {"smoothing": 0.1, "mininterval": 1, "miniters": 1, "bar_format": form}
        return tqdm(total=self.total, initial=step, unit=f" {self.unit}", **regular)

    def _count_from(self, step: int) -> None:
        """The next rates are of what comes after this step."""
        self.mark, self.mark_step, self.updates, self.in_updates = time.perf_counter(), step, 0, 0.0

    def start_updates(self) -> None:
        """Updates begin now."""
        self.started = time.perf_counter()
        self.interruptions -= _interruptions()
        if not self.warm and self.compiles:
            self.bar.write("compiling the update, which takes up to a minute", file=sys.stderr)

    def end_updates(self, number: int) -> None:
        """So many updates were made since `start_updates`."""
        self.interruptions += _interruptions()
        seconds = time.perf_counter() - self.started
        if self.warm:
            self.in_updates += seconds
            self.updates += number
            self.rate = self.updates / self.in_updates
            self._watch(seconds)
        else:
            self.interruptions = 0
            self.warm, self.begins_anew, self.learning_since = True, True, time.perf_counter()
            if self.compiles:
                self.bar.write(f"compiling the update: done in {seconds:.0f} s", file=sys.stderr)

    def _watch(self, seconds: float) -> None:
        """Say once if other processes interrupt threads that wait for each other."""
        self.watched += seconds
        if self.threads == 1 or self.watched < WATCHED:
            return
        if self.interruptions / self.watched > INTERRUPTED:
            self.bar.write(
                f"Other work interrupts this run's {self.threads} threads, which wait for each other. "
                "Stop it and resume it with threads=1: that is faster beside other work.",
                file=sys.stderr,
            )
            self.threads = 1
        self.interruptions, self.watched = 0, 0.0

    def is_time_to_tell(self) -> bool:
        """Whether the rates can be told for the first time: once, when updates have been made for some seconds."""
        return not self.told and self.rate > 0 and time.perf_counter() - self.learning_since > TOLD

    def rates(self, step: int, anew: bool = True) -> dict[str, float]:
        """Since the last call: steps and updates (of all runs together: one) a second; then start anew, if asked to.

        The first call counts from the first updates on, which may include compiling, if `show` was called before.

        And how many steps are done and left, and how many seconds: updates at their rate, and for each step what it
        took besides. Steps before the first update say nothing about the later ones, so there the seconds are left out.
        """
        unit, steps = self.unit.replace(" ", "_"), step - self.mark_step
        seconds = time.perf_counter() - self.mark
        left = self.total - step
        rates = {f"{unit}_per_second": steps / seconds, "updates_per_second": self.rate}
        rates |= {f"{unit}_done": float(step), f"{unit}_left": float(left)}
        if self.rate and steps:
            rates["seconds_left"] = left * (self.updates_per_step / self.rate + (seconds - self.in_updates) / steps)
        self.told = True
        if anew:
            self._count_from(step)
        return rates

    def show(self, step: int) -> None:
        """Move the bar; behind the first updates a new one begins, which estimates how long the rest takes."""
        if self.begins_anew:
            self.begins_anew = False
            self.bar.leave = False
            self.bar.close()
            self.bar = self._bar(step, "<{remaining}")
            self._count_from(step)
        self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, {self.latest}", refresh=False)
        self.bar.update(step - self.bar.n)
        if not self.announced and self.rate and time.perf_counter() - self.learning_since > 60:
            self.announced = True
            hours = (self.total - step) * self.updates_per_step / self.rate / 3600
            if hours > 1:
                self.bar.write(
                    f"At {self.rate:.0f} updates/s on this {self.device} the rest takes about {hours:.0f} h. "
                    "preset=demo shows something within minutes.",
                    file=sys.stderr,
                )

    def show_evaluation(self, done: int, episodes: int) -> None:
        """Say once a second on the bar how many of an evaluation's episodes are done."""
        if time.perf_counter() - self.evaluation_shown > 1:
            self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, evaluating: {done} of {episodes} episodes")
            self.evaluation_shown = time.perf_counter()

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()


def _interruptions() -> int:
    """How often the system has taken the processor away from a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
