"""What networks at the end of a study still learn: ``python -m papers.verdicts FOLDER > FILE.csv``.

``diagnose`` has looked at the runs below FOLDER. For each verdict at a run's newest diagnosed step there is one line,
with what the network learned as a share of what a fresh one learns.

``python -m papers.verdicts FILE.csv`` prints such a file as a Markdown table: for each method the mean share with its
95 % interval (Student's, over the runs), and how many runs have each verdict. ``--network actor`` and ``--data random``
choose others than ``critic`` and ``buffer``.
"""

import argparse
import csv
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from rl_plasticity import SettingsError
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.errors import nearest
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.runs import diagnosed
from rl_plasticity.runs.diagnosed import Diagnosis
from rl_plasticity.runs.folder import find
from rl_plasticity.runs.names import RunName

VERDICTS = ("plastic", "losing", "lost", "something else", "not detectable")
COLUMNS = ("method", "network", "data", "run", "verdict", "learned", "low", "high")


def lines(folder: Path) -> list[tuple[str, ...]]:
    """One line per method, run, network and data.

    Raises:
        SettingsError: a run cannot be read, or none below the folder was diagnosed.
    """
    runs = [run for one in find([folder]) for run in read(one) if _diagnoses(run)]
    if not runs:
        raise SettingsError(f"no run below {folder} was diagnosed; diagnose writes diagnosis.json")
    found = []
    for of_method in group(runs):
        for run in of_method.runs:
            diagnoses = _diagnoses(run)
            last = max(item.step for item, *_ in diagnoses)
            for item, _, report in diagnoses:
                if item.step == last:
                    learned = report.learned
                    share = [f"{x:.4f}" for x in learned] if learned and math.isfinite(learned.mean) else [""] * 3
                    found.append((of_method.label, item.network, item.data, f"seed {run.seed}", report.verdict, *share))
    return found


def _diagnoses(run: Run) -> list[Diagnosis]:
    name = RunName((), run.seed).in_words
    return [one for one in diagnosed.read(run.folder) if one.run == name]


def table(path: Path, network: str, data: str) -> list[str]:
    """The lines of the table in Markdown, the method whose networks learn most first.

    Raises:
        SettingsError: the file was not written by this command, or has no such network or data.
    """
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    if not rows or set(COLUMNS) - rows[0].keys():
        raise SettingsError(f"{path} has no verdicts")
    for column, value in (("network", network), ("data", data)):
        there = dict.fromkeys(row[column] for row in rows)
        if value not in there:
            raise SettingsError(f"{path} has no {column} {value!r}{nearest(value, there)}")
    methods: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if (row["network"], row["data"]) == (network, data):
            methods[row["method"]].append(row)
    shares = {name: np.array([float(row["learned"] or "nan") for row in of]) for name, of in methods.items()}
    printed = ["| method | learned | verdicts |", "| --- | --- | --- |"]
    for name in sorted(methods, key=lambda name: -shares[name].mean()):
        low, high = student_interval([shares[name]]) if len(shares[name]) > 1 else (math.nan, math.nan)
        counts = Counter(row["verdict"] for row in methods[name])
        told = ", ".join(f"{counts[verdict]} `{verdict}`" for verdict in sorted(counts, key=VERDICTS.index))
        printed.append(f"| {name} | {shares[name].mean():.2f} [{low:.2f}, {high:.2f}] | {told} |")
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, metavar="FOLDER|FILE.csv")
    parser.add_argument("--network", default="critic")
    parser.add_argument("--data", default="buffer")
    options = parser.parse_args()
    try:
        if options.place.is_file():
            print("\n".join(table(options.place, options.network, options.data)))
        else:
            csv.writer(sys.stdout, lineterminator="\n").writerows([COLUMNS, *lines(options.place)])
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
