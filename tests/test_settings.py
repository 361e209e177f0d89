from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import pytest
import torch
from conftest import refused
from torch import Tensor, nn

from rl_plasticity import SAC
from rl_plasticity.agents import DQN
from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.settings import Setting, checked, settings_of


class Kind:
    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor, Setting("strength", least=0)] = 1e-3,
        share: Annotated[float | None, Setting(least=0, most=1)] = None,
        decay: Annotated[float, Setting(least=0, below=1)] = 0.5,
        count: Annotated[int, Setting(least=1, belongs_to="machine")] = 2,
        compile: bool | Literal["auto"] = "auto",
        scope: Literal["all", "preserving"] = "all",
        hidden: Annotated[Sequence[int], Setting(least=1)] = (256, 256),
        at: Sequence[int] = (),
        betas: tuple[float, float] = (0.9, 0.999),
        *parts: object,
    ) -> None:
        self.coef, self.at = coef, at


EXPECTED = {
    "coef": "a number from 0 up",
    "share": "a number from 0 to 1 or null",
    "decay": "a number from 0 to below 1",
    "count": "an integer from 1 up",
    "compile": "true, false or auto",
    "scope": "all or preserving",
    "hidden": "a list of integers from 1 up",
    "at": "a list of integers",
}


def test_a_constructor_s_settings_are_its_arguments_with_a_default_that_can_be_written_down():
    found = settings_of(Kind)
    assert {name: declared.expected for name, declared in found.items()} == EXPECTED
    assert found["coef"].default == 1e-3
    assert found["coef"].setting.help == "strength"
    assert [n for n, d in found.items() if d.setting.belongs_to == "machine"] == ["count"]


def test_what_a_partial_fills_in_or_the_caller_gives_is_no_setting():
    assert settings_of(partial(Kind, coef=2.0)).keys() == EXPECTED.keys() - {"coef"}


def test_without_annotations_a_setting_has_the_type_of_its_default():
    def make(net, flag=True, number=1.0, whole=3, word="a", widths=(3, 4), limit=None, thing=object): ...

    words = {n: d.expected for n, d in settings_of(make).items()}
    expected = ["true or false", "a number", "an integer", "a string", "a list of integers", "a number or null"]
    assert words == dict(zip(("flag", "number", "whole", "word", "widths", "limit"), expected, strict=True))


WRONG = {
    "coef": [-1, float("nan"), torch.tensor([0.1, -0.1]), torch.tensor([float("inf")]), True, "1e-4", None],
    "share": [1.5],
    "decay": [1.0],
    "count": [0, 1.5],
    "compile": ["maybe", 1],
    "scope": ["some"],
    "hidden": [[], [8, 0], [8, "x"], 8],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_checked_constructor_says_what_was_wrong_what_was_expected_and_what_it_got(name, value):
    refused(lambda: Kind(nn.Linear(1, 1), **{name: value}), name, EXPECTED[name], f"got {value!r}")


def test_what_is_within_its_bounds_is_taken_and_an_integer_as_a_number_where_one_is_wanted():
    made = Kind(nn.Linear(1, 1), torch.tensor([0.0, 3.0]), share=1, compile=True, hidden=[3], at=[])
    assert made.coef.tolist() == [0, 3]
    settings = settings_of(Kind)
    assert isinstance(settings["coef"].checked("coef", 3), float)
    assert settings["share"].checked("share", None) is None
    assert settings["count"].checked("count", 2**63 - 1) == 2**63 - 1
    assert settings["coef"].checked("coef", 3.4e38) == 3.4e38


def test_choosing_names_the_nearest_kind_and_setting():
    kinds = {"one": Kind, "other": partial(Kind, coef=1.0)}
    assert choose(kinds, "one", {"at": [3]}, "thing")(nn.Linear(1, 1)).at == [3]
    refused(lambda: choose(kinds, "onee", {}, "thing"), "thing 'onee'", "'one'")
    refused(lambda: choose(kinds, "one", {"coeff": 1}, "thing"), "'coeff'", "thing 'one'", "'coef'")
    refused(lambda: choose(kinds, "one", {"net": 1}, "thing"), "'net'")


BEYOND = [("count", 2**63), ("hidden", (8, 10**26)), ("coef", 1e308), ("coef", 2**70), ("betas", (0.9, -1e39))]
BEYOND += [("word", "a\udcff"), ("word", "a\0")]


@pytest.mark.parametrize(("name", "value"), BEYOND, ids=str)
def test_what_no_tensor_file_or_name_can_hold_is_refused(name, value):
    def make(count=1, hidden=(8,), coef=1.0, betas=(0.9, 0.99), word="x"): ...

    refused(lambda: settings_of(make)[name].checked(name, value), name, ascii(value).strip("'")[:8])


def test_a_keyword_that_does_not_exist_is_refused_with_the_nearest_one():
    for make in (lambda: SAC(3, 1, [0], regularize=None), lambda: DQN((3,), 2, [0], regularize=None)):
        refused(make, "'regularize'", "'make_regularizer'", error=(TypeError, SettingsError))
