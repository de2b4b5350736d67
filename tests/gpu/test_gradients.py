"""Gradients are as close to the truth as PyTorch's own, when that accumulates in fp32."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import onepass
from gpu.cases import CASES, PLAIN, Case, Run, differentiated, on_schedule, ours, tensors_of, widened
from onepass.reference import normalize
from onepass.spec import Norm

#: Our error may be so many times that of the PyTorch version: the two add up in different orders.
ROOM = 1.25
#: Below half a unit in the last place of fp32, in which both accumulate, an error says nothing.
FLOOR = torch.finfo(torch.float32).eps / 2


def error(gradient: Tensor, truth: Tensor) -> float:
    return ((gradient.double() - truth).norm() / truth.norm()).item()


def defined(norm: Norm, wide: torch.dtype) -> Run:
    return lambda *tensors: normalize(norm, *tensors, wide=wide)


def from_the_returned_sum(norm: Norm) -> Norm:
    """The version to compare with keeps for its backward what ours keeps: the returned sum, and nothing beside it.

    That matters for a 16-bit sum which was normalized before it was rounded (docs/semantics.md, Gradients); with an
    fp32 sum, or none, this is the norm itself.
    """
    return replace(norm, round_residual=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_as_good_as_torchs(case: Case) -> None:
    tensors = tensors_of(case)
    with on_schedule(case, tensors) as plan:
        got = differentiated(ours(case), tensors)
    # fp64 leaves: nothing is rounded to 16 bits on the way, in no cast.
    truth = differentiated(defined(plan.norm, torch.float64), widened(tensors))
    theirs = differentiated(defined(from_the_returned_sum(plan.norm), torch.float32), tensors)

    assert got.keys() == truth.keys() == theirs.keys()
    for name, true in truth.items():
        assert (got[name].dtype, got[name].shape) == (theirs[name].dtype, theirs[name].shape), name
        assert bool(got[name].isfinite().all()), f"{name} is not finite, or was never written"
        mine, best = error(got[name], true), error(theirs[name], true)
        assert mine <= ROOM * best + FLOOR, f"{name}: an error of {mine:.3g}, where torch's is {best:.3g}"


@pytest.mark.parametrize("shape", [(4099, 128), (1031, 1024), (523, 4088)], ids=str)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_a_weight_of_more_bits_than_the_rows_has_gradients_as_good(op: str, shape: tuple[int, int]) -> None:
    """It lies over threads as the rows do, several of which a program has."""
    case = Case("wide weight", op, "tile", shape, torch.bfloat16, bias=op == "layer_norm")
    tensors = tensors_of(case)
    tensors = tensors._replace(
        weight=tensors.weight.float(), bias=None if tensors.bias is None else tensors.bias.float()
    )
    with on_schedule(case, tensors) as plan:
        got = differentiated(ours(case), tensors)
    assert plan.backward is not None and (plan.backward.schedule, plan.backward.rows > 1) == ("tile", True), str(plan)
    truth = differentiated(defined(plan.norm, torch.float64), widened(tensors))
    theirs = differentiated(defined(plan.norm, torch.float32), tensors)
    for name, true in truth.items():
        mine, best = error(got[name], true), error(theirs[name], true)
        assert mine <= ROOM * best + FLOOR, f"{name}: an error of {mine:.3g}, where torch's is {best:.3g}"


@pytest.mark.parametrize("frozen", ["x", "weight"])
@pytest.mark.parametrize("name", ["block rows", "split"])
def test_a_frozen_tensor_changes_nothing_for_the_other(name: str, frozen: str) -> None:
    case = PLAIN[name]
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        both = differentiated(ours(case), tensors)
        leaves = {"x": tensors.x.clone(), "weight": tensors.weight.clone()}
        wanted = next(name for name in leaves if name != frozen)
        leaves[wanted].requires_grad_()
        (gradient,) = torch.autograd.grad(onepass.rms_norm(**leaves), leaves[wanted], tensors.dy)
    # Another kernel, and for split rows another schedule, may round otherwise by a unit of the dtype.
    torch.testing.assert_close(gradient, both[f"d{wanted}"])
