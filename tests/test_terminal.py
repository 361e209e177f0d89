import errno
import os
import signal
import subprocess
import sys
import threading

import pytest
from folders import PENDULUM

from rl_plasticity import command_line, terminal, train
from rl_plasticity.runs.session import StopSignal

READY = "from rl_plasticity import terminal; terminal.prepare(); import sys\n"


def shell(line, code=""):
    """What a shell line with COMMAND in it, that runs this code, gave."""
    line = line.replace("COMMAND", f'"{sys.executable}" -c "$CODE"')
    environment = {**os.environ, "CODE": READY + code, "PYTHONUNBUFFERED": ""}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("flags", ["", "PYTHONUNBUFFERED=1"])
def test_a_reader_that_stops_reading_is_neither_a_traceback_nor_a_fault(flags):
    code = "for i in range(30_000): print(i)\nprint('done', file=sys.stderr)"
    done = shell(f"{flags} COMMAND | head -1; exit ${{PIPESTATUS[0]}}", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "done\n")
    done = shell(f"{flags} COMMAND 2>&1 | true; exit ${{PIPESTATUS[0]}}", code + "\nsys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("OSError(24, 'Too many open files', 'torch.py')", "[Errno 24] Too many open files: 'torch.py'"),
        ("ImportError('libtorch.so:\\n no room')", "libtorch.so: no room"),
        ("MemoryError", "MemoryError"),
    ],
)
def test_what_ends_a_process_while_it_imports_is_one_line(error, said):
    done = shell("COMMAND", f"raise {error}")
    assert (done.returncode, done.stderr) == (1, f"rl_plasticity: cannot start: {said}\n")


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_file_does_not_become_the_terminal_that_was_closed(closed, tmp_path):
    code = f"file = open({str(tmp_path / 'file')!r}, 'w')\nassert file.fileno() > 2\nimport os\n"
    code += "assert all(map(os.get_inheritable, range(3)))\n"  # by worker processes
    code += "print('a'); print('b', file=sys.stderr); os.write(1, b'c'); os.write(2, b'd'); file.write('mine')"
    done = shell(f"COMMAND {closed}", code)
    assert done.returncode == 0
    assert done.stdout == ("" if closed != "2>&-" else "ca\n")
    assert done.stderr == ("" if closed != ">&-" else "b\nd")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_interrupt_while_a_process_imports_says_nothing_and_a_bug_its_traceback():
    assert shell("COMMAND", "raise KeyboardInterrupt").stderr == ""
    assert "Traceback" in shell("COMMAND", "1 / 0").stderr


def test_a_terminal_that_does_not_block_is_waited_for():
    done = shell("COMMAND | (sleep 0.2; wc -c)", "import os; os.set_blocking(1, False); print('x' * 500_000)")
    assert (done.stdout, done.stderr) == ("500001\n", "")


def test_a_stream_writes_as_the_one_it_takes_the_place_of():
    done = shell("LC_ALL=C PYTHONIOENCODING=latin-1:replace COMMAND | od -c -An", "print('ü\u2026')")
    assert done.stdout.split() == ["374", "?", "\\n"]


def test_a_run_goes_on_without_its_terminal_and_its_status_is_0(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "_lost", {})
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    read, write = os.pipe()
    os.close(read)
    for name in ("stdout", "stderr"):  # that nobody reads
        monkeypatch.setattr(sys, name, terminal.lenient(write, None))
    monkeypatch.setattr(sys, "argv", ["train", *PENDULUM, f"out={tmp_path / 'run'}"])
    command_line.train(train.command)
    assert (tmp_path / "run" / "checkpoints" / "step_000000060.pt").exists()
    assert (tmp_path / "run" / "log.txt").read_text().endswith(" finished\n")
    sys.stdout.flush()
    os.close(write)
    assert terminal._lost[write].errno == errno.EPIPE  # something was said


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_what_a_command_prints_must_arrive_unless_nobody_wants_it(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["status", *arguments])

    def call():
        monkeypatch.setattr(terminal, "_lost", {})
        command_line.main("status", lambda _: "help", lambda _: print("a table"))

    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", terminal.lenient(full.fileno(), None))
        monkeypatch.setattr(terminal.Lenient, "fileno", lambda self: 1)
        with pytest.raises(SystemExit) as ended:
            call()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "rl_plasticity.status: [Errno 28] No space left on device: 'standard output'\n"


def test_a_terminal_that_is_closed_lets_a_run_save_however_often_it_says_so(monkeypatch):
    with StopSignal() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        assert stop.received == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.received == 0
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN
