"""The progress of a run: its counts, the progress bar, and the rates in ``timing.csv``."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from rl_plasticity.compiling.compiled import kept_beside
from rl_plasticity.errors import counted


@dataclass
class Progress:
    """The counts of a run. Each command adds its own; all of them are saved.

    Args:
        step: number of env steps or epochs made.
        updates: number of updates made.
    """

    step: int = 0
    updates: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Every number and tensor."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; a KeyError if one is missing."""
        for name, mine in vars(self).items():
            setattr(self, name, state[name].to(mine.device) if isinstance(mine, Tensor) else state[name])


FORM = "{l_bar}{bar}| {n_fmt}/{total_fmt} [%s, {rate_fmt}{postfix}]"  # of the bar, with its times
SECONDS = "compile_seconds"
TOLD = 10.0  # seconds of learning, before the first rates are written


class Clock:
    """The progress bar, and the rates since the first updates.

    Args:
        unit: the name of a step.
        total, step: number of all steps, and of those made before this start.
        compiles: whether the first update may take a minute.
        device: where updates are made. On a GPU they are only launched between `start_updates` and `end_updates`, and
            counted when they have finished.
    """

    def __init__(self, unit: str, total: int, step: int, compiles: bool = False, device: str = "cpu") -> None:
        self.unit, self.total, self.compiles = unit, total, compiles
        self.latest = "no evaluation yet"
        self.updates, self.in_updates, self.started = 0, 0.0, 0.0
        self.is_learning = self.told = False
        self.marks: list[Any] = []
        if device == "cuda":
            self.marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        self.launched = 0
        # The rate is the mean, which evaluations are part of. miniters: after a thousand quick random steps, tqdm would
        # by itself stay silent for the next thousand.
        regular: dict[str, Any] = {"smoothing": 0, "mininterval": 1, "miniters": 0, "bar_format": FORM % "{elapsed}"}
        self.bar = tqdm(total=total, initial=step, unit=f" {unit}", **regular)

    def start_updates(self) -> None:
        """Note that updates begin now."""
        self._count_launched()  # by now they have finished: the action after them was waited for
        self.started = time.perf_counter()
        if self.marks:
            self.marks[0].record()
        if self.compiles and not self.is_learning:
            past = _compile_seconds()
            took = f"took {min(past):.0f} to {max(past):.0f} s here before" if past else "takes up to 3 minutes"
            self.bar.write(f"compiling the update, which {took}", file=sys.stderr)

    def end_updates(self, number: int) -> None:
        """Count this number of updates, made since `start_updates`.

        The first ones only begin the bar's time: random steps and compiling say nothing about how long updates take.
        """
        if self.is_learning and self.marks:
            self.marks[1].record()
            self.launched = number
            return
        if self.is_learning:
            self.updates += number
            self.in_updates += time.perf_counter() - self.started
            return
        self.is_learning = True
        if self.compiles:
            past = [*_compile_seconds()[-20:], time.perf_counter() - self.started]
            with suppress(OSError):
                kept_beside(SECONDS).write_text(" ".join(f"{seconds:.1f}" for seconds in past))
        self.bar.initial, self.bar.start_t = self.bar.n, time.time()
        self.bar.last_print_t = self.bar.start_t  # else it counts as never shown, and is not left on the screen
        self.bar.bar_format = FORM % "{elapsed}<{remaining}"

    def _count_launched(self) -> None:
        """Wait for the launched updates, and count them."""
        if self.launched:
            start, end = self.marks
            end.synchronize()
            self.updates += self.launched
            self.in_updates += start.elapsed_time(end) / 1000
            self.launched = 0

    @property
    def rate(self) -> float:
        """Updates per second of updating, where an update of all runs together counts as one; 0 if unknown."""
        return self.updates / self.in_updates if self.in_updates else 0.0

    def is_time_to_tell(self) -> bool:
        """Whether to write the first rates: once, after some seconds of learning."""
        return not self.told and self.rate > 0 and self.bar.format_dict["elapsed"] > TOLD

    def rates(self, step: int) -> dict[str, float]:
        """The bar's steps per second; `rate`; the steps done and left; and, once it learns, the seconds left."""
        if self.launched and self.marks[1].query():  # do not wait for those that have not finished
            self._count_launched()
        unit, left, seconds = self.unit.replace(" ", "_"), self.total - step, self.bar.format_dict["elapsed"]
        steps = (step - self.bar.initial) / seconds if seconds > 0 else 0.0
        rates = {f"{unit}_per_second": steps, "updates_per_second": self.rate}
        rates |= {f"{unit}_done": float(step), f"{unit}_left": float(left)}
        if self.rate and steps > 0:
            rates["seconds_left"] = left / steps
        self.told = True
        return rates

    def show(self, step: int) -> None:
        """Move the bar."""
        self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, {self.latest}", refresh=False)
        self.bar.update(step - self.bar.n)

    def show_evaluation(self, done: int, episodes: int) -> None:
        """Show on the bar, at most once a second, how many episodes of an evaluation are done."""
        text = f"{self.rate:.0f} updates/s, evaluating: {done} of {counted(episodes, 'episode')}"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(0)

    def close(self) -> None:
        """Close the bar, and leave it on the screen."""
        self.bar.close()


def _compile_seconds() -> list[float]:
    """What the last compilations on this machine took."""
    with suppress(OSError, ValueError):
        return [*map(float, kept_beside(SECONDS).read_text().split())]
    return []
