import re
import subprocess
import sys

import pytest
from conftest import refused

from rl_plasticity import plugins
from rl_plasticity.agents import AGENT_NETWORKS, AGENTS
from rl_plasticity.configs import commands, schema, written
from rl_plasticity.configs.commands import Group, Supervised, Train
from rl_plasticity.configs.gone import GONE
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.networks import NETWORKS, make_network
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.settings import settings_of
from rl_plasticity.tasks import DATA, TASKS
from rl_plasticity.tasks import load as load_data


def load(arguments):
    return schema.load(Train, arguments)


def of(group):
    return {"name": group.name, **group.settings}


def test_the_defaults_are_the_paper_s():
    s = load([])
    assert (s.replay_ratio, s.total_env_steps, s.random_env_steps, s.buffer_size) == (16, 1_000_000, 10_000, 1_000_000)
    assert (s.batch_size, s.eval_every_env_steps, s.eval_episodes, s.env.action_repeat) == (256, 10_000, 10, 1)
    assert (s.agent.hidden, s.agent.layer_norm, s.agent.num_critics) == ([256, 256], True, 1)
    assert (s.agent.lr, s.agent.discount, s.agent.tau, s.agent.init_alpha) == (3e-4, 0.99, 0.005, 1.0)
    assert (s.reg, s.reset, s.preset) == (Group("none"), Group("none"), "paper")


def test_presets_change_what_they_say_and_the_command_line_has_the_last_word():
    assert load(["preset=bounded"]).buffer_size == 250_000
    assert load(["buffer_size=7", "preset=bounded"]).buffer_size == 7


KINDS = {"reg": REGULARIZERS, "reset": INTERVENTIONS, "agent": AGENTS, "task": TASKS, "net": NETWORKS}
KINDS |= {"optimizer": OPTIMIZERS, "data": DATA}
COMMON = {"net": make_network, "data": load_data}


@pytest.mark.parametrize(("group", "choice"), [(group, choice) for group in KINDS for choice in KINDS[group]])
def test_a_choice_has_exactly_the_settings_and_defaults_of_its_constructor(group, choice):
    kind = Supervised if group in commands.GROUPS[Supervised] else Train
    chosen = of(getattr(schema.load(kind, [f"{group}={choice}"]), group))
    given = {"agent": ["make_regularizer", "device"], "task": ["num_tasks"], "optimizer": ["lr"]}.get(group, [])
    own = settings_of(KINDS[group][choice]).items()
    expected = {"name": choice} | {n: d.default for n, d in own if n not in given}
    if group == "agent":
        expected |= {n: d.default for n, d in settings_of(AGENT_NETWORKS["mlp"]).items()}
    if group in COMMON:
        expected |= {n: d.default for n, d in settings_of(COMMON[group]).items()}
    if group == "reset":  # where there are tasks
        expected |= {"every_updates": None, "every_tasks": 1}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()} == chosen


@pytest.mark.parametrize("name", ["agent.network", "agent.sac.network"])
def test_the_settings_of_an_agent_are_also_those_of_its_network(name):
    agent = load([f"{name}=simba", "agent.actor_width=8"]).agent
    assert (agent.actor_width, agent.critic_width, agent.network) == (8, 512, "simba")
    assert "hidden" not in agent.settings
    saved = written.nested(load([f"{name}=simba", "agent.critic_blocks=3"]).flat)
    assert schema.load_saved(Train, saved).agent.critic_blocks == 3
    refused(lambda: load([f"{name}=simba", "agent.hidden=[8]"]), "agent.hidden")
    refused(lambda: load(["agent.actor_width=8"]), "agent.actor_width")


