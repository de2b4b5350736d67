"""Limits of registers, and few sums that are planned as many are: where an SM has room for another program then."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from onepass.plan import in_force
from onepass.plan.backward_plans import backward_plan
from onepass.plan.column_sums import few_columns_plan
from onepass.plan.forward_plans import forward_plan
from onepass.plan.limits import most_few_limited
from planning import CLUSTERED, problem_of

BF16, F32 = torch.bfloat16, torch.float32
LIMITS = in_force.thresholds().limits


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.quantized}-{limit.first}")
def test_rows_of_the_widths_that_a_limit_names_have_it(limit):
    dtype = F32 if limit.itemsize == 4 else BF16
    align = 16 // limit.itemsize
    group = 128 if limit.quantized == "block" else 1
    inside = range(-(-limit.first // 128) * 128, limit.last + 1, 128)

    def plan(rows, cols):
        problem = problem_of(rows, cols, dtype, residual=dtype if limit.residual else None)
        problem = replace(problem, quantized=limit.quantized, group=group, walked=limit.quantized == "token")
        return forward_plan(problem, CLUSTERED, limit.centred, align)

    many = 150 if limit.sum_first else 200 if limit.late is False else 4000
    assert {plan(many, cols).registers for cols in (inside[0], inside[len(inside) // 2], inside[-1])} == {
        limit.registers
    }
    if limit.per_sm:  # as many have room without it
        assert plan(132 * limit.per_sm, inside[-1]).registers is None
    assert {plan(many, cols).registers for cols in (limit.first - 1, limit.last + 8)} == {None}


@pytest.mark.parametrize(("cols", "dtype", "most"), [(16_384, BF16, 132), (14_344, BF16, 132), (8192, F32, 264)])
def test_sums_that_would_wait_for_room_are_planned_as_many_are(cols, dtype, most):
    problem = problem_of(1, cols, dtype, residual=dtype)

    def plan(rows, centred=False, **changes):
        planned = forward_plan(replace(problem, rows=rows, **changes), CLUSTERED, centred, 16 // dtype.itemsize)
        return planned.prompt

    assert plan(most) and not plan(most + 1)
    assert not plan(most // 2 + 1, lanes=2)
    assert plan(100, residual=None, sum=None)


def test_sums_that_have_room_are_written_for_how_soon_a_row_is_done():
    for cols, dtype, rows in ((14_336, BF16, 300), (8192, BF16, 400), (12_288, F32, 300)):
        assert forward_plan(
            problem_of(rows, cols, dtype, residual=dtype), CLUSTERED, False, 16 // dtype.itemsize
        ).prompt
    assert forward_plan(problem_of(200, 10_240, F32, residual=F32), CLUSTERED, True, 4).prompt


FEW_LIMITS = in_force.thresholds().few_limits


@pytest.mark.parametrize("limit", FEW_LIMITS, ids=lambda limit: f"{limit.registers}-{limit.first}")
def test_a_backward_of_few_rows_has_its_limit_as_long_as_it_is_worth_it(limit):
    dtype = F32 if limit.itemsize == 4 else BF16
    of = partial(problem_of, dtype=dtype, residual=dtype if limit.residual else None)

    def registers(rows, cols, align=16 // limit.itemsize):
        plan = backward_plan(of(rows, cols), CLUSTERED, limit.centred, align, True)
        return plan.registers if plan.schedule == "few" else None

    for cols in (-(-limit.first // 8) * 8, limit.last):
        most = most_few_limited(of(1, cols), CLUSTERED, limit.centred, 16 // limit.itemsize)
        assert 250 < most < 500
        assert registers(200, cols) == registers(min(most, 256), cols) == limit.registers
        assert registers(most + 1, cols) is None
        assert registers(200, cols, align=1) is None
    assert registers(200, limit.last + 8) is None
    if limit.per_sm is None:  # all programs run at once with it
        at_once = 132 * (65536 // (32 * 8 * limit.registers))
        assert most + few_columns_plan(of(most, limit.last), most).programs == at_once
