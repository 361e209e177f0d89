"""Presets: each sets what its paper used, for the choices of the paper and with any others."""

import pytest
from conftest import refused

from rl_plasticity.configs import commands, presets, schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.runs.plan import Plan, foretold


def load(*arguments, kind=Supervised):
    return schema.load(kind, arguments)


ALL = [(kind, name) for kind in (Train, Supervised) for name in presets.files(commands.called(kind))]


@pytest.mark.parametrize(("kind", "name"), ALL, ids=str)
def test_a_preset_loads_has_a_source_and_each_of_its_settings_is_one_of_a_choice_that_there_is(kind, name):
    s = load(f"preset={name}", kind=kind)
    assert s.preset == name
    assert (presets.read(presets.files(commands.called(kind))[name]).get("source", "") != "") == (name != "none")
    own = presets.settings_of(commands.called(kind), name)
    for setting, value in own.items():
        group, *of_choice = setting.split(".")
        last = of_choice.pop() if of_choice else ""
        if of_choice:  # reg.l2.coef, for where l2 is chosen
            assert last in KINDS[group].settings(of_choice[0])
            assert schema.load(kind, [f"preset={name}", f"{group}={of_choice[0]}"]).flat[f"{group}.{last}"] == value
        else:
            assert s.flat[f"{setting}.name" if setting in s.groups else setting] == value


# Preset; task, net, tasks, epochs, batch, training and validation images, layer norm, strength. Those of MNIST, Fashion
# MNIST, EMNIST and ImageNet 32 are ours. The paper's l2 has no factor 1/2.
LEWANDOWSKI = """
mnist      random_labels mlp        50  80 512  12800    0 False 1e-3
fashion    random_labels mlp        50  80 512  12800    0 True  1e-3
emnist     random_labels mlp        50 100 500 100000    0 False 1e-3
svhn       random_labels resnet18   25  20 500  50000 5000 None  1e-3
cifar10    random_labels resnet18   30  20 250  50000 1000 None  1e-4
cifar100   random_labels resnet18   30  20 250  50000 1000 None  1e-4
tiny       random_labels resnet18   30  20 250 100000 5000 None  1e-4
imagenet32 binary_pairs  kumar_cnn 500  10 100   None    0 None  1e-4
"""


@pytest.mark.parametrize("line", LEWANDOWSKI.strip().splitlines())
def test_a_spectral_preset_has_the_numbers_of_appendix_b(line):
    data, *expected, coef = line.split()
    s = load(f"preset=spectral-{data}")
    found = (s.task.name, s.net.name, s.num_tasks, s.epochs_per_task, s.batch_size, s.data.train_size)
    assert [*map(str, (*found, s.data.validation, s.net.settings.get("layer_norm")))] == expected
    assert (s.lr, s.optimizer.name) == (1e-3, "adam")
    assert s.net.name != "mlp" or s.net.widths == [256] * 4
    for reg in ("spectral", "wasserstein", "ewc", "l2", "l2_init"):
        of_ours = float(coef) * (2 if reg in ("l2", "l2_init") else 1)
        assert load(f"preset=spectral-{data}", f"reg={reg}").reg.coef == pytest.approx(of_ours)


# Preset; net, coef of shrink_perturb, l2, l2_init, swr and its classifier, for the paper's warm start.
OH = """
mnist       mlp      0.4 1e-05 1e-05 0.0001 None
cifar10     cnn      0.8 0.01  0.01  0.001  None
cifar100    cnn      0.8 0.01  0.01  0.001  None
cifar100-bn cnn_bn   0.8 0.01  0.01  0.0001 1.0
tiny        vgg16_bn 0.8 1e-05 1e-05 0.01   0.1
"""


@pytest.mark.parametrize("line", OH.strip().splitlines())
def test_an_swr_preset_has_the_strengths_of_the_paper_s_tables(line):
    data, net, *expected = line.split()
    methods = ["reg=[l2,l2_init,swr]", "reset=shrink_perturb"]
    s = load(f"preset=swr-{data}", *methods)
    l2, l2_init, swr = s.reg.side_by_side
    found = (s.reset.coef, l2.coef, l2_init.coef, swr.coef, swr.coef_classifier)
    assert [*map(str, found)] == expected
    numbers = (s.task.name, s.net.name, s.batch_size, s.lr, s.optimizer.name, s.epochs_per_task)
    assert numbers == ("warm_start", net, 256, 1e-3, "adam", 100)


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tiny"])
def test_a_wrs_preset_has_the_schedule_of_the_paper_s_resnet(data):
    s = load(f"preset=wrs-{data}", "reg=wrs")
    assert (s.epochs_per_task, s.task.decay_at_epochs, s.task.decay) == (200, [60, 120, 160], 0.1)
    assert (s.batch_size, s.data.augment, s.task.name, s.net.name) == (100, True, "stationary", "resnet18")
    assert s.reg.rescale_head is True  # Algorithm 1, lines 15 to 17
    assert load(f"preset=wrs-{data}", "reg=l2").reg.coef == 5e-4


