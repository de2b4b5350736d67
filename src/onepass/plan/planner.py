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

import torch

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
    walks: bool = True  # programs stay for more than one tile
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
    """A tile for rows of up to `cols` columns, or a slice of `cols` columns of a wider row."""

    cols: int
    rows: int
    warps: int
    programs_per_sm: int | None = None  # that walk the tiles; None: a program for each tile
    stages: int = 1


@dataclass(frozen=True)
class Thresholds:
    """The numbers come from sweeps on an H200, bf16, cold L2; docs/lab-notes.md has the times."""

    #: Up to here (columns, padded to a power of two) a program takes a block of rows: one row is too little work for
    #: it. Liger's PR #1238 found 40 to 80 % there.
    block_row_max_cols: int = 512
    #: From this many rows on, that block is the full one of the tables below. With fewer, it is the smallest that gives
    #: each thread one vector, which spreads a small problem over more SMs.
    block_row_min_rows: int = 4096

    #: RMSNorm forward: a program for each tile, which the GPU hands out better than they walk (133 us against 141 at
    #: 32,768 x 4,096). One warp where it can hold the row: it needs no barrier (215 us against 222 with four, 384
    #: columns).
    forward_tiles: tuple[Tile, ...] = (
        Tile(64, 16, 1),
        Tile(128, 16, 1),
        Tile(256, 4, 1),
        Tile(512, 4, 1),
        Tile(1024, 1, 1),
        Tile(2048, 1, 4),
        Tile(4096, 1, 8),
        Tile(8192, 1, 4),
        Tile(16384, 1, 8),
        Tile(32768, 1, 16),
    )
    #: LayerNorm forward: its second sum waits for its first, so fewer warps. With 8,192 columns and more, programs
    #: walk, with the next rows' loads in flight: 142 us against 216 at 8,192 x 16,384.
    centred_forward_tiles: tuple[Tile, ...] = (
        Tile(64, 16, 1),
        Tile(128, 16, 1),
        Tile(256, 4, 1),
        Tile(512, 4, 1),
        Tile(1024, 1, 1),
        Tile(2048, 1, 1),
        Tile(4096, 1, 2),
        Tile(8192, 1, 8, 2, 3),
        Tile(16384, 1, 16, 1, 3),
    )
    #: Wider rows do not fit one program's registers: programs share a row, a slice each.
    forward_slice: Tile = Tile(2048, 1, 2, 8, 3)
    centred_forward_slice: Tile = Tile(2048, 1, 2, 6, 3)

    #: Backward: the tile's rows times columns is also the size of dW's accumulator in registers.
    backward_tiles: tuple[Tile, ...] = (
        Tile(64, 32, 8, 2, 4),
        Tile(128, 16, 8, 2, 4),
        Tile(256, 8, 2, 4, 3),
        Tile(512, 4, 2, 4, 3),
        Tile(1024, 4, 4, 2, 3),
        Tile(2048, 1, 4, 3, 3),
        Tile(4096, 2, 8, 1, 3),
        Tile(8192, 1, 16, 1, 3),
    )
    backward_slice: Tile = Tile(2048, 1, 2, 4, 3)

    #: Stream: columns that a program takes at a time.
    stream_block: int = 4096
    stream_warps: int = 8
    #: Column sums for dW in the stream schedule.
    stream_affine: Tile = Tile(256, 8, 4, 4, 1)

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


def forward_plan(problem: Problem, device: Device, centred: bool, align: int) -> Plan:
    t = _thresholds
    block = power_of_two(problem.cols)
    column = problem.x.itemsize + _itemsize(problem.residual)
    for tile in t.centred_forward_tiles if centred else t.forward_tiles:
        if block <= tile.cols:
            return _walk(problem, device, _batch_invariant(problem, tile, block, align), block, column)
    return _wide(problem, device, t.centred_forward_slice if centred else t.forward_slice, column)


def row_counts_apart() -> tuple[int, ...]:
    """Row counts of which each may get a forward kernel of its own, and no other row count a further one."""
    return 1, _thresholds.block_row_min_rows


