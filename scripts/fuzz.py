"""Hostile input by the thousand: ``python scripts/fuzz.py --cases 10000 --processes 300``.

Each case is a function of the seed and its number: a command line, a run's folder with a file that was edited or
damaged, or both. Most run in this process, through the commands' own ``main``, on a standard output that is ASCII half
of the time; some as processes of their own. Every one must end with a documented status, without a traceback; a refusal
leaves every file and folder as it was; nothing of the user's is ever changed. Prints a table by kind of case, and each
case that failed with the command that shows it again. Status 1 if any did.

In this process a new run ends before its first step and a resumed one after its second: what is trained is not what is
tested. As processes, runs that are still at work after five minutes are told to stop.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from rl_plasticity import command_line, compare, evaluate, status, supervised, train, watch
from rl_plasticity.comparison import figures
from rl_plasticity.configs.commands import Evaluate, Watch
from rl_plasticity.runs.command import Command
from rl_plasticity.runs.session import Session

COMMANDS = ("train", "supervised", "compare", "evaluate", "watch", "status")
SLOW, LONG = 120, 300  # seconds that a case, or a process, may take
TRAIN = {"agent.hidden": "[8]", "batch_size": "8", "random_env_steps": "10", "total_env_steps": "30"}
TRAIN |= {"replay_ratio": "1", "eval_episodes": "1", "eval_every_env_steps": "20", "checkpoint_every_env_steps": "10"}
TRAIN |= {"log_every_updates": "5", "measure_every_updates": "0", "device": "cpu", "threads": "1", "compile": "false"}
SUPERVISED = {"data.train_size": "60", "net.widths": "[4]", "num_tasks": "2", "epochs_per_task": "2"}
SUPERVISED |= {"checkpoint_every_epochs": "1", "log_every_updates": "1", "measure_every_updates": "0"}
SUPERVISED |= {"device": "cpu", "threads": "1", "compile": "false"}
BASE = {"train": TRAIN, "supervised": SUPERVISED}


def words(text: str) -> list[str]:
    return text.split()


# What is of the right type but no machine holds, what is of another type, and what some reader takes for its own.
NUMBERS = words("""0 1 2 3 -1 1000000000 100000000000 1000000000000000 9223372036854775807 9223372036854775808
    -9223372036854775809 0.5 1e9 1e26 1e308 -1e308 1e-320 1e999 nan inf 0x10 1_000 true null""")
NUMBERS += ["1" + "0" * 26, "9" * 5000, "\u0663"]
LISTS = words("""[] [1,2] [0] [1,[2]] [1,1] [100000,100000] [1000000000] [a,b] [ ] {a:1} [1e308] [none,l2] [none,none]
    [1e-4,1e-3] (1,2) 1,2 range(0,3) range(0,0) glob(*) choice(1,2)""")
WORDS = words("""x none l2 spectral+swr swr+swr periodic head redo sac ppo mlp cnn resnet18 vit_tiny sgd adamp digits
    mnist cifar10 demo paper auto cuda cpu gym:Pendulum-v1 gym:CartPole-v1 gym:no_such:X-v0 gym: pendulum-swingup
    label_flip warm_start binary_pairs class_incremental stationary saved --help --- ' " \\""")
WORDS += ["", " ", "a b", "\n"]
TRICKS = words(r"""${seed} ${seeds} ${out} ${nowhere} ${ ${${seed}} ${oc.env:HOME} ${oc.env:NO_SUCH} $ ${oc.decode:1}
    ${now:%Y} ${oc.create:{a:1}} ${reg.coef} ${agent} ${.seed} ${..seed} ??? *a &a %s {0} \${seed} <script> ../../..
    | `x`""")
TRICKS += ["!!python/object/apply:os.system [x]"]
UNICODE = [*words("ü 日本 a\u0301 \u202e \ufeff \udcff \udcff\udcfe \x1b[31m 🙂 \x7f \u017f"), "\u2028"]
PATHS = words("""new new/deep/er run run/config.yaml ~ ~/x ~nobody-here/x . .. -x a=b [a] a* a? new/ /proc/x
    /dev/null/x /dev/full notes.txt other sweep new.csv new.mp4""")
