"""Tensors of any leading shape as (rows, lanes, cols), without a copy wherever two strides can say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: The largest alignment, in elements, that kernels are told of: 16 two-byte elements are two 16-byte accesses.
MAX_ALIGN = 16


@dataclass(frozen=True)
class Layout:
    """Row r of lane l of tensor i begins at r · strides[i][0] + l · strides[i][1], in elements."""

    rows: int
    lanes: int
    strides: tuple[tuple[int, int], ...]

    def is_dense(self, cols: int) -> bool:
        """Whether each row begins where the last one ends, in every tensor."""
        return self.lanes == 1 and (self.rows <= 1 or all(row == cols for row, _ in self.strides))

    def align(self, cols: int) -> int:
        """The largest power of two, up to MAX_ALIGN, that divides the columns and every stride."""
        bits = cols | MAX_ALIGN
        for row, lane in self.strides:
            bits |= row | lane
        return bits & -bits


def aligned_bytes(dtype: torch.dtype, align: int) -> int:
    """What a pointer must be a multiple of where rows are multiples of `align` elements.

    No more than that, so that a kernel serves a tensor from any of its rows on: a row's bits must not depend on which
    rows lie before it, and a kernel for another alignment may sum in another order.
    """
    return min(16, align * dtype.itemsize)


def layout_of(shape: Sequence[int], strides: Sequence[Sequence[int]], per_lane: bool = False) -> Layout | None:
    """The layout that all tensors of `shape` with these strides share, or None if it takes more than two levels.

    `per_lane` makes the last leading dimension (the heads) the lanes. Otherwise the shorter level becomes the lanes,
    because a program's tile reaches over rows of one lane.
    """
    heads = len(shape) - 2 if per_lane else None
    if 0 in shape[:-1]:  # no rows, so strides mean nothing
        return Layout(0, shape[heads] if heads is not None else 1, tuple((0, 0) for _ in strides))
    levels: list[tuple[int, tuple[int, ...]]] = []
    for axis in range(len(shape) - 1):
        size, steps = shape[axis], tuple(stride[axis] for stride in strides)
        if size == 1 and axis != heads:
            continue
        if levels and axis != heads:
            outer_size, outer_steps = levels[-1]
            if all(outer == size * step for outer, step in zip(outer_steps, steps, strict=True)):
                levels[-1] = (outer_size * size, steps)
                continue
        levels.append((size, steps))
    none = (1, tuple(0 for _ in strides))
    if per_lane:
        lanes, rows = levels[-1], levels[-2] if len(levels) > 1 else none
    elif len(levels) == 2:
        lanes, rows = sorted(levels, key=lambda level: level[0])
    else:
        lanes, rows = none, levels[-1] if levels else none
    if len(levels) > 2:
        return None
    return Layout(rows[0], lanes[0], tuple(zip(rows[1], lanes[1], strict=True)))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
