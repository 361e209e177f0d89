"""A run that is branched into remedies: what is made, what is taken, and what the numbers say."""

import json

import folders
import numpy as np
import pytest
from conftest import StopAfter, once, refused
from folders import curve, write_run
from scipy.stats import t as student

from rl_plasticity import train
from rl_plasticity.branches import AS_IT_IS, compared
from rl_plasticity.command_line import looked_at
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Diagnose
from rl_plasticity.diagnose import diagnose_run
from rl_plasticity.runs.folder import RunFolder, find
from rl_plasticity.runs.trained import load_agent
from rl_plasticity.sweeps.job import finished

INTO = ["branch=true", "branch_into=[head,l2_init]", "branch_env_steps=10"]


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return folders.run([*folders.PENDULUM, "seeds=2"], tmp_path_factory.mktemp("branches") / "run")


def branched(folder, *arguments):
    return diagnose_run(RunFolder(folder), schema.load(Diagnose, once([*INTO, *arguments])))


@pytest.fixture(scope="module")
def made(parent, tmp_path_factory):
    out = tmp_path_factory.mktemp("branches") / "made"
    assert branched(parent, f"out={out}") in (0, 3)
    return out


def test_each_remedy_is_a_branch_of_its_own_and_an_intervention_acts_once(parent, made):
    assert sorted(path.name for path in made.iterdir()) == [AS_IT_IS, "head", "l2_init"]
    settings = {path.name: RunFolder(path).settings for path in made.iterdir()}
    assert {s["at"] for s in settings.values()} == {60}
    assert {s["total_env_steps"] for s in settings.values()} == {70}
    assert {s["eval_every_env_steps"] for s in settings.values()} == {2}
    resets = {name: s["reset"]["name"] for name, s in settings.items()}
    assert resets == {AS_IT_IS: "none", "head": "head", "l2_init": "none"}
    assert settings["l2_init"]["reg"]["name"] == "l2_init"
    assert load_agent(made / "head").critic.counts["resets"].tolist() == [1, 1]
    assert "resets" not in load_agent(made / AS_IT_IS).critic.counts
    same = folders.go(train.command, [f"from={parent}", "total_env_steps=70", f"out={made.parent / 'same'}"])
    last = [r for r in folders.rows(made / AS_IT_IS, "eval/return") if r["step"] == "70"]
    assert last == [r for r in folders.rows(same, "eval/return") if r["step"] == "70"]


def test_what_is_made_is_not_made_again_and_what_was_stopped_continues(parent, made, tmp_path, monkeypatch, capsys):
    out, execute = tmp_path / "out", train.command.execute

    def stopped(session, built):
        if session.folder.path.name == "head":
            session.stop = StopAfter(4)
        return execute(session, built)

    monkeypatch.setattr(train.command, "execute", stopped)
    assert branched(parent, f"out={out}") > 128
    assert "same command" in capsys.readouterr().err
    assert [finished(out / name) for name in (AS_IT_IS, "head", "l2_init")] == [True, False, False]
    monkeypatch.setattr(train.command, "execute", execute)
    status = branched(parent, f"out={out}")
    printed = capsys.readouterr()
    assert [len(RunFolder(out / name).origin()["starts"]) for name in (AS_IT_IS, "head", "l2_init")] == [1, 2, 1]
    for name in (AS_IT_IS, "head", "l2_init"):
        assert (out / name / "metrics.csv").read_bytes() == (made / name / "metrics.csv").read_bytes()
    assert branched(parent, f"out={out}") == status
    assert capsys.readouterr().out == printed.out
    assert [len(RunFolder(out / name).origin()["starts"]) for name in (AS_IT_IS, "head", "l2_init")] == [1, 2, 1]


def test_what_is_not_a_branch_of_the_run_stays_and_is_refused(parent, made, tmp_path):
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "mine.txt").write_text("mine")
    refused(lambda: branched(parent, f"out={tmp_path}"), "head")
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    refused(lambda: branched(parent, "branch_env_steps=20", f"out={made}"), "total_env_steps=70", "80")


REFUSED = [
    (["seed=1"], "seed=1"),
    (["network=critic"], "network=critic"),
    (["checkpoint=7"], "7", "60"),
    (["branch_into=[heed]"], "heed", "head"),
    (["checkpoint=0", "branch_env_steps=5"], "branch_env_steps"),
    (["branch=false"], "branch=true"),
]


@pytest.mark.parametrize(("settings", "words"), [(s, w) for s, *w in REFUSED], ids=lambda x: " ".join(x))
def test_what_cannot_be_branched_is_refused_before_anything_is_made(settings, words, parent):
    names = [given.partition("=")[0] for given in settings]
    asked = [given for given in INTO if given.partition("=")[0] not in names]
    refused(lambda: diagnose_run(*looked_at(Diagnose, [str(parent), *asked, *settings])), *words)
    assert not (parent / "branches").exists()


def returns(tmp_path, **of_groups):
    """Folders of branches at env step 1000, with these returns at 2000 and 3000 for each seed."""
    made = {}
    for name, values in of_groups.items():
        rows = {str(seed): curve([0.0, value - 1, value + 1]) for seed, value in enumerate(values)}
        own = ["reset=none"] if name == "none" else [f"reset={name}", "reset_once_after_updates=5"]
        arguments = [*own, "random_env_steps=0", "total_env_steps=3000"]
        made[AS_IT_IS if name == "none" else name] = write_run(tmp_path / name, arguments, rows)
    return compared(made, 1000)


def test_remedies_are_compared_by_their_returns_after_the_branch_point_paired_by_seed(tmp_path):
    none = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    fire = [n + d for n, d in zip(none, [4, 5, 6, 5, 5, 5], strict=True)]
    base, row = returns(tmp_path, none=none, fire=fire).rows
    assert (base["mean"].value, row["gap"].value, row.label) == (35, 5, "fire")
    half = student.ppf(0.975, 5) * np.std([4, 5, 6, 5, 5, 5], ddof=1) / 6**0.5
    assert row["gap"].interval == pytest.approx((5 - half, 5 + half))
    assert not row.undecided


def test_branches_lie_in_the_runs_folder_and_its_diagnosis_and_a_search_for_runs_pass_them_by(tmp_path, capsys):
    run = folders.run([*folders.PENDULUM], tmp_path / "runs" / "run")
    diagnose_run(RunFolder(run), schema.load(Diagnose, ["branch=true", "branch_into=[redo]"]))
    assert sorted(path.name for path in (run / "branches" / "60_to_66").iterdir()) == [AS_IT_IS, "redo"]
    assert "branches/60_to_66" in capsys.readouterr().err
    assert [folder.path for folder in find([tmp_path / "runs"])] == [run]
    assert not (run / "diagnosis.json").exists()
    provenance = json.loads((run / "branches" / "60_to_66" / "redo" / "provenance.json").read_text())
    assert provenance["branch"]["updates"] == 40
