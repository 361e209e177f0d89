"""Lists among the settings: what they train side by side, how runs are named, and that each is as it would be alone."""

import csv
import math
import re
from dataclasses import replace

import pytest
import torch
from conftest import StopAfter, once
from folders import go, resume

from rl_plasticity import supervised, train
from rl_plasticity.configs.commands import Supervised, Train, period
from rl_plasticity.configs.schema import load, load_saved
from rl_plasticity.errors import SettingsError
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, SideBySide
from rl_plasticity.runs import naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan, foretold, variants

PENDULUM = [
    "env=gym:Pendulum-v1",
    "env.action_repeat=4",
    "agent.hidden=[16,16]",
    "batch_size=16",
    "eval_episodes=1",
    "random_env_steps=20",
]
PENDULUM += ["total_env_steps=50", "replay_ratio=2", "eval_every_env_steps=50", "log_every_updates=20"]
PENDULUM += ["measure_every_updates=40", "device=cpu", "compile=false", "threads=1"]
DIGITS = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2"]
DIGITS += ["device=cpu", "compile=false", "threads=1", "log_every_updates=2"]


def run(module, arguments, out):
    folder = go(module.command, once([*arguments, f"out={out}"]))
    with (folder / "metrics.csv").open() as file:
        return {(r["run"], r["step"], r["name"]): float(r["value"]) for r in csv.DictReader(file)}


def names(*arguments, kind=Train):
    return [str(name) for name in Plan.of(load(kind, arguments)).names]


def test_runs_are_named_by_their_seed_and_by_what_sets_them_apart():
    assert names("seed=3", "seeds=2", "reg=spectral") == ["3", "4"]
    assert names("reg=spectral", "reg.coef=[1e-5,1e-4]", "seeds=2") == [
        "reg.coef=1e-05 seed=0",
        "reg.coef=1e-05 seed=1",
        "reg.coef=0.0001 seed=0",
        "reg.coef=0.0001 seed=1",
    ]
    assert names("reg=[none,spectral]", "reg.spectral.coef=[1,2]", "reset=periodic", "reset.every_updates=[5,6]") == [
        "reg.name=none reset.every_updates=5 seed=0",
        "reg.name=none reset.every_updates=6 seed=0",
        "reg.name=spectral reg.coef=1 reset.every_updates=5 seed=0",
        "reg.name=spectral reg.coef=1 reset.every_updates=6 seed=0",
        "reg.name=spectral reg.coef=2 reset.every_updates=5 seed=0",
        "reg.name=spectral reg.coef=2 reset.every_updates=6 seed=0",
    ]
    assert names("reset=[none,periodic]", "reset.periodic.every_updates=[5,6]") == [
        "reset.name=none seed=0",
        "reset.name=periodic reset.every_updates=5 seed=0",
        "reset.name=periodic reset.every_updates=6 seed=0",
    ]
    assert names("reg=[spectral+l2,swr]", kind=Supervised) == ["reg.name=spectral+l2 seed=0", "reg.name=swr seed=0"]


def test_every_setting_gets_the_same_seeds():
    assert Plan.of(load(Train, ["reg=[none,swr]", "seed=4", "seeds=2"])).seeds == [4, 5, 4, 5]


def test_settings_that_differ_in_strengths_are_one_regularizer_with_a_strength_for_each_run():
    s = load(Train, ["reg=swr", "reg.coef=[0.1,0.2]", "reg.scope=[all,preserving]", "seeds=2"])
    plan = Plan.of(s)
    regularizer = plan.regularize(MLP((3, 4, 2), plan.seeds))
    assert isinstance(regularizer, SideBySide)  # for the two scopes
    strengths = [list(zip(p.coef.tolist(), [p.scope] * len(p.coef), strict=True)) for p in regularizer.parts]
    assert len(strengths) == 2
    settings = [(one.reg.coef, one.reg.scope) for one in variants(s) for _ in range(2)]
    assert [(pytest.approx(c), scope) for part in strengths for c, scope in part] == settings


def test_a_chain_may_stand_beside_others():
    s = load(Train, ["reg=[none,spectral+l2]"])
    plan = Plan.of(s)
    parts = plan.regularize(MLP((3, 4, 2), plan.seeds)).parts
    assert [type(p).__name__ for p in parts] == ["Unregularized", "Chain"]
    assert isinstance(parts[1], Chain)


