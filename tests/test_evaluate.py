import csv
import math
import shutil

import folders
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import called, files

from rl_plasticity import command_line
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Evaluate
from rl_plasticity.evaluate import evaluate
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder

SMALL = [*folders.PENDULUM, "eval_episodes=3", "eval_every_env_steps=40", "seeds=2", "seed=3"]


class Start(gym.Env):
    """Returns a random number of its start state, whatever the actions; the episode ends after its second step."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.t = float(self.np_random.uniform()), 0
        return np.array([self.start, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.start, self.t], np.float32), self.start * (self.t == 1), False, self.t == 2, {}


gym.register("StartForTests-v0", Start)


def command():
    command_line.look_at(Evaluate, evaluate)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return folders.run(SMALL, tmp_path_factory.mktemp("pendulum") / "run")


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    given = [*SMALL, "env=gym:StartForTests-v0", "env.action_repeat=1"]
    return folders.run(given, tmp_path_factory.mktemp("starts") / "run")


def logged(folder, name, step=None):
    """Of each run the values of a metric."""
    found = [r for r in folders.rows(folder, name) if step in (None, int(r["step"]))]
    return {n: [float(r["value"]) for r in found if r["run"] == n] for n in {r["run"] for r in found}}


@pytest.fixture
def returns_of(tmp_path):
    """Calls the command; of each run the returns it writes."""

    def call(folder, *arguments):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        evaluate(RunFolder(folder), schema.load(Evaluate, [*arguments, f"out={out}"]))
        found = [*csv.DictReader(out.read_text().splitlines())]
        return {n: [float(r["return"]) for r in found if r["run"] == n] for n in dict.fromkeys(r["run"] for r in found)}

    return call


@pytest.mark.parametrize("step", [40, 60])
def test_by_default_it_gives_training_s_own_evaluation_at_the_checkpoint_bit_for_bit(step, pendulum, returns_of):
    found = returns_of(pendulum, *([] if step == 60 else [f"checkpoint={step}"]))
    assert {n: [float(np.mean(r))] for n, r in found.items()} == logged(pendulum, "eval/return", step)
    assert [len(r) for r in found.values()] == [3, 3]


def test_one_run_of_a_stack_gives_the_same_returns_as_among_the_others(pendulum, returns_of):
    for deterministic in ("true", "false"):
        both = returns_of(pendulum, f"deterministic={deterministic}")
        assert returns_of(pendulum, f"deterministic={deterministic}", "seed=4") == {"4": both["4"]}
        assert both["3"] != both["4"]
    assert both != returns_of(pendulum)  # sampled actions


def test_start_states_are_a_function_of_the_step_or_else_of_the_evaluation_seed_alone(starts, returns_of):
    own = [returns_of(starts, f"checkpoint={step}")["3"] for step in (40, 60)]
    assert returns_of(starts, "episodes=5")["3"][:3] == own[1]
    assert not set(own[0]) & set(own[1])
    seeded = [returns_of(starts, f"checkpoint={step}", "evaluation_seed=0") for step in (40, 60)]
    assert seeded[0] == seeded[1]
    other = returns_of(starts, "evaluation_seed=1")
    everything = [*own[0], *own[1], *seeded[0]["3"], *seeded[0]["4"], *other["3"], *other["4"]]
    assert len(set(everything)) == 18
    trained_on = [x for values in logged(starts, "train/return").values() for x in values]
    assert len(trained_on) == 60
    assert not {round(x, 5) for x in trained_on} & {round(x, 5) for x in everything}


def test_the_standard_error_is_over_episodes_with_one_degree_of_freedom_less(pendulum, monkeypatch):
    returns = np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    monkeypatch.setattr("rl_plasticity.runs.trained.Trained.play", lambda *_: returns)
    said = called(command, pendulum)[1].splitlines()
    assert said[1] == f"seed 3: return 3.0 ± {math.sqrt(7 / 3):.1f}, min 1.0, max 6.0"
    assert said[2] == "seed 4: return 4.0 ± 0.0, min 4.0, max 4.0"


def test_what_is_asked_for_is_written_a_row_for_each_episode_and_nothing_of_the_run_changes(pendulum, tmp_path):
    before = files(pendulum)
    for given in (["episodes=1"], ["episodes=2", "checkpoint=40", f"out={tmp_path / 'x.csv'}"]):
        evaluate(RunFolder(pendulum), schema.load(Evaluate, given))
    assert files(pendulum) == before
    found = [line.split(",")[:3] for line in (tmp_path / "x.csv").read_text().splitlines()]
    assert found == [["run", "step", "episode"], *([n, "40", k] for n in "34" for k in "12")]


def test_no_transitions_and_no_files_of_other_names_are_needed(pendulum, tmp_path, returns_of):
    folder = shutil.copytree(pendulum, tmp_path / "copy")
    for path in (folder / "checkpoints").glob("rows_*.pt"):
        path.unlink()
    (folder / "checkpoints" / "step_best.pt").touch()
    assert returns_of(folder) == returns_of(pendulum)  # as watch: both take the agents of `Trained`


def test_a_checkpoint_of_a_gpu_is_evaluated_without_one(pendulum, tmp_path, returns_of):
    folder = shutil.copytree(pendulum, tmp_path / "gpu" / "run")
    saved = checkpoint.load(folder / "checkpoints")
    saved["agent"]["streams._extra_state"] = torch.zeros(2, 16, dtype=torch.uint8)  # a state of CUDA's generators
    checkpoint.Checkpoints(folder / "checkpoints").save(60, {}, saved)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("device: cpu", "device: cuda"))
    given = ["device=cpu"] if torch.cuda.is_available() else []
    assert returns_of(folder, *given) == returns_of(pendulum)


def test_bad_input_ends_in_one_line_and_status_2_and_writes_nothing(pendulum, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("x")
    (tmp_path / "empty").mkdir()
    folders.write_run(tmp_path / "supervised", ["device=cpu"], {}, "supervised")
    widened = shutil.copytree(pendulum, tmp_path / "widened")
    config = widened / "config.yaml"
    config.write_text(config.read_text().replace("- 16\n  - 16", "- 16\n  - 17"))
    damaged = shutil.copytree(pendulum, tmp_path / "damaged")
    for path in (damaged / "checkpoints").iterdir():
        path.write_bytes(b"junk")
    before = sorted(tmp_path.rglob("*"))
    for arguments, said in (
        ([], ["python -m rl_plasticity.evaluate RUN [name=value ...]"]),
        (["widend"], ["widend", "widened"]),
        (["empty"], ["empty/config.yaml"]),
        (["supervised"], ["rl_plasticity.train"]),
        (["widened"], ["config.yaml"]),
        (["damaged"], ["step_000000060.pt"]),
        (["a" * 300], ["File name too long"]),
        ([pendulum, "episode=3"], ["'episode'", "'episodes'"]),
        ([pendulum, "episodes=0"], ["episodes", "from 1 up or null", "got 0"]),
        ([pendulum, "checkpoint=50"], ["step 50", "(valid: 0, 40, 60)"]),
        ([pendulum, "seed=5"], ["seed=5", "(valid: 3, 4)"]),
        ([pendulum, "out=there.csv"], ["there.csv exists", "out="]),
        ([pendulum, "out=x.txt"], [".csv", "x.txt"]),
    ):
        status, out, error = called(command, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert error.startswith("rl_plasticity.evaluate: ")
        assert [name for name in said if name not in error] == [], error
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.csv").read_text() == "x"
