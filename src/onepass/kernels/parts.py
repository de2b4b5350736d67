"""The pieces every schedule shares, each a small Triton function.

Names inside kernels: `p_` a pointer, `o_` offsets in elements, `m_` a mask, capitals are constexpr. A pointer that is
`None` means that the tensor is not part of this call, so presence needs no switches of its own. Blocks have two
dimensions, rows and columns, also where there is just one row, so that every part serves every schedule. The switches:

    CENTRED   subtract the mean first (LayerNorm)
    X_HAT     the dtype to which x̂ is rounded before the weight, or None (`cast="llama"`, `"t5"`)
    SHIFTED   the Norm has an offset, which is added to the weight
    LANED     x has a second leading dimension of its own stride (heads); else there is one lane, and nothing to divide
    NARROW    the dtype to which every intermediate is rounded, or None (`cast="none"`)
    PACKED    hold 16-bit blocks as they were loaded, and widen them at each use
    MASKED    some columns or rows of the block may lie outside
    ALIGN     a power of two that divides the columns and every stride: they are passed divided by it, so that the
              compiler sees the factor and makes 16-byte accesses also where 16 divides no stride (1,000 columns, say)
"""

import triton
import triton.language as tl

from onepass.kernels.cluster import sum_of_slices
from onepass.kernels.sums import INTERPRETED, row_sum_by_warps, row_sums_by_warps


@triton.jit
def lane_and_row(index, lanes, LANED: tl.constexpr):
    """Rows of all lanes are numbered through, so that neighbours in memory run next to each other."""
    if LANED:
        return index % lanes, index // lanes
    else:
        return tl.cast(0, tl.int32), index


@triton.jit
def row_start(row, lane, row_stride, lane_stride, ALIGN: tl.constexpr):
    """Where a row begins: 64 bits, because a tensor may have more than 2³¹ elements."""
    return (row.to(tl.int64) * row_stride + lane.to(tl.int64) * lane_stride) * ALIGN


