"""What is measured for the papers alone, by hand-computed numbers; in training it changes nothing and resumes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import CASES, assert_equal_states, refused
from folders import goes_on_as_if_never_stopped, rows, run_supervised, without_what_plugs_add
from torch import nn

from papers import closer_look
from papers.closer_look import ChannelNorms, Covariance, EffectiveSteps, SpanShapes, TaskStarts, patches
from papers.weights import generalized_gaussian_shape, project_to_input_span
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import SGD, Adam
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.runs import checkpoint
from rl_plasticity.supervised import command
from rl_plasticity.training.epochs import cross_entropy

LOOKS = Path(closer_look.__file__).parent / "looks"
SETTINGS = SimpleNamespace(measure_every_epochs=1, measure_every_updates=0, log_every_updates=1)
SMALL = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=3", "device=cpu"]
SMALL += ["compile=false", "threads=1", "eval_every_epochs=1", "log_every_updates=2", "measure_every_updates=0"]


def parts(net):
    """What a callback is given of a run with this network."""
    return SimpleNamespace(learner=SimpleNamespace(net=net))


def learner_of(seeds=(3, 4), reg="none", optimize=Adam):
    return Learner(
        lambda seeds: MLP((5, 8, 6, 3), seeds, False), seeds, lambda net: make_regularizer(reg, net), optimize
    )


def labelled(i=0, n=40, runs=2):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(runs, n, 5, generator=generator), torch.randint(3, (runs, n), generator=generator)


def update_of(learner):
    def update(x, y):
        loss = cross_entropy(learner.net(x), y)
        return learner.minimize(loss) | {"loss": loss.detach()}

    return update


def session_of_a_run():
    """What a callback sees of it."""
    session = SimpleNamespace(settings=SETTINGS, logged={}, progress=SimpleNamespace(step=1, updates=0))
    session.log = session.logged.update
    return session


def logged_by(call):
    """What a callback's method logs, by name."""
    session = session_of_a_run()
    call(session)
    return session.logged


def test_the_representation_change_is_since_the_last_start_and_of_all_hidden_layers(monkeypatch):
    learner = learner_of()
    x, _ = labelled()
    monkeypatch.setattr(closer_look, "first_images", lambda task, data, most, runs: (x, None))
    sequence = SimpleNamespace(num_tasks=2, task=lambda i: None)
    starts = TaskStarts(SETTINGS, SimpleNamespace(learner=learner, sequence=sequence, data=None))

    def hidden():
        first = torch.relu(learner.net[0](x)).detach()
        return {"1": first, "3": torch.relu(learner.net[2](first)).detach()}

    before = hidden()
    for i in range(3):
        update_of(learner)(*labelled(i))
    after, found = hidden(), logged_by(starts.on_task)
    norm = torch.linalg.matrix_norm
    change = {name: norm(after[name] - before[name]) / norm(before[name]) for name in before}
    apart = {name: (after[name] - before[name]).norm(dim=-1).mean(-1) for name in before}
    for quantity, expected in (("representation_change", change), ("representation_distance", apart)):
        torch.testing.assert_close(found[f"task/{quantity}"], (expected["1"] + expected["3"]) / 2)
        torch.testing.assert_close(found[f"task/{quantity}/3"], expected["3"])
        assert (found[f"task/{quantity}"] > 0).all()
    assert all((value == 0).all() for value in logged_by(starts.on_task).values())  # since that start nothing has moved


@pytest.mark.parametrize("optimize", [Adam, SGD, lambda net: SGD(net, momentum=0.0)])
@pytest.mark.parametrize("reg", ["none", "spectral", "wrs"])
def test_the_effective_step_is_what_the_optimizer_moved_the_weight_by_over_lr_and_the_weight_it_had(optimize, reg):
    learner = learner_of(reg=reg, optimize=optimize)
    looking, session = EffectiveSteps(SETTINGS, SimpleNamespace(learner=learner)), session_of_a_run()
    looking.on_start(session)
    lr, project = learner.optimizer.lr.item(), learner.regularizer.project_
    moved = {}

    def before_projection(net, *lr):  # the projection's change of the weight is not the step's
        moved.update({n: p.detach().clone() for n, p in net.named_parameters()})
        project(net, *lr)

    learner.regularizer.project_ = before_projection
    for i in range(4):
        weight = learner.net[2].weight.detach().clone()
        update_of(learner)(*labelled(i))
        session.progress.updates += 1
        looking.on_update(session)
        found = session.logged
        step = (weight - moved["2.weight"]).double() / lr
        expected = step.norm(dim=(-1, -2)) / weight.double().norm(dim=(-1, -2))
        torch.testing.assert_close(found["net/effective_step/2"].double(), expected, rtol=1e-3, atol=0)
        mean = torch.stack([found[f"net/effective_step/{layer}"] for layer in (0, 2, 4)]).mean(0)
        torch.testing.assert_close(found["net/effective_step"], mean)
        assert found["net/effective_step"].shape == (2,)


