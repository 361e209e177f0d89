import pytest

from rl_plasticity.agents import AGENT_NETWORKS, AGENTS
from rl_plasticity.configs import commands, schema, written
from rl_plasticity.configs.commands import Group, Supervised, Train
from rl_plasticity.configs.elsewhere import ELSEWHERE
from rl_plasticity.configs.help import describe
from rl_plasticity.errors import SettingsError
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.networks import NETWORKS
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.settings import settings_of
from rl_plasticity.tasks import DATA, TASKS


def load(arguments):
    return schema.load(Train, arguments)


def test_the_defaults_are_the_paper_s():
    s = load([])
    assert (s.replay_ratio, s.total_env_steps, s.random_env_steps, s.buffer_size) == (16, 1_000_000, 10_000, 1_000_000)
    assert (s.batch_size, s.eval_every_env_steps, s.eval_episodes, s.env.action_repeat) == (256, 10_000, 10, 1)
    assert (s.agent.hidden, s.agent.layer_norm, s.agent.num_critics) == ([256, 256], True, 1)
    assert (s.agent.lr, s.agent.discount, s.agent.tau, s.agent.init_alpha) == (3e-4, 0.99, 0.005, 1.0)
    assert (s.reg, s.reset, s.preset) == (Group("none"), Group("none"), "paper")


def test_a_setting_may_be_written_with_the_name_of_its_choice():
    assert schema.load(Train, ["reg=spectral", "reg.spectral.coef=0.5"]) == schema.load(
        Train, ["reg=spectral", "reg.coef=0.5"]
    )
    tasks = schema.load(Supervised, ["reset=periodic", "reset.periodic.every_updates=5"])  # and then not by tasks
    assert (tasks.reset.every_updates, tasks.reset.every_tasks) == (5, None)


def test_all_in_a_list_is_every_name_that_is_not_in_it_and_is_saved_as_those_names():
    s = load(["reg=[all]", "reset=[periodic,all]", "reg.swr.coef=0.5"])
    assert s.choices["reg"] == [*REGULARIZERS]
    assert s.choices["reset"] == ["periodic", "none", *(n for n in INTERVENTIONS if n != "periodic")]
    assert s.reg.saved["swr"]["coef"] == 0.5
    chains = load(["reg=[spectral+l2,none,all]"]).choices["reg"]
    assert chains[:2] == ["spectral+l2", "none"]
    assert len(chains) == len(REGULARIZERS) + 1  # every one, the chain besides
    assert schema.load_saved(Train, s.saved) == s
    with pytest.raises(SettingsError, match="unknown reg 'all'"):
        load(["reg=all"])


def test_presets_change_what_they_say_and_the_command_line_has_the_last_word():
    assert load(["preset=bounded"]).buffer_size == 250_000
    assert load(["preset=demo"]).total_env_steps < 100_000
    assert load(["buffer_size=7", "preset=bounded"]).buffer_size == 7


KINDS = {"reg": REGULARIZERS, "reset": INTERVENTIONS, "agent": AGENTS, "task": TASKS, "net": NETWORKS}
KINDS |= {"optimizer": OPTIMIZERS, "data": DATA}


@pytest.mark.parametrize(("group", "choice"), [(group, choice) for group in KINDS for choice in KINDS[group]])
def test_a_choice_has_exactly_the_settings_and_defaults_of_its_constructor(group, choice):
    kind = Supervised if group in commands.GROUPS[Supervised] else Train
    chosen = getattr(schema.load(kind, [f"{group}={choice}"]), group).saved
    given = {"agent": ["regularize", "device"], "task": ["num_tasks"], "optimizer": ["lr"]}.get(group, [])
    expected = {"name": choice} | {n: d.default for n, d in settings_of(KINDS[group][choice], given).items()}
    if choice == "sac":
        expected |= {n: d.default for n, d in settings_of(AGENT_NETWORKS["mlp"]).items()}
    expected |= {"net": {"parametrization": "none"}}.get(group, {})
    if group == "data":
        expected |= {"root": None, "train_size": None, "validation": 0, "validation_from": "test", "augment": False}
    if group == "reg" and choice != "none":
        expected |= {"from_epoch": 0, "until_epoch": None}
    if group == "reset":  # where there are tasks
        expected |= {"every_updates": None, "every_tasks": 1}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()} == chosen