def test_settings_of_groups_may_be_written_with_the_name_of_their_choice_as_those_of_a_chain_are():
    s = load(["reg=swr", "reg.coef=0.01", "reg.swr.scope=preserving", "env=walker-run", "env.action_repeat=2"])
    assert of(s.reg) == {
        "name": "swr", "coef": 0.01, "coef_classifier": None, "scope": "preserving", "accumulate": "exact",
    }  # fmt: skip
    assert (s.env.name, s.env.action_repeat) == ("walker-run", 2)
    s = load(["reg=spectral+l2", "reg.l2.coef=0.5"])
    assert s.reg.name == "spectral+l2"
    assert (s.reg.settings["l2.coef"], s.reg.settings["spectral.coef"]) == (0.5, 1e-4)
    tasks = schema.load(Supervised, ["reset=periodic", "reset.periodic.every_updates=5"])  # and then not by tasks
    assert (tasks.reset.every_updates, tasks.reset.every_tasks) == (5, None)


BAD = {
    # The setting, what is expected of it, what it got.
    "seed=-1": ["seed ", "an integer from 0 up", "got -1"],
    "replay_ratio=nan": ["replay_ratio ", "a number from 0 up", "got nan"],
    "agent.num_critics=100000000000": ["agent.num_critics ", "from 1 to 100", "got 100000000000"],
    "agent.init_alpha=0": ["agent.init_alpha ", "a number above 0", "got 0"],
    "agent.hidden=[8,x]": ["agent.hidden ", "a list of integers from 1 up"],
    "device=gpu": ["device ", "auto, cpu or cuda", "got 'gpu'", "did you mean 'cuda'"],
    "agent.lr=[1e-3,1e-4]": ["agent.lr ", "from 0 up", "got [0.001, 0.0001]"],
    f"seed=1{'0' * 26}": ["seed ", "from 0 up", "got 1000"],
    f"seed={'9' * 5000}": ["seed ", "from 0 up", "got inf"],
    "out=\udcff\udcfe": ["out ", r"'\udcff\udcfe'"],
    "agent.lr=1e308": ["agent.lr ", "got 1e+308"],
    # What was written, and what was meant.
    "envv=walker-run": ["'envv'", "'env"],
    "reg=spectra": ["reg 'spectra'", "'spectral'"],
    "reg=[none,spectrl+l2]": ["reg 'spectrl'", "'spectral'"],
    "reset=periodc": ["reset 'periodc'", "'periodic'"],
    "preset=dmo": ["preset 'dmo'", "'demo'"],
    "+seed=3": ["'+seed'", "'seed'"],
    "reg=spectral reg.coeff=1": ["'reg.coeff'", "'reg.coef'"],
    "lr=1e-3": ["'lr'", "'agent.lr'"],
    "plugin=[my_module] agent=mine": ["'plugin'", "'plugins'"],  # rather than 'mine', which the plug would have
    "agent.hiden=[8]": ["agent=sac", "'agent.hiden'", "'agent.hidden'"],
    "agent.loss=huber": ["agent=sac", "'agent.loss'", "agent=dqn"],
    "reg=l2 reg.k=3": ["reg=l2", "'reg.k'", "reg=spectral"],
    "reg=wrs reg.norms=scale": ["reg=wrs", "'reg.norms'", "reg=hypersphere"],  # another choice had what went
    "coef=3": ["'coef'"],
    "reg=l2+l2": ["reg", "regularizers", "['l2', 'l2']"],
    "reg=[]": ["reg", "regularizers", "[]"],
    "agent.name=td3": ["agent.name"],
    "agent=ppo": ["agent 'ppo'", "(valid: sac, dqn"],
    "launcher=ray": ["launcher ", "-m"],
    "every=5": ["unknown setting 'every'"],  # another command had it
    "reg.coef=3": ["reg.coef", "reg=none"],
    "seed": ["'seed'", "name=value"],
    "seed=[": ["'seed=['", "name=value"],
    "~seed": ["'~seed'"],
    "seed=1,2": ["'seed=1,2'"],
    "env.name.x=3": ["'env.name.x'"],
    "reg=null": ["reg None"],
    "out=": ["out=FOLDER"],
    f"reg={'x' * 5000}": ["reg 'xxxx"],
    "_target_=os.system": ["unknown setting"],
}


