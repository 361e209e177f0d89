import warnings

import pytest
import torch
from conftest import plain_mlp, refused
from torch import nn

from rl_plasticity import (
    AGENTS,
    DATA,
    INTERVENTIONS,
    NETWORKS,
    OPTIMIZERS,
    REGULARIZERS,
    TASKS,
    attach,
    make_regularizer,
    measure,
)
from rl_plasticity.agents import AGENT_NETWORKS
from rl_plasticity.errors import FaultyRun, SettingsError, choose, one_line

LONG = ["\0" * 100_000, "x" * 100_000, "a b " * 30_000, 'it\'s "that" \x1b[2J ' * 5000, [1, 2] * 50_000, 10**4000]
LONG += [{"a": "b c " * 9000}, b"\xff\0" * 9000, "\udcff \u202e" * 9000, "[" * 50_000, "'" * 50_000, "a\n" * 9000]


@pytest.mark.parametrize("kind", [SettingsError, FaultyRun])
def test_a_message_is_one_printable_line_without_the_middle_of_a_long_one(kind):
    for content in LONG:
        said = str(kind(f"the run's file is damaged: {content!r} is no number, seeds' names are"))
        assert said.isprintable()
        assert len(said) <= 2000
        assert said.startswith("the run's file is damaged: ")
        assert said.endswith(" is no number, seeds' names are")


def test_what_a_message_says_itself_is_left_as_it_is():
    names = ", ".join(f"metric/{i}" for i in range(60))
    for message in (f"unknown metric 'x' (valid: {names})", "cannot read /two  spaces/Zürich: 'ü' in the run's file"):
        assert one_line(message) == message
    assert one_line("two\n\n  lines\n") == "two lines"
    assert len(one_line("word " * 100_000)) <= 2000  # whatever it is


def loop_with_another_optimizer():
    net = plain_mlp()
    attach("l2", optimizer_of(net), net)
    other = optimizer_of(net)
    for _ in range(20):
        net(torch.ones(3, 5)).sum().backward()
        other.step()


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), 0.1)


# Each call stands on one line, which is the line of the warning, and warns at another depth of the package.
WARNED = {
    "made by name": (plain_mlp, lambda net: make_regularizer("normalize_project", net)),
    "attached": (plain_mlp, lambda net: attach("normalize_project", optimizer_of(net), net)),
    "measured": (lambda: nn.LSTM(5, 4), lambda net: measure(net, torch.ones(3, 2, 5))),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_points_at_the_line_outside_the_package_that_led_to_it(name):
    make, call = WARNED[name]
    net = make()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call(net)
    (warning,) = said
    assert (warning.filename, warning.lineno) == (__file__, call.__code__.co_firstlineno)


def test_a_warning_from_within_a_hook_of_torch_points_at_the_loop():
    with pytest.warns(UserWarning, match=r"^L2\b.*step\(\)") as said:
        loop_with_another_optimizer()
    step = loop_with_another_optimizer.__code__.co_firstlineno + 6
    assert (said[0].filename, said[0].lineno) == (__file__, step)


def test_a_built_in_name_cannot_be_given_to_something_else_by_any_way_to_add_to_a_public_dict():
    ours = REGULARIZERS["l2"]

    def joined():
        known = REGULARIZERS
        known |= {"l2": object}

    for add in (lambda: REGULARIZERS.__setitem__("l2", object), lambda: REGULARIZERS.update(l2=object), joined):
        refused(add, "'l2'", "built in")
        assert REGULARIZERS["l2"] is ours
    for known in (AGENTS, AGENT_NETWORKS, DATA, INTERVENTIONS, NETWORKS, OPTIMIZERS, TASKS):
        refused(lambda known=known: known.__setitem__(next(iter(known)), object), "built in")


def test_a_choice_takes_its_base_class_s_settings_where_its_constructor_passes_them_on():
    class Base:
        def __init__(self, net, coef=1.0):
            self.coef = coef

    class Mine(Base):
        def __init__(self, net, double=False, **settings):
            super().__init__(net, **settings)

    assert choose({"mine": Mine}, "mine", {"coef": 3.0, "double": True}, "regularizer")(None).coef == 3.0
    refused(lambda: choose({"mine": Mine}, "mine", {"coeff": 3.0}, "regularizer"), "'coeff'", "'mine'", "'coef'")
