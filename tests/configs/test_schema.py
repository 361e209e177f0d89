import pytest
from conftest import refused

from rl_plasticity import plugins
from rl_plasticity.agents import AGENT_NETWORKS, AGENTS
from rl_plasticity.configs import commands, schema, written
from rl_plasticity.configs.commands import Group, Supervised, Train
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
    assert load(["preset=demo"]).total_env_steps < 100_000
    assert load(["buffer_size=7", "preset=bounded"]).buffer_size == 7


KINDS = {"reg": REGULARIZERS, "reset": INTERVENTIONS, "agent": AGENTS, "task": TASKS, "net": NETWORKS}
KINDS |= {"optimizer": OPTIMIZERS, "data": DATA}
COMMON = {"net": make_network, "data": load_data}


@pytest.mark.parametrize(("group", "choice"), [(group, choice) for group in KINDS for choice in KINDS[group]])
def test_a_choice_has_exactly_the_settings_and_defaults_of_its_constructor(group, choice):
    kind = Supervised if group in commands.GROUPS[Supervised] else Train
    chosen = of(getattr(schema.load(kind, [f"{group}={choice}"]), group))
    given = {"agent": ["regularize", "device"], "task": ["num_tasks"], "optimizer": ["lr"]}.get(group, [])
    expected = {"name": choice} | {n: d.default for n, d in settings_of(KINDS[group][choice], given).items()}
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
    assert (
        schema.load_saved(
            Train, written.nested(load([f"{name}=simba", "agent.critic_blocks=3"]).flat)
        ).agent.critic_blocks
        == 3
    )
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


