"""Schedule 1, tile: a program holds whole rows in registers, one row or several, each cut into blocks of columns.

Blocks are powers of two and rows need not be: 5,120 columns are five blocks of 1,024, where one block would have to be
8,192 wide. A row is summed block upon block first, then across.

Forward: a program for each tile. Backward: programs stay and walk the tiles, with the loads of the next ones in flight
(STAGES). It reads x and dy once; it reduces along the row for dx, and down the rows for dW and dB, which stay in fp32
registers until the end.
"""

import triton
import triton.language as tl

from onepass.kernels.cluster import arrive, columns_of, maximum_of_slices, sum_of_cluster, sum_of_slices
from onepass.kernels.parts import (
    KEPT,
    PASSING,
    USUAL,
    deviation_of,
    gradient_means,
    input_gradient,
    inside,
    keep_order,
    lane_and_row,
    load,
    load_arrived,
    load_row,
    load_sum,
    mean_of,
    normalized,
    over_rows,
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
from onepass.kernels.stream import moments_from, squares_about
from onepass.kernels.sums import next_chain, no_sums, sum_by_warps, sum_of_chains

#: Bytes of x that are to stay in the L2 for the next launch, where the tensor has one scale and it is found first: 86
#: us against 91 at 8,192 x 8,192, and the same with 16 to 40 MiB. With a residual it is slower: 184 against 174.
READ_AGAIN = tl.constexpr(24 << 20)


@triton.jit
def pivoted_moments(
    held, o_block, end, NARROW: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, RAGGED: tl.constexpr,
    PACKED: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """As row_moments of stream.py, of a row that is held."""
    pivots = wide(held[0], PACKED)
    sums = tl.zeros((1, BLOCK), tl.float32)
    squares = tl.zeros((1, BLOCK), tl.float32)
    for i in tl.static_range(1, BLOCKS):
        m = i * (BLOCK * SLICES) + o_block < end
        deviation = deviation_of(held[i], pivots, m, True, PACKED, i == RAGGED)
        squares = with_square(squares, deviation, NARROW)
        sums += deviation
    return moments_from(pivots, sums, squares, o_block, end, BLOCK, SLICES)


@triton.jit
def moments_at_once(
    held, o_block, end, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, RAGGED: tl.constexpr, PACKED: tl.constexpr,
    SLICES: tl.constexpr, EACH: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The same in one walk over the row, while it comes, and with few registers.

    EACH columns side by side, which a thread has, and those at their place in other blocks take deviations from one
    pivot: the mean of the first ones. If that is off by d then these EACH values add EACH · d² to the sum at the least,
    which loses to rounding what n · d² would, for all n values of the pivot: little more than it would with the mean.
    """
    VECTORS: tl.constexpr = BLOCK // EACH
    pivots = tl.sum(wide(tl.reshape(held[0], (VECTORS, EACH)), PACKED), axis=1) * (1.0 / EACH)
    sums = tl.zeros((VECTORS,), tl.float32)
    squares = tl.zeros((VECTORS, EACH // 2), tl.float32)
    met = tl.zeros((VECTORS,), tl.float32) + BLOCKS * EACH
    for i in tl.static_range(BLOCKS):
        deviation = wide(tl.reshape(held[i], (VECTORS, EACH)), PACKED) - pivots[:, None]
        if i == RAGGED:
            m = tl.reshape(i * (BLOCK * SLICES) + o_block < end, (VECTORS, EACH))
            deviation = tl.where(m, deviation, 0.0)
            met += tl.sum(m.to(tl.float32), axis=1) - EACH
        sums += tl.sum(deviation, axis=1)
        first, second = tl.split(tl.reshape(deviation, (VECTORS, EACH // 2, 2)))
        squares = tl.fma(second, second, tl.fma(first, first, squares))
    # Numbers, not blocks, whose layout all that follows would have to take.
    total = sum_by_warps(tl.fma(met, pivots, sums), WARPS)
    if SLICES > 1:
        total = sum_of_cluster(total, True)
    mean = tl.div_rn(total, end.to(tl.float32))
    square = sum_by_warps(squares_about(mean, met, pivots, sums, tl.sum(squares, axis=1)), WARPS)
    if SLICES > 1:
        square = sum_of_cluster(square, False)
    return mean, tl.maximum(square, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def tile_rows(
    index, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax, x_row,
    x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group,
    rows, lanes, cols, eps, offset, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    EVEN: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr, AS_WALKED: tl.constexpr, AT_ONCE: tl.constexpr,
    AHEAD: tl.constexpr, AFFINE_FIRST: tl.constexpr, CHAINS: tl.constexpr, WARPS: tl.constexpr, SLICES: tl.constexpr,
    UNIT: tl.constexpr, PROMPT: tl.constexpr, SUM_FIRST: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    ROUND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """Rows of the tile of that number. HINT: which lines of an FP8 output the L2 is to give up first.

    AS_WALKED: with many such rows each would be walked (stream.py), and its sums have the same order here.
    AT_ONCE: both moments are found in one walk, with a pivot for so many columns; None: the mean first.
    AHEAD: blocks whose weight and bias are asked for before the row is summed, while others wait; None: all of them.
    AFFINE_FIRST: and before the row is.
    CHAINS: in which a row's blocks are summed in turn (sums.py). WARPS: over which a block of it lies, in one vector
    of each thread; 1: of these, or as it may.
    SLICES: programs that share the row, each with BLOCK columns of a wider block (cluster.py); not with groups.
    PROMPT: rows are few, and what counts is how soon each is done, and not how many an SM has room for.
    SUM_FIRST: sums with the residual are stored before they are normalized, and not with y.
    """
    RAGGED: tl.constexpr = -1 if EVEN else BLOCKS - 1  # which block is
    EARLY: tl.constexpr = BLOCKS if AHEAD is None else AHEAD
    WIDTH: tl.constexpr = BLOCK * SLICES
    COLS: tl.constexpr = WIDTH * BLOCKS if PROMPT and EVEN else None
    READ: tl.constexpr = USUAL if PROMPT and p_residual is None else KEPT
    WRITTEN: tl.constexpr = USUAL if PROMPT and p_residual is None else PASSING
    own = 0
    if SLICES > 1:
        index = arrive(index)
        own = index % SLICES
        index = index // SLICES
    lane, tile = lane_and_row(index, lanes, LANED)
    row = tile * ROWS + tl.arange(0, ROWS)[:, None]
    m_row = row < rows
    o_block = columns_of(own, BLOCK, UNIT, SLICES)
    end = cols * ALIGN
    count = end.to(tl.float32)
    o_y = row_start(row, lane, y_row, y_lane, ALIGN)
    o_stat = row_start(row, lane, stat_row, stat_lane, 1)

    # The compiler may move what stands before the row behind it, and ask for weight and bias when the row has come.
    o_affine = lane * affine_lane * ALIGN + o_block
    if PROMPT:
        o_affine = over_rows(o_affine, ROWS, BLOCK, ALIGN)
    weights = ()
    biases = ()
    for i in tl.static_range(EARLY if AFFINE_FIRST else 0):
        m_col = i * WIDTH + o_block < end
        weights = with_affine(weights, p_weight, o_affine + i * WIDTH, m_col, i == RAGGED)
        biases = with_affine(biases, p_bias, o_affine + i * WIDTH, m_col, i == RAGGED)
    if AFFINE_FIRST:
        keep_order(cols)
    held = ()
    for i in tl.static_range(BLOCKS):
        o_col = i * WIDTH + o_block
        m = inside(m_row, o_col, end, i == RAGGED)
        if KIND == "amax" and p_residual is None:
            # The launch that follows begins with what is read last here. A choice between two whole programs is fewer
            # instructions, and yet slower: 166 us against 158 at 32,768 x 4,096.
            o_x = row_start(row, lane, x_row, x_lane, ALIGN) + o_col
            if index < tl.num_programs(0) - READ_AGAIN // (end * ROWS * p_x.dtype.element_ty.primitive_bitwidth // 8):
                h = load_row(p_x, o_x, m, ROWS > 1 or i == RAGGED, PASSING)
            else:
                h = load_row(p_x, o_x, m, ROWS > 1 or i == RAGGED, KEPT)
        else:
            h = load_sum(
                p_x, p_residual, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
                NARROW, ROUND_SUM, ROWS > 1 or i == RAGGED, ALIGN, READ,
            )  # fmt: skip
        held = held + (h,)  # noqa: RUF005 (Triton has no unpacking)
    # Where not all blocks' are asked for before the row is summed, the others' are on the way, before a store, behind
    # which the compiler would keep them.
    for i in tl.static_range(0 if AFFINE_FIRST else EARLY):
        m_col = i * WIDTH + o_block < end
        weights = with_affine(weights, p_weight, o_affine + i * WIDTH, m_col, i == RAGGED)
        biases = with_affine(biases, p_bias, o_affine + i * WIDTH, m_col, i == RAGGED)
    if p_sum is not None and SUM_FIRST:
        for i in tl.static_range(BLOCKS):
            m = inside(m_row, i * WIDTH + o_block, end, i == RAGGED)
            store_row(p_sum, o_y + (i * WIDTH + o_block), held[i], m, ROWS > 1 or i == RAGGED, WRITTEN)

    mean = 0.0
    rstd = 1.0
    KNOWN: tl.constexpr = KIND == "tensor" and not IDENTITY  # from the launch before
    SIDE: tl.constexpr = BLOCK // (32 * WARPS)
    PIVOTED: tl.constexpr = CENTRED and (AS_WALKED or (AT_ONCE is not None and NARROW is None))
    if KNOWN:
        rstd = load(p_rstd, o_stat, m_row, ROWS > 1)
        if CENTRED:
            mean = load(p_mean, o_stat, m_row, ROWS > 1)
    elif PIVOTED:
        if AS_WALKED:
            mean, square = pivoted_moments(held, o_block, end, NARROW, BLOCK, BLOCKS, RAGGED, PACKED, SLICES)
        else:
            mean, square = moments_at_once(held, o_block, end, BLOCK, BLOCKS, RAGGED, PACKED, SLICES, AT_ONCE, WARPS)
        rstd = rstd_of(square, count, eps, NARROW, COLS)
    elif CENTRED:
        sums = no_sums(ROWS, BLOCK, CHAINS)
        for i in tl.static_range(BLOCKS):
            sums = next_chain(sums, sums[0] + wide(held[i], PACKED))
        mean = mean_of(sum_of_slices(sum_of_chains(sums, CHAINS, WARPS, SIDE), SLICES, True), count, COLS)
    if p_mean is not None and not KNOWN:
        store(p_mean, o_stat, mean, m_row, ROWS > 1)
    if not IDENTITY and not KNOWN and not PIVOTED:
        squares = no_sums(ROWS, BLOCK, CHAINS)
        for i in tl.static_range(BLOCKS):
            deviation = deviation_of(held[i], mean, i * WIDTH + o_block < end, CENTRED, PACKED, i == RAGGED)
            squares = next_chain(squares, with_square(squares[0], deviation, NARROW))
        square = sum_of_slices(sum_of_chains(squares, CHAINS, WARPS, SIDE), SLICES, not CENTRED)
        rstd = rstd_of(square, count, eps, NARROW, COLS)
    if p_rstd is not None and not KNOWN:
        store(p_rstd, o_stat, rstd, m_row, ROWS > 1)

    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO
    )
    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    top = tl.zeros((ROWS, BLOCK), tl.float32)
    if KIND == "row":
        for i in tl.static_range(BLOCKS):
            y = scale_and_shift(
                deviation_of(held[i], mean, None, CENTRED, PACKED, False), rstd, weights[i], biases[i], offset,
                p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, PACKED,
            )  # fmt: skip
            m_col = i * WIDTH + o_block < end
            top = above(top, tl.abs(within(y, m_col, i == RAGGED)))
        amax = maximum_of_slices(amax_of(top, 1, ROUND), SLICES, IDENTITY)
        scale, factor = steps_from(
            amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0
        )
        tl.store(p_scale + o_stat * scale_row, scale, mask=m_row)
    for i in tl.static_range(BLOCKS):
        o_col = i * WIDTH + o_block
        m = inside(m_row, o_col, end, i == RAGGED)
        if p_sum is not None and not SUM_FIRST:
            store_row(p_sum, o_y + o_col, held[i], m, ROWS > 1 or i == RAGGED, WRITTEN)
        deviation = deviation_of(held[i], mean, None, CENTRED, PACKED, False)
        if AHEAD is not None and i + AHEAD < BLOCKS:
            o_ahead = o_affine + (i + AHEAD) * WIDTH
            m_ahead = o_col + AHEAD * WIDTH < end
            weights = with_affine(weights, p_weight, o_ahead, m_ahead, i + AHEAD == RAGGED)
            biases = with_affine(biases, p_bias, o_ahead, m_ahead, i + AHEAD == RAGGED)
        y = scale_and_shift(
            deviation, rstd, weights[i], biases[i], offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, PACKED,
        )  # fmt: skip
        if p_y is not None:
            store_row(p_y, o_y + o_col, y, m, ROWS > 1 or i == RAGGED, WRITTEN)
        if KIND is not None:
            y = within(y, m, ROWS > 1 or i == RAGGED)
            if MERGED:
                top = above(top, tl.abs(y))
            if p_q is not None:
                values = rounded(y, ROUND)
                store_quantized(
                    p_q, o_y + o_col, p_scale, o_stat, scale_row, scale_group, values, m, m_row, i * WIDTH, end, factor,
                    floor, upper, largest, inverse, KIND, GROUP, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0,
                    SWIZZLED, ROWS > 1 or i == RAGGED, ROWS, BLOCK, HINT,
                )  # fmt: skip
    if MERGED:
        merge_amax(p_amax, top, ROUND)


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
    rows,
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
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    AS_WALKED: tl.constexpr,
    AT_ONCE: tl.constexpr,
    AHEAD: tl.constexpr,
    AFFINE_FIRST: tl.constexpr,
    CHAINS: tl.constexpr,
    WARPS: tl.constexpr,
    SLICES: tl.constexpr,
    UNIT: tl.constexpr,
    PROMPT: tl.constexpr,
    SUM_FIRST: tl.constexpr,
    DENSE: tl.constexpr,
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
    """DENSE: a row begins where the last one ends, in every tensor, and what follows from that is not looked up."""
    index = tl.program_id(0)
    if DENSE:
        if EVEN:
            cols = tl.cast(BLOCK * BLOCKS * SLICES // ALIGN, tl.int32)
        x_row = cols.to(tl.int64)
        residual_row = cols.to(tl.int64)
        y_row = cols.to(tl.int64)
    if KIND == "tensor":  # what was read last for amax is what the L2 still has
        index = tl.num_programs(0) - 1 - index
    tile_rows(
        index, p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_given, p_amax, x_row,
        x_lane, residual_row, residual_lane, y_row, y_lane, stat_row, stat_lane, scale_row, affine_lane, scale_group,
        rows, lanes, cols, eps, offset, floor, upper, largest, inverse, CENTRED, SHIFTED, LANED, X_HAT, NARROW,
        IDENTITY, ROUND_SUM, ROWS, BLOCK, BLOCKS, EVEN, ALIGN, PACKED, AS_WALKED, AT_ONCE, AHEAD, AFFINE_FIRST, CHAINS,
        WARPS, SLICES, UNIT, PROMPT, SUM_FIRST, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0,
        SWIZZLED, PASSING,
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
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    WARPS: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVER_ROWS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """WARPS and SIDE: how a row lies, as in sums.py. OVER_ROWS: as in parts.py. DENSE: as in tile_forward."""
    RAGGED: tl.constexpr = -1 if EVEN else BLOCKS - 1  # which block is
    WEIGHTED: tl.constexpr = p_weight is not None
    COLS: tl.constexpr = BLOCK * BLOCKS if CENTRED and EVEN else None  # RMSNorm, with one division, is level
    if DENSE:
        if EVEN:
            cols = tl.cast(BLOCK * BLOCKS // ALIGN, tl.int32)
        dy_row = cols.to(tl.int64)
        dsum_row = cols.to(tl.int64)
        h_row = cols.to(tl.int64)
        dx_row = cols.to(tl.int64)
        dresidual_row = cols.to(tl.int64)
    lane, first = lane_and_row(tl.program_id(0), lanes, LANED)
    o_block = tl.arange(0, BLOCK)[None, :]
    end = cols * ALIGN
    count = end.to(tl.float32)
    weights = ()
    dweights = ()
    dbiases = ()
    for i in tl.static_range(BLOCKS):
        o_affine = lane * affine_lane * ALIGN + i * BLOCK + o_block
        if OVER_ROWS:
            o_affine = over_rows(o_affine, ROWS, BLOCK, ALIGN)
        weights = with_affine(weights, p_weight, o_affine, i * BLOCK + o_block < end, i == RAGGED)
        dweights = dweights + (tl.zeros((ROWS, BLOCK), tl.float32),)  # noqa: RUF005
        dbiases = dbiases + (tl.zeros((ROWS, BLOCK), tl.float32),)  # noqa: RUF005

    for tile in tl.range(first, tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        m_row = row < rows
        o_dy = row_start(row, lane, dy_row, dy_lane, ALIGN)
        o_h = row_start(row, lane, h_row, h_lane, ALIGN)
        held_h = ()
        held_dy = ()
        for i in tl.static_range(BLOCKS):
            o_col = i * BLOCK + o_block
            m = inside(m_row, o_col, end, i == RAGGED)
            held_h = held_h + (load(p_h, o_h + o_col, m, ROWS > 1 or i == RAGGED),)  # noqa: RUF005
            held_dy = held_dy + (load(p_dy, o_dy + o_col, m, ROWS > 1 or i == RAGGED),)  # noqa: RUF005
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        rstd = load(p_rstd, o_stat, m_row, ROWS > 1)
        mean = 0.0
        if CENTRED:
            mean = load(p_mean, o_stat, m_row, ROWS > 1)

        mean_dot = 0.0
        mean_dy = 0.0
        if p_dx is not None:
            mean_dot, mean_dy = gradient_means(
                held_dy, held_h, weights, offset, mean, rstd, count,
                CENTRED, WEIGHTED, SHIFTED, NARROW, ROWS, BLOCK, BLOCKS, PACKED, 1, WARPS, SIDE, COLS,
            )  # fmt: skip

        further_dweights = ()
        further_dbiases = ()
        for i in tl.static_range(BLOCKS):
            o_col = i * BLOCK + o_block
            m = inside(m_row, o_col, end, i == RAGGED)
            dy = wide(held_dy[i], PACKED)
            deviation = deviation_of(held_h[i], mean, None, CENTRED, PACKED, False)
            if p_dx is not None:
                weighted_dy = weighted(dy, weights[i], offset, WEIGHTED, SHIFTED, NARROW, PACKED)
                dh = input_gradient(weighted_dy, deviation * rstd, rstd, mean_dot, mean_dy, CENTRED)
                arrived = load_arrived(p_dsum, row, lane, o_col, m, dsum_row, dsum_lane, ROWS > 1 or i == RAGGED, ALIGN)
                store_gradient(
                    dh, arrived, p_dx, p_dresidual, row, lane, o_col, m,
                    dx_row, dx_lane, dresidual_row, dresidual_lane, p_dsum is not None, ROWS > 1 or i == RAGGED, ALIGN,
                )  # fmt: skip
            dweight = dweights[i]
            if p_dweights is not None:
                dweight += dy * normalized(deviation, rstd, X_HAT, NARROW)
            dbias = dbiases[i]
            if p_dbiases is not None:
                dbias += dy
            further_dweights = further_dweights + (dweight,)  # noqa: RUF005
            further_dbiases = further_dbiases + (dbias,)  # noqa: RUF005
        dweights = further_dweights
        dbiases = further_dbiases

    # One partial row a program; sum_partials adds them up in a fixed order.
    o_partial = tl.program_id(0).to(tl.int64) * end
    for i in tl.static_range(BLOCKS):
        o_col = i * BLOCK + o_block
        if p_dweights is not None:
            store(p_dweights, o_partial + o_col, tl.sum(dweights[i], axis=0, keep_dims=True), o_col < end, i == RAGGED)
        if p_dbiases is not None:
            store(p_dbiases, o_partial + o_col, tl.sum(dbiases[i], axis=0, keep_dims=True), o_col < end, i == RAGGED)
