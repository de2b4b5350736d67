"""Sums with the residual that are stored before they are normalized: where, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from cases import BF16, F32, VARIANTS, assert_planned, call, explained, inputs_of, planned
from onepass.plan import affine, forward_plans, in_force
from oracle import assert_results
from planning import CLUSTERED, problem_of

SHAPES = {"row": (3, 96), "many block rows": (11, 48), "split": (3, 96)}
SUMMED = [name for name, case in VARIANTS.items() if case.has_sum]


@pytest.mark.parametrize("schedule", SHAPES)
@pytest.mark.parametrize("name", SUMMED)
def test_when_a_sum_is_stored_changes_no_bit(name, schedule):
    case = VARIANTS[name]
    inputs, results = inputs_of(case, *SHAPES[schedule]), []
    for first, from_bytes in ((True, 0), (False, 1 << 30)):
        with planned(schedule), in_force.override(sum_first_bytes=(from_bytes, from_bytes)):
            plan = explained(case, inputs)
            assert_planned(schedule, plan)
            assert plan.forward is not None and plan.forward.sum_first == first
            assert_results(case, inputs)
            results.append(call(case, inputs))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def sum_first(rows, cols, dtype=BF16, align=8, centred=False, **changes):
    problem = replace(problem_of(rows, cols, dtype, residual=dtype), **changes)
    return forward_plans.forward_plan(problem, CLUSTERED, centred, align).sum_first


@pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("cols", "dtype", "align"), [(4096, BF16, 8), (1002, BF16, 2), (4096, F32, 4)], ids=str)
def test_few_rows_store_their_sums_first(centred, cols, dtype, align):
    most = affine.most_prompt_rows(problem_of(1, cols, dtype, residual=dtype), CLUSTERED) // 2
    least = 49 if dtype == F32 else 1  # of so few clusters have them
    of = partial(sum_first, cols=cols, dtype=dtype, align=align, centred=centred)
    assert of(least) and of(most) and not of(most + 1)


def test_sums_are_stored_first_where_rows_are_wide_and_programs_few():
    assert not sum_first(100, 2048) and sum_first(100, 2056)
    assert sum_first(100, 2044, align=4)  # which does not begin on 16 bytes
    assert not sum_first(16, 4096, F32, 4) and sum_first(16, 6144, F32, 4)  # clusters, of a warp in each program
    assert sum_first(100_000, 17_408) and not sum_first(100_000, 16_384) and not sum_first(100_000, 17_408, F32, 4)
    assert not sum_first(100, 4096, residual=None, sum=None)
    assert sum_first(200, 4096, quantized="static") and not sum_first(300, 4096, quantized="static")
    assert sum_first(100_000, 12_288, quantized="token") and not sum_first(100_000, 8192, quantized="token")
    assert not sum_first(100_000, 12_288, quantized="token", centred=True)


@pytest.mark.parametrize(("cols", "registers"), [(40_960, None), (40_968, 96), (49_152, 96), (49_160, None)])
def test_clusters_of_six_blocks_have_a_limit_of_registers(cols, registers):
    """By which five programs are on an SM, though a sum is stored while weight and bias are on their way."""
    of = partial(problem_of, cols=cols, residual=BF16)
    plans = [forward_plans.forward_plan(of(rows), CLUSTERED, False, 8) for rows in (1, 64, 1000)]
    assert {(plan.slices, plan.registers, plan.sum_first) for plan in plans} == {(8, registers, True)}
    wider = forward_plans.forward_plan(problem_of(64, cols, F32, residual=F32), CLUSTERED, False, 4)
    assert (wider.slices, wider.registers) == (8, None)
