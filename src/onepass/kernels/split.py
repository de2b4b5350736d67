"""Schedule 2, split: a wide row is cut over several programs, each with its slice in registers.

The programs of a row tell each other their partial sums through a mailbox in global memory. A mailbox word is its own
flag: the buffer starts as zero bits, and a sum of +0.0 is published as -0.0, which adds up the same. So NaN and inf
travel like any other value, and nobody waits for a word that is already there. While a program waits for its peers'
words of this row, it has already loaded the next row and published its partial of it, so the wait is hidden.

All programs must run at the same time, or they wait for ever: the planner keeps the grid within what is resident at
once, and the cooperative launch makes the driver refuse anything else.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import (
    add_residual,
    centred,
    input_gradient,
    load,
    load_weight,
    narrowed,
    normalized,
    rounded_sum,
    row_start,
    row_sum,
    rstd_of,
    scale_and_shift,
    store,
)


@triton.jit
def publish(p_word, value, wanted):
    """Put a partial sum where the peers look for it."""
    value = tl.sum(value)  # (1, 1) to a scalar
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits == 0, -2147483648, bits)  # the bits of -0.0
    tl.atomic_xchg(p_word, bits, mask=wanted, sem="relaxed")


@triton.jit
def collect(p_words, slices, PEERS: tl.constexpr):
    """The peers' words of one row, in slice order, once all are there."""
    o = tl.arange(0, PEERS)
    words = tl.load(p_words + o, mask=o < slices, other=1, volatile=True)
    while tl.min((words != 0).to(tl.int32), axis=0) == 0:
        words = tl.load(p_words + o, mask=o < slices, other=1, volatile=True)
    # Warps may hold copies of one word, and the loop may have ended on another warp's copy. Words do not change once
    # they are there, so reading again gives every warp the same, whole answer.
    words = tl.load(p_words + o, mask=o < slices, other=0, volatile=True)
    return words.to(tl.float32, bitcast=True)