def test_the_first_step_of_a_task_is_over_the_weight_that_interventions_left():
    learner = Learner(
        lambda seeds: nn.Linear(2, 1, bias=False), make_optimizer=lambda net: SGD(net, lr=0.1, momentum=0.0)
    )
    looking = EffectiveSteps(SETTINGS, SimpleNamespace(learner=learner))
    looking.on_start(session_of_a_run())
    with torch.no_grad():
        learner.net.weight.copy_(torch.tensor([[6.0, 8.0]]))
    looking.on_task(session_of_a_run())
    learner.minimize(learner.net(torch.tensor([[3.0, 4.0]])).sum())
    assert logged_by(looking.on_update)["net/effective_step"].item() == pytest.approx(5 / 10)


def test_each_channel_s_norm_is_that_of_its_kernel_in_the_fifth_convolution_or_the_last():
    net = CASES["stacked_cnn_bn"].of_seeds(range(3))
    *_, (name, conv) = ((name, m) for name, m in net.named_modules() if isinstance(m, nn.Conv2d))
    found = logged_by(ChannelNorms(SETTINGS, parts(net)).on_measurement)
    assert len(found) == conv.weight.shape[1]
    expected = conv.weight.detach()[:, 2].flatten(1).norm(dim=-1)
    torch.testing.assert_close(found[f"net/channel_norm/{name}/2"], expected)
    seven = nn.Sequential(*(nn.Conv2d(2, 2, 1) for _ in range(7)))
    found = logged_by(ChannelNorms(SETTINGS, parts(seven)).on_measurement)
    assert found.keys() == {"net/channel_norm/4/0", "net/channel_norm/4/1"}


def test_the_balancedness_of_an_mlp_is_measured_and_that_of_other_networks_refused(tmp_path):
    arguments = [*SMALL, "num_tasks=1", "epochs_per_task=1", "measure_every_epochs=1"]
    folder = run_looked_at(arguments, ["balance"], tmp_path / "run")
    assert all(float(r["value"]) >= 1 for r in rows(folder, "net/balancedness"))
    assert steps(folder, "net/balancedness") == steps(folder, "net/stable_rank")
    refused(lambda: run_looked_at([*arguments, "net.layer_norm=true"], ["balance"], tmp_path / "b"), "LayerNorm")


def test_patches_are_what_the_kernel_is_applied_to():
    conv = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False)
    x = torch.randn(4, 2, 7, 6)
    found = patches(conv, x) @ conv.weight.flatten(1).T
    torch.testing.assert_close(found.view(4, -1, 3).mT, conv(x).flatten(2))
    both = torch.stack([x, 2 * x])
    torch.testing.assert_close(patches(conv, both, (2,))[1], 2 * patches(conv, x))


def test_the_covariance_of_parts_is_that_of_all_rows_whatever_their_mean():
    x = torch.randn(2, 50, 4) * torch.tensor([1.0, 2, 3, 4]) + 1000
    covariance = Covariance()
    for part in x.split([20, 1, 29], dim=1):
        covariance.add_(part)
    for run in range(2):
        expected = torch.cov(x[run].double().T, correction=0)
        torch.testing.assert_close(covariance.value[run].double(), expected, rtol=1e-3, atol=1e-2)


def test_behind_other_layers_it_is_of_each_run_s_own_features():
    case = CASES["stacked_cnn_bn"]
    net, x = case.of_seeds(range(3)), case.input()
    spans = SpanShapes(SETTINGS, parts(net))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = spans.shapes([x[:, :2], x[:, 2:]])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(value.shape == (3,) for value in found.values())
    last = spans.layers[-1].name
    features = x
    net.eval()
    for name, module in net.named_children():
        if name == last:
            inputs, matrix = patches(module, features, (3,)), module.weight.detach().flatten(2)
        features = module(features).detach()
    expected = generalized_gaussian_shape(project_to_input_span(matrix, inputs).flatten(-2), skip_zeros=True)
    torch.testing.assert_close(found[last], expected, rtol=1e-3, atol=1e-3)


