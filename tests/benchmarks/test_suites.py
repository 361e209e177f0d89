import pytest

from rl_plasticity.benchmarks import suites
from rl_plasticity.benchmarks.suites import Method
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.regularizers import REGULARIZERS


@pytest.mark.parametrize("name", suites.NAMES)
def test_every_published_method_has_settings_that_every_task_of_a_suite_takes(name, tmp_path):
    suite = suites.load(name)
    for task in suite.tasks.values():
        for method in suites.published().values():
            candidates = suite.runs(task, method, tmp_path)
            values = {n: v.partition(",")[0] for n, v in task.own(method).items() if n in task.varied(method)}
            scored = suite.runs(task, method, tmp_path, values)
            assert len(scored) == 1
            seeds = {range(run.settings.seed, run.settings.seed + run.settings.seeds) for run in candidates}
            assert not any({*of_one} & {*range(scored[0].settings.seeds)} for of_one in seeds)


def test_every_regularizer_and_intervention_of_the_package_is_published():
    named = {value for method in suites.published().values() for value in method.by_name.values()}
    assert {*REGULARIZERS._built_in, *INTERVENTIONS._built_in} - {"none"} <= named


def test_strengths_train_side_by_side_and_learning_rates_apart(tmp_path):
    task = suites.load("quick").tasks["random-labels"]
    method = Method("mine", ["reg=l2", "reg.coef=1e-4,1e-3", "layer_norm=true"])
    assert task.varied(method) == ["lr", "reg.coef"]
    arguments = task.arguments(method, "seeds=2")
    assert {"reg.coef=[1e-4,1e-3]", "net.layer_norm=true", "seeds=2", f"lr={task.lr}"} <= {*arguments}
    assert {"reg.coef=1e-3", "lr=1"} <= {*task.arguments(method, "", {"reg.coef": "1e-3", "lr": "1"})}
    own = task.arguments(Method("mine", ["lr=7", "net.widths=[3,3]"]), "")  # a method's own settings come last
    assert {"lr=7", "net.widths=[3,3]"} <= {*own}


def test_what_a_suite_adds_for_a_setting_is_for_the_methods_that_have_it():
    task = suites.load("standard").tasks["pendulum-flipped"]
    by_tasks = "reset.every_tasks=1"
    assert by_tasks in task.arguments(Method("a", ["reset=head"]), "")
    assert by_tasks not in task.arguments(Method("b", ["reg=l2"]), "")
    assert "reset.every_tasks=3" in task.arguments(Method("c", ["reset=head", "reset.every_tasks=3"]), "")
