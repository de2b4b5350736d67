"""Problem to Plan: which schedule, which tile, how many programs. Every threshold lives here, by name, with its reason.

The forward is batch-invariant: schedule, threads a row and elements a thread follow from the columns, dtypes and
alignment alone. The row count chooses how many rows a program takes and how many programs there are, nothing else,
so a row's bits never depend on its company.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from onepass.plan.device import Device
from onepass.spec import Problem


@dataclass(frozen=True)
class Plan:
    """One launch: the grid has `programs` programs of `warps` warps, each with `rows` × `block` elements at a time."""

    schedule: str  # "tile", "split" or "stream"
    rows: int
    block: int
    warps: int
    programs: int
    stages: int = 1  # loads in flight, in loop iterations
    slices: int = 1  # programs that share a row
    registers: int | None = None  # a thread's limit, where the programs must fit on the GPU at once

    def __str__(self) -> str:
        share = f", {self.slices} programs a row" if self.slices > 1 else ""
        staged = f", {self.stages} stages" if self.stages > 1 else ""
        return (
            f"{self.schedule}: {self.rows} x {self.block:,} tile, {self.warps} warps, "
            f"{self.programs:,} programs{share}{staged}"
        )


@dataclass(frozen=True)
class Tile:
    """A tile shape for rows of up to `cols` columns."""

    cols: int
    rows: int
    warps: int
    programs_per_sm: int = 0  # backward: how many programs walk the rows, on each SM
    stages: int = 1


@dataclass(frozen=True)
class Thresholds:
    #: Up to here a program takes a block of rows, once there are enough rows: one row is too little work for one
    #: program (Liger's PR #1238 found 40 to 80 % there). Columns, padded to a power of two.
    block_row_max_cols: int = 512
    #: From this many rows on the block-row path takes its full tile. Below, the smallest tile that gives each thread
    #: one vector spreads a small problem over more SMs.
    block_row_min_rows: int = 4096
    #: Elements of a full block-row tile: 32 a thread.
    block_row_elements: int = 4096
    block_row_warps: int = 4

    #: Forward, one row a program.
    forward_tiles: tuple[Tile, ...] = (
        Tile(1024, 1, 4),
        Tile(2048, 1, 4),
        Tile(4096, 1, 8),
        Tile(8192, 1, 8),
        Tile(16384, 1, 16),
        Tile(32768, 1, 32),
    )
    #: Wider rows than the last tile do not fit one program's registers.
    forward_slice: int = 8192
    forward_slice_warps: int = 8
    forward_slice_programs_per_sm: int = 2

    backward_tiles: tuple[Tile, ...] = (
        Tile(64, 32, 4, 4, 3),
        Tile(128, 16, 4, 4, 3),
        Tile(256, 8, 4, 4, 3),
        Tile(512, 4, 4, 4, 3),
        Tile(1024, 2, 4, 4, 3),
        Tile(2048, 1, 4, 4, 3),
        Tile(4096, 2, 8, 1, 3),
        Tile(8192, 1, 16, 1, 3),
        Tile(16384, 1, 16, 1, 3),
    )
    backward_slice: int = 2048
    backward_slice_warps: int = 4
    backward_slice_programs_per_sm: int = 4

    #: Stream: columns a program takes at a time.
    stream_block: int = 4096
    stream_warps: int = 8
    #: Column sums for dW in the stream schedule: tile, and how many programs share a column block.
    affine_rows: int = 8
    affine_block: int = 256
    affine_warps: int = 4
    affine_programs_per_sm: int = 4

    #: The sum of partials: tall, narrow tiles, because few columns must still fill the GPU.
    partials_rows: int = 64
    partials_block: int = 32
    partials_warps: int = 4


_thresholds = Thresholds()
_generation = 0
_generations = itertools.count(1)


def thresholds() -> Thresholds:
    return _thresholds


def generation() -> int:
    """Which set of thresholds is in force: whoever keeps plans keeps them under this number."""
    return _generation


@contextmanager
def override(**changes: object) -> Iterator[Thresholds]:
    """Plan with other thresholds for a while: for tests that aim at one schedule, and for measurements."""
    global _thresholds, _generation
    before = _thresholds, _generation
    _thresholds = replace(_thresholds, **changes)  # type: ignore[arg-type]
    _generation = next(_generations)
    try:
        yield _thresholds
    finally:
        _thresholds, _generation = before


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def forward_plan(problem: Problem, device: Device, align: int) -> Plan:
    t = _thresholds
    block = power_of_two(problem.cols)
    if block <= min(t.block_row_max_cols, t.forward_tiles[-1].cols):
        return _block_rows(problem, block, align)
    for tile in t.forward_tiles:
        if block <= tile.cols:
            warps = max(1, tile.warps * block // tile.cols)
            return Plan("tile", tile.rows, block, warps, _cdiv(problem.rows, tile.rows) * problem.lanes)
    return _wide(problem, device, t.forward_slice, t.forward_slice_warps, t.forward_slice_programs_per_sm)


def _block_rows(problem: Problem, block: int, align: int) -> Plan:
    """Rows of few columns. Each thread holds whole vectors, and a row lies over the same threads in either tile."""
    t = _thresholds
    vector = min(16 // problem.x.itemsize, align)
    # The compiler spreads a row over as many threads as it has vectors, but no further than the program's warps reach.
    threads_per_row = min(_cdiv(block, vector), 32 * t.block_row_warps)
    warps = max(1, threads_per_row // 32)
    rows = max(1, 32 * warps * vector // block)
    if problem.rows >= t.block_row_min_rows:
        warps, rows = t.block_row_warps, max(rows, t.block_row_elements // block)
    return Plan("tile", rows, block, warps, _cdiv(problem.rows, rows) * problem.lanes)


def backward_plan(problem: Problem, device: Device) -> Plan:
    t = _thresholds
    block = power_of_two(problem.cols)
    for tile in t.backward_tiles:
        if block <= tile.cols:
            rows = max(tile.rows, tile.rows * tile.cols // block) if tile.cols <= t.block_row_max_cols else tile.rows
            tiles = _cdiv(problem.rows, rows)
            per_lane = max(1, min(tiles, device.sms * tile.programs_per_sm // problem.lanes))
            return Plan("tile", rows, block, tile.warps, per_lane * problem.lanes, tile.stages)
    return _wide(problem, device, t.backward_slice, t.backward_slice_warps, t.backward_slice_programs_per_sm)


def _wide(problem: Problem, device: Device, block: int, warps: int, programs_per_sm: int) -> Plan:
    """Split where all programs of a row can run at the same time, else stream."""
    t = _thresholds
    slices = _cdiv(problem.cols, block)
    resident = device.sms * programs_per_sm
    rows = problem.rows * problem.lanes
    if device.cooperative and slices <= resident and not problem.per_lane:
        registers = device.registers // (programs_per_sm * warps * 32)
        groups = min(rows, resident // slices)
        return Plan("split", 1, block, warps, groups * slices, slices=slices, registers=min(registers, 255))
    return Plan("stream", 1, min(power_of_two(problem.cols), t.stream_block), t.stream_warps, rows)


def affine_plan(problem: Problem, device: Device) -> Plan:
    """Column sums for dW and dB in the stream schedule."""
    t = _thresholds
    block = min(power_of_two(problem.cols), t.affine_block)
    blocks = _cdiv(problem.cols, block)
    tiles = _cdiv(problem.rows, t.affine_rows)
    per_column = max(1, min(tiles, device.sms * t.affine_programs_per_sm // (blocks * problem.lanes)))
    return Plan("stream", t.affine_rows, block, t.affine_warps, per_column * blocks * problem.lanes)


def partials_plan(partials: int, lanes: int, cols: int) -> Plan:
    """The sum of `partials` rows of `cols` columns, for each lane."""
    t = _thresholds
    block = min(power_of_two(cols), t.partials_block)
    rows = min(power_of_two(partials), t.partials_rows)
    return Plan("tile", rows, block, t.partials_warps, _cdiv(cols, block) * lanes)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