OF_IMAGES = {
    "env=cheetah-run": ["'env'"],
    "optimizer=adam optimizer.momentum=0.9": ["optimizer=adam", "'optimizer.momentum'", "optimizer=sgd"],
    "task=random_label": ["'random_label'", "'random_labels'"],
    "net=cnn net.layer_norm=true": ["'net.layer_norm'"],
}


@pytest.mark.parametrize(
    ("kind", "arguments"), [*((Train, given) for given in BAD), *((Supervised, given) for given in OF_IMAGES)]
)
def test_bad_input_gets_one_line_that_says_what_and_what_was_expected(kind, arguments):
    names = (BAD if kind is Train else OF_IMAGES)[arguments]
    assert len(refused(lambda: schema.load(kind, arguments.split()), *names)) < 600


def test_an_unknown_choice_says_how_to_load_ones_own_until_that_was_done(monkeypatch):
    refused(lambda: load(["reg=mine"]), "'mine'", "plugins=[my_module]")
    monkeypatch.setattr(plugins, "loaded", ["my_module"])
    assert "plugins" not in refused(lambda: load(["reg=mine"]), "'mine'")


def test_a_whole_number_in_the_form_of_a_fraction_is_offered_as_an_integer():
    for arguments in ("total_env_steps=1e6", "total_env_steps=1000000.0"):
        refused(lambda given=arguments: load([given]), "an integer from 1 up", "'1000000'")
    assert "did you mean" not in refused(lambda: load(["total_env_steps=-1e6"]), "got -1000000.0")


def test_a_saved_file_may_lack_what_makes_no_other_run_of_it_and_have_what_went_and_did_nothing(tmp_path):
    settings = load(["env=gym:Pendulum-v1", "reg=spectral+l2"])
    text = schema.dump(settings).replace("bfloat16_from: null\n", "").replace("  workers: auto\n", "")
    assert "bfloat16_from" not in text
    assert "workers" not in text
    text = text.replace("  l2:\n", "  l2:\n    from_update: 0\n") + "logger: tensorboard\n"
    text = text.replace("  log_std: clamp\n", "  log_std: null\n  critic: mse\n  bins: 101\n")
    assert "log_std: null" in text
    (tmp_path / "config.yaml").write_text(text)
    assert schema.load_saved(Train, RunFolder(tmp_path).settings) == settings


def test_a_saved_file_with_an_unknown_a_missing_or_a_wrong_setting_is_an_error(tmp_path):
    folder = RunFolder(tmp_path)
    text = schema.dump(load([]))
    for changed, *names in (
        (text + "new: 3\n", "'new'"),
        (text + "logger: wandb\n", "logger was removed"),
        (text.replace("  lr: 0.0003\n", "  lr: 0.0003\n  critic: categorical\n"), "agent.sac.critic is", "later_sac"),
        (text.replace("reg:\n  name: none", "reg:\n  name: chain\n  l2:\n    coef: 1"), "reg=chain"),
        (text.replace("seed: 0\n", ""), "'seed'", "missing"),
        (text.replace("seeds: 1\n", "seeds: many\n"), "seeds", "an integer"),
        (text.replace("env:\n  name: cheetah-run", "env:\n  name: 3"), "env", "got 3"),
        (text.replace("reg:\n  name: none", "reg: none"), "reg.name", "missing"),
    ):
        folder.config.write_text(changed)
        refused(lambda: schema.load_saved(Train, folder.settings), *names)


def test_settings_of_the_other_command_are_named_as_such():
    names = {Train: "rl_plasticity.train", Supervised: "rl_plasticity.supervised"}
    for wanted, other in ((Train, Supervised), (Supervised, Train)):
        saved = written.nested(schema.load(other, []).flat)
        refused(lambda wanted=wanted, saved=saved: schema.load_saved(wanted, saved), names[wanted])


def test_a_setting_given_twice_is_an_error_and_one_that_each_member_of_a_list_has_names_them_all():
    for arguments in (["seed=1", "seed=2"], ["reg=l2", "reg=swr"], ["preset=demo", "preset=paper"]):
        refused(lambda given=arguments: load(given), arguments[0].partition("=")[0], "given twice")
    both = ["reset.head.every_updates", "reset.periodic.every_updates"]
    refused(lambda: load(["reset=[head,periodic]", "reset.every_updates=50"]), *both)


