"""NaN, infinities, zeros, and numbers at the ends of their range, in every schedule."""

from dataclasses import replace

import pytest
import torch

from cases import BF16, F16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, explained, inputs_of, planned
from oracle import assert_results, computed

EVERYWHERE = [pytest.param(schedule, op, id=f"{schedule}-{op}") for schedule in SCHEDULES for op in OPS]


def results_in(schedule, case, inputs, check=assert_results):
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        return check(case, inputs)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize(("schedule", "op"), EVERYWHERE)
def test_a_broken_row_stays_alone(schedule, op, value):
    """One bad token must not reach the others: their results and input gradients keep every bit."""
    case = Case(op, bias=F32, residual=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    healthy = results_in(schedule, case, inputs, computed)
    broken = replace(inputs, x=inputs.x.clone())
    broken.x[1, 7] = value
    results = results_in(schedule, case, broken, computed)
    others = torch.arange(inputs.x.shape[0]) != 1
    for name in ("y", "total", "dx", "dresidual"):
        assert torch.equal(getattr(results, name)[others], getattr(healthy, name)[others]), name
    assert results.y[1].isnan().any() and results.dx[1].isnan().any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_broken_gradient_stays_in_its_row(schedule, value):
    case = Case("layer_norm", bias=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    healthy = results_in(schedule, case, inputs, computed)
    broken = replace(inputs, dy=inputs.dy.clone())
    broken.dy[1, 7] = value
    results = results_in(schedule, case, broken, computed)
    others = torch.arange(inputs.x.shape[0]) != 1
    assert torch.equal(results.dx[others], healthy.dx[others])
    assert not results.dx[1].isfinite().any()
    # In the column sums it stays in its column.
    assert not results.dweight[7].isfinite() and not results.dbias[7].isfinite()
    columns = torch.arange(inputs.x.shape[1]) != 7
    assert torch.equal(results.dweight[columns], healthy.dweight[columns])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("schedule", "op"), EVERYWHERE)
def test_a_broken_row_reads_as_the_reference_has_it(schedule, op, value):
    """NaN and inf come out where plain PyTorch has them."""
    case = Case(op, x=BF16, weight=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    inputs.x[0, 3] = value
    results = results_in(schedule, case, inputs, computed)
    with planned(schedule):
        plain = getattr(torch.nn.functional, op)(
            inputs.x.float(), (inputs.x.shape[-1],), inputs.weight, eps=explained(case, inputs).norm.eps
        )
    assert torch.equal(results.y[0].isnan(), plain[0].isnan())
    assert torch.equal(results.y[0] == 0, plain[0] == 0)


@pytest.mark.parametrize(("schedule", "op"), EVERYWHERE)
def test_rows_of_zeros_give_zeros_and_finite_gradients(schedule, op):
    """In split, every partial sum of such a row is zero: the mailbox must not take that for an empty word."""
    case = Case(op)
    inputs = inputs_of(case, *SHAPES[schedule])
    inputs.x[::2] = 0
    results = results_in(schedule, case, inputs)
    assert not results.y[::2].any()
    assert results.dx.isfinite().all()


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("op", OPS)
def test_sums_of_exactly_zero_do_not_hang_cooperating_programs(op, zero):
    case = Case(op, bias=F32)
    inputs = inputs_of(case, *SHAPES["split"])
    inputs.x.fill_(zero)
    inputs.dy.fill_(zero)
    results = results_in("split", case, inputs)
    assert not results.dx.any() and not results.dweight.any()


@pytest.mark.parametrize("op", OPS)
def test_sums_of_nan_do_not_hang_cooperating_programs(op):
    case = Case(op, bias=F32)
    inputs = inputs_of(case, *SHAPES["split"])
    inputs.x.fill_(float("nan"))
    inputs.dy.fill_(float("nan"))
    results = results_in("split", case, inputs, computed)
    assert results.y.isnan().all() and results.dx.isnan().all() and results.dweight.isnan().all()


@pytest.mark.parametrize("op", OPS)
def test_a_nan_whose_bits_are_all_ones_does_not_hang_cooperating_programs(op):
    case = Case(op)
    inputs = inputs_of(case, *SHAPES["split"])
    inputs.x.view(torch.int32).fill_(-1)
    assert results_in("split", case, inputs, computed).y.isnan().all()


@pytest.mark.parametrize("scale", [1e-18, 1e17])
@pytest.mark.parametrize(("schedule", "op"), EVERYWHERE)
def test_rows_of_any_size_are_normalized(schedule, op, scale):
    """Squares stay within fp32; where eps outweighs them, it does so as in the reference."""
    case = Case(op, options={"eps": 1e-12})
    inputs = inputs_of(case, *SHAPES[schedule])
    inputs.x.mul_(scale)
    results_in(schedule, case, inputs)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("schedule", "op"), EVERYWHERE)
def test_the_ends_of_a_narrow_dtype_do_not_overflow(schedule, op, dtype):
    """Statistics are fp32, so an fp16 row full of 65504 or of the smallest numbers is like any other."""
    case = Case(op, x=dtype, weight=dtype)
    inputs = inputs_of(case, *SHAPES[schedule])
    signs = inputs.x.sign()
    inputs.x[0] = signs[0] * 60000
    inputs.x[1] = signs[1] * torch.finfo(F16).smallest_normal
    results = results_in(schedule, case, inputs)
    assert results.y.isfinite().all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layer_norm_of_a_far_away_row_does_not_cancel(schedule):
    """Deviations are taken from the mean, not as E[x²] - E[x]², which has no digits left here."""
    case = Case("layer_norm", bias=F32)
    rows, cols = SHAPES[schedule]
    inputs = inputs_of(case, rows, cols)
    inputs.x.copy_(4096 + torch.randint(-8, 9, (rows, cols)))
    results_in(schedule, case, inputs)


@pytest.mark.parametrize("residual", [None, F32])
@pytest.mark.parametrize("shape", ["far from zero", "first block apart", "a slope", "constant", "one spike"])
def test_a_mean_that_is_found_on_the_way_costs_no_variance(shape, residual):
    """Stream takes deviations from the first block's mean, here of 64 columns out of 300, and corrects for it."""
    case = Case("layer_norm", bias=F32, residual=residual)
    noise = torch.randn(3, 300)
    x = {
        "far from zero": 1000 + noise,
        "first block apart": torch.cat([50 + noise[:, :64], noise[:, 64:]], dim=1),
        "a slope": noise + torch.linspace(-20, 20, 300),
        "constant": torch.full((3, 300), 7.25),
        "one spike": noise + 1e4 * (torch.arange(300) == 200),
    }[shape]
    inputs = inputs_of(case, x=x)
    if residual is not None:
        inputs = replace(inputs, residual=torch.zeros_like(x))
    with planned("stream"):
        assert_planned("stream", explained(case, inputs))
        assert_results(case, inputs)
