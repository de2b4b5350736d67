"""The gate on FP8: every right way to quantize passes, and what is wrong by more than rounding does not."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

import onepass
from onepass.fp8.presets import SCALINGS
from onepass.lab import fp8_gate, gate
from onepass.lab.backends import Backend, _norm_fp8, backend
from onepass.lab.data.case import DTYPES, FP8_OPS, Case
from onepass.lab.gate import check
from onepass.lab.inputs import make_inputs

#: Groups that are short in both directions: 300 is no multiple of 128 or 32.
ROWS, COLS = 200, 300
GROUPED = ("block", "mx")


def case_of(scaling="token", op="rms_norm_fp8", columnwise=True, dtype="bfloat16", **more):
    shape = more.pop("rows", ROWS), more.pop("cols", COLS)
    return Case(op, "forward", *shape, dtype, scaling=scaling, columnwise=columnwise, **more)


def judged(kernel, case):
    """What the gate says of kernel(x, weight, bias, residual, eps, quantize), run as a backend."""
    inputs = make_inputs(case, "cpu", 0)
    return check(case, inputs, Backend("mine", lambda case: kernel).prepare(case, inputs)())


def changed(change, case):
    """What the gate says of the right result after `change(q)`, which gives another Quantized."""
    return judged(lambda *arguments: change(_norm_fp8(*arguments)), case)


def bytes_of(tensor):
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("op", FP8_OPS)
def test_quantizing_the_exact_result_passes_and_every_result_is_looked_at(op, scaling, dtype):
    def exact(x, weight, bias, residual, eps, quantize):
        wide = (each if each is None else each.double() for each in (x, weight, bias, residual))
        x64, weight, bias, residual = wide
        total = x64 if residual is None else x64 + residual
        centred = total if bias is None else total - total.mean(-1, keepdim=True)
        y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
        y = (y if bias is None else y + bias).float()
        return onepass.fp8.definition.quantize(y, quantize, x.dtype, residual=None if residual is None else total.to(x))

    found = judged(exact, case_of(scaling, op, dtype=dtype))
    assert found.passed, found
    seen = {"q worst value", "scale worst", "q_t worst value", "scale_t worst"}
    seen |= {"amax"} if scaling == "delayed" else set()
    seen |= {"sum", "sum worst row", "sum worst value"} if op == "add_rms_norm_fp8" else set()
    assert set(found.errors) == seen


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_sum_that_is_rounded_before_it_is_normalized_is_admitted(scaling):
    def rounded(x, weight, bias, residual, eps, quantize):
        return onepass.rms_norm(x, weight, eps=eps, residual=residual, round_residual=True, quantize=quantize)

    assert judged(rounded, case_of(scaling, "add_rms_norm_fp8")).passed


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cols", [1, 2, 33])
@pytest.mark.parametrize("op", FP8_OPS)
def test_few_rows_and_columns_are_not_called_incorrect(op, rows, cols):
    for scaling in SCALINGS:
        found = judged(_norm_fp8, case_of(scaling, op, dtype="float32", rows=rows, cols=cols))
        assert found.passed, (scaling, found)


def no_weight(x, weight, bias, residual, eps, quantize):
    return _norm_fp8(x, torch.ones_like(weight), bias, residual, eps, quantize)


def no_norm(x, weight, bias, residual, eps, quantize):
    return onepass.fp8.definition.quantize(x * weight, quantize)


def statistics_of_the_first_half(x, weight, bias, residual, eps, quantize):
    rstd = (x[..., : x.shape[-1] // 2].float().square().mean(-1, keepdim=True) + eps).rsqrt()
    return onepass.fp8.definition.quantize(x.float() * rstd * weight, quantize, x.dtype)


def three_per_cent_more(x, weight, bias, residual, eps, quantize):
    return _norm_fp8(x, weight.float() * 1.03, bias, residual, eps, quantize)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("kernel", [no_weight, no_norm, statistics_of_the_first_half, three_per_cent_more])
def test_a_wrong_norm_is_caught_although_fp8_is_coarse(kernel, scaling):
    for columnwise in (False, True):
        assert not judged(kernel, case_of(scaling, columnwise=columnwise)).passed


#: Changes to a right result that leave its shapes and dtypes alone; a scale of two powers more is exact in E8M0 too.
WRONG = {
    "scale twice as large": lambda q: replace(q, scale=(q.scale.float() * 2).to(q.scale.dtype)),
    "scale half as large": lambda q: replace(q, scale=(q.scale.float() / 2).to(q.scale.dtype)),
    "column scale twice as large": lambda q: replace(q, scale_t=(q.scale_t.float() * 2).to(q.scale_t.dtype)),
    "a step of q": lambda q: replace(q, data=(bytes_of(q.data) ^ 1).view(q.data.dtype)),
    "columns reversed": lambda q: replace(q, data=bytes_of(q.data).flip(-1).view(q.data.dtype)),
    "a transpose in the old order": lambda q: replace(
        q, data_t=bytes_of(q.data).reshape(q.data_t.shape).view(q.data.dtype)
    ),
    "a row late in the transpose": lambda q: replace(q, data_t=bytes_of(q.data_t).roll(1, -1).view(q.data.dtype)),
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_scale_and_a_wrong_transpose_are_caught(name, scaling):
    assert changed(lambda q: q, case_of(scaling)).passed
    assert not changed(WRONG[name], case_of(scaling)).passed


@pytest.mark.parametrize("scaling", ["tensor", "token", "block", "mx"])
def test_a_scale_that_wastes_range_is_caught_though_the_values_are_near(scaling):
    """Large values are as near as before; what is lost is the range below them."""

    def wasteful(x, weight, bias, residual, eps, quantize):
        q = _norm_fp8(x, weight, bias, residual, eps, quantize)
        return replace(
            q, data=(q.data.float() / 4).to(q.data.dtype), scale=(q.scale.float() * 4).to(q.scale.dtype)
        )  # fmt: skip

    found = judged(wasteful, case_of(scaling, columnwise=False))
    assert found.errors["scale worst"] > 1 and not found.passed


@pytest.mark.parametrize("scaling", GROUPED)
@pytest.mark.parametrize("way", ["scale", "scale_t"])
def test_a_shifted_group_is_caught_whichever_way_it_runs(way, scaling):
    def shifted(q):
        scale = getattr(q, way).float().roll(1, -1).to(getattr(q, way).dtype)
        return replace(q, **{way: scale})

    assert not changed(shifted, case_of(scaling)).passed


@pytest.mark.parametrize(("data", "scale"), [("data", "scale"), ("data_t", "scale_t")])
def test_groups_that_begin_elsewhere_are_caught(data, scale):
    """Values and scales fit one another, but the first group has 64 values: not the groups that a GEMM takes."""

    def displaced(x, weight, bias, residual, eps, quantize):
        y = onepass.rms_norm(x, weight, eps=eps)
        values = y if data == "data" else y.t()
        parts = [onepass.quantize(part.contiguous(), quantize) for part in (values[:, :64], values[:, 64:])]
        bytes_, scales = torch.cat([bytes_of(part.data) for part in parts], -1), [part.scale for part in parts]
        q = _norm_fp8(x, weight, bias, residual, eps, quantize)
        return replace(q, **{data: bytes_.view(q.data.dtype), scale: torch.cat(scales, -1)})

    found = judged(displaced, case_of("block", rows=320, cols=300))
    assert not found.passed and not any("shape" in name for name in found.errors)


@pytest.mark.parametrize("place", [(0, 0), (-1, -1), (130, 129)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_one_byte_among_many_is_caught(place, scaling):
    def spoilt(q):
        data = bytes_of(q.data).clone()
        data[place] ^= 0x80 if data[place] & 0x7F else 0x40
        return replace(q, data=data.view(q.data.dtype))

    assert not changed(spoilt, case_of(scaling)).passed


@pytest.mark.parametrize("merged", [0.0, 100.0, math.nan, math.inf])
def test_delayed_scaling_must_merge_its_amax(merged):
    def careless(x, weight, bias, residual, eps, quantize):
        q = _norm_fp8(x, weight, bias, residual, eps, quantize)
        quantize.amax.fill_(merged)
        return q

    found = judged(careless, case_of("delayed"))
    assert {name for name in found.errors if not found.errors[name] <= found.limits[name]} == {"amax"}
    json.dumps(asdict(found), allow_nan=False)


def test_the_amax_of_one_backend_does_not_stand_in_for_anothers():
    case = case_of("delayed")
    inputs = make_inputs(case, "cpu", 0)
    assert check(case, inputs, backend("eager").prepare(case, inputs)()).passed

    def without_amax(x, weight, bias, residual, eps, quantize):
        return _norm_fp8(x, weight, bias, residual, eps, replace(quantize, amax=torch.zeros(())))

    assert not check(case, inputs, Backend("mine", lambda case: without_amax).prepare(case, inputs)()).passed


def right(case):
    inputs = make_inputs(case, "cpu", 0)
    return inputs, backend("onepass").prepare(case, inputs)()


def test_wrong_shape_dtype_kind_and_place_are_named():
    case = case_of("block", "add_rms_norm_fp8", rows=24)
    inputs, q = right(case)
    for outputs, message in [
        (replace(q, data=q.data[:-1]), "q has shape (23, 300), not (24, 300)"),
        (replace(q, data=q.data.float()), "q has dtype torch.float32, not torch.float8_e4m3fn"),
        (replace(q, scale=q.scale[:, :1]), "scale has shape (24, 1), not (24, 3)"),
        (replace(q, scale=q.scale.double()), "scale has dtype torch.float64, not torch.float32"),
        (replace(q, scale=-q.scale), "scale has values that are not positive"),
        (replace(q, scale=q.scale / 0), "scale has values that are not finite"),
        (replace(q, data_t=None), "q_t is a NoneType, not a tensor"),
        (replace(q, data_t=q.data.t()), "q_t is not dense, but has strides (1, 300)"),
        (replace(q, scale_t=q.scale_t.t()), "scale_t has shape (1, 300), not (300, 1)"),
        (replace(q, residual=None), "sum is a NoneType, not a tensor"),
        (replace(q, residual=inputs.residual), "sum lies in the memory of residual"),
        ((q.data, q.scale), "the result is a tuple, not a Quantized"),
    ]:
        found = check(case, inputs, outputs)
        assert not found.passed and message in found.errors, found
        json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_nan_is_never_taken_for_a_value(scaling):
    def spoilt(q):
        data = bytes_of(q.data).clone()
        data[3, 5] = 0x7F
        return replace(q, data=data.view(q.data.dtype))

    found = changed(spoilt, case_of(scaling))
    assert not found.passed and found.errors["q has values that are not finite"] == 1


@pytest.mark.parametrize(("scaling", "name"), [("static", "scale"), ("delayed", "multiplier")])
def test_what_is_given_may_be_handed_on_and_not_be_written(scaling, name):
    def overwriting(x, weight, bias, residual, eps, quantize):
        getattr(quantize, name).mul_(2)
        return _norm_fp8(x, weight, bias, residual, eps, quantize)

    assert judged(_norm_fp8, case_of(scaling)).passed
    assert f"given {name} was overwritten" in judged(overwriting, case_of(scaling)).errors


def test_a_kernel_that_writes_over_its_input_is_caught():
    def in_place(x, weight, bias, residual, eps, quantize):
        return _norm_fp8(x, weight, bias, residual.add_(1), eps, quantize)

    assert "residual was overwritten" in judged(in_place, case_of(op="add_rms_norm_fp8")).errors


def test_a_wrong_sum_is_caught():
    found = changed(lambda q: replace(q, residual=q.residual * 1.02), case_of(op="add_rms_norm_fp8"))
    assert found.errors["sum"] > found.limits["sum"] and found.errors["q worst value"] <= 1


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("more", [{}, {"layout": "qkv", "heads": 2, "rows": 600}])
def test_chunks_of_rows_give_the_errors_of_the_whole(scaling, more, monkeypatch):
    case = case_of(scaling, "add_rms_norm_fp8", **more)
    whole = judged(_norm_fp8, case)
    monkeypatch.setattr(gate, "CHUNK", 1)
    parts = judged(_norm_fp8, case)
    assert parts.passed and parts.errors == pytest.approx(whole.errors) and parts.limits == pytest.approx(whole.limits)
    spoilt = changed(lambda q: replace(q, data_t=bytes_of(q.data_t).roll(1, -1).view(q.data.dtype)), case)
    assert spoilt.errors["q_t worst value"] > 1


def test_half_a_step_is_that_of_every_number_of_e4m3():
    numbers = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float().double()
    steps = numbers.diff()
    assert torch.equal(fp8_gate._half_step(numbers[:-1]), steps / 2)


def test_no_value_of_the_labs_inputs_saturates_by_what_is_given():
    for op in FP8_OPS:
        case = case_of("static", op, columnwise=False, rows=4096, cols=1024)
        inputs = make_inputs(case, "cpu", 0)
        q = _norm_fp8(inputs.x, inputs.weight, inputs.bias, inputs.residual, case.eps, inputs.quantize)
        assert q.data.float().abs().max() < 448
