"""FP8 both ways in one launch: rows, and the transpose with groups of its own, which run down 128, 64 or 32 rows.

A column's group needs y of all its rows, and y needs their rstd. So there are two kinds of programs: some find the
statistics of a few rows, others quantize tiles of 128 rows. They draw tickets, in an order in which the statistics of
a block of rows come a few blocks before its tiles: so a tile waits for programs that began before it, hardly ever for
long, and finds in the L2 what these read from memory. It is not a matter of how many programs run at the same time.

A tile is held as four blocks of 32 rows, each with every fourth row, so that four rows of a column lie in one thread:
their bytes are one word, and the transpose moves words.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import (
    INTERPRETED,
    KEPT,
    PASSING,
    deviation_of,
    lane_and_row,
    load_affine,
    load_sum,
    row_start,
    rstd_of,
    scale_and_shift,
    store_row,
)
from onepass.kernels.quantize import (
    bits_of_magnitude,
    factor_of_tensor,
    merge_amax,
    rounded,
    scale_place,
    scaled,
    steps_from,
    store_quantized,
    word_of,
)
from onepass.kernels.stream import row_moments

#: Rows of a tile: the longest group down a column.
TILE = tl.constexpr(128)
#: Of which a thread has four of the same column side by side.
QUARTER = tl.constexpr(32)

WAIT_FOR_COUNT = tl.constexpr(
    """{
    .reg .pred early;
look:
    ld.acquire.gpu.global.b32 $0, [$1];
    setp.lt.s32 early, $0, $2;
    @early bra look;
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
def statistics_of_rows(
    p_x, p_residual, p_weight, p_bias, p_mean, p_rstd, p_factor, p_scale, first, rows, lanes, end, x_row, x_lane,
    residual_row, residual_lane, affine_lane, scale_row, eps, offset, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, KIND: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr,
    ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """mean and rstd; where a row has a scale of its own, that and its factor. Past the end, of the last row again."""
    flat = tl.minimum(first + tl.arange(0, ROWS)[:, None], rows - 1)
    lane, row = lane_and_row(flat, lanes, LANED)
    mean = 0.0
    rstd = 1.0
    if not IDENTITY:
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
        for i in range(BLOCKS):
            o_col = i * BLOCK + tl.arange(0, BLOCK)[None, :]
            m = o_col < end
            h = load_sum(
                p_x, p_residual, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
                NARROW, ROUND_SUM, not EVEN, ALIGN, KEPT,
            )  # fmt: skip
            o_affine = lane * affine_lane * ALIGN + o_col
            y = scale_and_shift(
                deviation_of(h, mean, m, CENTRED, False, not EVEN), rstd,
                load_affine(p_weight, o_affine, m, not EVEN), load_affine(p_bias, o_affine, m, not EVEN), offset,
                p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
            )  # fmt: skip
            top = tl.maximum(top, bits_of_magnitude(rounded(y, m, ROUND, not EVEN)))
        bits = tl.max(top, axis=1, keep_dims=True)
        scale, factor = steps_from(bits, floor, upper, largest, inverse, BOUNDED, ARITHMETIC, POWER_OF_TWO, False)
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
    ALIGN: tl.constexpr,
    READY: tl.constexpr,
    WORDS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    BOUNDED: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr,
):
    """READY: the statistics are there. WORDS: four rows begin at a multiple of four bytes in the transpose.

    TRANSPOSED: it lies as rows of the transpose; else as the untransposed tensor would.
    """
    PARTS: tl.constexpr = TILE // ROWS  # programs that find the statistics of a block of rows
    end = cols * ALIGN
    tiles = tl.cdiv(end, COLS)
    blocks = tl.cdiv(rows, TILE)
    factor = factor_of_tensor(
        p_given, p_amax, p_scale, floor, upper, largest, inverse, KIND, BOUNDED, ARITHMETIC, POWER_OF_TWO
    )
    if READY:
        block = tl.program_id(0) // tiles
        tile = tl.program_id(0) % tiles
    else:
        ticket = tl.atomic_add(p_tickets, 1)
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
                KIND, ROUND, BOUNDED, ARITHMETIC, POWER_OF_TWO, ROWS, BLOCK, BLOCKS, EVEN, ALIGN,
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
            CENTRED, SHIFTED, LANED, X_HAT, NARROW, IDENTITY, ROUND_SUM, COLS, ALIGN, WORDS, TRANSPOSED,
            KIND, GROUP, ROUND, BOUNDED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
        )  # fmt: skip


