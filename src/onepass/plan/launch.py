"""Compiled kernels, and the shortest road from Python to the GPU.

A Triton launch spends most of its time finding out what it was called with. Here a kernel is compiled once for given
dtypes, switches and tile, bound once to a grid and its scalars, and after that a launch is one call of a C function
with the addresses of its tensors (launcher.c). The types of a kernel's arguments follow from their names (see
`_type_of`), so they are written once, in the kernel. Row counts are plain 32-bit arguments: a new one never compiles
anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from onepass.plan import binaries
from onepass.plan.binaries import Binary
from onepass.plan.launcher import launcher, loaded, packed
from onepass.plan.layout import aligned_bytes

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
TYPES |= {torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.uint8: "u8"}
LANGUAGE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

#: A kernel's arguments that are fp32; other numbers are integers.
FLOATS = ("eps", "offset", "floor", "upper", "largest", "inverse")

#: launch(stream, *pointers): of the tensors that are there, in the kernel's order.
Launch = Callable[..., None]
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
    function: Any,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    *,
    warps: int,
    device: torch.device,
    registers: int | None = None,
    cooperative: bool = False,
    cluster: int = 1,
    exchanges: bool = False,
) -> Bind:
    """`function`, ready to be bound, whose pointers have `dtypes` (None: absent) and whose constexprs are `constants`.

    Every pointer must be a multiple of ALIGN elements, or of 16 bytes if that is less. Call it with the device current.
    `cooperative`: all programs must run at the same time. `exchanges`: it is meant that some do.
    """
    key = (function, dtypes, tuple(constants.items()), warps, device, registers, cooperative, cluster)
    bind = _compiled.get(key)
    if bind is None:
        options = {"num_warps": warps, "launch_cooperative_grid": cooperative, "maxnreg": registers}
        if _gathered.kernels is not None:
            if isinstance(function, triton.JITFunction):
                _gathered.kernels.append((function.fn.__module__, function.fn.__name__, dtypes, constants, options))
            return lambda programs, scalars: lambda stream, *pointers: None
        names = function.arg_names
        values = {name: LANGUAGE.get(value, value) for name, value in constants.items()}
        tail = tuple(values[name] for name in names if name in values)
        if isinstance(function, triton.JITFunction):
            bind = _native(function, dtypes, values, options, tail, cluster)
        else:
            bind = _interpreted(function, dtypes, tail, exchanges)
        _compiled[key] = bind
    return bind


def _compile(
    function: Any,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    target: Any = None,
) -> Any:
    signature: dict[str, str] = {}
    values: dict[str, Any] = dict(constants)
    attributes = {}
    for index, name in enumerate(function.arg_names):
        dtype = dtypes[index] if index < len(dtypes) else None
        signature[name] = _type_of(name, dtype)
        if signature[name] == "constexpr":
            values.setdefault(name, None)
        elif dtype is not None:
            attributes[(index,)] = [["tt.divisibility", aligned_bytes(dtype, values["ALIGN"])]]
    source = _source_type(function)(function, signature, values, attributes)
    return triton.compile(source, target=target, options=dict(options))


def is_gluon(function: Any) -> bool:
    return bool(getattr(function, "is_gluon", bool)())


def _source_type(function: Any) -> Any:
    if not is_gluon(function):
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _type_of(name: str, dtype: torch.dtype | None) -> str:
    if name.startswith("p_"):
        return "constexpr" if dtype is None else "*" + TYPES[dtype]
    if name.isupper():
        return "constexpr"
    if name in FLOATS:
        return "fp32"
    if name.endswith(("_row", "_lane")):
        return "i64"  # strides
    return "i32"


def _native(
    function: Any,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    tail: tuple[Any, ...],
    cluster: int,
) -> Bind:
    module = launcher() if torch.version.hip is None else None
    capability = torch.cuda.get_device_capability()
    binary = None if module is None else _binary(function, dtypes, constants, options, capability)
    handle = None if binary is None else loaded(binary)
    if module is None or binary is None or handle is None:
        if cluster > 1:
            raise RuntimeError("this version of Triton cannot load a kernel whose programs form clusters")
        return _through_triton(_compile(function, dtypes, constants, options), dtypes, tail)
    prepare = module.prepare
    types = [_type_of(name, None) for name in function.arg_names[len(dtypes) :] if not name.isupper()]
    pointers = sum(dtype is not None for dtype in dtypes)
    threads, shared, cooperative = 32 * options["num_warps"], binary.shared, options["launch_cooperative_grid"]

    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        return prepare(handle, programs, threads, shared, cooperative, cluster, pointers, packed(types, scalars))

    return bind


def compile_to_disk(
    module: str,
    name: str,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    capability: tuple[int, int],
) -> None:
    """What `gather` noted, without a GPU."""
    _binary(*_named(module, name, dtypes, constants, options), capability)


def missing(kernels: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of what `gather` noted, each once: what a call on the current GPU would compile and keep on disk.

    With its capability, as `compile_to_disk` takes it. Nothing, where Triton launches or kernels are only noted.
    """
    if _gathered.kernels is not None or torch.version.hip is not None or launcher() is None:
        return []
    capability = torch.cuda.get_device_capability()
    orders = {binaries.key_of(*_named(*kernel), capability): (*kernel, capability) for kernel in kernels}
    return [order for key, order in orders.items() if binaries.find(key) is None]


def _named(
    module: str,
    name: str,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[Any, tuple[torch.dtype | None, ...], dict[str, Any], Mapping[str, Any]]:
    """What `gather` noted, as the compiler takes it."""
    values = {key: LANGUAGE.get(value, value) for key, value in constants.items()}
    return getattr(import_module(module), name), dtypes, values, options


def _binary(
    function: Any,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    capability: tuple[int, int],
) -> Binary | None:
    """From disk, or compiled and then kept there; None where it needs more of a launch than ours gives."""
    key = binaries.key_of(function, dtypes, constants, options, capability)
    found = binaries.find(key)
    if found is None:
        target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
        compiled = _compile(function, dtypes, constants, options, target)
        metadata = compiled.metadata
        if metadata.num_warps != options["num_warps"] or metadata.global_scratch_size or metadata.profile_scratch_size:
            return None
        found = Binary(compiled.name, metadata.shared, compiled.kernel)
        binaries.keep(key, found)
    return found


def _through_triton(compiled: Any, dtypes: tuple[torch.dtype | None, ...], tail: tuple[Any, ...]) -> Bind:
    run = compiled.run  # loads the binary
    function, metadata = compiled.function, compiled.packed_metadata

    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        def launch(stream: int, *pointers: Any) -> None:
            arguments = _with_absent(dtypes, pointers)
            run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments, *scalars, *tail)

        return launch

    return bind


def _interpreted(function: Any, dtypes: tuple[torch.dtype | None, ...], tail: tuple[Any, ...], exchanges: bool) -> Bind:
    def bind(programs: int, scalars: tuple[Any, ...]) -> Launch:
        def one_by_one(stream: int, *pointers: Any) -> None:
            function[(programs,)](*_with_absent(dtypes, pointers), *scalars, *tail)

        def together(stream: int, *pointers: Any) -> None:
            from onepass.plan.interpreter import run_together

            run_together(function, programs, (*_with_absent(dtypes, pointers), *scalars, *tail))

        return together if exchanges else one_by_one

    return bind


def _with_absent(dtypes: tuple[torch.dtype | None, ...], pointers: tuple[Any, ...]) -> list[Any]:
    """Pointers where the kernel's signature has them, None between them."""
    present = iter(pointers)
    return [None if dtype is None else next(present) for dtype in dtypes]
