"""Rows that do not lie one after the other: read where they are, up to two levels of strides."""

from dataclasses import replace

import pytest
import torch

from cases import BF16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, explained, inputs_of, planned, random
from oracle import assert_results


def query_slice(tokens, heads, cols, dtype=F32):
    return random(tokens, 3, heads, cols, dtype=dtype)[:, 1]


def assert_read_in_place(case, inputs, schedule=None, rows=None, lanes=None):
    plan = explained(case, inputs)
    assert not plan.copies
    if schedule is not None:
        assert_planned(schedule, plan)
    if rows is not None:
        assert (plan.problem.rows, plan.problem.lanes) == (rows, lanes)
    return assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_query_slice_of_a_fused_tensor_is_read_in_place(schedule, op):
    tokens, cols = SHAPES[schedule]
    case = Case(op, x=BF16, weight=BF16, bias=F32)
    x = query_slice(tokens, 2, cols, BF16)
    with planned(schedule):
        results = assert_read_in_place(case, inputs_of(case, x=x), schedule, rows=tokens, lanes=2)
    assert results.y.is_contiguous() and results.dx.is_contiguous()


@pytest.mark.parametrize("schedule", ["row", "row in blocks", "many block rows", "stream"])
def test_a_query_slice_may_have_a_weight_for_each_head(schedule):
    tokens, cols = SHAPES[schedule]
    case = Case(bias=F32, per_head=True)
    with planned(schedule):
        assert_read_in_place(case, inputs_of(case, x=query_slice(tokens, 3, cols)), schedule, rows=tokens, lanes=3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_shorter_level_of_strides_becomes_the_lanes(schedule):
    """The first tokens of each sequence of a batch: few sequences of many rows, the other way round than heads."""
    tokens, cols = SHAPES[schedule]
    case = Case("layer_norm", bias=F32, residual=F32)
    x = random(2, tokens + 3, cols)[:, :tokens]
    with planned(schedule):
        assert_read_in_place(case, inputs_of(case, x=x), schedule, rows=tokens, lanes=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_other_row_is_read_in_place(schedule):
    rows, cols = SHAPES[schedule]
    case = Case(residual=F32)
    inputs = inputs_of(case, x=random(2 * rows, cols)[::2])
    inputs = replace(inputs, residual=random(rows, cols + 16)[:, :cols])
    with planned(schedule):
        assert_read_in_place(case, inputs, schedule, rows=rows, lanes=1)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_may_begin_at_any_address(schedule, op):
    rows, cols = SHAPES[schedule]
    case = Case(op, x=BF16, weight=BF16, residual=BF16)
    x = random(rows, cols + 1, dtype=BF16)[:, 1:]
    inputs = inputs_of(case, x=x)
    inputs = replace(inputs, weight=random(cols + 1, dtype=BF16)[1:], dy=random(rows, cols + 1, dtype=BF16)[:, 1:])
    assert x.data_ptr() % 16 and inputs.weight.data_ptr() % 16
    with planned(schedule):
        plan = explained(case, inputs)
        assert plan.forward.schedule == (schedule if schedule in ("split", "stream") else "tile")
        assert_read_in_place(case, inputs)


def test_a_stride_that_no_vector_divides():
    """Rows of 48 columns, 51 apart: aligned at first, and never again."""
    case = Case(x=BF16, weight=BF16)
    inputs = inputs_of(case, x=random(5, 51, dtype=BF16)[:, :48])
    assert inputs.x.data_ptr() % 16 == 0
    assert_read_in_place(case, inputs, rows=5, lanes=1)


@pytest.mark.parametrize("op", OPS)
def test_one_row_may_stand_for_many(op):
    case = Case(op, bias=F32)
    x = random(1, 48).expand(5, 48)
    results = assert_read_in_place(case, inputs_of(case, x=x), rows=5, lanes=1)
    assert results.dx.shape == (5, 48)


def test_an_expanded_residual_is_read_in_place():
    case = Case(residual=F32)
    inputs = replace(inputs_of(case, 2, 4, 48), residual=random(2, 1, 48).expand(2, 4, 48))
    assert_read_in_place(case, inputs, rows=4, lanes=2)


@pytest.mark.parametrize("residual", [None, F32])
@pytest.mark.parametrize("op", OPS)
def test_three_levels_of_strides_are_copied_and_explain_says_so(op, residual):
    case = Case(op, residual=residual)
    x = random(2, 4, 3, 4, 48)[:, :2, :, :2].transpose(0, 1)
    inputs = inputs_of(case, x=x)
    plan = explained(case, inputs)
    assert plan.copies and "copied" in str(plan)
    before = x.clone()
    assert_results(case, inputs)
    assert torch.equal(x, before)


def test_a_transposed_x_whose_rows_are_dense_is_read_in_place():
    """(heads, tokens, dim) seen as (tokens, heads, dim)."""
    case = Case(x=BF16, weight=BF16)
    assert_read_in_place(case, inputs_of(case, x=random(2, 5, 48, dtype=BF16).transpose(0, 1)), rows=5, lanes=2)


GRADIENTS = {
    "one row for all": lambda: random(1, 1, 48).expand(3, 2, 48),
    "one number for all": lambda: torch.tensor(0.5).expand(3, 2, 48),
    "one number a row": lambda: random(3, 2, 1).expand(3, 2, 48),
    "transposed to the last dimension": lambda: random(48, 2, 3).permute(2, 1, 0),
    "transposed rows": lambda: random(2, 3, 48).transpose(0, 1),
    "slices of wider rows": lambda: random(3, 2, 60)[..., 3:51],
}


@pytest.mark.parametrize("schedule", ["few block rows", "row"])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_arrive_in_any_layout(gradient, schedule):
    case = Case("layer_norm", bias=F32, residual=F32)
    inputs = replace(inputs_of(case, 3, 2, 48), dy=GRADIENTS[gradient]())
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_results(case, inputs)
        assert_results(case, replace(inputs, dsum=GRADIENTS[gradient]()))


@pytest.mark.parametrize("gradient", ["one number for all", "transposed rows"])
@pytest.mark.parametrize("schedule", ["split", "stream"])
def test_gradients_of_wide_rows_arrive_in_any_layout(gradient, schedule):
    case = Case("layer_norm", bias=F32, residual=F32)
    inputs = inputs_of(case, 3, 2, 150)
    dy = torch.tensor(0.5).expand(3, 2, 150) if gradient == "one number for all" else random(2, 3, 150).transpose(0, 1)
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_results(case, replace(inputs, dy=dy))
