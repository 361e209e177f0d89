import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import StopAfter, assert_equal_states, nothing_drawn, once, refused
from folders import PENDULUM, begun, resume, rows, run

from rl_plasticity.agents import SAC, ReplayBuffer, Step
from rl_plasticity.agents.rollout import evaluate
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train, updates_by
from rl_plasticity.envs import Envs
from rl_plasticity.errors import FaultyRun
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.train import command
from rl_plasticity.training.acting import frozen_transitions

# With each other: the contract.
ALL = [("none,spectral+swr", ["none", *INTERVENTIONS]), (",".join(REGULARIZERS), ["periodic"])]


@pytest.mark.filterwarnings("ignore:.*leaves alone", "ignore:swr keeps")  # with room for an injection
@pytest.mark.parametrize(("regs", "resets"), ALL)
def test_every_regularizer_and_every_reset_runs_beside_the_others(regs, resets, tmp_path):
    given = [f"reg=[{regs}]", f"reset=[{','.join(resets)}]", "agent.injected_layers=2"]
    given += [f"reset.{reset}.every_updates=4" for reset in resets if reset != "none"]
    short = ["env=gym:CountdownForTests-v0", "env.action_repeat=1"]  # an episode has 4 env steps
    short += ["total_env_steps=26", "eval_every_env_steps=26", "log_every_updates=6"]
    folder = run([*PENDULUM, *short, *given], tmp_path / "run")
    # A matrix of rank below its size has an infinite condition number; everything else is finite.
    found = [r for r in rows(folder) if "condition" not in r["name"]]
    assert len({r["run"] for r in found}) == (regs.count(",") + 1) * len(resets)
    assert np.isfinite([float(r["value"]) for r in found]).all()
    assert checkpoint.load(folder / "checkpoints")["progress"]["updates"] == 6


def test_the_compiled_update_is_what_trains_where_it_is_asked_for(tmp_path, monkeypatch):
    calls = []

    def fastest(update, device, compiles, say):  # that it makes the same updates is tested with it
        def fast(*arguments):
            calls.append((device, compiles))
            return update(*arguments)

        return fast

    monkeypatch.setattr("rl_plasticity.training.acting.fastest", fastest)
    short = [*PENDULUM, "total_env_steps=25", "log_every_updates=1"]
    folders = [run([*short, f"compile={wanted}"], tmp_path / wanted) for wanted in ("true", "false")]
    assert calls == [("cpu", True)] * 5 + [("cpu", False)] * 5
    assert rows(folders[0]) == rows(folders[1])


def test_a_run_writes_what_the_readme_says(tmp_path):
    folder = run([*PENDULUM, "seeds=2", "measure_every_updates=30"], tmp_path / "run")
    names = {"config.yaml", "provenance.json", "metrics.csv", "timing.csv", "tensorboard", "checkpoints", ".lock"}
    assert {p.name for p in folder.iterdir()} == names | {"log.txt"}
    assert schema.load_saved(Train, RunFolder(folder).settings).seeds == 2
    logged = {r["name"] for r in rows(folder)}
    assert {"actor/stable_rank/trunk.0", "critic/gradient_rank/critics.0.0"} <= logged  # a layer's own
    assert {"updates_per_second", "env_steps_per_second", "env_steps_done", "env_steps_left", "seconds_left"} == {
        line.split(",")[2] for line in (folder / "timing.csv").read_text().splitlines()[1:]
    }


def test_episode_returns_are_logged_when_episodes_end(tmp_path):
    given = ["total_env_steps=110", "replay_ratio=0", "seeds=2", "eval_every_env_steps=110"]
    folder = run([*PENDULUM, *given], tmp_path / "run")
    found = [(r["run"], r["step"]) for r in rows(folder) if r["name"] == "train/return"]
    assert found == [(n, step) for step in ("50", "100") for n in ("0", "1")]


