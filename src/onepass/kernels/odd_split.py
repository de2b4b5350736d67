"""Forward of wide rows that begin anywhere and are shared: split.py's exchange, and slices that wait in shared memory.

A program has a slice of all rows of its group, and stays, with weight and bias of that slice in shared memory. There a
slice of a row comes in one copy, from the vector in which it begins to the one in which it ends, and stays until the
row is done: a thread takes a column from there for the sums, and again for y. y takes the slice's place, and goes out
in one copy too, but for the vectors at its ends.

Before a program waits for its peers' sums of a row, it has published its own of the next one, and asked for the row
after that, so the wait is hidden. All programs must run at the same time, or they wait for ever, as in a backward.

Copies are the machine's own (`cp.async.bulk`), which one thread asks for. Programs that came and went took 105 to 107
us at 2,000 x 44,001 where these took 100, with copies by all threads or by one, with the weight from memory or in
shared memory: more than half of the time their warps waited for each other's sums.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from onepass.kernels.mailbox import bits_of, bits_of_pair, first_look, moments_of, wait_since
from onepass.kernels.parts import deviation_of, lane_and_row, narrowed, row_start, rstd_of, scale_and_shift, with_square
from onepass.kernels.through import arrived, at, begin_of, line_of, piece, pieces_of, stacked, store_end, vectors_of

# What follows is on one line each, because PyTorch reads the compiler's text line by line. Places are in bytes, from
# where shared memory begins; the slots are there first. A barrier of the machine's is for one thread, that asks.
BEGIN = gl.constexpr(
    "{ .reg .pred one; .reg .u32 thread, bar; mov.u32 thread, %tid.x; setp.eq.u32 one, thread, 0; "
    "mov.u32 bar, global_smem; add.u32 bar, bar, $1; @one mbarrier.init.shared::cta.b64 [bar], 1; "
    "@one mbarrier.init.shared::cta.b64 [bar+8], 1; @one mbarrier.init.shared::cta.b64 [bar+16], 1; "
    "@one fence.proxy.async.shared::cta; bar.sync 0; mov.u32 $0, $1; }"
)
WAIT = gl.constexpr(
    "{ .reg .pred done; .reg .u32 bar; mov.u32 bar, global_smem; add.u32 bar, bar, $1; "
    "look: mbarrier.try_wait.parity.shared::cta.b64 done, [bar], $2; @!done bra look; mov.u32 $0, 0; }"
)
#: Bytes from a place to memory, which is to give them up first: they begin on 16 there, and are so many times 16.
SEND = gl.constexpr(
    "{ .reg .pred one, some; .reg .u32 thread, place; .reg .b64 policy; mov.u32 thread, %tid.x; "
    "setp.eq.u32 one, thread, 0; mov.u32 place, global_smem; add.u32 place, place, $2; "
    "setp.gt.and.s32 some, $3, 0, one; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
    "fence.proxy.async.shared::cta; bar.sync 0; "
    "@some cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [$1], [place], $3, policy; "
    "@one cp.async.bulk.commit_group; mov.u32 $0, $2; }"
)
#: Until the places have been read from which bytes go.
SENT = gl.constexpr(
    "{ .reg .pred one; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 one, thread, 0; "
    "@one cp.async.bulk.wait_group.read 0; mov.u32 $0, $1; }"
)


@constexpr_function
def ask_for_all(copies):
    """Such bytes from memory to places, by three arguments each, behind that of the barrier which then opens."""
    text = (
        "{ .reg .pred one, some; .reg .u32 thread, place, bar; mov.u32 thread, %tid.x; setp.eq.u32 one, thread, 0; "
        "mov.u32 bar, global_smem; add.u32 bar, bar, $1; "
    )
    for i in range(copies):
        text += (
            f"mov.u32 place, global_smem; add.u32 place, place, ${3 * i + 3}; "
            f"setp.gt.and.s32 some, ${3 * i + 4}, 0, one; "
            f"@some mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], ${3 * i + 4}; "
            "@some cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[place], [${3 * i + 2}], ${3 * i + 4}, [bar]; "
        )
    return text + "@one mbarrier.arrive.shared::cta.b64 _, [bar]; mov.u32 $0, $1; }"


@constexpr_function
def arguments_of(copies):
    return "=r,r" + ",l,r,r" * copies


@gluon.jit
def with_copy(copies, p, start, slot, width, outermost, exists, LINE: gl.constexpr, VECTOR: gl.constexpr):
    """Copies, with one more to a slot: of a slice, and what else lies in its first and its last vector.

    The outermost slices of a tensor leave these out, since they could reach beyond it.
    """
    p_line, shift = line_of(p, start, LINE)
    first, end = vectors_of(shift, width, outermost, VECTOR)
    first, end = first * VECTOR, end * VECTOR
    return copies + (p_line + first, (slot + first) * 2, gl.where(exists, end - first, 0) * 2)  # noqa: RUF005


@gluon.jit
def ask_for(
    copies, slot, barrier, p_x, p_residual, index, last, lanes, begin, width, x_row, x_lane, residual_row,
    residual_lane, COPIES: gl.constexpr, LANED: gl.constexpr, ALIGN: gl.constexpr, OTHER: gl.constexpr,
    LINE: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """A row's slice, if there is such a row, on its way to a slot, and with it the COPIES that are given."""
    lane, row = lane_and_row(index, lanes, LANED)
    outermost = (index == 0) | (index == last)
    o_x = row_start(row, lane, x_row, x_lane, ALIGN) + begin
    copies = with_copy(copies, p_x, o_x, slot, width, outermost, index <= last, LINE, VECTOR)
    ALL: gl.constexpr = COPIES + (1 if p_residual is None else 2)
    if p_residual is not None:
        o_residual = row_start(row, lane, residual_row, residual_lane, ALIGN) + begin
        copies = with_copy(copies, p_residual, o_residual, slot + OTHER, width, outermost, index <= last, LINE, VECTOR)
    arguments = (barrier,) + copies  # noqa: RUF005 (Triton has no unpacking)
    gl.inline_asm_elementwise(ask_for_all(ALL), arguments_of(ALL), arguments, gl.int32, False, 1)


