"""The program that torch's compiler writes for a GPU, on a machine without one: ``python scripts/cuda_program.py``.

An update is traced on the CPU. Its graph then moves to tensors that have a device and no numbers, and the compiler goes
on up to the text of the program, whose kernels are counted. For each regularizer and number of runs a row says with
which of the options of `rl_plasticity.compiling.fastest` that succeeds. Needs the package triton.

    pip install --no-deps triton==3.6.0
    python scripts/cuda_program.py --runs 1,2,4,10,40 --reg none,spectral >> docs/results/gpu/programs.csv

With ``TRITON_INTERPRET=1`` nothing is counted. The program of a small agent makes two updates on the CPU, its kernels
in Triton's interpreter. A row has the largest distance of anything in the agent's state from what plain updates make.
"""

import argparse
import contextlib
import copy
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._inductor import compile_fx
from torch._inductor import config as inductor
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode

from rl_plasticity.agents import SAC, Batch
from rl_plasticity.compiling.compiled import set_tracing
from rl_plasticity.compiling.fastest import passes
from rl_plasticity.compiling.rewrites import Rewrites
from rl_plasticity.errors import first_line
from rl_plasticity.regularizers import REGULARIZERS, make_regularizer, penalties

CHIP = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=80 * 2**30, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20, gcnArchName="", uuid="0", is_integrated=0, is_multi_gpu_board=0,
)  # fmt: skip


class Written(Exception):
    """The program is complete; its text."""


def answer_for_a_gpu() -> None:
    """Let torch's questions about the device be answered as on one H100, which is never used."""

    answers: dict[str, Any] = {"current_device": 0, "device_count": 1, "get_device_properties": CHIP}
    answers |= {"get_device_capability": (9, 0), "is_bf16_supported": True, "synchronize": None, "_lazy_init": None}
    answers |= {"set_device": None, "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None}
    of_interface = {**answers, "is_available": True, "get_compute_capability": 90, "is_triton_capable": True}
    of_interface |= {"raise_if_triton_unavailable": None, "get_raw_stream": 0}
    interface: Any = device_interface.CudaInterface
    of_worker = {"get_device_properties": CHIP, "current_device": 0}
    for owner, given in ((torch.cuda, answers), (interface, of_interface), (interface.Worker, of_worker)):
        for name, value in given.items():
            setattr(owner, name, staticmethod(lambda *_, value=value, **__: value))
    for owner, name in ((torch.cuda, "device"), (torch.cuda, "_DeviceGuard"), (interface, "device")):
        setattr(owner, name, contextlib.nullcontext)
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").startswith(("torch._inductor", "torch.utils._triton")):
            for name in {"has_triton", "has_triton_package"} & {*vars(module)}:
                setattr(module, name, lambda *_, **__: True)
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", 90, 32)
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))
    inductor.fx_graph_cache, inductor.compile_threads = False, 1

    def stop(self: Any) -> None:
        text = self.codegen()[0]
        raise Written(getattr(text, "value", text))

    GraphLowering.compile_to_module = stop  # type: ignore[assignment]


