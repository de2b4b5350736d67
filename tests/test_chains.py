"""Rows whose blocks are summed in chains: few of them have more warps each, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from cases import BF16, F32, OPS, Case, explained, inputs_of
from onepass.plan import forward_choices, forward_plans, in_force
from onepass.plan.chains import chains_of, most_spread
from onepass.plan.plans import Choice, vector_of
from onepass.plan.tiles import Tile
from oracle import assert_results
from planning import CLUSTERED, DTYPES, ROWS, norms, of_one_program, order_of_sums, problem_of


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("chains", "tile"), [(2, Tile(1024, 1, 1, block=128)), (4, Tile(1024, 1, 2, block=64))])
@pytest.mark.parametrize("op", OPS)
def test_chains_add_up_to_what_is_defined(op, chains, tile, rows):
    case = Case(op, x=F32, weight=F32, bias=F32 if op == "layer_norm" else None)
    inputs = inputs_of(case, rows, 504)
    with in_force.force("forward", Choice("tile", replace(tile, chains=chains))):
        plan = explained(case, inputs).forward
        assert (plan.chains, plan.warps) == ((1, tile.warps * chains) if rows == 1 else (chains, tile.warps))
        assert_results(case, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_a_warp_adds_up_the_same_columns_whatever_the_number_of_rows(centred, dtype):
    """Few rows have so many times the threads, in blocks that are as many times wider."""
    spread = 0
    for cols in (256, 300, 320, 640, 960, 1000, 1408, 1600, 2048, 3072, 5120, 5888, 8192, 12_288, 16_384, 27_048):
        align = min(16 // dtype.itemsize, cols & -cols)
        problems = [problem_of(rows, cols, dtype) for rows in ROWS]
        choice = forward_choices.forward_choice(problems[0], CLUSTERED, centred, align)
        with in_force.force("forward", replace(choice, tile=replace(choice.tile, chains=4))):
            planned = [forward_plans.forward_plan(problem, CLUSTERED, centred, align) for problem in problems]
        assert len({order_of_sums(of_one_program(plan), align) for plan in planned}) == 1, (cols, planned)
        spread += len({plan.chains for plan in planned}) > 1
    assert spread


def test_chains_are_for_rows_that_lie_over_warps_in_one_vector_of_each_thread():
    """Else a wider block would be laid over the same threads, and a row's bits would be others."""
    tile = Tile(8192, 1, 4, block=1024, chains=4)
    problem = problem_of(7, 8192, BF16)
    assert vector_of(problem, 8) == 8
    assert chains_of(problem, tile, 8) == 4
    assert chains_of(problem, replace(tile, block=2048), 8) == 1  # two vectors
    assert chains_of(problem, replace(tile, block=512), 8) == 4  # half a vector
    assert chains_of(problem, tile, 4) == 1  # rows begin on 8 bytes
    assert chains_of(replace(problem, cols=1024), tile, 8) == 1  # one block
    assert chains_of(replace(problem, cols=2048), tile, 8) == 2
    assert chains_of(replace(problem, cols=3072), tile, 8) == 1  # three blocks, which two chains cannot share evenly
    assert chains_of(replace(problem, cols=5120), tile, 8) == 1  # five
    assert chains_of(replace(problem, cols=5128), tile, 8) == 2  # six
    assert chains_of(replace(problem, cols=7000), tile, 8) == 2  # seven, of which one more counts for little
    assert chains_of(replace(problem, cols=7000, residual=BF16, sum=BF16), tile, 8) == 1
    assert chains_of(problem_of(7, 7000, F32), replace(tile, warps=8), 4) == 1
    assert chains_of(problem_of(7, 8000, F32), replace(tile, warps=8), 4) == 4
    assert chains_of(problem, replace(tile, warps=8, block=2048), 8) == 4
    assert chains_of(replace(problem, cols=16384), replace(tile, warps=16, block=4096), 8) == 2  # a program's 32 warps
    assert chains_of(replace(problem, quantized="token"), tile, 8) == 1


@pytest.mark.parametrize(
    ("centred", "residual", "cols", "warps"),
    [(True, False, 2048, 1), (True, False, 3072, 2), (False, False, 1408, 1), (False, True, 960, 1),
     (False, True, 4096, 4), (False, False, 12_288, 8), (True, False, 16_000, 8),
     (True, False, 1664, 1), (False, False, 5400, 4), (False, False, 6144, 4), (False, False, 13_000, 8)],
)  # fmt: skip
def test_few_rows_have_twice_the_warps(centred, residual, cols, warps):
    of = partial(problem_of, cols=cols, dtype=BF16, residual=BF16 if residual else None)
    many = forward_plans.forward_plan(of(100_000), CLUSTERED, centred, 8)
    most = most_spread(CLUSTERED, 2 * warps, many.blocks % 2 == 0)
    few, more = (forward_plans.forward_plan(of(rows), CLUSTERED, centred, 8) for rows in (most, most + 1))
    assert (few.chains, few.warps * few.slices) == (1, 2 * warps)
    assert (more.chains, more.warps) == (2, warps)
    if warps < 8:  # which has its kernel compiled beforehand
        assert forward_plans.least_in_chains(of(7), CLUSTERED, centred, 8) == most + 1


def test_chains_that_are_not_alike_part_sooner():
    """One warp then has a block more than the other, which few rows do not notice."""
    assert most_spread(CLUSTERED, 2, even=True) == 8 * 132
    assert most_spread(CLUSTERED, 2, even=False) == 2 * 132
    assert most_spread(CLUSTERED, 16, even=False) == most_spread(CLUSTERED, 16, even=True) == 32
