"""Compiled kernels, and the shortest road from Python to the GPU.

A Triton launch spends most of its time finding out what it was called with. Here a kernel is compiled once for given
dtypes, switches and tile, bound once to a grid and its scalars, and after that a launch is one call of a C function
with the addresses of its tensors (launcher.c). Row counts are plain 32-bit arguments: a new one never compiles
anything. What was compiled before is found on disk (binaries.py), and then Triton is not even imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onepass.kernels import Kernel
from onepass.plan import binaries
from onepass.plan.binaries import Binary
from onepass.plan.launcher import launcher, packed
from onepass.route import INTERPRETED

Dtypes = tuple[torch.dtype | None, ...]

#: launch(stream, *pointers): of the tensors that are there, in the kernel's order.
Launch = Callable[..., None]
#: call(*inputs): the outputs that come back, or None where it is not for it.
Call = Callable[..., tuple[Any, ...] | None]
#: bind(programs, scalars): the arguments behind the pointers.
Bind = Callable[[int, tuple[Any, ...]], Launch]

_compiled: dict[tuple[Any, ...], Bind] = {}


class _Gathered(threading.local):
    """A thread's own: others launch as ever."""

    kernels: list[tuple[Any, ...]] | None = None


_gathered = _Gathered()


def compiled_count() -> int:
    """How many kernels this process has compiled or loaded so far."""
    return len(_compiled)


@contextmanager
def gather() -> Iterator[list[tuple[Any, ...]]]:
    """For a while, note which kernels would have to be compiled, and launch nothing; workers.py compiles them.

    In this thread: a call that another one makes meanwhile must not be left out.
    """
    kernels: list[tuple[Any, ...]] = []
    outer, _gathered.kernels = _gathered.kernels, kernels
    try:
        yield kernels
    finally:
        _gathered.kernels = outer


def kernel(
    named: Kernel,
    dtypes: Dtypes,
    constants: Mapping[str, Any],
    *,
    warps: int,
    device: torch.device,
    registers: int | None = None,
    cooperative: bool = False,
    cluster: int = 1,
    exchanges: bool = False,
) -> Bind:
    """`named`, ready to be bound, whose pointers have `dtypes` (None: absent) and whose constexprs are `constants`.

    Every pointer must be a multiple of ALIGN elements, or of 16 bytes if that is less. Call it with the device current.
    `cooperative`: all programs must run at the same time. `exchanges`: it is meant that some do.
    """
    key = (named, dtypes, tuple(constants.items()), warps, device, registers, cooperative, cluster)
    bind = _compiled.get(key)
    if bind is None:
        options = {"num_warps": warps, "launch_cooperative_grid": cooperative, "maxnreg": registers}
        if _gathered.kernels is not None:
            if not INTERPRETED:
                _gathered.kernels.append((named, dtypes, constants, options))
            return lambda programs, scalars: lambda stream, *pointers: None
        if INTERPRETED:
            bind = _interpreted(named, dtypes, constants, exchanges)
        else:
            bind = _native(named, dtypes, constants, options, cluster)
        _compiled[key] = bind
    return bind


def _native(
    kernel: Kernel, dtypes: Dtypes, constants: Mapping[str, Any], options: Mapping[str, Any], cluster: int
) -> Bind:
    module = launcher() if torch.version.hip is None else None
    capability = torch.cuda.get_device_capability()
    binary = None if module is None else _binary(kernel, dtypes, constants, options, capability)
    if module is None or binary is None:
        if cluster > 1:
            raise RuntimeError("Triton's own launcher cannot launch a kernel whose programs form clusters")
        return _through_triton(kernel, dtypes, constants, options)
    function = module.load(binary.name, binary.cubin, binary.shared, torch.cuda.current_device())
    prepare, types, shared = module.prepare, binary.scalars, binary.shared
    pointers = sum(dtype is not None for dtype in dtypes)
    threads, cooperative = 32 * options["num_warps"], options["launch_cooperative_grid"]

    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        return prepare(function, programs, threads, shared, cooperative, cluster, pointers, packed(types, scalars))

    return bind


