"""The gate: what is right passes on every case, and what is wrong in the world does not."""

import json
import math
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F

from onepass.lab import gate
from onepass.lab.backends import Backend, backend
from onepass.lab.data.case import DIRECTIONS, DTYPES, NORMS, Case
from onepass.lab.gate import check
from onepass.lab.inputs import make_inputs


def case_of(op="rms_norm", direction="forward", dtype="float32", **more):
    return Case(op, direction, more.pop("rows", 24), more.pop("cols", 96), dtype, **more)


def judged(kernel, case):
    """What the gate says of kernel(x, weight, bias, residual, eps), run as a backend."""
    inputs = make_inputs(case, "cpu", 0)
    return check(case, inputs, Backend("mine", lambda case: kernel).prepare(case, inputs)())


def exact(x, weight, bias, residual, eps):
    total = x.double() if residual is None else x.double() + residual.double()
    centred = total if bias is None else total - total.mean(-1, keepdim=True)
    y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    y = (y if bias is None else y + bias.double()).to(x.dtype)
    return y if residual is None else (y, total.to(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", NORMS)
def test_one_rounding_of_the_exact_result_is_within_half_the_limit(op, direction, dtype):
    found = judged(exact, case_of(op, direction, dtype))
    assert found.passed
    assert all(found.errors[name] <= found.limits[name] / 2 for name in found.limits)


def forgets_eps(x, weight, bias, residual, eps):
    return x * x.square().mean(-1, keepdim=True).rsqrt() * weight


WRONG = {
    "zeros": lambda x, weight, bias, residual, eps: x * weight * 0,
    "no norm": lambda x, weight, bias, residual, eps: x * weight,
    "no weight": lambda x, weight, bias, residual, eps: F.rms_norm(x, weight.shape, None, eps) + 0 * weight,
    "layer norm instead": lambda x, weight, bias, residual, eps: F.layer_norm(x, weight.shape, weight, None, eps),
    "the sum, not the mean": lambda x, weight, bias, residual, eps: (
        x * x.square().sum(-1, keepdim=True).rsqrt() * weight
    ),
    "statistics of the first half": lambda x, weight, bias, residual, eps: (
        x * (x[..., : x.shape[-1] // 2].square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    ),
    "the last row left out": lambda x, weight, bias, residual, eps: torch.cat(
        [F.rms_norm(x[:-1], weight.shape, weight, eps), 0 * x[-1:] * weight]
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cols", [96, 16384])
def test_a_wrong_kernel_is_caught_on_short_and_wide_rows(name, direction, cols):
    assert not judged(WRONG[name], case_of(direction=direction, dtype="bfloat16", cols=cols)).passed


@pytest.mark.parametrize("place", [(-1,), (4000, -1)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_row_or_one_value_among_many_is_caught(place, direction):
    """A boundary that a kernel misses: too little to show in the norm of the whole."""
    case = case_of(direction=direction, dtype="bfloat16", rows=8192, cols=512)
    inputs = make_inputs(case, "cpu", 0)
    outputs = backend("onepass").prepare(case, inputs)()
    results = [result.clone() for result in (outputs if isinstance(outputs, tuple) else (outputs,))]
    assert check(case, inputs, tuple(results)).passed
    results[0][place] = 0.4
    found = check(case, inputs, tuple(results))
    assert not found.passed


def test_a_missing_eps_is_caught_where_it_counts():
    assert not judged(forgets_eps, case_of(eps=1e-2)).passed


def test_a_layer_norm_that_does_not_centre_is_caught_on_wide_rows():
    def uncentred(x, weight, bias, residual, eps):
        return F.rms_norm(x, weight.shape, weight, eps) + bias

    assert not judged(uncentred, case_of("layer_norm", dtype="bfloat16", cols=16384)).passed


def test_a_backward_that_forgets_the_sums_gradient_is_caught():
    def detached(x, weight, bias, residual, eps):
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, eps), (x + residual).detach() + 0 * total

    found = judged(detached, case_of("add_rms_norm", "backward"))
    assert found.errors["dx"] > found.limits["dx"] and found.errors["dweight"] <= found.limits["dweight"]


def test_fp16_arithmetic_is_not_taken_for_fp32():
    """Liger's casting mode "none", and every kernel that accumulates in its input's dtype."""

    def narrow(x, weight, bias, residual, eps):
        return (x.half() * (x.half().square().mean(-1, keepdim=True) + eps).rsqrt() * weight.half()).float()

    assert not judged(narrow, case_of()).passed


def test_weight_gradients_summed_in_bf16_are_caught():
    """PyTorch's own LayerNorm does that on a CPU, which is why the suite cpu has its backward in fp32."""
    case = case_of("layer_norm", "backward", "bfloat16", rows=512)
    inputs = make_inputs(case, "cpu", 0)
    dx, dweight, dbias = (result.clone() for result in backend("onepass").prepare(case, inputs)())
    assert check(case, inputs, (dx, dweight, dbias)).passed
    total = torch.zeros_like(dbias)
    for row in inputs.dy:
        total += row
    assert not check(case, inputs, (dx, dweight, total)).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_single_value_that_is_not_finite_never_passes(value, direction):
    case = case_of(direction=direction)
    inputs = make_inputs(case, "cpu", 0)
    outputs = backend("eager").prepare(case, inputs)()
    results = [result.clone() for result in (outputs if isinstance(outputs, tuple) else (outputs,))]
    results[0].view(-1)[7] = value
    found = check(case, inputs, tuple(results))
    name = "y" if direction == "forward" else "dx"
    assert not found.passed and found.errors[f"{name} has values that are not finite"] == 1
    json.dumps(asdict(found), allow_nan=False)


def _of(case):
    inputs = make_inputs(case, "cpu", 0)
    return inputs, F.rms_norm(inputs.x, inputs.weight.shape, inputs.weight, case.eps)


def test_wrong_shape_dtype_kind_and_number_are_named():
    case = case_of(dtype="bfloat16")
    inputs, y = _of(case)
    for outputs, message in [
        (y[:-1], "y has shape (23, 96), not (24, 96)"),
        (y.float(), "y has dtype torch.float32, not torch.bfloat16"),
        (y.to("meta"), "y has device meta, not cpu"),
        (None, "y is a NoneType, not a tensor"),
        ((y, y), "2 results, not 1: y"),
    ]:
        found = check(case, inputs, outputs)
        assert not found.passed and set(found.errors) == {message}


def test_a_result_in_the_memory_of_an_input_is_caught():
    case = case_of()
    inputs, y = _of(case)
    assert check(case, inputs, y).passed
    found = check(case, inputs, inputs.dy.copy_(y))
    assert not found.passed
    assert set(found.errors) == {"dy was overwritten", "y lies in the memory of dy"}


def test_a_kernel_that_writes_over_its_input_is_caught():
    def in_place(x, weight, bias, residual, eps):
        total = x.add_(residual)
        return F.rms_norm(total, weight.shape, weight, eps), total.clone()

    found = judged(in_place, case_of("add_rms_norm"))
    assert not found.passed and "x was overwritten" in found.errors


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", NORMS)
def test_chunks_of_rows_give_the_errors_of_the_whole(op, direction, monkeypatch):
    case = case_of(op, direction, layout="qkv", heads=2)
    whole = judged(exact, case)
    monkeypatch.setattr(gate, "CHUNK", 5 * 2 * 96)
    parts = judged(exact, case)
    assert parts.passed and parts.errors == pytest.approx(whole.errors) and parts.limits == pytest.approx(whole.limits)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("cols", [1, 2, 3])
def test_rows_so_short_that_the_gradient_cancels_are_not_called_incorrect(op, cols):
    assert judged(BACKWARD[op], case_of(op, "backward", cols=cols, rows=64)).passed


BACKWARD = {op: backend("onepass").norm(case_of(op)) for op in ("rms_norm", "layer_norm")}


def test_inputs_are_fresh_by_seed_and_rows_differ_in_mean_and_scale():
    case = case_of("add_rms_norm", dtype="float16", cols=4096)
    one, again, other = (make_inputs(case, "cpu", seed) for seed in (0, 0, 1))
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]) and not torch.equal(tensor, other.tensors()[name])
        assert tensor.count_nonzero() > 0.99 * tensor.numel()
    spread = one.x.float().std(-1)
    assert spread.max() > 2 * spread.min() and one.x.float().mean(-1).min() > 0.1