@triton.jit
def quantize_tile(
    p_x, p_residual, p_weight, p_bias, p_y, p_sum, p_mean, p_rstd, p_q, p_scale, p_amax, p_factor,
    p_columns, p_column_scale, block, first, x_row, x_lane, residual_row, residual_lane, y_row,
    scale_row, column_row, column_scale_row, affine_lane, scale_group, column_scale_group,
    rows, lanes, end, offset, factor, floor, upper, largest, inverse,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, LANED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    IDENTITY: tl.constexpr, ROUND_SUM: tl.constexpr, COLS: tl.constexpr, ALIGN: tl.constexpr,
    WORDS: tl.constexpr, TRANSPOSED: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr, BOUNDED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr, SWIZZLED: tl.constexpr,
):  # fmt: skip
    """128 rows from `block` · 128 on and COLS columns from `first` on, both ways."""
    DIVIDES: tl.constexpr = ARITHMETIC == "scale"
    FORMAT: tl.constexpr = p_q.dtype.element_ty
    MERGED: tl.constexpr = p_amax is not None and KIND != "tensor"
    o_col = first + tl.arange(0, COLS)[None, :]
    m_col = o_col < end
    quarter = block * TILE + 4 * tl.arange(0, QUARTER)[:, None]

    # All loads first: they are what a tile waits for.
    held = ()
    for k in tl.static_range(4):
        flat = quarter + k
        lane, row = lane_and_row(flat, lanes, LANED)
        h = load_sum(
            p_x, p_residual, row, lane, o_col, (flat < rows) & m_col, x_row, x_lane, residual_row, residual_lane,
            NARROW, ROUND_SUM, True, ALIGN, PASSING,
        )  # fmt: skip
        held = held + (h,)  # noqa: RUF005
    top = tl.zeros((QUARTER, COLS), tl.int32)
    values = ()
    for k in tl.static_range(4):
        flat = quarter + k
        m_row = flat < rows
        m = m_row & m_col
        lane, row = lane_and_row(flat, lanes, LANED)
        o_y = row_start(flat, lane * 0, y_row, 0, ALIGN) + o_col
        # What others wrote in this launch is in the L2.
        rstd = 1.0
        if not IDENTITY:
            rstd = tl.load(p_rstd + flat, mask=m_row, other=0.0, cache_modifier=".cg")
        mean = 0.0
        if CENTRED:
            mean = tl.load(p_mean + flat, mask=m_row, other=0.0, cache_modifier=".cg")
        if p_sum is not None:
            store_row(p_sum, o_y, held[k], m, True)
        o_affine = lane * affine_lane * ALIGN + o_col
        y = scale_and_shift(
            deviation_of(held[k], mean, m, CENTRED, False, True), rstd,
            load_affine(p_weight, o_affine, m, True), load_affine(p_bias, o_affine, m, True), offset,
            p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
        )  # fmt: skip
        if p_y is not None:
            store_row(p_y, o_y, y, m, True)
        y = rounded(y, m, ROUND, True)
        if KIND == "row":
            factor = tl.load(p_factor + flat, mask=m_row, other=0.0, cache_modifier=".cg")
        store_quantized(
            p_q, o_y, p_scale, flat.to(tl.int64), scale_row, scale_group, y, m, m_row, first, end, factor,
            floor, upper, largest, inverse, KIND, GROUP, BOUNDED, ARITHMETIC, POWER_OF_TWO, E8M0, SWIZZLED,
            True, QUARTER, COLS,
        )  # fmt: skip
        if MERGED or KIND == "group":
            top = tl.maximum(top, bits_of_magnitude(y))
        if KIND == "group":
            values = values + (y,)  # noqa: RUF005
        else:
            values = values + (scaled(y, factor, DIVIDES, KIND == "given"),)  # noqa: RUF005
    if MERGED:
        merge_amax(p_amax, top)

    if KIND == "group":
        GROUPS: tl.constexpr = TILE // GROUP
        bits = tl.max(tl.reshape(top, (GROUPS, QUARTER // GROUPS, COLS)), axis=1, keep_dims=True)
        scale, down = steps_from(bits, floor, upper, largest, inverse, BOUNDED, ARITHMETIC, POWER_OF_TWO, E8M0)
        group = block * GROUPS + tl.arange(0, GROUPS)[:, None]
        o_scale = scale_place(o_col.to(tl.int64), group, column_scale_row, column_scale_group, SWIZZLED)
        tl.store(p_column_scale + o_scale, tl.reshape(scale, (GROUPS, COLS)), mask=m_col & (group * GROUP < rows))
        spread = tl.broadcast_to(down, (GROUPS, QUARTER // GROUPS, COLS))
        down = tl.reshape(spread, (QUARTER, COLS))
        scaled_values = ()
        for k in tl.static_range(4):
            scaled_values = scaled_values + (scaled(values[k], down, DIVIDES, False),)  # noqa: RUF005
        values = scaled_values

    word = word_of(values[0], values[1], values[2], values[3], largest, FORMAT)
    store_words(word, p_columns, quarter, o_col, rows, end, column_row, WORDS, TRANSPOSED)


@triton.jit
def store_words(word, p, quarter, o_col, rows, cols, step, WORDS: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Bytes of rows `quarter` to `quarter` + 3; `step` is from row to row of what is written."""
    m_col = o_col < cols
    if TRANSPOSED and WORDS:
        o_word = tl.trans(o_col.to(tl.int64)) * (step // 4) + tl.trans(quarter // 4)
        m_word = tl.trans(m_col) & tl.trans(quarter < rows)
        p_words = p.to(tl.pointer_type(tl.int32), bitcast=True)
        tl.store(p_words + o_word, tl.trans(word), mask=m_word, eviction_policy=PASSING)
    else:
        for k in tl.static_range(4):
            flat = quarter + k
            byte = ((word >> (8 * k)) & 0xFF).to(tl.uint8).to(p.dtype.element_ty, bitcast=True)
            if TRANSPOSED:
                o_byte = o_col.to(tl.int64) * step + flat
            else:
                o_byte = flat.to(tl.int64) * step + o_col
            tl.store(p + o_byte, byte, mask=(flat < rows) & m_col, eviction_policy=PASSING)


@triton.jit
def transpose_bytes(p_x, p_columns, rows, cols, COLS: tl.constexpr, WORDS: tl.constexpr, ALIGN: tl.constexpr):
    """The transpose of bytes, in words of four rows as above."""
    end = cols * ALIGN
    tiles = tl.cdiv(end, COLS)
    o_col = tl.program_id(0) % tiles * COLS + tl.arange(0, COLS)[None, :]
    quarter = tl.program_id(0) // tiles * TILE + 4 * tl.arange(0, QUARTER)[:, None]
    m_col = o_col < end
    word = tl.zeros((QUARTER, COLS), tl.int32)
    for k in tl.static_range(4):
        flat = quarter + k
        byte = tl.load(p_x + flat.to(tl.int64) * end + o_col, mask=(flat < rows) & m_col, other=0)
        word |= byte.to(tl.int32) << (8 * k)
    store_words(word, p_columns, quarter, o_col, rows, end, rows, WORDS, True)
