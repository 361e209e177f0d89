"""The text of ``--help``."""

import re

import pytest
from conftest import refused

from rl_plasticity.command_line import help_of
from rl_plasticity.configs import commands, presets, schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.help import describe
from rl_plasticity.configs.kinds import KINDS


def shown(text):
    """The settings in a help text with their values."""
    return dict(re.findall(r"^  ([\w.+]+)=(\S*)", text, re.MULTILINE))


@pytest.mark.parametrize("kind", [Train, Supervised])
def test_help_lists_every_choice_and_preset_and_every_setting_with_what_is_expected(kind):
    text = describe(kind, [], 1000)
    lines = dict(re.findall(r"^  ([\w.]+)=\S* +(\S.*)$", text, re.MULTILINE))
    for group in commands.GROUPS[kind]:
        if group != "env":
            assert lines[group].split(", ") == schema.names_of(group)
        for choice in ("mlp", "swr", "redo", "sac", "label_flip", "digits", "adam"):
            if choice in schema.names_of(group):
                of_choice = describe(kind, [f"{group}={choice}"], 1000)
                for name, declared in KINDS[group].settings(choice).items():
                    assert f" {group}.{name}=" in of_choice
                    assert declared.expected in of_choice, name
    assert lines["preset"].split(", ") == [*presets.files(commands.called(kind))]
    for name, declared in commands.own_settings(kind).items():
        assert declared.setting.help in lines[name]
        assert f"({declared.expected})" in lines[name]


def test_help_says_which_networks_an_agent_takes_and_that_diagnose_takes_files():
    assert "sac takes mlp and bro" in describe(Train, ["agent=sac"], 1000)
    assert "mlp and bro, for images cnn" in describe(Train, ["agent=dqn"], 1000)
    assert "my_module:make_net weights.pt inputs.pt" in help_of(commands.Diagnose, [])


def test_help_shows_the_values_that_the_other_arguments_give():
    assert shown(describe(Train, [], 80))["total_env_steps"] == "1000000"
    of_demo = shown(describe(Train, ["preset=demo", "reg=l2+swr,l2", "reg.l2.coef=3", "-m", "launcher=ray"], 80))
    assert int(of_demo["total_env_steps"]) < 100_000
    assert (of_demo["reg"], of_demo["reg.l2.coef"], of_demo["reg.swr.coef"]) == ("l2+swr", "3", "0.001")
    tasks = shown(describe(Supervised, ["reset=periodic"], 80))
    assert (tasks["reset.every_updates"], tasks["reset.every_tasks"]) == ("null", "1")
    refused(lambda: describe(Train, ["reg=sectral"], 80), "'spectral'")
