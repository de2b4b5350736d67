"""Compiled kernels, and the shortest road from Python to the GPU.

A Triton launch spends most of its time finding out what it was called with. Here a kernel is compiled for given
dtypes, switches and tile once, and after that a launch is one call of Triton's own C launcher with raw pointers.
The types of a kernel's arguments follow from their names (see `_type_of`), so they are written once, in the kernel.
Row counts are plain 32-bit arguments: a new one never compiles anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.compiler import ASTSource

from onepass.plan.layout import aligned_bytes

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
LANGUAGE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

#: run(grid, stream, *pointers_and_scalars)
Run = Callable[..., None]

_compiled: dict[tuple[Any, ...], Run] = {}


def compiled_count() -> int:
    """How many kernels this process has compiled or loaded so far."""
    return len(_compiled)


def kernel(
    function: Any,
    dtypes: tuple[torch.dtype | None, ...],
    constants: Mapping[str, Any],
    *,
    warps: int,
    device: torch.device,
    registers: int | None = None,
    cooperative: bool = False,
) -> Run:
    """A launcher for `function`, whose pointers have `dtypes` (None: absent) and whose constexprs are `constants`.

    Every pointer must be a multiple of ALIGN elements, or of 16 bytes if that is less. Call it with the device current.
    """
    key = (function, dtypes, tuple(constants.items()), warps, device, registers, cooperative)
    run = _compiled.get(key)
    if run is None:
        names = function.arg_names
        values = {name: LANGUAGE.get(value, value) for name, value in constants.items()}
        tail = tuple(values[name] for name in names if name in values)
        if isinstance(function, triton.JITFunction):
            options = {"num_warps": warps, "launch_cooperative_grid": cooperative, "maxnreg": registers}
            run = _native(_compile(function, dtypes, values, options), tail)
        else:
            run = _interpreted(function, tail, cooperative)
        _compiled[key] = run
    return run


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
    return triton.compile(ASTSource(function, signature, values, attributes), target=target, options=dict(options))


def _type_of(name: str, dtype: torch.dtype | None) -> str:
    if name.startswith("p_"):
        return "constexpr" if dtype is None else "*" + TYPES[dtype]
    if name.isupper():
        return "constexpr"
    if name in ("eps", "offset"):
        return "fp32"
    if name.endswith(("_row", "_lane")):
        return "i64"  # strides
    return "i32"


def _native(compiled: Any, tail: tuple[Any, ...]) -> Run:
    run = compiled.run  # loads the binary
    function, metadata = compiled.function, compiled.packed_metadata
    launch = getattr(run, "launch", None)
    if launch is not None and not run.global_scratch_size and not run.profile_scratch_size:
        cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl

        def direct(grid: int, stream: int, *arguments: Any) -> None:
            launch(
                grid, 1, 1, stream, function, cooperative, dependent, None, None, metadata, None, None, None,
                *arguments, *tail,
            )  # fmt: skip

        return direct

    def through_python(grid: int, stream: int, *arguments: Any) -> None:
        run(grid, 1, 1, stream, function, metadata, None, None, None, *arguments, *tail)

    return through_python


def _interpreted(function: Any, tail: tuple[Any, ...], cooperative: bool) -> Run:
    def one_by_one(grid: int, stream: int, *arguments: Any) -> None:
        function[(grid,)](*arguments, *tail)

    def together(grid: int, stream: int, *arguments: Any) -> None:
        from onepass.plan.interpreter import run_together

        run_together(function, grid, (*arguments, *tail))

    return together if cooperative else one_by_one
