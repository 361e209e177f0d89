"""The progress of a run: its counts, the progress bar, the rates in ``timing.csv``, the time left."""

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
        """Restore the counts.

        Raises:
            ValueError: the state is not one of these counts.
        """
        if any(not _alike(state.get(name), value) for name, value in vars(self).items()):
            raise ValueError(f"the checkpoint holds no progress of such a run: {shown(dict(state))}")
        for name, value in state.items():
            mine = vars(self).get(name)
            setattr(self, name, value.to(mine.device) if isinstance(mine, Tensor) else value)


def _alike(a: Any, b: Any) -> bool:
    """Whether both are numbers of one type, or tensors of one type and shape."""
    return type(a) is type(b) and all(getattr(a, n, None) == getattr(b, n, None) for n in ("dtype", "shape"))


TOLD = 10.0  # seconds of learning, before the first rates are written


class Clock:
    """The progress bar and the rates.

    Args:
        unit: the name of a step.
        total, step: number of all steps, and of those made before this start.
        updates_per_step: for the estimate of the time left.
        compiles: whether the first update may take a minute.
    """

    def __init__(
        self,
        unit: str,
        total: int,
        step: int,
        updates_per_step: float,
        compiles: bool = False,
    ) -> None:
        self.unit, self.total, self.updates_per_step = unit, total, updates_per_step
        self.compiles = compiles
        self.bar = self._bar(step, "")  # random steps and compiling say nothing about how long updates take
        self.latest = "no evaluation yet"
        self.rate = 0.0
        self._count_from(step)
        self.warm = False  # the first updates may include compiling; they do not count
        self.started = self.learning_since = 0.0
        self.begins_anew = False  # whether a new bar begins at the next step: the first one after updates
        self.told = False
        self.evaluation_shown = time.perf_counter()

    def _bar(self, step: int, left: str) -> "tqdm[Any]":
        """A bar that begins at this step; `left` is tqdm's field for the time left, or empty."""
        form = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}{left}, {{rate_fmt}}{{postfix}}]"
        # miniters: after a thousand quick random steps, tqdm would by itself stay silent for the next thousand.
        regular: dict[str, Any] = {"smoothing": 0.1, "mininterval": 1, "miniters": 1, "bar_format": form}
        return tqdm(total=self.total, initial=step, unit=f" {self.unit}", **regular)

    def _count_from(self, step: int) -> None:
        """Begin to count for the next rates at this step."""
        self.mark, self.mark_step, self.updates, self.in_updates = time.perf_counter(), step, 0, 0.0

    def start_updates(self) -> None:
        """Note that updates begin now."""
        self.started = time.perf_counter()
        if not self.warm and self.compiles:
            self.bar.write("compiling the update, which takes up to a minute", file=sys.stderr)

    def end_updates(self, number: int) -> None:
        """Count this number of updates, made since `start_updates`."""
        seconds = time.perf_counter() - self.started
        if self.warm:
            self.in_updates += seconds
            self.updates += number
            self.rate = self.updates / self.in_updates
        else:
            self.warm, self.begins_anew, self.learning_since = True, True, time.perf_counter()
            if self.compiles:
                self.bar.write(f"compiling the update: done in {seconds:.0f} s", file=sys.stderr)

    def is_time_to_tell(self) -> bool:
        """Whether to write the first rates: once, after some seconds of updates."""
        return not self.told and self.rate > 0 and time.perf_counter() - self.learning_since > TOLD

    def rates(self, step: int, anew: bool = True) -> dict[str, float]:
        """Steps and updates per second since the last call; the steps done and left; and the seconds left.

        An update of all runs together counts as one. The first call counts from the first updates, which may include
        compiling, if `show` was called before.

        The seconds left are those of the updates at their rate, and for each step the time that it took besides. Before
        the first update they are left out, because earlier steps say nothing about the later ones.

        Args:
            anew: whether the next call counts from here.
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
        """Move the bar. After the first updates a new bar begins, which estimates the time left."""
        if self.begins_anew:
            self.begins_anew = False
            self.bar.leave = False
            self.bar.close()
            self.bar = self._bar(step, "<{remaining}")
            self._count_from(step)
        self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, {self.latest}", refresh=False)
        self.bar.update(step - self.bar.n)

    def show_evaluation(self, done: int, episodes: int) -> None:
        """Show on the bar, at most once a second, how many episodes of an evaluation are done."""
        if time.perf_counter() - self.evaluation_shown > 1:
            self.bar.set_postfix_str(f"{self.rate:.0f} updates/s, evaluating: {done} of {episodes} episodes")
            self.evaluation_shown = time.perf_counter()

    def close(self) -> None:
        """Close the bar, and leave it on the screen."""
        self.bar.close()