def moved(graph: torch.fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """The inputs as tensors of a GPU without numbers; the graph makes its own tensors there."""
    cuda = torch.device("cuda", 0)

    def there(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        with mode:
            return torch.empty_strided(
                tuple(map(int, x.shape)), tuple(map(int, x.stride())), dtype=x.dtype, device=cuda
            )

    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": cuda}
        node.args = tuple(cuda if isinstance(a, torch.device) else a for a in node.args)
    graph.recompile()
    fake = [there(x) for x in inputs]
    with mode:
        torch.fx.passes.fake_tensor_prop.FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*fake)
    return fake


def program(update: Callable[..., Any], given: Sequence[Any], options: dict[str, Any], runs: bool = False) -> Any:
    """The text that the compiler writes for `update`; or `update` as that program, on the CPU."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._guards import TracingContext, tracing
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    def write(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake = moved(graph, inputs, mode)
        with tracing(TracingContext(mode)), V.set_fake_mode(mode), inductor.patch(options):
            try:
                return compile_fx.compile_fx_inner(graph, fake)
            except Exception as error:
                if runs:
                    return interpreted(written(error))
                raise

    torch._dynamo.reset()
    set_tracing()
    backend = aot_autograd(
        fw_compiler=write, bw_compiler=write, inference_compiler=write, decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    call = torch.compile(update, fullgraph=True, dynamic=False, backend=backend)
    if runs:
        return call
    try:
        call(*given)
    except Exception as error:
        return written(error)
    raise AssertionError("the compiler wrote nothing")


def written(error: Exception) -> str:
    """The program that ended the compiler, which wraps what ends it; any other error is raised again."""
    cause: BaseException | None = error
    while not isinstance(cause, Written):
        if cause is None:
            raise error
        cause = cause.__cause__ or cause.__context__
    return str(cause)


def interpreted(text: str) -> Callable[[list[Any]], Any]:
    """The program as a function that runs on the CPU: kernels in Triton's interpreter, products by torch."""
    import numpy as np
    import triton.language as tl
    from torch._inductor import async_compile
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import GridExpr
    from triton.runtime.interpreter import TensorHandle

    def emulated(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **_: Any) -> Any:
            handle = given[0].handle
            found = function(*(x.handle.data for x in given)).astype(handle.data.dtype)
            return tl.tensor(TensorHandle(found, handle.dtype), given[0].type)

        return call

    of_numpy = {name: getattr(np, name) for name in ("exp", "log1p", "signbit", "sqrt", "tanh")}
    for name, function in {**of_numpy, "mul_rn": np.multiply, "pow": np.power, "rsqrt": lambda x: x**-0.5}.items():
        setattr(triton_helpers.libdevice, name, emulated(function))
    triton_helpers.set_driver_to_gpu = lambda: None

    def kernel(_: Any, name: str, code: str, **__: Any) -> Any:
        made = getattr(PyCodeCache.load(code), name)
        chosen = made.configs[0]
        constants = made.triton_meta["constants"]
        every = [name for name in made.fn.arg_names if name not in chosen.kwargs]
        others = [name for name in every if name not in constants]

        def run(*given: Any, **_: Any) -> None:
            names = every if len(given) == len(every) else others  # a constant may be given or left out
            values = {**constants, **chosen.kwargs, **dict(zip(names, given, strict=True))}
            grid, known = GridExpr.from_meta(made.inductor_meta, chosen), {**values, "math": math}
            for line in grid.prefix:
                exec(line, known)
            made.fn[tuple(eval(str(n), known) for n in (grid.x_grid, grid.y_grid, grid.z_grid))](**values)

        return SimpleNamespace(run=run)

    async_compile.AsyncCompile.triton = kernel  # type: ignore[method-assign, assignment]
    names: dict[str, Any] = {"get_raw_stream": lambda _: 0}
    exec(text.replace("from torch._C import _cuda_getCurrentRawStream", "from builtins import hash"), names)
    names |= {"empty_strided_cuda": lambda *given: torch.empty_strided(*given[:2], dtype=given[2])}
    call = names["call"]
    call.__func__._boxed_call = True
    return call  # type: ignore[no-any-return]


def launches(text: str) -> int:
    """How many kernels and copies a call of the program launches."""
    body = text[text.index("def call(") :]
    kinds = (r"triton_\w+\.run\(", r"extern_kernels\.\w+\(", r"torch\.ops\.aten\.[\w.]+\(", r"\.copy_\(")
    return sum(len(re.findall(kind, body)) for kind in kinds)


def difference(update: Callable[..., Any], agent: SAC, plain: SAC, inputs: Sequence[Any]) -> float:
    """The largest difference between two agents after two updates of each."""
    for _ in range(2):
        update(*inputs)
        plain.update(*inputs)
    states = (agent.state_dict().values(), plain.state_dict().values())
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(*states, strict=True) if a.numel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1,2,4,10,40")
    parser.add_argument("--reg", default=",".join(REGULARIZERS))
    options = parser.parse_args()
    runs_it = os.environ.get("TRITON_INTERPRET") == "1"
    answer_for_a_gpu()
    penalties._product = lambda a, b: penalties._as_sum(a, b) if 1 in (a.shape[-2], b.shape[-1]) else a @ b
    for reg in options.reg.split(","):
        for runs in map(int, options.runs.split(",")):
            size, obs, act, hidden = (8, 5, 2, (16, 16)) if runs_it else (256, 17, 6, (256, 256))
            rand = partial(torch.randn, runs, size)
            batch = Batch(rand(obs), rand(act).tanh(), rand(), rand(obs), torch.full((runs, size), 0.99))
            inputs = batch, torch.randn(2, runs, size, act)
            for number, chosen in enumerate(passes()):
                agent = SAC(obs, act, range(runs), partial(make_regularizer, reg), hidden=hidden)
                plain = copy.deepcopy(agent)
                try:
                    given = {"post_grad_custom_pre_pass": Rewrites(), **chosen}
                    made = program(agent.update, inputs, given, runs_it)
                    found: float = difference(made, agent, plain, inputs) if runs_it else launches(made)
                    print(torch.__version__, reg, runs, number, found, "", sep=",", flush=True)
                    break
                except Exception as error:  # whatever the compiler raises
                    print(torch.__version__, reg, runs, number, "", f'"{first_line(error)[:100]}"', sep=",", flush=True)


if __name__ == "__main__":
    main()
