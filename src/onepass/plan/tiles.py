"""A tile: what a program has of a problem, and in how many warps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A tile for rows of up to `cols` columns of 16 bits, or a slice of `cols` columns of a wider row."""

    cols: int
    rows: int
    warps: int
    programs_per_sm: int | None = None  # that walk the tiles; None: a program for each tile
    stages: int = 1
    block: int | None = None  # columns of a block; None: the row is one block
    late: int | None = None  # with more programs for each SM, weight and bias are asked for late; None: never
    ahead: int = 1  # and then for so many blocks before they are needed
    registers: int | None = None  # and then a thread's limit, where more programs are worth it
    narrows: bool = True  # to a narrower block, where less of the last one is beyond the row then (plans.snug)
    chains: int = 1  # in which a forward sums a row's blocks, at the most (chains.py)


@dataclass(frozen=True)
class Limit:
    """Of a thread's registers, for a forward's rows of `first` to `last` columns that one program holds."""

    centred: bool
    residual: bool
    itemsize: int  # of x
    first: int
    last: int
    registers: int
    quantized: str | None = None  # the scaling of an FP8 output
    per_sm: int = 0  # where rows are more than so many for each SM: fewer have room without it
    late: bool | None = None  # and weight and bias are asked for late, or are not; None: either way
    sum_first: bool | None = None  # and sums are stored first, or are not


@dataclass(frozen=True)
class FewLimit:
    """The same for the backward of few rows."""

    centred: bool
    residual: bool
    itemsize: int
    first: int
    last: int
    registers: int
    per_sm: int | None = None  # where rows are no more for each SM; None: where all programs run at once with it


#: Tiles that serve from so many columns on, up to as many as they say.
Between = tuple[tuple[int, Tile], ...]