def backward_plan(problem: Problem, device: Device) -> Plan:
    t = _thresholds
    block = power_of_two(problem.cols)
    column = problem.y.itemsize + problem.h.itemsize + _itemsize(problem.sum)
    for tile in t.backward_tiles:
        if block <= tile.cols:
            return _walk(problem, device, tile, block, column)
    return _wide(problem, device, t.backward_slice, column)


def _batch_invariant(problem: Problem, tile: Tile, block: int, align: int) -> Tile:
    """The tile for many or for few short rows. A row lies over the same threads in both, so its bits are the same."""
    if block > _thresholds.block_row_max_cols:
        return tile
    vector = min(16 // problem.x.itemsize, align)
    # The compiler spreads a row over as many threads as it has vectors, but no further than the program's warps reach.
    threads_per_row = min(max(1, block // vector), 32 * tile.warps)
    warps = max(1, threads_per_row // 32)
    rows = max(1, 32 * warps * vector // block)
    if problem.rows < _thresholds.block_row_min_rows:
        return replace(tile, rows=rows, warps=warps)
    return replace(tile, rows=max(rows * tile.warps // warps, tile.rows * tile.cols // block))


def _walk(problem: Problem, device: Device, tile: Tile, block: int, column: int) -> Plan:
    """The tile schedule: programs walk the tiles of a lane. `column` is the bytes read for one element."""
    programs = tiles = _cdiv(problem.rows, tile.rows)
    stages = 1
    if tile.programs_per_sm is not None:
        programs = max(1, min(tiles, device.sms * tile.programs_per_sm // problem.lanes))
        stages = _stages_that_fit(tile, tile.programs_per_sm, tile.rows * block * column, device)
    walks = tile.programs_per_sm is not None
    return Plan("tile", tile.rows, block, tile.warps, programs * problem.lanes, walks, stages)


def _wide(problem: Problem, device: Device, tile: Tile, column: int) -> Plan:
    """Split where all programs of a row can run at the same time, else stream."""
    t = _thresholds
    per_sm = tile.programs_per_sm or 0
    slices = _cdiv(problem.cols, tile.cols)
    resident = device.sms * per_sm
    rows = problem.rows * problem.lanes
    if device.cooperative and slices <= resident and not problem.per_lane:
        groups = min(rows, resident // slices)
        registers = device.registers // (per_sm * tile.warps * 32) // 8 * 8  # they are handed out in eights
        stages = _stages_that_fit(tile, per_sm, tile.cols * column, device)
        return Plan("split", 1, tile.cols, tile.warps, groups * slices, True, stages, slices, min(255, registers))
    return Plan("stream", 1, min(power_of_two(problem.cols), t.stream_block), t.stream_warps, rows)


def _stages_that_fit(tile: Tile, programs_per_sm: int, tile_bytes: int, device: Device) -> int:
    """Each stage but the last keeps a tile of every input in shared memory, beside what reductions need of it."""
    scratch = 1024 + 4 * tile.rows * tile.cols
    room = device.shared // programs_per_sm - scratch
    return max(1, min(tile.stages, 1 + room // tile_bytes))


def affine_plan(problem: Problem, device: Device) -> Plan:
    """Column sums for dW and dB in the stream schedule."""
    tile = _thresholds.stream_affine
    block = min(power_of_two(problem.cols), tile.cols)
    blocks = _cdiv(problem.cols, block)
    tiles = _cdiv(problem.rows, tile.rows)
    sharing = max(1, min(tiles, device.sms * (tile.programs_per_sm or 1) // (blocks * problem.lanes)))
    return Plan("stream", tile.rows, block, tile.warps, sharing * blocks * problem.lanes)


def partials_plan(lanes: int, cols: int) -> Plan:
    """The sum of partial rows of `cols` columns, for each lane; however many there are, the kernel is the same."""
    t = _thresholds
    block = min(power_of_two(cols), t.partials_block)
    return Plan("tile", t.partials_rows, block, t.partials_warps, _cdiv(cols, block) * lanes)


def _itemsize(dtype: torch.dtype | None) -> int:
    return 0 if dtype is None else dtype.itemsize


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
