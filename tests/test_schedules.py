"""Every schedule computes what the reference defines, forward and backward, with every option."""

import pytest
import torch

from cases import BF16, F32, OPS, SCHEDULES, SHAPES, VARIANTS, Case, assert_planned, call, explained, inputs_of, planned
from onepass.plan import in_force, interpreter
from oracle import assert_results

#: Tiles of few short rows, of many and of one differ in size alone, and so do rows of one block and of several.
ALIKE = ("few block rows", "many block rows", "row")
FEW = ("plain", "bf16", "fp16", "bf16 with fp32 residual", "llama with fp32 weight", "residual_dtype without residual")
#: `cast="none"` is defined for rms_norm alone, and `t5` for a weight alone: refusals are in test_errors.py.
CASES = [
    pytest.param(schedule, case.of(op), id=f"{schedule}-{op}-{name}")
    for schedule in SCHEDULES
    for op in OPS
    for name, case in VARIANTS.items()
    if not (op == "layer_norm" and name == "none") and (schedule not in ALIKE or name in FEW)
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


@pytest.mark.parametrize("cols", [100, 128])
@pytest.mark.parametrize("residual", [None, BF16], ids=["alone", "residual"])
@pytest.mark.parametrize("op", OPS)
def test_a_program_whose_peers_do_not_come_makes_their_sums(monkeypatch, op, residual, cols):
    """One after the other, so that the first program of a row finds nobody's, and the last one all."""
    case = Case(op, x=BF16, weight=F32, bias=F32 if op == "layer_norm" else None, residual=residual)
    inputs = inputs_of(case, 3, cols)
    with planned("split"):
        assert_planned("split", explained(case, inputs))
        together = call(case, inputs)

        def one_by_one(function, programs, arguments):
            function[(programs,)](*arguments)

        monkeypatch.setattr(interpreter, "run_together", one_by_one)
        with in_force.override(patience=0):
            alone = call(case, inputs)
    assert torch.equal(together[0], alone[0])
    assert residual is None or torch.equal(together[1], alone[1])


def test_a_wide_row_with_a_weight_for_each_head_streams_in_the_backward():
    """Split has no gradient for each head's weight, so such a row must not be sent there."""
    case = Case(bias=F32, per_head=True)
    inputs = inputs_of(case, 2, 2, SHAPES["split"][1])
    with planned("split"):
        plan = explained(case, inputs)
        assert (plan.forward.schedule, plan.backward.schedule) == ("split", "stream")
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
