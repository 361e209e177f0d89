"""How well `diagnose` foretells that the next task is lost: every boundary of continual problems whose end is known.

    python scripts/study_diagnose.py docs/results/diagnose.csv

If there is no such file it is made, in about an hour. A row is one run at the end of one task: the training accuracy of
that task and of the next one, and how much of the next task the network could learn then, as a share of a fresh one.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

from rl_plasticity import supervised
from rl_plasticity.diagnosis.report import NOW
from rl_plasticity.diagnosis.subject import subject_of
from rl_plasticity.diagnosis.tasks import TaskSource
from rl_plasticity.diagnosis.verdict import reports
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.tasks import TASKS, load
from rl_plasticity.training.epochs import batches, cross_entropy

LOST = 0.9  # a next task that ends with a lower training accuracy counts as lost
GROUPS: dict[str, dict[str, Any]] = {
    "relu, other strengths": {"reg": {"name": "spectral", "coef": [1e-5, 1e-3]}},
    "relu, l2": {"reg": {"name": "l2", "coef": [1e-3, 1e-2]}},
    "LayerNorm": {"net": {"name": "mlp", "layer_norm": True}, "reg": ["none", "spectral", "l2"]},
    "elu": {"net": {"name": "mlp", "activation": "elu"}, "reg": ["none", "spectral", "l2"]},
    "tanh": {"net": {"name": "mlp", "activation": "tanh"}, "reg": ["none", "spectral", "l2"]},
    "permuted pixels": {"task": "pixel_permutation", "reg": ["none", "spectral", "wrs", "swr"]},
}
SYMPTOMS = ("dead", "dormant", "feature_rank", "weight_norm", "sigma1", "stable_rank")
GROW = ("dead", "dormant", "weight_norm", "sigma1")  # where plasticity is lost; the others fall
COLUMNS = ["group", "run", "task", "accuracy", "next", "learned", "low", "high", "verdict", *SYMPTOMS]
VERDICTS = ("plastic", "not detectable", "losing", "lost")


def rows_of(group: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train the group's runs, and diagnose them at the end of each task but the last."""
    found: list[dict[str, Any]] = []

    def on_step(session: Session[Any]) -> None:
        s, index = session.settings, session.progress.step // session.settings.epochs_per_task
        if session.progress.step % s.epochs_per_task or not 0 < index < s.num_tasks:
            return
        data, kind = load(s.data.name, **s.data.settings), TASKS[s.task.name]
        learner: Any = session.parts["learner"]
        tasks = [derive(n, supervised.TASK) for n in session.plan.seeds]
        sequence: Any = kind(data, tasks, s.num_tasks, **s.task.settings)
        order = RunStreams(session.plan.seeds)
        epoch = [*batches(sequence.task(index), data, order, s.batch_size, learner.runs)]
        task = TaskSource(None, (cross_entropy, epoch))
        every = reports(subject_of(learner), task, None, None, False, 2, len(epoch) * s.epochs_per_task, index)
        for name, report in zip(session.plan.names, every, strict=True):
            row = {"group": group, "run": str(name), "task": index, "verdict": report.verdict}
            row |= dict(zip(("learned", "low", "high"), report.evidence[NOW], strict=True))
            found.append(row | {name: report.symptoms[name][0] for name in SYMPTOMS if name in report.symptoms})

    with TemporaryDirectory() as folder:
        given = {"preset": "demo", "measure_every_updates": 0, **settings}
        run = supervised.run(out=f"{folder}/run", on_step=on_step, **given)
        accuracy = {str(name): curves["task/train_accuracy"].values for name, curves in run.metrics().items()}
    for row in found:
        row["accuracy"], row["next"] = accuracy[row["run"]][row["task"] - 1 : row["task"] + 1]
    return found


def is_lost(row: Mapping[str, str]) -> bool:
    """Whether the next task ends below the accuracy that counts as learned."""
    return float(row["next"]) < LOST


def show(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the AUROC of every measure, by group, and what followed each verdict."""
    groups = {name: [r for r in rows if r["group"] == name] for name in dict.fromkeys(r["group"] for r in rows)}
    groups["all"] = [*rows]
    measures = ("learned", *SYMPTOMS)
    print(f"| networks | changes of task | lost | {' | '.join(measures)} |\n{'|---' * (3 + len(measures))}|")
    for group, of_group in groups.items():
        lost, cells = [*map(is_lost, of_group)], []
        for name in measures:
            danger = [float(r.get(name) or "nan") * (1 if name in GROW else -1) for r in of_group]
            known = len({*lost}) == 2 and not np.isnan(danger).any()
            cells.append(f"{roc_auc_score(lost, danger):.3f}" if known else "")
        print(f"| {group} | {len(lost)} | {sum(lost)} | {' | '.join(cells)} |")
    print("\nverdict: boundaries; the next task's least, median, greatest accuracy; lost")
    for verdict in VERDICTS:
        of_verdict = [r for r in rows if r["verdict"] == verdict]
        if of_verdict:
            least, median, greatest = np.quantile([float(r["next"]) for r in of_verdict], [0, 0.5, 1])
            share = sum(map(is_lost, of_verdict)) / len(of_verdict)
            print(f"{verdict:28}{len(of_verdict):6}{least:10.2f}{median:10.2f}{greatest:10.2f}{share:10.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    if not out.exists():
        with out.open("w", newline="", buffering=1) as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for name, settings in GROUPS.items():
                writer.writerows(rows_of(name, settings))
    with out.open(newline="") as file:
        found = [*csv.DictReader(file)]
    show(found)
