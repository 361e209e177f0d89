"""Notes the commit in what is built, so that the provenance of an installed package's runs has it."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NOTE = "rl_plasticity/commit.txt"


class Commit(BuildHookInterface):
    """Adds `NOTE` to wheel and source distribution. A wheel built from the latter has the note that lies there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or (Path(self.root) / NOTE).exists() or not (commit := self._commit()):
            return
        self.place = tempfile.TemporaryDirectory()
        file = Path(self.place.name) / "commit.txt"
        file.write_text(f"{commit}\n")
        build_data["force_include"][str(file)] = NOTE

    def _commit(self) -> str:
        """The commit of the checkout, with + if it was changed; empty where this folder is none."""

        def git(*arguments: str) -> str:
            done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
            return done.stdout.strip()

        try:
            if not git("ls-files", "pyproject.toml"):
                return ""  # unpacked inside somebody else's repository
            return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
        except (OSError, subprocess.CalledProcessError):
            return ""
