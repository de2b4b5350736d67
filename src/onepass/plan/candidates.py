"""What a search tries: the schedules and tiles that a problem could take, within what a thread and an SM can hold.

Rules here only keep out what cannot win or cannot run; which one wins is measured (tuning.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from onepass.plan.backward_plans import backward_choice, split_turns_plan
from onepass.plan.device import Device
from onepass.plan.forward_choices import forward_choice
from onepass.plan.in_force import thresholds
from onepass.plan.plans import Choice, power_of_two
from onepass.plan.tiles import Tile
from onepass.plan.turns import reach, takes_turns
from onepass.spec import Problem

WARPS = (1, 2, 4, 8, 16)
#: Blocks of a row, which the compiler unrolls.
MOST_BLOCKS = 12
#: Elements of each input that a thread holds: below, a program is mostly overhead, above, it spills.
HELD = (8, 64)
#: What a row's blocks may reach beyond it, as a share of the row.
PADDING = 0.35
#: From which on LayerNorm's weight and bias may also be asked for late.
LATE_FROM = 24
#: Columns and warps of a program that shares a row.
SHARED = ((4096, 2), (4096, 4), (8192, 4), (8192, 8), (16384, 8))
#: And where its slices wait in shared memory, of which an SM has as much as so many columns take.
WAITING, WAITING_COLUMNS = ((2048, 1), (2048, 2), (4096, 2), (4096, 4), (6144, 4)), 24576
#: Columns up to which a program may take several rows.
SHORT = 1024
#: And up to which, in a backward, more rows and more programs: their waiting is what is to be hidden.
SHORTEST = 128


def forward_candidates(problem: Problem, device: Device, centred: bool, align: int) -> list[Choice]:
    """The model's own choice first."""
    found = [forward_choice(problem, device, centred, align)]
    held_bytes = problem.x.itemsize if problem.residual is None else 4
    if problem.cols * held_bytes <= 32768 * 2:
        for rows in (1, 2, 4, 8, 16) if problem.cols <= SHORT else (1,):
            tiles = list(_tiles(problem, align, rows))
            found += [Choice("tile", tile) for tile in tiles]
            if centred and rows == 1:
                much = [tile for tile in tiles if problem.cols >= LATE_FROM * 32 * tile.warps]
                found += [Choice("tile", replace(tile, late=2)) for tile in much]
    if problem.cols >= 8192:
        for block, warps in product((4096, 8192, 16384), (16, 32)):
            if 8 <= block // (32 * warps) <= 16:
                found.append(Choice("stream", Tile(problem.cols, 1, warps, block=block)))
    if problem.cols >= 32768 and device.cooperative:
        slices = (Tile(cols, 1, warps, 4, block=512 * warps, late=2 if centred else 4) for cols, warps in SHARED)
        found += [Choice("split", replace(tile, ahead=ahead)) for tile, ahead in product(slices, (0, 1))]
    if problem.cols >= 32768 and device.clusters and not problem.quantized and align * problem.x.itemsize >= 16:
        late = 2 if centred else None
        shared = (Tile(problem.cols, 1, warps, block=256 * warps, late=late) for warps in (4, 8, 16))
        found += [Choice("cluster", tile) for tile in shared if problem.cols <= 64 * 8 * 32 * tile.warps]
    if found[0].schedule == "odd":
        found += [Choice("odd", tile) for tile in _odd_tiles(problem.cols)]
    if found[0].schedule == "odd_split":
        slices = (Tile(cols, 1, warps, WAITING_COLUMNS // cols, block=256 * warps) for cols, warps in WAITING)
        found += [Choice("odd_split", tile) for tile in slices]
    return _distinct(found, problem.cols)


def _odd_tiles(cols: int) -> Iterator[Tile]:
    for warps, per_sm in product(WARPS, (1, 2, 3, 4, 6, 8)):
        if 16 <= -(-cols // (32 * warps)) <= HELD[1] and 8 <= warps * per_sm <= 16:
            yield Tile(cols, 1, warps, per_sm, 2, block=32 * warps)


def backward_candidates(problem: Problem, device: Device, centred: bool, align: int) -> list[Choice]:
    """The model's own choice first."""
    model = backward_choice(problem, device, centred, align)
    found = [model]
    column = problem.y.itemsize + problem.h.itemsize
    schedule, planned, wide = "tile", problem, align
    if takes_turns(problem, align):
        schedule, planned, wide = "turns", replace(problem, cols=reach(problem)), 16
    shortest = problem.cols <= SHORTEST
    row_counts = (1, 2, 4) if problem.cols <= SHORT else (1, 2) if problem.cols <= 4096 else (1,)
    for rows in (1, 2, 4, 8, 16) if shortest else row_counts:
        for tile, per_sm, stages in product(_tiles(planned, wide, rows), (1, 2, 4, 8, 16), (2, 3, 4)):
            in_flight = per_sm * (stages - 1) * rows * problem.cols * column
            if 4 <= tile.warps * per_sm <= (32 if shortest else 16) and in_flight <= device.shared * 0.95:
                walking = Tile(tile.cols, rows, tile.warps, per_sm, stages, tile.block)
                found.append(Choice(schedule, walking))
    if problem.cols >= 8192 and device.cooperative and not problem.per_lane:
        slices = list(_slices(stages=(2, 3)))
        if schedule == "turns":
            taken = [choice.tile for choice in slices if split_turns_plan(problem, device, choice.tile, column)]
            found += [Choice("split_turns", tile) for tile in taken]
        found += slices
    if model.schedule in ("ring", "ring_turns"):
        found += [Choice(model.schedule, tile) for tile in thresholds().rings]
    return _distinct(found, problem.cols)


def _distinct(choices: list[Choice], cols: int) -> list[Choice]:
    """Without those that come to the same: the model's own tile may be meant for other widths too."""
    kept: dict[tuple[object, ...], Choice] = {}
    for choice in choices:
        tile = choice.tile
        block = min(power_of_two(cols), tile.block or tile.cols)
        slices = choice.schedule not in ("tile", "turns", "stream", "cluster", "odd", "flat", "threads")
        late = (tile.late, tile.ahead, tile.registers)
        shape = (tile.cols if slices else cols, tile.rows, tile.warps, tile.programs_per_sm, tile.stages, block, *late)
        kept.setdefault((choice.schedule, *shape), choice)
    return list(kept.values())


def _tiles(problem: Problem, align: int, rows: int) -> Iterator[Tile]:
    """Tiles in which each thread gets whole vectors, or half ones where a program has a single row.

    Whole ones, because then a row lies over the same threads in the tile for few rows as in this one.
    """
    cols = problem.cols
    vector = min(align, 16 // problem.x.itemsize)
    for warps in WARPS:
        block = power_of_two(cols)
        while rows * block >= 32 * warps * (vector if rows > 1 else max(1, vector // 2)):
            blocks = -(-cols // block)
            side_by_side = rows * block // (32 * warps)
            padded = block * blocks - cols
            fits = HELD[0] <= side_by_side * blocks <= HELD[1] and side_by_side <= 2 * max(8, vector)
            if fits and blocks <= MOST_BLOCKS and padded <= max(PADDING * cols, 32):
                yield Tile(cols * problem.x.itemsize // 2, rows, warps, block=block)
            block //= 2


def _slices(stages: tuple[int, ...]) -> Iterator[Choice]:
    for cols, warps, per_sm, depth in product((1024, 2048, 4096, 8192), (1, 2, 4, 8), (2, 4, 6, 8), stages):
        if 16 <= cols // (32 * warps) <= 64 and 8 <= warps * per_sm <= 16:
            yield Choice("split", Tile(cols, 1, warps, per_sm, depth))
