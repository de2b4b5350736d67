"""Partial dW and dB rows to their sums, in the dtype of the parameters, in one launch and in a fixed order.

It is a short launch behind a long one, so what counts is how soon all its loads are under way: partials are laid out
(partials, lanes, cols), and a thread's are so far apart that one distance, added again and again, leads from each to
the next. The compiler keeps volatile loads in their order, and adding from the last one on leaves it no sum to begin
before all are under way: otherwise three or four are, and a sum waits between them.
"""

import triton
import triton.language as tl

from onepass.kernels.parts import lane_and_row, store
from onepass.kernels.sums import column_sums


@triton.jit
def column_sum(block):
    """In every row of it."""
    return tl.broadcast_to(tl.sum(block, axis=0, keep_dims=True), block.shape)


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
    """The results are laid out (lanes, cols). LOADS: of so many times ROWS partials, before any of them is added."""
    lane, block = lane_and_row(tl.program_id(0), lanes, LANED)
    end = cols * ALIGN
    o_col = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < end
    o_out = lane.to(tl.int64) * end + o_col
    partial = tl.arange(0, ROWS)[:, None]
    o_out = tl.broadcast_to(o_out, (ROWS, BLOCK))
    distance = (lanes.to(tl.int64) * end) if LANED else end.to(tl.int64)
    o_first = partial * distance + o_out
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, partials, ROWS * LOADS):
        o_start = o_first + start * distance
        dweights = ()
        dbiases = ()
        for i in tl.static_range(LOADS):
            o = o_start + i * ROWS * distance
            m = (start + i * ROWS + partial < partials) & m_col
            if p_dweight is not None:
                dweights = dweights + (tl.load(p_dweights + o, mask=m, other=0.0, volatile=True),)  # noqa: RUF005 (Triton has no unpacking)
            if p_dbias is not None:
                dbiases = dbiases + (tl.load(p_dbiases + o, mask=m, other=0.0, volatile=True),)  # noqa: RUF005
        for i in tl.static_range(LOADS):
            if p_dweight is not None:
                dweight += dweights[LOADS - 1 - i]
            if p_dbias is not None:
                dbias += dbiases[LOADS - 1 - i]
    # By the threads of the first row, which have the sums, as all do; the compiler would hand them to others.
    m = (partial == 0) & m_col
    if p_dweight is not None and p_dbias is not None:
        weight_sum, bias_sum = column_sums(dweight, dbias)
        store(p_dweight, o_out, tl.broadcast_to(weight_sum, (ROWS, BLOCK)), m, True)
        store(p_dbias, o_out, tl.broadcast_to(bias_sum, (ROWS, BLOCK)), m, True)
    elif p_dweight is not None:
        store(p_dweight, o_out, column_sum(dweight), m, True)
    elif p_dbias is not None:
        store(p_dbias, o_out, column_sum(dbias), m, True)
