"""The tests' own ground: an element that no kernel writes is NaN, and the record of launches misses none."""

import pytest
import torch

import onepass
from cases import SCHEDULES, SHAPES, Case, call, explained, inputs_of, planned
from onepass import handover
from oracle import computed
from tolerance import assert_close


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_outputs_that_no_kernel_writes_are_nan(schedule, monkeypatch):
    """Were the buffers not poisoned, a kernel that forgets elements could pass on what lay in memory before."""
    case = Case("layer_norm", bias=torch.float32, residual=torch.bfloat16)
    inputs = inputs_of(case, *SHAPES[schedule])
    monkeypatch.setattr(handover, "kernel", lambda *_, **__: lambda *_: lambda *_: None)
    with planned(schedule):
        results = computed(case, inputs)
    for name, result in vars(results).items():
        assert result.isnan().all(), name


def test_every_launch_is_recorded(launches):
    x, weight = torch.randn(3, 48, requires_grad=True), torch.ones(48, requires_grad=True)
    with planned("row"):
        onepass.rms_norm(x, weight).sum().backward()
    onepass.rms_norm(x, weight).sum().backward()
    kernels = [launch.kernel for launch in launches]
    assert kernels == ["tile_forward", "tile_backward", "sum_partials", "tile_forward", "few_backward"]
    assert launches[0].dtypes["p_x"] == torch.float32
    assert launches[0].dtypes["p_residual"] is None


def test_a_recorded_call_is_the_call_itself(launches):
    case = Case()
    inputs = inputs_of(case, 3, 48)
    assert explained(case, inputs).forward is not None
    assert launches == []
    y, _ = call(case, inputs)
    assert y.isfinite().all() and len(launches) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_tolerance_refuses_three_units_in_the_last_place(dtype):
    expected = torch.linspace(1, 1.9, 10).to(dtype)
    unit = torch.finfo(dtype).eps
    assert_close("y", expected + unit, expected, magnitude=0)
    with pytest.raises(AssertionError, match="times the error"):
        assert_close("y", expected + 4 * unit, expected, magnitude=0)


def test_the_tolerance_refuses_nan_where_a_number_belongs():
    with pytest.raises(AssertionError, match="NaN"):
        assert_close("y", torch.tensor([1.0, float("nan")]), torch.ones(2))
    with pytest.raises(AssertionError, match=r"infinities|error"):
        assert_close("y", torch.tensor([1.0, float("inf")]), torch.ones(2))
