"""Backward of dense rows that do not all begin on 16 bytes and are shared: split.py's exchange, turns.py's rows.

A group of programs, one for each slice, takes only rows that lie alike, so that all are cut between the same vectors.
The number of groups is a multiple of TURNS: then the next row of a group is the next of its turn.
"""

import triton
import triton.language as tl

from onepass.kernels.mailbox import collect, collect_pair
from onepass.kernels.parts import input_gradient, normalized, store, store_row, weighted
from onepass.kernels.split import publish_gradients
from onepass.kernels.turns import between, load_places


@triton.jit
def load_turn(
    p_dy, p_h, p_mean, p_rstd, o_row, o_place, flat, wanted, before, end,
    CENTRED: tl.constexpr, ALIGN: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """dy, x̂ and rstd of one row's slice; x̂ in fp32, before any rounding."""
    h = load_places(p_h, o_row, o_place, wanted, before, end, 1, True, True, ALIGN, APART).to(tl.float32)
    dy = load_places(p_dy, o_row, o_place, wanted, before, end, 1, True, True, ALIGN, APART).to(tl.float32)
    rstd = tl.load(p_rstd + flat, mask=wanted, other=0.0)
    if CENTRED:
        h -= tl.load(p_mean + flat, mask=wanted, other=0.0)
    return dy, h * rstd, rstd


@triton.jit
def finish_turn(
    dweight, dbias, dy, x_hat, rstd, weight, offset, p_words, slices, count, p_dsum, p_dx, o_row, o_dx, o_place, own,
    before, end,
    CENTRED: tl.constexpr, SHIFTED: tl.constexpr, X_HAT: tl.constexpr, NARROW: tl.constexpr, WEIGHTED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, PEERS: tl.constexpr, ALIGN: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """dx of a row's slice, with the sums of all; the sums for dW and dB, with what this row adds."""
    if WEIGHT:
        dweight += dy * normalized(x_hat, 1.0, X_HAT, NARROW)
    if BIAS:
        dbias += dy
    mean_dy = 0.0
    if CENTRED:
        dots, sums = collect_pair(p_words, slices, PEERS)
        mean_dot = tl.div_rn(tl.sum(dots, axis=0), count)
        mean_dy = tl.div_rn(tl.sum(sums, axis=0), count)
    else:
        mean_dot = tl.div_rn(tl.sum(collect(p_words, slices, PEERS), axis=0), count)
    weighted_dy = weighted(dy, weight, offset, WEIGHTED, SHIFTED, NARROW, False)
    dh = input_gradient(weighted_dy, x_hat, rstd, mean_dot, mean_dy, CENTRED)
    if p_dsum is not None:
        dh += load_places(p_dsum, o_row, o_place, True, before, end, 1, True, True, ALIGN, APART).to(tl.float32)
    m_vector = between(o_place // ALIGN, tl.cdiv(before, ALIGN), end // ALIGN, True, True)
    store_row(p_dx, o_dx + o_place, dh, m_vector, True)
    if (own == 0) | (own == end // BLOCK):  # where the row begins or ends
        m_place = between(o_place, before, end, True, True)
        store_row(p_dx, o_dx + o_place, dh, m_place & (m_vector == 0), True)
    return dweight, dbias


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
    """`turn_row` is from one row of a turn to the next, in vectors of ALIGN elements, and so is `dx_row`, as in
    turns.py."""
    WEIGHTED: tl.constexpr = p_weight is not None
    WEIGHT: tl.constexpr = p_dweights is not None
    BIAS: tl.constexpr = p_dbiases is not None
    own = tl.program_id(0) % slices
    first = tl.program_id(0) // slices
    turn = first % TURNS
    before = turn * cols % ALIGN  # places, in the first vector, that belong to the row before
    o_turn = turn.to(tl.int64) * cols // ALIGN * ALIGN
    end = before + cols
    count = cols.to(tl.float32)
    o_place = own * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_place = between(o_place, before, end, True, True)
    weight = 0.0
    if WEIGHTED:
        weight = tl.load(p_weight + o_place - before, mask=m_place, other=0.0)
    dweight = tl.zeros((1, BLOCK), tl.float32)
    dbias = tl.zeros((1, BLOCK), tl.float32)

    own_rows = rows // TURNS
    whole = own_rows * TURNS
    o_row = (first // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
    dy, x_hat, rstd = load_turn(
        p_dy, p_h, p_mean, p_rstd, o_row, o_place, first, first < whole, before, end, CENTRED, ALIGN, False
    )
    p_word = p_mailbox + first.to(tl.int64) * slices + own
    publish_gradients(dy, x_hat, weight, offset, p_word, first < whole, CENTRED, WEIGHTED, SHIFTED, NARROW)
    for step in tl.range(0, tl.cdiv(whole - first, groups), num_stages=STAGES):
        flat = first + step * groups
        following = flat + groups
        o_following = (following // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
        dy_following, x_hat_following, rstd_following = load_turn(
            p_dy, p_h, p_mean, p_rstd, o_following, o_place, following, following < whole, before, end,
            CENTRED, ALIGN, False,
        )  # fmt: skip
        p_word = p_mailbox + following.to(tl.int64) * slices + own
        publish_gradients(
            dy_following, x_hat_following, weight, offset, p_word, following < whole, CENTRED, WEIGHTED, SHIFTED, NARROW
        )
        o_row = (flat // TURNS).to(tl.int64) * turn_row * ALIGN + o_turn
        o_dx = (flat // TURNS).to(tl.int64) * dx_row * ALIGN + o_turn
        dweight, dbias = finish_turn(
            dweight, dbias, dy, x_hat, rstd, weight, offset, p_mailbox + flat.to(tl.int64) * slices, slices, count,
            p_dsum, p_dx, o_row, o_dx, o_place, own, before, end, CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT,
            BIAS, BLOCK, PEERS, ALIGN, False,
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
        dy, x_hat, rstd = load_turn(
            p_dy, p_h, p_mean, p_rstd, o_row, o_place, flat, flat < rows, before, end, CENTRED, ALIGN, True
        )
        p_words = p_mailbox + flat.to(tl.int64) * slices
        publish_gradients(dy, x_hat, weight, offset, p_words + own, flat < rows, CENTRED, WEIGHTED, SHIFTED, NARROW)
        dweight, dbias = finish_turn(
            dweight, dbias, dy, x_hat, rstd, weight, offset, p_words, slices, count,
            p_dsum, p_dx, o_row, o_dx, o_place, own, before, end, CENTRED, SHIFTED, X_HAT, NARROW, WEIGHTED, WEIGHT,
            BIAS, BLOCK, PEERS, ALIGN, True,
        )  # fmt: skip

    # One partial row a group of programs.
    o_partial = first.to(tl.int64) * cols - before + o_place
    if WEIGHT:
        store(p_dweights, o_partial, dweight, m_place, True)
    if BIAS:
        store(p_dbiases, o_partial, dbias, m_place, True)