RUN = [*SMALL, "seeds=2", "reg=swr", "reset=shrink_perturb", "checkpoint_every_epochs=3", "measure_every_epochs=1"]
NEW = ("task/representation", "net/effective_step", "net/channel_norm")
CNN = [*(a for a in SMALL if not a.startswith("net.")), "net=cnn_bn", "measure_every_epochs=1"]


def plugs(*looks):
    return f"plugins=[{','.join(f'papers.looks.{look}' for look in looks)}]"


def run_looked_at(arguments, looks, folder):
    """Make one run with these looks, and leave none of them behind."""
    with pytest.MonkeyPatch.context() as monkeypatch, without_what_plugs_add(monkeypatch, LOOKS):
        return run_supervised([*arguments, plugs(*looks)], folder)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return run_looked_at(RUN, ["tasks", "steps"], tmp_path_factory.mktemp("asked") / "run")


def test_asking_changes_no_number_of_training_and_each_is_measured_when_the_documentation_says(asked, tmp_path):
    plain = run_supervised(RUN, tmp_path / "run")
    expected = [tuple(r.values()) for r in rows(plain)]
    assert not [name for *_, name, _ in expected if name.startswith(NEW)]
    names = {name for *_, name, _ in expected}
    assert [tuple(r.values()) for r in rows(asked) if r["name"] in names] == expected
    assert_equal_states(*(checkpoint.load(f / "checkpoints")["learner"] for f in (asked, plain)))
    # 3 updates in an epoch, 2 epochs in a task, 3 tasks.
    assert steps(asked, "task/representation_change") == steps(asked, "task/representation_distance") == [6, 12]
    assert steps(asked, "net/effective_step/0") == steps(asked, "net/loss") == [*range(2, 19, 2)]


@pytest.mark.parametrize("stop", [3, 4])  # within a task, and between two
def test_a_run_that_is_looked_at_closely_resumes_bit_for_bit(stop, tmp_path, monkeypatch):
    looks = [plugs("tasks", "steps")]
    with without_what_plugs_add(monkeypatch, LOOKS):
        goes_on_as_if_never_stopped([*RUN, *looks], tmp_path, stop, command=command, more=looks)


def steps(folder, name, run="0"):
    return [int(r["step"]) for r in rows(folder, name) if r["run"] == run]


def test_the_start_of_a_task_is_behind_its_interventions(tmp_path):
    # Nothing is learned: only the reset at the second task's start moves the network.
    arguments = [*SMALL, "num_tasks=2", "epochs_per_task=1", "lr=0"]
    still = run_looked_at(arguments, ["tasks"], tmp_path / "still")
    reset = run_looked_at([*arguments, "reset=periodic"], ["tasks"], tmp_path / "reset")
    change = [float(rows(folder, "task/representation_change")[0]["value"]) for folder in (still, reset)]
    assert change[0] == 0 < change[1]


def test_a_convolutional_run_measures_channels_and_the_shapes_in_the_span_with_the_plasticity_metrics(tmp_path):
    arguments = [*CNN, "seeds=2", "num_tasks=1", "epochs_per_task=1", "data.train_size=100"]
    folder = run_looked_at(arguments, ["channels", "span"], tmp_path / "run")
    names = {r["name"] for r in rows(folder) if "span_shape" in r["name"]}
    assert names == {"net/span_shape", "net/span_shape/0", "net/span_shape/4"}
    values = [float(r["value"]) for r in rows(folder, "net/span_shape/4")]
    assert all(0.1 < value < 20 for value in values)
    assert rows(folder, "net/weight_shape/4")
    measured = steps(folder, "net/stable_rank")
    assert steps(folder, "net/span_shape") == steps(folder, "net/channel_norm/4/1") == measured
    assert len(measured) == 2  # start and end


@pytest.mark.parametrize(("look", "arguments", "names"), [
    ("channels", ["measure_every_epochs=1"], ["papers.looks.channels", "convolution"]),
    ("span", ["net=cnn"], ["papers.looks.span", "measure_every_epochs"]),
    ("steps", ["optimizer=adamp"], ["AdamP"]),
    ("tasks", ["task=stationary", "num_tasks=1"], ["papers.looks.tasks"]),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused_before_anything_is_written(look, arguments, names, tmp_path):
    replaced = {b.partition("=")[0] for b in arguments} | ({"net.widths"} if "net=cnn" in arguments else set())
    given = [a for a in SMALL if a.partition("=")[0] not in replaced]
    refused(lambda: run_looked_at([*given, *arguments], [look], tmp_path / "run"), *names)
    assert not (tmp_path / "run").exists()
