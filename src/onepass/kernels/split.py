"""Schedule 2, split: a wide row is cut over several programs, each with its slice in registers.

The programs of a row tell each other their partial sums through a mailbox (mailbox.py).

Forward: a program for each slice of each row. Those of a row are neighbours in the grid, and programs begin in the
order of their numbers, so they run at about the same time, and several on an SM: one loads while another waits. Nothing
promises that, if others share the GPU. So a program looks for its peers' sums a while, and then makes them itself.

Backward: programs stay, and walk the rows of their slice, because they sum dW and dB down these. Before a program waits
for its peers' sums of this row, it has published its own of the next row, and the loads of the rows after that are in
flight, so the wait is hidden. All programs must run at the same time, or they wait for ever: the planner keeps the grid
within what is resident at once, and the cooperative launch makes the driver refuse anything else.
"""

import triton
import triton.language as tl

from onepass.kernels.mailbox import (
    bits_of,
    bits_of_pair,
    collect_means,
    look_for,
    moments_of,
    publish,
    publish_pair,
    seen_early,
    words_of,
)
from onepass.kernels.parts import (
    KEPT,
    PASSING,
    deviation_of,
    input_gradient,
    lane_and_row,
    load,
    load_affine,
    load_arrived,
    load_sum,
    normalized,
    row_start,
    rstd_of,
    scale_and_shift,
    store,
    store_gradient,
    store_row,
    weighted,
    wide,
    with_affine,
    with_square,
)
from onepass.kernels.quantize import above, factor_of_tensor, merge_amax, rounded, store_quantized, within
from onepass.kernels.sums import row_sum, row_sum_by_warps


