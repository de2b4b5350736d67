"""Schedule 2, split: a wide row is cut over several programs, each with its slice in registers.

The programs of a row tell each other their partial sums through a mailbox (mailbox.py). Before a program waits for its
peers' sums of this row, it has published its own of the next row, and the loads of the rows after that are in flight,
so the wait is hidden.

All programs must run at the same time, or they wait for ever: the planner keeps the grid within what is resident at
once, and the cooperative launch makes the driver refuse anything else.
"""

import triton
import triton.language as tl

from onepass.kernels.mailbox import collect, collect_pair, publish, publish_pair
from onepass.kernels.parts import (
    PASSING,
    deviation_of,
    input_gradient,
    lane_and_row,
    load,
    load_affine,
    load_arrived,
    load_sum,
    narrowed,
    normalized,
    row_start,
    row_sum,
    rstd_of,
    scale_and_shift,
    store,
    store_gradient,
    store_row,
    weighted,
    wide,
)
from onepass.kernels.quantize import above, factor_of_tensor, merge_amax, rounded, store_quantized, within


@triton.jit
def publish_moments(h, p_word, width, m, wanted, CENTRED: tl.constexpr, NARROW: tl.constexpr):
    """This slice's sum of squares, or its mean and its sum of squared deviations from that mean."""
    mean = 0.0
    if CENTRED:
        mean = tl.div_rn(row_sum(wide(h, False)), width)
    deviation = deviation_of(h, mean, m, CENTRED, False, True)
    square = row_sum(narrowed(deviation * deviation, NARROW))
    if CENTRED:
        publish_pair(p_word, square, mean, wanted)
    else:
        publish(p_word, square, wanted)


@triton.jit
def split_forward(
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
    p_mailbox,
    x_row,
    x_lane,
    residual_row,
    residual_lane,
    y_row,
    y_lane,
    stat_row,
    stat_lane,
    scale_row,
    scale_group,
    rows,
    lanes,
    cols,
    slices,
    groups,
    eps,
    offset,
    floor,
    upper,
    largest,
    inverse,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr,
):
    own = tl.program_id(0) % slices
    o_col = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(tl.float32)
    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO
    )
    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    top = tl.zeros((1, BLOCK), tl.float32)
    widths = tl.maximum(tl.minimum(cols * ALIGN - tl.arange(0, PEERS) * BLOCK, BLOCK), 0).to(tl.float32)
    width = tl.minimum(cols * ALIGN - own * BLOCK, BLOCK).to(tl.float32)
    weight = load_affine(p_weight, o_col, m_col, True)
    bias = load_affine(p_bias, o_col, m_col, True)

    total = rows * lanes
    first = tl.program_id(0) // slices
    lane, row = lane_and_row(first, lanes, LANED)
    h = load_sum(
        p_x, p_residual, row, lane, o_col, m_col, x_row, x_lane, residual_row, residual_lane,
        NARROW, ROUND_SUM, True, ALIGN, "",
    )  # fmt: skip
    p_word = p_mailbox + first.to(tl.int64) * slices + own
    publish_moments(h, p_word, width, m_col, first < total, CENTRED, NARROW)
    for step in tl.range(0, tl.cdiv(total - first, groups), num_stages=STAGES):
        flat = first + step * groups
        following = flat + groups
        m_following = m_col & (following < total)
        lane, row = lane_and_row(following, lanes, LANED)
        h_following = load_sum(
            p_x, p_residual, row, lane, o_col, m_following, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, True, ALIGN, "",
        )  # fmt: skip
        p_word = p_mailbox + following.to(tl.int64) * slices + own
        publish_moments(h_following, p_word, width, m_following, following < total, CENTRED, NARROW)

        lane, row = lane_and_row(flat, lanes, LANED)
        o_y = row_start(row, lane, y_row, y_lane, ALIGN) + o_col
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        if p_sum is not None:
            store_row(p_sum, o_y, h, m_col, True)
        p_words = p_mailbox + flat.to(tl.int64) * slices
        mean = 0.0
        if CENTRED:
            # The slices' moments joined as in merge_moments, all at once.
            squares, means = collect_pair(p_words, slices, PEERS)
            mean = tl.div_rn(tl.sum(means * widths, axis=0), count)
            square = tl.sum(squares + (means - mean) * (means - mean) * widths, axis=0)
            if p_mean is not None and own == 0:
                tl.store(p_mean + o_stat, mean)
        else:
            square = tl.sum(collect(p_words, slices, PEERS), axis=0)
        rstd = rstd_of(square, count, eps, NARROW)
        if p_rstd is not None and own == 0:
            tl.store(p_rstd + o_stat, rstd)
        deviation = deviation_of(h, mean, m_col, CENTRED, False, True)
        y = scale_and_shift(
            deviation, rstd, weight, bias, offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
        )  # fmt: skip
        if p_y is not None:
            store_row(p_y, o_y, y, m_col, True)
        if KIND is not None:
            y = within(y, m_col, True)
            if MERGED:
                top = above(top, tl.abs(y))
            if p_q is not None:
                values = rounded(y, ROUND)
                store_quantized(
                    p_q, o_y, p_scale, o_stat + tl.zeros((1, 1), tl.int32), scale_row, scale_group, values, m_col,
                    o_stat >= 0, own * BLOCK, cols * ALIGN, factor, floor, upper, largest, inverse,
                    KIND, GROUP, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, True, 1, BLOCK, PASSING,
                )  # fmt: skip
        h = h_following
    if MERGED:
        merge_amax(p_amax, top, ROUND)


