"""Presets against tables written by hand from the papers' text, and what they do with choices of one's own."""

import itertools
import re
import warnings
from pathlib import Path

import pytest

from rl_plasticity import supervised
from rl_plasticity.configs import commands, kinds, presets, schema
from rl_plasticity.configs.commands import Group, Supervised, Train
from rl_plasticity.configs.help import everything
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs import naming
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps import launchers
from rl_plasticity.sweeps.sweep import sweep

SPECTRAL = ("mnist", "fashion", "emnist", "svhn", "cifar10", "cifar100", "tiny")


def load(*arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return schema.load(Supervised, arguments)


# Lewandowski et al. 2024, Appendix B: preset, task, tasks, epochs, batch, training images, validation images.
LEWANDOWSKI = """
mnist    random_labels      50   80  512   12800     0
fashion  random_labels      50   80  512   12800     0
emnist   random_labels      50  100  500  100000     0
emnist   label_flip        200   20  500  100000     0
emnist   pixel_permutation 200   20  500  100000     0
svhn     random_labels      25   20  500   50000  5000
svhn     pixel_permutation 100   10  500   50000  5000
cifar10  random_labels      30   20  250   50000  1000
cifar10  pixel_permutation 100   10  250   50000  1000
cifar100 random_labels      30   20  250   50000  1000
cifar100 pixel_permutation 100   10  250   50000  1000
tiny     random_labels      30   20  250  100000  5000
tiny     pixel_permutation 100   20  250  100000  5000
tiny     label_flip        100   20  250  100000  5000
tiny     class_incremental null  20  250  100000  5000
"""


@pytest.mark.parametrize("line", LEWANDOWSKI.strip().splitlines())
def test_a_spectral_preset_takes_the_tasks_and_epochs_of_the_task_that_it_is_used_with(line):
    data, task, num_tasks, *numbers = line.split()
    s = load(f"preset=spectral-{data}", f"task={task}")
    assert s.num_tasks == (None if num_tasks == "null" else int(num_tasks))
    found = (s.epochs_per_task, s.batch_size, s.data.train_size, s.data.validation)
    assert found == tuple(map(int, numbers))
    assert (s.lr, s.optimizer.name) == (1e-3, "adam")


def test_the_spectral_paper_s_networks():
    for data in SPECTRAL:
        net = load(f"preset=spectral-{data}").net
        if data in ("mnist", "fashion", "emnist"):
            assert (net.name, net.widths, net.layer_norm) == ("mlp", [256] * 4, data == "fashion")
        else:
            assert net.name == "resnet18"
            assert load(f"preset=spectral-{data}", "net=vit_tiny").net.name == "vit_tiny"


def test_the_spectral_paper_s_strengths_and_its_l2_has_no_factor_a_half():
    for data in SPECTRAL:  # of MNIST, Fashion MNIST and EMNIST ours: they are not given
        coef = 1e-3 if data in ("svhn", "mnist", "fashion", "emnist") else 1e-4
        for reg in ("spectral", "wasserstein", "ewc", "l2", "l2_init"):
            of_ours = 2 * coef if reg in ("l2", "l2_init") else coef
            assert load(f"preset=spectral-{data}", f"reg={reg}").reg.coef == pytest.approx(of_ours)


OH = """
warm_start        mnist       0.4  1e-5 1e-5 1e-4 null
warm_start        cifar10     0.8  1e-2 1e-2 1e-3 null
warm_start        cifar100    0.8  1e-2 1e-2 1e-3 null
warm_start        cifar100-bn 0.8  1e-2 1e-2 1e-4 1.0
warm_start        tiny        0.8  1e-5 1e-5 1e-2 1e-1
continual_full    mnist       0.6  1e-4 1e-4 1e-4 null
continual_full    cifar10     0.8  1e-2 1e-2 1e-3 null
continual_full    cifar100    0.8  1e-2 1e-2 1e-3 null
continual_full    cifar100-bn 0.8  1e-2 1e-2 1e-4 1e-1
continual_full    tiny        0.8  1e-4 1e-4 1e-2 1e-2
continual_limited mnist       0.2  1e-5 1e-5 1e-4 null
continual_limited cifar10     0.4  1e-2 1e-2 1e-1 null
continual_limited cifar100    0.6  1e-2 1e-2 1e-1 null
continual_limited cifar100-bn 0.4  1e-2 1e-2 1e-1 1e-2
continual_limited tiny        0.4  1e-4 1e-3 1e-4 1.0
stationary        mnist       null 1e-5 1e-5 1e-4 null
stationary        cifar10     null 1e-2 1e-2 1e-3 null
stationary        cifar100    null 1e-2 1e-2 1e-3 null
stationary        cifar100-bn null 1e-2 1e-2 1e-4 1e-1
stationary        tiny        null 1e-5 1e-5 1e-2 1e-1
"""
OH_NETS = {"mnist": "mlp", "cifar10": "cnn", "cifar100": "cnn", "cifar100-bn": "cnn_bn", "tiny": "vgg16_bn"}


@pytest.mark.parametrize("line", OH.strip().splitlines())
def test_an_swr_preset_takes_the_strengths_of_the_paper_s_tables(line):
    task, data, *numbers = line.split()
    shrink, l2, l2_init, swr, classifier = (None if number == "null" else float(number) for number in numbers)
    own = load(f"preset=swr-{data}")
    assert (own.task.name, own.net.name) == ("warm_start", OH_NETS[data])
    for net in ["net=vgg16", "net=vgg16_bn"] if data == "tiny" else [f"net={OH_NETS[data]}"]:
        given = (f"preset=swr-{data}", f"task={task}", net)
        assert load(*given, "reg=l2").reg.coef == l2
        assert load(*given, "reg=l2_init").reg.coef == l2_init
        s = load(*given, "reg=swr")
        assert (s.reg.coef, s.reg.coef_classifier) == (swr, classifier)
        assert (s.batch_size, s.lr, s.optimizer.name) == (256, 1e-3, "adam")
        assert s.epochs_per_task == (200 if task == "stationary" else 100)
        assert s.task.settings.get("decay_at_epochs", []) == []  # Table 5 only
        if shrink is not None:
            assert load(*given, "reset=shrink_perturb").reset.coef == shrink


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tiny"])
def test_a_wrs_preset_takes_the_schedule_of_its_network_and_the_rate_of_its_optimizer(data):
    for net, epochs, decays in (
        ("vgg16_bn", 100, [30, 60]),
        ("resnet18", 200, [60, 120, 160]),
        ("wrn28_10", 200, [60, 120, 160]),
    ):
        for optimizer, lr in (("adam", 1e-3), ("sgd", 0.1)):
            s = load(f"preset=wrs-{data}", f"net={net}", f"optimizer={optimizer}", "reg=wrs")
            assert (s.epochs_per_task, s.task.decay_at_epochs, s.task.decay) == (epochs, decays, 0.1)
            assert (s.batch_size, s.lr, s.data.augment, s.task.name) == (100, lr, True, "stationary")
            assert s.reg.rescale_head is True  # Algorithm 1, lines 15 to 17
            assert s.reg.every_updates in (10, 20, 30, 40, 50)
            assert s.reg.norm_decay / lr == pytest.approx(5e-4)  # eta * lambda
            assert load(f"preset=wrs-{data}", f"optimizer={optimizer}", "reg=l2").reg.coef == 5e-4


# --- how presets and choices of one's own come together -------------------------------------------------------------


def test_what_is_given_has_the_last_word_over_a_condition_s_settings():
    s = load("preset=spectral-cifar10", "task=pixel_permutation", "num_tasks=3", "reg=l2", "reg.coef=0.5")
    assert (s.num_tasks, s.epochs_per_task, s.reg.coef) == (3, 10, 0.5)
    assert load("preset=spectral-svhn", "reg=spectral", "reg.coef=[1e-2,1e-3]").reg.coef == [1e-2, 1e-3]


def test_members_of_lists_and_chains_take_their_own_strengths():
    resets = "reset=[none,head,shrink_perturb]"
    s = load("preset=swr-tiny", "task=continual_limited", "reg=[none,l2,l2_init+swr]", resets)
    chain = s.reg.saved["l2_init+swr"]
    assert (s.reg.saved["l2"]["coef"], chain["l2_init"]["coef"]) == (1e-4, 1e-3)
    assert (chain["swr"]["coef"], chain["swr"]["coef_classifier"]) == (1e-4, 1)
    assert s.reset.saved["shrink_perturb"]["coef"] == 0.4
    assert load("preset=spectral-svhn", "reg=spectral+l2").reg.saved["l2"]["coef"] == 2e-3
    chain = load("preset=spectral-svhn", "reg=spectral+l2", "reg.l2.coef=7").reg
    assert [part.coef for part in chain.parts] == [1e-3, 7]


def test_in_a_plain_file_the_settings_of_a_choice_count_for_that_choice_alone(tmp_path, monkeypatch):
    (tmp_path / "supervised").mkdir()
    (tmp_path / "supervised" / "mine.yaml").write_text(
        "source: me\nnet: cnn\nnet.hidden: 7\ndata.validation: 5\nlr: 0.5\n"
    )
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    presets.tables.cache_clear()
    try:
        table, default = presets.table_of("supervised", "mine"), {"net": "cnn", "data": "digits"}
        own, other = (
            table.settings_of("mine", {"net": Group(net), "data": Group("mnist")}, default) for net in ("cnn", "mlp")
        )
    finally:
        presets.tables.cache_clear()
    assert own == {"net.hidden": 7, "data.validation": 5, "lr": 0.5}
    assert other == {"data.validation": 5, "lr": 0.5}


def test_a_preset_of_the_papers_is_read_back_and_named_as_it_was(tmp_path):
    s = load("preset=spectral-cifar10", "task=pixel_permutation", "reg=l2", "seeds=1")
    assert s.preset == "spectral-cifar10"
    (tmp_path / "config.yaml").write_text(schema.dump(s))
    assert schema.load_saved(Supervised, RunFolder(tmp_path).settings) == s
    assert naming.name(s) == "spectral-cifar10_l2_pixel_permutat_seed0"
    assert naming.name(load("preset=swr-mnist", "task=stationary", "reg=l2")) == "swr-mnist_l2_stationary_seed0"
    assert naming.name(load("preset=swr-mnist", "reg=l2", "reg.coef=0.1")) == "swr-mnist_l2_coef=0.1_seed0"


# --- what the papers did not use ------------------------------------------------------------------------------------


def combinations(preset):
    """All choices of task, net, optimizer and data that the preset's paper used together with the preset's data."""
    table = presets.table_of("supervised", preset)
    told = [presets.conditions(used) for _, used in table.used]
    groups = ("task", "net", "optimizer")
    values = [sorted({choice for used in told for choice in used.get(group, ())}) for group in groups]
    own = load(f"preset={preset}").groups
    for chosen in itertools.product(*values):
        choices = dict(zip(groups, chosen, strict=True))
        if not table.unlike(preset, own | {group: Group(choice) for group, choice in choices.items()}):
            yield choices


OF_PAPERS = [name for name in presets.names("supervised") if presets.table_of("supervised", name).used]


@pytest.mark.parametrize("preset", OF_PAPERS)
def test_a_preset_loads_with_all_that_its_paper_used_and_its_own_choices_are_among_them(preset):
    own = load(f"preset={preset}")
    own = {group: own.choices[group] for group in ("task", "net", "optimizer")}
    found = [*combinations(preset)]
    assert own in found
    regs = "reg=[none,spectral,wasserstein,ewc,l2,l2_init,swr,wrs,weight_decay]"
    for choices in found:
        load(f"preset={preset}", regs, "reset=[none,shrink_perturb]", *(f"{g}={c}" for g, c in choices.items()))


def test_every_condition_and_setting_of_a_table_exists():
    for table in presets.tables("supervised"):
        for condition, row in [*table.used, *table.rows]:
            both = presets.conditions(condition) | (presets.conditions(row) if isinstance(row, str) else {})
            for group, choices in both.items():
                assert {*choices} <= {*kinds.KINDS[group].choices} | ({"none"} if group == "reset" else set())
        for condition, row in table.rows:
            for name in row:
                group, dot, setting = name.partition(".")
                choices = presets.conditions(condition).get(group, [kinds.KINDS[group].default] if dot else [])
                for choice in choices:
                    assert setting in kinds.KINDS[group].settings(choice), f"{condition}: {name}"
                assert not dot or group == "data" or group in presets.conditions(condition), f"{name} needs {group}="
        for name, choices in table.presets.items():
            load(f"preset={name}", *(f"{group}={choice}" for group, choice in choices.items() if not table.rows))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("preset=spectral-mnist net=cnn", "Lewandowski et al. 2024: net=cnn with data=mnist"),
        ("preset=spectral-tiny optimizer=sgd", "Lewandowski et al. 2024: optimizer=sgd"),
        (
            "preset=spectral-svhn task=label_flip net=mlp",
            "Lewandowski et al. 2024: net=mlp with data=svhn, task=label_flip with data=svhn",
        ),
        ("preset=swr-mnist data=digits", "Oh et al. 2024: data=digits"),
        ("preset=wrs-cifar10 data=digits net=cnn_bn optimizer=adamp", "Liu et al. 2021: data=digits, net=cnn_bn"),
        ("preset=swr-cifar10 net=cnn_bn", "Oh et al. 2024: net=cnn_bn with data=cifar10"),
        ("preset=wrs-cifar10 optimizer=adamp", "Liu et al. 2021: data=cifar10 with optimizer=adamp"),
        ("preset=wrs-tiny optimizer=adamp", ""),
        ("preset=demo net=cnn", ""),
    ],
)
def test_a_choice_that_the_paper_did_not_make_is_said_in_one_line(arguments, said):
    s = load(*arguments.split())  # and it goes on
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schema.warn_of_unlike(s)
    assert len(caught) == bool(said)
    for warning in caught:
        line = str(warning.message)
        paper, choices = said.split(": ")
        assert re.findall(r"\w+=\w+(?: with \w+=\w+)?", line) == choices.split(", "), line
        assert f"{s.preset}: {paper} did not use" in line


