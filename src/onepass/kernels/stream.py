"""Schedule 3, stream: one program walks a wide row in blocks, twice; the second time it should come from caches.

Forward: for the sums, and to write. The second walk goes backwards, from what was read last. Wide rows run at the
memory's rate that way for as long as those in flight fit the L2. Backward has a kernel of its own for dW and dB: they
need just mean and rstd of each row, which the forward kept, so they are a plain column sum.
"""

import triton
import triton.language as tl

from onepass.kernels.cluster import sum_of_slices
from onepass.kernels.parts import (
    KEPT,
    PASSING,
    deviation_of,
    input_gradient,
    lane_and_row,
    load_affine,
    load_arrived,
    load_row,
    load_sum,
    row_start,
    rstd_of,
    scale_and_shift,
    store,
    store_gradient,
    store_row,
    weighted,
    wide,
    with_rows,
    with_square,
)
from onepass.kernels.quantize import (
    above,
    amax_of,
    factor_of_tensor,
    merge_amax,
    rounded,
    steps_from,
    store_quantized,
    within,
)
from onepass.kernels.sums import row_sum


@triton.jit
def row_moments(
    p_x, p_residual, row, lane, x_row, x_lane, residual_row, residual_lane, end,
    CENTRED: tl.constexpr, NARROW: tl.constexpr, ROUND_SUM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Of one row or a block of them, in one walk: mean, and sum of squared deviations from it; not CENTRED, of squares.

    The mean is known at the end of the walk only. Until then each place in a block takes deviations from the first
    value that it met. If that one is far off then it is far from the mean too, and adds more to the sum than what the
    others at its place lose to rounding.
    """
    FIRST: tl.constexpr = 1 if CENTRED else 0
    o_block = tl.arange(0, BLOCK)[None, :]
    pivots = 0.0
    if CENTRED:
        pivots = wide(
            load_sum(
                p_x, p_residual, row, lane, o_block, o_block < end, x_row, x_lane, residual_row, residual_lane,
                NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
            ),
            False,
        )  # fmt: skip
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in range(FIRST, BLOCKS):
        o_col = o_block + i * BLOCK
        m = o_col < end
        h = load_sum(
            p_x, p_residual, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
        )  # fmt: skip
        deviation = deviation_of(h, pivots, m, CENTRED, False, not EVEN)
        squares = with_square(squares, deviation, NARROW)
        if CENTRED:
            sums += deviation
    if CENTRED:
        return moments_from(pivots, sums, squares, o_block, end, BLOCK, 1)
    else:
        return 0.0, row_sum(squares)


@triton.jit
def squares_about(mean, met, pivots, sums, squares):
    """Sums of squared deviations from the mean, of those of `met` values each from a pivot."""
    shift = sums / tl.maximum(met, 1.0)
    distance = pivots + shift - mean
    return squares + tl.fma(met * distance, distance, -(sums * shift))


@triton.jit
def moments_from(pivots, sums, squares, o_block, end, BLOCK: tl.constexpr, SLICES: tl.constexpr):
    """Mean, and sum of squared deviations from it, of each place's sums of deviations from its pivot.

    What may be fused is, by name: as in `with_square`, a row that is held and one that is walked must round alike.
    """
    met = tl.maximum(tl.cdiv(end - o_block, BLOCK * SLICES), 0).to(tl.float32)
    mean = tl.div_rn(sum_of_slices(row_sum(tl.fma(met, pivots, sums)), SLICES, True), end.to(tl.float32))
    square = sum_of_slices(row_sum(squares_about(mean, met, pivots, sums, squares)), SLICES, False)
    # Rounding may leave less than nothing of a row that hardly varies. A NaN stays one.
    return mean, tl.maximum(square, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def walk_row(
    index, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax, x_row,
    x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group,
    lanes, cols, eps, offset, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr,
    ALIGN: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """The row of that number. HINT: which lines of an FP8 output the L2 is to give up first."""
    lane, row = lane_and_row(index, lanes, LANED)
    o_y = row_start(row, lane, y_row, y_lane, ALIGN)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    o_affine = lane * affine_lane * ALIGN
    o_block = tl.arange(0, BLOCK)[None, :]
    end = cols * ALIGN
    count = end.to(tl.float32)

    mean = 0.0
    rstd = 1.0
    if KIND == "tensor" and not IDENTITY:  # from the launch before
        rstd = tl.load(p_rstd + o_stat)
        if CENTRED:
            mean = tl.load(p_mean + o_stat)
    elif not IDENTITY:
        mean, square = row_moments(
            p_x, p_residual, row, lane, x_row, x_lane, residual_row, residual_lane, end,
            CENTRED, NARROW, ROUND_SUM, 1, BLOCK, BLOCKS, EVEN, ALIGN,
        )  # fmt: skip
        rstd = rstd_of(square, count, eps, NARROW)
        if p_mean is not None:
            tl.store(p_mean + o_stat, tl.sum(mean))
        if p_rstd is not None:
            tl.store(p_rstd + o_stat, tl.sum(rstd))

    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO
    )
    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    top = tl.zeros((1, BLOCK), tl.float32)
    if KIND == "row":
        # One walk more, between the other two: from the end to the start, and so the last one goes on from there.
        for i in range(BLOCKS):
            o_col = (BLOCKS - 1 - i) * BLOCK + o_block
            _, y = output_of(
                p_x, p_residual, p_weight, p_bias, row, lane, o_col, end, x_row, x_lane,
                residual_row, residual_lane, o_affine, mean, rstd, offset,
                CENTRED, SHIFTED, X_HAT, NARROW, ROUND_SUM, EVEN, ALIGN, KEPT,
            )  # fmt: skip
            top = above(top, tl.abs(within(y, o_col < end, not EVEN)))
        scale, factor = steps_from(
            amax_of(top, 1, ROUND), floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0
        )
        tl.store(p_scale + o_stat * scale_row + tl.zeros((1, 1), tl.int32), scale)
    for i in range(BLOCKS):
        if KIND == "row":
            o_col = i * BLOCK + o_block
        else:
            o_col = (BLOCKS - 1 - i) * BLOCK + o_block
        m = o_col < end
        h, y = output_of(
            p_x, p_residual, p_weight, p_bias, row, lane, o_col, end, x_row, x_lane,
            residual_row, residual_lane, o_affine, mean, rstd, offset,
            CENTRED, SHIFTED, X_HAT, NARROW, ROUND_SUM, EVEN, ALIGN, PASSING,
        )  # fmt: skip
        if p_sum is not None:
            store_row(p_sum, o_y + o_col, h, m, not EVEN)
        if p_y is not None:
            store_row(p_y, o_y + o_col, y, m, not EVEN)
        if KIND is not None:
            y = within(y, m, not EVEN)
            if MERGED:
                top = above(top, tl.abs(y))
            if p_q is not None:
                values = rounded(y, ROUND)
                store_quantized(
                    p_q, o_y + o_col, p_scale, o_stat + tl.zeros((1, 1), tl.int32), scale_row, scale_group, values, m,
                    o_stat >= 0, tl.min(o_col), end, factor, floor, upper, largest, inverse,
                    KIND, GROUP, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, not EVEN, 1, BLOCK,
                    HINT,
                )  # fmt: skip
    if MERGED:
        merge_amax(p_amax, top, ROUND)


@triton.jit
def stream_forward(
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
    IDENTITY: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
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
    index = tl.program_id(0)
    if KIND == "tensor":  # what was read last for amax is what the L2 still has
        index = tl.num_programs(0) - 1 - index
    walk_row(
        index, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax, x_row,
        x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group,
        lanes, cols, eps, offset, floor, upper, largest, inverse, CENTRED, SHIFTED, LANED, X_HAT, NARROW, IDENTITY,
        ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0,
        SWIZZLED, PASSING,
    )  # fmt: skip


@triton.jit
def output_of(
    p_x, p_residual, p_weight, p_bias, row, lane, o_col, end, x_row, x_lane, residual_row, residual_lane,
    o_affine, mean, rstd, offset, CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr,
    NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """What is normalized, and y, of one block of the row."""
    m = o_col < end
    h = load_sum(
        p_x, p_residual, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
        NARROW, ROUND_SUM, not EVEN, ALIGN, HINT,
    )  # fmt: skip
    deviation = deviation_of(h, mean, m, CENTRED, False, not EVEN)
    weight = load_affine(p_weight, o_affine + o_col, m, not EVEN)
    bias = load_affine(p_bias, o_affine + o_col, m, not EVEN)
    y = scale_and_shift(
        deviation, rstd, weight, bias, offset,
        p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
    )  # fmt: skip
    return h, y


@triton.jit
def stream_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dresidual,
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
    lanes,
    cols,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """dx of one row."""
    lane, row = lane_and_row(tl.program_id(0), lanes, LANED)
    o_dy = row_start(row, lane, dy_row, dy_lane, ALIGN)
    o_h = row_start(row, lane, h_row, h_lane, ALIGN)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)
    o_affine = lane * affine_lane * ALIGN
    o_block = tl.arange(0, BLOCK)[None, :]
    end = cols * ALIGN
    count = end.to(tl.float32)
    rstd = tl.load(p_rstd + o_stat)
    mean = 0.0
    if CENTRED:
        mean = tl.load(p_mean + o_stat)

    dots = tl.zeros((1, BLOCK), tl.float32)
    sums = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, end, BLOCK):
        o_col = start + o_block
        m = o_col < end
        weight = load_affine(p_weight, o_affine + o_col, m, True)
        dy = load_row(p_dy, o_dy + o_col, m, True, KEPT).to(tl.float32)
        weighted_dy = weighted(dy, weight, offset, p_weight is not None, SHIFTED, NARROW, False)
        x_hat = (load_row(p_h, o_h + o_col, m, True, KEPT).to(tl.float32) - mean) * rstd
        dots += weighted_dy * x_hat
        if CENTRED:
            sums += weighted_dy
    mean_dot = tl.div_rn(row_sum(dots), count)
    mean_dy = tl.div_rn(row_sum(sums), count)

    for start in range(0, end, BLOCK):
        o_col = start + o_block
        m = o_col < end
        weight = load_affine(p_weight, o_affine + o_col, m, True)
        dy = load_row(p_dy, o_dy + o_col, m, True, PASSING).to(tl.float32)
        weighted_dy = weighted(dy, weight, offset, p_weight is not None, SHIFTED, NARROW, False)
        x_hat = (load_row(p_h, o_h + o_col, m, True, PASSING).to(tl.float32) - mean) * rstd
        dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
        arrived = load_arrived(p_dsum, row, lane, o_col, m, dsum_row, dsum_lane, True, ALIGN)
        store_gradient(
            dh, arrived, p_dx, p_dresidual, row, lane, o_col, m,
            dx_row, dx_lane, dresidual_row, dresidual_lane, p_dsum is not None, True, ALIGN,
        )  # fmt: skip


@triton.jit
def stream_backward_affine(
    p_dy,
    p_h,
    p_mean,
    p_rstd,
    p_dweights,
    p_dbiases,
    dy_row,
    dy_lane,
    h_row,
    h_lane,
    stat_row,
    stat_lane,
    rows,
    lanes,
    cols,
    programs,
    CENTRED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Partial dW and dB: a block of columns down every `programs`-th tile of a lane's rows."""
    end = cols * ALIGN
    blocks = tl.cdiv(end, BLOCK)
    partial = tl.program_id(0) // blocks  # program · lanes + lane
    lane, first = lane_and_row(partial, lanes, LANED)
    o_col = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < end
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(first, tl.cdiv(rows, ROWS), programs):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        dweight, dbias = with_rows(
            dweight, dbias, p_dy, p_h, p_mean, p_rstd, row, lane, row < rows, o_col, m_col,
            dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane,
            p_dweights is not None, p_dbiases is not None, CENTRED, X_HAT, NARROW, ALIGN,
        )  # fmt: skip
    o_partial = partial.to(tl.int64) * end + o_col
    if p_dweights is not None:
        store(p_dweights, o_partial, tl.sum(dweight, axis=0, keep_dims=True), m_col, True)
    if p_dbiases is not None:
        store(p_dbiases, o_partial, tl.sum(dbias, axis=0, keep_dims=True), m_col, True)
