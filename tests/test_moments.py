"""LayerNorm's moments found in one walk are as exact as with the mean first, wherever a pivot lies."""

import pytest
import torch

from cases import BF16, F16
from onepass.forward import Forward
from onepass.plan import in_force
from onepass.plan.tiles import Tile
from onepass.spec import Norm, Problem

EPS = 1e-6


def rows_of(cols, dtype):
    """Each row is hard on one of the ways to sum it."""
    x = torch.randn(8, cols)
    x[1] += 300  # far from zero, compared with how much it varies
    x[2, :32] = 1000  # all pivots of the first program's block are off
    x[3, ::8] = -500  # one value of each vector is
    x[4] = 7.25  # nothing varies
    x[5] *= 1e-3
    x[6, -1] = 3e4
    x[7] = torch.arange(cols) % 2 * 2.0 - 1.0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("cols", [128, 136])
def test_moments_in_one_walk(cols, dtype):
    x = rows_of(cols, dtype)
    with in_force.override(
        at_once_from=1, centred_forward_tiles=(Tile(512, 1, 1, block=32),), odd_centred_forward_tiles=()
    ):
        call = Forward(Norm(True, EPS), Problem(*x.shape[:1], 1, cols, dtype, dtype, None, None, None, None), x, None)
        assert call.plan().at_once == 8 and call.plan().blocks > 3
        _, _, mean, rstd = call(x, None, None, None, True)
    wide = x.double()
    var, expected = torch.var_mean(wide, dim=1, correction=0)
    spread = (var + EPS).sqrt()
    assert ((mean - expected).abs() <= 1e-6 * (expected.abs() + spread)).all()
    assert (rstd * spread - 1).abs().max() <= 2e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen(value):
    x = torch.randn(3, 128, dtype=BF16)
    x[1, 100] = value
    with in_force.override(at_once_from=1, centred_forward_tiles=(Tile(512, 1, 1, block=32),)):
        call = Forward(Norm(True, EPS), Problem(3, 1, 128, BF16, BF16, None, None, None, None), x, None)
        y, *_ = call(x, None, None, None, False)
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()
