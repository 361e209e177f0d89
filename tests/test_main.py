"""``python -m rl_plasticity``: which commands there are."""

import runpy
import sys

import pytest
from conftest import called
from test_imports import PACKAGE

from rl_plasticity.__main__ import COMMANDS, main


def test_it_lists_exactly_the_commands_there_are():
    there = {path.stem for path in PACKAGE.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()}
    assert COMMANDS.keys() == there - {"__main__", "live", "reproduce"}
    status, said, _ = called(main)
    assert status == 0
    assert all(f"  {name} " in said for name in COMMANDS)


@pytest.mark.parametrize(("name", "names"), [("trian", ["'train'"]), ("env=x", COMMANDS)])
def test_an_unknown_command_is_one_line_with_the_nearest_and_status_2(name, names):
    status, out, err = called(main, name, "seed=1")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rl_plasticity: unknown command {name!r}")
    assert all(other in err for other in names)


def test_a_command_that_is_named_runs_as_if_it_were_called_itself(monkeypatch):
    ran = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **how: ran.append((name, how["run_name"], sys.argv[1:])))
    assert called(main, "status", "results", "more") == (0, "", "")
    assert ran == [("rl_plasticity.status", "__main__", ["results", "more"])]
