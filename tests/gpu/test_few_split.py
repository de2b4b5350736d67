"""The backward of few wide rows, of which each program has the same columns (kernels/few_split.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import onepass
from gpu.cases import GLUON
from gpu.exact import DEVICE, assert_same_bits

pytestmark = pytest.mark.skipif(not GLUON, reason="this Triton has no Gluon")


def gradients(op: str, x: Tensor, weight: Tensor, dy: Tensor) -> list[Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    plan = onepass.explain(x, weight, op=op)
    assert plan.backward is not None and plan.backward.schedule == "few_split"
    y = getattr(onepass, op)(x, weight)
    return list(torch.autograd.grad(y, [x, weight], dy))


def random(*shape: int, seed: int) -> Tensor:
    made = torch.randn(shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))
    return made.to(torch.bfloat16)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("cols", [70_000, 70_001])
def test_heads_of_a_larger_tensor_are_done_as_a_copy_is(op: str, cols: int) -> None:
    whole, weight = random(3, 5, cols + 16 - cols % 2, seed=1), random(cols, seed=2)
    x, dy = whole[:, 1:, :cols], random(3, 4, cols, seed=3)
    dx, dweight = gradients(op, x, weight, dy)
    dx_of_copy, dweight_of_copy = gradients(op, x.clone(), weight, dy)
    assert_same_bits(dx, dx_of_copy)
    # Rows and heads are numbered otherwise, and summed in that order.
    torch.testing.assert_close(dweight, dweight_of_copy, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("cols", [65_544, 118_029])
def test_a_row_that_is_not_finite_is_none_of_the_others_business(op: str, cols: int) -> None:
    x, weight, dy = random(11, cols, seed=1), random(cols, seed=2), random(11, cols, seed=3)
    dx, dweight = gradients(op, x, weight, dy)
    spoilt = x.clone()
    spoilt[7, 4321] = float("nan")
    dy_spoilt = dy.clone()
    dy_spoilt[9, 77] = float("inf")
    dx_spoilt, dweight_spoilt = gradients(op, spoilt, weight, dy_spoilt)
    others = [row for row in range(11) if row not in (7, 9)]
    assert_same_bits(dx_spoilt[others], dx[others])
    assert dx_spoilt[7].isnan().all() and not dx_spoilt[9].isfinite().any()
    assert dweight_spoilt.isnan().all(), "a row without an rstd adds to each"
    assert dweight.isfinite().all()


def test_each_call_has_the_same_bits() -> None:
    x, weight, dy = random(16, 118_029, seed=1), random(118_029, seed=2), random(16, 118_029, seed=3)
    first = gradients("rms_norm", x, weight, dy)
    for _ in range(20):
        for found, expected in zip(gradients("rms_norm", x, weight, dy), first, strict=True):
            assert_same_bits(found, expected)
