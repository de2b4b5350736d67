"""Every schedule computes what the reference defines, forward and backward, with every option."""

import pytest

from cases import BF16, F32, OPS, SCHEDULES, SHAPES, VARIANTS, Case, assert_planned, explained, inputs_of, planned
from oracle import assert_results

#: `cast="none"` is defined for rms_norm alone, and `t5` for a weight alone: refusals are in test_errors.py.
CASES = [
    pytest.param(schedule, case.of(op), id=f"{schedule}-{op}-{name}")
    for schedule in SCHEDULES
    for op in OPS
    for name, case in VARIANTS.items()
    if not (op == "layer_norm" and name == "none")
]


@pytest.mark.parametrize(("schedule", "case"), CASES)
def test_results_and_gradients_are_those_of_the_definition(schedule, case):
    inputs = inputs_of(case, *SHAPES[schedule])
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "split"])
def test_each_head_has_its_own_weight(schedule, op):
    case = Case(op, x=BF16, weight=F32, bias=BF16, residual=BF16, per_head=True)
    tokens, cols = SHAPES[schedule]
    inputs = inputs_of(case, tokens, 3, cols)
    with planned(schedule):
        plan = explained(case, inputs)
        assert_planned(schedule, plan)
        assert (plan.problem.lanes, plan.problem.per_lane) == (3, True)
        assert_results(case, inputs)


def test_a_wide_row_with_a_weight_for_each_head_streams():
    """Split has no weight for each head, so such a row must not be sent there."""
    case = Case(bias=F32, per_head=True)
    inputs = inputs_of(case, 2, 2, SHAPES["split"][1])
    with planned("split"):
        plan = explained(case, inputs)
        assert (plan.forward.schedule, plan.backward.schedule) == ("stream", "stream")
        assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", ["row", "row in blocks", "many block rows"])
def test_a_tile_that_the_row_fills_needs_no_mask(schedule, op):
    """With as many columns as the tile has, kernels load and store without a mask for the columns."""
    case = Case(op, bias=F32, residual=F32)
    inputs = inputs_of(case, 7, 64)
    with planned(schedule):
        plan = explained(case, inputs)
        assert_planned(schedule, plan)
        assert 64 % plan.forward.block == 64 % plan.backward.block == 0
        assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
def test_defaults_compute_what_is_defined(op):
    """The thresholds as they ship, whatever they choose."""
    case = Case(op, x=BF16, weight=BF16, residual=BF16, options={"cast": "llama"})
    inputs = inputs_of(case, 5, 128)
    assert explained(case, inputs).forward.schedule == "tile"
    assert_results(case, inputs)
