"""Plugs: what a module adds by name is as good as built in, and no file can make one load."""

import copy
import json
import sys

import pytest
import torch
from conftest import StopAfter, assert_equal_states, called, once, refused
from folders import EXAMPLES, PENDULUM, goes_on_as_if_never_stopped, resume, rows, run, without_what_plugs_add

from rl_plasticity import command_line, load_agent, plugins, supervised, train
from rl_plasticity.agents import AGENTS, SAC, Batch
from rl_plasticity.compare import compare
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Evaluate, Supervised, Train
from rl_plasticity.evaluate import evaluate
from rl_plasticity.interventions import make_intervention
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.seeding import derive
from rl_plasticity.sweeps.sweep import runs as runs_of_sweep

BRIEF = once([*PENDULUM, "total_env_steps=30", "log_every_updates=5"])  # ten updates
TD3 = ["plugins=[td3]", "agent=td3", *BRIEF]
DIGITS = ["data.train_size=300", "net.widths=[16]", "batch_size=100", "epochs_per_task=2", "num_tasks=2", "device=cpu"]
DIGITS += ["threads=1", "log_every_updates=3", "compile=false"]


def of_train():
    command_line.train(train.command)


A_METRIC = "from rl_plasticity.metrics import METRICS, OfWeights\nMETRICS['n'] = OfWeights(lambda m, s: s.sum(-1))\n"


@pytest.fixture(autouse=True)
def _without_what_a_plug_added(monkeypatch):
    with without_what_plugs_add(monkeypatch, "/tmp"):
        yield


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module where it can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text, name="mine"):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_an_agent_trains_is_measured_regularized_evaluated_and_compared(tmp_path, capsys):
    folder = run(
        [*TD3, "measure_every_updates=10", "seeds=2", "reg=spectral", "agent.policy_delay=3"], tmp_path / "td3"
    )
    names = {row["name"] for row in rows(folder)}
    assert {"critic/stable_rank/critics.1.2", "actor/dormant/trunk.1", "actor/penalty", "eval/return"} <= names
    evaluated = evaluate(RunFolder(folder), Evaluate(device="cpu"))
    assert [float(r["value"]) for r in rows(folder, "eval/return")] == evaluated.mean(1).tolist()
    run([*BRIEF, "seeds=2", "reg=spectral"], tmp_path / "sac")
    table = compare(tmp_path / "td3", tmp_path / "sac", baseline="agent=sac").table()
    assert sorted(line[0] for line in table[1:]) == ["agent=sac", "agent=td3"]
    assert folder.joinpath("provenance.json").read_text().count("td3") >= 1


def test_an_agent_of_a_plug_is_reset_and_resumes_bit_for_bit(tmp_path):
    arguments = [*TD3, "reg=[none,wrs]", "reset=[periodic,redo]"]  # all weights, and some units of layers
    arguments += ["reset.periodic.every_updates=4", "reset.redo.every_updates=4", "checkpoint_every_env_steps=24"]
    whole = goes_on_as_if_never_stopped(arguments, tmp_path, 26, more=["plugins=[td3]"])
    assert checkpoint.load(whole / "checkpoints")["agent"]["updates"] == 10


def td3(**settings):
    plugins.load(["td3"])
    return AGENTS["td3"](3, 2, [1, 2], hidden=(8, 8), **settings)


def batch():
    return Batch(*(torch.rand(2, 5, *width) for width in ((3,), (2,), (), (3,), ())))


def test_td3_takes_the_smaller_target_of_an_action_whose_noise_is_clipped():
    agent, b = td3(target_noise=0.2, target_noise_clip=0.5), batch()
    near, far = torch.full((2, 5, 2), 2.5), torch.full((2, 5, 2), 9.0)  # 0.5 and 1.8 before the clip
    assert torch.equal(agent.bellman_target(b, near), agent.bellman_target(b, far))
    act = (agent.actor_target(b.next_obs) + 0.5).clamp(-1, 1)
    q = agent.critic_target(b.next_obs, act)
    assert torch.equal(agent.bellman_target(b, far), b.reward + b.discount * torch.minimum(q[:, 0], q[:, 1]))


