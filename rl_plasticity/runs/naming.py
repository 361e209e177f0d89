"""The default folder of a run, whose name is a function of the settings: the choices, and what else is unusual."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, Supervised, Train
from rl_plasticity.runs.names import short

FIRST = (("reg.", "reset."), ("agent.", "net."))  # the groups of settings that a name tells first
UNSTARTED = (".config.yaml.tmp", ".lock")  # the files of a process that was killed before it wrote any settings


def name(s: Train | Supervised) -> str:
    """The name of a run; equal settings have equal names, and no others.

    It has the choices, and the first two settings that are not the usual ones for them: those of the method, then of
    the network or agent, ``walker-run_swr_reg.coef=0.01_agent.layer_norm=false_seed0-4``. Where that does not say all,
    six hex digits of all settings follow.
    """
    kind: Any = type(s)
    task = GROUPS[kind][0]
    choices = {group: one.name for group, one in s.groups.items()}
    preset, usual = (schema.load(kind, written.from_python({"preset": s.preset, **chosen})) for chosen in ({}, choices))
    methods = {task, "reg", *(["reset"] if choices["reset"] != "none" else [])}
    named = {group: one for group, one in choices.items() if group in methods or one != preset.groups[group].name}
    words = [*map(_word, named.values())]
    words[1:1] = [s.preset] if s.preset != DEFAULT_PRESET[kind] else []
    mine, theirs = ({n: v for n, v in identity(one).items() if n not in ("seed", "seeds")} for one in (s, usual))
    others = [n for n, value in mine.items() if theirs.get(n) != value]
    others.sort(key=lambda n: next((i for i, first in enumerate(FIRST) if n.startswith(first)), len(FIRST)))
    words += [f"{n}={_word(mine[n], ',')}" for n in others[:2]]
    plain = [re.sub(r"[^\w.+=,-]+", "-", word)[:40] for word in words]
    if len(others) > 2 or plain != words:
        plain.append(hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:6])
    return "_".join([*plain, f"seed{s.seed}" if s.seeds == 1 else f"seed{s.seed}-{s.seed + s.seeds - 1}"])


def identity(s: Train | Supervised) -> dict[str, Any]:
    """The settings that identify a run, flat: those that change its numbers."""
    others = {"preset", *schema.marked(type(s), "machine", "watched")}
    return {name: value for name, value in s.flat.items() if name not in others}


def is_free(path: Path) -> bool:
    """Whether a run can begin at `path`: nothing is there, or only files of a process that was killed as it began.

    Raises:
        OSError: the folder cannot be read.
    """
    return not path.exists() or (path.is_dir() and all(p.name in UNSTARTED for p in path.iterdir()))


def _word(value: Any, between: str = "-") -> str:
    """A choice or a value: ``none-swr`` for a list, ``Pendulum-v1`` for ``gym:Pendulum-v1``."""
    text = between.join(map(short, value)) if isinstance(value, list) else short(value)
    return text.removeprefix("gym:").removeprefix("minatar:").replace(":", "-")
