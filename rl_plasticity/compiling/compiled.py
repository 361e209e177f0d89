"""The fast path: the plain update as one compiled graph.

``compiled(agent.update)`` is called like ``agent.update`` and makes the same updates, up to the rounding of sums in
another order. Inductor fuses the element-wise passes. docs/speed.md has the gain of each of these additions:

- `rewrites.Rewrites` changes what inductor would do slowly in the traced graph.
- Multiplications and additions may contract into one instruction, which rounds once instead of twice.
- The calls between the kernels are compiled too (on the CPU; on a GPU, nothing of this has been measured).
- Before each call torch.compile checks a thousand facts about the traced graph. The checks of the modules' insides and
  of globals are left out. So the structure, the modes (``train``, ``eval``) and the plain settings of the modules must
  stay as they were at the first call. A batch of another shape is noticed, and traced again. Parameters and buffers are
  looked up at each call, so resets, interventions and loading reach the graph.

On a GPU updates are also captured as CUDA graphs, see `Captured`; `fastest` chooses.
"""

import hashlib
import os
import platform
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from rl_plasticity.paths import cache_folder


def compiled(update: Callable[..., Any], device: str = "cpu", **options: Any) -> Callable[..., Any]:
    """`update` as one compiled graph on `device`, made at the first call: importing the compiler takes seconds too.

    Args:
        options: more options of inductor.
    """
    graph = cache(partial(_graph, update, device, **options))

    def call(*arguments: Any) -> Any:
        return graph()(*arguments)

    return call


def _graph(update: Callable[..., Any], device: str, **more: Any) -> Callable[..., Any]:
    keep_compiled()
    from rl_plasticity.compiling.rewrites import Rewrites  # brings the compiler, whose import takes as long as torch's

    set_tracing()
    options: dict[str, Any] = {
        # A new object each time: equal options would let agents of different structure share their graphs.
        "post_grad_custom_pre_pass": Rewrites(),
        "guard_filter_fn": _guards_to_check,
        "cpp.enable_floating_point_contract_flag": "fast",
        "cpp_wrapper": device == "cpu",
    }
    return torch.compile(update, fullgraph=True, dynamic=False, options=options | more)


def set_tracing() -> None:
    """Set the compiler's options in a thread that calls compiled updates, and so may trace one."""
    torch._dynamo.config.trace_autograd_ops = True
    # By default 8 graphs of one function. Here each of the regularizers side by side has a graph of the same update.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit
    if threading.current_thread() is not threading.main_thread():
        # Torch 2.12 and 2.13 count, for all threads together, the graphs that a call has run, and a call that begins in
        # one thread let another's, which was about to end, find none. A count that is under way is not checked.
        count = getattr(torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", None)
        if count is not None:
            count(0)


def keep_compiled() -> None:
    """Let inductor store compiled code among the user's caches: a reboot deletes torch's own folder in /tmp.

    ``TORCHINDUCTOR_CACHE_DIR`` takes precedence. Without a writable home, torch's own folder is used.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    with suppress(OSError):
        folder = cache_folder() / "compiled" / _machine()
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def kept_beside(name: str) -> Path:
    """A file beside what is compiled on this machine, to be written and read; it may not exist."""
    keep_compiled()
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull), name)


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError):  # Linux's name of it is nowhere else
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _machine() -> str:
    """A key for machines that run the same compiled code: homes are shared, and ``-march=native`` has no key."""
    said = {platform.machine(), *platform.libc_ver()}
    if capability := os.environ.get("ATEN_CPU_CAPABILITY"):  # which torch's key leaves out too
        said.add(capability)
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said |= {line for line in lines if line.startswith(("flags", "Features"))}  # x86, Arm
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:12]


class Captured:
    """`update` recorded once as a CUDA graph and replayed: no Python, no dispatch and no host sync in between.

    Tensors among the arguments are first copied to fixed places; parameters and buffers are read where they are. The
    first calls run without a recording. They are real updates, and warm up what must not happen in a recording.
    Arguments with another shape than the first (a last, smaller batch) go to `update` itself.
    """

    WARM_UP = 3

    def __init__(self, update: Callable[..., dict[str, Tensor]]) -> None:
        self.update = update
        self.calls = 0
        self.fixed: list[Tensor] = []
        self.replay: Callable[[], dict[str, Tensor]] | None = None

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        given, form = tree_flatten(arguments)
        self.fixed = self.fixed or [torch.empty_like(x, memory_format=torch.contiguous_format) for x in given]
        if [x.shape for x in given] != [x.shape for x in self.fixed]:
            return self.update(*arguments)
        if given:
            torch._foreach_copy_(self.fixed, given)  # one kernel, if they are contiguous
        inputs = tree_unflatten(self.fixed, form)
        self.calls += 1
        if self.calls <= self.WARM_UP:
            return self.run_apart(inputs)
        if self.replay is None:
            self.replay = self.record(inputs)
        return dict(self.replay())  # the tensors are overwritten by the next call

    def run_apart(self, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
        """Run on a separate stream, as CUDA requires before a recording."""
        apart = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            metrics = self.update(*inputs)
        torch.cuda.current_stream().wait_stream(apart)
        return metrics

    def record(self, inputs: tuple[Any, ...]) -> Callable[[], dict[str, Tensor]]:
        """Record one call without running it; returns a function that runs it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = self.update(*inputs)

        def replay() -> dict[str, Tensor]:
            graph.replay()
            return metrics

        return replay


def _guards_to_check(guards: Sequence[Any]) -> list[bool]:
    """For each guard, whether it concerns the arguments or torch's own state (gradients on or off, for example)."""
    others = ("._modules[", "._parameters[", "._buffers[", "G[")
    return [not any(part in guard.name for part in others) for guard in guards]