PATHS += ["", "ü ~=[x] (1)", "a\nb", "\udcff", "a" * 254, "a" * 300, "ü" * 200, "b" * 251 + ".csv", "b" * 251 + ".mp4"]
VALUES = (NUMBERS, LISTS, WORDS, TRICKS, UNICODE, PATHS)
NAMES = {
    "train": words("""env reg reset agent preset resume out reg.coef reg.k reg.warmup reg.scope reset.every_updates
        reset.every_tasks agent.lr agent.num_critics agent.tau agent.init_alpha agent.target_entropy agent.discount
        env.action_repeat env.timeout_seconds env.name env.workers seed seeds buffer_size logger plugins _target_
        reg._target_ hydra.run.dir hydra/launcher launcher"""),
    "supervised": words("""task data net optimizer reg reset preset resume out data.root lr data.validation
        data.augment net.activation net.layer_norm net.patch optimizer.momentum optimizer.eps reg.coef
        reset.every_tasks seed seeds batch_size plugins task.decay"""),
    "compare": words("out metric target baseline mix seed"),
    "status": words("every out"),
    "evaluate": words("episodes checkpoint seed run evaluation_seed deterministic device out plugins"),
}
NAMES["train"] += TRAIN
NAMES["supervised"] += SUPERVISED
NAMES["watch"] = [*NAMES["evaluate"], "camera", "width", "height"]
# Of these a value can be right and then takes for ever, or a whole machine.
NEVER = {("compile", "true"), ("threads", "1000"), ("logger", "wandb")}
ENDLESS = {"episodes", "eval_episodes"}


class Short(gym.Env[Any, Any]):
    """A task of five steps that needs no simulator and no display."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012, gymnasium's own name

    def __init__(self, render_mode: str | None = None, width: int = 16, height: int = 16) -> None:
        self.render_mode, self.shape, self.t = render_mode, (height, width, 3), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action[0]), False, self.t == 5, {}

    def render(self) -> Any:
        return np.full(self.shape, self.t * 40, np.uint8)


def unharmed(place: Path) -> None:
    """Nothing is done to the files."""


class Case(NamedTuple):
    """What is done to the files, and then the command line; `kind` is its row in the table."""

    kind: str
    command: str
    arguments: list[str]
    harm: Callable[[Path], None] = unharmed
    resumes: bool = False


class Outcome(NamedTuple):
    status: int | None  # None: a traceback
    said: str
    left: list[str]  # that a refusal left behind
    lost: list[str]  # of the user's


Tree = dict[str, bytes | None]  # by path; None: a folder


def tree(place: Path) -> Tree:
    """All files and folders, but the lock: it says who looked last."""
    found: Tree = {}
    for path in place.rglob("*"):
        if path.name != ".lock":
            found[os.fsdecode(path.relative_to(place))] = path.read_bytes() if path.is_file() else None
    return found


def restore(place: Path, wanted: Tree, now: Tree) -> None:
    """Make the tree, as it is now, what it was."""
    for name in sorted(now, key=len, reverse=True):
        path = place / name
        if name not in wanted or (wanted[name] is None) != path.is_dir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    for name in sorted(wanted):
        content, path = wanted[name], place / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        elif now.get(name) != content:
            path.write_bytes(content)


# --- damage ---------------------------------------------------------------------------------------------------------


def bits(rng: random.Random, path: Path) -> None:
    """Flip some bits, cut the end off, double a piece, fill with zeros."""
    data = bytearray(path.read_bytes())
    how = rng.randrange(4)
    at = rng.randrange(max(1, len(data)))
    if how == 0:
        for _ in range(rng.choice([1, 1, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at:at] = data[: rng.randrange(200)]
    else:
        data[at:] = bytes(len(data) - at)
    path.write_bytes(data)


def anything(rng: random.Random, value: Any = None) -> Any:
    """Another value, of the same type or of any."""
    if isinstance(value, torch.Tensor) and rng.random() < 0.7:
        return rng.choice(
            [
                value.reshape(-1)[:0],
                value.double() * float("nan"),
                value.flatten(),
                value.unsqueeze(0),
                value.bool(),
                -value.float() * 1e38,
            ]
        )
    strange: list[Any] = [None, 0, -1, 2**62, 2**70, 0.5, float("nan"), "x", "", [], [1, "a"], {}, {"a": 1}, True]
    return rng.choice([*strange, torch.zeros(0), torch.full((2, 3), float("nan")), torch.tensor(7)])


def inside(rng: random.Random, value: Any) -> Any:
    """A tree with one leaf or branch gone, added or replaced."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.2:
            return {**value, "new": anything(rng)}
        return {**value, key: inside(rng, value[key]) if how < 0.85 else anything(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], inside(rng, value[at]), *value[at + 1 :]]
    return anything(rng, value)