def test_each_reset_period_is_for_its_own_runs():
    s = load(Train, ["reg=[none,swr]", "reset=periodic", "reset.every_updates=[10,20]", "seeds=2"])
    found = [(i.every_updates, runs) for i, runs in Plan.of(s).interventions]
    assert found == [(10, [0, 1, 4, 5]), (20, [2, 3, 6, 7])]
    assert [runs for _, runs in Plan.of(load(Train, ["reset=periodic"])).interventions] == [None]
    assert Plan.of(load(Train, [])).interventions == []


def test_each_reset_of_a_list_is_for_its_own_runs_and_none_for_no_run():
    s = load(Train, ["reg=[none,swr]", "reset=[none,periodic,head]", "reset.head.every_updates=20", "seeds=2"])
    found = [(type(i).__name__, i.every_updates, runs) for i, runs in Plan.of(s).interventions]
    assert found == [("PeriodicReset", 2_560_000, [2, 3, 8, 9]), ("HeadReset", 20, [4, 5, 10, 11])]
    of_tasks = Plan.of(load(Supervised, ["reset=[none,periodic,head]", "reset.head.every_updates=20"])).interventions
    assert [(i.every_updates, i.every_tasks, runs) for i, runs in of_tasks] == [(None, 1, [1]), (20, None, [2])]


CHOICES = [  # what stands side by side, and the same alone, by its name there
    (
        ["reg=spectral", "reg.coef=[1e-3,1e-1]", "reset=periodic", "reset.every_updates=[12,20]"],
        "reg.coef=0.001 reset.every_updates=20",
        ["reg=spectral", "reg.coef=1e-3", "reset=periodic", "reset.every_updates=20"],
    ),
    (
        ["reg=[none,swr,spectral]", "reset=[none,periodic]", "reset.periodic.every_updates=12"],
        "reg.name=spectral reset.name=periodic",
        ["reg=spectral", "reset=periodic", "reset.every_updates=12"],
    ),
]


@pytest.mark.parametrize(("together", "name_there", "alone"), CHOICES, ids=["values", "names"])
@pytest.mark.parametrize(("module", "base"), [(train, PENDULUM), (supervised, DIGITS)], ids=["train", "supervised"])
def test_runs_side_by_side_equal_the_same_runs_in_processes_of_their_own(
    module, base, together, name_there, alone, tmp_path
):
    # A batched product may add in another order, and Adam's first steps make a rounding error near 0 a whole step;
    # a wrong strength or method shows in the penalty, which differs by factors.
    if module is supervised:
        base = [*base, "epochs_per_task=4"]
    found = run(module, [*base, *together, "seeds=2"], tmp_path / "together")
    for (which, step, name), number in run(module, [*base, *alone, "seeds=2"], tmp_path / "alone").items():
        if math.isfinite(number) and "condition" not in name:
            assert found[f"{name_there} seed={which}", step, name] == pytest.approx(
                number,
                rel=0.2 if "penalty" in name or "weight_shape" in name else 5e-2,
                abs=0 if "penalty" in name else 1e-2,
            ), (which, step, name)
    assert len({r for r, _, _ in found}) == 2 * len(names(*together, kind=module.command.kind))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reg=spectral", "reg.coef=[]"], "reg.coef: expected one or more different values, got []"),
        (["reg=spectral", "reg.coef=[1,1]"], "reg.coef: expected one or more different values, got [1, 1]"),
        (["reg=spectral", "reg.coef=[1,high]"], "reg.coef must be a number from 0 up, got 'high'"),
        (["reg=spectral", "reg.coef=[1,-1]"], "coef must be a number from 0 up"),
        (["seed=[1,2]"], "seed must be an integer"),
        (["reset=[]"], "reset: expected one or more different interventions, got []"),
        (["reset=[head,head]"], "reset: expected one or more different interventions, got ['head', 'head']"),
        (["reset=[none,periodik]"], "unknown reset 'periodik'; did you mean 'periodic'?"),
        (["reset=[none,head]", "reset.every_updates=9"], "did you mean 'reset.head.every_updates'?"),
    ],
)
def test_lists_that_cannot_be_trained_are_one_line(arguments, said, tmp_path):
    with pytest.raises(SettingsError) as error:
        train.command.prepare([*arguments, f"out={tmp_path / 'run'}"])
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_list_resumes_to_the_same_numbers(tmp_path):
    arguments = [*PENDULUM, "reg=[none,spectral]", "reset=[none,periodic]", "reset.periodic.every_updates=[30,50]"]
    whole = run(train, arguments, tmp_path / "whole")
    folder = go(train.command, once([*arguments, f"out={tmp_path / 'parts'}"]), StopAfter(45))
    resume(folder)
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
    assert all(torch.isfinite(torch.tensor(v)) for (_, _, n), v in whole.items() if "condition" not in n)


