"""Rows that begin anywhere, to shared memory and from there in vectors, and what is computed of them in between.

For odd.py, flat.py and threads.py. In the first two a row lies over threads as in tile.py, and is summed in the same
order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.runtime.jit import constexpr_function

from onepass.kernels.parts import PASSING, deviation_of, narrowed, wide, with_square


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
def vectors_of(shift, cols, outermost, VECTOR: gl.constexpr):
    """The first of the vectors in which a row lies, and the one behind the last; if it is outermost, of whole ones."""
    first = gl.where(outermost, gl.cdiv(shift, VECTOR), shift // VECTOR)
    return first, gl.where(outermost, (shift + cols) // VECTOR, gl.cdiv(shift + cols, VECTOR))


@gluon.jit
def ask_for(
    slots, slot, p, start, cols, outermost, exists, LINE: gl.constexpr, VECTOR: gl.constexpr, CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr, by_vector: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """A row on its way to a slot, and with it what else lies in its first and its last vector.

    The outermost rows of a tensor leave these out, since they could reach beyond it.
    """
    p_line, shift = line_of(p, start, LINE)
    first, end = vectors_of(shift, cols, outermost, VECTOR)
    end = gl.where(exists, end, 0)
    # The compiler puts a barrier before each copy, so that they are few: of as many chunks as a power of two.
    for i in gl.static_range(pieces_of(CHUNKS)):
        o_place = places_of(begin_of(CHUNKS, i), piece(CHUNKS, i), CHUNK, by_vector)
        place = at(slots, slot + begin_of(CHUNKS, i) * CHUNK, [piece(CHUNKS, i), CHUNK], of_chunks)
        m_vector = (o_place // VECTOR >= first) & (o_place // VECTOR < end)
        async_copy.async_copy_global_to_shared(place, p_line + o_place, mask=m_vector)


@gluon.jit
def bring_end(
    slots, slot, p_line, vector, shift, end, VECTOR: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr
):
    """What a row has of a vector, element by element."""
    o_place = vector * VECTOR + gl.arange(0, VECTOR, by_column)
    h = gl.load(p_line + o_place, mask=(o_place >= shift) & (o_place < end), other=0.0)
    at(slots, slot + vector * VECTOR, [VECTOR], in_memory).store(h)


@gluon.jit
def arrived(
    slots, slot, p, start, length, outermost, LINE: gl.constexpr, VECTOR: gl.constexpr, by_column: gl.constexpr,
    in_memory: gl.constexpr,
):  # fmt: skip
    """Where in shared memory the rows begin that have come. Of a tensor's outermost ones the ends are brought now."""
    p_line, shift = line_of(p, start, LINE)
    if outermost:
        end = shift + length
        bring_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_column, in_memory)
        bring_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)
    return slot + shift


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
def send(
    slots, slot, p, p_line, shift, end, VECTOR: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr,
    by_vector: gl.constexpr, of_chunks: gl.constexpr,
):  # fmt: skip
    """What lies in a slot, in vectors, to where its rows lie, but for vectors that are not theirs alone."""
    for i in gl.static_range(pieces_of(CHUNKS)):
        o_place = places_of(begin_of(CHUNKS, i), piece(CHUNKS, i), CHUNK, by_vector)
        place = at(slots, slot + begin_of(CHUNKS, i) * CHUNK, [piece(CHUNKS, i), CHUNK], of_chunks)
        y = place.load(by_vector).to(p.dtype.element_ty, bitcast=True)
        m_vector = (o_place // VECTOR >= gl.cdiv(shift, VECTOR)) & (o_place // VECTOR < end // VECTOR)
        gl.store(p_line + o_place, y, mask=m_vector, eviction_policy=PASSING)


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
def affine_of(p_weight, p_bias, cols, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, by_column: gl.constexpr):
    """The blocks of weight and of bias; a number that nobody reads for what there is not."""
    weights = ()
    biases = ()
    for i in gl.static_range(BLOCKS):
        o_col = i * BLOCK + gl.arange(0, BLOCK, by_column)
        weight = 0.0
        bias = 0.0
        if p_weight is not None:
            weight = gl.load(p_weight + o_col, mask=o_col < cols, other=0.0)
        if p_bias is not None:
            bias = gl.load(p_bias + o_col, mask=o_col < cols, other=0.0)
        weights = weights + (weight,)  # noqa: RUF005 (Triton has no unpacking)
        biases = biases + (bias,)  # noqa: RUF005
    return weights, biases


@gluon.jit
def row_of(
    xs, residuals, m_last, BLOCKS: gl.constexpr, ADDED: gl.constexpr, NARROW: gl.constexpr, ROUND_SUM: gl.constexpr,
    by_column: gl.constexpr,
):  # fmt: skip
    """A row's blocks from shared memory: of x, or of its sum with the residual."""
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
    return held


@gluon.jit
def rounded(blocks, COUNT: gl.constexpr, p, slots):
    """Blocks in the dtype of a tensor, as bits of the dtype that shared memory has."""
    bits = ()
    for i in gl.static_range(COUNT):
        bits = bits + (blocks[i].to(p.dtype.element_ty).to(slots.dtype, bitcast=True),)  # noqa: RUF005
    return bits


@gluon.jit
def total_of(held, FIRST: gl.constexpr, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, by_column: gl.constexpr):
    """A thread's sum of each of its columns, of the row whose blocks begin with the FIRST."""
    total = gl.zeros([BLOCK], gl.float32, by_column)
    for i in gl.static_range(BLOCKS):
        total += wide(held[FIRST + i], False)
    return total


@gluon.jit
def squares_of(
    held, FIRST: gl.constexpr, mean, m_last, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, CENTRED: gl.constexpr,
    NARROW: gl.constexpr, by_column: gl.constexpr,
):  # fmt: skip
    """The same of their squares, about the mean where rows are centred."""
    squares = gl.zeros([BLOCK], gl.float32, by_column)
    for i in gl.static_range(BLOCKS):
        deviation = deviation_of(held[FIRST + i], mean, m_last, CENTRED, False, i == BLOCKS - 1)
        squares = with_square(squares, deviation, NARROW)
    return squares