# --- agents of papers, from their code ------------------------------------------------------------------------------

OF_AGENTS = {
    "simba_v2": {
        "network": "hypersphere", "critic": "categorical", "bins": 101, "greatest_return": 5.0, "init_alpha": 0.01,
        "normalize_reward": True, "num_critics": 1, "lr": 1e-4, "lr_end": 5e-5, "log_std": None, "critic_width": 512,
    },
    "xqc": {
        "network": "xqc", "critic": "categorical", "bins": 101, "least_return": -5.0, "normalize_reward": True,
        "num_critics": 2, "target_over": "min", "actor_every_updates": 3, "lr": 3e-4, "lr_end": 3e-5,
        "init_alpha": 0.01, "critic_blocks": 4, "actor_width": 256,
    },
    "flash_sac": {
        "network": "flash_sac", "critic": "categorical", "actor_every_updates": 2, "target_entropy": "sigma",
        "target_sigma": 0.15, "tau": 0.01, "lr_end": 1.5e-4, "log_std": "tanh", "critic_width": 256,
    },
    "bro": {
        "network": "bro", "num_critics": 2, "target_over": "mean", "actor_over": "mean", "log_std": "tanh",
        "critic": "mse", "critic_width": 512, "actor_blocks": 1,
    },
    "sr_sac": {"network": "mlp", "hidden": [256, 256], "layer_norm": False, "num_critics": 2, "log_std": "tanh"},
    "droq": {
        "dropout": 0.01, "layer_norm": True, "num_critics": 2, "target_over": "min", "actor_over": "mean",
        "actor_every_updates": 20, "target_entropy": "full",
    },
    "redq": {"num_critics": 10, "target_critics": 2, "actor_over": "mean", "layer_norm": False, "dropout": 0.0},
}  # fmt: skip
OF_RUNS = """
simba_v2  2  5000  256 hypersphere  none
xqc       2  5000  256 hypersphere  none
flash_sac 1 10000 512 hypersphere  none
bro      10  2500  128 weight_decay periodic
sr_sac   32 10000  256 none         periodic
droq     20  5000  256 none         none
redq     20  5000  256 none         none
"""


