"""Lists among the settings: what they train side by side, how runs are named, and that each is as it would be alone."""

import csv
import math
import re
from dataclasses import replace

import folders
import pytest
from conftest import StopAfter, once, refused
from folders import go, resume

from rl_plasticity import supervised, train
from rl_plasticity.configs.commands import Supervised, Train, period
from rl_plasticity.configs.schema import load, load_saved
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Chain, SideBySide
from rl_plasticity.runs import naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.plan import Plan, foretold, say_what_never_comes, variants

# train makes 60 updates of 16 transitions, supervised 12 of 100 images.
PENDULUM = [*folders.PENDULUM, "total_env_steps=50", "replay_ratio=2", "eval_every_env_steps=50"]
PENDULUM = once([*PENDULUM, "measure_every_updates=30"])
DIGITS = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2"]
DIGITS += ["device=cpu", "compile=false", "threads=1", "log_every_updates=2"]
SHORT = [a for a in PENDULUM if not a.startswith(("log_every", "measure_every"))]


def run(module, arguments, out):
    folder = go(module.command, once([*arguments, f"out={out}"]))
    with (folder / "metrics.csv").open() as file:
        return {(r["run"], r["step"], r["name"]): float(r["value"]) for r in csv.DictReader(file)}


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


CHOICES = {  # what stands side by side, its name there, and the same alone
    "values": (
        ["reg=spectral", "reg.coef=[1e-3,1e-1]", "reset=periodic", "reset.every_updates=[12,20]"],
        "reg.coef=0.001 reset.every_updates=20",
        ["reg=spectral", "reg.coef=1e-3", "reset=periodic", "reset.every_updates=20"],
    ),
    "names": (
        ["reg=[none,swr,spectral]", "reset=[none,periodic]", "reset.periodic.every_updates=12"],
        "reg.name=spectral reset.name=periodic",
        ["reg=spectral", "reset=periodic", "reset.every_updates=12"],
    ),
}


@pytest.mark.parametrize(
    ("module", "base", "choice"),
    [(train, PENDULUM, "values"), (supervised, [*DIGITS, "epochs_per_task=4"], "names")],
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
    folder = go(module.command, parts, StopAfter(45 if module is train else 5))
    resume(folder, command=module.command)
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / "together" / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reg=spectral", "reg.coef=[]"], ["reg.coef", "got []"]),
        (["reg=spectral", "reg.coef=[1,1]"], ["reg.coef", "got [1, 1]"]),
        (["reg=spectral", "reg.coef=[1,high]"], ["reg.coef", "from 0 up", "'high'"]),
        (["reg=spectral", "reg.coef=[1,-1]"], ["coef", "from 0 up"]),
        (["seed=[1,2]"], ["seed", "an integer"]),
        (["reset=[]"], ["reset", "interventions", "got []"]),
        (["reset=[head,head]"], ["reset", "interventions", "got ['head', 'head']"]),
        (["reset=[none,head]", "reset.every_updates=9"], ["'reset.head.every_updates'"]),
    ],
)
def test_lists_that_cannot_be_trained_are_one_line(arguments, said, tmp_path):
    refused(lambda: train.command.prepare([*arguments, f"out={tmp_path / 'run'}"]), *said)
    assert not (tmp_path / "run").exists()


CBP = ["reg=continual_backprop", "reg.maturity=50"]
SAID = re.compile("first action|(?:no|last) reset|measured|logged")


