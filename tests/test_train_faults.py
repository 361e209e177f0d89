import subprocess
import sys

import pytest
from conftest import refused
from folders import PENDULUM, run

from rl_plasticity import train
from rl_plasticity.envs.vector import EnvFault
from rl_plasticity.errors import FaultyRun
from rl_plasticity.runs import checkpoint
from rl_plasticity.train import command


def test_bad_input_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, names in (
        (["reset=redo", "reset.threshold=-1"], ["reset.threshold", "from 0 up", "-1"]),
        (["env=gym:Pendulum-v1", "agent.activation=crelu", "reset=redo"], ["ReDo", "no hidden activation"]),
        (["env=gym:CartPole-v1"], ["discrete actions", "agent=sac"]),
        (["env=gym:BipedalWalker-v3"], []),  # its engine is not installed
        (["resume=nowhere"], ["nowhere"]),
        (["reg.coef=1"], ["reg=none"]),
        (["--mutlirun"], ["'--mutlirun'"]),
    ):
        refused(lambda given=arguments: command.prepare(given), *names)
        assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_in_one_line_and_status_2_and_makes_nothing(tmp_path):
    command = [sys.executable, "-m", "rl_plasticity.train", "env=cheetah-rum"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown env 'cheetah-rum'; nearest: cheetah-run" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_touched(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    refused(lambda: command.prepare([*PENDULUM, f"out={tmp_path / 'run'}"]), "exists", "resume=")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_losses_that_are_not_finite_stop_the_run_and_the_last_good_checkpoint_stays(tmp_path):
    arguments = [*PENDULUM, "agent.lr=1e30", "checkpoint_every_env_steps=20", "log_every_updates=10"]
    with pytest.raises(FaultyRun, match=r"env step 21\b.*step_000000020\.pt"):
        run(arguments, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert state["at"] == 20
    assert all(v.isfinite().all() for v in state["agent"].values() if v.is_floating_point())


def test_a_loss_that_is_not_finite_is_named_before_anything_else_can_fail_on_it(tmp_path):
    settings = [a for a in PENDULUM if not a.startswith(("log", "checkpoint"))]
    with pytest.raises(FaultyRun, match=r"(critic|actor)/loss of seed 0\b.*env step 21\b"):
        run([*settings, "log_every_updates=1", "agent.lr=1e30", "replay_ratio=4"], tmp_path / "run")


def test_evaluation_workers_that_cannot_be_started_are_the_run_s_fault_and_not_a_bug(tmp_path, monkeypatch):
    def envs(*arguments, workers=False):
        if workers:
            raise EnvFault("the environments' processes cannot be started: too many open files")
        return made(*arguments)

    made = train.evaluation_envs
    monkeypatch.setattr(train, "evaluation_envs", envs)
    with pytest.raises(FaultyRun, match=r"^the environments' processes cannot be started: too many open files"):
        run([*PENDULUM, "env.workers=1"], tmp_path / "run")


@pytest.mark.parametrize("given", [[], ["replay_ratio=0"], ["prime_updates=1", "prime_after_env_steps=5"]])
def test_a_run_that_would_make_no_update_is_refused_before_anything_is_written_unless_that_is_asked_for(
    tmp_path, given
):
    short = ["random_env_steps=20", "total_env_steps=20", "eval_every_env_steps=60"]
    asked = [*PENDULUM[:-6], *short, *given, f"out={tmp_path / 'run'}"]
    if given:
        session, parts = command.prepare(asked)
        parts.close()
        session.lock.release()
        return
    refused(lambda: command.prepare(asked), "total_env_steps=20", "random_env_steps=20")
    assert not [*tmp_path.iterdir()]
