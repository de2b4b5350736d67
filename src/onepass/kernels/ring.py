"""The backward of RMSNorm for rows that programs share, as split.py has it, from shared memory.

There a program keeps a row's dy and x̂ in registers until its peers' sums have come, in fp32, and the next row's beside
them. Here asynchronous copies put rows into a ring in shared memory, from which each is read twice: for its sum, and a
step later for its gradient. Nothing is held between the two, so that there are twice the warps to wait for memory, with
as many rows on their way: 768 us against 856 at 8,192 x 65,536, and 197 against 206 held by one program at 16,384
columns. LayerNorm, which sums dB too and exchanges two sums, gained 1 % at 8,192 x 32,768 and lost 4 at 16,384 columns.

Dense rows that do not all begin on 16 bytes are taken in TURNS, as in turns.py and split_turns.py: a group of programs
has rows that lie alike, places are counted from the 16 bytes in which a row begins, and copies are of whole vectors.
The elements at both ends of a row, which share their 16 bytes with another one, pass by the ring, in registers.

It is written in Gluon, in which layouts and shared memory have names. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from onepass.kernels.mailbox import bits_of, wait_for
from onepass.kernels.parts import PASSING, input_gradient, normalized, weighted, wide


@gluon.jit
def ask_for(
    ring_dy, ring_x, slot, p_dy, p_x, row, rows, o_place, m_place, dy_row, x_row, TURNS: gl.constexpr,
    ALIGN: gl.constexpr,
):  # fmt: skip
    """A row on its way into a slot of the ring; zeros for what is beyond the last row and column."""
    m = m_place & (row < rows)
    o_dy = (row // TURNS).to(gl.int64) * dy_row * ALIGN + o_place
    o_x = (row // TURNS).to(gl.int64) * x_row * ALIGN + o_place
    async_copy.async_copy_global_to_shared(ring_dy.index(slot), p_dy + o_dy, mask=m)
    async_copy.async_copy_global_to_shared(ring_x.index(slot), p_x + o_x, mask=m)
    async_copy.commit_group()


@gluon.jit
def is_whole(o_place, before, end, ALIGN: gl.constexpr):
    """Whether the vector of a place is the row's alone."""
    return (o_place // ALIGN >= gl.cdiv(before, ALIGN)) & (o_place // ALIGN < end // ALIGN)


@gluon.jit
def load_end(p_dy, p_x, row, rows, o_end, m_end, turn_row, TURNS: gl.constexpr, ALIGN: gl.constexpr):
    """What a row has of the vector in which it begins or ends."""
    m = m_end & (row < rows)
    o = (row // TURNS).to(gl.int64) * turn_row * ALIGN + o_end
    return gl.load(p_dy + o, mask=m, other=0.0), gl.load(p_x + o, mask=m, other=0.0)


@gluon.jit
def dot_of(
    dy, x, weight, offset, WEIGHTED: gl.constexpr, SHIFTED: gl.constexpr, NARROW: gl.constexpr, PACKED: gl.constexpr
):
    """The sum of w·dy·x."""
    weighted_dy = weighted(wide(dy, PACKED), weight, offset, WEIGHTED, SHIFTED, NARROW, PACKED)
    return gl.sum(weighted_dy * wide(x, PACKED), 0)


@gluon.jit
def gradients_of(
    dy, x, rstd, mean_dot, weight, offset,
    WEIGHTED: gl.constexpr, SHIFTED: gl.constexpr, X_HAT: gl.constexpr, NARROW: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """dx, and what is added to dW."""
    dy = wide(dy, PACKED)
    x_hat = wide(x, PACKED) * rstd
    dweight = dy * normalized(x_hat, 1.0, X_HAT, NARROW)
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, PACKED)
    return input_gradient(weighted_dy, x_hat, rstd, mean_dot, 0.0, False), dweight


@gluon.jit
def ring_backward(
    p_dy,
    p_x,
    p_weight,
    p_rstd,
    p_dx,
    p_dweights,
    p_mailbox,
    dy_row,
    x_row,
    dx_row,
    rows,
    cols,
    slices,
    groups,
    offset,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    TURNS: tl.constexpr,
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """`groups` of programs, one for each slice, take the rows in turn. STAGES: slots of the ring.

    Strides are of TURNS rows, in ALIGN elements, and so are `cols` where all rows begin on that many (TURNS is 1).
    """
    VECTOR: gl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    of_words: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    in_memory: gl.constexpr = gl.SwizzledSharedLayout(VECTOR, 1, 1, [0])
    WEIGHTED: gl.constexpr = p_weight is not None

    own = gl.program_id(0) % slices
    first = gl.program_id(0) // slices
    o_col = own * BLOCK + gl.arange(0, BLOCK, layout)
    if TURNS > 1:
        width = cols
        turn = first % TURNS
        before = turn * cols % ALIGN  # places, in the first vector, that belong to the row before
        end = before + cols
        m_col = is_whole(o_col, before, end, ALIGN)
        # A program has one end of a row at the most, since it has not the whole row.
        o_end = gl.where(own == 0, 0, end // ALIGN * ALIGN) + gl.arange(0, ALIGN, of_words)
        m_end = (o_end >= before) & (o_end < end) & gl.where(own == 0, before > 0, own == end // BLOCK)
        o_turn = turn.to(gl.int64) * cols // ALIGN * ALIGN
        p_dy += o_turn
        p_x += o_turn
        p_dx += o_turn
    else:
        width = cols * ALIGN
        before = 0
        end = width
        m_col = o_col < width
    count = width.to(gl.float32)
    ring_dy = gl.allocate_shared_memory(p_dy.dtype.element_ty, [STAGES, BLOCK], in_memory)
    ring_x = gl.allocate_shared_memory(p_x.dtype.element_ty, [STAGES, BLOCK], in_memory)
    for stage in gl.static_range(STAGES - 1):
        row = first + stage * groups
        ask_for(ring_dy, ring_x, stage, p_dy, p_x, row, rows, o_col, m_col, dy_row, x_row, TURNS, ALIGN)
    following = first + groups
    rstd = gl.load(p_rstd + first, mask=first < rows, other=0.0)
    rstd_following = gl.load(p_rstd + following, mask=following < rows, other=0.0)
    # Weight and dW are at other places than rows that are taken in turns, and go element by element.
    of_affine: gl.constexpr = of_words if TURNS > 1 else layout
    o_affine = own * BLOCK + gl.arange(0, BLOCK, of_affine)
    m_affine = is_whole(o_affine, before, end, ALIGN)
    weight = 0.0
    weight_end = 0.0
    if WEIGHTED:
        weight = gl.load(p_weight + o_affine - before, mask=m_affine, other=0.0)
        weight = gl.convert_layout(weight, layout)
    dweight = gl.zeros([BLOCK], gl.float32, layout)
    if TURNS > 1:
        dy_end, x_end = load_end(p_dy, p_x, first, rows, o_end, m_end, x_row, TURNS, ALIGN)
        dy_end_following, x_end_following = load_end(p_dy, p_x, following, rows, o_end, m_end, x_row, TURNS, ALIGN)
        if WEIGHTED:
            weight_end = gl.load(p_weight + o_end - before, mask=m_end, other=0.0)
        dweight_end = gl.zeros([ALIGN], gl.float32, of_words)

    peer = gl.arange(0, PEERS, of_words)
    p_own = p_mailbox + own
    p_peers = p_mailbox + gl.minimum(peer, slices - 1)
    async_copy.wait_group(STAGES - 2)
    dot = dot_of(
        ring_dy.index(0).load(layout), ring_x.index(0).load(layout), weight, offset, WEIGHTED, SHIFTED, NARROW, True
    )
    if TURNS > 1:
        dot += dot_of(dy_end, x_end, weight_end, offset, WEIGHTED, SHIFTED, NARROW, False)
    gl.atomic_xchg(p_own + first.to(gl.int64) * slices, bits_of(dot * rstd), mask=first < rows, sem="relaxed")
    slot = 0
    for row in range(first, rows, groups):
        # The row before this one is done, so its slot is free.
        free = gl.where(slot == 0, STAGES - 1, slot - 1)
        after = gl.where(slot == STAGES - 1, 0, slot + 1)
        last = row + (STAGES - 1) * groups
        ask_for(ring_dy, ring_x, free, p_dy, p_x, last, rows, o_col, m_col, dy_row, x_row, TURNS, ALIGN)
        following = row + groups
        then = following + groups
        rstd_then = gl.load(p_rstd + then, mask=then < rows, other=0.0)
        if TURNS > 1:
            dy_end_then, x_end_then = load_end(p_dy, p_x, then, rows, o_end, m_end, x_row, TURNS, ALIGN)
        async_copy.wait_group(STAGES - 2)
        dot = dot_of(
            ring_dy.index(after).load(layout), ring_x.index(after).load(layout), weight, offset,
            WEIGHTED, SHIFTED, NARROW, True,
        )  # fmt: skip
        if TURNS > 1:
            dot += dot_of(dy_end_following, x_end_following, weight_end, offset, WEIGHTED, SHIFTED, NARROW, False)
        p_word = p_own + following.to(gl.int64) * slices
        gl.atomic_xchg(p_word, bits_of(dot * rstd_following), mask=following < rows, sem="relaxed")

        words = gl.where(peer < slices, wait_for(p_peers + row.to(gl.int64) * slices), 0)
        mean_dot = tl.div_rn(gl.sum(words.to(gl.float32, bitcast=True), 0), count)
        dx, further = gradients_of(
            ring_dy.index(slot).load(layout), ring_x.index(slot).load(layout), rstd, mean_dot, weight, offset,
            WEIGHTED, SHIFTED, X_HAT, NARROW, True,
        )  # fmt: skip
        if p_dweights is not None:
            dweight += further
        p_row = p_dx + (row // TURNS).to(gl.int64) * dx_row * ALIGN
        gl.store(p_row + o_col, dx.to(p_dx.dtype.element_ty), mask=m_col, eviction_policy=PASSING)
        if TURNS > 1:
            dx_end, further_end = gradients_of(
                dy_end, x_end, rstd, mean_dot, weight_end, offset, WEIGHTED, SHIFTED, X_HAT, NARROW, False
            )
            if p_dweights is not None:
                dweight_end += further_end
            gl.store(p_row + o_end, dx_end.to(p_dx.dtype.element_ty), mask=m_end)
            dy_end = dy_end_following
            x_end = x_end_following
            dy_end_following = dy_end_then
            x_end_following = x_end_then
        slot = after
        rstd = rstd_following
        rstd_following = rstd_then

    # One partial row a group of programs.
    if p_dweights is not None:
        p_partial = p_dweights + first.to(gl.int64) * width - before
        gl.store(p_partial + o_affine, gl.convert_layout(dweight, of_affine), mask=m_affine)
        if TURNS > 1:
            gl.store(p_partial + o_end, dweight_end, mask=m_end)
