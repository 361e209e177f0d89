"""Returns before and after each task of runs with changing tasks: ``python -m papers.task_ends FOLDER > FILE.csv``.

For every finished run of ``train`` below FOLDER, it writes one line per task: the run's folder, its method, its seed
and the task's number from 0. Two returns follow: the one before anything of the task was learned (and before an
intervention), and the one at the task's end.
"""

import argparse
import csv
import sys
from pathlib import Path

from rl_plasticity import SettingsError
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.runs.folder import find

COLUMNS = ("folder", "method", "seed", "task", "first_return", "return")


def lines(folder: Path) -> list[tuple[str, str, int, int, float, float]]:
    """One line per task of every run, ordered by folder, seed and task.

    Raises:
        SettingsError: a run cannot be read, or no run has changing tasks.
    """
    runs = [run for one in find([folder]) for run in read(one) if "task/return" in run.curves and run.kind == "train"]
    if not runs:
        raise SettingsError(f"no run of train below {folder} has tasks that change")
    label = {id(run): g.label for g in group(runs) for members in g.tasks.values() for run in members}
    found = []
    for run in runs:
        first, end = run.curves["task/first_return"].values, run.curves["task/return"].values
        for task, (before, after) in enumerate(zip(first, end, strict=True)):
            found.append((run.folder.path.name, label[id(run)], run.seed, task, float(before), float(after)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    try:
        found = lines(parser.parse_args().folder)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerows([COLUMNS, *found])


if __name__ == "__main__":
    main()