def checkpoint(rng: random.Random, path: Path) -> None:
    """Other content, with the right checksum."""
    state = torch.load(io.BytesIO(path.read_bytes()[:-32]), weights_only=True)
    content = io.BytesIO()
    torch.save(inside(rng, state) if rng.random() < 0.95 else anything(rng), content)
    data = content.getvalue() if rng.random() < 0.95 else b"no zip file"
    path.write_bytes(data + hashlib.sha256(data).digest())


def document(rng: random.Random, path: Path) -> None:
    """Another JSON document."""
    text = json.dumps(inside(rng, json.loads(path.read_text())), default=str)
    path.write_text(text if rng.random() < 0.9 else text[: rng.randrange(len(text))])


def config(rng: random.Random, path: Path) -> None:
    """A line of the settings gone, doubled, renamed, or with another value."""
    lines = path.read_text().splitlines()
    for _ in range(rng.choice([1, 1, 1, 3])):
        at = rng.randrange(len(lines))
        name, _, _ = lines[at].partition(":")
        value = rng.choice(rng.choice(VALUES))
        if (name.strip(), value) in NEVER or (name.strip() in ENDLESS and value.isdigit()):
            value = "x"
        lines[at : at + 1] = rng.choice(
            [
                [],
                [lines[at]] * 2,
                [f"{name}x:{lines[at].partition(':')[2]}"],
                *4 * [[f"{name}: {value}"]],
                [value],
                [f"  {lines[at]}"],
            ]
        )
        lines = lines or [""]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))


def table(rng: random.Random, path: Path) -> None:
    """A row, or a field of one, replaced."""
    lines = path.read_text().splitlines(keepends=True)
    for _ in range(rng.choice([1, 1, 5])):
        at = rng.randrange(len(lines))
        fields = lines[at].rstrip("\n").split(",")
        fields[rng.randrange(len(fields))] = rng.choice(rng.choice([NUMBERS, WORDS, UNICODE, TRICKS]))
        lines[at : at + 1] = rng.choice(
            [[], [lines[at]] * 2, *4 * [[",".join(fields) + "\n"]], ["\0" * 99 + "\n"], ["\n"]]
        )
        lines = lines or [""]
    path.write_bytes("".join(lines).encode(errors="surrogateescape"))


def swapped(rng: random.Random, place: Path) -> None:
    """Files or folders of one run in another's place."""
    mine, other = (place / name for name in rng.sample(["run", "other", "seconds"], 2))
    what = rng.choice(["checkpoints", "metrics.csv", "config.yaml", "timing.csv", "provenance.json"])
    for path in (mine / what, other / what):
        if path.is_dir():
            shutil.copytree(path, path.with_name("kept"))
    if (mine / what).is_dir():
        shutil.rmtree(mine / what)
        shutil.copytree(other / what, mine / what)
    else:
        shutil.copy(other / what, mine / what)