EXPECTED_GOT = {  # the setting, what is expected of it, what it got
    "seed=-1": ["seed ", "an integer from 0 up", "got -1"],
    "seed=a": ["seed ", "an integer from 0 up", "got 'a'"],
    "seeds=0": ["seeds ", "an integer from 1 up", "got 0"],
    "seeds=1.5": ["seeds ", "an integer from 1 up", "got 1.5"],
    "replay_ratio=-1": ["replay_ratio ", "a number from 0 up", "got -1"],
    "replay_ratio=nan": ["replay_ratio ", "a number from 0 up", "got nan"],
    "agent.tau=2": ["agent.tau ", "a number from 0 to 1", "got 2"],
    "agent.num_critics=100000000000": ["agent.num_critics ", "from 1 to 100", "got 100000000000"],
    "agent.init_alpha=0": ["agent.init_alpha ", "a number above 0", "got 0"],
    "agent.hidden=[]": ["agent.hidden ", "a list of integers from 1 up", "got []"],
    "agent.hidden=[8,x]": ["agent.hidden ", "a list of integers from 1 up"],
    "agent.layer_norm=3": ["agent.layer_norm ", "true or false", "got 3"],
    "device=gpu": ["device ", "auto, cpu or cuda", "got 'gpu'"],
    "threads=0": ["threads ", "from 1 to 1024 or auto", "got 0"],
    "compile=maybe": ["compile ", "true, false or auto", "got 'maybe'"],
    "env.workers=0": ["env.workers ", "true, false, an integer from 1 up or auto", "got 0"],
    "agent.lr=[1e-3,1e-4]": ["agent.lr ", "from 0 up", "got [0.001, 0.0001]"],
    "env=[cheetah-run]": ["env ", "a word", "got ['cheetah-run']"],
    "threads=9223372036854775808": ["threads ", "got 9223372036854775808"],
    f"seed=1{'0' * 26}": ["seed ", "from 0 up", "got 1000"],
    f"seed={'9' * 5000}": ["seed ", "from 0 up", "got inf"],
    "out=\udcff\udcfe": ["out ", r"'\udcff\udcfe'"],
    "agent.lr=1e308": ["agent.lr ", "got 1e+308"],
    "reg=spectral reg.coef=high": ["reg.coef ", "a number from 0 up", "got 'high'"],
    "reg=spectral reg.k=1.5": ["reg.k ", "an integer from 1 up", "got 1.5"],
    "reg=wrs reg.rescale_head=3": ["reg.rescale_head ", "true or false", "got 3"],
    "reg=swr reg.scope=3": ["reg.scope ", "all or preserving", "got 3"],
    "reset=periodic reset.every_updates=a": ["reset.every_updates ", "from 1 up or null", "got 'a'"],
}
NEAREST = {  # what was written, and what was meant
    "envv=walker-run": ["'envv'", "'env"],
    "seedz=3": ["'seedz'", "'seed"],
    "reg=spectra": ["reg 'spectra'", "'spectral'"],
    "reg=spectral+l3": ["reg 'l3'", "'l2'"],
    "reg=[none,spectrl+l2]": ["reg 'spectrl'", "'spectral'"],
    "reset=periodc": ["reset 'periodc'", "'periodic'"],
    "reset=[none,periodik]": ["reset 'periodik'", "'periodic'"],
    "preset=dmo": ["preset 'dmo'", "'demo'"],
    "+seed=3": ["'+seed'", "'seed'"],
    "reg=periodic": ["reg 'periodic'", "'reset=periodic'"],
    "reg=spectral+redo": ["reg 'redo'", "'reset=redo'"],
    "reset=spectral": ["reset 'spectral'", "'reg=spectral'"],
    "reg=spectral reg.coeff=1": ["'reg.coeff'", "'reg.coef'"],
    "lr=1e-3": ["'lr'", "'agent.lr'"],
    "buffer=5": ["'buffer'", "'buffer_size'"],
}
BAD = EXPECTED_GOT | NEAREST
BAD |= {
    "coef=3": ["'coef'"],
    "reg=l2+l2": ["reg", "regularizers", "['l2', 'l2']"],
    "reg=[l2,l2]": ["reg", "regularizers", "['l2', 'l2']"],
    "reg=[]": ["reg", "regularizers", "[]"],
    "agent.name=td3": ["agent.name"],
    "reg=swr reg.name=l2": ["reg.name"],
    "agent=ppo": ["agent 'ppo'", "(valid: sac, dqn"],
    "launcher=ray": ["launcher ", "-m"],
    "launcher.n_jobs=2": ["launcher.n_jobs ", "-m"],
    "reg.coef=3": ["reg.coef", "reg=none"],
    "seed": ["'seed'", "name=value"],
    "seed=[": ["'seed=['", "name=value"],
    "~seed": ["'~seed'"],
    "seed=1,2": ["'seed=1,2'"],
    "env.name.x=3": ["'env.name.x'"],
    "reg=null": ["reg None"],
    "out=": ["out=FOLDER"],
    "agent=[sac]": ["agent ['sac']"],
    "reg=1e308": ["reg 1e+308"],
    f"reg={'x' * 5000}": ["reg 'xxxx"],
    "_target_=os.system": ["unknown setting"],
    "reg=spectral reg._target_=os.system": ["unknown setting"],
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_gets_one_line_that_says_what_and_what_was_expected(arguments):
    assert len(refused(lambda: load(arguments.split()), *BAD[arguments])) < 400


def test_an_unknown_choice_says_how_to_load_ones_own_until_that_was_done(monkeypatch):
    refused(lambda: load(["reg=mine"]), "'mine'", "plugins=[my_module]")
    monkeypatch.setattr(plugins, "loaded", ["my_module"])
    assert "plugins" not in refused(lambda: load(["reg=mine"]), "'mine'")


def test_a_whole_number_in_the_form_of_a_fraction_is_offered_as_an_integer():
    for arguments in ("total_env_steps=1e6", "total_env_steps=1000000.0"):
        refused(lambda given=arguments: load([given]), "an integer from 1 up", "'1000000'")
    assert "did you mean" not in refused(lambda: load(["total_env_steps=-1e6"]), "got -1000000.0")


def test_an_option_without_an_equals_sign_is_shown_as_a_setting():
    for argument in ("--seed", "seed"):
        refused(lambda given=argument: load([given]), repr(argument), "seed=VALUE")


def test_what_is_saved_is_read_back(tmp_path):
    settings = load(["reg=spectral+swr", "reset=redo", "env=walker-run", "seeds=3", "agent.hidden=[64]"])
    (tmp_path / "config.yaml").write_text(schema.dump(settings))
    assert schema.load_saved(Train, RunFolder(tmp_path).settings) == settings


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
        (text + "logger: wandb\n", "logger went"),
        (text.replace("  lr: 0.0003\n", "  lr: 0.0003\n  critic: categorical\n"), "agent.critic is", "later_sac"),
        (text.replace("reg:\n  name: none", "reg:\n  name: chain\n  l2:\n    coef: 1"), "reg=chain"),
        (text.replace("seed: 0\n", ""), "'seed'", "missing"),
        (text.replace("seeds: 1\n", "seeds: many\n"), "seeds", "an integer"),
        (text.replace("env:\n  name: cheetah-run", "env:\n  name: 3"), "env", "got 3"),
        (text.replace("reg:\n  name: none", "reg: none"), "reg.name", "missing"),
        ("{", "config.yaml"),
        ("- 1\n", "config.yaml"),
    ):
        folder.config.write_text(changed)
        refused(lambda: schema.load_saved(Train, folder.settings), *names)
    refused(lambda: RunFolder(tmp_path / "none").settings, "cannot read")


