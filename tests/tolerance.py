"""How far a result may lie from the exact one: the only place where that is decided, and it follows from the dtypes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

#: Units in the last place of the result's own dtype. Triton's interpreter cuts fp32 to bf16 off where a GPU rounds, so
#: a result may be one unit below the exact value, and the expected one is rounded itself.
RESULT_UNITS = 2
#: The same two units for each rounding to a narrow dtype on the way (x̂ of `cast="llama"`, the sum that is kept).
INNER_UNITS = 2
#: Units of fp32 for everything on the way that is fp32: row sums of some hundred terms, rsqrt, and the products.
FP32_UNITS = 16


def bound(expected: Tensor, magnitude: Tensor, dtype: torch.dtype, inner: Iterable[torch.dtype] = ()) -> Tensor:
    """The largest error allowed to a result in `dtype`.

    `magnitude` is the size of the terms that the result was summed from, because that is what their rounding errors
    scale with where they cancel; `inner` names a narrow dtype once for each rounding to it on the way.
    """
    info = torch.finfo(dtype)
    relative = FP32_UNITS * torch.finfo(torch.float32).eps + sum(INNER_UNITS * torch.finfo(d).eps for d in inner)
    subnormal_step = info.smallest_normal * info.eps
    return RESULT_UNITS * (info.eps * expected.abs() + subnormal_step) + relative * magnitude


def assert_close(
    name: str,
    actual: Tensor | None,
    expected: Tensor | None,
    magnitude: Tensor | float | None = None,
    inner: Iterable[torch.dtype] = (),
) -> None:
    """Same presence, shape, dtype, NaN and inf; everything else within `bound`. Magnitude is that of `expected`."""
    assert (actual is None) == (expected is None), f"{name}: {actual} where {expected} is expected"
    if actual is None or expected is None:
        return
    assert actual.shape == expected.shape, f"{name}: shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, not {expected.dtype}"
    dtype = actual.dtype
    actual, expected = actual.detach().double(), expected.detach().double()
    if magnitude is None:
        magnitude = expected.abs()
    magnitude = torch.as_tensor(magnitude, dtype=torch.float64).expand_as(expected)
    assert torch.equal(actual.isnan(), expected.isnan()), f"{name}: NaN where there should be none, or none where some"
    finite = expected.isfinite()
    whole = finite | expected.isnan()
    assert torch.equal(actual[~whole], expected[~whole]), f"{name}: infinities differ"
    error = (actual - expected)[finite].abs()
    allowed = bound(expected, magnitude, dtype, inner)[finite]
    worst = (error / allowed).max().item() if error.numel() else 0.0
    assert worst <= 1, f"{name}: {worst:.3g} times the error that {dtype} allows, at most {error.max().item():.3g}"


#: Values that may be rounded the other way: an fp32 error of a few units crosses a border between two fp16 numbers
#: about once in a thousand times.
OTHER_WAY = 0.01


def share_of_other_bits(actual: Tensor, expected: Tensor) -> float:
    return (actual != expected).double().mean().item()


def assert_rounded_alike(name: str, actual: Tensor, expected: Tensor) -> None:
    """Equal bits but for a few values that lie on a border. For fp16, which the interpreter rounds as a GPU does."""
    assert actual.dtype == expected.dtype == torch.float16
    share = share_of_other_bits(actual, expected)
    assert share <= OTHER_WAY, f"{name}: {share:.1%} of the values are rounded otherwise"
    unit = torch.finfo(torch.float16).eps * expected.double().abs() + torch.finfo(torch.float16).tiny
    assert ((actual.double() - expected.double()).abs() <= unit).all(), f"{name}: more than one unit away"