def told(module, arguments, capsys):
    """What is said of settings before a run: the lines of what will not come of it."""
    s = load(module.command.kind, once([*(PENDULUM if module is train else DIGITS), *arguments]))
    module.build(s, Plan.of(s)).close()
    return [line for line in capsys.readouterr().err.splitlines() if SAID.search(line)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*CBP, "reg.coef=1e-3"], "continual_backprop comes at update 113"),  # 1 / 0.016 later
        ([*CBP, "reg.coef=1e-2"], ""),
        ([*CBP, "reg.coef=[1e-3,1e-2]"], "continual_backprop comes at update 113 in 1 of 2 runs"),
        ([*CBP, "reg.coef=1e-2", "reg.from_update=30"], "continual_backprop comes at update 87"),
        ([*CBP, "reg.coef=1e-2", "reg.until_update=9"], "continual_backprop never comes"),
        (["reg=self_normalized_resets"], "self_normalized_resets comes at update 1001"),
        (["reg=self_normalized_resets", "reg.most=960"], ""),
        (["reg=swr+hare_tortoise"], "hare_tortoise comes at update 10000"),
        (["reg=normalize_project", "reg.every_updates=61"], "normalize_project comes at"),
        (["reg=wrs", "reg.every_updates=61"], ""),  # gains and shifts decay all the time
        (["reg=wrs", "reg.every_updates=61", "reg.norm_decay=0"], "wrs comes at update 61"),
        (["reg=wrs", "reg.every_updates=61", "replay_ratio=0"], ""),  # no update at all
        (["reset=periodic", "reset.every_updates=20"], "reset.every_updates=17"),
        (["reset=head", "reset.every_updates=55"], "5 updates"),
        (["reset=head", "reset.every_updates=54"], ""),  # a ninth of the period follows
        (["reset=redo", "reset.every_updates=20"], ""),  # which forgets single units
        (["measure_every_updates=61"], "measure_every_updates=61"),
        (["measure_every_updates=60"], "measure_every_updates=auto"),
        (["measure_every_updates=31"], "measure_every_updates=31"),
        (["measure_every_updates=30", "log_every_updates=60"], ""),
        (["measure_every_updates=0"], ""),
        (["measure_every_updates=0", "log_every_updates=61"], "log_every_updates=61"),
        (["log_every_updates=61", "replay_ratio=0"], ""),  # no update at all
        (["log_every_updates=auto", "measure_every_updates=auto"], ""),
    ],
)
def test_what_a_run_of_the_rl_command_is_too_short_for_is_said_once(arguments, says, capsys):
    lines = told(train, arguments, capsys)
    assert len(lines) == bool(says)
    assert says in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (CBP, "continual_backprop comes at update 675"),
        (["reset=redo"], ""),  # at the change of task
        (["reset=redo", "reset.every_tasks=null"], "reset.every_updates=1000"),
        (["reset=redo", "reset.every_updates=13"], "reset.every_updates=13"),
        (["reset=redo", "reset.every_updates=12"], ""),
        (["reset=periodic", "reset.every_updates=6", "reset.every_tasks=null"], " 0 updates"),
        (["reset=periodic"], ""),
        (["reset=redo", "reset.every_updates=null", "reset.every_tasks=2"], "reset.every_tasks=2"),
        (["log_every_updates=13"], "log_every_updates=13"),
        (["measure_every_updates=6"], ""),  # at the end of each of both tasks
        (["measure_every_updates=7"], "measure_every_updates=7"),
        (["measure_every_updates=7", "measure_every_epochs=1"], ""),
        (["measure_every_updates=7", "num_tasks=1"], ""),  # no period would change it
    ],
)
def test_what_a_supervised_run_is_too_short_for_is_said_once(arguments, says, capsys):
    lines = told(supervised, arguments, capsys)
    assert len(lines) == bool(says)
    assert says in "".join(lines)


@pytest.mark.parametrize(
    ("updates", "longest", "expected"),
    [(31_680, 16_000, 500), (15_840_000, 16_000, 16_000), (6000, 500, 100), (59, 500, 1), (0, 500, 1), (90, 500, 2)],
)
def test_a_period_is_a_sixtieth_of_the_run_and_long_runs_keep_theirs(updates, longest, expected):
    assert period(updates, longest) == expected


def test_a_short_run_without_periods_logs_and_measures_about_sixty_times_and_is_known_by_its_folder(tmp_path):
    folder = RunFolder(go(train.command, once([*SHORT, "replay_ratio=3", f"out={tmp_path}/run"])))
    saved = load_saved(Train, folder.settings)
    assert (saved.log_every_updates, saved.measure_every_updates) == (2, 2)  # of 90 updates
    metrics = folder.metrics()[RunName((), 0)]
    assert len(metrics["critic/loss"].steps) > 20  # at an env step that logs twice, the last one counts
    assert len(metrics["critic/distance"].steps) > 20
    asked = load(Train, once([*SHORT, "replay_ratio=3"]))
    assert naming.difference(folder, asked) == ""
    assert "log_every_updates" in naming.difference(folder, replace(asked, log_every_updates=7))
    assert "measure_every" not in naming.name(asked)


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
        "plasticity is measured every 30 updates, losses are logged every 20 updates, evaluated every 50 env steps "
        "(episodes: 1) and at the end"
    )
    assert where == f"results in {session.folder}"


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [  # train makes 60 updates, supervised 12
        (train, ["measure_every_updates=61"], "plasticity is measured at the start only, losses are"),
        (train, ["measure_every_updates=0"], "losses are logged every 20 updates"),
        (train, ["log_every_updates=61"], "plasticity is measured every 30 updates, evaluated"),
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


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["reset=[none,periodic]", "reset.periodic.every_updates=500"], "reset.periodic.every_updates=500"),
        (["reset=[head,periodic]", "reset.periodic.every_updates=[40,500]", "reset.head.every_updates=40"],
         "reset.periodic.every_updates=500"),
        (["reset=[head,periodic]", "reset.periodic.every_updates=500", "reset.head.every_updates=500"],
         "reset.periodic.every_updates=500"),
        (["reset=[periodic]", "reset.periodic.every_updates=500"], "reset.periodic.every_updates=500"),
        (["reset=periodic", "reset.every_updates=500"], "reset.every_updates=500"),
    ],
)  # fmt: skip
def test_a_reset_that_never_comes_is_named_by_the_setting_that_changes_it(given, names, capsys):
    s = load(train.command.kind, once([*PENDULUM, *given]))
    say_what_never_comes(s, Plan.of(s), {}, updates=100, tasks=1)
    assert f"no reset will come: {names} " in capsys.readouterr().err
