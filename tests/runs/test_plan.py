"""Lists among the settings: what they train side by side, how runs are named, and that each is as it would be alone."""

import math
import re

import folders
import pytest
from conftest import StopAfter, once, refused
from folders import go, resume, rows

from rl_plasticity import supervised, train
from rl_plasticity.configs.commands import Supervised, Train, period
from rl_plasticity.configs.schema import load
from rl_plasticity.errors import counted
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import SideBySide
from rl_plasticity.runs import machine
from rl_plasticity.runs.plan import Plan, foretold, variants, warn_of_what_never_comes

# train makes 60 updates of 16 transitions, supervised 12 of 100 images.
PENDULUM = [*folders.PENDULUM, "total_env_steps=50", "replay_ratio=2", "eval_every_env_steps=50"]
PENDULUM = once([*PENDULUM, "measure_every_updates=30"])
DIGITS = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2"]
DIGITS += ["device=cpu", "compile=false", "threads=1", "log_every_updates=2"]


def run(module, arguments, out):
    folder = go(module.command, once([*arguments, f"out={out}"]))
    return {(r["run"], r["step"], r["name"]): float(r["value"]) for r in rows(folder)}


def names(*arguments, kind=Train):
    return [str(name) for name in Plan.of(load(kind, arguments)).names]


def test_runs_are_named_by_their_seed_and_by_what_sets_them_apart():
    assert names("seed=3", "seeds=2", "reg=spectral") == ["3", "4"]
    seeds = [f"reg.coef={c} seed={n}" for c in ("1e-05", "0.0001") for n in (0, 1)]
    assert names("reg=spectral", "reg.coef=[1e-5,1e-4]", "seeds=2") == seeds
    regs = ("reg.name=none", "reg.name=spectral reg.coef=1", "reg.name=spectral reg.coef=2")
    periods = [f"{reg} reset.every_updates={period} seed=0" for reg in regs for period in (5, 6)]
    given = ["reg=[none,spectral]", "reg.spectral.coef=[1,2]", "reset=periodic", "reset.every_updates=[5,6]"]
    assert names(*given) == periods
    resets = ("reset.name=none", *(f"reset.name=periodic reset.every_updates={period}" for period in (5, 6)))
    assert names("reset=[none,periodic]", "reset.periodic.every_updates=[5,6]") == [f"{r} seed=0" for r in resets]
    assert names("reg=[spectral+l2,swr]", kind=Supervised) == ["reg.name=spectral+l2 seed=0", "reg.name=swr seed=0"]
    assert Plan.of(load(Train, ["reg=[none,swr]", "seed=4", "seeds=2"])).seeds == [4, 5, 4, 5]


def test_settings_that_differ_in_strengths_are_one_regularizer_with_a_strength_for_each_run():
    s = load(Train, ["reg=swr", "reg.coef=[0.1,0.2]", "reg.scope=[all,preserving]", "seeds=2"])
    plan = Plan.of(s)
    regularizer = plan.make_regularizer(MLP((3, 4, 2), plan.seeds))
    assert isinstance(regularizer, SideBySide)  # for the two scopes
    strengths = [list(zip(p.coef.tolist(), [p.scope] * len(p.coef), strict=True)) for p in regularizer.parts]
    assert len(strengths) == 2
    settings = [(one.reg.coef, one.reg.scope) for one in variants(s) for _ in range(2)]
    assert [(pytest.approx(c), scope) for part in strengths for c, scope in part] == settings


def test_each_reset_and_each_of_its_periods_is_for_its_own_runs_and_none_for_no_run():
    def found(*arguments, kind=Train):
        plan = Plan.of(load(kind, ["reg=[none,swr]", "seeds=2", *arguments]))
        return [(type(i).__name__, i.every_updates, runs) for i, runs in plan.interventions]

    assert found("reset=periodic", "reset.every_updates=[10,20]") == [
        ("PeriodicReset", 10, [0, 1, 4, 5]), ("PeriodicReset", 20, [2, 3, 6, 7]),
    ]  # fmt: skip
    assert found("reset=[none,periodic,head]", "reset.head.every_updates=20") == [
        ("PeriodicReset", 2_560_000, [2, 3, 8, 9]), ("HeadReset", 20, [4, 5, 10, 11]),
    ]  # fmt: skip
    assert [runs for *_, runs in found("reset=periodic")] == [None]
    assert found() == []
    of_tasks = Plan.of(load(Supervised, ["reset=[none,periodic,head]", "reset.head.every_updates=20"])).interventions
    assert [(i.every_updates, i.every_tasks, runs) for i, runs in of_tasks] == [(None, 1, [1]), (20, None, [2])]


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_an_intervention_that_would_never_act_is_refused(name):
    s = load(Train, [f"reset={name}", "reset.every_updates=null"])
    refused(lambda: Plan.of(s), f"reset={name}", "every_updates or every_tasks")


def test_one_of_a_thing_is_named_in_the_singular(capsys):
    one = load(Supervised, once([*DIGITS, "num_tasks=1", "epochs_per_task=1", "data.train_size=100"]))
    parts = supervised.build(one, Plan.of(one))
    assert foretold(one, Plan.of(one), *supervised.length(one, parts))[:2] == [
        "1 run: seed 0",
        "1 update per run, in 1 task of 1 epoch, on cpu",
    ]
    parts.close()
    warn_of_what_never_comes(Plan.of(load(Train, ["reset=head", "reset.every_updates=3"])), 1, 1)
    assert "the run has 1 update, 1 task\n" in capsys.readouterr().err
    assert [counted(n, "step") for n in (0, 1, 1.2, 2)] == ["0 steps", "1 step", "1 step", "2 steps"]