@pytest.mark.parametrize("line", OF_RUNS.strip().splitlines())
def test_an_agent_of_a_paper_is_one_word_and_sets_what_its_code_does(line):
    name, replay_ratio, random_env_steps, batch_size, reg, reset = line.split()
    s = schema.load(Train, [f"agent={name}"])
    assert s == schema.load(Train, [f"preset={name}"])
    assert (s.preset, s.agent.name, s.reg.name, s.reset.name) == (name, "sac", reg, reset)
    numbers = (s.replay_ratio, s.random_env_steps, s.batch_size)
    assert numbers == (float(replay_ratio), int(random_env_steps), int(batch_size))
    assert {key: s.agent.settings[key] for key in OF_AGENTS[name]} == OF_AGENTS[name]
    if name == "bro":  # AdamW's decay of 1e-4 at its learning rate, and a reset every 250 000 env steps
        assert s.reg.coef == pytest.approx(1e-4 * s.agent.lr)
        assert s.reset.every_updates == 250_000 * 10


def test_an_agent_of_a_paper_takes_settings_of_one_s_own_but_no_other_preset():
    s = schema.load(Train, ["agent=xqc", "agent.bins=51", "replay_ratio=1", "reg=none"])
    assert (s.agent.bins, s.replay_ratio, s.reg.name, s.agent.num_critics) == (51, 1.0, "none", 2)
    with pytest.raises(SettingsError, match=r"agent=xqc is preset=xqc.*preset=demo"):
        schema.load(Train, ["agent=xqc", "preset=demo"])
    with pytest.raises(SettingsError, match="unknown agent 'xqd'; did you mean 'xqc'"):
        schema.load(Train, ["agent=xqd"])


