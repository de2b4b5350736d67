"""FP8 both ways on a real GPU: the transpose by its definition, and rows as they are without it."""

import pytest
import torch

import onepass
from gpu.exact import assert_same_bits, random_rows, random_weight
from gpu.fp8_kinds import BF16, KINDS, asked, assert_quantized_as_defined, assert_same_but_for_a_nans_bits
from onepass.fp8 import definition

#: Each kernel takes the compiler a second, so that not every kind meets every shape both ways.
BOTH_WAYS = [(kind, (128, 1024)) for kind in KINDS] + [
    (kind, shape)
    for kind in ("delayed", "tensor", "token", "block", "mx, te")
    for shape in ((517, 2880), (129, 1001), (5, 20000))
]


@pytest.mark.parametrize(("kind", "shape"), BOTH_WAYS, ids=str)
def test_both_ways_have_the_bits_of_the_definition(kind: str, shape: tuple[int, int]) -> None:
    x, weight = random_rows(*shape, dtype=BF16), random_weight(shape[1], dtype=BF16)
    q = onepass.rms_norm(x, weight, quantize=asked(kind, columnwise=True))
    assert_quantized_as_defined(q, asked(kind, columnwise=True))
    alone = onepass.rms_norm(x, weight, quantize=asked(kind))
    for name in ("data", "scale", "unquantized"):  # rows as they are without the transpose
        got, expected = (getattr(one, name).contiguous().reshape(-1).view(torch.uint8) for one in (q, alone))
        assert torch.equal(got, expected), name


@pytest.mark.parametrize("kind", ["token", "block"])
def test_both_ways_with_a_residual_and_a_mean(kind: str) -> None:
    x, residual = (random_rows(517, 2880, dtype=BF16, seed=seed) for seed in (0, 1))
    weight, bias = random_weight(2880, dtype=BF16), random_rows(2880, dtype=BF16, seed=2)
    q = onepass.layer_norm(x, weight, bias, residual=residual, quantize=asked(kind, columnwise=True))
    assert_quantized_as_defined(q, asked(kind, columnwise=True))
    y, total = onepass.layer_norm(x, weight, bias, residual=residual)
    assert q.unquantized is not None and q.residual is not None
    torch.testing.assert_close(q.unquantized, y, rtol=2**-7, atol=2**-9)
    assert_same_bits(q.residual, total)


@pytest.mark.parametrize("norm", [onepass.rms_norm, onepass.layer_norm])
@pytest.mark.parametrize("rows", [1, 127, 130, 131, 258])
def test_no_nan_is_taken_for_a_missing_statistic(rows: int, norm) -> None:
    """Columns wait for the rows' statistics, whose bits are all ones until they are there."""
    x, weight = random_rows(rows, 256, dtype=torch.float32), random_weight(256, dtype=torch.float32)
    x[rows // 2] = float("inf")
    x.view(torch.int32)[-1, 3] = -1
    x.view(torch.int32)[0] = -1
    q = norm(x, weight, quantize=asked("block", columnwise=True))
    assert_same_but_for_a_nans_bits(q, definition.quantize(q.unquantized, asked("block", columnwise=True)))