@triton.jit
def load(p, o, m, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(p + o, mask=m, other=0.0)
    else:
        return tl.load(p + o)


@triton.jit
def store(p, o, value, m, MASKED: tl.constexpr):
    if MASKED:
        tl.store(p + o, value.to(p.dtype.element_ty), mask=m)
    else:
        tl.store(p + o, value.to(p.dtype.element_ty))


#: The order in which the L2 gives up lines. What a forward reads goes last and what it writes goes first: 125 us
#: against 129 at 32,768 x 4,096, 251 against 261 at 8,192 columns. What comes next is no slower for it from 2,048 such
#: rows on, but for one chain of kernels that was, and up to 3 % slower with fewer, which stay in the L2 anyway
#: (docs/lab-notes.md). A row that is walked again is kept until its last walk, and let go with it.
KEPT = tl.constexpr("evict_last")
PASSING = tl.constexpr("evict_first")
#: In no order of ours. To ask for one is five instructions for each load, and few rows stay in the L2 anyway: 1.40 us
#: against 1.45 at 1 x 4,096 where all is there already, 2.88 against 2.99 at 512 x 4,096; level where it is not, but up
#: to 7 % slower with a residual.
USUAL = tl.constexpr("")


@triton.jit
def inside(m_row, o_col, end, RAGGED: tl.constexpr):
    """Which elements of a block are part of the tensor; only the last block of a row may be ragged."""
    if RAGGED:
        return m_row & (o_col < end)
    else:
        return m_row


@triton.jit
def load_row(p, o, m, MASKED: tl.constexpr, HINT: tl.constexpr):
    if MASKED:
        return tl.load(p + o, mask=m, other=0.0, eviction_policy=HINT)
    else:
        return tl.load(p + o, eviction_policy=HINT)


@triton.jit
def store_row(p, o, value, m, MASKED: tl.constexpr, HINT: tl.constexpr = PASSING):
    if MASKED:
        tl.store(p + o, value.to(p.dtype.element_ty), mask=m, eviction_policy=HINT)
    else:
        tl.store(p + o, value.to(p.dtype.element_ty), eviction_policy=HINT)


#: Two values at once: left alone, the compiler takes three instructions for them.
WIDEN_BF16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;")


#: A warp that waits for itself waits for nothing; but the compiler moves no access to memory to the other side of it.
KEEP_ORDER = tl.constexpr("bar.warp.sync 0xffffffff; mov.b32 $0, $1;")


@triton.jit
def keep_order(number):
    """What stands before it in memory's order stays so. The number is any, and is given back."""
    if INTERPRETED:
        return number
    else:
        return tl.inline_asm_elementwise(KEEP_ORDER, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wide(block, PACKED: tl.constexpr):
    """A block as it was loaded, in fp32.

    Left alone, the compiler widens a block once and keeps the fp32 values from the first use to the last, in twice the
    registers. What it cannot see through makes it widen the packed block at each use.
    """
    if PACKED and not INTERPRETED:
        if block.dtype is tl.bfloat16:
            return tl.inline_asm_elementwise(WIDEN_BF16, "=f,=f,r", [block], dtype=tl.float32, is_pure=False, pack=2)
        if block.dtype is tl.float16:
            block = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [block], tl.float16, is_pure=False, pack=2)
    return block.to(tl.float32)


@triton.jit
def narrowed(value, NARROW: tl.constexpr):
    if NARROW is None:
        return value
    else:
        return value.to(NARROW).to(tl.float32)


@triton.jit
def load_sum(
    p_x, p_residual, row, lane, o_col, m, x_row, x_lane, residual_row, residual_lane,
    NARROW: tl.constexpr, ROUND_SUM: tl.constexpr, MASKED: tl.constexpr, ALIGN: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """What is to be normalized: x as it is in memory, or its sum with the residual, in fp32 unless it is rounded."""
    h = load_row(p_x, row_start(row, lane, x_row, x_lane, ALIGN) + o_col, m, MASKED, HINT)
    if p_residual is not None:
        o_residual = row_start(row, lane, residual_row, residual_lane, ALIGN) + o_col
        residual = load_row(p_residual, o_residual, m, MASKED, HINT)
        h = narrowed(h.to(tl.float32) + residual.to(tl.float32), NARROW)
    if ROUND_SUM is not None:
        h = h.to(ROUND_SUM)
    return h


@triton.jit
def over_rows(o_affine, ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr):
    """Offsets of weight and bias, one for each element of a tile and not for each column.

    So they are laid over threads as the tile is, and a thread asks for a row's once. Alone, a row of them lies over all
    threads, which have fewer columns each, and then the compiler moves either them or the tile through shared memory.
    Rows of single elements lie alike anyway.
    """
    if ALIGN > 1:
        return tl.broadcast_to(o_affine, (ROWS, BLOCK))
    else:
        return o_affine


@triton.jit
def load_affine(p, o, m, MASKED: tl.constexpr):
    """Weight or bias as it is in memory; a number, which is not used, where there is none."""
    if p is not None:
        return load(p, o, m, MASKED)
    else:
        return 0.0


@triton.jit
def with_affine(blocks, p, o, m, MASKED: tl.constexpr):
    """Blocks of weight or bias, and one more."""
    return blocks + (load_affine(p, o, m, MASKED),)  # noqa: RUF005 (Triton has no unpacking)


@triton.jit
def weighted(
    value, weight, offset, WEIGHTED: tl.constexpr, SHIFTED: tl.constexpr, NARROW: tl.constexpr, PACKED: tl.constexpr
):
    """A value times the weight, or the value itself where there is none."""
    if WEIGHTED:
        value *= whole_weight(weight, offset, SHIFTED, NARROW, PACKED)
    return value


@triton.jit
def whole_weight(weight, offset, SHIFTED: tl.constexpr, NARROW: tl.constexpr, PACKED: tl.constexpr):
    """With the offset, which is added in fp32."""
    weight = wide(weight, PACKED)
    if SHIFTED:
        weight += tl.cast(offset, tl.float32)
    return narrowed(weight, NARROW)


@triton.jit
def with_square(total, deviation, NARROW: tl.constexpr):
    """A sum of squares with one more. Where products are added, here and in `scale_and_shift`, it is by name which of
    them are not rounded first: the compiler's choice between two may be another for few rows than for many.
    """
    if NARROW is None:
        return tl.fma(deviation, deviation, total)
    else:
        return total + narrowed(deviation * deviation, NARROW)


@triton.jit
def centred(h, mean, m, MASKED: tl.constexpr):
    """Deviations from the mean; columns outside the row stay zero, so that they add nothing to a sum."""
    if MASKED:
        return tl.where(m, h - mean, 0.0)
    else:
        return h - mean


@triton.jit
def deviation_of(h, mean, m, CENTRED: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr):
    """What is squared, and what becomes x̂: h, or how far it is from the mean; in fp32."""
    h = wide(h, PACKED)
    if CENTRED:
        h = centred(h, mean, m, MASKED)
    return h


@triton.jit
def mean_of(total, count, COLS: tl.constexpr):
    """A sum divided by the number of columns, with a true division: Triton's `/` is an approximation.

    COLS: that number where the compiler is to know it, or None. For a power of two a product has the same bits, in one
    instruction for a dozen and a branch. It is rounded by name, before what is added to it.
    """
    if COLS is not None and COLS & (COLS - 1) == 0:
        return tl.fma(total, 1.0 / COLS, 0.0)
    else:
        return tl.div_rn(total, count)


@triton.jit
def rstd_of(square, count, eps, NARROW: tl.constexpr, COLS: tl.constexpr = None):
    """1 / sqrt(mean square + eps).

    Here as with the offset: a number may be handed over in 64 bits, in which all that follows would be computed.
    """
    mean_square = narrowed(mean_of(square, count, COLS), NARROW)
    return narrowed(tl.rsqrt(narrowed(mean_square + tl.cast(eps, tl.float32), NARROW)), NARROW)


@triton.jit
def normalized(deviation, rstd, X_HAT: tl.constexpr, NARROW: tl.constexpr):
    """x̂ as the weight meets it."""
    return narrowed(narrowed(deviation * rstd, NARROW), X_HAT)


@triton.jit
def scale_and_shift(
    deviation, rstd, weight, bias, offset,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """y from the deviations: x̂, weight and bias, in the rounding order that the Norm names."""
    y = normalized(deviation, rstd, X_HAT, NARROW)
    if WEIGHTED and BIASED and NARROW is None:
        return tl.fma(y, whole_weight(weight, offset, SHIFTED, NARROW, PACKED), wide(bias, PACKED))
    y = narrowed(weighted(y, weight, offset, WEIGHTED, SHIFTED, NARROW, PACKED), NARROW)
    if BIASED:
        y = narrowed(y + wide(bias, PACKED), NARROW)
    return y


@triton.jit
def gradient_means(
    held_dy, held_h, weights, offset, mean, rstd, count,
    CENTRED: tl.constexpr, WEIGHTED: tl.constexpr, SHIFTED: tl.constexpr, NARROW: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PACKED: tl.constexpr, SLICES: tl.constexpr,
    WARPS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr = None,
):  # fmt: skip
    """mean(w·dy·x̂) and mean(w·dy) of rows that are held in blocks."""
    dots = tl.zeros((ROWS, BLOCK), tl.float32)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(BLOCKS):
        weighted_dy = weighted(wide(held_dy[i], PACKED), weights[i], offset, WEIGHTED, SHIFTED, NARROW, PACKED)
        # dy is zero outside the row, so what the mean makes of h there adds nothing.
        dots += weighted_dy * (deviation_of(held_h[i], mean, None, CENTRED, PACKED, False) * rstd)
        sums += weighted_dy
    mean_dy = 0.0
    if CENTRED:
        dot, total = row_sums_by_warps(dots, sums, WARPS, SIDE)
        mean_dot = mean_of(sum_of_slices(dot, SLICES, True), count, COLS)
        mean_dy = mean_of(sum_of_slices(total, SLICES, False), count, COLS)
    else:
        mean_dot = mean_of(sum_of_slices(row_sum_by_warps(dots, WARPS, SIDE), SLICES, True), count, COLS)
    return mean_dot, mean_dy


@triton.jit
def input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED: tl.constexpr):
    """dh = rstd · (w·dy - x̂ · mean(w·dy·x̂) [- mean(w·dy)])"""
    if CENTRED:
        weighted_dy -= mean_dy
    return (weighted_dy - x_hat * mean_dot) * rstd


@triton.jit
def load_arrived(p_dsum, row, lane, o_col, m, dsum_row, dsum_lane, MASKED: tl.constexpr, ALIGN: tl.constexpr):
    """What arrived for the sum itself, as it is in memory; a number, which is not used, where nothing did."""
    if p_dsum is not None:
        return load(p_dsum, row_start(row, lane, dsum_row, dsum_lane, ALIGN) + o_col, m, MASKED)
    else:
        return 0.0


@triton.jit
def store_gradient(
    dh, arrived, p_dx, p_dresidual, row, lane, o_col, m, dx_row, dx_lane, dresidual_row, dresidual_lane,
    ARRIVED: tl.constexpr, MASKED: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """dx, and the residual's gradient where it has a dtype of its own; with what arrived for the sum itself."""
    if ARRIVED:
        dh += arrived.to(tl.float32)
    store_row(p_dx, row_start(row, lane, dx_row, dx_lane, ALIGN) + o_col, dh, m, MASKED)
    if p_dresidual is not None:
        o_dresidual = row_start(row, lane, dresidual_row, dresidual_lane, ALIGN) + o_col
        store_row(p_dresidual, o_dresidual, dh, m, MASKED)


@triton.jit
def with_rows(
    dweight, dbias, p_dy, p_h, p_mean, p_rstd, row, lane, m_row, o_col, m_col,
    dy_row, dy_lane, h_row, h_lane, stat_row, stat_lane,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, CENTRED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """Sums down columns, with those of some more rows: of dy · x̂ for dW, of dy for dB."""
    m = m_row & m_col
    dy = load(p_dy, row_start(row, lane, dy_row, dy_lane, ALIGN) + o_col, m, True).to(tl.float32)
    if WEIGHTED:
        h = load(p_h, row_start(row, lane, h_row, h_lane, ALIGN) + o_col, m, True).to(tl.float32)
        o_stat = row_start(row, lane, stat_row, stat_lane, 1)
        if CENTRED:
            h -= load(p_mean, o_stat, m_row, True)
        dweight += dy * normalized(h, load(p_rstd, o_stat, m_row, True), X_HAT, NARROW)
    if BIASED:
        dbias += dy
    return dweight, dbias
