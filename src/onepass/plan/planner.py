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
    """One launch: `programs` programs of `warps` warps, each with `blocks` blocks of `rows` × `block` elements."""

    schedule: str  # "tile", "split" or "stream"; "few" for a backward of few rows
    rows: int
    block: int
    warps: int
    programs: int
    blocks: int = 1  # that a program holds at a time: a tile's row, side by side
    stages: int = 1  # loads in flight, in loop iterations
    slices: int = 1  # programs that share a row
    registers: int | None = None  # a thread's limit, where the programs must fit on the GPU at once

    @property
    def elements(self) -> int:
        """That a thread holds of each input."""
        return self.rows * self.block * self.blocks // (32 * self.warps)

    def __str__(self) -> str:
        beside = f" x {self.blocks}" if self.blocks > 1 else ""
        share = f", {self.slices} programs a row" if self.slices > 1 else ""
        staged = f", {self.stages} stages" if self.stages > 1 else ""
        return (
            f"{self.schedule}: {self.rows} x {self.block:,}{beside} tile, {self.warps} warps, "
            f"{self.programs:,} programs{share}{staged}"
        )


@dataclass(frozen=True)
class Tile:
    """A tile for rows of up to `cols` columns of 16 bits, or a slice of `cols` columns of a wider row."""

    cols: int
    rows: int
    warps: int
    programs_per_sm: int | None = None  # that walk the tiles; None: a program for each tile
    stages: int = 1
    block: int | None = None  # columns of a block; None: the row is one block


