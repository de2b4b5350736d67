"""FP8 both ways in one launch: rows, and the transpose with scales of its own, down 128, 64 or 32 rows.

There are two kinds of programs. Some quantize rows, as they would without the transpose; the others make tiles of 128
rows of it. Where a scale is a row's or the tensor's, the transpose has the bytes of the rows: a tile reads these. Where
columns have groups of their own it computes y once more, from what it finds of x and of the rows' statistics.

Programs are numbered such that a tile comes some blocks of rows after its own. So it waits for programs that began
before it, hardly ever for long, and finds in the L2 what they read or wrote. Programs begin in the order of their
numbers, on which CUB's scans rely too; it is not a matter of how many run at the same time.
"""

import triton
import triton.language as tl

from onepass.kernels.mailbox import WAIT_FOR_COUNT, WAIT_WHILE_ONES
from onepass.kernels.parts import (
    INTERPRETED,
    KEPT,
    PASSING,
    deviation_of,
    inside,
    lane_and_row,
    load_affine,
    load_sum,
    scale_and_shift,
)
from onepass.kernels.quantize import above, amax_of, packed, scale_place, scaled, steps_from, widened, word_of
from onepass.kernels.stream import walk_row
from onepass.kernels.tile import tile_rows

#: Rows of a tile: the longest group down a column.
TILE = tl.constexpr(128)


@triton.jit
def existing(row, rows, ROWS_BY: tl.constexpr):
    """Behind the last row, that one again."""
    if ROWS_BY == TILE:
        return row
    else:
        return tl.minimum(row, rows - 1)