def test_what_an_agent_of_a_paper_leaves_out_is_said_in_one_line_and_on_its_page(capsys):
    page = (Path(__file__).parents[2] / "docs" / "sac.md").read_text().splitlines()
    for name in OF_AGENTS:
        schema.warn_of_unlike(schema.load(Train, [f"agent={name}"]))  # and there is nothing to warn of
        (line,) = capsys.readouterr().err.splitlines()
        said = line.removeprefix(f"preset {name} leaves out: ")
        assert said != line
        assert [row for row in page if row.startswith(f"| `{name}` |") and row.endswith(f"| {said} |")]
    with pytest.warns(UserWarning, match=r"^preset xqc: Palenicek et al. 2026 did not use reg=none$"):
        schema.warn_of_unlike(schema.load(Train, ["agent=xqc", "reg=none"]))


SMALL = ("num_tasks=1", "task=stationary", "data.train_size=50", "epochs_per_task=1", "threads=1", "compile=false")


def test_a_run_says_it_when_it_begins_and_not_again_when_it_goes_on(tmp_path):
    given = ["preset=swr-mnist", "data=digits", *SMALL, f"out={tmp_path / 'run'}"]
    with pytest.warns(UserWarning, match=r"^preset swr-mnist: Oh et al. 2024 did not use data=digits$"):
        session, _ = supervised.command.prepare(given)
    session.lock.release()
    session, _ = supervised.command.prepare([f"resume={session.folder}"])  # a warning would be an error here
    session.lock.release()
    assert session.settings.preset == "swr-mnist"


