"""RMSNorm and LayerNorm stand in for torch.nn's: same arguments, same parameters, same numbers."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import onepass
from cases import BF16, F32, random
from tolerance import assert_close

PAIRS = [(onepass.RMSNorm, nn.RMSNorm), (onepass.LayerNorm, nn.LayerNorm)]
pairs = pytest.mark.parametrize(("ours", "torchs"), PAIRS, ids=["RMSNorm", "LayerNorm"])


def randomized(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def assert_same_numbers(ours, torchs, x):
    expected = torchs(x)
    size = expected.detach().double().abs().amax() + 1
    assert_close("y", ours(x), expected, size if expected.dtype == F32 else size / 2)


@pairs
def test_constructors_begin_as_those_of_torch(ours, torchs):
    theirs = list(inspect.signature(torchs.__init__).parameters.values())
    mine = list(inspect.signature(ours.__init__).parameters.values())
    assert [(p.name, p.kind, p.default) for p in mine[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]
    assert [(p.name, p.kind) for p in mine[len(theirs) :]] == [
        ("offset", inspect.Parameter.KEYWORD_ONLY),
        ("cast", inspect.Parameter.KEYWORD_ONLY),
        ("quantize", inspect.Parameter.KEYWORD_ONLY),
    ]
    assert issubclass(ours, torchs)


@pairs
@pytest.mark.parametrize("shape", [48, (48,), [4, 48], torch.Size([2, 4, 6])])
def test_checkpoints_load_both_ways(ours, torchs, shape):
    mine, theirs = randomized(ours(shape)), randomized(torchs(shape))
    assert list(mine.state_dict()) == list(theirs.state_dict())
    x = random(3, *mine.normalized_shape)
    mine.load_state_dict(theirs.state_dict())
    assert_same_numbers(mine, theirs, x)
    randomized(mine)
    theirs.load_state_dict(mine.state_dict())
    assert_same_numbers(mine, theirs, x)


@pairs
def test_a_fresh_layer_does_nothing_to_a_normalized_row(ours, torchs):
    assert_same_numbers(ours(48), torchs(48), random(3, 48))
    for mine, theirs in zip(ours(48).parameters(), torchs(48).parameters(), strict=True):
        assert torch.equal(mine, theirs) and mine.requires_grad


@pairs
def test_without_parameters_there_is_nothing_to_learn(ours, torchs):
    mine, theirs = ours(48, elementwise_affine=False), torchs(48, elementwise_affine=False)
    assert list(mine.parameters()) == [] and list(mine.state_dict()) == []
    assert mine.weight is None
    assert_same_numbers(mine, theirs, random(3, 48))


def test_layer_norm_without_a_bias():
    mine, theirs = randomized(onepass.LayerNorm(48, bias=False)), nn.LayerNorm(48, bias=False)
    assert list(mine.state_dict()) == ["weight"] and mine.bias is None
    theirs.load_state_dict(mine.state_dict())
    assert_same_numbers(mine, theirs, random(3, 48))


@pairs
def test_positional_arguments_mean_what_they_mean_in_torch(ours, torchs):
    mine, theirs = ours(48, 1e-3, False), torchs(48, 1e-3, False)
    assert (mine.eps, mine.elementwise_affine) == (theirs.eps, theirs.elementwise_affine) == (1e-3, False)
    assert ours(48, dtype=BF16).weight.dtype == BF16
    assert ours(48, device="meta").weight.is_meta


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0])
def test_eps_none_is_the_eps_of_torch(dtype, scale):
    """On rows so small that eps decides the result."""
    x = (random(3, 48) * scale).to(dtype)
    mine, theirs = onepass.RMSNorm(48, dtype=dtype), nn.RMSNorm(48, dtype=dtype)
    assert mine.eps is None
    assert_same_numbers(mine, theirs, x)
    assert_close("relative", mine(x) / theirs(x), torch.ones_like(x))


@pairs
def test_gradients_are_those_of_torch(ours, torchs):
    mine = randomized(ours((4, 12)))
    theirs = torchs((4, 12))
    theirs.load_state_dict(mine.state_dict())
    x, dy = random(5, 4, 12), random(5, 4, 12)
    gradients = []
    for layer in (mine, theirs):
        leaf = x.clone().requires_grad_()
        layer(leaf).backward(dy)
        gradients.append([leaf.grad, *(parameter.grad for parameter in layer.parameters())])
    for mine_grad, their_grad in zip(*gradients, strict=True):
        assert_close("gradient", mine_grad, their_grad, their_grad.double().abs().amax() * 4)


@pairs
@pytest.mark.parametrize("shape", [(48,), (4, 12)])
def test_a_residual_comes_back_as_the_sum(ours, torchs, shape):
    layer, plain = ours(shape), torchs(shape)
    x, residual = random(3, *shape), random(3, *shape)
    y, total = layer(x, residual)
    assert torch.equal(total, x + residual) and y.shape == total.shape == x.shape
    assert_same_numbers(lambda s: y, plain, x + residual)
    y_named, _ = layer(x, residual=residual)
    assert torch.equal(y_named, y)


@pytest.mark.parametrize("ours", [onepass.RMSNorm, onepass.LayerNorm])
def test_an_offset_moves_the_start_and_not_the_result(ours):
    layer = ours(48, offset=1.0)
    assert not layer.weight.any()
    x = random(3, 48)
    assert torch.equal(layer(x), ours(48)(x))
    layer.reset_parameters()
    assert not layer.weight.any()
    assert ours(48, elementwise_affine=False, offset=1.0)(x).shape == x.shape


@pytest.mark.parametrize("ours", [onepass.RMSNorm, onepass.LayerNorm])
def test_cast_reaches_the_kernel(ours, launches):
    layer, x = ours(48, cast="llama", dtype=BF16), random(3, 48, dtype=BF16)
    layer(x)
    assert launches[0].constants["X_HAT"] == BF16


@pairs
def test_repr_says_what_torch_says_and_more(ours, torchs):
    text = repr(ours((4, 48), eps=1e-3, offset=1.0, cast="llama"))
    assert text.startswith(repr(torchs((4, 48), eps=1e-3))[:-1])
    assert "offset=1," in text and "cast='llama'" in text


@pytest.mark.parametrize("ours", [onepass.RMSNorm, onepass.LayerNorm])
def test_copies_and_pickles_are_the_same_layer(ours):
    layer = randomized(ours(48, offset=0.5, cast="llama"))
    x = random(3, 48)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)):
        assert (twin.offset, twin.cast) == (0.5, "llama")
        assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("ours", [onepass.RMSNorm, onepass.LayerNorm])
def test_a_layer_moves_to_another_dtype(ours):
    layer = ours(48).to(BF16)
    assert layer(random(3, 48, dtype=BF16)).dtype == BF16