@gluon.jit
def columns(
    slots, from_x, from_residual, BLOCK: gl.constexpr, ADDED: gl.constexpr, NARROW: gl.constexpr,
    ROUND_SUM: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr,
):  # fmt: skip
    """A block of what is normalized."""
    h = at(slots, from_x, [BLOCK], in_memory).load(by_column)
    if ADDED:
        residual = at(slots, from_residual, [BLOCK], in_memory).load(by_column)
        h = narrowed(h.to(gl.float32) + residual.to(gl.float32), NARROW)
    if ROUND_SUM is not None:
        h = h.to(ROUND_SUM)
    return h


@gluon.jit
def word_of(
    slots, from_x, from_residual, width, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, CENTRED: gl.constexpr,
    ADDED: gl.constexpr, NARROW: gl.constexpr, ROUND_SUM: gl.constexpr, MASKED: gl.constexpr, by_column: gl.constexpr,
    in_memory: gl.constexpr,
):  # fmt: skip
    """A slice's sum of squares, or with its mean that of squared deviations from it, as a word of the mailbox."""
    o_block = gl.arange(0, BLOCK, by_column)
    held = ()
    for i in gl.static_range(BLOCKS):
        h = columns(
            slots, from_x + i * BLOCK, from_residual + i * BLOCK, BLOCK, ADDED, NARROW, ROUND_SUM, by_column, in_memory
        )
        held = held + (h,)  # noqa: RUF005
    mean = 0.0
    if CENTRED:
        total = gl.zeros([BLOCK], gl.float32, by_column)
        for i in gl.static_range(BLOCKS):
            h = held[i].to(gl.float32)
            if MASKED:
                h = gl.where(i * BLOCK + o_block < width, h, 0.0)
            total += h
        mean = tl.div_rn(gl.sum(total, 0), width.to(gl.float32))
    squares = gl.zeros([BLOCK], gl.float32, by_column)
    for i in gl.static_range(BLOCKS):
        deviation = deviation_of(held[i], mean, None, CENTRED, False, False)
        if MASKED:
            deviation = gl.where(i * BLOCK + o_block < width, deviation, 0.0)
        squares = with_square(squares, deviation, NARROW)
    square = gl.sum(squares, 0)
    if CENTRED:
        return bits_of_pair(square, mean)
    else:
        return bits_of(square)


