"""Builds wheel and sdist, installs the wheel where the checkout is not seen, and runs every command of it.

``make wheel`` calls it. What is built is left in ``dist/``. It needs a network, or a cache of pip's, for the packages
that the wheel depends on, torch first at its pinned version: of which build it is, pip's configuration decides
(``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``).
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("rl_plasticity", "rl_plasticity_zoo")
LARGEST = 1_000_000  # bytes of the wheel
CHECKOUT_ALONE = (".ci", ".gitignore", "agents", "configs", "envs")  # the sdist has all else

TINY = ["device=cpu", "compile=false", "threads=1", "batch_size=16"]
RL = [*TINY, "agent.hidden=[16,16]", "random_env_steps=20", "total_env_steps=60", "replay_ratio=1", "eval_episodes=1"]
RL += ["eval_every_env_steps=30", "log_every_updates=20"]
SUPERVISED = [*TINY, "preset=demo", "num_tasks=2", "epochs_per_task=2"]


def main() -> None:
    wheel, sdist = build(ROOT / "dist")
    check_wheel(wheel)
    with tempfile.TemporaryDirectory(prefix="rl_plasticity-") as folder:
        place = Path(folder)
        check_sdist(sdist, wheel, place)
        run_all(installed(wheel, place), place / "use")
    print(", ".join(f"{file.name} ({file.stat().st_size // 1000} kB)" for file in (wheel, sdist)), "are good")


def build(out: Path) -> tuple[Path, Path]:
    """Both, checked as the package index would."""
    for old in out.glob("rl_plasticity-*"):
        old.unlink()
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_wheel(wheel: Path) -> None:
    """It holds every file of the package, once, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        links = [m.filename for m in archive.infolist() if (m.external_attr >> 28) == 0o12]
    files = (p for package in PACKAGES for p in (ROOT / package).rglob("*"))
    there = {str(p.relative_to(ROOT)) for p in files if p.is_file() and "__pycache__" not in p.parts}
    there.add("rl_plasticity/commit.txt")
    require(sorted(names) == sorted(there), f"the wheel differs from the packages: {sorted({*names} ^ there)}")
    require(not links, f"links: {links}")
    require(wheel.stat().st_size < LARGEST, f"the wheel has {wheel.stat().st_size} bytes, expected less than {LARGEST}")


def check_sdist(sdist: Path, wheel: Path, place: Path) -> None:
    """It holds what a checkout does, and the very same wheel is built of it."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        require(all(m.isfile() or m.isdir() for m in members), "the sdist holds links")
        names = {m.name.partition("/")[2] for m in members}
        own = {name for name in call("git", "ls-files").splitlines() if name.split("/")[0] not in CHECKOUT_ALONE}
        require(own <= names, f"the sdist lacks {sorted(own - names)[:5]}")
        archive.extractall(place / "sdist", filter="data")
    (source,) = (place / "sdist").iterdir()
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", place / "again", source)
    (again,) = (place / "again").iterdir()
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        held = [{name: archive.read(name) for name in archive.namelist()} for archive in (one, other)]
    require(held[0] == held[1], "the sdist builds another wheel")


def installed(wheel: Path, place: Path) -> Path:
    """The Python of a fresh environment that has the wheel, and torch at its pinned version from before."""
    python = place / "environment" / "bin" / "python"
    call(sys.executable, "-m", "venv", place / "environment")
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    call(*pip, "torch")
    call(*pip, wheel)
    check_core(python, place / "core")
    call(*pip, f"{wheel}[rl]")
    call(python, "-m", "pip", "check")
    return python


def check_core(python: Path, place: Path) -> None:
    """With torch, numpy and scipy alone a loop of somebody's own runs, and every command names what it needs."""
    place.mkdir()
    loop(python, place)
    for name in commands(python, place):
        said = call(python, "-m", f"rl_plasticity.{name}", place=place, status=1)
        require(said.count("\n") == 1 and "rl_plasticity[rl]" in said, f"{name}: {said}")


