"""Updates on a GPU: compiled and captured, captured, or plain, the first of these that gives the plain numbers."""

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.compiling.compiled import Captured, compiled
from rl_plasticity.errors import first_line
from rl_plasticity.seeding import random_states_kept

TRIED = 2  # successive updates that are compared: the second one reads the weights that the first one wrote


def fastest(
    update: Callable[..., Any], device: str, compiles: bool, say: Callable[[str], object] | None = None
) -> Callable[..., Any]:
    """`update`, a method of a module, in the fastest way: on a CPU compiled or as it is, on a GPU by trial.

    Args:
        say: gets the line with the way that was found on a GPU; None: it goes to stderr.
    """
    if device == "cuda":
        return Fastest(update, compiles, say or partial(print, file=sys.stderr))
    return compiled(update) if compiles else update


class Fastest:
    """`update` in the first of several ways that works and gives the plain update's metrics.

    The first call makes plain updates, puts everything back, and tries the ways on the same arguments. So a failure of
    the compiler or of a recording costs seconds of one run, and never the speed of the next way.

    Args:
        update: a method of a module. All that it changes are parameters, buffers, and what the module saves.
        compiles: whether to try compiled updates.
        say: gets one line with the way that is taken, and why no faster one is.
    """

    def __init__(self, update: Callable[..., Any], compiles: bool, say: Callable[[str], object]) -> None:
        self.update, self.compiles, self.say = update, compiles, say
        self.way: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.way is None:
            self.way = self._found(arguments)
        return self.way(*arguments)

    def ways(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Names and updates, the fastest first. Where the first compiled one fails, another set of passes may not."""
        for options in passes() if self.compiles else ():
            yield "compiled, as one CUDA graph", self.captured(compiled(self.update, "cuda", **options))
        yield "as one CUDA graph, not compiled", self.captured(self.update)
        yield "kernel by kernel, which is slow", self.update

    def captured(self, update: Callable[..., Any]) -> Captured:
        """`update` as a CUDA graph."""
        return Captured(update)

    def _found(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """The first way that gives the plain numbers; the module is as it was.

        Raises:
            RuntimeError: the device is lost.
        """
        module: nn.Module = self.update.__self__  # type: ignore[attr-defined]
        tensors = {id(x): x.detach() for x in (*module.parameters(), *module.buffers())}.values()
        start = [x.clone() for x in tensors]
        own = {name for named in (module.named_parameters, module.named_buffers) for name, _ in named("", True, False)}
        extra = copy.deepcopy({name: value for name, value in module.state_dict().items() if name not in own})

        def tried(way: Callable[..., Any], before: int) -> dict[str, Tensor]:
            """The last metrics of `TRIED` calls in a row, from the state as it is, after other calls from there."""
            try:
                for calls in (*(1,) * before, TRIED):
                    back()
                    with random_states_kept(tensors):
                        for _ in range(calls):
                            metrics = way(*arguments)
                return {name: torch.as_tensor(value).clone() for name, value in metrics.items()}
            finally:
                back()

        def back() -> None:
            with torch.no_grad():
                for now, before in zip(tensors, start, strict=True):
                    now.copy_(before)
            if extra:
                module.load_state_dict(extra, strict=False)

        expected = tried(self.update, 0)
        failed: list[str] = []
        for name, way in self.ways():
            try:
                found = expected if way is self.update else tried(way, Captured.WARM_UP)
                if not (wrong := [key for key, value in expected.items() if not _equal(found[key], value)]):
                    self.say(f"updates: {name}" + "".join(f" ({why})" for why in failed))
                    return way
                failed.append(f"{name}: {wrong[0]} is not the plain update's")
            except Exception as error:  # whatever a compiler or a driver raises
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # raises if the device is lost, where nothing else would work either
                failed.append(f"{name}: {first_line(error)}")
                torch._dynamo.reset()
        raise AssertionError("the plain update is always a way")


def passes() -> list[dict[str, Any]]:
    """Options of inductor for CUDA, the best first: each fails in some graphs of some versions of torch."""
    old = torch.__version__ < "2.13"
    no_inversion = {"loop_index_inversion_in_fusion": False}
    order = {"loop_ordering_after_fusion": False} if old else {}  # an assertion in it fails; 2.13 goes on instead
    joined = {"combo_kernels": True, **order}  # half of the launches
    return [joined if old else joined | no_inversion, order | no_inversion]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding in another order."""
    return torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
