"""Forward of rows that begin anywhere, in vectors: through shared memory, in which they are shifted to their places.

Rows of 4,099 columns of 16 bits begin at odd addresses, and threads can load them no more than one element at a time
(tile.py). Here asynchronous copies bring whole lines of 128 bytes, from the one in which a row begins to the one in
which it ends. From shared memory each thread takes, element by element, the columns that it has in tile.py too, and
sums them in the same order: a row's bits depend neither on where it begins nor on which of the two is planned. y goes
to shared memory the same way, element by element, and from there out in vectors, the two at its ends aside.

Copies begin at lines, not just at vectors: those by eight threads, of 128 bytes, would else touch five sectors of 32
bytes in the L2 where four have them. With 16,384 x 4,099, RMSNorm takes 70 us so, 73 with copies that begin at vectors,
and 75 in tile.py; LayerNorm 73, 76 and 87.

Programs stay, with weight and bias in registers, and have the next row on its way.

For elements of 16 bits alone: such of 32 the compiler takes from shared memory as it takes matrices, whose rows begin
on 16 bytes.

It is written in Gluon, in which layouts and shared memory have names. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from onepass.kernels.parts import deviation_of, lane_and_row, row_start, rstd_of, scale_and_shift
from onepass.kernels.through import (
    affine_of,
    arrived,
    ask_for,
    at,
    begin_of,
    line_of,
    piece,
    pieces_of,
    rounded,
    row_of,
    send,
    squares_of,
    stacked,
    store_end,
    total_of,
)


@gluon.jit
def ask_for_row(
    slots, slot, p_x, p_residual, index, rows, lanes, cols, x_row, x_lane, residual_row, residual_lane,
    LANED: gl.constexpr, ALIGN: gl.constexpr, OTHER: gl.constexpr, LINE: gl.constexpr, VECTOR: gl.constexpr,
    CHUNK: gl.constexpr, CHUNKS: gl.constexpr, by_vector: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """Of x and of the residual, if there is one and there is such a row."""
    lane, row = lane_and_row(index, lanes, LANED)
    exists = index < rows * lanes
    outermost = (index == 0) | (index == rows * lanes - 1)
    o_x = row_start(row, lane, x_row, x_lane, ALIGN)
    ask_for(slots, slot, p_x, o_x, cols, outermost, exists, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks)
    if p_residual is not None:
        o_residual = row_start(row, lane, residual_row, residual_lane, ALIGN)
        ask_for(
            slots, slot + OTHER, p_residual, o_residual, cols, outermost, exists,
            LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
    async_copy.commit_group()


@gluon.jit
def give(
    slots, slot, p, start, values, cols, LINE: gl.constexpr, VECTOR: gl.constexpr, BLOCK: gl.constexpr,
    BLOCKS: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, by_column: gl.constexpr, by_vector: gl.constexpr,
    in_memory: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """Blocks of columns into a slot, and from there in vectors to where the row lies."""
    p_line, shift = line_of(p, start, LINE)
    end = shift + cols
    for i in gl.static_range(pieces_of(BLOCKS)):
        place = at(slots, slot + shift + begin_of(BLOCKS, i) * BLOCK, [piece(BLOCKS, i), BLOCK], of_chunks)
        place.store(stacked(values, begin_of(BLOCKS, i), piece(BLOCKS, i), BLOCK))
    send(slots, slot, p, p_line, shift, end, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks)
    store_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_column, in_memory)
    store_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)


@gluon.jit
def sum_over_row(value, WARPS: gl.constexpr, by_column: gl.constexpr):
    """As `row_sum_by_warps` of sums.py: over each warp, then in every warp over all, behind one barrier."""
    if WARPS == 1:
        return gl.sum(value, 0)
    else:
        return gl.sum(gl.convert_layout(gl.sum(gl.reshape(value, [WARPS, 32]), 1), by_column), 0)


@gluon.jit
def packed(weights, biases, BLOCKS: gl.constexpr):
    """Weight and bias of 16 bits each in one register, which they share until a row is there."""
    pairs = ()
    for i in gl.static_range(BLOCKS):
        weight = weights[i].to(gl.int16, bitcast=True).to(gl.int32) << 16
        pairs = pairs + (weight | (biases[i].to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF),)  # noqa: RUF005
    return pairs


@gluon.jit
def unpacked(pair, dtype: gl.constexpr):
    """Both in fp32. Left alone, the compiler would do this once, before the first row, and keep two registers."""
    weight, bias = tl.inline_asm_elementwise(
        "and.b32 $0, $2, 0xffff0000; shl.b32 $1, $2, 16;", "=r,=r,r", [pair],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    if dtype == gl.bfloat16:
        return weight.to(gl.float32, bitcast=True), bias.to(gl.float32, bitcast=True)
    else:
        weight = (weight >> 16).to(gl.int16).to(dtype, bitcast=True).to(gl.float32)
        return weight, (bias >> 16).to(gl.int16).to(dtype, bitcast=True).to(gl.float32)


@gluon.jit
def affine_from(weight, bias, p_weight, PAIRED: gl.constexpr):
    if PAIRED:
        return unpacked(weight, p_weight.dtype.element_ty)
    else:
        return weight, bias


@gluon.jit
def odd_forward(
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
    rows,
    lanes,
    cols,
    programs,
    eps,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    LANED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOT: tl.constexpr,
    STAGES: tl.constexpr,
    PAIRED: tl.constexpr,
):
    """BLOCKS of columns, a column a thread, as tile.py has them; CHUNKS of a vector a thread; STAGES slots.

    x and the residual, where there is one, come to slots of their own, which their sum and y take in turn.
    PAIRED: weight and bias, of one dtype of 16 bits, share registers.
    """
    WARPS: gl.constexpr = gl.num_warps()
    VECTOR: gl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    LINE: gl.constexpr = 8 * VECTOR
    CHUNK: gl.constexpr = 32 * WARPS * VECTOR
    by_column: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    by_vector: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, 32], [1, WARPS], [1, 0])
    in_memory: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    of_chunks: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    WEIGHTED: gl.constexpr = p_weight is not None
    BIASED: gl.constexpr = p_bias is not None
    ADDED: gl.constexpr = p_residual is not None
    OTHER: gl.constexpr = STAGES * SLOT if ADDED else 0  # from a slot of x to the residual's

    cols *= ALIGN
    first = gl.program_id(0)
    slots = gl.allocate_shared_memory(p_x.dtype.element_ty, [(2 if ADDED else 1) * STAGES * SLOT, 1], in_memory)
    for stage in gl.static_range(STAGES - 1):
        ask_for_row(
            slots, stage * SLOT, p_x, p_residual, first + stage * programs, rows, lanes, cols, x_row, x_lane,
            residual_row, residual_lane, LANED, ALIGN, OTHER, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
    o_block = gl.arange(0, BLOCK, by_column)
    m_last = (BLOCKS - 1) * BLOCK + o_block < cols
    weights, biases = affine_of(p_weight, p_bias, cols, BLOCK, BLOCKS, by_column)
    if PAIRED:
        weights = packed(weights, biases, BLOCKS)
    count = cols.to(gl.float32)

    slot = 0
    for index in range(first, rows * lanes, programs):
        # The row before this one is done, so its slot is free.
        free = gl.where(slot == 0, (STAGES - 1) * SLOT, slot - SLOT)
        ask_for_row(
            slots, free, p_x, p_residual, index + (STAGES - 1) * programs, rows, lanes, cols, x_row, x_lane,
            residual_row, residual_lane, LANED, ALIGN, OTHER, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
        async_copy.wait_group(STAGES - 1)

        lane, row = lane_and_row(index, lanes, LANED)
        outermost = (index == 0) | (index == rows * lanes - 1)
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        o_y = row_start(row, lane, y_row, y_lane, ALIGN)
        o_x = row_start(row, lane, x_row, x_lane, ALIGN)
        o_x = arrived(slots, slot, p_x, o_x, cols, outermost, LINE, VECTOR, by_column, in_memory)
        xs = at(slots, o_x, [BLOCKS, BLOCK], in_memory)
        residuals = xs
        if ADDED:
            o_residual = row_start(row, lane, residual_row, residual_lane, ALIGN)
            o_residual = arrived(
                slots, slot + OTHER, p_residual, o_residual, cols, outermost, LINE, VECTOR, by_column, in_memory
            )
            residuals = at(slots, o_residual, [BLOCKS, BLOCK], in_memory)
        held = row_of(xs, residuals, m_last, BLOCKS, ADDED, NARROW, ROUND_SUM, by_column)
        if p_sum is not None:
            sums = rounded(held, BLOCKS, p_sum, slots)
            give(
                slots, slot, p_sum, o_y, sums, cols, LINE, VECTOR, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector,
                in_memory, of_chunks,
            )  # fmt: skip
        mean = 0.0
        if CENTRED:
            total = total_of(held, 0, BLOCK, BLOCKS, by_column)
            mean = tl.div_rn(sum_over_row(total, WARPS, by_column), count)
        if p_mean is not None:
            gl.store(p_mean + o_stat, mean)
        squares = squares_of(held, 0, mean, m_last, BLOCK, BLOCKS, CENTRED, NARROW, by_column)
        rstd = rstd_of(sum_over_row(squares, WARPS, by_column), count, eps, NARROW)
        if p_rstd is not None:
            gl.store(p_rstd + o_stat, rstd)

        ys = ()
        for i in gl.static_range(BLOCKS):
            deviation = deviation_of(held[i], mean, None, CENTRED, False, False)
            own = affine_from(weights[i], biases[i], p_weight, PAIRED)
            y = scale_and_shift(
                deviation, rstd, own[0], own[1], offset, WEIGHTED, BIASED, SHIFTED, X_HAT, NARROW, False
            )
            ys = ys + (y,)  # noqa: RUF005 (Triton has no unpacking)
        ys = rounded(ys, BLOCKS, p_y, slots)
        give(
            slots, slot + OTHER, p_y, o_y, ys, cols, LINE, VECTOR, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector,
            in_memory, of_chunks,
        )  # fmt: skip
        slot = gl.where(slot == (STAGES - 1) * SLOT, 0, slot + SLOT)
