"""Rows whose blocks are summed in chains: few of them have more warps each, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from cases import BF16, F32, OPS, Case, explained, inputs_of
from onepass.plan import forward_plans, in_force
from onepass.plan.chains import chains_of
from onepass.plan.device import INTERPRETER
from onepass.plan.plans import Choice, vector_of
from onepass.plan.tiles import Tile
from oracle import assert_results
from planning import CLUSTERED, DTYPES, ROWS, held_by_a_thread, norms, of_one_program, problem_of


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("chains", "tile"), [(2, Tile(768, 1, 1, block=128)), (4, Tile(768, 1, 2, block=64))])
@pytest.mark.parametrize("op", OPS)
def test_chains_add_up_to_what_is_defined(op, chains, tile, rows):
    case = Case(op, x=F32, weight=F32, bias=F32 if op == "layer_norm" else None)
    inputs = inputs_of(case, rows, 376)
    with in_force.force("forward", Choice("tile", replace(tile, chains=chains))):
        plan = explained(case, inputs).forward
        few = rows <= in_force.thresholds().spread_per_sm * INTERPRETER.sms
        assert (plan.chains, plan.warps) == ((1, tile.warps * chains) if few else (chains, tile.warps))
        assert_results(case, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_a_warp_adds_up_the_same_columns_whatever_the_number_of_rows(centred, dtype):
    """Few rows have so many times the threads, in blocks that are as many times wider."""
    spread = 0
    with in_force.override(chains=4):
        for cols in (256, 300, 320, 640, 960, 1000, 1408, 1600, 2048, 3072, 5120, 5888, 8192, 12_288, 16_384, 27_048):
            align = min(16 // dtype.itemsize, cols & -cols)
            problems = [problem_of(rows, cols, dtype) for rows in ROWS]
            planned = [forward_plans.forward_plan(problem, CLUSTERED, centred, align) for problem in problems]
            kept = set()
            for plan in map(of_one_program, planned):
                threads, elements = held_by_a_thread(plan, align)
                kept.add((plan.chains * plan.block, plan.chains * threads, elements))
            assert len(kept) == 1, (cols, planned)
            spread += len({plan.chains for plan in planned}) > 1
    assert spread >= 4


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
    assert chains_of(problem, replace(tile, warps=8, block=2048), 8) == 4
    assert chains_of(problem, replace(tile, warps=16, block=4096), 8) == 2  # 32 warps are a program's most
    assert chains_of(replace(problem, quantized="token"), tile, 8) == 1


def test_nothing_is_summed_in_chains_as_thresholds_are():
    plans = [forward_plans.forward_plan(problem_of(rows, cols, torch.bfloat16), CLUSTERED, False, 8)
             for rows, cols in product((1, 64, 9000), (960, 4096, 5888, 16384))]  # fmt: skip
    assert {plan.chains for plan in plans} == {1}