def run_all(python: Path, place: Path) -> None:
    """Every command, in a folder that knows nothing of the checkout."""
    place.mkdir()
    shutil.copy(ROOT / "examples" / "nuclear_norm.py", place)

    def module(name: str, *arguments: str, status: int = 0) -> str:
        return call(python, "-m", f"rl_plasticity.{name}", *arguments, place=place, status=status)

    loop(python, place)
    named = commands(python, place)
    require({"train", "supervised", "compare"} <= {*named}, f"commands: {named}")
    for name in named:
        module(name, "--help")
    said = module("train", "env=cheetah-runn", status=2) + module("train", "rge=spectral", status=2)
    require("cheetah-run" in said and said.count("\n") == 2, said)
    module("train", *RL, "env=gym:Pendulum-v1", "reg=[none,spectral]", "out=pendulum")
    module("train", *RL, "env=cheetah-run", "reg=swr", "out=cheetah")
    module(
        "train", *RL, "env=gym:Pendulum-v1", "plugins=[nuclear_norm]", "reg=nuclear_norm", "reg.coef=1e-2", "out=plug"
    )
    require("reg.coef" in module("train", "plugins=[nuclear_norm]", "reg=nuclear_norm", "--help"), "a plug has no help")
    said = module("evaluate", "plug", "episodes=1", status=2)
    require("plugins=[nuclear_norm]" in said, said)
    module("evaluate", "cheetah", "episodes=1")
    starts = (place / "cheetah" / "provenance.json").read_text()
    require(bool(re.search(r'"commit": "[0-9a-f]{40}\+?"', starts)), f"no commit in the provenance: {starts}")
    module("supervised", *SUPERVISED, "reg=[none,l2]", "seeds=2", "out=digits")
    # The second package: its agents, networks, optimizers and presets are chosen as the first one's are.
    small = [word for word in RL if not word.startswith("agent.")]
    small += ["agent.actor_width=8", "agent.critic_width=8"]
    module("train", *small, "preset=xqc", "env=gym:Pendulum-v1", "out=xqc")
    module("supervised", *SUPERVISED, "net=resnet18", "optimizer=muon", "data.train_size=32", "out=resnet")
    for command, preset in (("supervised", "spectral-mnist"), ("train", "paper"), ("train", "bro")):
        module(command, f"preset={preset}", "--help")
    module("train", "-m", *RL, "env=gym:Pendulum-v1", "reg=none,l2", "out=sweep")
    said = module("status", "pendulum", "cheetah", "plug", "digits", "xqc", "resnet", "sweep")
    require("8 runs: 8 finished" in said, said)
    module("compare", "pendulum", "out=comparison")
    require((place / "comparison" / "report.html").stat().st_size > 10_000, "no page")
    module("train", "resume=cheetah")
    if subprocess.run([python, "-c", "import imageio_ffmpeg"], capture_output=True).returncode:
        said = module("watch", "cheetah", status=2)
        require(said.count("\n") == 1 and "rl_plasticity[video]" in said, said)


def loop(python: Path, place: Path) -> None:
    """A loop of somebody's own, with the package that is installed."""
    at = call(python, "-c", "import rl_plasticity; print(rl_plasticity.__file__)", place=place)
    require("site-packages" in at, at)
    shutil.copy(ROOT / "examples" / "plain_torch.py", place)
    require("penalty" in call(python, "plain_torch.py", place=place), "the loop has no penalty")
    trial = "diagnose(torch.nn.Linear(4, 2), torch.randn(64, 4), updates=20, remedies=False)"
    call(python, "-c", f"import torch; from rl_plasticity import diagnose; print({trial})", place=place)


def commands(python: Path, place: Path) -> list[str]:
    return re.findall(r"^  (\w+) ", call(python, "-m", "rl_plasticity", place=place), re.MULTILINE)


def call(*arguments: str | Path, place: Path = ROOT, status: int = 0) -> str:
    """What a program prints in a folder. It ends with this status and without a traceback, and sees no PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(arguments, cwd=place, capture_output=True, text=True, env=environment)
    line = f"{' '.join(map(str, arguments))[:200]}: status {done.returncode}"
    require(done.returncode == status and "Traceback" not in done.stderr, f"{line}\n{done.stdout}{done.stderr}")
    print(line, flush=True)
    return done.stdout + done.stderr


def require(holds: bool, said: str) -> None:
    if not holds:
        sys.exit(f"check_wheel: {said}")


if __name__ == "__main__":
    main()