def test_members_of_lists_and_chains_take_their_own_strengths_and_what_is_given_has_the_last_word():
    s = load("preset=swr-tiny", "reg=[none,l2,l2_init+swr]", "reset=[none,head,shrink_perturb]", "reg.l2.coef=7")
    assert s.reg.settings["l2.coef"] == 7
    assert s.reg.settings["l2_init+swr.l2_init.coef"] == 1e-5
    assert s.reg.settings["l2_init+swr.swr.coef_classifier"] == 0.1
    assert s.reset.settings["shrink_perturb.coef"] == 0.8
    chain = load("preset=spectral-svhn", "reg=spectral+l2", "reg.l2.coef=7", "num_tasks=3")
    assert [one.coef for one in chain.reg.chained] == [1e-3, 7]
    assert chain.num_tasks == 3
    in_list = load("reg=[none,spectral+l2]", "reg.l2.coef=7").reg.side_by_side[1]
    assert [one.coef for one in in_list.chained] == [1e-4, 7]


def test_what_a_preset_sets_of_its_own_choice_is_not_for_another_that_is_given_but_follows_it_into_chains():
    own = load("agent=bro", kind=Train)
    assert (own.reg.coef, own.reset.settings["every_updates"]) == (1e-4, 2_500_000)
    other = load("agent=bro", "reg=weight_clipping", "reset=redo", kind=Train)
    usual = load("reg=weight_clipping", "reset=redo", kind=Train)
    assert (other.reg, other.reset) == (usual.reg, usual.reset)
    chain = load("agent=bro", "reg=weight_decay+l2", kind=Train).reg.settings
    assert (chain["weight_decay.coef"], chain["l2.coef"]) == (1e-4, load("reg=l2", kind=Train).reg.coef)
    assert load("preset=spectral-mnist").net.settings["widths"] != load("net=cnn").net.settings["widths"]
    assert load("preset=spectral-mnist", "net=cnn").net == load("net=cnn").net
    assert load("agent=simba_v2", "env=walker-run", kind=Train).env.settings["action_repeat"] == 2


PAPERS = {"bro", "droq", "flash_sac", "redq", "simba_v2", "sr_sac", "xqc"}


@pytest.mark.parametrize("name", sorted(PAPERS | {*presets.agents_of_papers()}))
def test_an_agent_of_a_paper_is_one_word_takes_settings_and_says_what_it_leaves_out(name):
    s = load(f"agent={name}", kind=Train)
    assert s == load(f"preset={name}", kind=Train)
    assert s.agent.name == ("sac" if name == "sr_sac" else "later_sac")
    changed = load(f"agent={name}", "replay_ratio=7", "reg=none", "reset=none", kind=Train)
    assert (changed.agent, changed.replay_ratio, changed.reg.name) == (s.agent, 7.0, "none")
    lines = foretold(s, Plan.of(s), 3, "3 env steps")
    assert [line for line in lines if line == f"{name} here leaves out {presets.leaves_out('train', name)}"]
    others = load(f"agent={name}", "reg=l2_init", "reset=head", kind=Train)
    others = foretold(others, Plan.of(others), 3, "3 env steps")
    papers = [
        f"{group}={choice.name}" for group, choice in (("reg", s.reg), ("reset", s.reset)) if choice.name != "none"
    ]
    assert f"{name} here leaves out {', '.join([*papers, presets.leaves_out('train', name)])}" in others
    refused(lambda: load(f"agent={name}", "preset=demo", kind=Train), f"agent={name}", "preset=demo")
    added = load("agent=xqc", "reg=[none,hypersphere+l2]", kind=Train)
    assert not [line for line in foretold(added, Plan.of(added), 3, "") if "reg=hypersphere" in line]
    assert not [line for line in foretold(load(kind=Train), Plan.of(load(kind=Train)), 3, "") if "without" in line]