@triton.jit
def load_slice(
    p_x, p_residual, p_sum, x_row, x_lane, residual_row, residual_lane, row, lane, o_col, m,
    NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    h = load(p_x, row_start(row, lane, x_row, x_lane, ALIGN) + o_col, m, True).to(tl.float32)
    if p_residual is not None:
        residual = load(p_residual, row_start(row, lane, residual_row, residual_lane, ALIGN) + o_col, m, True)
        return add_residual(h, residual, p_sum, ROUND_SUM, NARROW)
    else:
        return rounded_sum(h, p_sum, ROUND_SUM)


@triton.jit
def publish_moments(
    h, p_words, own, slices, width, m, wanted, CENTRED: tl.constexpr, NARROW: tl.constexpr
):  # fmt: skip
    """This slice's sum of squares, or its mean and its sum of squared deviations from that mean."""
    if CENTRED:
        mean = tl.div_rn(row_sum(h), width)
        h = centred(h, mean, m, True)
        publish(p_words + slices + own, mean, wanted)
    publish(p_words + own, row_sum(narrowed(h * h, NARROW)), wanted)


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
    p_mailbox,
    x_row,
    x_lane,
    residual_row,
    residual_lane,
    y_row,
    y_lane,
    stat_row,
    stat_lane,
    rows,
    lanes,
    cols,
    slices,
    groups,
    eps,
    offset,
    CENTRED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    WORDS: tl.constexpr = 2 if CENTRED else 1
    own = tl.program_id(0) % slices
    o_col = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(tl.float32)
    o_peer = tl.arange(0, PEERS)
    widths = tl.maximum(tl.minimum(cols * ALIGN - o_peer * BLOCK, BLOCK), 0).to(tl.float32)
    width = tl.minimum(cols * ALIGN - own * BLOCK, BLOCK).to(tl.float32)
    weight = 1.0
    bias = 0.0
    if p_weight is not None:
        weight = load_weight(p_weight, o_col, m_col, offset, NARROW, True)
    if p_bias is not None:
        bias = load(p_bias, o_col, m_col, True).to(tl.float32)

    total = rows * lanes
    first = tl.program_id(0) // slices
    flat = first
    h = load_slice(
        p_x, p_residual, p_sum, x_row, x_lane, residual_row, residual_lane,
        first // lanes, first % lanes, o_col, m_col, NARROW, ROUND_SUM, ALIGN,
    )  # fmt: skip
    p_words = p_mailbox + first.to(tl.int64) * slices * WORDS
    publish_moments(h, p_words, own, slices, width, m_col, first < total, CENTRED, NARROW)
    for _ in range(first, total, groups):
        following = flat + groups
        m_following = m_col & (following < total)
        h_following = load_slice(
            p_x, p_residual, p_sum, x_row, x_lane, residual_row, residual_lane,
            following // lanes, following % lanes, o_col, m_following, NARROW, ROUND_SUM, ALIGN,
        )  # fmt: skip
        p_following = p_mailbox + following.to(tl.int64) * slices * WORDS
        publish_moments(h_following, p_following, own, slices, width, m_following, following < total, CENTRED, NARROW)

        row = flat // lanes
        lane = flat % lanes
        o_y = row_start(row, lane, y_row, y_lane, ALIGN) + o_col
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        if p_sum is not None:
            store(p_sum, o_y, h, m_col, True)
        p_words = p_mailbox + flat.to(tl.int64) * slices * WORDS
        square = tl.sum(collect(p_words, slices, PEERS), axis=0)
        if CENTRED:
            means = collect(p_words + slices, slices, PEERS)
            mean = tl.div_rn(tl.sum(means * widths, axis=0), count)
            between = (means - mean) * (means - mean) * widths
            square += tl.sum(tl.where(o_peer < slices, between, 0.0), axis=0)
            h = centred(h, mean, m_col, True)
            if p_mean is not None and own == 0:
                tl.store(p_mean + o_stat, mean)
        rstd = rstd_of(square, count, eps, NARROW)
        if p_rstd is not None and own == 0:
            tl.store(p_rstd + o_stat, rstd)
        y = scale_and_shift(h, rstd, weight, bias, p_weight is not None, p_bias is not None, X_HAT, NARROW)
        store(p_y, o_y, y, m_col, True)
        h = h_following
        flat = following


@triton.jit
def load_gradients(
    p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, flat, lanes, o_col, m, wanted,
    CENTRED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """dy, x̂ and rstd of one row's slice; x̂ in fp32, before any rounding."""
    row = flat // lanes
    lane = flat % lanes
    h = load(p_h, row_start(row, lane, h_row, h_lane, ALIGN) + o_col, m, True).to(tl.float32)
    dy = load(p_dy, row_start(row, lane, dy_row, dy_lane, ALIGN) + o_col, m, True).to(tl.float32)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    rstd = tl.load(p_rstd + o_stat, mask=wanted, other=0.0)
    if CENTRED:
        h -= tl.load(p_mean + o_stat, mask=wanted, other=0.0)
    return dy, h * rstd, rstd


@triton.jit
def publish_gradients(dy, x_hat, weight, p_words, own, slices, wanted, CENTRED: tl.constexpr):
    weighted_dy = dy * weight
    publish(p_words + own, row_sum(weighted_dy * x_hat), wanted)
    if CENTRED:
        publish(p_words + slices + own, row_sum(weighted_dy), wanted)


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
    p_dweight,
    p_dbias,
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
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    WORDS: tl.constexpr = 2 if CENTRED else 1
    own = tl.program_id(0) % slices
    o_col = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(tl.float32)
    weight = 1.0
    if p_weight is not None:
        weight = load_weight(p_weight, o_col, m_col, offset, NARROW, True)
    dweight = tl.zeros((1, BLOCK), tl.float32)
    dbias = tl.zeros((1, BLOCK), tl.float32)

    total = rows * lanes
    first = tl.program_id(0) // slices
    flat = first
    dy, x_hat, rstd = load_gradients(
        p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, first, lanes, o_col, m_col,
        first < total, CENTRED, ALIGN,
    )  # fmt: skip
    publish_gradients(
        dy, x_hat, weight, p_mailbox + first.to(tl.int64) * slices * WORDS, own, slices, first < total, CENTRED
    )
    for _ in range(first, total, groups):
        following = flat + groups
        wanted = following < total
        dy_following, x_hat_following, rstd_following = load_gradients(
            p_dy, p_h, p_mean, p_rstd, dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane, following, lanes, o_col,
            m_col & wanted, wanted, CENTRED, ALIGN,
        )  # fmt: skip
        p_following = p_mailbox + following.to(tl.int64) * slices * WORDS
        publish_gradients(dy_following, x_hat_following, weight, p_following, own, slices, wanted, CENTRED)

        if p_dweight is not None:
            dweight += dy * normalized(x_hat, 1.0, X_HAT, NARROW)
        if p_dbias is not None:
            dbias += dy
        row = flat // lanes
        lane = flat % lanes
        p_words = p_mailbox + flat.to(tl.int64) * slices * WORDS
        mean_dot = tl.div_rn(tl.sum(collect(p_words, slices, PEERS), axis=0), count)
        mean_dy = 0.0
        if CENTRED:
            mean_dy = tl.div_rn(tl.sum(collect(p_words + slices, slices, PEERS), axis=0), count)
        dh = input_gradient(dy * weight, x_hat, rstd, mean_dot, mean_dy, CENTRED)
        if p_dsum is not None:
            dh += load(p_dsum, row_start(row, lane, dsum_row, dsum_lane, ALIGN) + o_col, m_col, True).to(tl.float32)
        store(p_dx, row_start(row, lane, dx_row, dx_lane, ALIGN) + o_col, dh, m_col, True)
        if p_dresidual is not None:
            store(p_dresidual, row_start(row, lane, dresidual_row, dresidual_lane, ALIGN) + o_col, dh, m_col, True)
        dy = dy_following
        x_hat = x_hat_following
        rstd = rstd_following
        flat = following

    # One partial row a group of programs.
    o_partial = first.to(tl.int64) * (cols * ALIGN) + o_col
    if p_dweight is not None:
        store(p_dweight, o_partial, dweight, m_col, True)
    if p_dbias is not None:
        store(p_dbias, o_partial, dbias, m_col, True)
