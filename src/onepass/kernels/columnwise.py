"""FP8 both ways in one launch: rows, and the transpose with groups of its own, which run down 128, 64 or 32 rows.

A column's group needs y of all its rows, and y needs their rstd. So there are two kinds of programs: some find the
statistics of a few rows, others quantize tiles of 128 rows. They draw tickets, in an order in which the statistics of
a block of rows come a few blocks before its tiles: so a tile waits for programs that began before it, hardly ever for
long, and finds in the L2 what these read from memory. It is not a matter of how many programs run at the same time.

Rows are held in four blocks, each with every fourth row, so that four rows of a column lie in one thread: their bytes
are one word, and the transpose moves words.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import (
    INTERPRETED,
    KEPT,
    PASSING,
    deviation_of,
    inside,
    lane_and_row,
    load_affine,
    load_sum,
    narrowed,
    row_start,
    row_sum,
    rstd_of,
    scale_and_shift,
    store_row,
)
from onepass.kernels.quantize import (
    bits_of_magnitude,
    converted,
    factor_of_tensor,
    merge_amax,
    narrow,
    rounded,
    scale_place,
    scaled,
    steps_from,
    widened,
    word_of,
)
from onepass.kernels.stream import row_moments

#: Rows of a tile: the longest group down a column.
TILE = tl.constexpr(128)
#: Blocks of a row that are held for its statistics; more are walked.
MOST_HELD = tl.constexpr(8)

#: One thread looks, since each look makes the SM forget what it has in its L1; the others wait at the barrier.
WAIT_FOR_COUNT = tl.constexpr(
    """{
    .reg .pred other, early;
    .reg .u32 thread;
    mov.u32 thread, %tid.x;
    setp.ne.u32 other, thread, 0;
    mov.b32 $0, 0;
    @other bra there;
look:
    ld.acquire.gpu.global.b32 $0, [$1];
    setp.lt.s32 early, $0, $2;
    @early bra look;
there:
    }"""
)


@triton.jit
def wait_for_count(p_count, count):
    if not INTERPRETED:  # where programs run one after the other, in the order of their tickets
        p = p_count + tl.arange(0, 1)
        counts = tl.full((1,), 0, tl.int32) + count
        tl.inline_asm_elementwise(WAIT_FOR_COUNT, "=r,l,r", [p, counts], dtype=tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()


@triton.jit
def held_rows(
    p_x, p_residual, row, lane, x_row, x_lane, residual_row, residual_lane, end, NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Rows in blocks, with all their loads in flight at once; as in tile.py."""
    held = ()
    for i in tl.static_range(BLOCKS):
        o_col = i * BLOCK + tl.arange(0, BLOCK)[None, :]
        h = load_sum(
            p_x, p_residual, row, lane, o_col, o_col < end, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, not EVEN and i == BLOCKS - 1, ALIGN, KEPT,
        )  # fmt: skip
        held = held + (h,)  # noqa: RUF005
    return held