def test_settings_of_the_other_command_are_named_as_such():
    names = {Train: "rl_plasticity.train", Supervised: "rl_plasticity.supervised"}
    for wanted, other in ((Train, Supervised), (Supervised, Train)):
        saved = written.nested(schema.load(other, []).flat)
        refused(lambda wanted=wanted, saved=saved: schema.load_saved(wanted, saved), names[wanted])


def test_a_picture_is_no_larger_than_a_video_can_be():
    refused(lambda: schema.load(commands.Watch, ["width=100000"]), "width", "from 1 to 8192 or null", "100000")


def test_a_setting_given_twice_is_an_error_and_one_that_each_member_of_a_list_has_names_them_all():
    for arguments in (["seed=1", "seed=2"], ["reg=l2", "reg=swr"], ["preset=demo", "preset=paper"]):
        refused(lambda given=arguments: load(given), arguments[0].partition("=")[0], "given twice")
    both = ["reset.head.every_updates", "reset.periodic.every_updates"]
    refused(lambda: load(["reset=[head,periodic]", "reset.every_updates=50"]), *both)


# --- the supervised command's ---------------------------------------------------------------------------------------


def test_where_there_are_tasks_interventions_come_with_them_unless_told_otherwise():
    for given, periods in (([], (None, 1)), (["reset.every_updates=50"], (50, None))):
        s = schema.load(Supervised, ["reset=shrink_perturb", *given])
        assert (s.reset.every_updates, s.reset.every_tasks) == periods


def test_interventions_come_by_updates_in_reinforcement_learning_and_by_tasks_where_images_are_learned():
    s = load(["reset=periodic"])
    assert (s.reset.every_updates, s.reset.every_tasks) == (2_560_000, None)


@pytest.mark.parametrize("preset", commands.presets(Supervised))
def test_every_supervised_preset_loads_without_any_download(preset):
    assert schema.load(Supervised, [f"preset={preset}"]).preset == preset


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("env=cheetah-run", ["'env'"]),
        ("task=random_label", ["'random_label'", "'random_labels'"]),
        ("net=mlp net.widths=3", ["net.widths", "a list of integers from 1 up", "got 3"]),
        ("net=cnn net.layer_norm=true", ["'net.layer_norm'"]),
        ("data.train_size=0", ["data.train_size", "from 1 up or null", "got 0"]),
        ("optimizer=sgd optimizer.momentum=x", ["optimizer.momentum", "from 0 to 1", "got 'x'"]),
    ],
)
def test_bad_settings_of_the_supervised_command(arguments, names):
    refused(lambda: schema.load(Supervised, arguments.split()), *names)
