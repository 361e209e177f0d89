import pytest

from rl_plasticity.errors import FaultyRun, SettingsError, one_line


@pytest.mark.parametrize(
    "content",
    ["\0" * 100_000, "x" * 100_000, "a b " * 30_000, "it's \"that\" \x1b[2J " * 5000, [1, 2] * 50_000, 10**4000,
     {"a": "b c " * 9000}, b"\xff\0" * 9000, "\udcff \u202e" * 9000, "[" * 50_000, "'" * 50_000, "a\n" * 9000],
    ids=["NUL", "word", "words", "quotes", "list", "number", "dict", "bytes", "surrogates", "open", "quote", "lines"],
)  # fmt: skip
@pytest.mark.parametrize("kind", [SettingsError, FaultyRun])
def test_a_message_is_one_printable_line_that_shows_200_characters_of_what_it_quotes_at_most(kind, content):
    said = str(kind(f"the run's file is damaged: {content!r} is no number, seeds' names are"))
    assert said.isprintable()
    assert len(said) < 300
    assert said.startswith("the run's file is damaged: ")
    assert said.endswith(" is no number, seeds' names are")


def test_what_a_message_says_itself_is_left_as_it_is():
    names = ", ".join(f"metric/{i}" for i in range(60))
    for message in (f"unknown metric 'x' (valid: {names})", "cannot read /two  spaces/Zürich: 'ü' in the run's file"):
        assert one_line(message) == message
    assert one_line("two\n\n  lines\n") == "two lines"
    assert "..." in one_line("\\" * 999)
    assert len(one_line("word " * 100_000)) <= 2000  # whatever it is
