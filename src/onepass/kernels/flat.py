"""Forward of many short rows that begin anywhere: some of them at once, in vectors, through shared memory.

Rows of 93 columns of 16 bits begin at odd addresses, where threads load and store one element at a time (tile.py). But
rows that lie one behind the other are one piece of memory. A program, a warp, has some of them brought to shared memory
in vectors, and sends them out from there in vectors too. Between the two a row lies over the warp as in tile.py, a
column or two a thread, and is summed in the same order: its bits depend neither on where it begins nor on which of the
two is planned.

Programs come and go, or stay, with the next rows on their way (STAGES).

It is written in Gluon, as odd.py, which is for wide rows, one at a time, and threads.py, which is for the shortest;
through.py has what all do. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.runtime.jit import constexpr_function

from onepass.kernels.parts import deviation_of, rstd_of, scale_and_shift
from onepass.kernels.through import (
    affine_of,
    arrived,
    ask_for,
    at,
    line_of,
    rounded,
    row_of,
    send,
    squares_of,
    stacked,
    store_end,
    total_of,
)


@constexpr_function
def power_of_two(count):
    """The smallest that is not below it."""
    return 1 << (count - 1).bit_length()


@gluon.jit
def rows_of(index, rows, cols, ROWS: gl.constexpr):
    """The first of a program's rows, where it begins, how long all are, and whether they are a tensor's outermost."""
    first = index * ROWS
    length = gl.minimum(rows - first, ROWS) * cols
    return first, first.to(gl.int64) * cols, length, (first == 0) | (first + ROWS >= rows)


@gluon.jit
def ask_for_rows(
    slots, slot, p_x, p_residual, index, rows, cols, ROWS: gl.constexpr, OTHER: gl.constexpr, LINE: gl.constexpr,
    VECTOR: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, by_vector: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """Of x and of the residual, if there is one and there are such rows."""
    first, start, length, outermost = rows_of(index, rows, cols, ROWS)
    exists = first < rows
    ask_for(slots, slot, p_x, start, length, outermost, exists, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks)
    if p_residual is not None:
        ask_for(
            slots, slot + OTHER, p_residual, start, length, outermost, exists,
            LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
    async_copy.commit_group()


@gluon.jit
def column_of(block, BLOCK: gl.constexpr, by_column: gl.constexpr):
    """A thread's sum of what it has of a block, a column or some."""
    if BLOCK > 32:
        block = gl.convert_layout(gl.sum(gl.reshape(block, [BLOCK // 32, 32]), 0), by_column)
    return block


@gluon.jit
def halved(parts, lane, HALF: gl.constexpr, BIT: gl.constexpr):
    """Sums of two lanes each, of all rows: half of the lanes have the first half of the rows, and half the second."""
    upper = (lane & BIT) != 0
    sums = ()
    for r in gl.static_range(HALF):
        kept = gl.where(upper, parts[r + HALF], parts[r])
        given = gl.where(upper, parts[r], parts[r + HALF])
        sums = sums + (kept + gl.gather(given, lane ^ BIT, 0),)  # noqa: RUF005 (Triton has no unpacking)
    return sums


@gluon.jit
def row_sums(parts, lane, ROWS: gl.constexpr):
    """Sums across the warp, of a row each in 32 / ROWS lanes: pairs of lanes are added in the order of gl.sum.

    In 32 instructions for eight rows, where sums for all lanes would be 80.
    """
    LEVELS: gl.constexpr = ROWS.bit_length() - 1
    for level in gl.static_range(LEVELS):
        parts = halved(parts, lane, ROWS >> (level + 1), 16 >> level)
    total = parts[0]
    for level in gl.static_range(LEVELS, 5):
        total += gl.gather(total, lane ^ (16 >> level), 0)
    return total


@gluon.jit
def own(numbers, row, ROWS: gl.constexpr, BLOCK: gl.constexpr, by_column: gl.constexpr):
    """A row's number, for each of its columns."""
    return gl.gather(numbers, gl.full([BLOCK], row * (32 // ROWS), gl.int32, by_column), 0)


@gluon.jit
def give_rows(
    slots, slot, p, start, values, length, cols, LINE: gl.constexpr, VECTOR: gl.constexpr, ROWS: gl.constexpr,
    BLOCK: gl.constexpr, BLOCKS: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, by_column: gl.constexpr,
    by_vector: gl.constexpr, in_memory: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """Blocks of columns into a slot, and from there in vectors to where the rows lie.

    Before each store the compiler puts a barrier, of which an SM has one in seven cycles: so a row is one store, of as
    many blocks as a power of two. What of it reaches beyond the row, the next one is written over, behind its barrier.
    """
    COUNT: gl.constexpr = power_of_two(BLOCKS)
    p_line, shift = line_of(p, start, LINE)
    end = shift + length
    for r in gl.static_range(ROWS):
        blocks = ()
        for i in gl.static_range(COUNT):
            blocks = blocks + (values[r * BLOCKS + (i if i < BLOCKS else BLOCKS - 1)],)  # noqa: RUF005
        row = at(slots, slot + shift + r * cols, [COUNT, BLOCK], of_chunks)
        row.store(stacked(blocks, 0, COUNT, BLOCK))
    send(slots, slot, p, p_line, shift, end, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks)
    if (shift % VECTOR != 0) | (end % VECTOR != 0):
        store_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_column, in_memory)
        store_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)


@gluon.jit
def flat_forward(
    p_x,
    p_residual,
    p_weight,
    p_bias,
    p_y,
    p_sum,
    p_mean,
    p_rstd,
    rows,
    cols,
    programs,
    eps,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """ROWS rows of BLOCKS blocks, two at least; CHUNKS of a vector a thread.

    x and the residual, where there is one, come to slots of their own, which their sum and y take in turn.
    """
    VECTOR: gl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    LINE: gl.constexpr = 8 * VECTOR
    CHUNK: gl.constexpr = 32 * VECTOR
    by_column: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    by_vector: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, 32], [1, 1], [1, 0])
    in_memory: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    of_chunks: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    WEIGHTED: gl.constexpr = p_weight is not None
    BIASED: gl.constexpr = p_bias is not None
    ADDED: gl.constexpr = p_residual is not None
    OTHER: gl.constexpr = STAGES * SLOT if ADDED else 0  # from a slot of x to the residual's

    cols *= ALIGN
    slots = gl.allocate_shared_memory(p_x.dtype.element_ty, [(2 if ADDED else 1) * STAGES * SLOT, 1], in_memory)
    for stage in gl.static_range(STAGES - 1):
        ask_for_rows(
            slots, stage * SLOT, p_x, p_residual, gl.program_id(0) + stage * programs, rows, cols,
            ROWS, OTHER, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
    o_block = gl.arange(0, BLOCK, by_column)
    m_last = (BLOCKS - 1) * BLOCK + o_block < cols
    weights, biases = affine_of(p_weight, p_bias, cols, BLOCK, BLOCKS, by_column)
    count = cols.to(gl.float32)
    slot = 0
    for index in range(gl.program_id(0), gl.cdiv(rows, ROWS), programs):
        # The rows before these are done, so that their slot is free.
        free = gl.where(slot == 0, (STAGES - 1) * SLOT, slot - SLOT)
        ask_for_rows(
            slots, free, p_x, p_residual, index + (STAGES - 1) * programs, rows, cols,
            ROWS, OTHER, LINE, VECTOR, CHUNK, CHUNKS, by_vector, of_chunks,
        )  # fmt: skip
        async_copy.wait_group(STAGES - 1)
        first, start, length, outermost = rows_of(index, rows, cols, ROWS)

        o_x = arrived(slots, slot, p_x, start, length, outermost, LINE, VECTOR, by_column, in_memory)
        o_residual = o_x
        if ADDED:
            o_residual = arrived(
                slots, slot + OTHER, p_residual, start, length, outermost, LINE, VECTOR, by_column, in_memory
            )
        held = ()
        for r in gl.static_range(ROWS):
            xs = at(slots, o_x + r * cols, [BLOCKS, BLOCK], in_memory)
            residuals = at(slots, o_residual + r * cols, [BLOCKS, BLOCK], in_memory)
            held = held + row_of(xs, residuals, m_last, BLOCKS, ADDED, NARROW, ROUND_SUM, by_column)
        if p_sum is not None:
            sums = rounded(held, ROWS * BLOCKS, p_sum, slots)
            give_rows(
                slots, slot, p_sum, start, sums, length, cols,
                LINE, VECTOR, ROWS, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector, in_memory, of_chunks,
            )  # fmt: skip

        # A row's sum is in some of the lanes, so that all rows' are divided, and have their roots, at once.
        lane = gl.arange(0, 32, by_column)
        means = gl.zeros([32], gl.float32, by_column)
        if CENTRED:
            parts = ()
            for r in gl.static_range(ROWS):
                total = total_of(held, r * BLOCKS, BLOCK, BLOCKS, by_column)
                parts = parts + (column_of(total, BLOCK, by_column),)  # noqa: RUF005
            means = tl.div_rn(row_sums(parts, lane, ROWS), count)
        parts = ()
        for r in gl.static_range(ROWS):
            mean = own(means, r, ROWS, BLOCK, by_column) if CENTRED else 0.0
            squares = squares_of(held, r * BLOCKS, mean, m_last, BLOCK, BLOCKS, CENTRED, NARROW, by_column)
            parts = parts + (column_of(squares, BLOCK, by_column),)  # noqa: RUF005
        rstds = rstd_of(row_sums(parts, lane, ROWS), count, eps, NARROW)
        row = first + lane // (32 // ROWS)
        m_lane = (lane % (32 // ROWS) == 0) & (row < rows)
        if p_mean is not None:
            gl.store(p_mean + row, means, mask=m_lane)
        if p_rstd is not None:
            gl.store(p_rstd + row, rstds, mask=m_lane)

        ys = ()
        for r in gl.static_range(ROWS):
            mean = own(means, r, ROWS, BLOCK, by_column) if CENTRED else 0.0
            rstd = own(rstds, r, ROWS, BLOCK, by_column)
            for i in gl.static_range(BLOCKS):
                deviation = deviation_of(held[r * BLOCKS + i], mean, None, CENTRED, False, False)
                y = scale_and_shift(
                    deviation, rstd, weights[i], biases[i], offset, WEIGHTED, BIASED, SHIFTED, X_HAT, NARROW, False
                )
                ys = ys + (y,)  # noqa: RUF005
        ys = rounded(ys, ROWS * BLOCKS, p_y, slots)
        give_rows(
            slots, slot + OTHER, p_y, start, ys, length, cols,
            LINE, VECTOR, ROWS, BLOCK, BLOCKS, CHUNK, CHUNKS, by_column, by_vector, in_memory, of_chunks,
        )  # fmt: skip
        slot = gl.where(slot == (STAGES - 1) * SLOT, 0, slot + SLOT)
