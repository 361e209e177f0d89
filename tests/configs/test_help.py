import re
from dataclasses import replace

import pytest

from rl_plasticity.configs import commands, kinds, schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.help import FIRST, describe, everything
from rl_plasticity.errors import SettingsError
from rl_plasticity.settings import settings_of


def test_help_marks_the_default_of_every_group_and_says_what_each_preset_sets():
    for kind in (Train, Supervised):
        text = everything(kind)
        for group in commands.GROUPS[kind]:
            assert re.search(rf"^  {group}={kinds.KINDS[group].default} +\S", text, re.MULTILINE)
        assert f"  preset={commands.DEFAULT_PRESET[kind]} " in text
        presets = text.partition("What a preset sets")[2].partition("\n\n")[0]
        for preset in commands.presets(kind):
            if f"\n  preset={preset}\n" not in presets:
                continue  # a paper's, see test_presets
            words = re.split(r"\n {2,4}\S.*:\n|  preset=", presets.partition(f"  preset={preset}\n")[2])[0].split()
            assert ("nothing:" in words) == (preset == commands.DEFAULT_PRESET[kind])
            if "nothing:" not in words:  # and what it says is what it does
                spelt = schema.load(kind, [word for word in words if "=" in word and not word.startswith("seeds=")])
                assert replace(spelt, preset=preset) == schema.load(kind, [f"preset={preset}"])


def test_every_setting_of_every_choice_says_what_it_is_and_what_is_expected():
    for kind in (Train, Supervised):
        lines = everything(kind).splitlines()
        for group in commands.GROUPS[kind]:
            for choice in kinds.KINDS[group].choices:
                for name, declared in kinds.KINDS[group].settings(choice).items():
                    if f"{group}.{name}" in commands.LEFT_OUT[kind]:
                        continue
                    assert any(f" {group}.{name}=" in line and declared.expected in line for line in lines), name


def settings_in(text):
    return re.findall(r"^ +([\w.]+)=", text, re.MULTILINE)


@pytest.mark.parametrize("kind", [Train, Supervised])
def test_help_shows_at_most_twenty_settings_and_how_to_see_the_others(kind):
    text = describe(kind, [], 80)
    assert settings_in(text) == [name for names in FIRST[kind].values() for name in names]
    assert len(settings_in(text)) <= 20
    assert "--help all" in text
    assert max(map(len, text.splitlines())) <= 80
    assert describe(kind, ["all"], 1000) == everything(kind)
    assert describe(kind, ["preset=demo", "plugins=[]"], 80) == text  # ask for nothing


def test_help_of_a_choice_a_group_or_a_setting_has_that_alone():
    spectral = settings_in(describe(Train, ["reg=spectral"], 80))
    assert spectral == ["reg.coef", "reg.k", "reg.warmup", "reg.from_update", "reg.until_update"]
    assert settings_in(describe(Train, ["reset=redo"], 80)) == [
        f"reset.{n}" for n in kinds.KINDS["reset"].settings("redo")
    ]
    of_all = settings_in(describe(Supervised, ["optimizer"], 80))
    assert {"optimizer", "optimizer.momentum", "optimizer.sigma"} <= {*of_all}
    assert settings_in(describe(Train, ["seeds"], 80)) == ["seeds"]
    assert {*settings_in(describe(Train, ["reg.coef"], 80))} == {"reg.coef"}
    assert "agent.critic_width=512" in describe(Train, ["agent=sac"], 80)


@pytest.mark.parametrize(
    ("asked", "near"), [("reg=sectral", "'spectral'"), ("sed", "'seed'"), ("agent.lrr", "'agent.lr'")]
)
def test_help_of_what_there_is_not_names_the_nearest(asked, near):
    with pytest.raises(SettingsError, match=re.escape(near)):
        describe(Train, [asked], 80)


def test_every_setting_is_described_by_words_of_its_own():
    for kind in (Train, Supervised, commands.Evaluate, commands.Watch, commands.Diagnose):
        declared = {**settings_of(kind)}
        for group in commands.GROUPS[kind]:
            for choice in kinds.KINDS[group].choices:
                declared |= {f"{group}={choice} {n}": d for n, d in kinds.KINDS[group].settings(choice).items()}
        for name, one in declared.items():
            first = one.setting.help.split(" ")[0]
            assert first.rstrip(":;,") not in {
                "",
                "of",
                "and",
                "so",
                "what",
                "null",
                "auto",
                "true",
                "false",
                "times",
            }, name
