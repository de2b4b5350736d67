"""Backward of dense rows that do not all begin on 16 bytes and are shared: split.py's exchange, turns.py's rows.

A group of programs, one for each slice, takes only rows that lie alike, so that all are cut between the same vectors.
The number of groups is a multiple of TURNS: then the next row of a group is the next of its turn. Programs whose slices
lie inside every row (not EDGE) have nothing to mask, which is a third of the instructions in the compiled code.
"""

import triton
import triton.language as tl

from onepass.kernels.mailbox import collect_means, seen_early, words_of
from onepass.kernels.parts import input_gradient, load, normalized, store, store_row, weighted
from onepass.kernels.split import publish_gradients
from onepass.kernels.turns import between, load_places


@triton.jit
def load_slice(
    p, o_row, o_place, wanted, before, end, EDGE: tl.constexpr, ALIGN: tl.constexpr, APART: tl.constexpr
):  # fmt: skip
    """Of a row, in fp32, zero outside of it; with APART nothing outside is touched."""
    if EDGE:
        return load_places(p, o_row, o_place, wanted, before, end, 1, True, True, ALIGN, APART).to(tl.float32)
    else:
        return load(p, o_row + o_place, wanted, True).to(tl.float32)


@triton.jit
def load_gradients(
    p_dy, p_h, p_mean, p_rstd, o_row, o_place, flat, wanted, before, end,
    CENTRED: tl.constexpr, EDGE: tl.constexpr, ALIGN: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """dy, x̂ and rstd of one row's slice; x̂ before any rounding."""
    h = load_slice(p_h, o_row, o_place, wanted, before, end, EDGE, ALIGN, APART)
    dy = load_slice(p_dy, o_row, o_place, wanted, before, end, EDGE, ALIGN, APART)
    rstd = tl.load(p_rstd + flat, mask=wanted, other=0.0)
    if CENTRED:
        h -= tl.load(p_mean + flat, mask=wanted, other=0.0)
    return dy, h * rstd, rstd


@triton.jit
def with_row(
    dweight, dbias, dy, x_hat, rstd, weight, offset, p_words, seen, slices, count, p_dsum, p_dx, o_row, o_dx, o_place,
    before, end,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, WEIGHTED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, PEERS: tl.constexpr, EDGE: tl.constexpr, ALIGN: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """dx of a row's slice, by the sums of all its slices; the sums for dW and dB, with what this row adds."""
    if WEIGHT:
        dweight += dy * normalized(x_hat, 1.0, X_HAT, NARROW)
    if BIAS:
        dbias += dy
    mean_dot, mean_dy = collect_means(p_words, seen, slices, count, CENTRED, PEERS)
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, False)
    dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
    if p_dsum is not None:
        dh += load_slice(p_dsum, o_row, o_place, True, before, end, EDGE, ALIGN, APART)
    if EDGE:
        m_place = between(o_place, before, end, True, True)
        m_vector = between(o_place // ALIGN, tl.cdiv(before, ALIGN), end // ALIGN, True, True)
        store_row(p_dx, o_dx + o_place, dh, m_vector, True)
        store_row(p_dx, o_dx + o_place, dh, m_place & (m_vector == 0), True)
    else:
        store_row(p_dx, o_dx + o_place, dh, True, False)
    return dweight, dbias


@triton.jit
def walk_slice(
    p_dy, p_dsum, p_h, p_weight, p_mean, p_rstd, p_dx, p_dweights, p_dbiases, p_mailbox, turn_row, dx_row, rows, cols,
    slices, groups, offset, own, first, turn, before, end,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, TURNS: tl.constexpr,
    BLOCK: tl.constexpr, PEERS: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """All that a program does."""
    WEIGHTED: tl.constexpr = p_weight is not None
    WEIGHT: tl.constexpr = p_dweights is not None
    BIAS: tl.constexpr = p_dbiases is not None
    o_turn = turn.to(tl.int64) * cols // ALIGN * ALIGN
    count = cols.to(tl.float32)
    o_place = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_place = between(o_place, before, end, True, True)
    weight = 0.0
    if WEIGHTED:
        weight = load(p_weight, o_place - before, m_place, EDGE)
    dweight = tl.zeros((1, BLOCK), tl.float32)
    dbias = tl.zeros((1, BLOCK), tl.float32)

    own_rows = rows // TURNS
    whole = own_rows * TURNS
    o_row = (first // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
    dy, x_hat, rstd = load_gradients(
        p_dy, p_h, p_mean, p_rstd, o_row, o_place, first, first < whole, before, end, CENTRED, EDGE, ALIGN, False
    )
    p_word = p_mailbox + first.to(tl.int64) * slices + own
    publish_gradients(dy, x_hat, weight, offset, p_word, first < whole, CENTRED, WEIGHTED, SHIFTED, NARROW)
    for step in tl.range(0, tl.cdiv(whole - first, groups), num_stages=STAGES):
        flat = first + step * groups
        following = flat + groups
        p_words = words_of(p_mailbox, flat, slices, PEERS)
        seen = seen_early(p_words, PEERS)
        o_following = (following // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
        dy_following, x_hat_following, rstd_following = load_gradients(
            p_dy, p_h, p_mean, p_rstd, o_following, o_place, following, following < whole, before, end,
            CENTRED, EDGE, ALIGN, False,
        )  # fmt: skip
        p_word = p_mailbox + following.to(tl.int64) * slices + own
        publish_gradients(
            dy_following, x_hat_following, weight, offset, p_word, following < whole, CENTRED, WEIGHTED, SHIFTED, NARROW
        )
        o_row = (flat // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
        o_dx = (flat // TURNS).to(tl.int64) * dx_row * ALIGN + o_turn
        dweight, dbias = with_row(
            dweight, dbias, dy, x_hat, rstd, weight, offset, p_words, seen, slices, count, p_dsum, p_dx, o_row, o_dx,
            o_place, before, end, CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT, BIAS, PEERS, EDGE, ALIGN, False,
        )  # fmt: skip
        dy = dy_following
        x_hat = x_hat_following
        rstd = rstd_following

    # The rows beyond a multiple of TURNS, each by the last group of its turn, which has no more rows than the others.
    has_last = (first // TURNS == groups // TURNS - 1) & (whole + turn < rows)
    for last in tl.range(own_rows, own_rows + has_last.to(tl.int32)):
        flat = turn + last * TURNS
        o_row = (flat // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
        o_dx = (flat // TURNS).to(tl.int64) * dx_row * ALIGN + o_turn
        dy, x_hat, rstd = load_gradients(
            p_dy, p_h, p_mean, p_rstd, o_row, o_place, flat, flat < rows, before, end, CENTRED, EDGE, ALIGN, True
        )
        p_word = p_mailbox + flat.to(tl.int64) * slices + own
        publish_gradients(dy, x_hat, weight, offset, p_word, flat < rows, CENTRED, WEIGHTED, SHIFTED, NARROW)
        p_words = words_of(p_mailbox, flat, slices, PEERS)
        dweight, dbias = with_row(
            dweight, dbias, dy, x_hat, rstd, weight, offset, p_words, seen_early(p_words, PEERS), slices, count,
            p_dsum, p_dx, o_row, o_dx, o_place, before, end,
            CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT, BIAS, PEERS, EDGE, ALIGN, True,
        )  # fmt: skip

    # One partial row a group of programs.
    o_partial = first.to(tl.int64) * cols - before + o_place
    if WEIGHT:
        store(p_dweights, o_partial, dweight, m_place, EDGE)
    if BIAS:
        store(p_dbiases, o_partial, dbias, m_place, EDGE)


@triton.jit
def split_turns_backward(
    p_dy,
    p_dsum,
    p_h,
    p_weight,
    p_mean,
    p_rstd,
    p_dx,
    p_dweights,
    p_dbiases,
    p_mailbox,
    turn_row,
    dx_row,
    rows,
    cols,
    slices,
    groups,
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
    """`turn_row` and `dx_row` as in turns.py. `groups` of programs, one for each slice, take the rows in turn."""
    own = tl.program_id(0) % slices
    first = tl.program_id(0) // slices
    turn = first % TURNS
    before = turn * cols % ALIGN  # places, in the first vector, that belong to the row before
    end = before + cols
    if (own == 0) | (own >= end // BLOCK):
        walk_slice(
            p_dy, p_dsum, p_h, p_weight, p_mean, p_rstd, p_dx, p_dweights, p_dbiases, p_mailbox, turn_row, dx_row,
            rows, cols, slices, groups, offset, own, first, turn, before, end,
            CENTRED, SHIFTED, X_HAT, NARROW, TURNS, BLOCK, PEERS, ALIGN, STAGES, True,
        )  # fmt: skip
    else:
        walk_slice(
            p_dy, p_dsum, p_h, p_weight, p_mean, p_rstd, p_dx, p_dweights, p_dbiases, p_mailbox, turn_row, dx_row,
            rows, cols, slices, groups, offset, own, first, turn, before, end,
            CENTRED, SHIFTED, X_HAT, NARROW, TURNS, BLOCK, PEERS, ALIGN, STAGES, False,
        )  # fmt: skip