@triton.jit
def load_gradients(
    p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, flat, lanes, o_col, m, wanted,
    CENTRED: tl.constexpr, LANED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """dy, x̂ and rstd of one row's slice; x̂ in fp32, before any rounding."""
    lane, row = lane_and_row(flat, lanes, LANED)
    h = load(p_h, row_start(row, lane, h_row, h_lane, ALIGN) + o_col, m, True).to(tl.float32)
    dy = load(p_dy, row_start(row, lane, dy_row, dy_lane, ALIGN) + o_col, m, True).to(tl.float32)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    rstd = tl.load(p_rstd + o_stat, mask=wanted, other=0.0)
    if CENTRED:
        h -= tl.load(p_mean + o_stat, mask=wanted, other=0.0)
    return dy, h * rstd, rstd


@triton.jit
def publish_gradients(
    dy, x_hat, weight, offset, p_word, wanted, CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, SHIFTED: tl.constexpr,
    NARROW: tl.constexpr,
):  # fmt: skip
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, False)
    dot = row_sum(weighted_dy * x_hat)
    if CENTRED:
        publish_pair(p_word, dot, row_sum(weighted_dy), wanted)
    else:
        publish(p_word, dot, wanted)


@triton.jit
def split_backward(
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
    p_mailbox,
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
    slices,
    groups,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):
    own = tl.program_id(0) % slices
    o_col = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(tl.float32)
    WEIGHTED: tl.constexpr = p_weight is not None
    weight = load_affine(p_weight, o_col, m_col, True)
    dweight = tl.zeros((1, BLOCK), tl.float32)
    dbias = tl.zeros((1, BLOCK), tl.float32)

    total = rows * lanes
    first = tl.program_id(0) // slices
    dy, x_hat, rstd = load_gradients(
        p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, first, lanes, o_col, m_col,
        first < total, CENTRED, LANED, ALIGN,
    )  # fmt: skip
    p_word = p_mailbox + first.to(tl.int64) * slices + own
    publish_gradients(dy, x_hat, weight, offset, p_word, first < total, CENTRED, WEIGHTED, SHIFTED, NARROW)
    for step in tl.range(0, tl.cdiv(total - first, groups), num_stages=STAGES):
        flat = first + step * groups
        following = flat + groups
        wanted = following < total
        dy_following, x_hat_following, rstd_following = load_gradients(
            p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, following, lanes, o_col,
            m_col & wanted, wanted, CENTRED, LANED, ALIGN,
        )  # fmt: skip
        p_word = p_mailbox + following.to(tl.int64) * slices + own
        publish_gradients(
            dy_following, x_hat_following, weight, offset, p_word, wanted, CENTRED, WEIGHTED, SHIFTED, NARROW
        )

        if p_dweights is not None:
            dweight += dy * normalized(x_hat, 1.0, X_HAT, NARROW)
        if p_dbiases is not None:
            dbias += dy
        lane, row = lane_and_row(flat, lanes, LANED)
        p_words = p_mailbox + flat.to(tl.int64) * slices
        mean_dy = 0.0
        if CENTRED:
            dots, sums = collect_pair(p_words, slices, PEERS)
            mean_dot = tl.div_rn(tl.sum(dots, axis=0), count)
            mean_dy = tl.div_rn(tl.sum(sums, axis=0), count)
        else:
            mean_dot = tl.div_rn(tl.sum(collect(p_words, slices, PEERS), axis=0), count)
        weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, False)
        dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
        arrived = load_arrived(p_dsum, row, lane, o_col, m_col, dsum_row, dsum_lane, True, ALIGN)
        store_gradient(
            dh, arrived, p_dx, p_dresidual, row, lane, o_col, m_col,
            dx_row, dx_lane, dresidual_row, dresidual_lane, p_dsum is not None, True, ALIGN,
        )  # fmt: skip
        dy = dy_following
        x_hat = x_hat_following
        rstd = rstd_following

    # One partial row a group of programs.
    o_partial = first.to(tl.int64) * (cols * ALIGN) + o_col
    if p_dweights is not None:
        store(p_dweights, o_partial, dweight, m_col, True)
    if p_dbiases is not None:
        store(p_dbiases, o_partial, dbias, m_col, True)
