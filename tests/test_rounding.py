"""Values are rounded where `cast` says, in every schedule: seen in fp16, which the interpreter rounds as a GPU does."""

from dataclasses import replace

import pytest
import torch

from cases import F16, F32, SCHEDULES, SHAPES, Case, assert_planned, call, explained, inputs_of, planned
from onepass import reference
from oracle import computed, expected, meant
from tolerance import OTHER_WAY, assert_rounded_alike, share_of_other_bits

HALF = Case(x=F16, weight=F16)
#: A case, and one that differs from it only in where it rounds. Their results must be told apart.
ORDERS = {
    "output, not llama": (HALF, {"cast": "llama"}),
    "llama, not output": (replace(HALF, options={"cast": "llama"}), {"cast": "output"}),
    "t5, not output": (replace(HALF, x=F32, options={"cast": "t5"}), {"cast": "output", "out_dtype": F16}),
    "none, not llama": (replace(HALF, options={"cast": "none"}), {"cast": "llama"}),
    "sum rounded after": (replace(HALF, residual=F16), {"round_residual": True}),
    "sum rounded before": (replace(HALF, residual=F16, options={"round_residual": True}), {"round_residual": False}),
}


def defined(case, inputs):
    norm, problem = meant(case, inputs)
    sum_dtype = case.options.get("residual_dtype")
    return reference.normalize(
        norm, inputs.x, inputs.weight, inputs.bias, inputs.residual, problem.y, sum_dtype
    )[0]  # fmt: skip


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_values_are_rounded_where_the_definition_rounds_them(schedule, order, op):
    case, otherwise = ORDERS[order]
    if op == "layer_norm" and case.options.get("cast") == "none":
        op = "rms_norm"  # the only one it is defined for
    case = case.of(op)
    inputs = inputs_of(case, *SHAPES[schedule])
    other = replace(case, options=case.options | otherwise)
    assert share_of_other_bits(defined(other, inputs), defined(case, inputs)) > 2 * OTHER_WAY, "cannot tell them apart"
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        assert_rounded_alike("y", call(case, inputs)[0], defined(case, inputs))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_weights_gradient_meets_the_rounded_x_hat(schedule):
    """dW is dy times what the weight was multiplied with. One row, so that nothing but that product is in it."""
    llama = replace(HALF, weight=F32, options={"cast": "llama", "out_dtype": F32})
    inputs = inputs_of(llama, 1, SHAPES[schedule][1])
    inputs.dy.fill_(1)
    with planned(schedule):
        dweight = computed(llama, inputs).dweight
    assert_rounded_alike("dweight", dweight.half(), expected(llama, inputs).dweight.half())
    assert share_of_other_bits(dweight, dweight.half().float()) == 0, "x̂ was not rounded"


def test_an_offset_is_added_in_fp32():
    """1 + w in fp16 would lose the low bits of a small w."""
    case = replace(HALF, options={"offset": 1.0})
    inputs = inputs_of(case, 5, 48)
    inputs.weight.mul_(1e-2)
    narrow = (1 + inputs.weight).float()
    x = inputs.x.float()
    wrong = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * narrow).half()
    y = call(case, inputs)[0]
    assert_rounded_alike("y", y, defined(case, inputs))
    assert share_of_other_bits(y, wrong) > OTHER_WAY
