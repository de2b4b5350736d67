"""Sums along rows: over a thread's columns, over a warp, and over the warps that a row lies over.

Sums are of blocks of two dimensions, rows and columns, and of numbers in fp32. The switches:

    WARPS     that a row lies over; 1: this many, or as the compiler will
    SIDE      columns that a thread has side by side
    CHAINS    in which a row's blocks are summed in turn
"""

import triton
import triton.language as tl


@triton.jit
def row_sum(value):
    return tl.sum(value, axis=1, keep_dims=True)


INTERPRETED = tl.constexpr(not isinstance(row_sum, triton.JITFunction))


@triton.jit
def over_warps(value, WARPS: tl.constexpr, SIDE: tl.constexpr):
    """Sums of rows over each of the warps that they lie over, of which a thread has SIDE columns side by side."""
    ROWS: tl.constexpr = value.shape[0]
    TIMES: tl.constexpr = value.shape[1] // (32 * WARPS * SIDE)
    value = tl.sum(tl.reshape(value, (ROWS, TIMES, WARPS, 32 * SIDE)), axis=1)
    return tl.sum(value, axis=2)


@triton.jit
def joined(high, low):
    """Two numbers in one word."""
    high = high.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (high << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def parted(word):
    high = (word >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return high, word.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def add_joined(one, other):
    high, low = parted(one)
    other_high, other_low = parted(other)
    return joined(high + other_high, low + other_low)


@triton.jit
def of_all_warps(word):
    """Two sums of each warp, added up."""
    if INTERPRETED:  # it would call what adds two for each
        high, low = parted(word)
        return tl.sum(high), tl.sum(low)
    else:
        return parted(tl.reduce(word, None, add_joined))


@triton.jit
def of_two_rows(upper, lower):
    """A number of each, as a block."""
    return tl.where(tl.arange(0, 2)[:, None] == 0, upper, lower)


@triton.jit
def row_sum_by_warps(value, WARPS: tl.constexpr, SIDE: tl.constexpr):
    """As `row_sum`, of a row that lies over WARPS as `over_warps` says; with the same bits where a thread has just SIDE
    columns of the block.

    By way of a number: every warp adds up those of all then, behind one barrier. For a block of sums one warp does, and
    the others wait for it at a second barrier.
    """
    if WARPS == 1:
        return row_sum(value)
    else:
        return tl.full((1, 1), tl.sum(over_warps(value, WARPS, SIDE)), tl.float32)


@triton.jit
def sum_by_warps(value, WARPS: tl.constexpr):
    """The same of a vector, of which each thread has one element."""
    if WARPS == 1:
        return tl.sum(value, axis=0)
    else:
        return tl.sum(tl.sum(tl.reshape(value, (WARPS, value.shape[0] // WARPS)), axis=1))


@triton.jit
def row_sums_by_warps(first, second, WARPS: tl.constexpr, SIDE: tl.constexpr):
    """The same of two values, of one row or two, for each of which warps meet at one barrier, too."""
    if WARPS == 1:
        return row_sum(first), row_sum(second)
    else:
        words = joined(over_warps(first, WARPS, SIDE), over_warps(second, WARPS, SIDE))
        if first.shape[0] == 1:
            one, other = of_all_warps(words)
            return tl.full((1, 1), one, tl.float32), tl.full((1, 1), other, tl.float32)
        else:
            upper, lower = tl.split(tl.trans(words))
            upper_first, upper_second = of_all_warps(upper)
            lower_first, lower_second = of_all_warps(lower)
            return of_two_rows(upper_first, lower_first), of_two_rows(upper_second, lower_second)


@triton.jit
def no_sums(ROWS: tl.constexpr, BLOCK: tl.constexpr, CHAINS: tl.constexpr):
    """A sum of nothing for each chain."""
    sums = ()
    for _ in tl.static_range(CHAINS):
        sums = sums + (tl.zeros((ROWS, BLOCK), tl.float32),)  # noqa: RUF005 (Triton has no unpacking)
    return sums


@triton.jit
def next_chain(sums, value):
    """The sums of all chains, with that of the one whose turn it is, which is the first; it goes last."""
    return sums[1:] + (value,)  # noqa: RUF005


@triton.jit
def sum_of_chains(sums, CHAINS: tl.constexpr, WARPS: tl.constexpr, SIDE: tl.constexpr):
    """A row's sum, of those of its chains, in one of which each of its blocks is.

    So many times the warps may have a chain each, and give a row the same bits: over a warp a chain is summed alone
    then, and sums of warps are paired as chains are here, those farthest apart first.
    """
    if CHAINS == 1:
        return row_sum_by_warps(sums[0], WARPS, SIDE)
    else:
        each = ()
        for i in tl.static_range(CHAINS):
            if WARPS == 1:
                each = each + (row_sum(sums[i]),)  # noqa: RUF005
            else:
                each = each + (over_warps(sums[i], WARPS, SIDE),)  # noqa: RUF005
        total = each[0] + each[CHAINS // 2]
        if CHAINS == 4:
            total += each[1] + each[3]
        if WARPS > 1:
            total = tl.full((1, 1), tl.sum(total), tl.float32)
        return total