def test_a_td3_run_does_the_same_alone_and_among_others():
    together, alone = td3(), AGENTS["td3"](3, 2, [2], hidden=(8, 8))
    b = batch()
    for both, one in zip(together.noise(4, 5), alone.noise(4, 5), strict=True):
        together.update(b, both)
        alone.update(Batch(*(x[1:] for x in b)), one)
    torch.testing.assert_close([*alone.parameters()], [p[1:] for p in together.parameters()])


def test_altnet_resumes_bit_for_bit_and_is_measured_and_evaluated(tmp_path):
    arguments = ["plugins=[altnet]", "agent=altnet", *BRIEF, "reset=periodic", "reset.every_updates=4"]
    arguments += ["measure_every_updates=10", "checkpoint_every_env_steps=24"]
    whole = goes_on_as_if_never_stopped(arguments, tmp_path, 26, more=["plugins=[altnet]"])
    assert checkpoint.load(whole / "checkpoints")["agent"]["acting"].tolist() == [0]  # after two resets
    assert {"critic1/loss", "actor0/dormant"} <= {row["name"] for row in rows(whole)}
    evaluate(RunFolder(whole), Evaluate(device="cpu"))


def test_the_twins_of_altnet_learn_as_two_agents_on_the_same_batches_and_a_reset_restarts_the_one_that_acts():
    plugins.load(["altnet"])
    agent = AGENTS["altnet"](3, 2, [1, 2], hidden=(8, 8))
    alone = [SAC(3, 2, [derive(seed, i) for seed in (1, 2)], hidden=(8, 8)) for i in range(2)]
    for noise in agent.noise(4, 5):
        b = batch()
        agent.update(b, noise)
        for one, own in zip(alone, noise, strict=True):
            one.update(b, own)
    assert_equal_states(*([[*one.parameters()] for one in pair] for pair in (alone, agent.twins)))
    obs = torch.rand(2, 5, 3)
    before = [copy.deepcopy(twin.actor.state_dict()["net.trunk.0.weight"]) for twin in agent.twins]
    make_intervention("periodic").apply_(agent, runs=[1])
    assert agent.acting.tolist() == [0, 1]
    assert torch.equal(agent.act(obs), torch.stack([alone[0].act(obs)[0], alone[1].act(obs)[1]]))
    first, second = (twin.actor.state_dict()["net.trunk.0.weight"] for twin in agent.twins)
    assert torch.equal(second, before[1])
    assert [torch.equal(first[run], before[0][run]) for run in (0, 1)] == [True, False]
    assert agent.twins[0].temperature.optimizer.step.tolist() == [4, 0]


def test_a_regularizer_chains_and_trains_side_by_side_and_resumes_to_the_same_bytes(tmp_path):
    lists = ["plugins=[nuclear_norm]", "reg=[none,nuclear_norm,nuclear_norm+l2]", "reg.nuclear_norm.coef=[1e-4,1e-3]"]
    own = {"command": supervised.command, "more": lists[:1]}
    whole = goes_on_as_if_never_stopped([*DIGITS, *lists], tmp_path, 2, **own)
    last = {row["run"].removesuffix(" seed=0"): float(row["value"]) for row in rows(whole, "net/penalty")}
    weak, strong, _ = kept = [name for name, value in last.items() if value]
    assert kept == [*(f"reg.name=nuclear_norm reg.coef={c}" for c in ("0.0001", "0.001")), "reg.name=nuclear_norm+l2"]
    assert 9 < last[strong] / last[weak] < 11


def test_help_and_patterns_have_what_the_plugs_named_beside_them_add():
    assert "nuclear_norm" not in called(of_train, "--help")[1]
    status, text, _ = called(of_train, "plugins=[nuclear_norm]", "--help", "reg=nuclear_norm")
    assert (status, ", nuclear_norm" in text, "reg.head=true" in text) == (0, True, True)
    assert "td3" in called(of_train, "--help", "plugins=[td3]")[1]


