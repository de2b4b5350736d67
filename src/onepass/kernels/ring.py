"""The backward of rows that programs share, as split.py has it, from shared memory.

There a program keeps a row's dy and x̂ in registers until its peers' sums have come, in fp32, and the next row's beside
them. Here asynchronous copies put rows into a ring in shared memory, from which each is read twice: for its sum, and a
step later for its gradient. Nothing is held between the two, so that there are twice the warps to wait for memory, with
as many rows on their way: 768 us against 856 at 8,192 x 65,536, and 197 against 206 held by one program at 16,384
columns. LayerNorm, of which a thread sums dB too, takes 402 us against 463 at 4,096 x 65,536 and 203 against 225 at
8,192 x 16,384, if it has as many programs. They leave more partial sums than there is to be memory for, and so two
groups of them one row between them, the second behind the first.

Dense rows that do not all begin on 16 bytes are taken in TURNS, as in turns.py and split_turns.py: a group of programs
has rows that lie alike, places are counted from the 16 bytes in which a row begins, and copies are of whole vectors.
The elements at both ends of a row, which share their 16 bytes with another one, pass by the ring, in registers.

It is written in Gluon, in which layouts and shared memory have names. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from onepass.kernels.mailbox import WAIT_FOR_COUNT, bits_of, bits_of_pair, means_of, wait_for, wait_for_all
from onepass.kernels.parts import PASSING, deviation_of, input_gradient, normalized, weighted, wide


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
def sums_of(
    dy, x, mean, weight, offset, CENTRED: gl.constexpr, WEIGHTED: gl.constexpr, SHIFTED: gl.constexpr,
    NARROW: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """The sums of w·dy·(x - mean) and, of LayerNorm, of w·dy."""
    weighted_dy = weighted(wide(dy, PACKED), weight, offset, WEIGHTED, SHIFTED, NARROW, PACKED)
    dot = gl.sum(weighted_dy * deviation_of(x, mean, None, CENTRED, PACKED, False), 0)
    if CENTRED:
        return dot, gl.sum(weighted_dy, 0)
    else:
        return dot, 0.0


@gluon.jit
def word_of(dot, total, rstd, CENTRED: gl.constexpr):
    """What peers are told."""
    if CENTRED:
        return bits_of_pair(dot * rstd, total)
    else:
        return bits_of(dot * rstd)


@gluon.jit
def gradients_of(
    dy, x, mean, rstd, mean_dot, mean_dy, weight, offset, CENTRED: gl.constexpr, WEIGHTED: gl.constexpr,
    SHIFTED: gl.constexpr, X_HAT: gl.constexpr, NARROW: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """dx, and what is added to dW and dB."""
    dy = wide(dy, PACKED)
    x_hat = deviation_of(x, mean, None, CENTRED, PACKED, False) * rstd
    dweight = dy * normalized(x_hat, 1.0, X_HAT, NARROW)
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, PACKED)
    return input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED), dweight, dy


@gluon.jit
def load_statistics(p_mean, p_rstd, row, rows, CENTRED: gl.constexpr):
    """A row's mean, which RMSNorm has not, and rstd; zeros beyond the last one."""
    rstd = gl.load(p_rstd + row, mask=row < rows, other=0.0)
    if CENTRED:
        return gl.load(p_mean + row, mask=row < rows, other=0.0), rstd
    else:
        return 0.0, rstd


@gluon.jit
def leave(p, o, m, value, behind, SHARED: gl.constexpr):
    """A partial sum, with another group's where it stands behind that. Past the L1, which may have what was there."""
    if SHARED:
        value += gl.load(p + o, mask=m & behind, other=0.0, cache_modifier=".cg")
    gl.store(p + o, value, mask=m)


@gluon.jit
def wait_for_count(p_count, layout: gl.constexpr):
    """Until the count is one."""
    count = gl.full([32 * gl.num_warps()], 1, gl.int32, layout)
    gl.inline_asm_elementwise(WAIT_FOR_COUNT, "=r,l,r", [p_count, count], gl.int32, False, 1)
    gl.thread_barrier()


