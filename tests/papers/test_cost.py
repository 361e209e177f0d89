import pytest

from papers import cost
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Supervised, Train

DIGITS = ["data.train_size=100", "batch_size=32", "epochs_per_task=3", "seeds=2"]


def updates(kind, *arguments):
    return cost.updates(written.nested(schema.load(kind, arguments).flat))


@pytest.mark.parametrize(("arguments", "expected"), [
    (["task=random_labels", "num_tasks=5"], 2 * 3 * 5 * 4),  # 100 images: three whole batches and a rest
    (["task=warm_start"], 2 * 3 * (2 + 4)),  # 50, then 100
    (["task=continual_full", "batch_size=10"], 2 * 3 * 55),  # 10, 20, ... 100
    (["task=continual_limited"], 2 * 3 * 10),
    (["task=stationary"], 2 * 3 * 4),
])  # fmt: skip
def test_supervised_updates_are_those_of_every_task_epoch_and_run(arguments, expected):
    names = {a.partition("=")[0] for a in arguments}
    assert updates(Supervised, *(a for a in DIGITS if a.partition("=")[0] not in names), *arguments) == expected


def test_data_that_are_not_here_cost_what_their_published_size_does():
    arguments = ["data=cifar10", "net=resnet18", "task=stationary", "epochs_per_task=2", "batch_size=250"]
    assert updates(Supervised, *arguments) == 2 * 50_000 / 250


def test_an_agent_s_updates_begin_after_the_random_env_steps():
    assert updates(Train, "total_env_steps=12000", "replay_ratio=4", "seeds=3") == 3 * 4 * 2000
