"""inplace_backward: dx over dy, the same numbers, and nowhere else."""

from dataclasses import replace

import pytest
import torch

import onepass
from cases import BF16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, explained, inputs_of, planned, random
from onepass.plan import in_force
from oracle import assert_results, computed

#: With few rows some programs read dy while others would be writing over it.
OVERWRITING = [name for name in SCHEDULES if name != "few"]


def inplace(case):
    return replace(case, options=case.options | {"inplace_backward": True})


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", OVERWRITING)
def test_writing_dx_over_dy_changes_no_gradient(schedule, op):
    case = Case(op, x=BF16, bias=F32, residual=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        expected = computed(case, inputs)
        results = computed(inplace(case), replace(inputs, dy=inputs.dy.clone()))
    for name, result in vars(expected).items():
        assert torch.equal(getattr(results, name), result), name


@pytest.mark.parametrize("schedule", OVERWRITING)
def test_dx_takes_the_memory_of_dy_when_asked(schedule):
    x, weight = random(*SHAPES[schedule]).requires_grad_(), random(SHAPES[schedule][1]).requires_grad_()
    dy = random(*x.shape)
    with planned(schedule):
        assert_planned(schedule, onepass.explain(x, weight, inplace_backward=True))
        y = onepass.rms_norm(x, weight, inplace_backward=True)
        (dx,) = torch.autograd.grad(y, x, dy)
    assert dx.data_ptr() == dy.data_ptr()


def test_few_rows_are_not_written_over_while_they_are_read(launches):
    x, weight = random(*SHAPES["few"]).requires_grad_(), random(SHAPES["few"][1]).requires_grad_()
    with planned("few"):
        for inplace_backward in (False, True):
            onepass.rms_norm(x, weight, inplace_backward=inplace_backward).sum().backward()
    backward = [launch.kernel for launch in launches if "backward" in launch.kernel]
    assert backward == ["few_backward", "tile_backward"]


@pytest.mark.parametrize("op", OPS)
def test_dy_is_left_alone_by_default(op):
    x, weight = random(3, 48).requires_grad_(), random(48).requires_grad_()
    dy = random(3, 48)
    before = dy.clone()
    getattr(onepass, op)(x, weight).backward(dy)
    assert torch.equal(dy, before)
    assert x.grad.data_ptr() != dy.data_ptr()


@pytest.mark.parametrize("reduce", ["sum of all", "sum over rows", "mean over columns"])
def test_an_expanded_gradient_is_not_written_over(reduce):
    """The gradient of a sum is one row, or one number, that stands for many: dx does not fit into that."""
    case = inplace(Case(bias=F32))
    dy = {
        "sum of all": torch.tensor(0.5).expand(5, 48),
        "sum over rows": random(48).expand(5, 48),
        "mean over columns": random(5, 1).expand(5, 48),
    }[reduce]
    before = dy.clone()
    assert_results(case, replace(inputs_of(case, 5, 48), dy=dy))
    assert torch.equal(dy, before)


def test_a_strided_gradient_is_written_over_where_it_lies():
    case = inplace(Case())
    wide = random(5, 60)
    inputs = replace(inputs_of(case, 5, 48), dy=wide[:, :48])
    before = wide.clone()
    # By the same plan: few rows have one of their own if nothing is written over; and from a copy that lies alike: rows
    # that begin on 8 bytes have another tile than those that begin on 16.
    with in_force.override(few_rows=0):
        expected = computed(Case(), replace(inputs, dy=wide.clone()[:, :48]))
        results = computed(case, inputs)
    assert torch.equal(results.dx, expected.dx) and torch.equal(results.dweight, expected.dweight)
    assert torch.equal(wide[:, 48:], before[:, 48:])
