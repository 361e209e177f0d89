"""Builds wheel and sdist, installs the wheel where the checkout is not seen, and runs every command of it.

    python scripts/check_wheel.py [--keep FOLDER] [--python python3.12]

``make wheel`` calls it. What is built is left in ``dist/``. It needs a network, or a cache of pip's, for the packages
that the wheel depends on, torch first at its pinned version: of which build it is, pip's configuration decides
(``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``).
"""

import argparse
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
NEEDED = ("LICENSE", "README.md", "CITATION.cff", "SECURITY.md", "Makefile", "constraints.txt", "pyproject.toml")
NEEDED += ("docs/index.md", "examples/td3.py", "papers/studies/costs.csv", "tests/test_package.py", "Dockerfile")

PLUG = """\
from rl_plasticity import REGULARIZERS, Regularizer


class Small(Regularizer):
    def __init__(self, net, coef: float = 1e-3):
        super().__init__(net, coef)

    def penalty(self, net):
        return self.coef * sum(p.square().flatten(len(self.runs)).sum(-1) for p in net.parameters())


REGULARIZERS["small"] = Small
"""
LOOP = """\
import rl_plasticity
import torch
from rl_plasticity import attach

assert "site-packages" in rl_plasticity.__file__, rl_plasticity.__file__
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
attach("spectral", optimizer, net, coef=1.0)
sigma = lambda: max(float(torch.linalg.matrix_norm(m.weight, 2)) for m in net[::2])
before, x = sigma(), torch.randn(64, 4)
for _ in range(300):
    optimizer.zero_grad()
    (0.0 * net(x)).mean().backward()
    optimizer.step()
assert abs(sigma() - 1) < 0.05 < abs(before - 1), (before, sigma())
print(f"largest singular value {before:.2f} -> {sigma():.2f}")
"""
TINY = ["device=cpu", "compile=false", "threads=1", "batch_size=16"]
RL = [*TINY, "agent.hidden=[16,16]", "random_env_steps=20", "total_env_steps=60", "replay_ratio=1", "eval_episodes=1"]
RL += ["eval_every_env_steps=30", "log_every_updates=20"]
SUPERVISED = [*TINY, "preset=demo", "num_tasks=2", "epochs_per_task=2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="the folder to install and run in, which then stays")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install it for")
    options = parser.parse_args()
    wheel, sdist = build(ROOT / "dist")
    check_wheel(wheel)
    place = options.keep or Path(tempfile.mkdtemp(prefix="rl_plasticity-"))
    try:
        check_sdist(sdist, wheel, place)
        run_all(installed(wheel, place, options), place / "use")
    finally:
        if not options.keep:
            shutil.rmtree(place)
    print(", ".join(f"{file.name} ({file.stat().st_size // 1000} kB)" for file in (wheel, sdist)), "are good")


def build(out: Path) -> tuple[Path, Path]:
    """Both, checked as the package index would."""
    for old in out.glob("rl_plasticity-*"):
        old.unlink()
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    call(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
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
        missing = [name for name in NEEDED if name not in names]
        require(not missing, f"the sdist lacks {missing}")
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
        folders = (*PACKAGES, "papers", "tests", "scripts", "docs")
        own = {n for n in listed.stdout.split("\n") if n.partition("/")[0] in folders}
        require(bool(own), f"git lists no file: {listed.stderr}")
        require(own <= names, f"the sdist lacks {sorted(own - names)[:5]}")
        for old in ("sdist", "again"):  # of a version before
            shutil.rmtree(place / old, ignore_errors=True)
        archive.extractall(place / "sdist", filter="data")
    (source,) = (place / "sdist").iterdir()
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(place / "again"), str(source))
    (again,) = (place / "again").iterdir()
    require(contents(again) == contents(wheel), "the sdist builds another wheel")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def installed(wheel: Path, place: Path, options: argparse.Namespace) -> Path:
    """The Python of a fresh environment that has the wheel, and torch at its pinned version from before."""
    python = place / "environment" / "bin" / "python"
    if not python.exists():
        call(options.python, "-m", "venv", str(place / "environment"))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    call(*pip, "torch")
    call(*pip, "--force-reinstall", "--no-deps", str(wheel))
    call(*pip, str(wheel))
    if subprocess.run([python, "-c", "import gymnasium"], capture_output=True).returncode:  # not kept from before
        check_core(python, place / "core")
    call(*pip, f"{wheel}[rl]")
    call(str(python), "-m", "pip", "check")
    return python


