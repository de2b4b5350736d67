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
from triton.runtime.jit import constexpr_function

from onepass.kernels.parts import (
    PASSING,
    deviation_of,
    lane_and_row,
    narrowed,
    row_start,
    rstd_of,
    scale_and_shift,
    wide,
    with_square,
)


@constexpr_function
def pieces_of(count):
    """Into how many powers of two a number falls."""
    return count.bit_count()


@constexpr_function
def piece(count, index):
    """One of these, the largest first."""
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1][index]


@constexpr_function
def begin_of(count, index):
    """The sum of those before it."""
    return count // (2 * piece(count, index)) * (2 * piece(count, index))


@gluon.jit
def at(slots, place, SHAPE: gl.constexpr, layout: gl.constexpr):
    """Shared memory from a place on that is known when the program runs."""
    return slots.index(place)._reinterpret(slots.dtype, SHAPE, layout)


@gluon.jit
def line_of(p, start, LINE: gl.constexpr):
    """The line of memory in which element `start` of a tensor lies, and how many elements come before it there."""
    BYTES: gl.constexpr = p.dtype.element_ty.primitive_bitwidth // 8
    shift = p.to(gl.int64) // BYTES % LINE
    start += shift
    return gl.multiple_of(p - shift, LINE * BYTES) + start // LINE * LINE, (start % LINE).to(gl.int32)


@gluon.jit
def places_of(FIRST: gl.constexpr, COUNT: gl.constexpr, CHUNK: gl.constexpr, by_vector: gl.constexpr):
    """COUNT chunks from the FIRST on, a row each."""
    chunk = FIRST + gl.arange(0, COUNT, gl.SliceLayout(1, by_vector))[:, None]
    return chunk * CHUNK + gl.arange(0, CHUNK, gl.SliceLayout(0, by_vector))[None, :]


