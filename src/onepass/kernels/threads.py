"""Many short rows that do not begin on 16 bytes: a thread has a row of its own, from shared memory.

Laid over a warp, as in flat.py, a row is some 70 instructions of the warp, however short it is. Here it is some ten a
column for 32 rows, and what a row has once is done for 32 rows at a time. Rows that lie one behind the other are one
piece of memory, which comes to shared memory, and goes from there, in vectors.

Forward: a thread adds up its row in as many sums as tile.py has threads for it, and then these as they would, so that
the bits are the same. Backward: programs stay, with the next rows on their way, and a thread sums dW and dB of all its
rows, a register for each column.

It is written in Gluon; through.py has how rows come and go, words.py how a thread reads its own. Triton's interpreter
does not know it.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.runtime.jit import constexpr_function

from onepass.kernels.parts import (
    input_gradient,
    mean_of,
    narrowed,
    normalized,
    rstd_of,
    scale_and_shift,
    weighted,
    whole_weight,
    with_square,
)
from onepass.kernels.through import arrived, ask_for, line_of, send, store_end
from onepass.kernels.words import (
    by_lane,
    give_pair,
    of_column,
    place_of,
    row_of_thread,
    store_sums,
    value_in,
    words_at,
)

IN_MEMORY = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
OF_CHUNKS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@constexpr_function
def elements_of(size, dtype):
    """That so many bytes have."""
    return 8 * size // dtype.primitive_bitwidth


@gluon.jit
def rows_of(index, rows, COLS: gl.constexpr):
    """The first of some rows, a thread each, where it begins, how long all are, and whether they are a tensor's
    outermost.
    """
    ROWS: gl.constexpr = 32 * gl.num_warps()
    first = index * ROWS
    length = gl.maximum(gl.minimum(rows - first, ROWS), 0) * COLS
    return first, first.to(gl.int64) * COLS, length, (first == 0) | (first + ROWS >= rows)


@gluon.jit
def ask_for_rows(slots, slot, p, index, rows, COLS: gl.constexpr, CHUNKS: gl.constexpr):
    WARPS: gl.constexpr = gl.num_warps()
    VECTOR: gl.constexpr = elements_of(16, p.dtype.element_ty)
    by_vector: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, 32], [1, WARPS], [1, 0])
    first, start, length, outermost = rows_of(index, rows, COLS)
    ask_for(
        slots, slot, p, start, length, outermost, first < rows,
        8 * VECTOR, VECTOR, 32 * WARPS * VECTOR, CHUNKS, by_vector, OF_CHUNKS,
    )  # fmt: skip


@gluon.jit
def rows_arrived(slots, slot, p, index, rows, COLS: gl.constexpr, by_row: gl.constexpr):
    """Where they begin."""
    _, start, length, outermost = rows_of(index, rows, COLS)
    VECTOR: gl.constexpr = elements_of(16, p.dtype.element_ty)
    return arrived(slots, slot, p, start, length, outermost, 8 * VECTOR, VECTOR, by_row, IN_MEMORY)


@gluon.jit
def send_rows(slots, slot, p, index, rows, COLS: gl.constexpr, CHUNKS: gl.constexpr, by_row: gl.constexpr):
    """From a slot to where they are to lie."""
    WARPS: gl.constexpr = gl.num_warps()
    VECTOR: gl.constexpr = elements_of(16, p.dtype.element_ty)
    by_vector: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, 32], [1, WARPS], [1, 0])
    _, start, length, _ = rows_of(index, rows, COLS)
    p_line, shift = line_of(p, start, 8 * VECTOR)
    end = shift + length
    send(slots, slot, p, p_line, shift, end, VECTOR, 32 * WARPS * VECTOR, CHUNKS, by_vector, OF_CHUNKS)
    if (shift % VECTOR != 0) | (end % VECTOR != 0):
        store_end(slots, slot, p_line, shift // VECTOR, shift, end, VECTOR, by_row, IN_MEMORY)
        store_end(slots, slot, p_line, (end - 1) // VECTOR, shift, end, VECTOR, by_row, IN_MEMORY)


@gluon.jit
def words_of(element, COLS: gl.constexpr, WHOLE: gl.constexpr, dtype: gl.constexpr):
    """Of the row that begins with an element."""
    place, upper = place_of(element, dtype)
    return words_at(place, upper, COLS, WHOLE, dtype)


@gluon.jit
def place_to(p, slot, index, row, rows, COLS: gl.constexpr):
    """Where in a slot a row of a tensor is to lie, from which it is sent."""
    _, start, _, _ = rows_of(index, rows, COLS)
    _, shift = line_of(p, start, elements_of(128, p.dtype.element_ty))
    return place_of(slot + shift + row * COLS, p.dtype.element_ty)


@gluon.jit
def value_of(words, others, column: gl.constexpr, dtype: gl.constexpr, NARROW: gl.constexpr, ROUND_SUM: gl.constexpr):
    """What is to be normalized of a column: of x, or of its sum with the residual; in fp32."""
    h = value_in(words, column, dtype)
    if len(others) > 0:
        h = narrowed(h + value_in(others, column, dtype), NARROW)
    return narrowed(h, ROUND_SUM)


@gluon.jit
def halved(parts, HALF: gl.constexpr):
    sums = ()
    for k in gl.static_range(HALF):
        sums = sums + (parts[k] + parts[k + HALF],)  # noqa: RUF005 (Triton has no unpacking)
    return sums


@gluon.jit
def added_up(parts, COUNT: gl.constexpr, SIDE: gl.constexpr):
    """As threads would that have SIDE of them each: first their own, and then those farthest apart."""
    own = ()
    for k in gl.static_range(COUNT // SIDE):
        total = parts[k * SIDE]
        for i in gl.static_range(1, SIDE):
            total += parts[k * SIDE + i]
        own = own + (total,)  # noqa: RUF005
    for level in gl.static_range((COUNT // SIDE).bit_length() - 1):
        own = halved(own, COUNT // SIDE >> (level + 1))
    return own[0]


@gluon.jit
def y_of(
    h, mean, rstd, weights, biases, offset, column: gl.constexpr, CENTRED: gl.constexpr, WEIGHTED: gl.constexpr,
    BIASED: gl.constexpr, X_HAT: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    weight = of_column(weights, column) if WEIGHTED else 0.0
    bias = of_column(biases, column) if BIASED else 0.0
    if CENTRED:
        h -= mean
    return scale_and_shift(h, rstd, weight, bias, offset, WEIGHTED, BIASED, False, X_HAT, NARROW, False)


@gluon.jit
def whole_weights(p_weight, thread, offset, SHIFTED: gl.constexpr, NARROW: gl.constexpr, COLS: gl.constexpr):
    """Weight with the offset, or bias, in fp32, a column a lane."""
    weights = ()
    if p_weight is not None:
        loaded = by_lane(p_weight, thread, COLS)
        for i in gl.static_range((COLS + 31) // 32):
            weights = weights + (whole_weight(loaded[i], offset, SHIFTED, NARROW, False),)  # noqa: RUF005
    return weights


@gluon.jit
def threads_forward(
    p_x,
    p_residual,
    p_weight,
    p_bias,
    p_y,
    p_sum,
    p_mean,
    p_rstd,
    rows,
    eps,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ROUND_SUM: tl.constexpr,
    ALIGN: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    SIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOT: tl.constexpr,
):
    """BLOCK, SIDE: columns of a block of tile.py, and how many a thread has side by side there. CHUNKS of a vector a
    thread are all rows of a program.
    """
    WARPS: gl.constexpr = gl.num_warps()
    ROWS: gl.constexpr = 32 * WARPS
    WHOLE: gl.constexpr = ALIGN > 1 or p_x.dtype.element_ty == gl.float32  # each row begins with a word
    by_row: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    WEIGHTED: gl.constexpr = p_weight is not None
    BIASED: gl.constexpr = p_bias is not None
    ADDED: gl.constexpr = p_residual is not None
    OTHER: gl.constexpr = SLOT if ADDED else 0  # from the slot of x, and then of the sum, to the residual's, and y's
    DTYPE: gl.constexpr = p_x.dtype.element_ty

    slots = gl.allocate_shared_memory(DTYPE, [(2 if ADDED else 1) * SLOT, 1], IN_MEMORY)
    index = gl.program_id(0)
    ask_for_rows(slots, 0, p_x, index, rows, COLS, CHUNKS)
    if ADDED:
        ask_for_rows(slots, OTHER, p_residual, index, rows, COLS, CHUNKS)
    async_copy.commit_group()
    thread = gl.arange(0, ROWS, by_row)
    weights = whole_weights(p_weight, thread, offset, SHIFTED, NARROW, COLS)
    biases = whole_weights(p_bias, thread, offset, False, None, COLS)
    row = row_of_thread(thread, COLS, DTYPE)
    async_copy.wait_group(0)
    o_x = rows_arrived(slots, 0, p_x, index, rows, COLS, by_row)
    o_residual = o_x
    if ADDED:
        o_residual = rows_arrived(slots, OTHER, p_residual, index, rows, COLS, by_row)
    gl.thread_barrier()
    words = words_of(o_x + row * COLS, COLS, WHOLE, DTYPE)
    others = ()
    if ADDED:
        others = words_of(o_residual + row * COLS, COLS, WHOLE, DTYPE)
    gl.thread_barrier()  # from here on what is in the slots is no longer needed

    count = gl.full([ROWS], COLS, gl.float32, by_row)
    mean = gl.zeros([ROWS], gl.float32, by_row)
    if CENTRED:
        parts = ()
        for k in gl.static_range(BLOCK):
            part = gl.zeros([ROWS], gl.float32, by_row)
            for i in gl.static_range(k, COLS, BLOCK):
                part += value_of(words, others, i, DTYPE, NARROW, ROUND_SUM)
            parts = parts + (part,)  # noqa: RUF005
        mean = mean_of(added_up(parts, BLOCK, SIDE), count, None)
    parts = ()
    for k in gl.static_range(BLOCK):
        part = gl.zeros([ROWS], gl.float32, by_row)
        for i in gl.static_range(k, COLS, BLOCK):
            h = value_of(words, others, i, DTYPE, NARROW, ROUND_SUM)
            if CENTRED:
                h -= mean
            part = with_square(part, h, NARROW)
        parts = parts + (part,)  # noqa: RUF005
    rstd = rstd_of(added_up(parts, BLOCK, SIDE), count, eps, NARROW)
    o_stat = index * ROWS + row
    if p_mean is not None:
        gl.store(p_mean + o_stat, mean, mask=o_stat < rows)
    if p_rstd is not None:
        gl.store(p_rstd + o_stat, rstd, mask=o_stat < rows)

    to_y, upper_y = place_to(p_y, OTHER, index, row, rows, COLS)
    to_sum, upper_sum = to_y, upper_y
    if p_sum is not None:
        to_sum, upper_sum = place_to(p_sum, 0, index, row, rows, COLS)
    y_before = to_y
    sum_before = to_sum
    for k in gl.static_range((COLS + 1) // 2):
        h_low = value_of(words, others, 2 * k, DTYPE, NARROW, ROUND_SUM)
        h_high = h_low
        if 2 * k + 1 < COLS:
            h_high = value_of(words, others, 2 * k + 1, DTYPE, NARROW, ROUND_SUM)
        low = y_of(h_low, mean, rstd, weights, biases, offset, 2 * k, CENTRED, WEIGHTED, BIASED, X_HAT, NARROW)
        high = low
        if 2 * k + 1 < COLS:
            high = y_of(
                h_high, mean, rstd, weights, biases, offset, 2 * k + 1, CENTRED, WEIGHTED, BIASED, X_HAT, NARROW
            )
        if p_sum is not None:
            sum_before = give_pair(to_sum, upper_sum, sum_before, h_low, h_high, k, COLS, WHOLE, p_sum.dtype.element_ty)
        y_before = give_pair(to_y, upper_y, y_before, low, high, k, COLS, WHOLE, p_y.dtype.element_ty)
    gl.thread_barrier()
    if p_sum is not None:
        send_rows(slots, 0, p_sum, index, rows, COLS, CHUNKS, by_row)
    send_rows(slots, OTHER, p_y, index, rows, COLS, CHUNKS, by_row)


@gluon.jit
def ask_for_gradients(
    slots, slot, p_dy, p_h, p_dsum, index, rows, COLS: gl.constexpr, CHUNKS: gl.constexpr, SLOT: gl.constexpr
):
    ask_for_rows(slots, slot, p_dy, index, rows, COLS, CHUNKS)
    ask_for_rows(slots, slot + SLOT, p_h, index, rows, COLS, CHUNKS)
    if p_dsum is not None:
        ask_for_rows(slots, slot + 2 * SLOT, p_dsum, index, rows, COLS, CHUNKS)
    async_copy.commit_group()


@gluon.jit
def gradient_of(
    dy, deviation, rstd, mean_dot, mean_dy, weights, column: gl.constexpr, CENTRED: gl.constexpr,
    WEIGHTED: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    weight = of_column(weights, column) if WEIGHTED else 0.0
    weighted_dy = weighted(dy, weight, 0.0, WEIGHTED, False, NARROW, False)
    return input_gradient(weighted_dy, deviation * rstd, rstd, mean_dot, mean_dy, CENTRED)


@gluon.jit
def threads_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dweights,
    p_dbiases,
    rows,
    programs,
    offset,
    CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr,
    X_HAT: tl.constexpr,
    NARROW: tl.constexpr,
    ALIGN: tl.constexpr,
    COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SLOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """CHUNKS as above. What lies beyond the last row is zero in shared memory, and adds nothing."""
    WARPS: gl.constexpr = gl.num_warps()
    ROWS: gl.constexpr = 32 * WARPS
    WHOLE: gl.constexpr = ALIGN > 1 or p_dy.dtype.element_ty == gl.float32
    by_row: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    WEIGHTED: gl.constexpr = p_weight is not None
    INPUTS: gl.constexpr = 2 if p_dsum is None else 3
    STAGE: gl.constexpr = INPUTS * SLOT
    DTYPE: gl.constexpr = p_dy.dtype.element_ty
    H: gl.constexpr = p_h.dtype.element_ty

    slots = gl.allocate_shared_memory(DTYPE, [STAGES * STAGE, 1], IN_MEMORY)
    for stage in gl.static_range(STAGES - 1):
        index = gl.program_id(0) + stage * programs
        ask_for_gradients(slots, stage * STAGE, p_dy, p_h, p_dsum, index, rows, COLS, CHUNKS, SLOT)
    thread = gl.arange(0, ROWS, by_row)
    weights = whole_weights(p_weight, thread, offset, SHIFTED, NARROW, COLS)
    row = row_of_thread(thread, COLS, DTYPE)
    count = gl.full([ROWS], COLS, gl.float32, by_row)
    dweights = ()
    dbiases = ()
    for _ in gl.static_range(COLS):
        if p_dweights is not None:
            dweights = dweights + (gl.zeros([ROWS], gl.float32, by_row),)  # noqa: RUF005
        if p_dbiases is not None:
            dbiases = dbiases + (gl.zeros([ROWS], gl.float32, by_row),)  # noqa: RUF005
    slot = 0
    for index in range(gl.program_id(0), gl.cdiv(rows, ROWS), programs):
        # The rows before these are done, so that their slot is free.
        free = gl.where(slot == 0, (STAGES - 1) * STAGE, slot - STAGE)
        ahead = index + (STAGES - 1) * programs
        ask_for_gradients(slots, free, p_dy, p_h, p_dsum, ahead, rows, COLS, CHUNKS, SLOT)
        o_stat = index * ROWS + row
        rstd = gl.load(p_rstd + o_stat, mask=o_stat < rows, other=0.0)
        mean = gl.zeros([ROWS], gl.float32, by_row)
        if CENTRED:
            mean = gl.load(p_mean + o_stat, mask=o_stat < rows, other=0.0)
        async_copy.wait_group(STAGES - 1)
        o_dy = rows_arrived(slots, slot, p_dy, index, rows, COLS, by_row)
        o_h = rows_arrived(slots, slot + SLOT, p_h, index, rows, COLS, by_row)
        o_dsum = o_h
        if p_dsum is not None:
            o_dsum = rows_arrived(slots, slot + 2 * SLOT, p_dsum, index, rows, COLS, by_row)
        gl.thread_barrier()
        dys = words_of(o_dy + row * COLS, COLS, WHOLE, DTYPE)
        hs = words_of(o_h + row * COLS, COLS, WHOLE, H)
        dsums = ()
        if p_dsum is not None:
            dsums = words_of(o_dsum + row * COLS, COLS, WHOLE, p_dsum.dtype.element_ty)
        gl.thread_barrier()  # dx is written where dy was

        dots = ()
        sums = ()
        for k in gl.static_range(4):
            dot = gl.zeros([ROWS], gl.float32, by_row)
            total = dot
            for i in gl.static_range(k, COLS, 4):
                weight = of_column(weights, i) if WEIGHTED else 0.0
                weighted_dy = weighted(value_in(dys, i, DTYPE), weight, 0.0, WEIGHTED, False, NARROW, False)
                h = value_in(hs, i, H)
                if CENTRED:
                    h -= mean
                    total += weighted_dy
                dot = tl.fma(weighted_dy, h, dot)
            dots = dots + (dot,)  # noqa: RUF005
            sums = sums + (total,)  # noqa: RUF005
        mean_dot = mean_of(added_up(dots, 4, 1) * rstd, count, None)
        mean_dy = mean_of(added_up(sums, 4, 1), count, None) if CENTRED else 0.0

        further_dweights = ()
        further_dbiases = ()
        to_dx, upper_dx = row, row
        before = row
        if p_dx is not None:
            to_dx, upper_dx = place_to(p_dx, slot, index, row, rows, COLS)
        for k in gl.static_range((COLS + 1) // 2):
            low = mean
            high = mean
            for i in gl.static_range(2 * k, min(2 * k + 2, COLS)):
                dy = value_in(dys, i, DTYPE)
                h = value_in(hs, i, H)
                if CENTRED:
                    h -= mean
                if p_dweights is not None:
                    further = tl.fma(dy, normalized(h, rstd, X_HAT, NARROW), dweights[i])
                    further_dweights = further_dweights + (further,)  # noqa: RUF005
                if p_dbiases is not None:
                    further_dbiases = further_dbiases + (dbiases[i] + dy,)  # noqa: RUF005
                if p_dx is not None:
                    dx = gradient_of(dy, h, rstd, mean_dot, mean_dy, weights, i, CENTRED, WEIGHTED, NARROW)
                    if p_dsum is not None:
                        dx += value_in(dsums, i, p_dsum.dtype.element_ty)
                    low = dx if i % 2 == 0 else low
                    high = dx
            if p_dx is not None:
                before = give_pair(to_dx, upper_dx, before, low, high, k, COLS, WHOLE, p_dx.dtype.element_ty)
        dweights = further_dweights
        dbiases = further_dbiases
        gl.thread_barrier()
        if p_dx is not None:
            send_rows(slots, slot, p_dx, index, rows, COLS, CHUNKS, by_row)
        slot = gl.where(slot == (STAGES - 1) * STAGE, 0, slot + STAGE)

    if p_dweights is not None:
        store_sums(p_dweights, dweights, thread, COLS)
    if p_dbiases is not None:
        store_sums(p_dbiases, dbiases, thread, COLS)