@triton.jit
def load_slice(
    slice, p_x, p_residual, row, lane, end, x_row, x_lane, residual_row, residual_lane,
    NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """What is to be normalized of a row's slice of that number, in blocks."""
    held = ()
    for i in tl.static_range(BLOCKS):
        o_col = (slice * BLOCKS + i) * BLOCK + tl.arange(0, BLOCK)[None, :]
        h = load_sum(
            p_x, p_residual, row, lane, o_col, o_col < end, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
        )  # fmt: skip
        held = held + (h,)  # noqa: RUF005 (Triton has no unpacking)
    return held


@triton.jit
def bits_of_moments(
    held, slice, end, CENTRED: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    EVEN: tl.constexpr, PACKED: tl.constexpr, WARPS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """A slice's sum of squares, or with its mean that of squared deviations from it, as a word of the mailbox."""
    mean = 0.0
    if CENTRED:
        total = tl.zeros((1, BLOCK), tl.float32)
        for i in tl.static_range(BLOCKS):
            total += wide(held[i], PACKED)
        width = tl.minimum(end - slice * (BLOCK * BLOCKS), BLOCK * BLOCKS).to(tl.float32)
        mean = tl.div_rn(row_sum_by_warps(total, WARPS, SIDE), width)
    squares = tl.zeros((1, BLOCK), tl.float32)
    for i in tl.static_range(BLOCKS):
        m = (slice * BLOCKS + i) * BLOCK + tl.arange(0, BLOCK)[None, :] < end
        squares = with_square(squares, deviation_of(held[i], mean, m, CENTRED, PACKED, not EVEN), NARROW)
    if CENTRED:
        return bits_of_pair(tl.sum(row_sum_by_warps(squares, WARPS, SIDE)), tl.sum(mean))
    else:
        return bits_of(tl.sum(row_sum(squares)))  # by warps it would spill eight bytes


@triton.jit
def bits_of_moments_again(
    slice, p_x, p_residual, row, lane, end, x_row, x_lane, residual_row, residual_lane,
    CENTRED: tl.constexpr, NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    EVEN: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr, WARPS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The same bits of a slice that another program has, a block at a time, so that it takes no more registers."""
    o_block = slice * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)[None, :]
    mean = 0.0
    if CENTRED:
        total = tl.zeros((1, BLOCK), tl.float32)
        for i in range(BLOCKS):
            o_col = i * BLOCK + o_block
            h = load_sum(
                p_x, p_residual, row, lane, o_col, o_col < end, x_row, x_lane, residual_row, residual_lane,
                NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
            )  # fmt: skip
            total += wide(h, PACKED)
        width = tl.minimum(end - slice * (BLOCK * BLOCKS), BLOCK * BLOCKS).to(tl.float32)
        mean = tl.div_rn(row_sum_by_warps(total, WARPS, SIDE), width)
    squares = tl.zeros((1, BLOCK), tl.float32)
    for i in range(BLOCKS):
        o_col = i * BLOCK + o_block
        h = load_sum(
            p_x, p_residual, row, lane, o_col, o_col < end, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
        )  # fmt: skip
        squares = with_square(squares, deviation_of(h, mean, o_col < end, CENTRED, PACKED, not EVEN), NARROW)
    if CENTRED:
        return bits_of_pair(tl.sum(row_sum_by_warps(squares, WARPS, SIDE)), tl.sum(mean))
    else:
        return bits_of(tl.sum(row_sum(squares)))  # by warps it would spill eight bytes


@triton.jit
def finish_slice(
    held, words, weights, biases, own, row, lane, end, factor, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q,
    p_scale, p_amax, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group, eps, offset, floor, upper,
    largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EVEN: tl.constexpr, PEERS: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr,
    EARLY: tl.constexpr, SUM_FIRST: tl.constexpr, WARPS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    ROUND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr,
):  # fmt: skip
    """A slice's output, with the words of all slices at hand."""
    count = end.to(tl.float32)
    o_block = own * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)[None, :]
    o_affine = lane * affine_lane * ALIGN
    mean, square = moments_of(words, tl.arange(0, PEERS), end, count, BLOCK * BLOCKS, CENTRED, WARPS)
    rstd = rstd_of(square, count, eps, NARROW)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    # No branch: behind one, too, blocks of 16 bits are no longer kept in pairs.
    if p_mean is not None:
        tl.store(p_mean + o_stat, mean, mask=own == 0)
    if p_rstd is not None:
        tl.store(p_rstd + o_stat, rstd, mask=own == 0)

    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    top = tl.zeros((1, BLOCK), tl.float32)
    o_y = row_start(row, lane, y_row, y_lane, ALIGN)
    for i in tl.static_range(BLOCKS):
        o_col = i * BLOCK + o_block
        m = o_col < end
        if i + EARLY < BLOCKS:
            o_ahead = o_col + EARLY * BLOCK
            weights = with_affine(weights, p_weight, o_affine + o_ahead, o_ahead < end, not EVEN)
            biases = with_affine(biases, p_bias, o_affine + o_ahead, o_ahead < end, not EVEN)
        if p_sum is not None and not SUM_FIRST:
            store_row(p_sum, o_y + o_col, held[i], m, not EVEN)
        y = scale_and_shift(
            deviation_of(held[i], mean, None, CENTRED, PACKED, False), rstd, weights[i], biases[i], offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, PACKED,
        )  # fmt: skip
        if p_y is not None:
            store_row(p_y, o_y + o_col, y, m, not EVEN)
        if KIND is not None:
            y = within(y, m, not EVEN)
            if MERGED:
                top = above(top, tl.abs(y))
            if p_q is not None:
                values = rounded(y, ROUND)
                first = own * (BLOCK * BLOCKS) + i * BLOCK
                store_quantized(
                    p_q, o_y + o_col, p_scale, o_stat + tl.zeros((1, 1), tl.int32), scale_row, scale_group, values, m,
                    o_stat >= 0, first, end, factor, floor, upper, largest, inverse, KIND, GROUP, BOUNDED, FLOORED,
                    ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, not EVEN, 1, BLOCK, PASSING,
                )  # fmt: skip
    if MERGED:
        merge_amax(p_amax, top, ROUND)


@triton.jit
def share_slice(
    own, row, lane, slices, end, factor, p_words, patience, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean,
    p_rstd, p_q, p_scale, p_amax, x_row, x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane,
    scale_row, affine_lane, scale_group, eps, offset, floor, upper, largest, inverse, CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EVEN: tl.constexpr, PEERS: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr,
    EARLY: tl.constexpr, AFFINE_FIRST: tl.constexpr, SUM_FIRST: tl.constexpr, WARPS: tl.constexpr, SIDE: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr,
):  # fmt: skip
    """A slice, from x to y, if its peers' sums are there in time; how many are not."""
    o_block = own * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)[None, :]
    o_affine = lane * affine_lane * ALIGN
    weights = ()
    biases = ()
    for i in tl.static_range(EARLY if AFFINE_FIRST else 0):
        o_col = i * BLOCK + o_block
        weights = with_affine(weights, p_weight, o_affine + o_col, o_col < end, not EVEN)
        biases = with_affine(biases, p_bias, o_affine + o_col, o_col < end, not EVEN)
    if AFFINE_FIRST:  # as in tile.py
        tl.debug_barrier()
    held = load_slice(
        own, p_x, p_residual, row, lane, end, x_row, x_lane, residual_row, residual_lane,
        NARROW, ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN,
    )  # fmt: skip
    for i in tl.static_range(0 if AFFINE_FIRST else EARLY):
        o_col = i * BLOCK + o_block
        weights = with_affine(weights, p_weight, o_affine + o_col, o_col < end, not EVEN)
        biases = with_affine(biases, p_bias, o_affine + o_col, o_col < end, not EVEN)
    bits = bits_of_moments(held, own, end, CENTRED, NARROW, BLOCK, BLOCKS, EVEN, PACKED, WARPS, SIDE)
    tl.atomic_xchg(p_words + own, bits, sem="relaxed")
    if p_sum is not None and SUM_FIRST:
        o_y = row_start(row, lane, y_row, y_lane, ALIGN)
        for i in tl.static_range(BLOCKS):
            o_col = i * BLOCK + o_block
            store_row(p_sum, o_y + o_col, held[i], o_col < end, not EVEN)

    # As many words as threads, so that the sum of what is missing goes through all of them, and they agree on it.
    peer = tl.arange(0, PEERS)
    m_peer = peer < slices
    words = tl.where(m_peer, look_for(p_words + tl.minimum(peer, slices - 1), patience), 0)
    missing = tl.sum((m_peer & (words == 0)).to(tl.int32), axis=0)
    if missing == 0:
        finish_slice(
            held, words, weights, biases, own, row, lane, end, factor, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd,
            p_q, p_scale, p_amax, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group, eps,
            offset, floor, upper, largest, inverse, CENTRED, SHIFTED, X_HAT, NARROW, BLOCK, BLOCKS, EVEN, PEERS, ALIGN,
            PACKED, EARLY, SUM_FIRST, WARPS, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0,
            SWIZZLED,
        )  # fmt: skip
    return missing


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
    affine_lane,
    scale_group,
    lanes,
    cols,
    slices,
    patience,
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
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    EARLY: tl.constexpr,
    AFFINE_FIRST: tl.constexpr,
    SUM_FIRST: tl.constexpr,
    WARPS: tl.constexpr,
    SIDE: tl.constexpr,
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
    """WARPS and SIDE: how a slice lies, as in sums.py. EARLY: blocks whose weight and bias are asked for before the
    programs wait for each other, and with AFFINE_FIRST before the row is. SUM_FIRST: sums with the residual are stored
    then, too, and not with y.
    """
    own = tl.program_id(0) % slices
    flat = tl.program_id(0) // slices
    lane, row = lane_and_row(flat, lanes, LANED)
    end = cols * ALIGN
    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO
    )
    p_words = p_mailbox + flat.to(tl.int64) * slices
    missing = 0
    # The last slice alone may reach beyond the row; to know that is worth registers to the others.
    if EVEN or own < slices - 1:
        missing = share_slice(
            own, row, lane, slices, end, factor, p_words, patience, p_x, p_residual, p_weight, p_bias, p_y, p_sum,
            p_mean, p_rstd, p_q, p_scale, p_amax, x_row, x_lane, residual_row, residual_lane, y_row, y_lane, stat_row,
            stat_lane, scale_row, affine_lane, scale_group, eps, offset, floor, upper, largest, inverse, CENTRED,
            SHIFTED, X_HAT, NARROW, ROUND_SUM, BLOCK, BLOCKS, True, PEERS, ALIGN, PACKED, EARLY, AFFINE_FIRST,
            SUM_FIRST, WARPS, SIDE, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
        )  # fmt: skip
    else:
        missing = share_slice(
            own, row, lane, slices, end, factor, p_words, patience, p_x, p_residual, p_weight, p_bias, p_y, p_sum,
            p_mean, p_rstd, p_q, p_scale, p_amax, x_row, x_lane, residual_row, residual_lane, y_row, y_lane, stat_row,
            stat_lane, scale_row, affine_lane, scale_group, eps, offset, floor, upper, largest, inverse, CENTRED,
            SHIFTED, X_HAT, NARROW, ROUND_SUM, BLOCK, BLOCKS, False, PEERS, ALIGN, PACKED, EARLY, AFFINE_FIRST,
            SUM_FIRST, WARPS, SIDE, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
        )  # fmt: skip
    if missing > 0:
        # Apart from the above to the end: blocks of 16 bits that come from two places are no longer kept in pairs.
        peer = tl.arange(0, PEERS)
        words = tl.zeros((PEERS,), p_mailbox.dtype.element_ty)
        for other in range(slices):
            bits = bits_of_moments_again(
                other, p_x, p_residual, row, lane, end, x_row, x_lane, residual_row, residual_lane,
                CENTRED, NARROW, ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN, PACKED, WARPS, SIDE,
            )  # fmt: skip
            words = tl.where(peer == other, bits, words)
        held = load_slice(
            own, p_x, p_residual, row, lane, end, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN,
        )  # fmt: skip
        finish_slice(
            held, words, (), (), own, row, lane, end, factor, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd,
            p_q, p_scale, p_amax, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group, eps,
            offset, floor, upper, largest, inverse, CENTRED, SHIFTED, X_HAT, NARROW, BLOCK, BLOCKS, EVEN, PEERS, ALIGN,
            PACKED, 0, SUM_FIRST, WARPS, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0,
            SWIZZLED,
        )  # fmt: skip


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
        p_words = words_of(p_mailbox, flat, slices, PEERS)
        seen = seen_early(p_words, PEERS)
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
        mean_dot, mean_dy = collect_means(p_words, seen, slices, count, CENTRED, PEERS)
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