@gluon.jit
def ask_for(
    slots, slot, p, start, cols, outermost, exists, LINE: gl.constexpr, VECTOR: gl.constexpr, CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr, by_vector: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """A row on its way to a slot, and with it what else lies in its first and its last vector.

    The outermost rows of a tensor leave these out, since they could reach beyond it.
    """
    p_line, shift = line_of(p, start, LINE)
    first = gl.where(outermost, gl.cdiv(shift, VECTOR), shift // VECTOR)
    end = gl.where(outermost, (shift + cols) // VECTOR, gl.cdiv(shift + cols, VECTOR))
    end = gl.where(exists, end, 0)
    # The compiler puts a barrier before each copy, so that they are few: of as many chunks as a power of two.
    for i in gl.static_range(pieces_of(CHUNKS)):
        o_place = places_of(begin_of(CHUNKS, i), piece(CHUNKS, i), CHUNK, by_vector)
        place = at(slots, slot + begin_of(CHUNKS, i) * CHUNK, [piece(CHUNKS, i), CHUNK], of_chunks)
        m_vector = (o_place // VECTOR >= first) & (o_place // VECTOR < end)
        async_copy.async_copy_global_to_shared(place, p_line + o_place, mask=m_vector)


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
def bring_end(
    slots, slot, p_line, vector, shift, end, VECTOR: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr
):
    """What a row has of a vector, element by element."""
    o_place = vector * VECTOR + gl.arange(0, VECTOR, by_column)
    h = gl.load(p_line + o_place, mask=(o_place >= shift) & (o_place < end), other=0.0)
    at(slots, slot + vector * VECTOR, [VECTOR], in_memory).store(h)


@gluon.jit
def row_of(
    slots, slot, p, start, cols, outermost, LINE: gl.constexpr, VECTOR: gl.constexpr, BLOCK: gl.constexpr,
    BLOCKS: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr,
):  # fmt: skip
    """Where the blocks of a row are that has come."""
    p_line, shift = line_of(p, start, LINE)
    if outermost:
        end = shift + cols
        bring_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_column, in_memory)
        bring_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)
    return at(slots, slot + shift, [BLOCKS, BLOCK], in_memory)


@gluon.jit
def store_end(
    slots, slot, p_line, vector, shift, end, VECTOR: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr
):
    """What a row has of a vector that is not its own alone."""
    o_place = vector * VECTOR + gl.arange(0, VECTOR, by_column)
    y = at(slots, slot + vector * VECTOR, [VECTOR], in_memory).load(by_column)
    y = y.to(p_line.dtype.element_ty, bitcast=True)
    gl.store(p_line + o_place, y, mask=(o_place >= shift) & (o_place < end))


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
    for i in gl.static_range(pieces_of(CHUNKS)):
        o_place = places_of(begin_of(CHUNKS, i), piece(CHUNKS, i), CHUNK, by_vector)
        place = at(slots, slot + begin_of(CHUNKS, i) * CHUNK, [piece(CHUNKS, i), CHUNK], of_chunks)
        y = place.load(by_vector).to(p.dtype.element_ty, bitcast=True)
        m_vector = (o_place // VECTOR >= gl.cdiv(shift, VECTOR)) & (o_place // VECTOR < end // VECTOR)
        gl.store(p_line + o_place, y, mask=m_vector, eviction_policy=PASSING)
    store_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_column, in_memory)
    store_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)


@gluon.jit
def packed(weight, bias):
    """Weight and bias of 16 bits each in one register, which they share until a row is there."""
    weight = weight.to(gl.int16, bitcast=True).to(gl.int32) << 16
    return weight | (bias.to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF)


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
def affine_of(weight, bias, p_weight, PAIRED: gl.constexpr):
    if PAIRED:
        return unpacked(weight, p_weight.dtype.element_ty)
    else:
        return weight, bias


@gluon.jit
def pairs(blocks, FIRST: gl.constexpr, HALF: gl.constexpr):
    joined = ()
    for i in gl.static_range(HALF):
        joined = joined + (gl.join(blocks[FIRST + i], blocks[FIRST + HALF + i]),)  # noqa: RUF005
    return joined


@gluon.jit
def stacked(blocks, FIRST: gl.constexpr, COUNT: gl.constexpr, BLOCK: gl.constexpr):
    """COUNT blocks, a power of two, as the rows of one: stored at once, with one barrier."""
    if COUNT == 1:
        return gl.reshape(blocks[FIRST], [1, BLOCK])
    else:
        joined = pairs(blocks, FIRST, COUNT // 2)
        for i in gl.static_range(1, COUNT.bit_length() - 1):
            joined = pairs(joined, 0, COUNT >> (i + 1))
        return gl.permute(gl.reshape(joined[0], [BLOCK, COUNT]), [1, 0])


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
    weights = ()
    biases = ()
    for i in gl.static_range(BLOCKS):
        o_col = i * BLOCK + o_block
        weight = 0.0
        bias = 0.0
        if WEIGHTED:
            weight = gl.load(p_weight + o_col, mask=o_col < cols, other=0.0)
        if BIASED:
            bias = gl.load(p_bias + o_col, mask=o_col < cols, other=0.0)
        if PAIRED:
            weight = packed(weight, bias)
            bias = 0.0
        weights = weights + (weight,)  # noqa: RUF005
        biases = biases + (bias,)  # noqa: RUF005
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
        xs = row_of(
            slots, slot, p_x, row_start(row, lane, x_row, x_lane, ALIGN), cols, outermost,
            LINE, VECTOR, BLOCK, BLOCKS, by_column, in_memory,
        )  # fmt: skip
        if ADDED:
            residuals = row_of(
                slots, slot + OTHER, p_residual, row_start(row, lane, residual_row, residual_lane, ALIGN), cols,
                outermost, LINE, VECTOR, BLOCK, BLOCKS, by_column, in_memory,
            )  # fmt: skip
        held = ()
        for i in gl.static_range(BLOCKS):
            h = xs.index(i).load(by_column)
            if ADDED:
                h = narrowed(h.to(gl.float32) + residuals.index(i).load(by_column).to(gl.float32), NARROW)
            if ROUND_SUM is not None:
                h = h.to(ROUND_SUM)
            if i == BLOCKS - 1:
                h = gl.where(m_last, h, 0.0).to(h.dtype)
            held = held + (h,)  # noqa: RUF005
        if p_sum is not None:
            sums = ()
            for i in gl.static_range(BLOCKS):
                sums = sums + (held[i].to(p_sum.dtype.element_ty).to(slots.dtype, bitcast=True),)  # noqa: RUF005
            give(
                slots, slot, p_sum, o_y, sums, cols, LINE, VECTOR, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector,
                in_memory, of_chunks,
            )  # fmt: skip
        mean = 0.0
        if CENTRED:
            total = gl.zeros([BLOCK], gl.float32, by_column)
            for i in gl.static_range(BLOCKS):
                total += wide(held[i], False)
            mean = tl.div_rn(gl.sum(total, 0), count)
        if p_mean is not None:
            gl.store(p_mean + o_stat, mean)
        squares = gl.zeros([BLOCK], gl.float32, by_column)
        for i in gl.static_range(BLOCKS):
            deviation = deviation_of(held[i], mean, m_last, CENTRED, False, i == BLOCKS - 1)
            squares = with_square(squares, deviation, NARROW)
        rstd = rstd_of(gl.sum(squares, 0), count, eps, NARROW)
        if p_rstd is not None:
            gl.store(p_rstd + o_stat, rstd)

        ys = ()
        for i in gl.static_range(BLOCKS):
            deviation = deviation_of(held[i], mean, None, CENTRED, False, False)
            own = affine_of(weights[i], biases[i], p_weight, PAIRED)
            y = scale_and_shift(
                deviation, rstd, own[0], own[1], offset, WEIGHTED, BIASED, SHIFTED, X_HAT, NARROW, False
            )
            ys = ys + (y.to(p_y.dtype.element_ty).to(slots.dtype, bitcast=True),)  # noqa: RUF005
        give(
            slots, slot + OTHER, p_y, o_y, ys, cols, LINE, VECTOR, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector,
            in_memory, of_chunks,
        )  # fmt: skip
        slot = gl.where(slot == (STAGES - 1) * SLOT, 0, slot + SLOT)
