"""Schedule 1, tile: a program holds whole rows in registers, one row or a block of several.

Forward: a program for each tile, or programs that stay and walk the tiles (WALKS) with the loads of the next tiles in
flight (STAGES); then weight and bias are loaded once, before the walk. The backward always walks. It reads x and dy
once; it reduces along the row for dx, and down the rows for dW and dB, which stay in fp32 registers until the end.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import (
    centred,
    input_gradient,
    load,
    load_affine,
    load_rows,
    load_weight,
    narrowed,
    normalized,
    row_start,
    row_sum,
    rstd_of,
    scale_and_shift,
    store,
)


@triton.jit
def normalize_rows(
    h, weight, bias, p_y, p_sum, p_mean, p_rstd, o_y, o_stat, m, m_row, count, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, CENTRED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    if p_sum is not None:
        store(p_sum, o_y, h, m, MASKED)
    if CENTRED:
        mean = tl.div_rn(row_sum(h), count)
        h = centred(h, mean, m, MASKED)
        if p_mean is not None:
            store(p_mean, o_stat, mean, m_row, ROWS > 1)
    rstd = rstd_of(row_sum(narrowed(h * h, NARROW)), count, eps, NARROW)
    if p_rstd is not None:
        store(p_rstd, o_stat, rstd, m_row, ROWS > 1)
    store(p_y, o_y, scale_and_shift(h, rstd, weight, bias, WEIGHTED, BIASED, X_HAT, NARROW), m, MASKED)


@triton.jit
def tile_forward(
    p_x,
    p_residual,
    p_weight,
    p_bias,
    p_y,
    p_sum,
    p_mean,
    p_rstd,
    x_row,
    x_lane,
    residual_row,
    residual_lane,
    y_row,
    y_lane,
    stat_row,
    stat_lane,
    affine_lane,
    rows,
    lanes,
    cols,
    programs,
    eps,
    offset,
    CENTRED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    WALKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    MASKED: tl.constexpr = not EVEN or ROWS > 1
    WEIGHTED: tl.constexpr = p_weight is not None
    BIASED: tl.constexpr = p_bias is not None
    lane = tl.program_id(0) % lanes  # neighbours in memory run next to each other
    first = tl.program_id(0) // lanes
    o_col = tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    o_affine = lane * affine_lane * ALIGN + o_col
    count = (cols * ALIGN).to(tl.float32)
    if WALKS:
        weight, bias = load_affine(p_weight, p_bias, o_affine, m_col, offset, NARROW, not EVEN)
        for tile in tl.range(first, tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
            row = tile * ROWS + tl.arange(0, ROWS)[:, None]
            m = (row < rows) & m_col
            h = load_rows(
                p_x, p_residual, p_sum, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
                NARROW, ROUND_SUM, MASKED, ALIGN,
            )  # fmt: skip
            o_y = row_start(row, lane, y_row, y_lane, ALIGN) + o_col
            o_stat = row_start(row, lane, stat_row, stat_lane, 1)
            normalize_rows(
                h, weight, bias, p_y, p_sum, p_mean, p_rstd, o_y, o_stat, m, row < rows, count, eps,
                WEIGHTED, BIASED, CENTRED, X_HAT, NARROW, MASKED, ROWS,
            )  # fmt: skip
    else:
        row = first * ROWS + tl.arange(0, ROWS)[:, None]
        m = (row < rows) & m_col
        h = load_rows(
            p_x, p_residual, p_sum, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, MASKED, ALIGN,
        )  # fmt: skip
        # Weight and bias are asked for after the row, and before its sums, which hide their latency.
        weight, bias = load_affine(p_weight, p_bias, o_affine, m_col, offset, NARROW, not EVEN)
        o_y = row_start(row, lane, y_row, y_lane, ALIGN) + o_col
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        normalize_rows(
            h, weight, bias, p_y, p_sum, p_mean, p_rstd, o_y, o_stat, m, row < rows, count, eps,
            WEIGHTED, BIASED, CENTRED, X_HAT, NARROW, MASKED, ROWS,
        )  # fmt: skip


@triton.jit
def tile_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dresidual,
    p_dweights,
    p_dbiases,
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
    affine_lane,
    rows,
    lanes,
    cols,
    programs,
    offset,
    CENTRED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):
    MASKED: tl.constexpr = not EVEN or ROWS > 1
    lane = tl.program_id(0) % lanes
    o_col = tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(tl.float32)
    weight = 1.0
    if p_weight is not None:
        weight = load_weight(p_weight, lane * affine_lane * ALIGN + o_col, m_col, offset, NARROW, not EVEN)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)

    for tile in tl.range(tl.program_id(0) // lanes, tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        m = (row < rows) & m_col
        h = load(p_h, row_start(row, lane, h_row, h_lane, ALIGN) + o_col, m, MASKED).to(tl.float32)
        dy = load(p_dy, row_start(row, lane, dy_row, dy_lane, ALIGN) + o_col, m, MASKED).to(tl.float32)
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        rstd = load(p_rstd, o_stat, row < rows, ROWS > 1)
        if CENTRED:
            h -= load(p_mean, o_stat, row < rows, ROWS > 1)
        x_hat = h * rstd
        if p_dx is not None:
            weighted_dy = dy * weight
            mean_dot = tl.div_rn(row_sum(weighted_dy * x_hat), count)
            mean_dy = 0.0
            if CENTRED:
                mean_dy = tl.div_rn(row_sum(weighted_dy), count)
            dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
            if p_dsum is not None:
                dh += load(p_dsum, row_start(row, lane, dsum_row, dsum_lane, ALIGN) + o_col, m, MASKED).to(tl.float32)
            store(p_dx, row_start(row, lane, dx_row, dx_lane, ALIGN) + o_col, dh, m, MASKED)
            if p_dresidual is not None:
                o_dresidual = row_start(row, lane, dresidual_row, dresidual_lane, ALIGN) + o_col
                store(p_dresidual, o_dresidual, dh, m, MASKED)
        if p_dweights is not None:
            dweight += dy * normalized(h, rstd, X_HAT, NARROW)
        if p_dbiases is not None:
            dbias += dy

    # One partial row a program; sum_partials adds them up in a fixed order.
    o_partial = tl.program_id(0).to(tl.int64) * (cols * ALIGN) + o_col
    if p_dweights is not None:
        store(p_dweights, o_partial, tl.sum(dweight, axis=0, keep_dims=True), m_col, not EVEN)
    if p_dbiases is not None:
        store(p_dbiases, o_partial, tl.sum(dbias, axis=0, keep_dims=True), m_col, not EVEN)