@dataclass(frozen=True)
class Thresholds:
    """The numbers come from sweeps on an H200, bf16, cold L2; docs/lab-notes.md has the times."""

    #: From this many rows on, a tile of several rows is the full one of the tables below: one short row is too little
    #: work for a program (Liger's PR #1238 found 40 to 80 % there). With fewer rows it is the smallest tile that gives
    #: each thread one vector, which spreads a small problem over more SMs.
    block_row_min_rows: int = 4096

    #: RMSNorm forward: a program for each tile, which the GPU hands out better than they walk. Blocks are as narrow as
    #: keeps every thread loading 16 bytes, so that little of the last one is beyond the row.
    forward_tiles: tuple[Tile, ...] = (
        Tile(64, 16, 4),
        Tile(128, 16, 4),
        Tile(256, 16, 4, block=128),
        Tile(512, 4, 4, block=128),
        Tile(1024, 8, 4, block=256),
        Tile(1536, 2, 2, block=256),
        Tile(3072, 1, 4, block=1024),
        Tile(4096, 1, 8, block=2048),
        Tile(5120, 1, 4, block=1024),
        Tile(12288, 1, 8, block=2048),
        Tile(16384, 1, 16, block=4096),
    )
    #: LayerNorm forward: its second sum waits for its first, so fewer warps, which then wait for fewer others.
    centred_forward_tiles: tuple[Tile, ...] = (
        Tile(64, 16, 1),
        Tile(128, 16, 2),
        Tile(256, 8, 2, block=128),
        Tile(512, 4, 2, block=128),
        Tile(1024, 1, 1, block=256),
        Tile(2048, 1, 1, block=256),
        Tile(8192, 1, 4, block=1024),
    )
    #: Rows of 16-bit elements that begin at odd addresses are loaded element by element, so a block is as wide as its
    #: threads, and there are as many warps as leave each thread about this many: 21.8 us against 25.2 at 4,093 x 4,099,
    #: LayerNorm 24.7 against 33.9. Shorter rows than these stay with several to a tile.
    single_elements: int = 33
    single_min_cols: int = 513

    #: Elements of an input, forward and backward, from which on a thread keeps them packed: below, registers are not
    #: what limits a program, and widening them again costs (LayerNorm's backward of 4,096 columns, 32 elements: 205 us
    #: against 219). With 64 it pays (RMSNorm's of 16,384, one block: 798 against 1,200); between them was not compared.
    packed_elements: tuple[int, int] = (32, 40)

    #: Wider rows are walked by one program of so many warps, as long as the rows in flight, one a program, fit the L2
    #: with what is written: 252 us against 291 shared at 8,192 x 32,768, 520 against 540 at 8,192 x 65,536.
    streams: tuple[Tile, ...] = (Tile(16384, 1, 16, block=4096), Tile(65536, 1, 32, block=8192))
    #: And from there on programs share a row, a slice each. Wider slices mean fewer programs to wait for: 552 us
    #: against 577 with slices of 2,048 at 2,048 x 262,144. LayerNorm's hold more and do not gain.
    forward_slice: Tile = Tile(8192, 1, 8, 2, 3)
    centred_forward_slice: Tile = Tile(2048, 1, 2, 6, 3)

    #: Backward: the tile's rows times columns is also the size of dW's accumulator in registers. One warp where it can
    #: hold the row: it waits for no other.
    backward_tiles: tuple[Tile, ...] = (
        Tile(64, 32, 8, 2, 4),
        Tile(128, 16, 8, 2, 4),
        Tile(256, 4, 1, 8, 3, block=128),
        Tile(384, 2, 1, 8, 3, block=128),
        Tile(512, 4, 2, 4, 4),
        Tile(768, 1, 1, 8, 3, block=256),
        Tile(1024, 2, 2, 4, 3),
        Tile(2048, 1, 2, 4, 3, block=512),
        Tile(3072, 2, 4, 2, 3, block=1024),
        Tile(4096, 2, 8, 1, 3),
        Tile(5120, 1, 4, 2, 3, block=1024),
        Tile(6144, 1, 8, 1, 3, block=2048),
        Tile(8192, 1, 16, 1, 3),
        Tile(16384, 1, 8, 1, 3, block=2048),
    )
    #: LayerNorm's accumulates dB too. With 16 warps it spills at 8,192 columns: 262 us against 203 with 8, at 16,384
    #: rows. One stage more hides its second sum: 198 us against 205 at 4,096 columns, 300 against 334 at 6,144.
    centred_backward_tiles: tuple[Tile, ...] = (
        *backward_tiles[:4],
        Tile(512, 2, 1, 8, 4),
        *backward_tiles[5:9],
        Tile(4096, 2, 8, 1, 4),
        Tile(5120, 1, 4, 2, 3, block=1024),
        Tile(6144, 1, 8, 1, 4, block=2048),
        Tile(16384, 1, 8, 1, 3, block=2048),
    )
    #: RMSNorm's, of rows at odd addresses, as for the forward above: 42 us against 52 at 4,093 x 4,099. LayerNorm takes
    #: the first alone: its sums leave no room for as many warps.
    single_backward_tiles: tuple[Tile, ...] = (Tile(1024, 1, 1, 8, 3, block=256), Tile(5120, 1, 8, 2, 3, block=512))
    #: What a program may hold of a row: x, dy, weight, and dW and dB in fp32, of the 256 KiB of an SM's registers.
    backward_row_bytes: int = 180 << 10
    backward_slice: Tile = Tile(2048, 1, 2, 4, 3)

    #: Up to so many rows, programs for dx and programs for dW read the same rows in one launch, and there are no
    #: partials to sum: 3.3 us against 5.9 at 128 x 4,096, 2.1 against 5.5 at 1 x 8,192. From 1,024 rows on the
    #: second reading costs more than the second launch.
    few_rows: int = 256
    few_row: Tile = Tile(16384, 1, 8, block=2048)
    few_columns: Tile = Tile(32, 16, 8)

    #: Stream, where programs cannot share a row: columns that a program takes at a time.
    stream_block: int = 4096
    stream_warps: int = 8
    #: Column sums for dW in the stream schedule.
    stream_affine: Tile = Tile(256, 8, 4, 4, 1)

    #: The sum of partials: tiles of so many elements, all of which are loaded at once, and as narrow as gives about
    #: this many programs, because few columns must still fill the GPU (8 columns a tile: 20.0 us against 23.4 for the
    #: whole backward of 32,768 x 256).
    partials_elements: int = 8192
    partials_programs: int = 128
    partials_blocks: tuple[int, int] = (8, 32)
    partials_warps: int = 8


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
    # A sum with the residual is held in fp32.
    held = problem.x.itemsize if problem.residual is None else 4
    tile = _fitting(t.centred_forward_tiles if centred else t.forward_tiles, problem.cols * held // 2)
    if tile is not None:
        if _is_single(problem.cols, problem.x, align):
            tile = _single(problem.cols)
        return _tiles(problem, _batch_invariant(problem, tile, align), align)
    stream = _fitting(t.streams, problem.cols)
    if stream is not None:
        return Plan("stream", 1, _block(stream, problem.cols, align), stream.warps, problem.rows * problem.lanes)
    column = problem.x.itemsize + _itemsize(problem.residual)
    return _wide(problem, device, t.centred_forward_slice if centred else t.forward_slice, column)


def row_counts_apart() -> tuple[int, ...]:
    """Row counts of which each may get kernels of its own, and no other row count further ones."""
    return 1, _thresholds.few_rows + 1, _thresholds.block_row_min_rows


def backward_plan(problem: Problem, device: Device, centred: bool, align: int, may_read_twice: bool) -> Plan:
    """`may_read_twice`: some programs may still read what others are done with, so nothing may be written over it."""
    t = _thresholds
    cols = problem.cols * max(problem.y.itemsize, problem.h.itemsize) // 2
    few = problem.rows * problem.lanes <= t.few_rows and cols <= t.few_row.cols and not problem.per_lane
    if few and may_read_twice:
        return _tiles(problem, t.few_row, align, "few")
    tile = _fitting(t.centred_backward_tiles if centred else t.backward_tiles, cols)
    if _is_single(problem.cols, problem.h, align):
        tile = _fitting(t.single_backward_tiles[: 1 if centred else None], cols) or tile
    column = problem.y.itemsize + problem.h.itemsize
    held = problem.cols * (column + _itemsize(problem.weight) + (8 if centred else 4))
    if tile is not None and held <= t.backward_row_bytes:
        return _walk(problem, device, tile, align, column + _itemsize(problem.sum))
    return _wide(problem, device, t.backward_slice, column + _itemsize(problem.sum))


def is_packed(plan: Plan, align: int, backward: bool) -> bool:
    """Whether threads keep 16-bit blocks as they are, in pairs, and widen them at each use."""
    return align > 1 and plan.elements >= _thresholds.packed_elements[backward]


def _fitting(tiles: tuple[Tile, ...], cols: int) -> Tile | None:
    """The first tile for rows as wide as `cols` columns of 16 bits."""
    return next((tile for tile in tiles if cols <= tile.cols), None)


def _is_single(cols: int, dtype: torch.dtype, align: int) -> bool:
    """Whether rows must be loaded element by element, and are long enough for tiles of their own."""
    return align * dtype.itemsize == 2 and cols >= _thresholds.single_min_cols


def _single(cols: int) -> Tile:
    warps = min(16, max(2, power_of_two(_cdiv(cols, 32 * _thresholds.single_elements))))
    return Tile(cols, 1, warps, block=32 * warps)


def _batch_invariant(problem: Problem, tile: Tile, align: int) -> Tile:
    """The tile for many or for few short rows. A row lies over the same threads in both, so its bits are the same."""
    vector = 16 // problem.x.itemsize
    # Rows that do not begin at 16 bytes keep the full tile: how the compiler lays these out depends on their number.
    if tile.rows == 1 or problem.rows >= _thresholds.block_row_min_rows or align < vector:
        return tile
    block = _block(tile, problem.cols, align)
    # What a thread holds side by side: a vector, or what the full tile leaves it.
    vector = min(vector, max(1, tile.rows * block // (32 * tile.warps)))
    # The compiler spreads a row over as many threads as it has vectors, but no further than the program's warps reach.
    threads_per_row = min(max(1, block // vector), 32 * tile.warps)
    warps = max(1, threads_per_row // 32)
    return replace(tile, rows=min(tile.rows, max(1, 32 * warps * vector // block)), warps=warps)


def _block(tile: Tile, cols: int, align: int) -> int:
    """The tile's block, or a narrower one where less of the last block would be beyond a single row."""
    block = min(power_of_two(cols), tile.block or tile.cols)
    # Down to four elements a thread: 61 us against 68 at 8,192 x 4,100, LayerNorm's backward. Narrower loads cost more
    # than the padding, and rows that are loaded in narrower pieces anyway gain nothing.
    narrower = itertools.takewhile(lambda width: width >= 128 * tile.warps, (block >> n for n in range(1, 16)))
    widths = [block, *narrower] if tile.rows == 1 and align >= 4 else [block]
    return min(widths, key=lambda width: max(cols // 8, -cols % width))


def _tiles(problem: Problem, tile: Tile, align: int, schedule: str = "tile") -> Plan:
    """A program for each tile of a lane."""
    block = _block(tile, problem.cols, align)
    programs = _cdiv(problem.rows, tile.rows) * problem.lanes
    return Plan(schedule, tile.rows, block, tile.warps, programs, _cdiv(problem.cols, block))


def _walk(problem: Problem, device: Device, tile: Tile, align: int, column: int) -> Plan:
    """The tile schedule, with programs that walk the tiles of a lane. `column` is the bytes read for one element."""
    plan = _tiles(problem, tile, align)
    per_sm = tile.programs_per_sm or 1
    programs = max(1, min(plan.programs // problem.lanes, device.sms * per_sm // problem.lanes))
    stages = _stages_that_fit(tile, per_sm, plan.rows * plan.blocks * plan.block * column, device)
    return replace(plan, programs=programs * problem.lanes, stages=stages)


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
        return Plan("split", 1, tile.cols, tile.warps, groups * slices, 1, stages, slices, min(255, registers))
    return Plan("stream", 1, min(power_of_two(problem.cols), t.stream_block), t.stream_warps, rows)


def _stages_that_fit(tile: Tile, programs_per_sm: int, tile_bytes: int, device: Device) -> int:
    """Each stage but the last keeps a tile of every input in shared memory, beside what reductions need of it."""
    scratch = 1024 + 4 * tile.rows * (tile.block or tile.cols)
    room = device.shared // programs_per_sm - scratch
    return max(1, min(tile.stages, 1 + room // tile_bytes))


def few_columns_plan(problem: Problem) -> Plan:
    """The programs for dW and dB beside those for the rows, in the backward of few rows."""
    tile = _thresholds.few_columns
    return Plan("few", tile.rows, tile.cols, tile.warps, _cdiv(problem.cols, tile.cols))


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
    narrowest, widest = t.partials_blocks
    block = min(power_of_two(cols), max(narrowest, min(widest, power_of_two(_cdiv(cols, t.partials_programs)))))
    return Plan("tile", t.partials_elements // block, block, t.partials_warps, _cdiv(cols, block) * lanes)


def _itemsize(dtype: torch.dtype | None) -> int:
    return 0 if dtype is None else dtype.itemsize


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