ONE_OF_EACH = """
import math
from typing import Annotated

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control import PendulumEnv

from rl_plasticity import DATA, INTERVENTIONS, METRICS, MLP, NETWORKS, OPTIMIZERS, TASKS, Intervention, Setting
from rl_plasticity.agents import AGENT_NETWORKS
from rl_plasticity.metrics import OfWeights
from rl_plasticity.learning.optimizers import Optimizer
from rl_plasticity.tasks import Source, TaskSequence


class Halve(Intervention):
    def _apply_(self, target, runs):
        for part in target.parts.values():
            for p in part.learner.net.parameters():
                p.data[slice(None) if runs is None else runs] *= 0.5


class Signs(Optimizer):
    def __init__(self, net, lr: float = 1e-3, shrink: Annotated[float, Setting("of weights", least=0)] = 0.0):
        super().__init__(net, lr, "")
        self.shrink = shrink

    @torch.no_grad()
    def update_(self, parameters, gradients):
        self.step += 1
        for p, g in zip(parameters, gradients):
            p.sub_(float(self.lr) * (g.sign() + self.shrink * p))


def narrow(shape, num_classes, seeds, width: Annotated[int, Setting("of its layer", least=1)] = 6):
    return MLP((math.prod(shape), width, num_classes), seeds)


def thin(inputs, outputs, seeds, role, width: Annotated[int, Setting("of its layer", least=1)] = 5):
    return MLP((inputs, width + (role == "critic"), outputs), seeds)


def stripes(side: int = 4):
    labels = np.arange(120) % 3
    images = np.random.default_rng(0).random((120, 1, side, side))
    images[np.arange(120), 0, labels] = 1.0
    return Source((images[:90], labels[:90]), (images[90:], labels[90:]), 3)


class Shifted(TASKS["label_flip"]):
    pass


INTERVENTIONS["halve"] = Halve
OPTIMIZERS["signs"] = Signs
NETWORKS["narrow"] = narrow
AGENT_NETWORKS["thin"] = thin
DATA["stripes"] = stripes
TASKS["shifted"] = Shifted
METRICS["nuclear"] = OfWeights(lambda matrix, s: s.sum(-1))
gym.register("Wide-v0", PendulumEnv, max_episode_steps=9)
"""
EACH = ["plugins=[mine]", "task=shifted", "data=stripes", "net=narrow", "optimizer=signs", "reset=halve"]
EACH += ["num_tasks=2", "epochs_per_task=2", "batch_size=45", "device=cpu", "threads=1", "measure_every_updates=2"]
EACH += ["data.side=5", "net.width=7", "optimizer.shrink=0.1", "seeds=2", "log_every_updates=1", "lr=1e-2"]
WIDE = [a for a in BRIEF if not a.startswith("env=")]


def test_an_intervention_network_optimizer_task_data_set_and_metric_of_a_plug_are_used_and_resume(tmp_path, module):
    module(ONE_OF_EACH)
    whole = goes_on_as_if_never_stopped(EACH, tmp_path, 3, command=supervised.command, more=["plugins=[mine]"])
    settings = RunFolder(whole).settings
    assert settings["net"] == {"name": "narrow", "width": 7, "parametrization": "none"}
    assert (settings["data"]["side"], settings["optimizer"]["shrink"]) == (5, 0.1)
    assert len(rows(whole, "net/nuclear/0")) >= 4
    norms = [float(r["value"]) for r in rows(whole, "net/weight_norm") if r["run"] == "0"]
    assert norms[4] < 0.7 * norms[3]  # halved between the tasks


def test_an_agent_takes_the_network_of_a_plug_with_its_settings_and_resumes(tmp_path, module):
    module(ONE_OF_EACH)
    own = [a for a in BRIEF if not a.startswith("agent.")]
    own += ["plugins=[mine]", "agent.network=thin", "agent.width=3"]
    whole = goes_on_as_if_never_stopped(own, tmp_path, 26, more=["plugins=[mine]"])
    agent = load_agent(whole)
    assert agent.critic.net.critics[0][0].weight.shape[1:] == (4, 4)
    assert agent.actor.net.trunk[0].weight.shape[1:] == (3, 3)
    assert RunFolder(whole).settings["agent"]["width"] == 3
    assert "hidden" not in RunFolder(whole).settings["agent"]
    refused(lambda: train.command.prepare([*own[:-1], "agent.width=0"]), "agent.width", "from 1 up", "got 0")


OWN = ["env=gym:mine:Wide-v0"]


@pytest.mark.parametrize("how", [OWN, ["plugins=[mine]", "env=gym:Wide-v0", "seeds=2"]])  # in workers: test_vector.py
def test_an_environment_of_ones_own_is_named_with_its_module_or_registered_by_a_plug(how, tmp_path, module):
    module(ONE_OF_EACH)
    folder = run([*WIDE, *how], tmp_path / "run", StopAfter(26))
    train.command.execute(*train.command.prepare([f"resume={folder}", "plugins=[mine]"]))
    assert {row["step"] for row in rows(folder, "eval/return")} == {"30"}
    assert load_agent(folder) is not None