CBP = ["reg=continual_backprop", "reg.maturity=50"]


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [  # train makes 60 updates of 16 transitions, supervised 12 of 100 images
        (
            train,
            [*CBP, "reg.coef=1e-3"],
            ["the first action of continual_backprop comes at update 113"],
        ),  # 1 / 0.016 later
        (train, [*CBP, "reg.coef=1e-2"], []),
        (train, [*CBP, "reg.coef=[1e-3,1e-2]"], ["of continual_backprop comes at update 113 in 1 of 2 runs"]),
        (
            train,
            [*CBP, "reg.coef=1e-2", "reg.from_update=30"],
            ["the first action of continual_backprop comes at update 87"],
        ),
        (train, [*CBP, "reg.coef=1e-2", "reg.until_update=9"], ["the first action of continual_backprop never comes"]),
        (train, ["reg=self_normalized_resets"], ["the first action of self_normalized_resets comes at update 1001"]),
        (train, ["reg=self_normalized_resets", "reg.most=960"], []),
        (train, ["reg=swr+hare_tortoise"], ["the first action of hare_tortoise comes at update 10000"]),
        (train, ["reg=normalize_project", "reg.every_updates=61"], ["the first action of normalize_project comes at"]),
        (train, ["reg=wrs", "reg.every_updates=61"], []),  # gains and shifts decay all the time
        (
            train,
            ["reg=wrs", "reg.every_updates=61", "reg.norm_decay=0"],
            ["the first action of wrs comes at update 61"],
        ),
        (train, ["reg=wrs", "reg.every_updates=61", "replay_ratio=0"], []),  # no update at all
        (supervised, [*CBP], ["the first action of continual_backprop comes at update 675"]),
        (supervised, ["reset=redo"], []),  # at the change of task
        (
            supervised,
            ["reset=redo", "reset.every_tasks=null"],
            ["no reset will come: reset.every_updates=1000 (the run"],
        ),
        (supervised, ["reset=redo", "reset.every_updates=13"], ["no reset will come: reset.every_updates=13 (the run"]),
        (supervised, ["reset=redo", "reset.every_updates=12"], []),
        (
            train,
            ["reset=periodic", "reset.every_updates=20"],
            [
                "the last reset comes 0 updates before the end: reset.every_updates=20, and the run has 60; what is "
                "evaluated at the end has learned next to nothing since (reset.every_updates=17 leaves half a period)"
            ],
        ),
        (train, ["reset=head", "reset.every_updates=55"], ["the last reset comes 5 updates before the end"]),
        (train, ["reset=head", "reset.every_updates=54"], []),  # a ninth of the period follows
        (train, ["reset=redo", "reset.every_updates=20"], []),  # which forgets single units
        (supervised, ["reset=periodic", "reset.every_updates=6", "reset.every_tasks=null"], ["the last reset comes 0"]),
        (supervised, ["reset=periodic"], []),
        (
            supervised,
            ["reset=redo", "reset.every_updates=null", "reset.every_tasks=2"],
            ["come: reset.every_tasks=2 (it"],
        ),
    ],
)
def test_what_a_run_is_too_short_for_is_said_once(module, arguments, said, capsys):
    base = PENDULUM if module is train else DIGITS
    s = load(module.command.kind, once([*base, *arguments]))
    module.build(s, Plan.of(s)).close()
    lines = [line for line in capsys.readouterr().err.splitlines() if re.search("first action|(no|last) reset", line)]
    assert len(lines) == len(said)
    assert "".join(said) in "".join(lines)


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [  # train makes 60 updates, supervised 12
        (
            train,
            ["measure_every_updates=61"],
            ["measured at the start and at most once later: measure_every_updates=61"],
        ),
        (
            train,
            ["measure_every_updates=60"],
            ["run has 60 updates; measure_every_updates=auto takes a sixtieth of them"],
        ),
        (
            train,
            ["measure_every_updates=31"],
            ["measured at the start and at most once later: measure_every_updates=31"],
        ),
        (train, ["measure_every_updates=30", "log_every_updates=60"], []),
        (train, ["measure_every_updates=0"], []),
        (
            train,
            ["measure_every_updates=0", "log_every_updates=61"],
            ["no loss will be logged: log_every_updates=61, and the run has 60 updates; log_every_updates=auto"],
        ),
        (train, ["log_every_updates=61", "replay_ratio=0"], []),  # no update at all
        (train, ["log_every_updates=auto", "measure_every_updates=auto"], []),
        (supervised, ["log_every_updates=13"], ["no loss will be logged: log_every_updates=13"]),
        (supervised, ["measure_every_updates=6"], []),  # at the end of each of both tasks
        (supervised, ["measure_every_updates=7"], ["measured at the start and at most once later: measure_every_upd"]),
        (supervised, ["measure_every_updates=7", "measure_every_epochs=1"], []),
        (supervised, ["measure_every_updates=7", "num_tasks=1"], []),  # no period would change it
    ],
)
def test_what_will_never_be_logged_or_measured_is_said_before_the_run(module, arguments, said, capsys):
    s = load(module.command.kind, once([*(PENDULUM if module is train else DIGITS), *arguments]))
    module.build(s, Plan.of(s)).close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "measured" in line or "logged" in line]
    assert len(lines) == len(said)
    assert "".join(said) in "".join(lines)


