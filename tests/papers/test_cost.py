import time

import pytest
import torch

from papers import cost
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Supervised, Train

DIGITS = ["data.train_size=100", "batch_size=32", "epochs_per_task=3", "seeds=2"]


def updates(kind, *arguments):
    return cost.updates(written.nested(schema.load(kind, arguments).flat))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["task=random_labels", "num_tasks=5"], 2 * 3 * 5 * 4),  # 100 images: three whole batches and a rest
        (["task=warm_start"], 2 * 3 * (2 + 4)),  # 50, then 100
        (["task=continual_full", "batch_size=10"], 2 * 3 * 55),  # 10, 20, ... 100
        (["task=continual_limited"], 2 * 3 * 10),
        (["task=stationary"], 2 * 3 * 4),
    ],
)
def test_supervised_updates_are_those_of_every_task_epoch_and_run(arguments, expected):
    names = {a.partition("=")[0] for a in arguments}
    assert updates(Supervised, *(a for a in DIGITS if a.partition("=")[0] not in names), *arguments) == expected


def test_data_that_are_not_here_cost_what_their_published_size_does():
    arguments = ["data=cifar10", "net=resnet18", "task=stationary", "epochs_per_task=2", "batch_size=250"]
    assert updates(Supervised, *arguments) == 2 * 50_000 / 250


def test_an_agent_s_updates_begin_after_the_random_env_steps():
    assert updates(Train, "total_env_steps=12000", "replay_ratio=4", "seeds=3") == 3 * 4 * 2000


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Supervised, ["net.widths=[8]", "seeds=2"]),
        (Train, ["env=gym:Pendulum-v1", "agent.hidden=[8,8]"]),
        (Train, ["env=gym:CartPole-v1", "agent=dqn", "agent.hidden=[8,8]"]),
        (Train, ["preset=minatar", "seeds=2"]),
        (Train, ["env=gym:Pendulum-v1", "agent=flash_sac", "agent.critic_width=8"]),  # whose learning rate falls
    ],
)
def test_an_update_is_measured_on_noise_and_settings_that_do_not_matter_to_it_are_measured_once(kind, arguments):
    settings = written.nested(schema.load(kind, [*arguments, "batch_size=16"]).flat)
    assert 0 < cost.seconds_per_update(settings) < 1
    assert cost.key(settings) == cost.key(
        written.nested(schema.load(kind, [*arguments, "batch_size=16", "reg=l2"]).flat)
    )
    assert cost.key(settings) != cost.key(written.nested(schema.load(kind, [*arguments, "batch_size=32"]).flat))


def test_an_update_is_measured_by_the_cpu_time_of_one_thread_and_not_by_what_else_the_machine_does(monkeypatch):
    settings = written.nested(schema.load(Supervised, ["seeds=2"]).flat)
    threads, waits, works = [], 0.0, 0.0

    def update():
        threads.append(torch.get_num_threads())
        time.sleep(waits)  # as where another process has the core
        until = time.process_time() + works
        while time.process_time() < until:
            pass

    monkeypatch.setattr(cost, "_of_network", lambda s, seeds: (update, 1.0))
    torch.set_num_threads(2)
    waits = 0.02
    assert cost.seconds_per_update(settings) < 0.005
    assert {*threads} == {1}
    assert len(threads) == 1 + cost.TIMED
    assert torch.get_num_threads() == 2
    waits, works = 0.0, 0.06
    assert cost.seconds_per_update(settings) >= 0.03  # of each of two runs
