"""How well `diagnose` foretells that the next task is lost: every boundary of continual problems whose end is known.

    python scripts/study_diagnose.py docs/results/diagnose.csv            # trains and diagnoses, about three hours
    python scripts/study_diagnose.py docs/results/diagnose.csv --show     # what the rows say
    python scripts/study_diagnose.py docs/results/diagnose.csv --figure docs/diagnose.png

A row is one run at the end of one task: the training accuracy of the task that ended and of the next one, and what the
network could learn then, of drawn targets and of the next task itself. Thresholds were chosen on the rows of the group
`relu` alone; the others check them.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.lines import Line2D

from rl_plasticity import supervised, train
from rl_plasticity.comparison.plotting import PALETTE, STYLE, legend, panels
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.diagnose import OfAgents
from rl_plasticity.diagnosis.report import LONGER, NOW, Report
from rl_plasticity.diagnosis.subject import subject_of
from rl_plasticity.diagnosis.tasks import LARGE_BANK, Bank, TaskSource
from rl_plasticity.diagnosis.verdict import reports
from rl_plasticity.runs.diagnosed import Item
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.tasks import TASKS, Data, TaskSequence, load
from rl_plasticity.training.epochs import batches, cross_entropy, first_images

LOST = 0.9  # a next task that ends with a lower training accuracy counts as lost
LOST_RETURN = 50.0  # likewise of CartPole, where random actions get 20 and the greatest return is 500
GROUPS: dict[str, dict[str, Any]] = {
    "relu": {"reg": ["none", "spectral", "wrs", "swr", "l2", "l2_init"]},
    "relu, other strengths": {"reg": {"name": "spectral", "coef": [1e-5, 1e-3]}},
    "relu, l2": {"reg": {"name": "l2", "coef": [1e-3, 1e-2]}},
    "LayerNorm": {"net": {"name": "mlp", "layer_norm": True}, "reg": ["none", "spectral", "l2"]},
    "elu": {"net": {"name": "mlp", "activation": "elu"}, "reg": ["none", "spectral", "l2"]},
    "tanh": {"net": {"name": "mlp", "activation": "tanh"}, "reg": ["none", "spectral", "l2"]},
    "permuted pixels": {"task": "pixel_permutation", "reg": ["none", "spectral", "wrs", "swr"]},
}
CRITICS = "critics of CartPole"  # deep Q-networks; every task permutes the observations and the actions
SWITCH = 4000  # env steps of a task
ENV = {
    "name": "gym:CartPole-v1",
    "changes": ["observation_permutation", "action_permutation"],
    "switch_every_env_steps": SWITCH,
}
AGENT = {"name": "dqn", "hidden": [64, 64], "lr": 1e-3, "target_every_updates": 200}
AGENT |= {"epsilon_env_steps": 2000, "epsilon_end": 0.05}
AGENTS: dict[str, Any] = {"env": ENV, "on_change": "clear", "replay_ratio": 1, "random_env_steps": 500}
AGENTS |= {"total_env_steps": 10 * SWITCH, "buffer_size": SWITCH}
AGENTS |= {"batch_size": 64, "eval_every_env_steps": 2000, "eval_episodes": 3, "measure_every_updates": 0, "threads": 1}
METHODS: dict[str, dict[str, Any]] = {
    "no method": {},
    "LayerNorm": {},
    "spectral": {"reg": "spectral"},
    "swr": {"reg": {"name": "swr", "coef": 1e-4}},
    "l2_init": {"reg": "l2_init"},
    "redo": {"reset": {"name": "redo", "every_updates": 1000}},
}
SYMPTOMS = ("dead", "dormant", "feature_rank", "weight_norm", "sigma1", "stable_rank")
GROW = ("dead", "dormant", "weight_norm", "sigma1")  # where plasticity is lost; the others fall
COLUMNS = ["group", "run", "task", "accuracy", "next", "drawn", "drawn_low", "drawn_high", "verdict"]
COLUMNS += ["short", "noise", "teacher", "own", "batches", "batches_verdict", *SYMPTOMS]


def rows_of(group: str, settings: Mapping[str, Any], seeds: int) -> list[dict[str, Any]]:
    """Train the group's runs, and diagnose them at the end of each task but the last."""
    found: list[dict[str, Any]] = []

    def on_step(session: Session[Supervised]) -> None:
        s, step = session.settings, session.progress.step
        data, sequence = _tasks(session)
        index = step // s.epochs_per_task
        if step == 0 or step % s.epochs_per_task or index == sequence.num_tasks:
            return
        learner = session.parts["learner"]
        x, y = first_images(sequence.task(index - 1), data, LARGE_BANK, learner.runs)
        given = TaskSource(Bank(x, learner.runs), (cross_entropy, y))
        drawn = reports(subject_of(learner), given, None, None, False, 3, None, index)
        order = RunStreams(session.plan.seeds)
        epoch = [*batches(sequence.task(index), data, order, s.batch_size, learner.runs)]
        task = TaskSource(None, batches=epoch, criterion=cross_entropy)
        own = reports(subject_of(learner), task, None, None, False, 2, len(epoch) * s.epochs_per_task, index)
        for name, of_drawn, of_own in zip(session.plan.names, drawn, own, strict=True):
            found.append({"group": group, "run": str(name), "task": index} | _numbers(of_drawn, of_own))
            print(found[-1], file=sys.stderr, flush=True)

    with TemporaryDirectory() as folder:
        given = {"preset": "demo", "seeds": seeds, "measure_every_updates": 0, **settings}
        run = supervised.run(out=f"{folder}/run", on_step=on_step, **given)
        accuracy = {str(name): curves["task/train_accuracy"].values for name, curves in run.metrics().items()}
    for row in found:
        row["accuracy"], row["next"] = accuracy[row["run"]][row["task"] - 1 : row["task"] + 1]
    return found