def test_a_sweep_says_it_before_it_starts_any_run(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers.Basic, "check", stopped_here)
    arguments = ["preset=none,swr-mnist", "data=digits", *SMALL, f"out={tmp_path}"]
    with (
        pytest.warns(UserWarning, match=r"^preset swr-mnist: Oh et al. 2024 did not use data=digits$"),
        pytest.raises(SettingsError, match="stopped here"),
    ):
        sweep(supervised.command, arguments)


def stopped_here(*_):
    raise SettingsError("stopped here")


def test_a_run_that_an_earlier_version_made_with_a_preset_goes_on_with_the_settings_that_it_had():
    before = load("net=vgg16", "data=tiny_imagenet", "task=stationary", "reg=l2").saved | {"preset": "swr-tiny"}
    assert schema.load_saved(Supervised, before).saved == before


# --- help -----------------------------------------------------------------------------------------------------------


def help_of(kind):
    return everything(kind).partition("What a preset sets")[2].partition("\n\n")[0].partition(":\n")[2]


@pytest.mark.parametrize("kind", [Train, Supervised])
def test_help_says_the_source_of_every_preset_in_80_columns(kind):
    text = help_of(kind)
    assert max(map(len, text.splitlines())) <= 80
    joined = " ".join(text.split())
    for name in commands.presets(kind):
        table = presets.table_of(kind.__name__.lower(), name)
        assert table.source in joined
        assert re.search(rf"^ +preset={name}(:|$)", text, re.MULTILINE)
        place = r"Appendix [BD]|sections? |in their code|not a setting of any paper"
        assert re.search(place, table.source) or name == "none"


def test_what_help_says_that_a_paper_s_preset_sets_is_what_it_sets():
    lines = re.sub(r"\n {8}", " ", help_of(Supervised)).splitlines()  # one for each condition
    for preset in OF_PAPERS:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"    preset={preset}: "))
        own = lines[at].partition(": ")[2].split()
        chosen = {group: kind.default for group, kind in kinds.KINDS.items()} | dict(a.split("=") for a in own)
        spelt = {}
        for line in itertools.takewhile(lambda line: "what the paper used" not in line, lines[at:]):
            condition, colon, row = line.strip().partition(": ")
            if not colon:  # words
                continue
            asked = {} if condition == "always" else presets.conditions(condition)
            if "preset" not in asked and all(chosen[group] in choices for group, choices in asked.items()):
                spelt |= dict(setting.split("=", 1) for setting in row.split())
        s = load(*own, *(f"{name}={value}" for name, value in spelt.items()))
        assert spelt
        assert s.saved | {"preset": preset} == load(f"preset={preset}").saved


def test_a_preset_of_no_paper_s_agent_is_no_agent():
    with pytest.raises(SettingsError, match="unknown agent 'demo'"):
        schema.load(Train, ["agent=demo"])