def check_core(python: Path, place: Path) -> None:
    """With torch and numpy alone a loop of somebody's own runs, and every command names what it needs."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "loop.py").write_text(LOOP)
    call(str(python), str(place / "loop.py"))
    listed = subprocess.run([python, "-m", "rl_plasticity"], cwd=place, capture_output=True, text=True)
    for name in re.findall(r"^  (\w+) ", listed.stdout, re.MULTILINE):
        done = subprocess.run([python, "-m", f"rl_plasticity.{name}"], cwd=place, capture_output=True, text=True)
        said = done.stderr
        require(done.returncode == 1 and said.count("\n") == 1 and "rl_plasticity[rl]" in said, f"{name}: {said}")


def run_all(python: Path, place: Path) -> None:
    """Every command, in a folder that knows nothing of the checkout."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "my_plug.py").write_text(PLUG)
    (place / "loop.py").write_text(LOOP)

    def run(*arguments: str, status: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([str(python), *arguments], cwd=place, capture_output=True, text=True, env=environment)
        shown = f"{' '.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        require(done.returncode == status and "Traceback" not in done.stderr, shown)
        print(f"  status {status}: {' '.join(arguments)[:110]}", flush=True)
        return done.stdout + done.stderr

    def module(name: str, *arguments: str, status: int = 0) -> str:
        return run("-m", f"rl_plasticity.{name}", *arguments, status=status)

    run("loop.py")
    commands = re.findall(r"^  (\w+) ", run("-m", "rl_plasticity"), re.MULTILINE)
    require({"train", "supervised", "compare"} <= {*commands}, f"commands: {commands}")
    for name in commands:
        module(name, "--help")
    said = module("train", "env=cheetah-runn", status=2) + module("train", "rge=spectral", status=2)
    require("cheetah-run" in said and said.count("\n") == 2, said)
    module("train", *RL, "env=gym:Pendulum-v1", "reg=[none,spectral]", "out=pendulum")
    module("train", *RL, "env=cheetah-run", "reg=swr", "out=cheetah")
    module("train", *RL, "env=gym:Pendulum-v1", "plugins=[my_plug]", "reg=small", "reg.coef=1e-2", "out=plug")
    require("reg.coef" in module("train", "plugins=[my_plug]", "reg=small", "--help"), "a plug has no help")
    said = module("evaluate", "plug", "episodes=1", status=2)
    require("plugins=[my_plug]" in said, said)
    module("evaluate", "cheetah", "episodes=1")
    starts = (place / "cheetah" / "provenance.json").read_text()
    require(bool(re.search(r'"commit": "[0-9a-f]{40}\+?"', starts)), f"no commit in the provenance: {starts}")
    module("supervised", *SUPERVISED, "reg=[none,l2]", "seeds=2", "out=digits")
    # The second package: its agents, networks, optimizers and presets are chosen as the first one's are.
    small = [word for word in RL if not word.startswith("agent.")]
    module(
        "train", *small, "preset=xqc", "agent.actor_width=8", "agent.critic_width=8", "env=gym:Pendulum-v1", "out=xqc"
    )
    module("supervised", *SUPERVISED, "net=resnet18", "optimizer=muon", "data.train_size=32", "out=resnet")
    for command, preset in (("supervised", "spectral-mnist"), ("train", "paper"), ("train", "bro")):
        module(command, f"preset={preset}", "--help")
    module("train", "-m", *RL, "env=gym:Pendulum-v1", "reg=none,l2", "out=sweep")
    said = module("status", "pendulum", "cheetah", "plug", "digits", "xqc", "resnet", "sweep")
    require("8 runs: 0 running, 8 finished" in said, said)
    module("compare", "pendulum", "out=comparison")
    require((place / "comparison" / "report.html").stat().st_size > 10_000, "no page")
    module("train", "resume=cheetah")
    if subprocess.run([str(python), "-c", "import imageio_ffmpeg"], capture_output=True).returncode:
        said = module("watch", "cheetah", status=2)
        require(said.count("\n") == 1 and "rl_plasticity[video]" in said, said)


def call(*arguments: str) -> None:
    print(" ".join(arguments), flush=True)
    done = subprocess.run(arguments, capture_output=True, text=True)
    require(done.returncode == 0, done.stdout + done.stderr)


def require(holds: bool, said: str) -> None:
    if not holds:
        sys.exit(f"check_wheel: {said}")


if __name__ == "__main__":
    main()
