"""``python -m rl_plasticity``: which commands there are."""

import runpy
import sys

import pytest
from test_imports import PACKAGE

from rl_plasticity.__main__ import COMMANDS, main


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["rl_plasticity", *arguments])
    return main()


def test_it_lists_exactly_the_commands_there_are(monkeypatch, capsys):
    there = {path.stem for path in PACKAGE.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()}
    assert COMMANDS.keys() == there - {"__main__"}
    assert call(monkeypatch) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)


@pytest.mark.parametrize(("name", "names"), [("trian", ["'train'"]), ("env=x", COMMANDS)])
def test_an_unknown_command_is_one_line_with_the_nearest_and_status_2(name, names, monkeypatch, capsys):
    assert call(monkeypatch, name, "seed=1") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"rl_plasticity: unknown command {name!r}")
    assert all(other in err for other in names)


def test_a_command_that_is_named_runs_as_if_it_were_called_itself(monkeypatch):
    ran = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **how: ran.append((name, how["run_name"], sys.argv[1:])))
    assert call(monkeypatch, "status", "results", "more") == 0
    assert ran == [("rl_plasticity.status", "__main__", ["results", "more"])]
