"""Many environments, one for each run, stepped together: in this process, or divided among several."""

import math
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rl_plasticity import plugins
from rl_plasticity.envs.control import Floats, check_name, make_env
from rl_plasticity.errors import FaultyRun, SettingsError, reason
from rl_plasticity.settings import Setting
from rl_plasticity.step import Spaces, Step

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START = "spawn"  # a fresh interpreter for each worker: forking a process that runs torch threads can hang
TO_END = 5.0  # seconds that a worker has to end


class EnvFault(FaultyRun):
    """An environment raised, hung or died."""


class Envs:
    """One environment for each run, stepped together.

    Args:
        name: see `make_env`.
        seeds: one for each run.
        workers: number of processes that step the environments, at most one for each run. They import the plugs of this
            process too. False and ``auto``: none, the environments are stepped here.
        timeout_seconds: does not apply to `load_state_dict`, which plays a whole episode.
        change_seeds: seeds of the changes, one for each run; `seeds` by default.
        settings: see `make_env`. Without ``switch_every_env_steps`` nothing changes by itself.

    Attributes:
        change: number of the change that `seek` goes to.

    Raises:
        ValueError: see `make_env`; a sequence that begins with another task than `name`; an unknown change.
        EnvFault: from every method, when an environment raised, took too long or died. The workers are gone then.
    """

    def __init__(
        self,
        name: str,
        seeds: Sequence[int],
        workers: Annotated[
            bool | int | Literal["auto"],
            Setting(
                "processes for the environments; true: one per run; auto: one per core on a GPU, else none",
                least=1,
                belongs_to="machine",
            ),
        ] = "auto",
        timeout_seconds: Annotated[
            float | None,
            Setting(
                "seconds that a worker's step may take before the run ends; null: no limit",
                above=0,
                belongs_to="machine",
            ),
        ] = 600,
        change_seeds: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        sequence = settings.get("sequence", ())
        for one in (name, *sequence):
            check_name(one)
        if sequence and sequence[0] != name:
            raise SettingsError(f"env={name} is not the first task of env.sequence=[{','.join(sequence)}]")
        self.timeout, self.runs, self.change = timeout_seconds, len(seeds), 0
        every = [*zip(seeds, change_seeds or seeds, strict=True)]
        is_here = workers is False or workers == "auto"
        number = 1 if is_here else self.runs if workers is True else min(int(workers), self.runs)
        self.runs_of = [range(i * self.runs // number, (i + 1) * self.runs // number) for i in range(number)]
        makes = [partial(EnvGroup, name, [every[run] for run in runs], **settings) for runs in self.runs_of]
        self.groups: Sequence[Here | Worker] = [Here(makes[0]())] if is_here else _started(makes)
        # Workers ignore SIGTERM, so multiprocessing would wait for them at Python's end: before it does, and sooner.
        Finalize(self, _kill, (self.groups,), exitpriority=100)
        self.spaces: Spaces = self._ask("spaces")[0]
        self.obs_dim, self.act_dim = self.spaces.obs_dim, self.spaces.act_dim

    @property
    def vector(self) -> SyncVectorEnv:
        """The environments themselves, if they are in this process."""
        (here,) = self.groups
        assert isinstance(here, Here), "they are in other processes"
        return here.group.vector

    def reset(self) -> Floats:
        """First observations ``[runs, obs_dim]`` of the next episodes."""
        return np.concatenate(self._ask("reset"))

    def seek(self, episode: int | NDArray[np.int64]) -> Floats:
        """First observations of episodes with this number, or each with its own, in the task as `change` makes it."""
        each = np.broadcast_to(episode, self.runs).tolist()
        self._tell("seek", [(each[runs.start : runs.stop], self.change) for runs in self.runs_of])
        return np.concatenate(self._answers(self.timeout))

    def step(self, act: Floats) -> Step:
        """Step every environment with `act` ``[runs, act_dim]``; ended ones start their next episode at once."""
        self.begin_step(act)
        return self.end_step()

    def begin_step(self, act: Floats) -> None:
        """The first half of `step`: workers begin, and the caller can do something else meanwhile."""
        self._tell("step", [(act[runs.start : runs.stop],) for runs in self.runs_of])

    def end_step(self) -> Step:
        """The second half of `step`."""
        return Step(*map(np.concatenate, zip(*self._answers(self.timeout), strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """Each environment's episode number and the actions since its reset."""
        return {"states": [state for states in self._ask("states") for state in states]}

    def load_state_dict(self, state: dict[str, Any]) -> Floats:
        """Play every environment to where it was, and return the newest observations."""
        states = [([state["states"][run] for run in runs],) for runs in self.runs_of]
        self._tell("restore", states)
        return np.concatenate(self._answers(timeout=None))

    def _ask(self, what: str, *arguments: Any) -> list[Any]:
        """Call the method of this name of every `EnvGroup`."""
        self._tell(what, [arguments] * len(self.groups))
        return self._answers(self.timeout)

    def _tell(self, what: str, each: Sequence[tuple[Any, ...]]) -> None:
        for group, arguments in zip(self.groups, each, strict=True):
            group.tell(what, arguments)

    def _answers(self, timeout: float | None) -> list[Any]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        try:
            return [group.answer(until) for group in self.groups]
        except EnvFault:
            _kill(self.groups)
            raise
        except (TimeoutError, EOFError, ConnectionError) as error:
            if isinstance(error, TimeoutError):
                why = f"an environment took longer than env.timeout_seconds={timeout:g}"
            else:
                workers = [group.process for group in self.groups if isinstance(group, Worker)]
                for process in workers:  # it may be about to end
                    process.join(0.2)
                codes = [process.exitcode for process in workers]
                why = f"an environment's process died (exit codes {codes})"
            _kill(self.groups)
            raise EnvFault(why) from error

    def close(self) -> None:
        for group in self.groups:
            group.tell("", ())
        for group in self.groups:
            group.close()


class EnvGroup:
    """Some of the environments, stepped one after the other; what comes back is ``[its runs, ...]``."""

    def __init__(self, name: str, seeds: Sequence[tuple[int, int]], **settings: Any) -> None:
        makers = [partial(make_env, name, seed, change_seed=change, **settings) for seed, change in seeds]
        self.vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    def spaces(self) -> Spaces:
        """What an agent sees and does in each of them."""
        spaces: Spaces = self.vector.get_attr("spaces")[0]
        return spaces

    def reset(self) -> Floats:
        return np.array(self.vector.reset()[0])

    def seek(self, episodes: Sequence[int], change: int) -> Floats:
        self.vector.set_attr("episode", [episode - 1 for episode in episodes])
        self.vector.set_attr("change", change)
        return self.reset()

    def step(self, act: Floats) -> Step:
        obs, reward, terminated, truncated, info = self.vector.step(act)
        next_obs = obs
        if "final_obs" in info:
            next_obs = np.array(obs)
            for run in np.flatnonzero(info["_final_obs"]):
                next_obs[run] = info["final_obs"][run]
        return Step(obs, reward.astype(np.float32), terminated, truncated, next_obs)

    def states(self) -> list[dict[str, Any]]:
        return list(self.vector.call("state"))

    def restore(self, states: Sequence[Mapping[str, Any]]) -> Floats:
        self.vector.reset()
        self.vector.set_attr("saved", states)
        return np.stack(self.vector.call("restore"))


class Here:
    """A group in this process, which works when the answer is asked for."""

    def __init__(self, group: EnvGroup) -> None:
        self.group = group
        self.told: tuple[str, tuple[Any, ...]] = ("", ())

    def tell(self, what: str, arguments: tuple[Any, ...]) -> None:
        self.told = what, arguments

    def answer(self, until: float) -> Any:
        what, arguments = self.told
        try:
            return getattr(self.group, what)(*arguments)
        except Exception as error:  # whatever the task's author raises
            raise EnvFault(_said(error)) from error

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.group.vector.close()


class Worker:
    """A group in a process of its own.

    Args:
        make: makes the group, there.
    """

    def __init__(self, make: Callable[[], EnvGroup]) -> None:
        context: Any = multiprocessing.get_context(START)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, list(plugins.loaded)), daemon=True)
        try:
            with _main_module_left_out():
                self.process.start()
        finally:
            theirs.close()

    def tell(self, what: str, arguments: tuple[Any, ...]) -> None:
        """Call the method of the group that `what` names; an empty name ends the process."""
        with suppress(OSError):  # the process is gone: `answer` reports it
            self.pipe.send((what, arguments))

    def answer(self, until: float) -> Any:
        """The result of the call. Waits until this time of the monotonic clock.

        Raises:
            TimeoutError: the call took longer.
            EOFError, ConnectionError: the process died.
            EnvFault: the group raised.
        """
        if not self.pipe.poll(None if until == math.inf else max(0.0, until - time.monotonic())):
            raise TimeoutError
        fault, result = self.pipe.recv()
        if fault:
            raise EnvFault(fault)
        return result

    def kill(self) -> None:
        """End the process at once. It ignores SIGTERM, and joining a process that hangs would never return."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def close(self) -> None:
        self.process.join(TO_END)
        self.kill()


@contextmanager
def _main_module_left_out() -> Iterator[None]:
    """Keep spawned processes from importing the main module again if it is a command of this package.

    A script's main module may register a task, so it is imported. A command's would only import torch.
    """
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", "").startswith("rl_plasticity."):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _started(makes: Sequence[Callable[[], EnvGroup]]) -> list[Worker]:
    """A worker for each maker, all with their environments made."""
    workers: list[Worker] = []
    # Signals wait until the workers, which inherit the mask, have been told to ignore them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        for make in makes:
            workers.append(Worker(make))
            workers[-1].tell("spaces", ())
        for worker in workers:
            worker.answer(math.inf)
    except (OSError, EOFError) as error:  # too many processes or files, or killed meanwhile
        _kill(workers)
        ended = isinstance(error, EOFError | ConnectionError)
        died = ' (a script that starts them needs if __name__ == "__main__":)' if ended else ""
        raise EnvFault(f"the environments' processes cannot be started: {reason(error)}{died}") from error
    except EnvFault:
        _kill(workers)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return workers


def _kill(groups: Sequence[Here | Worker]) -> None:
    for group in groups:
        group.kill()


def _serve(pipe: Connection, make: Callable[[], EnvGroup], plugs: Sequence[str]) -> None:
    """The main loop of a worker: make the group, and call its methods until told to end, or the parent is gone."""
    for number in STOPPING:  # Ctrl-C reaches the whole process group, but only the parent decides when to stop
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    group: EnvGroup | None = None
    with suppress(EOFError, ConnectionError):
        while True:
            what, arguments = pipe.recv()
            if not what:
                break
            try:
                if group is None:
                    plugins.load(plugs)
                    group = make()
                answer = "", getattr(group, what)(*arguments)
            except Exception as error:
                answer = _said(error), None
            pipe.send(answer)
    if group is not None:
        group.vector.close()


def _said(error: Exception) -> str:
    """What an environment raised, and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"({Path(frame.filename).name}, line {frame.lineno})"
    return f"an environment raised {type(error).__name__}: {error} {where}"
