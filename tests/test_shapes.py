"""Any number of rows and columns: odd, one, none, and one too many for the tile."""

import pytest
import torch

import onepass
from cases import BF16, F16, F32, OPS, Case, assert_planned, explained, inputs_of, planned
from onepass.plan import in_force
from oracle import assert_results

ODD_COLS = (1, 3, 127, 129, 1000)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", ODD_COLS)
def test_any_number_of_columns(cols, op):
    case = Case(op, x=BF16, weight=BF16, bias=F32, residual=F32)
    inputs = inputs_of(case, 3, cols)
    plan = explained(case, inputs)
    assert (plan.forward.schedule, plan.backward.schedule) == ("tile", "few")
    assert_results(case, inputs)
    with in_force.override(few_rows=0):
        assert explained(case, inputs).backward.schedule == "tile"
        assert_results(case, inputs)


@pytest.mark.parametrize("schedule", ["split", "stream"])
@pytest.mark.parametrize(
    ("op", "cols"), [("rms_norm", 127), ("layer_norm", 129), ("rms_norm", 193), ("layer_norm", 128)]
)
def test_any_number_of_columns_in_slices(schedule, cols, op):
    """The last slice has one column, or all but one, or all."""
    case = Case(op, bias=F32)
    inputs = inputs_of(case, 4, cols)
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_results(case, inputs)


@pytest.mark.parametrize("schedule", ["split", "stream"])
def test_a_row_that_one_slice_holds(schedule):
    case = Case("layer_norm", bias=F32)
    inputs = inputs_of(case, 3, 33)
    with planned(schedule):
        plan = explained(case, inputs)
        assert plan.forward.schedule == plan.backward.schedule == schedule
        assert_results(case, inputs)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 16, 17])
@pytest.mark.parametrize("schedule", ["few block rows", "many block rows"])
def test_row_counts_that_do_not_divide_the_tile(schedule, rows):
    case = Case("layer_norm", x=F16, weight=F16, bias=F16)
    inputs = inputs_of(case, rows, 64)
    with planned(schedule):
        plan = explained(case, inputs)
        assert plan.forward.rows > 1 and plan.backward.rows > 1
        assert_results(case, inputs)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("schedule", ["row", "row in blocks", "split", "stream"])
def test_row_counts_that_do_not_divide_the_programs(schedule, rows):
    case = Case("layer_norm", bias=F32, residual=F32)
    inputs = inputs_of(case, rows, 150)
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
def test_one_vector_is_one_row(op):
    case = Case(op, bias=F32, residual=F32)
    inputs = inputs_of(case, 48)
    assert explained(case, inputs).problem.rows == 1
    assert_results(case, inputs)


def test_many_leading_dimensions_are_rows():
    case = Case(residual=F32)
    inputs = inputs_of(case, 2, 1, 3, 2, 48)
    assert explained(case, inputs).problem.rows == 12
    assert_results(case, inputs)


@pytest.mark.parametrize("shape", [(0, 48), (3, 0, 48), (0, 4, 0, 48), (2, 0, 2, 0, 48)])
@pytest.mark.parametrize("op", OPS)
def test_no_rows_give_no_rows_and_zero_parameter_gradients(launches, op, shape):
    case = Case(op, bias=BF16, residual=F32, x=BF16)
    inputs = inputs_of(case, *shape)
    results = assert_results(case, inputs)
    assert results.y.shape == results.dx.shape == torch.Size(shape)
    assert not results.dweight.any() and not results.dbias.any()
    assert launches == []


@pytest.mark.parametrize("shape", [(0, 2, 48), (3, 0, 2, 48)])
def test_no_rows_with_a_weight_for_each_head(shape):
    results = assert_results(Case(bias=F32, per_head=True), inputs_of(Case(bias=F32, per_head=True), *shape))
    assert results.dweight.shape == (2, 48)


def test_a_weight_for_each_head_of_one_token():
    case = Case("layer_norm", bias=F32, per_head=True)
    inputs = inputs_of(case, 3, 48)
    plan = explained(case, inputs)
    assert (plan.problem.rows, plan.problem.lanes) == (1, 3)
    assert_results(case, inputs)


def test_a_bias_for_each_head_needs_no_weight():
    case = Case("layer_norm", weight=None, bias=F32, per_head=True)
    inputs = inputs_of(case, 2, 3, 48)
    assert explained(case, inputs).problem.per_lane
    assert_results(case, inputs)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 3, 64)])
def test_explain_answers_for_no_rows(shape):
    plan = onepass.explain(torch.empty(shape))
    assert plan.problem.rows * plan.problem.lanes == 0


@pytest.mark.parametrize("op", OPS)
def test_no_columns_give_no_columns(op):
    x, weight = torch.empty(4, 0, requires_grad=True), torch.empty(0, requires_grad=True)
    y = getattr(onepass, op)(x, weight)
    y.sum().backward()
    assert y.shape == x.grad.shape == (4, 0) and weight.grad.shape == (0,)