def test_where_there_are_tasks_interventions_come_with_them_unless_told_otherwise():
    for given, periods in (([], (None, 1)), (["reset.every_updates=50"], (50, None))):
        s = schema.load(Supervised, ["reset=shrink_perturb", *given])
        assert (s.reset.every_updates, s.reset.every_tasks) == periods
    s = load(["reset=periodic"])
    assert (s.reset.every_updates, s.reset.every_tasks) == (2_560_000, None)


def test_paths_are_taken_as_they_are_written():
    assert load(["out=/tmp/a_reg.coef=0.1_[x](1) y"]).out == "/tmp/a_reg.coef=0.1_[x](1) y"
    assert load(["resume=results/a=b"]).resume == "results/a=b"
    assert "~" not in load(["out=~/x"]).out
    assert load(["out=~nobody-of-that-name/ü"]).out == "~nobody-of-that-name/ü"
    for root in ("/data/ü ~=[x] (1), {y}", "a=b", "~nobody-of-that-name", "null/x"):
        assert schema.load(Supervised, ["data=mnist", f"data.root={root}"]).data.root == root
    assert schema.load(Supervised, ["data=mnist", "data.root=null"]).data.root is None
    assert written.each("data.root=a,b") == ["data.root=a,b"]


def test_values_with_commas_that_are_several_runs_are_those_of_a_sweep():
    assert written.each("agent.hidden=[64,64],[8]") == ["agent.hidden=[64,64]", "agent.hidden=[8]"]
    assert written.each("seeds=1,4") == ["seeds=1", "seeds=4"]
    refused(lambda: written.parse("reg=none,l2"), match=r"-m\b")


@pytest.mark.parametrize("named", ["norm_keep", "norm_keep.py", "[norm_keep.py]", "./norm_keep.py"])
def test_a_plug_may_be_named_without_a_list_and_as_a_file(named, monkeypatch):
    loaded = []
    monkeypatch.setattr(plugins, "load_one", lambda module, asked: loaded.append(module))
    load([f"plugins={named}"])
    assert loaded == ["norm_keep"]
    refused(lambda: load(["plugins=[3]"]), "plugins", "a list of strings", "[3]")


SAID = {
    "logger": (Train, ["logger=wandb"]),
    "allow_lost_rows": (Supervised, ["allow_lost_rows=true"]),
    "reg.from_update": (Train, ["reg.from_update=3"]),
    "reg=all": (Train, ["reg=[all]"]),
    "launcher": (Train, ["launcher.jobs=4"]),
    "agent.sac.bins": (Train, ["agent.bins=51"]),
    "reg.normalize_project.norms": (Train, ["reg=l2+normalize_project", "reg.normalize_project.norms=scale"]),
    "optimizer.rmsprop.momentum": (Supervised, ["optimizer=rmsprop", "optimizer.momentum=0.9"]),
    "diagnose env": (commands.Diagnose, ["env=gym:Pendulum-v1"]),
    "diagnose algorithm": (commands.Diagnose, ["algorithm=ppo"]),
    "preset=spectral": (Supervised, ["preset=spectral"]),
}


@pytest.mark.parametrize("name", SAID)
def test_what_went_is_said_with_what_replaces_it(name):
    kind, arguments = SAID[name]
    with pytest.raises(SettingsError) as error:
        schema.load(kind, arguments)
    assert f"{name} {GONE[name]}" in str(error.value)


@pytest.mark.parametrize("how", ["rl_plasticity live", "rl_plasticity.live", "rl_plasticity.reproduce"])
def test_a_command_that_went_says_what_replaces_it_with_status_2(how):
    done = subprocess.run([sys.executable, "-m", *how.split(), "results"], capture_output=True, text=True)
    name = f"command {re.split('[ .]', how)[1]}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"rl_plasticity: {name} {GONE[name]}\n")
