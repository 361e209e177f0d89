import pytest

from rl_plasticity.benchmarks import making, suites
from rl_plasticity.benchmarks.suites import Method
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.regularizers import REGULARIZERS


@pytest.mark.parametrize("name", suites.NAMES)
def test_every_published_method_has_settings_that_every_task_of_a_suite_takes(name, tmp_path):
    suite = suites.load(name)
    for task in suite.tasks.values():
        for method in suites.published().values():
            own = task.own(method)
            candidates = task.runs(own, tmp_path, "choosing")
            scored = task.runs(
                own | {name: own[name].partition(",")[0] for name in suites.varied(own)}, tmp_path, "test"
            )
            assert len(scored) == 1
            seeds = {range(run.settings.seed, run.settings.seed + run.settings.seeds) for run in candidates}
            assert not any({*of_one} & {*range(scored[0].settings.seeds)} for of_one in seeds)


def test_every_regularizer_and_intervention_of_the_package_is_published():
    named = {value for method in suites.published().values() for value in method.by_name.values()}
    assert {*REGULARIZERS._built_in, *INTERVENTIONS._built_in} - {"none"} <= named


def test_strengths_train_side_by_side_and_learning_rates_apart(tmp_path):
    def arguments(settings, stage="choosing", chosen=None):
        runs = task.runs(task.own(Method("mine", settings)) | (chosen or {}), tmp_path, stage)
        return {argument for run in runs for argument in run.arguments}

    task = suites.load("quick").tasks["random-labels"]
    settings = ["reg=l2", "reg.coef=1e-4,1e-3", "layer_norm=true"]
    assert suites.varied(task.own(Method("mine", settings))) == ["lr", "reg.coef"]
    assert suites.varied({"net.widths": "[4,4],[8,8]", "reg": "l2,swr", "net.shape": "[3,3]"}) == ["net.widths", "reg"]
    several = {"reg": "l2", "reg.coef": "1,2", "net.widths": "[4,4],[8,8]", "lr": "1,2"}
    assert suites.side_by_side(several) == ["reg.coef"]
    assert suites.side_by_side(several | {"reg": "l2+swr"}) == []
    assert {"reg.coef=[1e-4,1e-3]", "net.layer_norm=true", "seeds=2", "lr=1e-3", "lr=3e-3"} <= arguments(settings)
    assert {"reg.coef=1e-3", "lr=1"} <= arguments(settings, "test", {"reg.coef": "1e-3", "lr": "1"})
    assert {"lr=7", "net.widths=[3,3]"} <= arguments(["lr=7", "net.widths=[3,3]"])  # a method's own come last


def test_what_a_suite_adds_for_a_setting_is_for_the_methods_that_have_it(tmp_path):
    def arguments(*settings):
        return task.runs(task.own(Method("mine", settings)), tmp_path, "choosing")[0].arguments

    task = suites.load("standard").tasks["pendulum-flipped"]
    assert "reset.every_tasks=1" in arguments("reset=head")
    assert "reset.every_tasks=1" not in arguments("reg=l2")
    assert "reset.every_tasks=1" not in arguments("reset=none", "reg=l2")
    for given, other in (
        ("reset.every_tasks=3", "reset.every_updates=null"),
        ("reset.every_updates=9", "reset.every_tasks=null"),
    ):
        assert {given, other} <= {*arguments("reset=head", given)}


@pytest.mark.parametrize(("given", "strengths"), [
    ("reg=spectral", "reg.coef=1e-4,1e-3,1e-2"),
    ("reg=wrs", "reg.every_updates=10,100,1000"),
    ("reset=redo", "reset.every_updates=1000 reset.every_tasks=null reset.threshold=0,0.025,0.1"),
    ("reg=spectral net.widths=[8,8]", "reg.coef=1e-05,0.0001,0.001"),
    ("reg=l2 reg.l2.coef=0.5", None),
    ("reset=shrink_perturb", "reset.coef=0.2,0.4,0.8"),
    ("reg=spectral+l2", None),
    ("reg=spectral reg.coef=1", None),
    ("reg=spectral reg.exponent=1,2", None),
])  # fmt: skip
def test_a_published_method_has_the_strengths_of_its_rows_unless_it_says_others(given, strengths):
    made = making.method("mine", given.split())
    assert made.settings == [*given.split(), *(strengths or "").split()]


def test_a_setting_of_a_method_under_two_names_is_refused():
    task = suites.load("quick").tasks["pendulum-flipped"]
    assert task.own(Method("mine", ["agent.lr=2"])) == {"agent.lr": "2"}
    with pytest.raises(SettingsError, match="lr is given twice"):
        task.own(Method("mine", ["lr=1", "agent.lr=2"]))