@gluon.jit
def put_in_place(slots, place, values, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, of_blocks: gl.constexpr):
    """All blocks of what goes out, behind one barrier for as many of them as a power of two."""
    for i in gl.static_range(pieces_of(BLOCKS)):
        target = at(slots, place + begin_of(BLOCKS, i) * BLOCK, [piece(BLOCKS, i), BLOCK], of_blocks)
        target.store(stacked(values, begin_of(BLOCKS, i), piece(BLOCKS, i), BLOCK))


@gluon.jit
def place_for(p, start, place, LINE: gl.constexpr, VECTOR: gl.constexpr):
    """From where on columns lie in shared memory that go to `start` of a tensor, no further on than `place`."""
    _, shift = line_of(p, start, LINE)
    return place - (place - shift) % VECTOR


@gluon.jit
def give(slots, place, p, start, width, VECTOR: gl.constexpr, by_column: gl.constexpr, in_memory: gl.constexpr):
    """What lies in shared memory from a place on, to where it belongs, the vectors at its ends by elements."""
    shift = place % VECTOR
    slot = place - shift
    p_slot = p + (start - shift)
    end = shift + width
    store_end(slots, slot, p_slot, 0, shift, end, VECTOR, by_column, in_memory)
    store_end(slots, slot, p_slot, (end - 1) // VECTOR, shift, end, VECTOR, by_column, in_memory)
    first = gl.cdiv(shift, VECTOR) * VECTOR
    copy = [p_slot + first, (slot + first) * 2, (end // VECTOR * VECTOR - first) * 2]
    gl.inline_asm_elementwise(SEND, "=r,l,r,r", copy, gl.int32, False, 1)


@gluon.jit
def affine(
    slots, place, p, o_col, cols, BLOCK: gl.constexpr, STAGED: gl.constexpr, by_column: gl.constexpr,
    in_memory: gl.constexpr,
):  # fmt: skip
    """A block of weight or bias: of 16 bits from shared memory, and else from where they lie."""
    if p is None:
        return 0.0
    elif STAGED:
        return at(slots, place, [BLOCK], in_memory).load(by_column).to(p.dtype.element_ty, bitcast=True)
    else:
        return gl.load(p + o_col, mask=o_col < cols, other=0.0)


@gluon.jit
def odd_split_forward(
    p_x,
    p_residual,
    p_weight,
    p_bias,
    p_y,
    p_sum,
    p_mean,
    p_rstd,
    p_mailbox,
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
    slices,
    groups,
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
    SLOT: tl.constexpr,
    SLOTS: tl.constexpr,
    PEERS: tl.constexpr,
):
    """SLOTS: three for x, as many for the residual, and one for each of weight and bias, if they have 16 bits."""
    WARPS: gl.constexpr = gl.num_warps()
    VECTOR: gl.constexpr = 128 // p_x.dtype.element_ty.primitive_bitwidth
    LINE: gl.constexpr = 8 * VECTOR
    WIDTH: gl.constexpr = BLOCK * BLOCKS
    by_column: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    in_memory: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    of_blocks: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ADDED: gl.constexpr = p_residual is not None
    OTHER: gl.constexpr = SLOT if ADDED else 0  # from a slot of x to the residual's
    STAGE: gl.constexpr = SLOT + OTHER
    STAGED: gl.constexpr = SLOTS > STAGE // SLOT * 3
    WEIGHT: gl.constexpr = 3 * STAGE + LINE
    BIAS: gl.constexpr = WEIGHT + (SLOT if p_weight is not None else 0)
    AFFINES: gl.constexpr = SLOTS - STAGE // SLOT * 3
    BARRIERS: gl.constexpr = SLOTS * SLOT * 2

    cols *= ALIGN
    own = gl.program_id(0) % slices
    group = gl.program_id(0) // slices
    begin = own * WIDTH
    width = gl.minimum(cols - begin, WIDTH)
    at_end = (own == 0) | (own == slices - 1)
    count = cols.to(gl.float32)
    last = rows * lanes - 1
    # In front of each slot a line is left, into which y may begin; behind them are the barriers.
    slots = gl.allocate_shared_memory(p_x.dtype.element_ty, [SLOTS * SLOT + LINE, 1], in_memory)
    barriers = gl.inline_asm_elementwise(BEGIN, "=r,r", [gl.to_tensor(BARRIERS)], gl.int32, False, 1)
    copies = ()
    if STAGED and p_weight is not None:
        copies = with_copy(copies, p_weight, begin, WEIGHT, width, at_end, True, LINE, VECTOR)
    if STAGED and p_bias is not None:
        copies = with_copy(copies, p_bias, begin, BIAS, width, at_end, True, LINE, VECTOR)
    for ahead in gl.static_range(3):
        ask_for(
            copies, ahead * STAGE + LINE, barriers + 8 * ahead, p_x, p_residual, group + ahead * groups, last, lanes,
            begin, width, x_row, x_lane, residual_row, residual_lane, AFFINES if ahead == 0 else 0, LANED, ALIGN, OTHER,
            LINE, VECTOR,
        )  # fmt: skip
        copies = ()

    # Up to 32 words each warp has all of, so that they are summed without a barrier.
    peer = gl.arange(0, PEERS, by_column)
    p_peers = p_mailbox + gl.minimum(peer, slices - 1)
    from_weight = WEIGHT + begin * 0
    from_bias = BIAS + begin * 0
    from_x = begin * 0
    from_residual = begin * 0
    # Rows are summed one round ahead of the one that is finished: in round -1 the first, and in the last round none.
    rounds = gl.cdiv(last + 1 - group, groups)
    for step in range(-1, rounds):
        following = group + (step + 1) * groups
        # The answer comes while this program makes its sum of the next row: 281 us against 292 at 2,000 x 131,073.
        p_words = p_peers + (group + gl.maximum(step, 0) * groups).to(gl.int64) * slices
        seen = first_look(p_words)
        stage = (step + 1) % 3
        parity = (step + 1) // 3 % 2
        there = gl.inline_asm_elementwise(WAIT, "=r,r,r", [barriers + 8 * stage, parity], gl.int32, False, 1)
        lane, row = lane_and_row(following, lanes, LANED)
        outermost = (following == 0) | (following == last)
        slot = stage * STAGE + LINE + there
        o_x = row_start(row, lane, x_row, x_lane, ALIGN) + begin
        next_x = arrived(slots, slot, p_x, o_x, width, outermost, LINE, VECTOR, by_column, in_memory)
        next_residual = next_x
        if ADDED:
            o_residual = row_start(row, lane, residual_row, residual_lane, ALIGN) + begin
            next_residual = arrived(
                slots, slot + OTHER, p_residual, o_residual, width, outermost, LINE, VECTOR, by_column, in_memory
            )
        if step < 0:
            if STAGED and p_weight is not None:
                from_weight = arrived(
                    slots, WEIGHT + there, p_weight, begin, width, at_end, LINE, VECTOR, by_column, in_memory
                )
            if STAGED and p_bias is not None:
                from_bias = arrived(
                    slots, BIAS + there, p_bias, begin, width, at_end, LINE, VECTOR, by_column, in_memory
                )
        if following <= last:
            if width == WIDTH:
                word = word_of(
                    slots, next_x, next_residual, width, BLOCK, BLOCKS, CENTRED, ADDED, NARROW, ROUND_SUM, False,
                    by_column, in_memory,
                )  # fmt: skip
            else:
                word = word_of(
                    slots, next_x, next_residual, width, BLOCK, BLOCKS, CENTRED, ADDED, NARROW, ROUND_SUM, True,
                    by_column, in_memory,
                )  # fmt: skip
            gl.atomic_xchg(p_mailbox + following.to(gl.int64) * slices + own, word, sem="relaxed")
        if step >= 1:
            # y of the row before has left its slot by now; to wait for that where it was sent cost all warps.
            gl.inline_asm_elementwise(SENT, "=r,r", [begin], gl.int32, False, 1)
            free = (step + 2) % 3
            ask_for(
                (), free * STAGE + LINE, barriers + 8 * free, p_x, p_residual, group + (step + 2) * groups, last, lanes,
                begin, width, x_row, x_lane, residual_row, residual_lane, 0, LANED, ALIGN, OTHER, LINE, VECTOR,
            )  # fmt: skip
        if step >= 0:
            index = group + step * groups
            lane, row = lane_and_row(index, lanes, LANED)
            words = gl.where(peer < slices, wait_since(seen, p_words), 0)
            mean, square = moments_of(words, peer, cols, count, WIDTH, CENTRED)
            rstd = rstd_of(square, count, eps, NARROW)
            o_stat = row_start(row, lane, stat_row, stat_lane, 1)
            if p_mean is not None:
                gl.store(p_mean + o_stat, mean, mask=own == 0)
            if p_rstd is not None:
                gl.store(p_rstd + o_stat, rstd, mask=own == 0)

            o_y = row_start(row, lane, y_row, y_lane, ALIGN) + begin
            to_y = place_for(p_y, o_y, from_residual, LINE, VECTOR)
            to_sum = to_y
            if p_sum is not None:
                to_sum = place_for(p_sum, o_y, from_x, LINE, VECTOR)
            ys = ()
            totals = ()
            for i in gl.static_range(BLOCKS):
                o_col = begin + i * BLOCK + gl.arange(0, BLOCK, by_column)
                weight = affine(
                    slots, from_weight + i * BLOCK, p_weight, o_col, cols, BLOCK, STAGED, by_column, in_memory
                )
                bias = affine(slots, from_bias + i * BLOCK, p_bias, o_col, cols, BLOCK, STAGED, by_column, in_memory)
                h = columns(
                    slots, from_x + i * BLOCK, from_residual + i * BLOCK, BLOCK, ADDED, NARROW, ROUND_SUM, by_column,
                    in_memory,
                )  # fmt: skip
                y = scale_and_shift(
                    deviation_of(h, mean, None, CENTRED, False, False), rstd, weight, bias, offset,
                    p_weight is not None, p_bias is not None, SHIFTED, X_HAT, NARROW, False,
                )  # fmt: skip
                if p_sum is not None:
                    totals = totals + (h.to(p_sum.dtype.element_ty).to(slots.dtype, bitcast=True),)  # noqa: RUF005
                ys = ys + (y.to(p_y.dtype.element_ty).to(slots.dtype, bitcast=True),)  # noqa: RUF005
            if p_sum is not None:
                put_in_place(slots, to_sum, totals, BLOCK, BLOCKS, of_blocks)
            put_in_place(slots, to_y, ys, BLOCK, BLOCKS, of_blocks)
            if p_sum is not None:
                give(slots, to_sum, p_sum, o_y, width, VECTOR, by_column, in_memory)
            give(slots, to_y, p_y, o_y, width, VECTOR, by_column, in_memory)
        from_x = next_x
        from_residual = next_residual
    gl.inline_asm_elementwise(SENT, "=r,r", [begin], gl.int32, False, 1)
