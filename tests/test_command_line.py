"""How every command begins and ends: its terminal, its status, its tables."""

import io
import signal
import sys

import pytest

from rl_plasticity import command_line
from rl_plasticity.errors import FaultyRun, SettingsError


@pytest.fixture
def main(monkeypatch):
    def call(act, *arguments):
        monkeypatch.setattr(sys, "argv", ["status", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main("status", lambda others: f"help {others}", act)
        return end.value.code

    return call


def raising(error):
    def act(arguments):
        raise error

    return act


def test_a_terminal_that_is_ascii_gets_escapes_instead_of_a_traceback(main, monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)

    def act(arguments):
        print("1 ± 2, ü, \udcff")
        raise SettingsError("no folder ü")

    assert main(act) == 2
    written = {name: stream.buffer.getvalue() for name, stream in streams.items()}
    assert written["stdout"] == b"1 \\xb1 2, \\xfc, \\udcff\n"
    assert written["stderr"] == b"rl_plasticity.status: no folder \\xfc\n"


@pytest.mark.parametrize(("error", "status", "said"), [
    (SettingsError("x"), 2, "rl_plasticity.status: x\n"),
    (FaultyRun("x\ny"), 1, "rl_plasticity.status: x y\n"),
    (OSError(28, "No space left"), 1, "rl_plasticity.status: [Errno 28] No space left\n"),
    (ModuleNotFoundError("No module named 'ray'"), 1, "rl_plasticity.status: No module named 'ray'\n"),
    (KeyboardInterrupt(), 128 + signal.SIGINT, ""),
])  # fmt: skip
def test_bad_input_and_faults_have_one_line_and_their_status(main, error, status, said, capsys):
    assert main(raising(error)) == status
    assert capsys.readouterr().err == said


def test_the_status_is_that_of_the_act_and_help_asks_for_no_act(main, capsys):
    assert main(lambda arguments: len(arguments), "a", "b") == 2
    assert main(raising(AssertionError), "a", "--help") == 0
    assert capsys.readouterr().out == "help ['a']\n"
