from pathlib import Path

import pytest

from rl_plasticity.paths import exists, expanded


def test_a_tilde_is_the_home_folder_and_one_that_is_nobody_s_stays_a_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ü")
    assert expanded("~/x") == Path("/home/ü/x")
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")
    assert expanded("a~=[b] (1)") == Path("a~=[b] (1)")


@pytest.mark.parametrize("name", ["a" * 300, "ü" * 200, "a\0b"])
def test_what_no_file_can_be_called_is_nowhere(name):
    assert not exists(name)


def test_what_is_there_is_found(tmp_path):
    assert exists(tmp_path)
    assert not exists(tmp_path / "none")
