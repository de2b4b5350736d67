"""FP8 both ways on a real GPU where tiles are not full, where rows are walked, and with a residual and a mean."""

import pytest
import torch

import onepass
from gpu.exact import assert_same_bits, random_rows, random_weight
from gpu.fp8_kinds import BF16, asked, assert_both_ways_as_defined, assert_quantized_as_defined


#: Each kernel takes the compiler a second, so that not every kind meets every shape both ways.
@pytest.mark.parametrize("shape", [(517, 2880), (129, 1001), (5, 20000)], ids=str)
@pytest.mark.parametrize("kind", ["delayed", "tensor", "token", "block", "mx, te"])
def test_tiles_that_are_not_full_have_the_bits_of_the_definition(kind: str, shape: tuple[int, int]) -> None:
    assert_both_ways_as_defined(kind, shape)


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