def gone(rng: random.Random, place: Path) -> None:
    """A file or a folder that is not there, or is of the other kind."""
    path = rng.choice([p for p in (place / "run").rglob("*") if "tensorboard" not in p.parts])
    was_folder = path.is_dir()
    shutil.rmtree(path) if was_folder else path.unlink()
    if rng.random() < 0.4:
        path.write_text("x") if was_folder else path.mkdir()


# --- cases ----------------------------------------------------------------------------------------------------------


def value(rng: random.Random, name: str) -> str:
    """A value for a setting, mostly one that does not fit."""
    kinds = [PATHS, PATHS, UNICODE] if name in ("out", "resume", "data.root") else VALUES
    chosen = rng.choice(rng.choice(kinds))
    if name == "every":  # a right one goes on for ever
        chosen = rng.choice(["nan", "0", "-1", "x", "inf", "1e300", "${seed}", "9" * 400])
    if (name, chosen) in NEVER or (name in ENDLESS and (chosen.isdigit() or chosen in ("1e9", "1_000"))):
        return "1"
    return chosen if name != "plugins" else f"[no_such_{len(chosen)}]"


def options(rng: random.Random, command: str) -> list[str]:
    """Up to four settings, now and then a word that is none."""
    said = [f"{name}={value(rng, name)}" for name in rng.choices(NAMES[command], k=rng.choice([0, 1, 1, 2, 4]))]
    if rng.random() < 0.05:
        said.append(rng.choice(rng.choice(VALUES)))
    return [text.replace("\0", "") for text in said if text not in ("-h", "--help")]


def line(rng: random.Random, command: str, env: str) -> Case:
    """A command line on sound folders."""
    said = options(rng, command)
    if command in BASE:
        names = {text.partition("=")[0] for text in said}
        base = {"env": env, **BASE[command]} if command == "train" else BASE[command]
        if "resume" in names and rng.random() < 0.7:
            base = {}
        if "net" in names:
            base = {name: text for name, text in base.items() if name != "net.widths"}
        return Case(f"{command}: settings", command, [f"{n}={v}" for n, v in base.items() if n not in names] + said)
    places = [rng.choice(["run", "run", "other", "seconds", "sweep", rng.choice(PATHS), rng.choice(UNICODE)])]
    if command in ("compare", "status") and rng.random() < 0.5:
        places.append(rng.choice(["run", "other", "sweep", "r*", "**", rng.choice(PATHS)]))
    return Case(f"{command}: options", command, [*places, *said])


def damaged(rng: random.Random, command: str) -> Case:
    """Any command on a folder with a file that is not what it was."""
    home = "other" if command == "supervised" else "run"
    files: dict[str, tuple[str, Callable[[random.Random, Path], None]]] = {
        "edited config.yaml": ("config.yaml", config),
        "edited csv": (rng.choice(["metrics.csv", "metrics.csv", "timing.csv"]), table),
        "edited provenance": ("provenance.json", document),
        "checkpoint, right checksum": ("checkpoints/*.pt", checkpoint),
        "bits of a checkpoint": ("checkpoints/*.pt", bits),
        "bits of any file": ("*.*", bits),
    }
    what = rng.choice([*files, *list(files)[:1], *list(files)[3:4], "swapped files", "missing files"])
    seed = rng.random()

    def harm(place: Path) -> None:
        own = random.Random(seed)
        if what == "swapped files":
            swapped(own, place)
        elif what == "missing files":
            gone(own, place)
        else:
            pattern, how = files[what]
            how(own, own.choice(sorted(p for p in (place / home).glob(pattern) if p.is_file() and p.stat().st_size)))

    if command in BASE:
        return Case(what, command, [f"resume={home}"], harm, True)
    arguments = [home, *(options(rng, command) if rng.random() < 0.2 else [])]
    return Case(
        what, command, arguments if command != "compare" else [*arguments, rng.choice(["seconds", "sweep"])], harm
    )