def test_runs_of_a_sweep_get_the_plugs_and_their_cores_and_learn_as_alone(tmp_path, module, monkeypatch, capfd):
    joblib = pytest.importorskip("joblib", reason="needs the extra rl_plasticity[parallel]")
    module(ONE_OF_EACH)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{EXAMPLES}:{EXAMPLES.parent}")
    cores = max(1, joblib.cpu_count() // 2)
    own = [*(a for a in WIDE if not a.startswith("threads")), "env=gym:mine:Wide-v0", "plugins=[nuclear_norm]"]
    own += [f"threads={cores}"]
    sweep = [*own, "reg=none,nuclear_norm", f"out={tmp_path / 'out'}"]
    runs = runs_of_sweep(Train, sweep)
    session, built = train.command.prepare([*runs[1].arguments, f"out={runs[1].folder}"])
    session.stop = StopAfter(26)
    assert not train.command.execute(session, built)
    sweep += ["launcher=joblib", "launcher.n_jobs=2"]
    capfd.readouterr()
    status, text, errors = called(of_train, "-m", *sweep)
    assert (status, errors, capfd.readouterr().err) == (0, "", ""), text
    assert "2 succeeded" in text
    for one, reg in zip(runs, ("none", "nuclear_norm"), strict=True):
        alone = run([*own, f"reg={reg}"], tmp_path / reg)
        assert (one.folder / "metrics.csv").read_bytes() == (alone / "metrics.csv").read_bytes()


@pytest.fixture
def package(tmp_path, module, monkeypatch):
    """Installs a package with this entry point and module in the temporary folder."""
    plugins.installed()  # the zoo, whose index runs once in a process
    monkeypatch.setattr(plugins, "_offered", {name: dict(of_one) for name, of_one in plugins._offered.items()})
    monkeypatch.setattr(plugins, "preset_folders", [*plugins.preset_folders])
    info = tmp_path / "of_a_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-package\nVersion: 1.0\n")

    def install(module):
        (info / "entry_points.txt").write_text(f"[rl_plasticity.plugins]\nstripes = {module}\n")
        plugins.installed.cache_clear()

    yield install
    (info / "entry_points.txt").unlink()
    plugins.installed.cache_clear()


def test_an_installed_plug_needs_no_name_and_one_that_is_not_there_is_said(module, package):
    package(module(ONE_OF_EACH, "of_a_package"))
    assert schema.load(Supervised, ["data=stripes"]).data.side == 4
    package("of_no_package")
    refused(lambda: schema.load(Supervised, []), "'stripes'", "of_no_package", "ModuleNotFoundError")


INDEX = """
from pathlib import Path
from rl_plasticity.plugins import offer
offer(Path(__file__).parent / "presets", AGENT_NETWORKS={"thin": "mine:thin"}, OPTIMIZERS={"signs": "mine:Signs"})
"""


def test_what_an_installed_plug_offers_is_imported_when_its_name_is_asked_for(tmp_path, module, package):
    module(ONE_OF_EACH)
    (tmp_path / "presets" / "train").mkdir(parents=True)
    (tmp_path / "presets" / "train" / "slim.yaml").write_text("agent.network: thin\nagent.width: 3\n")
    package(module(INDEX, "index"))
    assert "signs" in OPTIMIZERS
    assert "mine" not in sys.modules
    assert schema.load(Train, ["preset=slim"]).agent.width == 3
    assert "mine" in sys.modules
    refused(lambda: schema.load(Supervised, ["optimizer=sings"]), "'sings'", "'signs'")


@pytest.mark.parametrize(("offered", "named"), [
    ("NETWORKS={'mlp': 'mine:x'}", ["'mlp'", "built in"]),
    ("NETWORKS={'resnet18': 'mine:x'}", ["'resnet18'", "rl_plasticity_zoo"]),
    ("NETWORK={'x': 'mine:x'}", ["NETWORK", "'NETWORKS'"]),
])  # fmt: skip
def test_an_offer_of_a_taken_name_or_for_no_dict_is_refused(offered, named, module, package):
    package(module(f"from rl_plasticity.plugins import offer\noffer({offered})\n", "index"))
    refused(lambda: schema.load(Supervised, ["net=cnn"]), *named)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-m"]])
