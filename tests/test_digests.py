"""``scripts/digests.py``: whether a change left every number as it was."""

from folders import script

from rl_plasticity import REGULARIZERS

digests = script("digests")


class Forgetful(REGULARIZERS["l2"]):
    """Grows with a count that is not saved."""

    calls = 0

    def penalty(self, net):
        self.calls += 1
        return self.calls * super().penalty(net)


class Idle(REGULARIZERS["l2"]):
    def penalty(self, net):
        return 0 * super().penalty(net)


def test_a_digest_that_differs_or_is_missing_is_named_and_ends_with_status_1(tmp_path, capsys):
    only = ["--only", "attach/l2*/mlp"]
    assert digests.main(only) == 0
    before = capsys.readouterr().out
    (l2, _), (l2_init, _) = (line.split() for line in before.splitlines())
    assert l2 != l2_init
    saved = tmp_path / "before"
    for others, words in (
        (before + f"{l2} attach/spectral/mlp\n", ""),  # which is not asked for
        (before.replace(l2, l2_init), "attach/l2/mlp: differs from"),
        (f"{l2} attach/l2/mlp\n", "attach/l2_init/mlp: is missing in"),
        (before + f"{l2} attach/l2_old/mlp\n", "attach/l2_old/mlp: is only in"),
    ):
        saved.write_text(others)
        assert digests.main([*only, "--against", str(saved)]) == bool(words)
        assert capsys.readouterr() == (before, f"{words} {saved}\n" if words else "")


def test_a_run_that_resumes_to_other_numbers_and_a_method_that_does_nothing_are_named(monkeypatch, capsys):
    monkeypatch.setitem(REGULARIZERS, "l2_forgetful", Forgetful)
    monkeypatch.setitem(REGULARIZERS, "l2_idle", Idle)
    assert digests.main(["--only", "supervised/reg/l2_[fi]n*"]) == 0
    assert digests.main(["--only", "supervised/reg/l2_forgetful"]) == 1
    assert digests.main(["--only", "attach/l2_idle/mlp"]) == 1
    out, errors = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["supervised/reg/l2_init"]
    assert [line.split()[0] for line in errors.splitlines()] == ["supervised/reg/l2_forgetful:", "attach/l2_idle/mlp:"]
