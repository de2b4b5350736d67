"""Backward of few rows: some programs make dx, a row each, and others dW and dB, some columns each, in one launch.

The sums down the columns need nothing but each row's mean and rstd, which the forward kept, so neither kind of program
waits for the other, and there are no partial sums to add up afterwards. Both kinds read h and dy: the second time they
come from the L2, as long as the rows are few. A wide row has several programs, a cluster (cluster.py).
"""

import triton
import triton.language as tl

from onepass.kernels.cluster import arrive, columns_of
from onepass.kernels.parts import (
    deviation_of,
    gradient_means,
    input_gradient,
    lane_and_row,
    load,
    load_arrived,
    row_start,
    store,
    store_gradient,
    weighted,
    wide,
    with_affine,
    with_rows,
)


@triton.jit
def gradient_of_row(
    flat, p_dy, p_dsum, p_h, p_weight, p_mean, p_rstd, p_dx, p_dresidual,
    dy_row, dy_lane, dsum_row, dsum_lane, h_row, h_lane, dx_row, dx_lane, dresidual_row, dresidual_lane,
    stat_row, stat_lane, lanes, end, offset,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, NARROW: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr,
    SLICES: tl.constexpr, UNIT: tl.constexpr, WARPS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """dx of one row, which is held in blocks as in the tile schedule, or of its columns that this program has."""
    WEIGHTED: tl.constexpr = p_weight is not None
    RAGGED: tl.constexpr = -1 if EVEN else BLOCKS - 1  # which block is
    own = 0
    if SLICES > 1:
        flat = arrive(flat)
        own = flat % SLICES
        flat = flat // SLICES
    lane, row = lane_and_row(flat, lanes, LANED)
    o_dy = row_start(row, lane, dy_row, dy_lane, ALIGN)
    o_h = row_start(row, lane, h_row, h_lane, ALIGN)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    o_block = columns_of(own, BLOCK, UNIT, SLICES)
    rstd = tl.load(p_rstd + o_stat)
    mean = 0.0
    if CENTRED:
        mean = tl.load(p_mean + o_stat)
    # All of it before the first store, behind which the compiler would keep what comes later.
    held_h = ()
    held_dy = ()
    weights = ()
    arrived = ()
    for i in tl.static_range(BLOCKS):
        o_col = i * (BLOCK * SLICES) + o_block
        held_h = held_h + (load(p_h, o_h + o_col, o_col < end, i == RAGGED),)  # noqa: RUF005
        held_dy = held_dy + (load(p_dy, o_dy + o_col, o_col < end, i == RAGGED),)  # noqa: RUF005
        weights = with_affine(weights, p_weight, o_col, o_col < end, i == RAGGED)
        further = load_arrived(p_dsum, row, lane, o_col, o_col < end, dsum_row, dsum_lane, i == RAGGED, ALIGN)
        arrived = arrived + (further,)  # noqa: RUF005
    mean_dot, mean_dy = gradient_means(
        held_dy, held_h, weights, offset, mean, rstd, end.to(tl.float32),
        CENTRED, WEIGHTED, SHIFTED, NARROW, 1, BLOCK, BLOCKS, PACKED, SLICES, WARPS, SIDE,
    )  # fmt: skip
    for i in tl.static_range(BLOCKS):
        o_col = i * (BLOCK * SLICES) + o_block
        weighted_dy = weighted(wide(held_dy[i], PACKED), weights[i], offset, WEIGHTED, SHIFTED, NARROW, PACKED)
        x_hat = deviation_of(held_h[i], mean, None, CENTRED, PACKED, False) * rstd
        dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
        store_gradient(
            dh, arrived[i], p_dx, p_dresidual, row, lane, o_col, o_col < end,
            dx_row, dx_lane, dresidual_row, dresidual_lane, p_dsum is not None, i == RAGGED, ALIGN,
        )  # fmt: skip


@triton.jit
def gradients_of_columns(
    index, p_dy, p_h, p_mean, p_rstd, p_dweight, p_dbias,
    dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, total, lanes, end,
    CENTRED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """dW and dB of COLS columns, down all rows."""
    o_col = index * COLS + tl.arange(0, COLS)[None, :]
    m_col = o_col < end
    dweight = tl.zeros((ROWS, COLS), tl.float32)
    dbias = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, total, ROWS):
        flat = start + tl.arange(0, ROWS)[:, None]
        m_row = flat < total
        lane, row = lane_and_row(flat, lanes, LANED)
        dweight, dbias = with_rows(
            dweight, dbias, p_dy, p_h, p_mean, p_rstd, row, lane, m_row, o_col, m_col,
            dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane,
            p_dweight is not None, p_dbias is not None, CENTRED, X_HAT, NARROW, ALIGN,
        )  # fmt: skip
    if p_dweight is not None:
        store(p_dweight, o_col, tl.sum(dweight, axis=0, keep_dims=True), m_col, True)
    if p_dbias is not None:
        store(p_dbias, o_col, tl.sum(dbias, axis=0, keep_dims=True), m_col, True)


@triton.jit
def few_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dresidual,
    p_dweight,
    p_dbias,
    dy_row,
    dy_lane,
    dsum_row,
    dsum_lane,
    h_row,
    h_lane,
    dx_row,
    dx_lane,
    dresidual_row,
    dresidual_lane,
    stat_row,
    stat_lane,
    rows,
    lanes,
    cols,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    SLICES: tl.constexpr,
    UNIT: tl.constexpr,
    WARPS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """WARPS and SIDE: how a row, or what a program has of it, lies, as in sums.py."""
    total = rows * lanes
    end = cols * ALIGN
    index = tl.program_id(0)
    row_programs = total * SLICES
    if index < row_programs:
        gradient_of_row(
            index, p_dy, p_dsum, p_h, p_weight, p_mean, p_rstd, p_dx, p_dresidual,
            dy_row, dy_lane, dsum_row, dsum_lane, h_row, h_lane, dx_row, dx_lane, dresidual_row, dresidual_lane,
            stat_row, stat_lane, lanes, end, offset,
            CENTRED, SHIFTED, LANED, NARROW, BLOCK, BLOCKS, EVEN, ALIGN, PACKED, SLICES, UNIT, WARPS, SIDE,
        )  # fmt: skip
    else:
        gradients_of_columns(
            index - row_programs, p_dy, p_h, p_mean, p_rstd, p_dweight, p_dbias,
            dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, total, lanes, end,
            CENTRED, LANED, X_HAT, NARROW, ROWS, COLS, ALIGN,
        )  # fmt: skip
