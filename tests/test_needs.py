"""What nobody asked for is not computed: frozen parameters, frozen inputs, unused results."""

from dataclasses import replace

import pytest
import torch

from cases import BF16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, call, explained, inputs_of, planned
from oracle import assert_results


@pytest.fixture
def results_in(launches):
    """Hold a call to the reference in a schedule, and say what its backward launched."""

    def run(schedule, case, require="x weight bias residual", **changes):
        inputs = replace(inputs_of(case, *SHAPES[schedule]), **changes)
        with planned(schedule):
            assert_planned(schedule, explained(case, inputs))
            results = assert_results(case, inputs, require)
        return results, launches[1:]

    return run


def written(launched, pointer):
    return any(launch.dtypes.get(pointer) is not None for launch in launched)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_frozen_weight_costs_no_partial_sums(results_in, schedule, op):
    results, launched = results_in(schedule, Case(op, bias=F32), require="x")
    assert results.dweight is None and results.dbias is None
    assert len(launched) == 1
    assert not written(launched, "p_dweight") and not written(launched, "p_dbias")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_frozen_bias_leaves_the_weight_its_gradient(results_in, schedule):
    results, launched = results_in(schedule, Case("layer_norm", bias=F32), require="x weight")
    assert results.dbias is None and results.dweight is not None
    assert written(launched, "p_dweight") and not written(launched, "p_dbias")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_frozen_input_leaves_only_the_parameters_gradients(results_in, schedule, op):
    results, launched = results_in(schedule, Case(op, bias=F32, x=BF16), require="weight bias")
    assert results.dx is None and results.dweight is not None
    assert not written(launched, "p_dx")
    if schedule == "split":  # a column sum needs no cooperation
        assert launched[0].kernel == "stream_backward_affine"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sum_alone_passes_its_gradient_straight_through(results_in, schedule):
    results, launched = results_in(schedule, Case(x=BF16, residual=F32), dy=None)
    assert results.dweight is None
    assert launched == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_unused_sum_adds_nothing_to_the_gradient(results_in, schedule):
    results, launched = results_in(schedule, Case(residual=F32), dsum=None)
    assert torch.equal(results.dx, results.dresidual)
    assert not written(launched, "p_dsum")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_residual_of_another_dtype_gets_a_gradient_in_its_own(results_in, schedule):
    results, launched = results_in(schedule, Case(x=BF16, residual=F32))
    assert (results.dx.dtype, results.dresidual.dtype) == (BF16, F32)
    assert written(launched, "p_dresidual")


@pytest.mark.parametrize("require", ["residual", "x"])
@pytest.mark.parametrize("residual", [BF16, F32])
def test_only_the_residual_or_only_x_may_want_a_gradient(results_in, residual, require):
    results, _ = results_in("few block rows", Case(x=BF16, residual=residual), require=require)
    assert (results.dx is None, results.dresidual is None) == (require == "residual", require == "x")


def test_gradients_of_x_and_residual_do_not_share_memory_once_they_are_kept(results_in):
    """One tensor is handed to both; an optimizer that writes into one must not change the other."""
    results, _ = results_in("few block rows", Case(residual=F32))
    results.dx.zero_()
    assert results.dresidual.abs().sum() > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_statistics_are_not_stored_where_no_gradient_is_wanted(launches, schedule):
    case = Case("layer_norm", bias=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    with planned(schedule):
        call(case, inputs)
        with torch.no_grad():
            call(case, inputs.leaves())
        call(case, inputs.leaves())
    stored = [(launch.dtypes["p_mean"], launch.dtypes["p_rstd"]) for launch in launches]
    assert stored == [(None, None), (None, None), (F32, F32)]
