"""How every command begins and ends: its terminal, its signals, its status."""

import io
import signal
import subprocess
import sys

import pytest

from rl_plasticity import command_line
from rl_plasticity.errors import SettingsError


@pytest.fixture
def main(monkeypatch):
    def call(act, *arguments):
        monkeypatch.setattr(sys, "argv", ["status", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main("status", lambda _: "", act)
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


def test_ctrl_c_ends_a_command_at_once_from_its_first_import_on_and_other_programs_keep_their_handler():
    look = "import sys, signal; sys.argv[0] = {!r}; import rl_plasticity; signal.raise_signal(signal.SIGINT); print(1)"
    done = subprocess.run([sys.executable, "-c", look.format("-m")], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")  # 130 for a shell
    done = subprocess.run([sys.executable, "-c", look.format("mine.py")], capture_output=True, text=True)
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_once_all_is_imported_ctrl_c_is_an_exception_with_status_130_until_the_command_has_ended(main):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the imports left it
    assert main(lambda arguments: signal.raise_signal(signal.SIGINT)) == 130
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_an_interrupt_that_is_ignored_stays_ignored(main):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nohup
    assert main(lambda arguments: signal.raise_signal(signal.SIGINT) or 3) == 3


@pytest.mark.parametrize(("error", "status"), [(SettingsError("x"), 2), (OSError(28, "x"), 1)])
def test_bad_input_and_faults_have_one_line_and_their_status(main, error, status, capsys):
    assert main(raising(error)) == status
    assert capsys.readouterr().err.startswith("rl_plasticity.status: ")
