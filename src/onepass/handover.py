"""What passes from tensors to kernels: addresses, strides, switches. Shared by the forward and the backward call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onepass.plan.layout import Layout
from onepass.spec import Norm, Problem


def handed_over(tensors: Sequence[Tensor | None], device: torch.device) -> tuple[list[Any], bool]:
    """What kernels are given for tensors, and whether all of them begin at multiples of 16 bytes.

    On a GPU that is their addresses; in the interpreter, the tensors themselves.
    """
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    bits = 0
    for value in addresses:
        if value is not None:
            bits |= value
    return addresses if device.type == "cuda" else list(tensors), bits & 15 == 0


def is_elsewhere(device: torch.device) -> bool:
    """Whether another GPU than this one is current."""
    return device.type == "cuda" and torch._C._cuda_getDevice() != device.index


def current_stream(device: torch.device) -> int:
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def switches(norm: Norm, problem: Problem) -> dict[str, Any]:
    """The constexprs that come straight from the Norm."""
    return {
        "CENTRED": norm.centred,
        "X_HAT": norm.x_hat_dtype(problem.x, problem.weight),
        "NARROW": norm.narrow_dtype(problem.x),
    }


def word_dtype(norm: Norm) -> torch.dtype:
    """A word of the split schedule's mailbox: one fp32 sum, or the two of a centred norm."""
    return torch.int64 if norm.centred else torch.int32


def stat_strides(layout: Layout, dense: int, cols: int) -> tuple[int, int]:
    """Strides of mean and rstd, one value a row in the tensors' own order: those of a dense tensor, in rows."""
    row, lane = layout.strides[dense]
    return row // cols, lane // cols


def divided(align: int, strides: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Strides as kernels take them: row and lane of each tensor, in units of `align` elements."""
    return tuple(step // align for pair in strides for step in pair)