@pytest.mark.parametrize("name", ["agent.network", "agent.sac.network"])
def test_the_settings_of_an_agent_are_also_those_of_its_network(name):
    agent = load([f"{name}=simba", "agent.actor_width=8"]).agent
    assert (agent.actor_width, agent.critic_width, agent.network) == (8, 512, "simba")
    assert "hidden" not in agent.saved
    assert schema.load_saved(Train, load([f"{name}=simba", "agent.critic_blocks=3"]).saved).agent.critic_blocks == 3
    with pytest.raises(SettingsError, match=r"agent\.hidden is a setting of agent\.network=mlp$"):
        load([f"{name}=simba", "agent.hidden=[8]"])
    with pytest.raises(
        SettingsError, match=r"agent\.actor_width is a setting of agent\.network=simba and hypersphere$"
    ):
        load(["agent.actor_width=8"])


def test_an_env_s_name_may_be_given_directly():
    assert load(["env=walker-run"]).env.name == "walker-run"
    assert load(["env=gym:Pendulum-v1", "env.action_repeat=2"]).env.action_repeat == 2


def test_settings_of_groups():
    s = load(["reg=swr", "reg.coef=0.01", "reg.scope=preserving", "reset=periodic", "reset.every_updates=5"])
    assert s.reg.saved == {
        "name": "swr", "coef": 0.01, "coef_classifier": None, "scope": "preserving", "accumulate": "exact",
        "from_update": 0, "until_update": None,
    }  # fmt: skip
    assert s.reset.every_updates == 5


def test_a_chain_has_the_settings_of_its_parts():
    s = load(["reg=spectral+l2", "reg.l2.coef=0.5"])
    assert (s.reg.name, s.reg.choice) == ("chain", "spectral+l2")
    assert (s.reg.saved["l2"]["coef"], s.reg.saved["spectral"]["coef"]) == (0.5, 1e-4)


def test_a_setting_may_be_what_another_one_is_whether_that_was_given_or_not():
    s = load(["batch_size=32", "seeds=${batch_size}", "random_env_steps=${eval_every_env_steps}"])
    assert (s.seeds, s.random_env_steps) == (32, 10_000)


