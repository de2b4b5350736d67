"""The backward of RMSNorm for rows that programs share, as split.py has it, from shared memory.

There a program keeps a row's dy and x̂ in registers until its peers' sums have come, in fp32, and the next row's beside
them. Here asynchronous copies put rows into a ring in shared memory, from which each is read twice: for its sum, and a
step later for its gradient. Nothing is held between the two, so that there are twice the warps to wait for memory, with
as many rows on their way: 768 us against 856 at 8,192 x 65,536, and 197 against 206 held by one program at 16,384
columns. LayerNorm, which sums dB too and exchanges two sums, gained 1 % at 8,192 x 32,768 and lost 4 at 16,384 columns.

It is written in Gluon, in which layouts and shared memory have names. Triton's interpreter does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from onepass.kernels.mailbox import bits_of, wait_for
from onepass.kernels.parts import PASSING, input_gradient, normalized, weighted, wide


@gluon.jit
def ask_for(ring_dy, ring_x, slot, p_dy, p_x, row, rows, o_col, m_col, dy_row, x_row, ALIGN: gl.constexpr):
    """A row on its way into a slot of the ring; zeros for what is beyond the last row and column."""
    m = m_col & (row < rows)
    o_dy = row.to(gl.int64) * dy_row * ALIGN + o_col
    o_x = row.to(gl.int64) * x_row * ALIGN + o_col
    async_copy.async_copy_global_to_shared(ring_dy.index(slot), p_dy + o_dy, mask=m)
    async_copy.async_copy_global_to_shared(ring_x.index(slot), p_x + o_x, mask=m)
    async_copy.commit_group()


@gluon.jit
def publish_sum(
    ring_dy, ring_x, slot, weight, offset, rstd, p_word, wanted,
    layout: gl.constexpr, WEIGHTED: gl.constexpr, SHIFTED: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Of w·dy·x̂ over this slice of the row in that slot, which is there."""
    dy = wide(ring_dy.index(slot).load(layout), True)
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, True)
    dot = gl.sum(weighted_dy * wide(ring_x.index(slot).load(layout), True), 0) * rstd
    gl.atomic_xchg(p_word, bits_of(dot), mask=wanted, sem="relaxed")


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
    BLOCK: tl.constexpr,
    PEERS: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """`groups` of programs, one for each slice, take the rows in turn. STAGES: slots of the ring."""
    VECTOR: gl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    of_words: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    in_memory: gl.constexpr = gl.SwizzledSharedLayout(VECTOR, 1, 1, [0])
    WEIGHTED: gl.constexpr = p_weight is not None

    own = gl.program_id(0) % slices
    first = gl.program_id(0) // slices
    o_col = own * BLOCK + gl.arange(0, BLOCK, layout)
    m_col = o_col < cols * ALIGN
    count = (cols * ALIGN).to(gl.float32)
    ring_dy = gl.allocate_shared_memory(p_dy.dtype.element_ty, [STAGES, BLOCK], in_memory)
    ring_x = gl.allocate_shared_memory(p_x.dtype.element_ty, [STAGES, BLOCK], in_memory)
    for stage in gl.static_range(STAGES - 1):
        ask_for(ring_dy, ring_x, stage, p_dy, p_x, first + stage * groups, rows, o_col, m_col, dy_row, x_row, ALIGN)
    weight = 0.0
    if WEIGHTED:
        weight = gl.load(p_weight + o_col, mask=m_col, other=0.0)
    dweight = gl.zeros([BLOCK], gl.float32, layout)

    peer = gl.arange(0, PEERS, of_words)
    p_own = p_mailbox + own
    p_peers = p_mailbox + gl.minimum(peer, slices - 1)
    following = first + groups
    rstd = gl.load(p_rstd + first, mask=first < rows, other=0.0)
    rstd_following = gl.load(p_rstd + following, mask=following < rows, other=0.0)
    async_copy.wait_group(STAGES - 2)
    publish_sum(
        ring_dy, ring_x, 0, weight, offset, rstd, p_own + first.to(gl.int64) * slices, first < rows,
        layout, WEIGHTED, SHIFTED, NARROW,
    )  # fmt: skip
    slot = 0
    for row in range(first, rows, groups):
        # The row before this one is done, so its slot is free.
        free = gl.where(slot == 0, STAGES - 1, slot - 1)
        after = gl.where(slot == STAGES - 1, 0, slot + 1)
        ask_for(ring_dy, ring_x, free, p_dy, p_x, row + (STAGES - 1) * groups, rows, o_col, m_col, dy_row, x_row, ALIGN)
        following = row + groups
        then = following + groups
        rstd_then = gl.load(p_rstd + then, mask=then < rows, other=0.0)
        async_copy.wait_group(STAGES - 2)
        publish_sum(
            ring_dy, ring_x, after, weight, offset, rstd_following, p_own + following.to(gl.int64) * slices,
            following < rows, layout, WEIGHTED, SHIFTED, NARROW,
        )  # fmt: skip

        words = gl.where(peer < slices, wait_for(p_peers + row.to(gl.int64) * slices), 0)
        mean_dot = tl.div_rn(gl.sum(words.to(gl.float32, bitcast=True), 0), count)
        dy = wide(ring_dy.index(slot).load(layout), True)
        x_hat = wide(ring_x.index(slot).load(layout), True) * rstd
        if p_dweights is not None:
            dweight += dy * normalized(x_hat, 1.0, X_HAT, NARROW)
        weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, True)
        dx = input_gradient(weighted_dy, x_hat, rstd, mean_dot, 0.0, False)
        o_dx = row.to(gl.int64) * dx_row * ALIGN + o_col
        gl.store(p_dx + o_dx, dx.to(p_dx.dtype.element_ty), mask=m_col, eviction_policy=PASSING)
        slot = after
        rstd = rstd_following
        rstd_following = rstd_then

    # One partial row a group of programs.
    if p_dweights is not None:
        gl.store(p_dweights + first.to(gl.int64) * (cols * ALIGN) + o_col, dweight, mask=m_col)