def rows_of_critics(seeds: int) -> Iterator[dict[str, Any]]:
    """Train the agents of the study rl/continual-cartpole, and diagnose their critics at the end of each task."""
    for method, settings in METHODS.items():
        states: list[Any] = []

        def on_step(session: Session[Train], states: list[Any] = states) -> None:
            if session.progress.step % SWITCH == 0 and session.progress.step:
                states.append(deepcopy(session.parts["agent"].learners["critic"].state_dict()))

        with TemporaryDirectory() as folder:
            agent = AGENT | {"layer_norm": method == "LayerNorm"}
            run = train.run(**AGENTS, agent=agent, seeds=seeds, out=f"{folder}/run", on_step=on_step, **settings)
            returns = {str(name): curves["task/return"].values for name, curves in run.metrics().items()}
            with closing(OfAgents(run, "cpu", 0)) as source:
                for task, state in enumerate(states[:-1], start=1):
                    subject, data = source.trial(Item(0, "random", "critic"))
                    source._agent.learners["critic"].load_state_dict(state)
                    every = reports(subject, data, None, None, False, 3, None, task)
                    for name, report in zip(source.plan.names, every, strict=True):
                        row = {"group": CRITICS, "run": f"{method}, {name.in_words}", "task": task} | _numbers(report)
                        row["accuracy"], row["next"] = returns[str(name)][task - 1 : task + 1]
                        yield row


def is_held_out(row: Mapping[str, str]) -> bool:
    """Whether the row is of a network for labels, of a group on which no threshold was chosen."""
    return row["group"] not in ("relu", CRITICS)


def is_lost(row: Mapping[str, str]) -> bool:
    """Whether the next task ends below the accuracy, or for critics below the return, that counts as learned."""
    return float(row["next"]) < (LOST_RETURN if row["group"] == CRITICS else LOST)


@cache
def _tasks(session: Session[Supervised]) -> tuple[Data, TaskSequence]:
    """The data and tasks that the session's runs learn."""
    s = session.settings
    data = load(s.data.name, **s.data.settings)
    kind: Any = TASKS[s.task.name]
    return data, kind(data, [derive(n, supervised.TASK) for n in session.plan.seeds], s.num_tasks, **s.task.settings)


def _numbers(drawn: Report, own: Report | None = None) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(["drawn", "drawn_low", "drawn_high"], drawn.evidence[LONGER], strict=True))
    found |= {"short": drawn.evidence[NOW].mean, "verdict": drawn.verdict}
    if own is not None:
        found |= {"batches": own.evidence[NOW].mean, "batches_verdict": own.verdict}
    found |= {kind: drawn.evidence[f"{NOW}/{kind}"].mean for kind in drawn.protocol["targets"]}
    return found | {name: drawn.symptoms[name][0] for name in SYMPTOMS if name in drawn.symptoms}


# --- what the rows say ------------------------------------------------------------------------------------------------


