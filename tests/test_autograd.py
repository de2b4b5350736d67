"""onepass among PyTorch's autograd: finite differences, hooks, checkpoints, graphs that are walked twice."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import onepass
from cases import BF16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, call, explained, inputs_of, planned, random
from onepass import handover


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_predict_small_steps(schedule, op):
    """The loss a step away is the loss plus gradient times step: no reference needed for that."""
    case = Case(op, bias=F32, residual=F32)
    inputs = inputs_of(case, *SHAPES[schedule])

    def loss(tensors):
        y, total = call(case, tensors)
        return (y * inputs.dy).sum(dtype=torch.float64) + (total * inputs.dsum).sum(dtype=torch.float64)

    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        leaves = inputs.leaves()
        loss(leaves).backward()
        names = ("x", "weight", "bias", "residual")
        steps = {name: 1e-2 * torch.randn_like(getattr(inputs, name)) for name in names}
        sides = []
        for sign in (1, -1):
            moved = inputs.leaves()
            for name in names:
                setattr(moved, name, getattr(inputs, name) + sign * steps[name])
            sides.append(loss(moved))
    predicted = sum((getattr(leaves, name).grad.double() * steps[name]).sum() for name in names)
    # A central difference is off by a third derivative, step², and by fp32 rounding, eps / step.
    torch.testing.assert_close((sides[0] - sides[1]) / 2, predicted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_a_graph_may_be_walked_twice(op):
    case = Case(op, x=BF16, bias=F32, residual=BF16)
    inputs = inputs_of(case, 3, 48)
    leaves = inputs.leaves()
    y, total = call(case, leaves)
    wanted = (leaves.x, leaves.weight, leaves.bias, leaves.residual)
    first = torch.autograd.grad((y, total), wanted, (inputs.dy, inputs.dsum), retain_graph=True)
    second = torch.autograd.grad((y, total), wanted, (inputs.dy, inputs.dsum))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, leaves.x, inputs.dy)


def test_gradients_add_up_over_two_backward_passes():
    x, weight = random(3, 48).requires_grad_(), random(48).requires_grad_()
    dy = random(3, 48)
    onepass.rms_norm(x, weight).backward(dy)
    once = x.grad.clone(), weight.grad.clone()
    onepass.rms_norm(x, weight).backward(dy)
    assert torch.equal(x.grad, 2 * once[0]) and torch.equal(weight.grad, 2 * once[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_has_the_same_gradients(reentrant):
    x, weight, residual = random(3, 48).requires_grad_(), random(48).requires_grad_(), random(3, 48).requires_grad_()

    def block(x, weight, residual):
        y, total = onepass.rms_norm(x, weight, residual=residual)
        return y.tanh() + total

    dy = random(3, 48)
    wanted = (x, weight, residual)
    plain = torch.autograd.grad(block(*wanted), wanted, dy)
    checkpoint(block, *wanted, use_reentrant=reentrant).backward(dy)
    for expected, leaf in zip(plain, wanted, strict=True):
        assert torch.equal(leaf.grad, expected)


def test_saved_tensors_go_through_hooks():
    """As offloading to the CPU does: what is saved is packed, and comes back as another tensor of the same values."""
    x, weight = random(3, 48).requires_grad_(), random(48).requires_grad_()
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.clone()):
        y = onepass.layer_norm(x, weight)
    y.sum().backward()
    assert sorted(packed) == sorted([x.shape, weight.shape, (3,), (3,)])
    expected = torch.autograd.grad(onepass.layer_norm(x, weight).sum(), (x, weight))
    assert torch.equal(x.grad, expected[0]) and torch.equal(weight.grad, expected[1])


def test_hooks_that_return_another_layout_are_read_right():
    x = random(3, 2, 48).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor,
        lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.dim() == 3 else tensor,
    ):
        y = onepass.rms_norm(x)
    dy = random(3, 2, 48)
    y.backward(dy)
    assert torch.equal(x.grad, torch.autograd.grad(onepass.rms_norm(x), x, dy)[0])


def test_a_saved_tensor_that_was_written_over_is_noticed():
    x = random(3, 48).requires_grad_()
    h = x * 1
    y = onepass.rms_norm(h)
    h.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_without_gradients_have_no_history():
    y, total = onepass.rms_norm(random(3, 48), random(48), residual=random(3, 48))
    assert not y.requires_grad and not total.requires_grad
    with torch.inference_mode():
        assert onepass.rms_norm(random(3, 48).requires_grad_()).is_inference()


@pytest.mark.parametrize("op", OPS)
def test_a_second_derivative_is_refused_in_words(op):
    """A silent zero, or a gradient without history, would be a wrong gradient penalty."""
    x, weight = random(3, 48).requires_grad_(), random(48).requires_grad_()
    y = getattr(onepass, op)(x, weight)
    dx, dweight = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
    for first in (dx, dweight):
        with pytest.raises(RuntimeError, match=r"^onepass has no second derivative on a GPU: .*CPU.*torch\.nn"):
            first.square().sum().backward(retain_graph=True)


@pytest.mark.parametrize("op", OPS)
def test_create_graph_alone_does_no_harm(op):
    x, weight, dy = random(3, 48).requires_grad_(), random(48).requires_grad_(), random(3, 48)
    plain = torch.autograd.grad(getattr(onepass, op)(x, weight), (x, weight), dy)
    graphed = torch.autograd.grad(getattr(onepass, op)(x, weight), (x, weight), dy, create_graph=True)
    for one, other in zip(plain, graphed, strict=True):
        assert torch.equal(one, other)


def test_autocast_leaves_dtypes_alone():
    x, weight = random(3, 48, dtype=BF16), random(48)
    with torch.autocast("cpu", dtype=BF16):
        assert onepass.rms_norm(x.float(), weight).dtype == F32
        assert onepass.rms_norm(x, weight).dtype == BF16


def test_a_first_call_in_inference_mode_leaves_nothing_behind():
    """What outputs are made from is kept from then on, and must serve calls that record a graph as well."""
    handover._element.cache_clear()
    x, weight, residual = random(5, 56).requires_grad_(), random(56).requires_grad_(), random(5, 56, dtype=BF16)
    with torch.inference_mode():
        onepass.layer_norm(x, weight, residual=residual)
    y, total = onepass.layer_norm(x, weight, residual=residual)
    assert not y.is_inference() and not total.is_inference()
    (y.sum() + total.sum()).backward()
    assert x.grad is not None and not x.grad.is_inference() and weight.grad is not None
