"""Kernels made by Triton, which this module imports: nobody does before something has to be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from onepass.kernels import Kernel
from onepass.plan.binaries import Binary
from onepass.plan.layout import aligned_bytes

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
TYPES |= {torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.uint8: "u8"}
LANGUAGE = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

#: A kernel's arguments that are fp32; other numbers are integers.
FLOATS = ("eps", "offset", "floor", "upper", "largest", "inverse")

Dtypes = tuple[torch.dtype | None, ...]


def in_language(constants: Mapping[str, Any]) -> dict[str, Any]:
    """With dtypes as Triton calls them."""
    return {name: LANGUAGE.get(value, value) for name, value in constants.items()}


def compile_kernel(
    kernel: Kernel, dtypes: Dtypes, constants: Mapping[str, Any], options: Mapping[str, Any], target: Any = None
) -> Any:
    function = kernel.function
    signature: dict[str, str] = {}
    values = in_language(constants)
    attributes = {}
    for index, name in enumerate(function.arg_names):
        dtype = dtypes[index] if index < len(dtypes) else None
        signature[name] = type_of(name, dtype)
        if signature[name] == "constexpr":
            values.setdefault(name, None)
        elif dtype is not None:
            attributes[(index,)] = [["tt.divisibility", aligned_bytes(dtype, values["ALIGN"])]]
    source = _source_type(kernel)(function, signature, values, attributes)
    return triton.compile(source, target=target, options=dict(options))


def binary_of(
    kernel: Kernel,
    dtypes: Dtypes,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    capability: tuple[int, int],
) -> Binary | None:
    """Compiled; None where it needs more of a launch than ours gives."""
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    compiled = compile_kernel(kernel, dtypes, constants, options, target)
    metadata = compiled.metadata
    if metadata.num_warps != options["num_warps"] or metadata.global_scratch_size or metadata.profile_scratch_size:
        return None
    behind = kernel.function.arg_names[len(dtypes) :]
    scalars = tuple(type_of(name, None) for name in behind if not name.isupper())
    return Binary(compiled.name, metadata.shared, scalars, compiled.kernel)


def constants_in_order(kernel: Kernel, constants: Mapping[str, Any]) -> tuple[Any, ...]:
    """As the kernel takes them, behind its other arguments."""
    values = in_language(constants)
    return tuple(values[name] for name in kernel.function.arg_names if name in values)


def type_of(name: str, dtype: torch.dtype | None) -> str:
    """The type of a kernel's argument, which follows from its name, so that it is written once, in the kernel."""
    if name.startswith("p_"):
        return "constexpr" if dtype is None else "*" + TYPES[dtype]
    if name.isupper():
        return "constexpr"
    if name in FLOATS:
        return "fp32"
    if name.endswith(("_row", "_lane")):
        return "i64"  # strides
    return "i32"


def _source_type(kernel: Kernel) -> Any:
    if not kernel.gluon:
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def read_triton() -> None:
    """As Triton does once in a process, for its own keys; but without a lock, so that each of several threads would
    read the half gigabyte that Triton is.
    """
    try:
        from triton.runtime.cache import triton_key
    except ImportError:  # another Triton
        return
    triton_key()