def auroc(score: Sequence[float], lost: Sequence[bool]) -> float:
    """The probability that a boundary before a lost task scores below one before another; ties count half."""
    values, bad = np.array(score), np.array(lost, bool)
    a, b = values[bad][:, None], values[~bad][None]
    known = a.size and b.size and not np.isnan(values).any()
    return float(((a < b) + 0.5 * (a == b)).mean()) if known else float("nan")


def show(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the AUROC of every measure, by group, and what followed each verdict."""
    groups = ["relu", *dict.fromkeys(r["group"] for r in rows if r["group"] != "relu"), "all but these"]
    learned = ("drawn", "short", "batches")
    print(f"{'':24}{'rows':>6}{'lost':>6}" + "".join(f"{s:>{14 if s in SYMPTOMS else 8}}" for s in learned + SYMPTOMS))
    for group in groups:
        some = [r for r in rows if r["group"] == group or (group == "all but these" and is_held_out(r))]
        lost = [is_lost(r) for r in some]
        line = f"{group:24}{len(some):6}{sum(lost):6}"
        for measure in learned + SYMPTOMS:
            sign = -1 if measure in GROW else 1
            value = auroc([sign * float(r.get(measure) or "nan") for r in some], lost)
            line += f"{value:{14 if measure in SYMPTOMS else 8}.3f}"
        print(line)
    labels, critics = [*filter(is_held_out, rows)], [r for r in rows if r["group"] == CRITICS]
    _show_verdicts("the next task's accuracy", "verdict", labels, ".2f")
    _show_verdicts("the next task's accuracy", "batches_verdict", labels, ".2f")
    _show_verdicts("the next task's return", "verdict", critics, ".0f")


def _show_verdicts(what: str, column: str, rows: Sequence[Mapping[str, str]], form: str) -> None:
    """Print what followed each verdict of a column."""
    print(f"\n{column:28}boundaries   {what}: least, median, greatest   lost")
    for verdict in ("plastic", "not detectable", "losing", "lost"):
        some = [r for r in rows if r[column] == verdict]
        if some:
            least, median, greatest = np.quantile([float(r["next"]) for r in some], [0, 0.5, 1])
            numbers = f"{least:22{form}}{median:8{form}}{greatest:8{form}}{sum(map(is_lost, some)) / len(some):25.0%}"
            print(f"{verdict:28}{len(some):6}{numbers}")


def draw(rows: Sequence[Mapping[str, str]], out: Path) -> None:
    """Draw what the next task reached after each verdict, a point for each boundary outside the group `relu`."""
    jitter = np.random.default_rng(0)
    columns = {"batches_verdict": "verdict from the next task", "verdict": "verdict from drawn targets"}
    verdicts = ("plastic", "not detectable", "losing", "lost")
    with mpl.rc_context(STYLE):
        figure, both = panels(2, 2, height=2.4, sharey=True)
        for axes, (column, title) in zip(both, columns.items(), strict=True):
            for place, verdict in enumerate(verdicts):
                some = [r for r in rows if r[column] == verdict and is_held_out(r)]
                for easy, color in ((False, PALETTE[0]), (True, PALETTE[1])):
                    y = [float(r["next"]) for r in some if (r["group"] == "permuted pixels") is easy]
                    axes.scatter(place + jitter.uniform(-0.3, 0.3, len(y)), y, s=7, color=color, alpha=0.6, lw=0)
            axes.axhline(LOST, color="0.7", lw=0.6, zorder=0)
            axes.set_xticks(range(len(verdicts)), verdicts)
            axes.set_title(title)
        both[0].set_ylabel("accuracy of the next task")
        marks = {"new labels": PALETTE[0], "permuted pixels": PALETTE[1]}
        legend(figure, {name: Line2D([], [], ls="", marker="o", ms=4, color=c) for name, c in marks.items()})
        figure.savefig(out, dpi=200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--figure", type=Path, help="a picture of what the rows say")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=[*GROUPS, CRITICS], help="one group, added to the file")
    a = parser.parse_args()
    if not (a.show or a.figure):
        new = not a.out.exists()
        with a.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            for name, settings in GROUPS.items():
                if a.only in (None, name):
                    writer.writerows(rows_of(name, settings, a.seeds))
                    file.flush()
            if a.only in (None, CRITICS):
                for row in rows_of_critics(a.seeds):
                    writer.writerow(row)
                    file.flush()
    with a.out.open(newline="") as file:
        found = [*csv.DictReader(file)]
    show(found)
    if a.figure:
        draw(found, a.figure)
