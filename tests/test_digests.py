"""``scripts/digests.py``: whether a change left every number as it was."""

import pytest
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
    saved.write_text(before + f"{l2} attach/spectral/mlp\n")  # which is not asked for
    assert digests.main([*only, "--against", str(saved)]) == 0
    assert capsys.readouterr() == (before, "")
    for others, words in (
        (before.replace(l2, l2_init), "attach/l2/mlp: differs from"),
        (f"{l2} attach/l2/mlp\n", "attach/l2_init/mlp: is missing in"),
        (before + f"{l2} attach/l2_old/mlp\n", "attach/l2_old/mlp: is only in"),
    ):
        saved.write_text(others)
        assert digests.main([*only, "--against", str(saved)]) == 1
        assert capsys.readouterr() == (before, f"{words} {saved}\n")


def test_a_new_regularizer_has_a_line_and_a_run_that_resumes_to_other_numbers_is_named(monkeypatch, capsys):
    monkeypatch.setitem(REGULARIZERS, "l2_forgetful", Forgetful)
    assert digests.main(["--only", "supervised/reg/l2_[if]*"]) == 1
    out, errors = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["supervised/reg/l2_init"]
    assert errors.startswith("supervised/reg/l2_forgetful: ArithmeticError: ")
    assert errors.count("\n") == 1


def test_a_method_that_does_nothing_in_its_loop_is_named(monkeypatch, capsys):
    monkeypatch.setitem(REGULARIZERS, "idle", Idle)
    assert digests.main(["--only", "attach/idle/*"]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0][:12] for line in errors.splitlines()] == ["attach/idle/"] * 2


def test_the_numbers_of_a_page_are_those_of_its_cells_and_curves_and_not_where_it_was_made():
    page = (
        '<p>3</p><td class="wrap">-1.5 ± 2</td><td>l2 coef=1e-4</td><svg d="M 7"></svg>{}<script id="groups">8</script>'
    )
    page += "<details><summary>Provenance</summary><td>/tmp/9</td></details>"
    curves = '<script type="application/json">[{{"means":[4.25,{}]}}]</script>'
    assert digests.numbers(page.format(curves.format(5))) == ["-1.5", "2", "2", "1e-4", "4.25", "5"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--only", "attach/l3/*"], "--only attach/l3/*"),
        (["--against", "nowhere"], "nowhere"),
        (["--keep", "."], "--keep ."),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(wrong, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        digests.main(wrong)
    assert stopped.value.code == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert words in errors
    assert not [*tmp_path.iterdir()]
