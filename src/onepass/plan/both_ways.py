"""Plans for FP8 rows and their transpose in one launch."""

from __future__ import annotations

from dataclasses import replace

from onepass.plan.device import Device
from onepass.plan.forward_plans import forward_plan
from onepass.plan.in_force import thresholds
from onepass.plan.plans import Plan, cdiv, itemsize, power_of_two, stream_plan
from onepass.plan.tiles import Tile
from onepass.spec import Problem

#: Rows of a tile of the transpose, as kernels/columnwise.py has them; rows of a program, and columns of one for each
#: warp, as kernels/staged.py does.
TILE_ROWS = 128
STAGED_ROWS, STAGED_COLUMNS = 2, 32


def rows_beside_columns(problem: Problem, device: Device, centred: bool, align: int) -> Plan:
    """How rows are quantized in the launch that makes their transpose too: as many rows are without it.

    Programs that share a row cannot be among others that wait for them; and rows of several lanes are counted one by
    one.
    """
    many = replace(problem, rows=max(problem.rows, thresholds().block_row_min_rows))
    plan = forward_plan(many, device, centred, align)
    if plan.schedule == "split":
        plan = stream_plan(many)
    if problem.group > 1 and problem.residual is None:
        # Programs for columns are among them, and leave less to gain: 195 us against 194 for MX at 32,768 x 4,096. With
        # a residual it is 169 against 176 for 1 x 128 at 8,192 x 8,192, and a scale a row 75 against 77 without.
        plan = replace(plan, affine_first=False)
    return replace(plan, rows=1) if problem.lanes > 1 else plan


def columnwise_tile(problem: Problem, by_rows: Plan) -> Tile:
    """Of the transpose, for programs that have as many warps as those of the rows."""
    t = thresholds()
    each = t.transposed_columns
    if problem.group > 1:
        each = t.columnwise_columns if problem.residual is None else t.columnwise_columns_with_residual
    return Tile(min(power_of_two(problem.cols), each * by_rows.warps), TILE_ROWS, by_rows.warps)


def staged_plan(problem: Problem, device: Device, by_rows: Plan, align: int) -> Plan | None:
    """As columnwise_plan, for x in shared memory (kernels/staged.py): whole tiles of many rows that few warps hold.

    Other numbers of rows take the other kernel: a row has the same bits in both.
    """
    asked = problem.quantized == "block" and problem.group == TILE_ROWS
    plain = problem.x.itemsize == 2 and problem.residual is None and problem.lanes == 1 and align >= 8
    whole = problem.rows % TILE_ROWS == 0 and problem.cols % problem.group == 0
    held = by_rows.schedule == "tile" and by_rows.rows == 1 and by_rows.warps in (2, 4)
    if not (device.gluon and asked and plain and whole and held and problem.rows >= thresholds().staged_from):
        return None
    tiles = problem.cols // (STAGED_COLUMNS * by_rows.warps)
    ahead, programs = _programs(problem, STAGED_ROWS, tiles, problem.x.itemsize)
    return Plan("staged", STAGED_ROWS, by_rows.block, by_rows.warps, programs, by_rows.blocks, ahead, tiles)


def columnwise_plan(problem: Problem, by_rows: Plan, tile: Tile, centred: bool) -> Plan:
    """FP8 both ways. `rows`, `block` and `blocks` are of programs for rows, `slices` are tiles beside each other, and
    `stages` the blocks of rows that programs for rows are ahead of these."""
    t = thresholds()
    tiles = cdiv(problem.cols, tile.cols)
    # What a tile reads: x and the residual once more, or the bytes of the rows.
    column = problem.x.itemsize + itemsize(problem.residual) if problem.group > 1 else 1
    ahead, programs = _programs(problem, by_rows.rows, tiles, column)
    limit = None
    if problem.x.itemsize == 2 and problem.residual is None and not centred and by_rows.schedule == "tile":
        rows = by_rows.rows * by_rows.block * by_rows.blocks
        columns = tile.rows * tile.cols if problem.group > 1 else 0
        held = max(rows, columns) // (32 * tile.warps) // 2
        limit = held + t.registers_both_ways if held <= t.held_both_ways else None
    return Plan("columnwise", by_rows.rows, by_rows.block, tile.warps, programs, by_rows.blocks, ahead, tiles, limit)


def _programs(problem: Problem, rows: int, tiles: int, column: int) -> tuple[int, int]:
    """Blocks of rows that programs for `rows` rows each are ahead of those for tiles, which read `column` bytes of an
    element; and how many programs there are."""
    blocks = cdiv(problem.rows * problem.lanes, TILE_ROWS)
    ahead = max(1, min(blocks, thresholds().columnwise_ahead // (TILE_ROWS * problem.cols * column)))
    return ahead, (ahead + blocks) * (TILE_ROWS // rows) + blocks * tiles