@triton.jit
def wait_for_statistics(p, block, rows, ROWS_BY: tl.constexpr):
    """Of a block's rows. Each thread waits for its own ones, and then for the others.

    A statistic is its own flag: until it is there its bits are all ones, which are those of no number, and of no NaN
    that arithmetic leaves.
    """
    if not INTERPRETED:  # where programs run one after the other, in their order
        p_own = p + existing(block * TILE + tl.arange(0, TILE), rows, ROWS_BY)
        tl.inline_asm_elementwise(WAIT_WHILE_ONES, "=r,l", [p_own], dtype=tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()


@triton.jit
def wait_for_count(p_count, count):
    if not INTERPRETED:  # where programs run one after the other, in their order
        p = p_count + tl.arange(0, 1)
        counts = tl.full((1,), 0, tl.int32) + count
        tl.inline_asm_elementwise(WAIT_FOR_COUNT, "=r,l,r", [p, counts], dtype=tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()


@triton.jit
def statistic(p, quarter, k: tl.constexpr, rows, ROWS_BY: tl.constexpr):
    """Past the L1, which may have what was there before."""
    if ROWS_BY == TILE:
        return tl.load(p + quarter + k, cache_modifier=".cg")
    else:
        return tl.load(p + existing(quarter + k, rows, ROWS_BY), cache_modifier=".cg")


@triton.jit
def columnwise_forward(
    p_x,
    p_residual,
    p_weight,
    p_bias,
    p_y,
    p_sum,
    p_mean,
    p_rstd,
    p_q,
    p_scale,
    p_given,
    p_amax,
    p_columns,
    p_column_scale,
    p_counts,
    x_row,
    x_lane,
    residual_row,
    residual_lane,
    y_row,
    y_lane,
    stat_row,
    stat_lane,
    scale_row,
    affine_lane,
    scale_group,
    rows,
    lanes,
    cols,
    eps,
    offset,
    floor,
    upper,
    largest,
    inverse,
    column_row,
    column_scale_row,
    column_scale_group,
    ahead,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    IDENTITY: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    AS_WALKED: tl.constexpr,
    AFFINE_FIRST: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr,
    HELD: tl.constexpr,
    COLS: tl.constexpr,
    TILES: tl.constexpr,
    RAGGED: tl.constexpr,
    ROWS_BY: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """HELD: a program holds its rows; else it walks one. ROWS divides 128. TILES beside each other have all columns;
    RAGGED: these do not fill the last one.

    TRANSPOSED: the transpose lies as its rows; else as the untransposed tensor would.
    ROWS_BY: the number of rows is a multiple of this, 1, 16 or 128. Of 16, rows of the transpose are stored 16 bytes at
    a time, and `column_row` is their length by 16; of 128, no tile reaches behind the last row.
    """
    PARTS: tl.constexpr = TILE // ROWS  # programs that have a block of rows
    GROUPED: tl.constexpr = KIND == "group"
    HINT: tl.constexpr = PASSING if GROUPED else KEPT  # bytes that are read again are kept
    end = cols * ALIGN
    total = rows * lanes
    parts = tl.cdiv(total, ROWS)
    turn = tl.program_id(0) - ahead * PARTS
    block = turn // (PARTS + TILES)
    within = turn % (PARTS + TILES)
    part = tl.where(turn < 0, tl.program_id(0), (block + ahead) * PARTS + within)
    tile = tl.where(turn < 0, -1, within - PARTS)
    if tile < 0 and part < parts:
        if HELD:
            tile_rows(
                part, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax,
                x_row, x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row,
                affine_lane, scale_group, rows, lanes, cols, eps, offset, floor, upper, largest, inverse, CENTRED,
                SHIFTED, LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM, ROWS, BLOCK, BLOCKS, EVEN, ALIGN, PACKED,
                AS_WALKED, None, None, AFFINE_FIRST, 1, 1, 1, 1, False, False, KIND, GROUP, ROUND, BOUNDED, FLOORED,
                ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, HINT,
            )  # fmt: skip
        else:
            walk_row(
                part, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax,
                x_row, x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row,
                affine_lane, scale_group, lanes, cols, eps, offset, floor, upper, largest, inverse, CENTRED, SHIFTED,
                LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN, KIND, GROUP, ROUND, BOUNDED,
                FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, HINT,
            )  # fmt: skip
        if not GROUPED:
            tl.debug_barrier()
            tl.atomic_add(p_counts + part // PARTS, 1, sem="release", scope="gpu")
    if tile >= 0:
        if GROUPED:
            quantize_columns(
                p_x, p_residual, p_weight, p_bias, p_mean, p_rstd, p_columns, p_column_scale, block, tile * COLS,
                x_row, x_lane, residual_row, residual_lane, affine_lane, column_row, column_scale_row,
                column_scale_group, total, lanes, end, offset, floor, upper, largest, inverse,
                CENTRED, SHIFTED, LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM, COLS, RAGGED, ALIGN, ROWS_BY, TRANSPOSED,
                GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
            )  # fmt: skip
        else:
            wait_for_count(p_counts + block, tl.minimum(parts - block * PARTS, PARTS))
            transpose_tile(p_q, p_columns, block, tile * COLS, total, end, column_row, COLS, RAGGED, ROWS_BY)


@triton.jit
def quantize_columns(
    p_x, p_residual, p_weight, p_bias, p_mean, p_rstd, p_columns, p_column_scale, block, first,
    x_row, x_lane, residual_row, residual_lane, affine_lane, column_row, column_scale_row, column_scale_group,
    rows, lanes, end, offset, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, COLS: tl.constexpr, RAGGED: tl.constexpr, ALIGN: tl.constexpr,
    ROWS_BY: tl.constexpr, TRANSPOSED: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr,
):  # fmt: skip
    """128 rows from `block` · 128 on and COLS columns from `first` on, by groups down the columns.

    Rows are held in four blocks, each with every fourth row, so that four rows of a column lie in one thread: their
    bytes are one word, and what moves from thread to thread is words. Past the end it is the last row again, which
    changes no maximum: so there is nothing to mask but what is written.
    """
    DIVIDES: tl.constexpr = ARITHMETIC == "scale"
    QUARTER: tl.constexpr = TILE // 4
    o_col = first + tl.arange(0, COLS)[None, :]
    m_col = o_col < end
    quarter = block * TILE + 4 * tl.arange(0, QUARTER)[:, None]
    # All loads first: they are what a program waits for, and need not wait for the statistics.
    held = ()
    for k in tl.static_range(4):
        if ROWS_BY == TILE and not LANED:  # one place for four rows, and pointers that are so far apart
            lane, row = lane_and_row(quarter, lanes, LANED)
            p_x_row = p_x + k * x_row * ALIGN
            p_residual_row = p_residual
            if p_residual is not None:
                p_residual_row = p_residual + k * residual_row * ALIGN
        else:
            lane, row = lane_and_row(existing(quarter + k, rows, ROWS_BY), lanes, LANED)
            p_x_row = p_x
            p_residual_row = p_residual
        h = load_sum(
            p_x_row, p_residual_row, row, lane, o_col, m_col, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, RAGGED, ALIGN, PASSING,
        )  # fmt: skip
        held = held + (h,)  # noqa: RUF005
    weight = 0.0
    bias = 0.0
    if not LANED:
        weight = load_affine(p_weight, o_col, m_col, RAGGED)
        bias = load_affine(p_bias, o_col, m_col, RAGGED)
    # Nothing else is waited for: what is read beside them was there before the launch.
    if CENTRED:
        wait_for_statistics(p_mean, block, rows, ROWS_BY)
    if not IDENTITY:
        wait_for_statistics(p_rstd, block, rows, ROWS_BY)
    top = tl.zeros((QUARTER, COLS), tl.float32)
    values = ()
    for k in tl.static_range(4):
        mean = 0.0
        if CENTRED:
            mean = statistic(p_mean, quarter, k, rows, ROWS_BY)
        rstd = 1.0
        if not IDENTITY:
            rstd = statistic(p_rstd, quarter, k, rows, ROWS_BY)
        if LANED:
            lane, row = lane_and_row(existing(quarter + k, rows, ROWS_BY), lanes, LANED)
            o_affine = lane * affine_lane * ALIGN + o_col
            weight = load_affine(p_weight, o_affine, m_col, RAGGED)
            bias = load_affine(p_bias, o_affine, m_col, RAGGED)
        y = scale_and_shift(
            deviation_of(widened(held[k]), mean, m_col, CENTRED, False, RAGGED), rstd, weight, bias, offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
        )  # fmt: skip
        top = above(top, tl.abs(y))
        values = values + (packed(y, ROUND),)  # noqa: RUF005
    down = factors_down(
        p_column_scale, top, block * TILE, o_col, column_scale_row, column_scale_group, rows, end,
        floor, upper, largest, inverse, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
        TILE // GROUP, COLS,
    )  # fmt: skip
    ready = ()
    for k in tl.static_range(4):
        ready = ready + (scaled(widened(values[k]), down, DIVIDES, False),)  # noqa: RUF005
    word = word_of(ready[0], ready[1], ready[2], ready[3], largest, p_columns.dtype.element_ty)
    store_words(word, p_columns, block, quarter, o_col, rows, end, column_row, COLS, RAGGED, ROWS_BY, TRANSPOSED)


@triton.jit
def factors_down(
    p_column_scale, top, first_row, o_col, column_scale_row, column_scale_group, rows, end, floor, upper, largest,
    inverse, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr,
    GROUPS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Scales of GROUPS groups of each column, stored, and what values meet. `top` is the amax of each four rows."""
    QUARTER: tl.constexpr = top.shape[0]
    amax = amax_of(tl.reshape(top, (GROUPS, QUARTER // GROUPS, COLS)), 1, ROUND)
    scale, down = steps_from(amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0)
    group = first_row // GROUP + tl.arange(0, GROUPS)[:, None]
    o_scale = scale_place(o_col.to(tl.int64), group, column_scale_row, column_scale_group, SWIZZLED)
    m = (o_col < end) & (group * GROUP < rows)
    tl.store(p_column_scale + o_scale, tl.reshape(scale, (GROUPS, COLS)), mask=m)
    return tl.reshape(tl.broadcast_to(down, (GROUPS, QUARTER // GROUPS, COLS)), (QUARTER, COLS))


@triton.jit
def store_words(
    word, p, block, quarter, o_col, rows, end, step, COLS: tl.constexpr, RAGGED: tl.constexpr, ROWS_BY: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Bytes of rows `quarter` to `quarter` + 3; `step` is from row to row of what is written."""
    if TRANSPOSED and ROWS_BY > 1:
        # Four words at once, of which the compiler must be told; sixteen rows are inside, or outside.
        index = block * (TILE // 4) + tl.arange(0, TILE // 4)[None, :]
        o_word = tl.trans(o_col.to(tl.int64)) * (step * 4) + index
        m_word = inside(index // 4 * 16 < rows, tl.trans(o_col), end, RAGGED)
        p_words = p.to(tl.pointer_type(tl.int32), bitcast=True)
        p_four = tl.max_contiguous(tl.multiple_of(p_words + o_word, (4, 16)), (1, 4))
        if ROWS_BY == TILE and not RAGGED:
            tl.store(p_four, tl.trans(word), eviction_policy=PASSING)
        else:
            tl.store(p_four, tl.trans(word), mask=m_word, eviction_policy=PASSING)
    else:
        for k in tl.static_range(4):
            flat = quarter + k
            byte = ((word >> (8 * k)) & 0xFF).to(tl.uint8).to(p.dtype.element_ty, bitcast=True)
            if TRANSPOSED:
                o_byte = o_col.to(tl.int64) * step + flat
            else:
                o_byte = flat.to(tl.int64) * step + o_col
            tl.store(p + o_byte, byte, mask=inside(flat < rows, o_col, end, RAGGED), eviction_policy=PASSING)


@triton.jit
def transpose_tile(
    p_rows, p_columns, block, first, rows, end, step, COLS: tl.constexpr, RAGGED: tl.constexpr, ROWS_BY: tl.constexpr
):
    """Bytes of 128 rows and COLS columns, transposed, in words as above. Rows lie one after the other."""
    o_col = first + tl.arange(0, COLS)[None, :]
    quarter = block * TILE + 4 * tl.arange(0, TILE // 4)[:, None]
    word = tl.zeros((TILE // 4, COLS), tl.int32)
    for k in tl.static_range(4):
        flat = existing(quarter + k, rows, ROWS_BY)
        p = p_rows + flat.to(tl.int64) * end + o_col
        if RAGGED:
            byte = tl.load(p, mask=o_col < end, other=0.0, eviction_policy=PASSING)
        else:
            byte = tl.load(p, eviction_policy=PASSING)
        word |= byte.to(tl.uint8, bitcast=True).to(tl.int32) << (8 * k)
    store_words(word, p_columns, block, quarter, o_col, rows, end, step, COLS, RAGGED, ROWS_BY, True)


@triton.jit
def transpose_bytes(
    p_x, p_columns, rows, cols, column_row, COLS: tl.constexpr, RAGGED: tl.constexpr, ROWS_BY: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The transpose of bytes, alone."""
    end = cols * ALIGN
    tiles = tl.cdiv(end, COLS)
    first = tl.program_id(0) % tiles * COLS
    transpose_tile(
        p_x, p_columns, tl.program_id(0) // tiles, first, rows, end, column_row, COLS, RAGGED, ROWS_BY,
    )  # fmt: skip