BAD = {
    "envv=walker-run": "unknown setting 'envv'; did you mean 'env",
    "seedz=3": "unknown setting 'seedz'; did you mean 'seed",
    "coef=3": "unknown setting 'coef'",
    "reg=spectra": "unknown reg 'spectra'; did you mean 'spectral'?",
    "reg=spectral+l3": "unknown reg 'l3'; did you mean 'l2'?",
    "reg=l2+l2": "reg: expected one or more different regularizers, got ['l2', 'l2']",
    "reg=[l2,l2]": "reg: expected one or more different regularizers, got ['l2', 'l2']",
    "reg=[]": "reg: expected one or more different regularizers, got []",
    "reg=[none,spectrl+l2]": "unknown reg 'spectrl'; did you mean 'spectral'?",
    "agent.name=td3": "agent.name cannot be set: choose with agent=",
    "reset=periodc": "unknown reset 'periodc'; did you mean 'periodic'?",
    "preset=dmo": "unknown preset 'dmo'; did you mean 'demo'?",
    "agent=ppo": "unknown agent 'ppo' (valid: sac)",
    "reg.coef=3": "reg.coef: reg=none has no settings",
    "seed=-1": "seed must be an integer from 0 up, got -1",
    "seed=a": "seed must be an integer from 0 up, got 'a'",
    "seeds=0": "seeds must be an integer from 1 up, got 0",
    "seeds=1.5": "seeds must be an integer from 1 up, got 1.5",
    "replay_ratio=-1": "replay_ratio must be a number from 0 up, got -1",
    "replay_ratio=nan": "replay_ratio must be a number from 0 up, got nan",
    "agent.tau=2": "agent.tau must be a number from 0 to 1, got 2",
    "agent.num_critics=100000000000": "agent.num_critics must be an integer from 1 to 100, got 100000000000",
    "agent.init_alpha=0": "agent.init_alpha must be a number above 0, got 0",
    "agent.hidden=[]": "agent.hidden must be a list of integers from 1 up, got []",
    "agent.hidden=[8,x]": "agent.hidden must be a list of integers from 1 up",
    "agent.layer_norm=3": "agent.layer_norm must be true or false, got 3",
    "device=gpu": "device must be auto, cpu or cuda, got 'gpu'",
    "threads=0": "threads must be an integer from 1 to 1024 or auto, got 0",
    "compile=maybe": "compile must be true, false or auto, got 'maybe'",
    "env.workers=0": "env.workers must be true, false, an integer from 1 up or auto, got 0",
    "seed": "cannot read 'seed': settings are written name=value",
    "seed=[": "cannot read 'seed=[': settings are written name=value",
    "+seed=3": "unknown setting '+seed'; did you mean 'seed'?",
    "~seed": "cannot read '~seed'",
    "seed=1,2": "'seed=1,2' names several values, one run takes one",
    "env.name.x=3": "unknown setting 'env.name.x'",
    "reg=null": "unknown reg None",
    "out=": "out needs a value: out=FOLDER",
    "agent.lr=[1e-3,1e-4]": "agent.lr must be a number from 0 up, got [0.001, 0.0001]; lists side by side are for reg",
    "reset=[none,periodik]": "unknown reset 'periodik'; did you mean 'periodic'?",
    "agent=[sac]": "unknown agent ['sac']",
    "reg=1e308": "unknown reg 1e+308",
    "env=[cheetah-run]": "env.name must be a word, got ['cheetah-run']",
    "out=${nowhere}": "out",
    "threads=9223372036854775808": "threads must be an integer from 1 to 1024 or auto, got 9223372036854775808",
    f"seed=1{'0' * 26}": "seed must be an integer from 0 up, got 1000",
    f"seed={'9' * 5000}": "seed must be an integer from 0 up, got inf",
    f"reg={'x' * 5000}": "unknown reg 'xxxx",
    "reg=periodic": "unknown reg 'periodic'; did you mean 'reset=periodic'?",
    "reg=spectral+redo": "unknown reg 'redo'; did you mean 'reset=redo'?",
    "reset=spectral": "unknown reset 'spectral'; did you mean 'reg=spectral'?",
    "lr=1e-3": "unknown setting 'lr'; did you mean 'agent.lr'?",
    "gamma=0.9": "unknown setting 'gamma'; did you mean 'agent.discount'?",
    "utd=4": "unknown setting 'utd'; did you mean 'replay_ratio'?",
    "n_envs=4": "unknown setting 'n_envs'; did you mean 'seeds'?",
    "learning_starts=5": "unknown setting 'learning_starts'; did you mean 'random_env_steps'?",
    "buffer=5": "unknown setting 'buffer'; did you mean 'buffer_size'?",
    "weight_decay=5": "unknown setting 'weight_decay'; did you mean 'reg=weight_decay'?",
    "out=\udcff\udcfe": r"out must be a word, got '\udcff\udcfe' (not UTF-8)",
    "agent.lr=1e308": "agent.lr must be a number from 0 up, got 1e+308 (32 bits hold numbers up to 3.4e38)",
}