def case(seed: int, number: int, env: str) -> Case:
    """Case number `number`."""
    rng = random.Random(f"{seed} {number}")
    command = rng.choice([*COMMANDS, "train", "supervised"])
    return damaged(rng, command) if rng.random() < 0.5 else line(rng, command, env)


# --- running them ---------------------------------------------------------------------------------------------------


class After:
    """A stop signal that comes after so many looks."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __enter__(self) -> "After":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def received(self) -> int:
        self.left -= 1
        return signal.SIGTERM if self.left < 0 else 0

    def require_none(self) -> None:
        """No signal comes while it evaluates."""


class TooSlow(BaseException):
    """Raised by the alarm."""


def templates(place: Path, env: str) -> None:
    """A run of each command, one with two seeds, a sweep's folder and a file of the user's."""
    other = [*arguments("supervised", {}), f"out={place / 'other'}"]
    run_ = [*arguments("train", {"env": env}), f"out={place / 'run'}"]
    second = [*arguments("train", {"env": env, "seeds": "2", "reg": "l2"}), f"out={place / 'seconds'}"]
    kinds: tuple[tuple[Any, list[str], int], ...] = (
        (train.command, run_, 25), (train.command, second, 99), (supervised.command, other, 2),
    )  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        for command, said, steps in kinds:  # of which two are not at their end
            session, built = command.prepare(said)
            session.stop = After(steps)
            command.execute(session, built)
    for name in ("seed0", "seed1"):
        shutil.copytree(place / "seconds", place / "sweep" / name)
    for folder in (place, place / "run", place / "run" / "checkpoints", place / "sweep"):
        (folder / "notes.txt").write_text("of the user")


def arguments(command: str, more: dict[str, str]) -> list[str]:
    """Those of a short run."""
    return [f"{name}={text}" for name, text in (more | BASE[command]).items()]


@contextlib.contextmanager
def shortened() -> Iterator[list[bool]]:
    """Runs that end at once, figures only now and then; the list says whether the case resumes."""
    execute, draw = Command.execute, figures.draw
    resumes, drawn = [False], [0]

    def end_at_once(self: Any, session: Session[Any], built: Any) -> tuple[bool, str | None]:
        if resumes[0]:
            session.stop = After(2)  # type: ignore[assignment]
            return execute(self, session, built)
        built.close()
        if session.lock:
            session.lock.release()
        return True, None

    def draw_some(comparison: Any) -> Any:
        drawn[0] += 1
        return draw(comparison) if drawn[0] % 100 == 0 else []

    Command.execute, figures.draw = end_at_once, draw_some  # type: ignore[method-assign]
    try:
        yield resumes
    finally:
        Command.execute, figures.draw = execute, draw  # type: ignore[method-assign]


CALLS: dict[str, Callable[[], None]] = {
    "train": lambda: command_line.train(train.command),
    "supervised": lambda: command_line.train(supervised.command),
    "compare": lambda: command_line.main("compare", lambda _: compare.HELP, compare.command),
    "evaluate": lambda: command_line.look_at(Evaluate, evaluate.evaluate),
    "watch": lambda: command_line.look_at(Watch, watch.watch),
    "status": lambda: command_line.main("status", lambda _: status.HELP, status.command),
}


def here(one: Case, encoding: str) -> tuple[int | None, str]:
    """The status of a case in this process, and what it said; None for a traceback."""

    def too_slow(*_: object) -> None:
        raise TooSlow

    streams = [io.TextIOWrapper(io.BytesIO(), encoding, errors="strict", write_through=True) for _ in range(2)]
    before, argv = signal.signal(signal.SIGALRM, too_slow), sys.argv
    sys.argv = [one.command, *one.arguments]
    signal.alarm(SLOW)
    status: int | None = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CALLS[one.command]()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        except TooSlow:
            status = -signal.SIGALRM
        except BaseException:
            status = None
            streams[1].write(traceback.format_exc().encode("ascii", "backslashreplace").decode())
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            sys.argv = argv
            torch.set_num_threads(1)
    return status, b"".join(s.buffer.getvalue() for s in streams).decode(errors="replace")  # type: ignore[attr-defined]


def as_process(one: Case, place: Path, encoding: str) -> tuple[int | None, str]:
    """The same of a process."""
    settings = {"PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1", "HOME": str(place)}
    settings["MPLCONFIGDIR"] = str(place.parent)  # matplotlib keeps its list of fonts there
    command = [sys.executable, "-m", f"rl_plasticity.{one.command}", *one.arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=place, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=os.environ | settings
        )
        for seconds, number in ((LONG, signal.SIGTERM), (LONG, signal.SIGKILL)):
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
        process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return (None if "Traceback" in text else process.returncode), text


def run(one: Case, place: Path, sound: Tree, call: Callable[[Case], tuple[int | None, str]]) -> Outcome:
    """Make the files what the case wants, run it, and see what became of them."""
    one.harm(place)
    before = tree(place) if one.harm is not unharmed else sound
    status, said = call(one)
    after = tree(place)
    left = sorted(after.keys() - before.keys()) if status == 2 else []
    changed = [name for name, content in before.items() if name not in after or after[name] != content]
    if status != 2:  # a run that is resumed writes its own folder, but what the user put there
        own = tuple(f"{a.removeprefix('resume=')}/" for a in one.arguments if a.startswith("resume="))
        changed = [name for name in changed if not name.startswith(own) or name.endswith("notes.txt")]
    restore(place, sound, after)
    return Outcome(status, said, left, changed)


def faults(one: Case, outcome: Outcome) -> list[str]:
    """What was wrong with it, in words."""
    allowed = {0, 2}
    if one.resumes or one.command in BASE or one.command == "watch":
        allowed = {0, 1, 2, 143}
    wrong = []
    if outcome.status is None:
        wrong.append("traceback")
    elif outcome.status not in allowed:
        wrong.append("status")
    elif outcome.status == 2 and f"rl_plasticity.{one.command}: " not in outcome.said:
        wrong.append("status")  # it says nothing
    if outcome.left:
        wrong.append("left")
    if outcome.lost:
        wrong.append("lost")
    return wrong


class Count(Counter[str]):
    """What became of the cases of one kind."""


def show(counts: dict[str, Count], what: str) -> None:
    """Print the table."""
    ends = "done (0) | refused (2) | fault (1) | stopped (143)"
    print(f"\n| {what} | cases | {ends} | tracebacks | wrong status | files left | files lost |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    columns = ("cases", "0", "2", "1", "143", "traceback", "status", "left", "lost")
    total = Count()
    for kind in sorted(counts):
        total.update(counts[kind])
        print(f"| {kind} | " + " | ".join(str(counts[kind][c]) for c in columns) + " |")
    print("| all | " + " | ".join(str(total[c]) for c in columns) + " |", flush=True)


def fuzz(
    cases: int, seed: int, place: Path, first: int = 0, minutes: float = 1e6, verbose: bool = True
) -> tuple[dict[str, Count], list[str]]:
    """Run cases in this process; the counts by kind, and a description of each that failed."""
    if "FuzzShort-v0" not in gym.registry:
        gym.register("FuzzShort-v0", Short)
    torch.set_num_threads(1)
    place.mkdir(parents=True, exist_ok=True)
    templates(place, "gym:FuzzShort-v0")
    sound, counts, bad = tree(place), dict[str, Count](), list[str]()
    cwd, home, begun = Path.cwd(), os.environ.get("HOME"), time.monotonic()
    os.chdir(place)
    os.environ["HOME"] = str(place)
    try:
        with shortened() as resumes:
            for number in range(first, first + cases):
                if time.monotonic() > begun + 60 * minutes:
                    break
                one = case(seed, number, "gym:FuzzShort-v0")
                resumes[0] = one.resumes
                started = time.monotonic()
                outcome = run(one, place, sound, lambda c, n=number: here(c, ("ascii", "utf-8")[n % 2]))  # type: ignore[misc]
                took = time.monotonic() - started
                tell(one, outcome, counts, bad, f"--cases 1 --first {number} --seed {seed}", verbose)
                if verbose and took > 10:
                    print(
                        f"{took:.0f} s: {number} {one.command} {one.arguments!r}".encode(
                            "ascii", "backslashreplace"
                        ).decode(),
                        flush=True,
                    )
                if verbose and (number + 1 - first) % 500 == 0:
                    print(
                        f"{number + 1 - first} cases, {time.monotonic() - begun:.0f} s, {len(bad)} failed", flush=True
                    )
    finally:
        os.chdir(cwd)
        if home is not None:
            os.environ["HOME"] = home
    return counts, bad


def tell(one: Case, outcome: Outcome, counts: dict[str, Count], bad: list[str], again: str, verbose: bool) -> None:
    """Count a case; print what went wrong."""
    count = counts.setdefault(one.kind, Count())
    count.update(["cases", str(outcome.status), *(wrong := faults(one, outcome))])
    if wrong:
        text = f"{'+'.join(wrong)} ({outcome.status}): {one.kind}: {one.command} {one.arguments!r}; {again}\n  "
        text += "\n  ".join([*outcome.said.strip().splitlines()[-6:], *outcome.left, *outcome.lost][:12])
        bad.append(text.encode("ascii", "backslashreplace").decode())
        if verbose:
            print(bad[-1][:2000], flush=True)


def processes(number: int, seed: int, place: Path, at_once: int, minutes: float) -> tuple[dict[str, Count], list[str]]:
    """Run cases as processes, so many at once, each group in folders of its own; none is started after so long."""
    until = time.monotonic() + 60 * minutes
    counts, bad = dict[str, Count](), list[str]()
    torch.set_num_threads(1)
    templates(place / "sound", "gym:Pendulum-v1")

    def some(worker: int) -> None:
        mine = Path(shutil.copytree(place / "sound", place / f"worker{worker}"))
        sound = tree(mine)
        for i in range(worker, number, at_once):
            if time.monotonic() > until:
                break
            one = case(seed + 1, i, "gym:Pendulum-v1")
            outcome = run(one, mine, sound, lambda c, n=i: as_process(c, mine, ("ascii", "utf-8")[n % 2]))  # type: ignore[misc]
            tell(one, outcome, counts, bad, f"process {i}, --seed {seed}", True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(some, range(at_once)))
    return counts, bad


def spread(
    cases: int, seed: int, place: Path, first: int, at_once: int, minutes: float
) -> tuple[dict[str, Count], list[str]]:
    """`fuzz` in so many processes, each with a share of the cases."""
    share = -(-cases // at_once)
    counts, bad = dict[str, Count](), list[str]()
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        starts = range(first, first + cases, share)
        parts = [pool.submit(fuzz, min(share, first + cases - s), seed, place / str(s), s, minutes) for s in starts]
        for part in parts:
            for kind, count in part.result()[0].items():
                counts.setdefault(kind, Count()).update(count)
            bad += part.result()[1]
    return counts, bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="in process")
    parser.add_argument("--processes", type=int, default=0, help="as processes of their own")
    parser.add_argument("--at-once", type=int, default=2, help="how many go on at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no other case after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case in process")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        if given.cases:
            at_once = min(given.at_once, given.cases)
            counts, bad = spread(given.cases, given.seed, Path(place), given.first, at_once, given.minutes)
            show(counts, f"in process, seed {given.seed}")
            failed += len(bad)
        if given.processes:
            counts, bad = processes(
                given.processes, given.seed, Path(place) / "processes", given.at_once, given.minutes
            )
            show(counts, f"as processes, seed {given.seed}")
            failed += len(bad)
    print(f"\n{failed} cases failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