def whole_call(
    launches: Sequence[tuple[Launch, Sequence[int]]],
    tensors: int,
    inputs: int,
    outputs: Sequence[torch.Tensor | None],
    returned: Sequence[int],
    ordinal: int,
) -> Call | None:
    """All of a call in one C function (see launcher.c), or None where it cannot be: where launches are not by ours.

    `outputs`: of the shape, the strides and the dtype that each of these has.
    """
    module = launcher() if _gathered.kernels is None and torch.version.hip is None and not INTERPRETED else None
    if module is None or not all(isinstance(launch, module.Launch) for launch, _ in launches):
        return None
    parts = tuple((launch, tuple(places)) for launch, places in launches)
    kinds = tuple(None if like is None else kind_of(like) for like in outputs)
    functions = (empty_strided, torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream)
    made: Call = module.call(parts, tensors, inputs, kinds, tuple(returned), ordinal, functions)
    return made


def kind_of(like: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """What `empty_strided` makes such a tensor with. It takes no torch.Size for a tuple."""
    return tuple(like.shape), like.stride(), like.dtype


def _empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


#: On the current GPU; by inductor's own way, where PyTorch has it, in two thirds of the time.
empty_strided: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided)


def compile_to_disk(
    kernel: Kernel,
    dtypes: Dtypes,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    capability: tuple[int, int],
) -> None:
    """What `gather` noted, without a GPU."""
    _binary(kernel, dtypes, constants, options, capability)


def missing(kernels: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of what `gather` noted, each once: what a call on the current GPU would compile and keep on disk.

    With its capability, as `compile_to_disk` takes it. Nothing, where Triton launches or kernels are only noted.
    """
    if _gathered.kernels is not None or torch.version.hip is not None or launcher() is None:
        return []
    capability = torch.cuda.get_device_capability()
    orders = {
        binaries.key_of(named, dtypes, constants, options, capability): (named, dtypes, constants, options, capability)
        for named, dtypes, constants, options in kernels
    }
    return [order for key, order in orders.items() if binaries.find(key) is None]


def _binary(
    kernel: Kernel,
    dtypes: Dtypes,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    capability: tuple[int, int],
) -> Binary | None:
    """From disk, or compiled and then kept there; None where it needs more of a launch than ours gives."""
    key = binaries.key_of(kernel, dtypes, constants, options, capability)
    found = binaries.find(key)
    if found is None:
        from onepass.plan import compiler

        found = compiler.binary_of(kernel, dtypes, constants, options, capability)
        if found is not None:
            binaries.keep(key, found)
    return found


def _through_triton(kernel: Kernel, dtypes: Dtypes, constants: Mapping[str, Any], options: Mapping[str, Any]) -> Bind:
    from onepass.plan import compiler

    compiled = compiler.compile_kernel(kernel, dtypes, constants, options)
    tail = compiler.constants_in_order(kernel, constants)
    run = compiled.run  # loads the binary
    function, metadata = compiled.function, compiled.packed_metadata

    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        def launch(stream: int, *pointers: Any) -> None:
            arguments = _with_absent(dtypes, pointers)
            run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments, *scalars, *tail)

        return launch

    return bind


def _interpreted(kernel: Kernel, dtypes: Dtypes, constants: Mapping[str, Any], exchanges: bool) -> Bind:
    from onepass.plan import compiler

    function, tail = kernel.function, compiler.constants_in_order(kernel, constants)

    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        def one_by_one(stream: int, *pointers: Any) -> None:
            function[(programs,)](*_with_absent(dtypes, pointers), *scalars, *tail)

        def together(stream: int, *pointers: Any) -> None:
            from onepass.plan.interpreter import run_together

            run_together(function, programs, (*_with_absent(dtypes, pointers), *scalars, *tail))

        return together if exchanges else one_by_one

    return bind


def _with_absent(dtypes: Dtypes, pointers: tuple[Any, ...]) -> list[Any]:
    """Pointers where the kernel's signature has them, None between them."""
    present = iter(pointers)
    return [None if dtype is None else next(present) for dtype in dtypes]
