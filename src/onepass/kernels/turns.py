"""Backward of dense rows that do not all begin on 16 bytes: a program takes only rows that lie alike.

Of rows of 4,099 columns of 16 bits every eighth begins as far from a multiple of 16 bytes as the first. So programs
take turns: one has the rows 0, 8, 16 …, the next 1, 9, 17 …, and in all its rows a program counts places from the 16
bytes in which the row begins. Loads and stores are then of whole vectors, and weight, dW and dB lie at the same places
for all rows. Vectors at both ends reach into the neighbours: what is loaded of these is taken for zero, and what is
stored goes there element by element.

The rows beyond a multiple of eight, seven at the most, could reach beyond the tensor. Each is the last of a program,
and has its ends loaded element by element too.

For the backward alone: the order of a row's sums depends on where it begins, and a forward's must not.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import (
    deviation_of,
    gradient_means,
    input_gradient,
    load,
    normalized,
    store,
    store_row,
    weighted,
    wide,
)


@triton.jit
def between(o, first, end, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Which of `o` are in the row, or vectors of it, where it may begin (LEFT) or end (RIGHT) among them."""
    if LEFT and RIGHT:
        return (o >= first) & (o < end)
    elif LEFT:
        return o >= first
    else:
        return o < end


@triton.jit
def load_places(
    p, o_row, o_place, m_row, before, end, ROWS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ALIGN: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """A block of rows, zero outside of them; with APART nothing outside is touched."""
    if LEFT or RIGHT:
        m_place = between(o_place, before, end, LEFT, RIGHT)
        if APART:
            return load(p, o_row + o_place, m_row & m_place, True)
        m_vector = m_row & (o_place // ALIGN < tl.cdiv(end, ALIGN))  # the same for all of a vector
        return tl.where(m_place, load(p, o_row + o_place, m_vector, ROWS > 1 or RIGHT), 0.0)
    else:
        return load(p, o_row + o_place, m_row, ROWS > 1)


@triton.jit
def with_tile(
    dweights, dbiases, weights, row, m_row, p_dy, p_dsum, p_h, p_mean, p_rstd, p_dx, turn_row, dx_row, turn, o_turn,
    before, end, count, offset,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, WEIGHTED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, TURNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, WHOLE: tl.constexpr, ALIGN: tl.constexpr, PACKED: tl.constexpr, WARPS: tl.constexpr,
    SIDE: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """dx of some rows of a turn; the sums for dW and dB, with what these rows add."""
    o_block = tl.arange(0, BLOCK)[None, :]
    o_row = row.to(tl.int64) * turn_row * ALIGN + o_turn
    held_h = ()
    held_dy = ()
    for i in tl.static_range(BLOCKS):
        o_place = i * BLOCK + o_block
        h = load_places(p_h, o_row, o_place, m_row, before, end, ROWS, i == 0, i > WHOLE, ALIGN, APART)
        dy = load_places(p_dy, o_row, o_place, m_row, before, end, ROWS, i == 0, i > WHOLE, ALIGN, APART)
        held_h = held_h + (h,)  # noqa: RUF005
        held_dy = held_dy + (dy,)  # noqa: RUF005
    o_stat = row * TURNS + turn
    rstd = load(p_rstd, o_stat, m_row, ROWS > 1)
    mean = 0.0
    if CENTRED:
        mean = load(p_mean, o_stat, m_row, ROWS > 1)

    mean_dot = 0.0
    mean_dy = 0.0
    if p_dx is not None:
        mean_dot, mean_dy = gradient_means(
            held_dy, held_h, weights, offset, mean, rstd, count,
            CENTRED, WEIGHTED, SHIFTED, NARROW, ROWS, BLOCK, BLOCKS, PACKED, 1, WARPS, SIDE,
        )  # fmt: skip

    further_dweights = ()
    further_dbiases = ()
    for i in tl.static_range(BLOCKS):
        o_place = i * BLOCK + o_block
        dy = wide(held_dy[i], PACKED)
        deviation = deviation_of(held_h[i], mean, None, CENTRED, PACKED, False)
        if p_dx is not None:
            weighted_dy = weighted(dy, weights[i], offset, WEIGHTED, SHIFTED, NARROW, PACKED)
            dh = input_gradient(weighted_dy, deviation * rstd, rstd, mean_dot, mean_dy, CENTRED)
            if p_dsum is not None:
                arrived = load_places(p_dsum, o_row, o_place, m_row, before, end, ROWS, i == 0, i > WHOLE, ALIGN, APART)
                dh += arrived.to(tl.float32)
            o_dx = row.to(tl.int64) * dx_row * ALIGN + o_turn + o_place
            if i == 0 or i > WHOLE:
                m_place = between(o_place, before, end, i == 0, i > WHOLE)
                m_vector = between(o_place // ALIGN, tl.cdiv(before, ALIGN), end // ALIGN, i == 0, i > WHOLE)
                store_row(p_dx, o_dx, dh, m_row & m_vector, True)
                store_row(p_dx, o_dx, dh, m_row & m_place & (m_vector == 0), True)
            else:
                store_row(p_dx, o_dx, dh, m_row, ROWS > 1)
        dweight = dweights[i]
        if WEIGHT:
            dweight += dy * normalized(deviation, rstd, X_HAT, NARROW)
        dbias = dbiases[i]
        if BIAS:
            dbias += dy
        further_dweights = further_dweights + (dweight,)  # noqa: RUF005
        further_dbiases = further_dbiases + (dbias,)  # noqa: RUF005
    return further_dweights, further_dbiases


@triton.jit
def turns_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dweights,
    p_dbiases,
    turn_row,
    dx_row,
    rows,
    cols,
    programs,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WHOLE: tl.constexpr,
    ALIGN: tl.constexpr,
    PACKED: tl.constexpr,
    WARPS: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """`turn_row` is from one row of a turn to the next, in vectors of ALIGN elements, and so is `dx_row`: by the same
    name, the compiler would find dx's addresses with the loads, stages before, and keep them in registers until then.
    The blocks from 1 to WHOLE lie inside every row. `programs` is for each turn. WARPS and SIDE: as in sums.py.
    """
    WEIGHTED: tl.constexpr = p_weight is not None
    WEIGHT: tl.constexpr = p_dweights is not None
    BIAS: tl.constexpr = p_dbiases is not None
    turn = tl.program_id(0) % TURNS
    first = tl.program_id(0) // TURNS
    before = turn * cols % ALIGN  # places, in the first vector, that belong to the row before
    o_turn = turn.to(tl.int64) * cols // ALIGN * ALIGN
    end = before + cols
    count = cols.to(tl.float32)
    o_block = tl.arange(0, BLOCK)[None, :]
    weights = ()
    dweights = ()
    dbiases = ()
    for i in tl.static_range(BLOCKS):
        o_place = i * BLOCK + o_block
        weight = 0.0
        if WEIGHTED:
            weight = tl.load(p_weight + o_place - before, mask=(o_place >= before) & (o_place < end), other=0.0)
        weights = weights + (weight,)  # noqa: RUF005
        dweights = dweights + (tl.zeros((ROWS, BLOCK), tl.float32),)  # noqa: RUF005
        dbiases = dbiases + (tl.zeros((ROWS, BLOCK), tl.float32),)  # noqa: RUF005

    own_rows = rows // TURNS
    for tile in tl.range(first, tl.cdiv(own_rows, ROWS), programs, num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        dweights, dbiases = with_tile(
            dweights, dbiases, weights, row, row < own_rows, p_dy, p_dsum, p_h, p_mean, p_rstd, p_dx, turn_row, dx_row,
            turn, o_turn, before, end, count, offset, CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT, BIAS, TURNS,
            ROWS, BLOCK, BLOCKS, WHOLE, ALIGN, PACKED, WARPS, SIDE, False,
        )  # fmt: skip
    has_last = (first == programs - 1) & (own_rows * TURNS + turn < rows)
    for last in tl.range(own_rows, own_rows + has_last.to(tl.int32)):
        row = last + tl.arange(0, ROWS)[:, None]
        dweights, dbiases = with_tile(
            dweights, dbiases, weights, row, row == last, p_dy, p_dsum, p_h, p_mean, p_rstd, p_dx, turn_row, dx_row,
            turn, o_turn, before, end, count, offset, CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT, BIAS, TURNS,
            ROWS, BLOCK, BLOCKS, WHOLE, ALIGN, PACKED, WARPS, SIDE, True,
        )  # fmt: skip

    # One partial row a program; sum_partials adds them up in a fixed order.
    o_partial = tl.program_id(0).to(tl.int64) * cols - before
    for i in tl.static_range(BLOCKS):
        o_place = i * BLOCK + o_block
        m = (o_place >= before) & (o_place < end)
        if WEIGHT:
            store(p_dweights, o_partial + o_place, tl.sum(dweights[i], axis=0, keep_dims=True), m, True)
        if BIAS:
            store(p_dbiases, o_partial + o_place, tl.sum(dbiases[i], axis=0, keep_dims=True), m, True)
