"""Partial dW and dB rows to their sums, in the dtype of the parameters, in one launch and in a fixed order."""

import triton
import triton.language as tl

from onepass.kernels.parts import load, store


@triton.jit
def sum_partials(
    p_dweights,
    p_dbiases,
    p_dweight,
    p_dbias,
    partials,
    lanes,
    cols,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Partials are laid out (partials, lanes, cols), the results (lanes, cols)."""
    end = cols * ALIGN
    blocks = tl.cdiv(end, BLOCK)
    lane = tl.program_id(0) // blocks
    o_col = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_col = o_col < end
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, partials, ROWS):
        partial = start + tl.arange(0, ROWS)[:, None]
        o = (partial.to(tl.int64) * lanes + lane) * end + o_col
        m = (partial < partials) & m_col
        if p_dweight is not None:
            dweight += load(p_dweights, o, m, True)
        if p_dbias is not None:
            dbias += load(p_dbiases, o, m, True)
    o_out = lane.to(tl.int64) * end + o_col
    if p_dweight is not None:
        store(p_dweight, o_out, tl.sum(dweight, axis=0, keep_dims=True), m_col, True)
    if p_dbias is not None:
        store(p_dbias, o_out, tl.sum(dbias, axis=0, keep_dims=True), m_col, True)
