"""A trained run, read from its folder: its settings, checkpoints and agents."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_plasticity import plugins
from rl_plasticity.agents import Agent, rollout
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError, refused
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs.folder import RunFolder, no_folder, runs_below
from rl_plasticity.runs.machine import device_here, set_threads
from rl_plasticity.runs.making import EVALUATION, evaluation_envs, make_agent, rows_together, task_of
from rl_plasticity.runs.plan import Plan
from rl_plasticity.seeding import RunStreams, derive

S = TypeVar("S", Train, Supervised)


@dataclass(frozen=True)
class Trained:
    """An RL run's settings, with the device to play on, its plan, and one of its checkpoints."""

    settings: Train
    plan: Plan
    state: dict[str, Any]

    @classmethod
    def of(cls, folder: RunFolder, device: str = "auto", step: int | None = None) -> "Trained":
        """The run in `folder` at this env step, or at its newest checkpoint.

        Raises:
            SettingsError: there is no run of `rl_plasticity.train`, no such checkpoint, or no such device.
        """
        s, plan = settings_here(Train, folder, device)
        return cls(s, plan, checkpoint.load(folder.checkpoints, step, whole=False))

    @property
    def step(self) -> int:
        """The env step of the checkpoint."""
        return int(self.state["at"])

    def envs(self, runs: Sequence[int], evaluation_seed: int | None = None, **render: Any) -> Envs:
        """The evaluation environments of these runs, at the task of the checkpoint's env step; `render`: see `Envs`."""
        seeds = [self.env_seed(run, evaluation_seed) for run in runs]
        envs = evaluation_envs(self.settings, seeds, [self.plan.seeds[run] for run in runs], **render)
        envs.change = task_of(self.settings, self.step)
        return envs

    def agent(self, envs: Envs) -> Agent:
        """The agents of all runs, restored from the checkpoint.

        Raises:
            SettingsError: the checkpoint does not fit the settings or the environment.
        """
        agent = make_agent(self.settings, self.plan, envs.spaces)
        # The random streams of training are not used here, and those of a GPU cannot be loaded elsewhere.
        try:
            agent.load_state_dict(self.state["agent"] | {"streams._extra_state": agent.streams.get_extra_state()})
        except Exception as error:  # a file that is whole may hold anything
            raise SettingsError(f"the checkpoint does not fit config.yaml and the environment: {error!r}") from error
        return agent

    def env_seed(self, run: int, evaluation_seed: int | None = None) -> int:
        """The seed of a run's evaluation environment."""
        return derive(self.plan.seeds[run], EVALUATION, *([] if evaluation_seed is None else [evaluation_seed]))

    def play(
        self,
        agent: Agent,
        envs: Envs,
        runs: Sequence[int],
        episodes: int | None = None,
        evaluation_seed: int | None = None,
        deterministic: bool = True,
        before_step: Callable[[], object] = lambda: None,
    ) -> NDArray[np.float64]:
        """Returns ``[len(runs), episodes]`` of the policies in the checkpoint, without discount.

        The start states of the episodes depend only on a run's seed and

        - the checkpoint's env step, without an ``evaluation_seed``. They are those of training's own evaluation at that
          step, so the mean over ``eval_episodes`` episodes is the ``eval/return`` logged there, bit for bit (same
          device, versions and number of threads);
        - else the ``evaluation_seed``, so that checkpoints are compared from the same start states.

        They are never those of training episodes. The noise of sampled actions depends on the same.

        Args:
            agent: the agents of all runs of the folder.
            envs: the environments of the chosen runs.
            runs: positions of the chosen runs in the stack.
            episodes: number for each run; None: as many as training's evaluation, or 10 if it has none.
            before_step: called before each step of `envs`; for one run, once for each env step of its episodes.
        """
        first = rollout.first_episode(self.step) if evaluation_seed is None else 1
        every = range(len(self.plan.seeds))
        seeds = [derive(self.env_seed(run, evaluation_seed), first, 1) for run in every]
        noise = None if deterministic else RunStreams(seeds)
        number = episodes or self.settings.eval_episodes or 10
        return rollout.play(
            agent, envs, number, first, runs=runs, noise=noise, together=rows_together(self.settings),
            before_step=lambda _: before_step(),
        )  # fmt: skip

    def one_run(self, seed: int | None, run: int | None) -> int:
        """The position of the run with this seed (by default the first run), or at this position.

        Raises:
            SettingsError: there is no such run, or one for each of several settings.
        """
        first, *others = self.plan.chosen(seed, run)
        names = [self.plan.names[i] for i in (first, *others) if self.plan.seeds[i] == self.plan.seeds[first]]
        if len(names) > 1:
            which = ", ".join(f"run={self.plan.names.index(name)} ({name.group})" for name in names)
            raise SettingsError(f"seed {names[0].seed} was trained with several settings: choose one with {which}")
        return first


def load_agent(folder: str | os.PathLike[str], step: int | None = None, device: str = "auto") -> Agent:
    """The agents of all runs in an RL run's folder, from the checkpoint of this env step or from the newest.

    Raises:
        SettingsError: the folder holds no RL run, or there is no such checkpoint.
    """
    trained = Trained.of(RunFolder(folder), device, step)
    envs = trained.envs([0])
    try:
        return trained.agent(envs)
    finally:
        envs.close()


def settings_here(kind: type[S], folder: RunFolder, device: str) -> tuple[S, Plan]:
    """The settings of the run in `folder`, for this device and with the run's own threads, and its plan.

    Raises:
        SettingsError: there is no such run or device.
    """
    with refused(f"read {folder}"):
        s = saved_settings(kind, folder)
    here = device_here(device)
    s = replace(s, device=s.device if (device, here) == ("auto", "cuda") else here)
    plan = Plan.of(s)
    if isinstance(s.threads, int):
        set_threads(s, s.threads, len(plan.seeds))
    return s, plan


def saved_settings(kind: type[S], folder: RunFolder) -> S:
    """The settings of the run in `folder`.

    Raises:
        SettingsError: there is no such folder, no run of this `kind` in it, or it was made with plugs that are missing.
    """
    if not folder.config.is_file() and not folder.path.is_dir():
        raise no_folder(folder.path)
    if not folder.is_run() and (below := runs_below(folder.path)):
        raise SettingsError(f"{folder} is not a run's folder, but contains some: {', '.join(map(str, below[:3]))}")
    if folder.config.is_file() and (plugs := plugins.missing(folder.plugins)):
        raise SettingsError(f"{folder}: {plugs}")
    try:
        return schema.load_saved(kind, folder.settings)
    except SettingsError as error:
        where = "" if str(folder.config) in str(error) else f"{folder.config}: "
        raise SettingsError(f"{where}{error}") from None
