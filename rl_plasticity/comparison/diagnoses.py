"""The diagnoses of runs that ``diagnose`` has left in their folders."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from rl_plasticity.diagnosis.report import Estimate, Verdict
from rl_plasticity.diagnosis.trials import NOW
from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs.files import open_file
from rl_plasticity.runs.folder import RunFolder

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LAST_STEP = 1 << 62  # larger ones fit no array


class Diagnosed(NamedTuple):
    """The verdict on a network of one run at one checkpoint.

    Args:
        step: the checkpoint's: an env step, or the epoch of a supervised run.
        data: the inputs that it was tried on: ``random``, ``buffer`` or ``images``.
        learned: the share of what a fresh network learns, with an interval over repeats; None where it is not finite.
    """

    step: int
    network: str
    data: str
    verdict: Verdict
    learned: Estimate | None


def read(folder: RunFolder) -> dict[str, list[Diagnosed]]:
    """The diagnoses in a run's folder, by the run's name in words; empty if there are none.

    Raises:
        SettingsError: the file is damaged or of another program.
    """
    if not folder.diagnosis.exists():
        return {}
    with refused(f"read {folder.diagnosis}"), open_file(folder.diagnosis) as file:
        content = file.read()
    found: dict[str, list[Diagnosed]] = defaultdict(list)
    try:
        for row in json.loads(content):
            found[_text(row["run"])].append(_diagnosed(row))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:  # no JSON, or of another form
        raise SettingsError(f"{folder.diagnosis} holds no diagnosis of a run of this package") from error
    return found


# ------------------------------------------------------------------------------------------------------------------


def _diagnosed(row: Mapping[str, Any]) -> Diagnosed:
    """Raises ValueError, TypeError, LookupError or AttributeError if `row` is not as `diagnose` writes it."""
    step, verdict, learned = row["step"], row["verdict"], row["evidence"].get(NOW)
    if type(step) is not int or not 0 <= step < LAST_STEP or verdict not in VERDICTS:
        raise ValueError(step, verdict)
    numbers = [math.nan if learned[end] is None else float(learned[end]) for end in Estimate._fields] if learned else []
    estimate = Estimate(*numbers) if numbers and math.isfinite(numbers[0]) else None
    return Diagnosed(step, _text(row["network"]), _text(row["data"]), verdict, estimate)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
