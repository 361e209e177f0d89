"""The default folder of a run: its choices, and a digest where its other settings are not the usual ones."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, Supervised, Train

UNSTARTED = (".config.yaml.tmp", ".lock")  # the files of a process that was killed before it wrote any settings


def name(s: Train | Supervised) -> str:
    """The name of a run, ``cheetah-run_spectral_seed0-4_1f3a9c``; equal settings have equal names, and no others."""
    kind: Any = type(s)
    task = [_word(s.groups[GROUPS[kind][0]].name), *([s.preset] if s.preset != DEFAULT_PRESET[kind] else [])]
    methods = [_word(s.reg.name), *([_word(s.reset.name)] if s.reset.name != "none" else [])]
    seeds = f"seed{s.seed}" if s.seeds == 1 else f"seed{s.seed}-{s.seed + s.seeds - 1}"
    choices = {group: one.name for group, one in s.groups.items() if group in (GROUPS[kind][0], "reg", "reset")}
    usual = schema.load(kind, written.from_python({"preset": s.preset, **choices, "seed": s.seed, "seeds": s.seeds}))
    mine = identity(s)
    text = json.dumps(mine, sort_keys=True)
    digest = [] if mine == identity(usual) else [hashlib.sha256(text.encode()).hexdigest()[:6]]
    return "_".join(re.sub(r"[^\w.+=,-]+", "-", word)[:40] for word in (*task, *methods, seeds, *digest))


def identity(s: Train | Supervised) -> dict[str, Any]:
    """The settings that identify a run, flat: those that change its numbers."""
    watched = schema.marked(type(s), "watched")
    settings = schema.without_machine(type(s), s.flat)
    return {name: value for name, value in settings.items() if name not in watched and name != "preset"}


def is_free(path: Path) -> bool:
    """Whether a run can begin at `path`: nothing is there, or only files of a process that was killed as it began.

    Raises:
        OSError: the folder cannot be read.
    """
    return not path.exists() or (path.is_dir() and all(p.name in UNSTARTED for p in path.iterdir()))


def _word(choice: Any) -> str:
    return "-".join(choice) if isinstance(choice, list) else str(choice).rpartition(":")[2]
