"""Partial dW and dB rows to their sums, in the dtype of the parameters, in one launch and in a fixed order.

It is a short launch behind a long one, so what counts is how soon all its loads are under way: partials are laid out
(partials, lanes, cols), and a thread's are so far apart that one distance, added again and again, leads from each to
the next. The compiler keeps volatile loads in their order, and adding from the last one on leaves it no sum to begin
before all are under way: otherwise three or four are, and a sum waits between them.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import lane_and_row, store


@triton.jit
def sum_partials(
    p_dweights,
    p_dbiases,
    p_dweight,
    p_dbias,
    partials,
    lanes,
    cols,
    LANED: tl.constexpr,
    ROWS: tl.constexpr,
    LOADS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The results are laid out (lanes, cols). Each sum has programs of its own: those for dB, if both are wanted, come
    behind those for dW. LOADS: of so many times ROWS partials, before any of them is added.
    """
    index = tl.program_id(0)
    of_bias = p_dweight is None
    p_partials = p_dbiases if p_dweight is None else p_dweights
    if p_dweight is not None and p_dbias is not None:
        each = tl.num_programs(0) // 2
        of_bias = index >= each
        p_partials = tl.where(of_bias, p_dbiases, p_dweights)
        index = tl.where(of_bias, index - each, index)
    lane, block = lane_and_row(index, lanes, LANED)
    end = cols * ALIGN
    o_col = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < end
    o_out = lane.to(tl.int64) * end + o_col
    partial = tl.arange(0, ROWS)[:, None]
    o_out = tl.broadcast_to(o_out, (ROWS, BLOCK))
    distance = (lanes.to(tl.int64) * end) if LANED else end.to(tl.int64)
    o_first = partial * distance + o_out
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, partials, ROWS * LOADS):
        o_start = o_first + start * distance
        loaded = ()
        for i in tl.static_range(LOADS):
            m = (start + i * ROWS + partial < partials) & m_col
            o = o_start + i * ROWS * distance
            loaded = loaded + (tl.load(p_partials + o, mask=m, other=0.0, volatile=True),)  # noqa: RUF005 (Triton has no unpacking)
        for i in tl.static_range(LOADS):
            total += loaded[LOADS - 1 - i]
    # By the threads of the first row, which have the sums, as all do; the compiler would hand them to others.
    total = tl.broadcast_to(tl.sum(total, axis=0, keep_dims=True), total.shape)
    m = (partial == 0) & m_col
    if p_dweight is not None:
        store(p_dweight, o_out, total, m & (not of_bias), True)
    if p_dbias is not None:
        store(p_dbias, o_out, total, m & of_bias, True)