@pytest.fixture
def drawn(monkeypatch):
    """Of each sample of the buffer how many transitions it held, and of how many updates the sample was."""
    found = []
    sample = ReplayBuffer.sample
    monkeypatch.setattr(ReplayBuffer, "sample", lambda b, i, *n: found.append((b.size, len(i))) or sample(b, i, *n))
    return found


@pytest.mark.parametrize("first", [0, 20])
def test_updates_beside_the_env_step_are_as_many_and_see_one_transition_less(first, tmp_path, drawn):
    seen = {}
    for overlap in ("false", "true"):
        arguments = [*PENDULUM, "total_env_steps=28", "log_every_updates=4", f"overlap={overlap}"]
        arguments += [f"random_env_steps={first}"]
        drawn.clear()
        folder = run(arguments, tmp_path / overlap, StopAfter(24))
        assert resume(folder) == folder
        seen[overlap] = [size for size, _ in drawn]
        assert checkpoint.load(folder / "checkpoints")["progress"]["updates"] == 28 - first
    assert seen["false"] == [*range(first + 1, 29)]
    # The very first transition has none before it.
    assert seen["true"] == [*([1] if not first else []), *range(first or 1, 28)]
    assert rows(run(arguments, tmp_path / "whole")) == rows(tmp_path / "true")


PRIMED = [*PENDULUM, "prime_updates=50", "prime_after_env_steps=10", "total_env_steps=30"]


def test_priming_makes_its_updates_on_the_first_transitions_and_then_training_goes_on_as_always(tmp_path, drawn):
    refused(lambda: run([*PRIMED, "prime_after_env_steps=30"], tmp_path / "never"), "prime_after_env_steps=30")
    assert not (tmp_path / "never").exists()
    folder = run(PRIMED, tmp_path / "primed")
    assert drawn[:4] == [(10, 16), (10, 16), (10, 16), (10, 2)]
    assert drawn[4:] == [(step, 1) for step in range(21, 31)]
    at = checkpoint.load(folder / "checkpoints")["progress"]
    assert (at["step"], at["updates"]) == (30, 50 + 10)


def test_a_run_stopped_while_it_is_primed_goes_on_to_the_same_numbers(tmp_path):
    whole = run(PRIMED, tmp_path / "whole")
    folder = run(PRIMED, tmp_path / "run", StopAfter(10))
    for updates in (0, 16, 32):  # before the first of its updates, and among them
        at = checkpoint.load(folder / "checkpoints")["progress"]
        assert (at["step"], at["updates"]) == (10, updates)
        resume(folder, StopAfter(1 if updates < 32 else None))
    assert rows(folder) == rows(whole)


@pytest.mark.parametrize("ratio", [0, 0.25, 0.7, 1, 2, 16])
def test_updates_keep_the_replay_ratio(ratio):
    s = schema.load(Train, [f"replay_ratio={ratio}", "random_env_steps=50"])
    made = [updates_by(s, step) - updates_by(s, step - 1) for step in range(40, 151)]
    assert sum(made) == round(ratio * 100)
    assert sum(made[:11]) == 0  # none before learning starts
    assert max(made) - min(made[11:]) <= 1


def test_evaluation_changes_nothing_of_the_agent():
    envs, agent = Envs("gym:Pendulum-v1", [1]), SAC(3, 1, [0], hidden=(8, 8))
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    with nothing_drawn():
        evaluate(agent, envs, 1, first=10)
    assert_equal_states(before, dict(agent.state_dict()))