BRIEF = [*PENDULUM, "replay_ratio=1", "total_env_steps=36", "measure_every_updates=12", "log_every_updates=5"]
CHOICES = {  # what stands side by side, its name there, and the same alone
    "values": (
        ["reg=spectral", "reg.coef=[1e-3,1e-1]", "reset=periodic", "reset.every_updates=[5,9]"],
        "reg.coef=0.001 reset.every_updates=9",
        ["reg=spectral", "reg.coef=1e-3", "reset=periodic", "reset.every_updates=9"],
    ),
    "names": (
        ["reg=[none,swr,spectral]", "reset=[none,periodic]", "reset.periodic.every_updates=12"],
        "reg.name=spectral reset.name=periodic",
        ["reg=spectral", "reset=periodic", "reset.every_updates=12"],
    ),
}


@pytest.mark.parametrize(
    ("module", "base", "choice"),
    [(train, BRIEF, "values"), (supervised, [*DIGITS, "epochs_per_task=4"], "names")],
    ids=["train", "supervised"],
)
def test_runs_side_by_side_equal_the_same_runs_alone_and_resume_to_the_same_numbers(module, base, choice, tmp_path):
    # A batched product may add in another order, and Adam's first steps make a rounding error near 0 a whole step;
    # a wrong strength or method shows in the penalty, which differs by factors.
    together, name_there, alone = CHOICES[choice]
    found = run(module, [*base, *together, "seeds=2"], tmp_path / "together")
    for (which, step, name), number in run(module, [*base, *alone, "seeds=2"], tmp_path / "alone").items():
        if math.isfinite(number) and "condition" not in name:
            of_penalty = "penalty" in name
            near = {"rel": 0.2 if of_penalty or "weight_shape" in name else 5e-2, "abs": 0 if of_penalty else 1e-2}
            assert found[f"{name_there} seed={which}", step, name] == pytest.approx(number, **near), (which, step, name)
    assert len({r for r, _, _ in found}) == 2 * len(names(*together, kind=module.command.kind))
    parts = once([*base, *together, "seeds=2", f"out={tmp_path / 'parts'}"])
    folder = go(module.command, parts, StopAfter(30 if module is train else 5))
    resume(folder, command=module.command)
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / "together" / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [  # train makes 60 updates, supervised 12 in 2 tasks
        (train, ["reset=[none,periodic]", "reset.periodic.every_updates=[20,61]"], "every_updates=20|every_updates=61"),
        (train, ["reset=head", "reset.every_updates=55"], "last reset comes 5 updates before"),
        (train, ["reset=head", "reset.every_updates=54"], ""),  # a ninth of the period follows
        (train, ["reset=redo", "reset.every_updates=20"], ""),  # which forgets single units
        (train, ["reset=head", "reset_once_after_updates=61"], "reset_once_after_updates=61"),
        (train, ["reg=swr+hare_tortoise"], "reg.hare_tortoise.every_updates=10000"),
        (train, ["reg=wrs", "reg.every_updates=61", "replay_ratio=0"], ""),  # no update at all
        (supervised, ["reset=periodic"], ""),  # at the change of task
        (supervised, ["reset=redo", "reset.every_updates=null", "reset.every_tasks=2"], "reset.every_tasks=2"),
    ],
)
def test_what_never_comes_or_comes_at_the_end_is_said_once(module, arguments, said, capsys):
    s = load(module.command.kind, once([*(PENDULUM if module is train else DIGITS), *arguments]))
    module.build(s, Plan.of(s)).close()
    lines = [
        line for line in capsys.readouterr().err.splitlines() if re.search("reset comes|no reset|never reached", line)
    ]
    assert len(lines) == (said.count("|") + 1 if said else 0)
    assert all(re.search(one, line) for one, line in zip(said.split("|"), lines, strict=False))


@pytest.mark.parametrize("free", [10, 1e9])
def test_a_replay_buffer_that_does_not_fit_into_memory_is_refused_before_anything_is_made(free, tmp_path, monkeypatch):
    monkeypatch.setattr(machine.Path, "read_text", lambda path: f"MemAvailable: {free:.0f} kB")
    asked = once([*PENDULUM, "buffer_size=5000", "total_env_steps=9000", "seeds=2", f"out={tmp_path / 'run'}"])
    if free == 10:
        said = ["buffer_size=5000", "2 runs", "0.00024 GB", "1.02e-05 GB are free"]
        refused(lambda: train.command.prepare(asked), *said)
        assert not (tmp_path / "run").exists()
    else:
        s = load(Train, asked)
        built = train.build(s, Plan.of(s))
        built.close()
        assert sum(t.nbytes for t in (built.buffer.obs, built.buffer.act, built.buffer.reward)) == 2 * 5001 * 5 * 4


@pytest.mark.parametrize(
    ("updates", "longest", "expected"),
    [(31_680, 16_000, 500), (15_840_000, 16_000, 16_000), (6000, 500, 100), (59, 500, 1), (0, 500, 1), (90, 500, 2)],
)
def test_a_period_is_a_sixtieth_of_the_run_and_long_runs_keep_theirs(updates, longest, expected):
    assert period(updates, longest) == expected