def test_a_plug_that_raises_or_is_not_there_ends_the_command_in_one_line(arguments, module):
    texts = ("1 / 0", "raise OSError('two\\nlines')", "this is no Python", "import no_such_module")
    for i, text in enumerate(texts):
        module(text, f"bad{i}")
    for name in (*(f"bad{i}" for i in range(len(texts))), "no_such"):
        status, out, errors = called(of_train, f"plugins=[{name}]", *arguments)
        assert (status, out, errors.count("\n")) == (2, "", 1)
        says = f"there is no module '{name}' in " if name == "no_such" else f"cannot import '{name}': "
        assert errors.startswith(f"rl_plasticity.train: plugins: {says}")


class Stacked(SAC):
    def noise(self, updates, batch_size):
        return torch.stack([self.streams.normal(batch_size, 2, 1) for _ in range(updates)])


def test_an_agent_whose_noise_cannot_be_of_no_update_is_taken_and_its_streams_stay(tmp_path):
    AGENTS["stacked"] = Stacked
    own = [*PENDULUM, "seeds=2"]
    agents = [train.command.prepare([*own, f"agent={x}", f"out={tmp_path / x}"])[1].agent for x in ("stacked", "sac")]
    assert torch.equal(*(agent.streams.get_extra_state() for agent in agents))


class Unordered(SAC):
    def noise(self, updates, batch_size):
        return self.streams.normal(updates, 1)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Unordered, ["noise", "[2, 3, 1]"]),
        (type("Silent", (SAC,), {"noise": None}), ["noise(3, 1) raised TypeError"]),
        (lambda *given, boldness=1.5: SAC(*given), ["'device'"]),
        (lambda *given, **settings: torch.nn.Module(), ["act, ", ", restart_, ", ", streams"]),
    ],
)
def test_an_agent_that_is_not_as_the_commands_need_it_is_refused_before_anything_is_written(kind, names):
    AGENTS["faulty"] = kind
    own = ["agent=faulty", *(a for a in PENDULUM if not a.startswith("agent."))]
    refused(lambda: train.command.prepare([*own, "seeds=2"]), "agent=faulty", *names)


def test_a_plug_cannot_take_the_name_of_another(module):
    text = "from rl_plasticity.regularizers import REGULARIZERS, Regularizer\nclass A(Regularizer): ...\n"
    for name in ("one", "two"):
        module(text + "REGULARIZERS['taken'] = A\n", name)
    plugins.load(["one"])
    refused(lambda: plugins.load(["two"]), "'taken'", "another plug, one")


def test_the_source_of_a_plug_is_kept_although_its_name_begins_like_the_package_s(module):
    module("MINE = 1", "rl_plasticity_mine")
    plugins.load(["rl_plasticity_mine"])
    assert plugins.files_of("rl_plasticity_mine") == {"rl_plasticity_mine.py": "MINE = 1"}
    assert "rl_plasticity_zoo" not in plugins.sources()


def test_a_run_made_with_a_plug_or_its_metrics_says_what_to_add(tmp_path, module, monkeypatch):
    module(A_METRIC)
    with without_what_plugs_add(monkeypatch, tmp_path):
        measured = run([*PENDULUM, "plugins=[mine]", "total_env_steps=21"], tmp_path / "measured")
    with without_what_plugs_add(monkeypatch, tmp_path):
        folder = run([*TD3, "total_env_steps=21"], tmp_path / "run")
    refused(lambda: resume(measured), "plugins=[mine]")
    refused(lambda: resume(folder), "plugins=[td3]")
    refused(lambda: evaluate(RunFolder(folder), Evaluate()), "plugins=[td3]")
    refused(lambda: load_agent(folder), "plugins=[td3]")
    assert "td3" not in sys.modules
    of_evaluate = lambda: command_line.look_at(Evaluate, evaluate)  # noqa: E731
    assert "1 episode per run" in called(of_evaluate, folder, "plugins=[td3]")[1]