def test_episodes_side_by_side_have_the_numbers_of_those_one_after_another_and_in_one_call_up_to_rounding():
    agent = SAC(4, 1, [0, 1])

    def played(beside, together=1):
        envs = Envs("gym:InvertedPendulum-v5", [seed for seed in (3, 4) for _ in range(beside)])
        measured_on, _ = frozen_transitions([3, 4], "cpu", agent, envs)
        return *evaluate(agent, envs, 6, first=10, together=together), *measured_on

    alone = played(1)
    assert len({*alone[0]}) == 2
    for beside in (2, 3, 6):
        assert [x.tolist() for x in played(beside)] == [x.tolist() for x in alone]
    for beside in (1, 3, 6):
        for found, expected in zip(played(beside, 6), alone, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_evaluation_counts_the_first_episodes_of_each_run_however_long_they_are():
    class Steps:
        """Run 0 has episodes of 2 env steps that return 2; run 1 of 5, whose first returns 5, the later ones 50."""

        runs, act_dim = 2, 1

        def __init__(self, truncates=False):
            self.truncates = truncates

        def seek(self, episode):
            self.t, self.n = np.zeros(2, int), np.zeros(2, int)
            return np.zeros((2, 3), np.float32)

        def step(self, act):
            self.t += 1
            over = self.t == np.array([2, 5])
            reward = np.array([1.0, 1.0 if self.n[1] == 0 else 10.0], np.float32)
            self.n += over
            self.t[over] = 0
            obs = np.zeros((2, 3), np.float32)
            never = np.zeros(2, bool)
            return Step(obs, reward, *((never, over) if self.truncates else (over, never)), obs)

    agent = SAC(3, 1, [0, 1], hidden=(8, 8), discount=0.5)
    returns, overestimation = evaluate(agent, Steps(), 1, first=0)
    assert returns.tolist() == [2.0, 5.0]
    # obs is always 0, so Q is the same number everywhere; these episodes end for good.
    obs = torch.zeros(2, 1, 3)
    q = agent.critic.net(obs, agent.act(obs)).flatten()
    later = torch.tensor([(1.5 + 1) / 2, (1.9375 + 1.875 + 1.75 + 1.5 + 1) / 5])
    np.testing.assert_allclose(overestimation, (q - later).detach(), rtol=1e-5)
    # Cut short instead, what is missing of the return is the critic's own value, discounted.
    overestimation = evaluate(agent, Steps(truncates=True), 1, first=0)[1]
    rest = q.detach() * torch.tensor([(0.5 + 0.25) / 2, sum(0.5**n for n in range(1, 6)) / 5])
    np.testing.assert_allclose(overestimation, q.detach() - later - rest, rtol=1e-5)


def trained(arguments, out):
    """What a run was built of, when it has ended."""
    session, parts = command.prepare(once([*arguments, f"out={out}"]))
    command.execute(session, parts)
    return parts


def test_every_setting_of_the_agent_reaches_it(tmp_path):
    given = ["num_critics=2", "layer_norm=false", "lr=0.01", "tau=0.1", "target_entropy=-3", "init_alpha=0.5"]
    given = [f"agent.{one}" for one in [*given, "discount=0.9"]]
    _, parts = command.prepare(
        once([*PENDULUM, *given, "buffer_size=30", "reg=l2", "reg.coef=0.25", f"out={tmp_path / 'run'}"])
    )
    agent = parts.agent
    assert (agent.tau, agent.discount, agent.target_entropy) == (0.1, 0.9, -3)
    assert len(agent.critic.net.critics) == 2
    assert not [m for m in agent.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert agent.critic.optimizer.lr == agent.actor.optimizer.lr == 0.01
    assert agent.temperature.net.log_alpha.exp().item() == pytest.approx(0.5)
    assert agent.critic.regularizer.coef == agent.actor.regularizer.coef == 0.25
    assert isinstance(agent.critic.regularizer, REGULARIZERS["l2"])
    assert (parts.buffer.capacity, parts.buffer.discount) == (30, 0.9)


def test_the_environments_get_their_settings_and_seeds_of_their_own(tmp_path, monkeypatch):
    calls = []
    made = lambda name, seeds, **given: calls.append(given | {"seeds": seeds}) or Envs(name, seeds, **given)  # noqa: E731
    for module in ("train", "runs.making"):
        monkeypatch.setattr(f"rl_plasticity.{module}.Envs", made)
    changes = ["env.changes=[observation_shift]", "env.switch_every_env_steps=50", "env.shift_std=0.25"]
    run([*PENDULUM, "seeds=2", "seed=7", "env.action_repeat=3", *changes], tmp_path / "run")
    evaluation, training = calls
    assert training["change_seeds"] == evaluation["change_seeds"]
    assert training["shift_std"] == evaluation["shift_std"] == 0.25
    assert (training["switch_every_env_steps"], evaluation["switch_every_env_steps"]) == (50, None)
    assert training["action_repeat"] == evaluation["action_repeat"] == 3
    assert not set(training["seeds"]) & set(evaluation["seeds"])
    assert len(set(training["seeds"])) == 2


def test_the_reset_comes_when_its_setting_says(tmp_path):
    critic = trained([*PENDULUM, "reset=periodic", "reset.every_updates=25"], tmp_path / "run").agent.critic
    assert critic.draws.tolist() == [2]  # 40 updates: one reset
    assert critic.optimizer.step.tolist() == [15]  # and 15 updates since


class Countdown(gym.Env):
    """Counts to 4, then terminates or truncates; obs says which env step of which episode."""

    observation_space = gym.spaces.Box(-99, 99, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    made = itertools.count()

    def __init__(self):
        self.terminates = next(self.made) % 2 == 0
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        return np.array([0, self.episode], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == 4
        obs = np.array([self.t, self.episode], np.float32)
        return obs, float(action[0]), over and self.terminates, over and not self.terminates, {}


gym.register("CountdownForTests-v0", Countdown)


def test_what_the_environment_did_is_what_the_buffer_holds(tmp_path):
    settings = [a for a in PENDULUM if not a.startswith(("env", "random", "total", "eval"))]
    settings += ["env=gym:CountdownForTests-v0", "random_env_steps=10", "total_env_steps=20", "eval_every_env_steps=99"]
    Countdown.made = itertools.count()  # to be looked at, for sizes, two to evaluate, then runs 0 and 1
    batch = trained([*settings, "seeds=2"], tmp_path / "run").buffer.sample(torch.arange(20).expand(2, 20))
    for run_, terminates in ((0, True), (1, False)):
        for i in range(20):
            t, over = i % 4, i % 4 == 3
            assert batch.obs[run_, i, 0] == t
            assert batch.reward[run_, i] == pytest.approx(float(batch.act[run_, i, 0]), abs=1e-6)
            if over and terminates:
                assert batch.discount[run_, i] == 0
            else:
                assert batch.discount[run_, i] == pytest.approx(0.99)
                assert batch.next_obs[run_, i, 0] == t + 1
                assert batch.next_obs[run_, i, 1] == batch.obs[run_, i, 1]  # of the same episode
    first, later = batch.act[:, :10].flatten(), batch.act[:, 10:].flatten()
    # Uniform over the whole range: of 20 draws all are below 0.45, or all of one sign, once in half a million times.
    assert first.abs().max() > 0.45
    assert first.min() < 0 < first.max()
    assert later.unique().numel() == later.numel()  # the policy explores


CHANGES = "env=gym:Pendulum-v1 env.changes=[reward_flip] env.switch_every_env_steps=15"
REFUSED = {
    "reset=redo reset.threshold=-1": ["reset.threshold", "from 0 up", "-1"],
    "env=gym:Pendulum-v1 agent.activation=crelu reset=redo": ["ReDo", "no hidden activation"],
    "env=gym:BipedalWalker-v3": [],  # its engine is not installed
    "env=gym:CartPole-v1": ["env=gym:CartPole-v1 has discrete", "agent=sac", "agent=dqn"],
    "env=gym:Pendulum-v1 agent=dqn": ["env=gym:Pendulum-v1 has continuous", "agent=dqn", "agent=sac"],
    "env=gym:CartPole-v1 agent=dqn agent.network=cnn": ["network=cnn needs"],
    "resume=nowhere": ["nowhere"],
    "--mutlirun": ["'--mutlirun'"],
    "env.changes=[reward_flip]": ["env.switch_every_env_steps", "env.changes"],
    f"{CHANGES} on_change=clear prime_updates=20 prime_after_env_steps=16": ["steps=16", "at most 15"],
    f"{CHANGES} on_change=restart random_env_steps=15": ["random_env_steps=15", "every_env_steps=15"],
    "env=gym:Pendulum-v1 buffer_size=9 prime_updates=5 prime_after_env_steps=10": ["at most 9"],
    "reg=spectral reg.coef=[]": ["reg.coef", "got []"],
    "reg=spectral reg.coef=[1,1]": ["reg.coef", "got [1, 1]"],
    "reg=spectral reg.coef=[1,-1]": ["coef", "from 0 up"],
    "seed=[1,2]": ["seed", "an integer"],
    "reset=[none,head] reset.every_updates=9": ["reset.head.every_updates"],
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_input_is_refused_before_anything_is_made(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: command.prepare(arguments.split()), *REFUSED[arguments])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_touched(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    refused(lambda: command.prepare([*PENDULUM, f"out={tmp_path / 'run'}"]), "exists", "resume=")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_losses_that_are_not_finite_stop_the_run_and_the_last_good_checkpoint_stays(tmp_path):
    arguments = [*PENDULUM, "agent.lr=1e30", "checkpoint_every_env_steps=20", "log_every_updates=10"]
    refused(lambda: run(arguments, tmp_path / "run"), match=r"env step 21\b.*step_000000020\.pt", error=FaultyRun)
    state = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert state["at"] == 20
    assert all(v.isfinite().all() for v in state["agent"].values() if v.is_floating_point())


def test_a_loss_that_is_not_finite_is_named_before_anything_else_can_fail_on_it(tmp_path):
    settings = [a for a in PENDULUM if not a.startswith(("log", "checkpoint"))]
    with pytest.raises(FaultyRun, match=r"(critic|actor)/loss of seed 0\b.*env step 21\b"):
        run([*settings, "log_every_updates=4", "agent.lr=1e30", "replay_ratio=4"], tmp_path / "run")


def test_a_metric_has_one_row_at_an_env_step_however_many_updates_that_has(tmp_path):
    short = [a for a in PENDULUM if not a.startswith("log_every")]
    short += ["replay_ratio=3.5", "random_env_steps=10", "total_env_steps=30"]
    for name in ("log_every_updates", "measure_every_updates", "diagnose_every_updates"):
        refused(lambda name=name: command.prepare(once([*short, f"{name}=3"])), f"{name}=3", "at least 4")
    primed = ["prime_updates=20", "prime_after_env_steps=20", "measure_every_updates=4", "log_every_updates=4"]
    for i, more in enumerate([[], primed, [*primed, "overlap=true"]]):  # periods are auto in the first
        folder = run([*short, *more], tmp_path / str(i))
        assert RunFolder(folder).metrics()  # which refuses a step that comes twice
        steps = {int(row["step"]) for row in rows(folder, "critic/loss")}
        assert len(steps) > 10
        assert 20 in steps


@pytest.mark.parametrize("given", [[], ["replay_ratio=0"], ["prime_updates=1", "prime_after_env_steps=5"]])
def test_a_run_without_updates_is_refused_before_anything_is_written_unless_that_is_asked_for(tmp_path, given):
    short = ["random_env_steps=20", "total_env_steps=20", "eval_every_env_steps=60"]
    asked = [*PENDULUM[:-6], *short, *given, f"out={tmp_path / 'run'}"]
    if given:
        begun(command, asked)
    else:
        refused(lambda: command.prepare(asked), "total_env_steps=20", "random_env_steps=20")
        assert not [*tmp_path.iterdir()]