@triton.jit
def held_moments(
    held, end, CENTRED: tl.constexpr, NARROW: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """As row_moments, of rows that are held."""
    mean = 0.0
    if CENTRED:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for i in tl.static_range(BLOCKS):
            total += widened(held[i])
        mean = tl.div_rn(row_sum(total), end.to(tl.float32))
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(BLOCKS):
        m = i * BLOCK + tl.arange(0, BLOCK)[None, :] < end
        deviation = deviation_of(widened(held[i]), mean, m, CENTRED, False, not EVEN and i == BLOCKS - 1)
        squares += narrowed(deviation * deviation, NARROW)
    return mean, row_sum(squares)


@triton.jit
def amax_of_block(
    top, h, mean, rstd, p_weight, p_bias, lane, affine_lane, o_col, end, offset,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, ROUND: tl.constexpr,
    RAGGED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """`top` with the magnitudes of one more block of what is quantized."""
    m = o_col < end
    o_affine = lane * affine_lane * ALIGN + o_col
    y = scale_and_shift(
        deviation_of(widened(h), mean, m, CENTRED, False, RAGGED), rstd,
        load_affine(p_weight, o_affine, m, RAGGED), load_affine(p_bias, o_affine, m, RAGGED), offset,
        p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
    )  # fmt: skip
    return tl.maximum(top, bits_of_magnitude(rounded(y, m, ROUND, RAGGED)))


@triton.jit
def statistics_of_rows(
    p_x, p_residual, p_weight, p_bias, p_mean, p_rstd, p_factor, p_scale, first, rows, lanes, end, x_row, x_lane,
    residual_row, residual_lane, affine_lane, scale_row, eps, offset, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, KIND: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """mean and rstd; where a row has a scale of its own, that and its factor. Past the end, of the last row again."""
    HELD: tl.constexpr = BLOCKS <= MOST_HELD
    flat = tl.minimum(first + tl.arange(0, ROWS)[:, None], rows - 1)
    lane, row = lane_and_row(flat, lanes, LANED)
    held = ()
    if HELD:
        held = held_rows(
            p_x, p_residual, row, lane, x_row, x_lane, residual_row, residual_lane, end,
            NARROW, ROUND_SUM, BLOCK, BLOCKS, EVEN, ALIGN,
        )  # fmt: skip
    mean = 0.0
    rstd = 1.0
    if not IDENTITY:
        if HELD:
            mean, square = held_moments(held, end, CENTRED, NARROW, ROWS, BLOCK, BLOCKS, EVEN)
        else:
            mean, square = row_moments(
                p_x, p_residual, row, lane, x_row, x_lane, residual_row, residual_lane, end,
                CENTRED, NARROW, ROUND_SUM, ROWS, BLOCK, BLOCKS, EVEN, ALIGN,
            )  # fmt: skip
        rstd = rstd_of(square, end.to(tl.float32), eps, NARROW)
        tl.store(p_rstd + flat, rstd)
    if CENTRED:
        tl.store(p_mean + flat, mean)
    if KIND == "row":
        top = tl.zeros((ROWS, BLOCK), tl.int32)
        o_block = tl.arange(0, BLOCK)[None, :]
        if HELD:
            for i in tl.static_range(BLOCKS):
                top = amax_of_block(
                    top, held[i], mean, rstd, p_weight, p_bias, lane, affine_lane, i * BLOCK + o_block, end, offset,
                    CENTRED, SHIFTED, X_HAT, NARROW, ROUND, not EVEN and i == BLOCKS - 1, ALIGN,
                )  # fmt: skip
        else:
            for i in range(BLOCKS):
                o_col = i * BLOCK + o_block
                h = load_sum(
                    p_x, p_residual, row, lane, o_col, o_col < end, x_row, x_lane, residual_row, residual_lane,
                    NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
                )  # fmt: skip
                top = amax_of_block(
                    top, h, mean, rstd, p_weight, p_bias, lane, affine_lane, o_col, end, offset,
                    CENTRED, SHIFTED, X_HAT, NARROW, ROUND, not EVEN, ALIGN,
                )  # fmt: skip
        bits = tl.max(top, axis=1, keep_dims=True)
        scale, factor = steps_from(
            bits, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, False
        )
        tl.store(p_scale + flat * scale_row, scale)
        tl.store(p_factor + flat, factor)


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
    p_factor,
    p_columns,
    p_column_scale,
    p_tickets,
    x_row,
    x_lane,
    residual_row,
    residual_lane,
    y_row,
    scale_row,
    column_row,
    column_scale_row,
    affine_lane,
    scale_group,
    column_scale_group,
    rows,
    lanes,
    cols,
    ahead,
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
    COLS: tl.constexpr,
    RAGGED: tl.constexpr,
    ALIGN: tl.constexpr,
    READY: tl.constexpr,
    WORDS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
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
    """READY: the statistics are there. RAGGED: columns do not fill the last tile.

    TRANSPOSED: the transpose lies as its rows; else as the untransposed tensor would.
    WORDS: its rows are then a multiple of 16 long, and `column_row` is their length by 16.
    """
    PARTS: tl.constexpr = TILE // ROWS  # programs that find the statistics of a block of rows
    end = cols * ALIGN
    tiles = tl.cdiv(end, COLS)
    blocks = tl.cdiv(rows, TILE)
    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO
    )
    if READY:
        block = tl.program_id(0) // tiles
        tile = tl.program_id(0) % tiles
    else:
        ticket = tl.atomic_add(p_tickets, 1, sem="relaxed")
        turn = ticket - ahead * PARTS
        block = turn // (PARTS + tiles)
        within = turn % (PARTS + tiles)
        part = tl.where(turn < 0, ticket, (block + ahead) * PARTS + within)
        tile = tl.where(turn < 0, -1, within - PARTS)
        if tile < 0 and part < blocks * PARTS:
            statistics_of_rows(
                p_x, p_residual, p_weight, p_bias, p_mean, p_rstd, p_factor, p_scale, part * ROWS, rows, lanes, end,
                x_row, x_lane, residual_row, residual_lane, affine_lane, scale_row, eps, offset,
                floor, upper, largest, inverse, CENTRED, SHIFTED, LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM,
                KIND, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, ROWS, BLOCK, BLOCKS, EVEN, ALIGN,
            )  # fmt: skip
            tl.debug_barrier()
            tl.atomic_add(p_tickets + 1 + part // PARTS, 1, sem="release", scope="gpu")
        if tile >= 0:
            wait_for_count(p_tickets + 1 + block, PARTS)
    if tile >= 0:
        quantize_tile(
            p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_amax, p_factor,
            p_columns, p_column_scale, block, tile * COLS, x_row, x_lane, residual_row, residual_lane, y_row,
            scale_row, column_row, column_scale_row, affine_lane, scale_group, column_scale_group,
            rows, lanes, end, offset, factor, floor, upper, largest, inverse,
            CENTRED, SHIFTED, LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM, COLS, RAGGED, ALIGN,
            WORDS, TRANSPOSED, KIND, GROUP, ROUND, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
        )  # fmt: skip


@triton.jit
def quantize_tile(
    p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_amax, p_factor,
    p_columns, p_column_scale, block, first, x_row, x_lane, residual_row, residual_lane, y_row,
    scale_row, column_row, column_scale_row, affine_lane, scale_group, column_scale_group,
    rows, lanes, end, offset, factor, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, COLS: tl.constexpr, RAGGED: tl.constexpr,
    ALIGN: tl.constexpr, WORDS: tl.constexpr, TRANSPOSED: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr,
    ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr,
):  # fmt: skip
    """128 rows from `block` · 128 on and COLS columns from `first` on, both ways.

    Past the end it is the last row again: the same bytes are written to it once more, and no maximum changes. So there
    is nothing to mask but what lies in the transpose.
    """
    DIVIDES: tl.constexpr = ARITHMETIC == "scale"
    FORMAT: tl.constexpr = p_q.dtype.element_ty
    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    QUARTER: tl.constexpr = TILE // 4
    o_col = first + tl.arange(0, COLS)[None, :]
    m_col = o_col < end
    quarter = block * TILE + 4 * tl.arange(0, QUARTER)[:, None]
    # All loads first: they are what a program waits for.
    held = ()
    for k in tl.static_range(4):
        lane, row = lane_and_row(tl.minimum(quarter + k, rows - 1), lanes, LANED)
        h = load_sum(
            p_x, p_residual, row, lane, o_col, m_col, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, RAGGED, ALIGN, PASSING,
        )  # fmt: skip
        held = held + (h,)  # noqa: RUF005
    weight = 0.0
    bias = 0.0
    if not LANED:
        weight = load_affine(p_weight, o_col, m_col, RAGGED)
        bias = load_affine(p_bias, o_col, m_col, RAGGED)
    top = tl.zeros((QUARTER, COLS), tl.int32)
    across = ()
    ready = ()
    for k in tl.static_range(4):
        flat = tl.minimum(quarter + k, rows - 1)
        # What others wrote in this launch is in the L2.
        rstd = 1.0
        if not IDENTITY:
            rstd = tl.load(p_rstd + flat, cache_modifier=".cg")
        mean = 0.0
        if CENTRED:
            mean = tl.load(p_mean + flat, cache_modifier=".cg")
        if LANED:
            lane, row = lane_and_row(flat, lanes, LANED)
            o_affine = lane * affine_lane * ALIGN + o_col
            weight = load_affine(p_weight, o_affine, m_col, RAGGED)
            bias = load_affine(p_bias, o_affine, m_col, RAGGED)
        y = scale_and_shift(
            deviation_of(widened(held[k]), mean, m_col, CENTRED, False, RAGGED), rstd, weight, bias, offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
        )  # fmt: skip
        o_y = row_start(flat, lanes * 0, y_row, 0, ALIGN) + o_col
        if p_sum is not None:
            store_row(p_sum, o_y, held[k], m_col, RAGGED)
        if p_y is not None:
            store_row(p_y, o_y, y, m_col, RAGGED)
        narrow_values = narrow(y, m_col, ROUND, RAGGED)
        values = widened(narrow_values)
        by = factor
        if KIND == "row":
            by = tl.load(p_factor + flat, cache_modifier=".cg")
        if KIND == "group":
            grouped = tl.reshape(values, (QUARTER, COLS // GROUP, GROUP))
            bits = tl.max(bits_of_magnitude(grouped), axis=2, keep_dims=True)
            across = across + (tl.reshape(bits, (QUARTER, COLS // GROUP)),)  # noqa: RUF005
            _, by = steps_from(bits, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0)
            q = tl.reshape(converted(grouped, by, largest, FORMAT, DIVIDES, False), (QUARTER, COLS))
        else:
            q = converted(values, by, largest, FORMAT, DIVIDES, KIND == "given")
        store_row(p_q, o_y, q, m_col, RAGGED)
        if MERGED or KIND == "group":
            top = tl.maximum(top, bits_of_magnitude(values))
        if KIND == "group":
            ready = ready + (narrow_values,)  # noqa: RUF005
        else:
            ready = ready + (scaled(values, by, DIVIDES, KIND == "given"),)  # noqa: RUF005
    if MERGED:
        merge_amax(p_amax, top)
    if KIND == "group":
        store_scales(
            p_scale, across, block * TILE, first, scale_row, scale_group, rows, end, floor, upper, largest, inverse,
            GROUP, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED, COLS // GROUP,
        )  # fmt: skip
        down = factors_down(
            p_column_scale, top, block * TILE, o_col, column_scale_row, column_scale_group, rows, end,
            floor, upper, largest, inverse, GROUP, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
            TILE // GROUP, COLS,
        )  # fmt: skip
        ready = scaled_by(ready, down, DIVIDES)
    word = word_of(ready[0], ready[1], ready[2], ready[3], largest, FORMAT)
    store_words(word, p_columns, block, quarter, o_col, rows, end, column_row, RAGGED, WORDS, TRANSPOSED)


@triton.jit
def store_scales(
    p_scale, across, first_row, first, scale_row, scale_group, rows, end, floor, upper, largest, inverse,
    GROUP: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Scales of rows. `across` has the amax of groups of every fourth row; here they are in order again."""
    pairs = tl.join(tl.join(across[0], across[2]), tl.join(across[1], across[3]))
    bits = tl.reshape(tl.permute(pairs, (0, 2, 3, 1)), (TILE, GROUPS))
    scale, _ = steps_from(bits, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0)
    flat = first_row + tl.arange(0, TILE)[:, None]
    group = first // GROUP + tl.arange(0, GROUPS)[None, :]
    o_scale = scale_place(flat.to(tl.int64), group, scale_row, scale_group, SWIZZLED)
    tl.store(p_scale + o_scale, scale, mask=(flat < rows) & (group * GROUP < end))


@triton.jit
def factors_down(
    p_column_scale, top, first_row, o_col, column_scale_row, column_scale_group, rows, end, floor, upper, largest,
    inverse, GROUP: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Scales of GROUPS groups of each column, stored, and what values meet. `top` is the amax of each four rows."""
    QUARTER: tl.constexpr = top.shape[0]
    bits = tl.max(tl.reshape(top, (GROUPS, QUARTER // GROUPS, COLS)), axis=1, keep_dims=True)
    scale, down = steps_from(bits, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0)
    group = first_row // GROUP + tl.arange(0, GROUPS)[:, None]
    o_scale = scale_place(o_col.to(tl.int64), group, column_scale_row, column_scale_group, SWIZZLED)
    m = (o_col < end) & (group * GROUP < rows)
    tl.store(p_column_scale + o_scale, tl.reshape(scale, (GROUPS, COLS)), mask=m)
    if GROUPS == 1:
        return tl.reshape(down, (1, COLS))
    else:
        return tl.reshape(tl.broadcast_to(down, (GROUPS, QUARTER // GROUPS, COLS)), (QUARTER, COLS))


@triton.jit
def scaled_by(values, factor, DIVIDES: tl.constexpr):
    results = ()
    for k in tl.static_range(4):
        results = results + (scaled(widened(values[k]), factor, DIVIDES, False),)  # noqa: RUF005
    return results


@triton.jit
def store_words(
    word, p, block, quarter, o_col, rows, end, step, RAGGED: tl.constexpr, WORDS: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Bytes of rows `quarter` to `quarter` + 3; `step` is from row to row of what is written, by 16 if WORDS."""
    if TRANSPOSED and WORDS:
        # Four words at once, of which the compiler must be told; sixteen rows are inside, or outside.
        index = block * (TILE // 4) + tl.arange(0, TILE // 4)[None, :]
        o_word = tl.trans(o_col.to(tl.int64)) * (step * 4) + index
        m_word = inside(index // 4 * 16 < rows, tl.trans(o_col), end, RAGGED)
        p_words = p.to(tl.pointer_type(tl.int32), bitcast=True)
        p_four = tl.max_contiguous(tl.multiple_of(p_words + o_word, (4, 16)), (1, 4))
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
def transpose_bytes(p_x, p_columns, rows, cols, COLS: tl.constexpr, WORDS: tl.constexpr, ALIGN: tl.constexpr):
    """The transpose of bytes, in words of four rows as above."""
    end = cols * ALIGN
    tiles = tl.cdiv(end, COLS)
    o_col = tl.program_id(0) % tiles * COLS + tl.arange(0, COLS)[None, :]
    block = tl.program_id(0) // tiles
    quarter = block * TILE + 4 * tl.arange(0, TILE // 4)[:, None]
    m_col = o_col < end
    word = tl.zeros((TILE // 4, COLS), tl.int32)
    for k in tl.static_range(4):
        flat = quarter + k
        byte = tl.load(p_x + flat.to(tl.int64) * end + o_col, mask=(flat < rows) & m_col, other=0)
        word |= byte.to(tl.int32) << (8 * k)
    store_words(word, p_columns, block, quarter, o_col, rows, end, rows // 16 if WORDS else rows, True, WORDS, True)