@pytest.mark.parametrize("kind", [Train, Supervised])
def test_a_name_from_elsewhere_is_no_setting_here_and_what_it_stands_for_is_one(kind):
    names = {*settings_of(kind), *commands.GROUPS[kind]}
    for choices in ([], ["reset=periodic"]):
        settings = schema.load(kind, choices)
        names |= {name for name, _ in written.flat_values(settings.saved)}
    for name, here in ELSEWHERE[kind].items():
        *choices, setting = here.split()
        if "=" in setting:
            choices, setting = [setting], "reg"
        schema.load(kind, choices)
        assert setting in names, here
        assert name not in names, name


@pytest.mark.parametrize("argument", BAD)
def test_bad_input_gets_one_line_that_says_what_and_what_was_expected(argument):
    with pytest.raises(SettingsError) as error:
        load([argument])
    assert BAD[argument] in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reg=spectral", "reg.coeff=1"], "unknown setting 'reg.coeff'; did you mean 'reg.coef'?"),
        (["reg=spectral", "reg.coef=high"], "reg.coef must be a number from 0 up, got 'high'"),
        (["reg=spectral", "reg.k=1.5"], "reg.k must be an integer from 1 up, got 1.5"),
        (["reg=wrs", "reg.rescale_head=3"], "reg.rescale_head must be true or false, got 3"),
        (["reg=swr", "reg.scope=3"], "reg.scope must be all or preserving, got 3"),
        (["reg=swr", "reg.name=l2"], "reg.name cannot be set: choose with reg="),
        (
            ["reset=periodic", "reset.every_updates=a"],
            "reset.every_updates must be an integer from 1 up or null, got 'a'",
        ),
    ],
)
def test_bad_settings_of_groups(arguments, message):
    with pytest.raises(SettingsError) as error:
        load(arguments)
    assert message in str(error.value)


def test_what_is_saved_is_read_back(tmp_path):
    settings = load(["reg=spectral+swr", "reset=redo", "env=walker-run", "seeds=3", "agent.hidden=[64]"])
    (tmp_path / "config.yaml").write_text(schema.dump(settings))
    assert schema.load_saved(Train, RunFolder(tmp_path).settings) == settings


def test_a_saved_file_may_lack_what_makes_no_other_run_of_it(tmp_path):
    settings = load(["env=gym:Pendulum-v1"])
    text = schema.dump(settings).replace("allow_lost_rows: false\n", "").replace("  workers: auto\n", "")
    (tmp_path / "config.yaml").write_text(text)
    assert "allow_lost_rows" not in text
    assert "workers" not in text
    assert schema.load_saved(Train, RunFolder(tmp_path).settings) == settings


def test_a_saved_file_with_an_unknown_a_missing_or_a_wrong_setting_is_an_error(tmp_path):
    path = tmp_path / "config.yaml"
    text = schema.dump(load([]))
    for changed, message in (
        (text + "new: 3\n", "unknown setting 'new'"),
        (text.replace("seed: 0\n", ""), "the setting 'seed' is missing"),
        (text.replace("seeds: 1\n", "seeds: many\n"), "seeds must be an integer"),
        (text.replace("env:\n  name: cheetah-run", "env:\n  name: 3"), "env.name must be a word, got 3"),
        (text.replace("reg:\n  name: none", "reg: none"), "reg must be a group with a name, got 'none'"),
        ("{", "holds no settings"),
        ("- 1\n", "holds no settings"),
    ):
        path.write_text(changed)
        with pytest.raises(SettingsError, match=message):
            schema.load_saved(Train, RunFolder(tmp_path).settings)
    with pytest.raises(SettingsError, match="cannot read"):
        schema.load_saved(Train, RunFolder(tmp_path / "none").settings)


def test_settings_of_the_other_command_are_named_as_such():
    settings = {kind: schema.load(kind, []).saved for kind in (Train, Supervised)}
    with pytest.raises(
        SettingsError, match=r"^a run of rl_plasticity.train is needed; this is one of rl_p.*supervised$"
    ):
        schema.load_saved(Train, settings[Supervised])
    with pytest.raises(SettingsError, match=r"^a run of rl_plasticity.supervised is needed; .* rl_plasticity.train$"):
        schema.load_saved(Supervised, settings[Train])


