import re
from dataclasses import replace

from rl_plasticity.configs import commands, kinds, schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.help import describe


def test_help_marks_the_default_of_every_group_and_says_what_each_preset_sets():
    for kind in (Train, Supervised):
        text = describe(kind)
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
        lines = describe(kind).splitlines()
        for group in commands.GROUPS[kind]:
            for choice in kinds.KINDS[group].choices:
                for name, declared in kinds.KINDS[group].settings(choice).items():
                    if f"{group}.{name}" in commands.LEFT_OUT[kind]:
                        continue
                    assert any(f" {group}.{name}=" in line and declared.expected in line for line in lines), name
