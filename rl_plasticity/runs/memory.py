"""Whether a run fits into the memory there is, asked before anything large is made."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.configs.commands import Group
from rl_plasticity.errors import SettingsError

A_RUN = 20_000  # bytes: its name and seeds, and the states of its random streams, 5 kB each


# Agents and networks whose whole numbers are widths and how many there are of something: the larger, the larger.
BY_NUMBERS = ("sac", "mlp")


def require(runs: int, of_each: Mapping[str, float], device: str = "cpu") -> None:
    """Refuse what takes more memory than there is.

    It counts what a run allocates for good or in each update: the replay buffer when it is full, networks with their
    targets, gradients and optimizers, a batch and what it leaves in the layers for the gradient. It does not count
    Python and its libraries (half a GB), environments, the images of a data set, what regularizers, measurements,
    evaluations and compiled graphs take besides, or what other processes will take later.

    Args:
        runs: how many train at once.
        of_each: the bytes that each of them takes, by what they are for and which settings decide.
        device: of the tensors.

    Raises:
        SettingsError: it says what there is, and what takes how much.
    """
    there = free(device)
    needed = runs * sum(of_each.values())
    if there is None or needed <= there:
        return
    largest = sorted(of_each, key=of_each.__getitem__, reverse=True)
    parts = [f"{what}: {_size(runs * of_each[what])}" for what in largest if of_each[what] > sum(of_each.values()) / 50]
    of = f" for {runs} runs" if runs > 1 else ""
    raise SettingsError(f"{_size(needed)} of memory would be taken{of}, {_size(there)} are free; {'; '.join(parts)}")


def surely_small(runs: int, group: Group, reads: int, batch_size: int, device: str = "cpu") -> bool:
    """Whether the numbers in a group say that its networks take no tenth of what is free, so that none need be made.

    To make one without memory, and see, imports torch's compiler: more than a second at the start of each run.

    Args:
        group: the settings of a network or an agent; another than those of `BY_NUMBERS` has to be made.
        reads: numbers that the network reads of an example.
    """
    there, widths = free(device), _whole_numbers(group.settings)
    total = reads + sum(widths)
    # 64 copies of a float32 matrix as large as all layers as one, and as many of what it gives for a batch.
    return group.name in BY_NUMBERS and there is not None and 10 * runs * 256 * total * (total + batch_size) < there


def of_network(whole: nn.Module, reads: Iterable[tuple[nn.Module, tuple[Tensor, ...]]]) -> tuple[int, int]:
    """Bytes of an agent or a learner with its gradients, and of what one example leaves in the layers of its networks.

    Args:
        whole: on the device ``meta``, where tensors have shapes but take no memory.
        reads: each of the networks that learn, and one example that it reads.
    """
    state = [value for value in whole.state_dict().values() if isinstance(value, Tensor)]
    gradients = [p for p in whole.parameters() if p.requires_grad]
    left: list[int] = []

    def count(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not [*module.children()]:
            left.append(2 * output.nbytes)  # its gradient is as large

    for net, example in reads:
        hooks = [module.register_forward_hook(count) for module in net.modules()]
        net(*example)
        for hook in hooks:
            hook.remove()
    return sum(t.nbytes for t in [*state, *gradients]), sum(left)


def sizes(group: Group, name: str) -> str:
    """Of a chosen group the settings that could make it large: ``agent.hidden=[256, 256] agent.num_critics=1``."""
    whole = {k: v for k, v in group.settings.items() if _whole_numbers({k: v})}
    return " ".join([f"{name}={group.name}", *(f"{name}.{k}={v}".replace(", ", ",") for k, v in whole.items())])


def free(device: str = "cpu", root: Path = Path("/")) -> int | None:
    """Bytes that can be taken on this device; on a system that does not say, all that it has; None if not even that.

    On Linux the least of what the kernel calls available and what is left of the limits of the process's cgroups.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    known = [*_available(root), *_left_of_limits(root)]
    if not known:
        with suppress(ValueError, OSError, AttributeError):
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min(known)) if known else None


# ------------------------------------------------------------------------------------------------------------------


def _whole_numbers(group: Mapping[str, Any]) -> list[int]:
    """Those among the settings, in lists too."""
    found = [n for value in group.values() for n in (value if isinstance(value, list) else [value])]
    return [n for n in found if isinstance(n, int) and not isinstance(n, bool)]


def _available(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024 * int(line.split()[1])


def _left_of_limits(root: Path) -> Iterator[int]:
    """Of each cgroup that limits this process: the limit less what is taken, the page cache aside."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, taken, cache = groups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, taken = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        place = top / path.lstrip("/")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(top):
                break
            with suppress(OSError, ValueError):  # no limit reads "max"
                left = int((folder / limit).read_text()) - int((folder / taken).read_text())
                stat = dict(pair.split() for pair in (folder / "memory.stat").read_text().splitlines())
                yield left + int(stat.get(cache, 0))


def _size(count: float) -> str:
    """``1.5 GB``."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