def test_a_picture_is_no_larger_than_a_video_can_be():
    with pytest.raises(SettingsError, match="width must be an integer from 1 to 8192 or null, got 100000"):
        schema.load(commands.Watch, ["width=100000"])


def test_a_setting_given_twice_is_an_error():
    for arguments in (["seed=1", "seed=2"], ["reg=l2", "reg=swr"], ["preset=demo", "preset=paper"]):
        with pytest.raises(SettingsError, match="is given twice"):
            load(arguments)


# --- the supervised command's ---------------------------------------------------------------------------------------


def test_where_there_are_tasks_interventions_come_with_them_unless_told_otherwise():
    s = schema.load(Supervised, ["reset=shrink_perturb"])
    assert (s.reset.every_updates, s.reset.every_tasks) == (None, 1)
    s = schema.load(Supervised, ["reset=shrink_perturb", "reset.every_updates=50"])
    assert (s.reset.every_updates, s.reset.every_tasks) == (50, None)


def test_interventions_come_by_updates_in_reinforcement_learning_and_by_tasks_where_images_are_learned():
    s = load(["reset=periodic"])
    assert (s.reset.every_updates, s.reset.every_tasks) == (2_560_000, None)
    assert "reset.every_tasks=null " in describe(Train)
    help_ = describe(Supervised)
    assert "reset.every_tasks=1 " in help_  # as it comes, not as the constructor has it
    assert help_.count("reset.every_updates=null ") == help_.count("reset.every_updates=")


def test_a_window_is_in_epochs_where_there_are_epochs_and_in_updates_elsewhere():
    s = schema.load(Supervised, ["reg=spectral+l2", "reg.l2.from_epoch=60", "reg.l2.until_epoch=200"])
    assert (s.reg.saved["l2"]["from_epoch"], s.reg.saved["l2"]["until_epoch"]) == (60, 200)
    assert (s.reg.saved["spectral"]["from_epoch"], s.reg.saved["spectral"]["until_epoch"]) == (0, None)
    assert load(["reg=l2", "reg.from_update=60"]).reg.from_update == 60
    for kind, other in ((Supervised, "update"), (Train, "epoch")):
        with pytest.raises(SettingsError, match=rf"unknown setting 'reg.from_{other}'"):
            schema.load(kind, ["reg=l2", f"reg.from_{other}=5"])
        assert f"reg.until_{other}=" not in describe(kind)
    assert describe(Supervised).count("reg.until_epoch=") == 1
    with pytest.raises(SettingsError, match="reg=none has no settings"):
        load(["reg.from_update=60"])


@pytest.mark.parametrize("preset", commands.presets(Supervised))
def test_every_supervised_preset_loads_without_any_download(preset):
    assert schema.load(Supervised, [f"preset={preset}"]).preset == preset


def test_bad_settings_of_the_supervised_command():
    for arguments, message in (
        (["env=cheetah-run"], "unknown setting 'env'"),
        (["task=random_label"], "unknown task 'random_label'; did you mean 'random_labels'?"),
        (["net=mlp", "net.widths=3"], "net.widths must be a list of integers from 1 up, got 3"),
        (["net=cnn", "net.layer_norm=true"], "unknown setting 'net.layer_norm'"),
        (["data.train_size=0"], "data.train_size must be an integer from 1 up or null, got 0"),
        (["optimizer=sgd", "optimizer.momentum=x"], "optimizer.momentum must be a number from 0 to 1, got 'x'"),
    ):
        with pytest.raises(SettingsError) as error:
            schema.load(Supervised, arguments)
        assert message in str(error.value)


def test_a_setting_that_each_member_of_a_list_has_for_itself_names_them_all():
    both = "reset.head.every_updates and reset.periodic.every_updates"
    with pytest.raises(SettingsError, match=f"reset.every_updates: each of several has its own, {both}"):
        load(["reset=[head,periodic]", "reset.every_updates=50"])