def test_no_saved_file_makes_a_module_load(tmp_path, module):
    module("import gymnasium as gym\ngym.register('P-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n")
    folder = run(PENDULUM, tmp_path / "run", StopAfter(1))
    config, provenance = folder / "config.yaml", folder / "provenance.json"
    good, record = config.read_text(), provenance.read_text()

    def both_refused(name):
        for look in (lambda: resume(folder), lambda: load_agent(folder)):
            refused(look, name)
        assert "mine" not in sys.modules

    config.write_text(good.replace("gym:Pendulum-v1", "gym:mine:P-v0"))
    both_refused("plugins=[mine]")
    sequence = "  sequence:\n  - gym:Pendulum-v1\n  - gym:mine:P-v0\n  switch_every_env_steps: 30\n"
    changed = good.replace("  sequence: []\n", sequence).replace("  switch_every_env_steps: null\n", "")
    assert changed.count("sequence") == 1
    config.write_text(changed)
    both_refused("plugins=[mine]")
    config.write_text(good + "plugins: [mine]\n")
    both_refused("'plugins'")
    config.write_text(good)
    starts = json.loads(record)
    starts["starts"][-1]["plugins"] = ["mine"]
    provenance.write_text(json.dumps(starts))
    both_refused("plugins=[mine]")
    provenance.write_text("{not json")
    assert RunFolder(folder).plugins == []


QUICK = {"env": {"name": "gym:Pendulum-v1", "action_repeat": 4}, "device": "cpu", "compile": False, "threads": 1}
QUICK |= {"eval_episodes": 1, "batch_size": 16, "random_env_steps": 20, "total_env_steps": 60, "replay_ratio": 2}
QUICK |= {"eval_every_env_steps": 30, "log_every_updates": 20, "measure_every_updates": 0}
QUICK |= {"agent": {"name": "sac", "hidden": [16, 16]}}


def test_a_run_from_python_takes_groups_and_lists_and_gives_its_folder(tmp_path):
    strengths = {"name": "spectral", "coef": [1e-3, 1e-2]}
    quick = QUICK | {"total_env_steps": 25}
    folder = train.run(**quick, reg=strengths, out=tmp_path / "a")
    assert isinstance(folder, RunFolder)
    assert [name.settings for name in folder.metrics()] == [(("reg.coef", "0.001"),), (("reg.coef", "0.01"),)]
    assert load_agent(folder).act(torch.zeros(2, 1, 3)).shape == (2, 1, 1)
    train.run(**quick, reg=["none", "l2"], seeds=2, out=tmp_path / "b")
    assert len(compare(tmp_path / "a", tmp_path / "b").table()) == 5


def test_a_supervised_run_from_python_has_no_agent_and_can_be_ended_by_a_callback(tmp_path):
    seen = []

    def on_update(session):
        seen.append((session.progress.step, session.progress.updates, *session.parts["learner"].runs))
        session.end_early()

    folder = supervised.run(
        task="label_flip", data={"name": "digits", "train_size": 100}, net={"name": "mlp", "widths": (8,)},
        reg={"name": "spectral+l2", "l2": {"coef": 1e-3}}, epochs_per_task=2, num_tasks=1, batch_size=50, device="cpu",
        out=str(tmp_path / "run"), on_update=on_update,
    )  # fmt: skip
    assert folder.settings["reg"]["l2"]["coef"] == 0.001
    refused(lambda: load_agent(folder), "rl_plasticity.train")
    assert seen == [(0, 1, 1), (0, 2, 1)]  # the epoch under way is finished
    others = {name: lambda _, name=name: seen.append(name) for name in ("on_step", "on_evaluation")}
    assert supervised.run(resume=folder, on_update=on_update, **others) == folder
    assert seen[2:] == [(1, 3, 1), (1, 4, 1), "on_evaluation", "on_step"]
    assert folder.metrics()


@pytest.mark.parametrize(("settings", "names"), [
    ({"reg": {"name": "l2", "coef": "much"}}, ["reg.coef", "from 0 up", "'much'"]),
    ({"agent": {"name": "sac", "hiden": [8]}}, ["'agent.hiden'", "'agent.hidden'"]),
    ({"plugins": ["no_such"]}, ["plugins", "'no_such'"]),
])  # fmt: skip
def test_bad_input_from_python_raises_and_writes_nothing(settings, names, tmp_path):
    refused(lambda: train.run(**(QUICK | settings), out=tmp_path / "run"), *names)
    assert not (tmp_path / "run").exists()