@pytest.mark.parametrize(
    ("updates", "longest", "expected"),
    [(31_680, 16_000, 500), (15_840_000, 16_000, 16_000), (6000, 500, 100), (59, 500, 1), (0, 500, 1), (90, 500, 2)],
)
def test_a_period_is_a_sixtieth_of_the_run_and_long_runs_keep_theirs(updates, longest, expected):
    assert period(updates, longest) == expected


def test_a_short_run_without_periods_logs_losses_and_measures_about_sixty_times(tmp_path):
    short = [a for a in PENDULUM if not a.startswith(("log_every", "measure_every"))]
    folder = go(train.command, once([*short, "replay_ratio=3", f"out={tmp_path}/run"]))
    saved = load_saved(Train, RunFolder(folder).settings)
    assert (saved.log_every_updates, saved.measure_every_updates) == (2, 2)  # of 90 updates
    metrics = RunFolder(folder).metrics()[RunName((), 0)]
    assert len(metrics["critic/loss"].steps) > 20  # at an env step that logs twice, the last one counts
    assert len(metrics["critic/distance"].steps) > 20


def test_a_run_is_known_by_its_folder_whatever_its_periods_were_decided_to(tmp_path):
    short = [a for a in PENDULUM if not a.startswith(("log_every", "measure_every"))]
    asked = load(Train, once([*short, "measure_every_updates=0"]))
    folder = go(train.command, once([*short, "measure_every_updates=0", f"out={tmp_path}/run"]))
    assert naming.difference(RunFolder(folder), asked) == ""
    assert "log_every_updates" in naming.difference(RunFolder(folder), replace(asked, log_every_updates=7))
    assert "measure_every" not in naming.name(load(Train, short))


def test_four_lines_say_what_is_going_to_happen(tmp_path):
    session, built = train.command.prepare(
        once([*PENDULUM, "reg=[none,l2]", "reg.l2.coef=[1e-3,1e-2]", "reset=[none,periodic]", "seeds=2", "seed=3",
              "reset.periodic.every_updates=5", f"out={tmp_path}/run", "total_env_steps=60"])
    )  # fmt: skip
    built.close()
    session.lock.release()
    runs, updates, often, where = train.command.foretold(session, built)
    resets = "reset=none,periodic"  # none has no coef: these are no product of three lists
    combined = f"(reg=none x {resets} | reg=l2 x reg.coef=0.001,0.01 x {resets})"
    assert runs == f"12 runs at once: {combined} x seeds 3 to 4"
    assert updates == "updates of each: 80, in 60 env steps"
    assert often == (
        "plasticity is measured every 40 updates, losses are logged every 20 updates, evaluated every 50 env steps "
        "(episodes: 1) and at the end"
    )
    assert where == f"results in {session.folder}"


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [  # train makes 60 updates, supervised 12
        (train, ["measure_every_updates=61"], "plasticity is measured at the start only, losses are"),
        (train, ["measure_every_updates=0"], "losses are logged every 20 updates"),
        (train, ["log_every_updates=61"], "plasticity is measured every 40 updates, evaluated"),
        (train, ["replay_ratio=0"], "evaluated every 50 env steps"),
        (supervised, ["measure_every_updates=13"], "plasticity is measured at the start and the end only, losses are"),
    ],
)
def test_what_is_never_done_is_not_foretold(module, arguments, said):
    s = load(module.command.kind, once([*(PENDULUM if module is train else DIGITS), *arguments]))
    plan = Plan.of(s)
    built = module.build(s, plan)
    lines = foretold(s, plan, *module.command.length(s, built))
    built.close()
    assert lines[-2].startswith(said)
    assert any("updates of each" in line for line in lines) == ("replay_ratio=0" not in arguments)
