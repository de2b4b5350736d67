"""FP8 both ways on a real GPU: the transpose by its definition, and rows as they are without it."""

import pytest
import torch

import onepass
from gpu.exact import random_rows, random_weight
from gpu.fp8_kinds import KINDS, asked, assert_both_ways_as_defined, assert_same_but_for_a_nans_bits
from onepass.fp8 import definition


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_have_the_bits_of_the_definition(kind: str) -> None:
    assert_both_ways_as_defined(kind, (128, 1024))


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
