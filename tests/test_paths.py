from pathlib import Path

from rl_plasticity.paths import exists, expanded


def test_a_tilde_is_the_home_folder_and_one_that_is_nobody_s_stays_a_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ü")
    assert expanded("~/x") == Path("/home/ü/x")
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")
    assert expanded("a~=[b] (1)") == Path("a~=[b] (1)")


def test_what_is_there_is_found_and_what_no_file_can_be_called_is_nowhere(tmp_path):
    assert exists(tmp_path)
    for name in (tmp_path / "none", "a" * 300, "ü" * 200, "a\0b"):
        assert not exists(name)
