import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from folders import PENDULUM, goes_on_as_if_never_stopped, rows, run, run_supervised

from rl_plasticity import supervised, train
from rl_plasticity.agents import SAC
from rl_plasticity.compiling.compiled import set_tracing
from rl_plasticity.compiling.shares import Shares, cuts
from rl_plasticity.regularizers import Chain, make_regularizer
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.machine import cores


def values(folder):
    return [(row["run"], row["step"], row["name"], float(row["value"])) for row in rows(folder)]


@pytest.mark.parametrize(("numbers", "threads", "product", "sizes"), [
    ([4], 2, None, [2, 2]),
    ([5], 2, None, [1] * 5),  # no two halves are alike, and one graph is for one size
    ([4], 2, 256 * 256 * 256, [1] * 4),
    ([4], 1, None, [4]),
    ([4], 1, 256 * 256 * 256, [1] * 4),
    ([4], 1, 256 * 256 * 64, [4]),  # a call costs as much as four such products
    ([8], 2, 64 * 64 * 256, [4, 4]),
    ([4, 2], 2, None, [2, 2, 2]),
])  # fmt: skip
def test_shares_are_of_one_size_in_a_regularizer_and_no_larger_than_a_thread_s_part(numbers, threads, product, sizes):
    found = cuts(numbers, threads, product)
    assert [cut.stop - cut.start for cut in found] == sizes
    assert [run for cut in found for run in range(cut.start, cut.stop)] == [*range(sum(numbers))]


def assert_divided_learn_alike(start, arguments, place, tolerance):
    together, divided = (values(start([*arguments, f"threads={n}"], place / str(n))) for n in (1, 2))
    assert [row[:3] for row in together] == [row[:3] for row in divided]
    one, other = (torch.tensor([row[3] for row in found]) for found in (together, divided))
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize(
    "settings",
    [
        ["reg=spectral", "reg.coef=[1e-4,1e-2]", "seeds=2", "reset=periodic", "reset.every_updates=15"],
        ["reg=[continual_backprop,wrs]", "reg.wrs.every_updates=3", "seeds=2"],
        ["reg=churn", "reset=redo", "reset.every_updates=15", "seeds=2"],
    ],
    ids=["strengths and periodic", "side by side", "redo"],
)
def test_runs_divided_among_threads_learn_what_they_learn_together(settings, tmp_path):
    short = ["total_env_steps=40", "log_every_updates=10", "eval_every_env_steps=40"]
    assert_divided_learn_alike(run, [*PENDULUM, *short, *settings], tmp_path, 1e-3)


DIGITS = ["data.train_size=70", "net.widths=[16]", "batch_size=16", "epochs_per_task=4", "num_tasks=2", "compile=false"]
DIGITS += ["device=cpu", "log_every_updates=7", "measure_every_updates=0", "optimizer=sgd", "lr=0.1"]


@pytest.mark.parametrize(
    "settings",
    [
        ["task=stationary", "num_tasks=1", "task.decay_at_epochs=[2]", "reg=weight_decay", "seeds=4"],
        ["reg=[swr,wrs]", "reg.wrs.every_updates=3", "reset=shrink_perturb", "reset.every_updates=3", "seeds=2"],
    ],
    ids=["a learning rate that decays", "side by side and reset"],
)
def test_supervised_runs_divided_among_threads_learn_what_they_learn_together(settings, tmp_path):
    assert_divided_learn_alike(run_supervised, [*DIGITS, *settings], tmp_path, 1e-4)


@pytest.mark.parametrize(("module", "arguments", "steps"), [(train, PENDULUM, 40), (supervised, DIGITS, 3)])
def test_divided_runs_that_are_stopped_and_resumed_have_the_same_numbers(module, arguments, steps, tmp_path):
    divided = [*arguments, "reg=[swr,continual_backprop]", "seeds=2", "threads=2"]
    goes_on_as_if_never_stopped(divided, tmp_path, steps, command=module.command)


def test_what_has_no_runs_axis_counts_once_for_all_shares():
    whole, shares = divided_agents()
    for _ in range(3):
        shares.each(lambda i: {"updates": shares.modules[i].updates.add_(1).reshape(1)})
    assert int(whole.updates) == 3
    assert [int(share.updates) for share in shares.modules] == [3, 3]


def test_no_compiled_call_in_a_thread_fails_because_one_begins_in_another():
    count = getattr(torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", None)
    if count is None:
        pytest.skip("this torch does not count the graphs that a call has run")
    twice = torch.compile(lambda x: 2 * x, fullgraph=True, backend="eager")

    def begins_with_a_count():
        twice(torch.ones(3))
        return count(0) < 0  # what torch asks where a call begins: if so, its end checks a count that others set to 0

    with ThreadPoolExecutor(1, initializer=set_tracing) as pool:
        assert not pool.submit(begins_with_a_count).result()
    count(-1)  # as it was


def test_a_fault_in_a_share_is_the_caller_s():
    _, shares = divided_agents()

    def work(i):
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shares.each(work)
    shares.close()


def divided_agents():
    def make(runs):
        agent = SAC(3, 1, range(4)[runs], lambda net: Chain(net, make_regularizer("l2", net)), hidden=(8,))
        agent.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        return agent

    whole = make(slice(None))
    return whole, Shares(whole, make, cuts([4], 2), 2)


@pytest.mark.parametrize(("asked", "number"), [("1", 1), ("100000", None), ("", None), ("two", None)])
def test_cores_are_those_that_are_allowed(asked, number, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert cores() == number or (number is None and 1 <= cores() <= (os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("settings", "of_torch", "saved"),
    [("threads=auto", 1, 1), ("threads=auto seeds=2", 1, cores()), ("threads=2", 2, 2), ("threads=2 seeds=2", 1, 2)],
)
def test_torch_has_one_thread_unless_more_are_asked_for_one_agent(settings, of_torch, saved, tmp_path):
    before = torch.get_num_threads()
    try:
        folder = run([*PENDULUM, "total_env_steps=21", *settings.split()], tmp_path / "run")
        assert torch.get_num_threads() == of_torch
        assert RunFolder(folder).settings["threads"] == saved
    finally:
        torch.set_num_threads(before)