@gluon.jit
def ring_backward(
    p_dy,
    p_x,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dweights,
    p_dbiases,
    p_mailbox,
    dy_row,
    x_row,
    dx_row,
    rows,
    cols,
    slices,
    groups,
    partials,
    offset,
    CENTRED: tl.constexpr,
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

    Of LayerNorm there may be fewer `partials` than groups, and at least half as many. Behind the mailbox's words for
    rows is one for each slice of a partial row then, which says that it may be added to.

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
    mean, rstd = load_statistics(p_mean, p_rstd, first, rows, CENTRED)
    mean_following, rstd_following = load_statistics(p_mean, p_rstd, following, rows, CENTRED)
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
    dbias = gl.zeros([BLOCK], gl.float32, layout)
    if TURNS > 1:
        dy_end, x_end = load_end(p_dy, p_x, first, rows, o_end, m_end, x_row, TURNS, ALIGN)
        dy_end_following, x_end_following = load_end(p_dy, p_x, following, rows, o_end, m_end, x_row, TURNS, ALIGN)
        if WEIGHTED:
            weight_end = gl.load(p_weight + o_end - before, mask=m_end, other=0.0)
        dweight_end = gl.zeros([ALIGN], gl.float32, of_words)
        dbias_end = gl.zeros([ALIGN], gl.float32, of_words)

    WORDS: gl.constexpr = max(1, PEERS // (32 * gl.num_warps()))
    peer = gl.arange(0, PEERS, of_words)
    p_own = p_mailbox + own
    p_peers = p_mailbox + gl.minimum(peer, slices - 1)
    async_copy.wait_group(STAGES - 2)
    dot, total = sums_of(
        ring_dy.index(0).load(layout), ring_x.index(0).load(layout), mean, weight, offset,
        CENTRED, WEIGHTED, SHIFTED, NARROW, True,
    )  # fmt: skip
    if TURNS > 1:
        dot_end, total_end = sums_of(dy_end, x_end, mean, weight_end, offset, CENTRED, WEIGHTED, SHIFTED, NARROW, False)
        dot += dot_end
        total += total_end
    word = word_of(dot, total, rstd, CENTRED)
    gl.atomic_xchg(p_own + first.to(gl.int64) * slices, word, mask=first < rows, sem="relaxed")
    slot = 0
    for row in range(first, rows, groups):
        # The row before this one is done, so its slot is free.
        free = gl.where(slot == 0, STAGES - 1, slot - 1)
        after = gl.where(slot == STAGES - 1, 0, slot + 1)
        last = row + (STAGES - 1) * groups
        ask_for(ring_dy, ring_x, free, p_dy, p_x, last, rows, o_col, m_col, dy_row, x_row, TURNS, ALIGN)
        following = row + groups
        then = following + groups
        mean_then, rstd_then = load_statistics(p_mean, p_rstd, then, rows, CENTRED)
        if TURNS > 1:
            dy_end_then, x_end_then = load_end(p_dy, p_x, then, rows, o_end, m_end, x_row, TURNS, ALIGN)
        async_copy.wait_group(STAGES - 2)
        dot, total = sums_of(
            ring_dy.index(after).load(layout), ring_x.index(after).load(layout), mean_following, weight, offset,
            CENTRED, WEIGHTED, SHIFTED, NARROW, True,
        )  # fmt: skip
        if TURNS > 1:
            dot_end, total_end = sums_of(
                dy_end_following, x_end_following, mean_following, weight_end, offset,
                CENTRED, WEIGHTED, SHIFTED, NARROW, False,
            )  # fmt: skip
            dot += dot_end
            total += total_end
        word = word_of(dot, total, rstd_following, CENTRED)
        gl.atomic_xchg(p_own + following.to(gl.int64) * slices, word, mask=following < rows, sem="relaxed")

        p_words = p_peers + row.to(gl.int64) * slices
        # 411 us against 439 at 2,048 x 131,072; but alone 401 against 403 of 65,536. In turns it saves registers.
        if CENTRED and (gl.num_warps() > 1 or TURNS > 1):
            words = wait_for_all(p_words, WORDS)
        else:
            words = wait_for(p_words)
        mean_dot, mean_dy = means_of(gl.where(peer < slices, words, 0), count, CENTRED)
        dx, further, dy = gradients_of(
            ring_dy.index(slot).load(layout), ring_x.index(slot).load(layout), mean, rstd, mean_dot, mean_dy, weight,
            offset, CENTRED, WEIGHTED, SHIFTED, X_HAT, NARROW, True,
        )  # fmt: skip
        if p_dweights is not None:
            dweight += further
        if p_dbiases is not None:
            dbias += dy
        p_row = p_dx + (row // TURNS).to(gl.int64) * dx_row * ALIGN
        gl.store(p_row + o_col, dx.to(p_dx.dtype.element_ty), mask=m_col, eviction_policy=PASSING)
        if TURNS > 1:
            dx_end, further_end, dy = gradients_of(
                dy_end, x_end, mean, rstd, mean_dot, mean_dy, weight_end, offset,
                CENTRED, WEIGHTED, SHIFTED, X_HAT, NARROW, False,
            )  # fmt: skip
            if p_dweights is not None:
                dweight_end += further_end
            if p_dbiases is not None:
                dbias_end += dy
            gl.store(p_row + o_end, dx_end.to(p_dx.dtype.element_ty), mask=m_end)
            dy_end = dy_end_following
            x_end = x_end_following
            dy_end_following = dy_end_then
            x_end_following = x_end_then
        slot = after
        mean = mean_following
        rstd = rstd_following
        mean_following = mean_then
        rstd_following = rstd_then

    # One partial row a group of programs, or two.
    partial = first
    if CENTRED:
        partial = gl.where(first < partials, first, first - partials)
        if first >= partials:
            wait_for_count(p_own + (rows + partial).to(gl.int64) * slices, of_words)
    o_partial = partial.to(gl.int64) * width - before
    behind = first >= partials
    if p_dweights is not None:
        leave(p_dweights, o_partial + o_affine, m_affine, gl.convert_layout(dweight, of_affine), behind, CENTRED)
        if TURNS > 1:
            leave(p_dweights, o_partial + o_end, m_end, dweight_end, behind, CENTRED)
    if p_dbiases is not None:
        leave(p_dbiases, o_partial + o_affine, m_affine, gl.convert_layout(dbias, of_affine), behind, CENTRED)
        if TURNS > 1:
            leave(p_dbiases, o_partial + o_end, m_end, dbias_end, behind, CENTRED)
    if CENTRED:
        gl.thread_barrier()
        gl.atomic_xchg(p_own + (rows + partial).to(gl.int64) * slices, 1, mask=first < partials, sem="release")
