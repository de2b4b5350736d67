"""Rows whose sums are exact in fp32, distances in units in the last place, and the tolerances that follow."""

from __future__ import annotations

import torch
from torch import Tensor

#: Forwards with the bits of another schedule, which is that of few rows.
AS_OTHERS = {"odd": "tile", "flat": "tile", "threads": "tile", "odd_split": "split"}

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

#: One unit in the last place of fp32, relative.
EPS32 = torch.finfo(torch.float32).eps

#: What the row sum's order may do to a value, in units of EPS32: two products round (1), rsqrt is an approximation
#: (1), and rstd takes half of what the sum lost in chains of up to 64 additions and a tree over them (about sqrt(64)
#: half units if roundings are random, so 2 of these). Doubled.
FREEDOM = 8

#: Of all elements of a 16-bit result, the share that the order of the row sum may not touch.
EQUAL_SHARE = 0.999

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_BITS[tensor.dtype])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also true for NaN beside the same NaN, and false for 0.0 beside -0.0."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def assert_same_bits(got: Tensor, expected: Tensor) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    different = bits(got) != bits(expected)
    count = int(different.sum())
    first = different.nonzero()[0].tolist() if count else None
    assert not count, (
        f"{count} of {different.numel()} elements differ in their bits, by up to {int(ulps(got, expected).max())} ulp; "
        f"the first at {first}: {got[tuple(first)].item()!r}, expected {expected[tuple(first)].item()!r}"
    )


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """How many values of their dtype lie between two tensors' elements; 0.0 and -0.0 are the same place."""
    return (_place(a) - _place(b)).abs()


def _place(tensor: Tensor) -> Tensor:
    """Floating-point numbers on a line of integers: neighbours are one apart, order is kept."""
    pattern = bits(tensor).to(torch.int64)
    magnitude = pattern & torch.iinfo(_BITS[tensor.dtype]).max
    return torch.where(pattern < 0, -magnitude, magnitude)


def assert_equal_but_for_row_sums(got: Tensor, expected: Tensor, *, cancelled: Tensor | None = None) -> None:
    """16-bit results of one formula whose row sums were added up in two orders.

    `cancelled` is the size of the terms where a difference of terms may come out near zero (LayerNorm's x - mean, a
    bias): a few fp32 units of those are then many ulps of the result, and are allowed for.
    """
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert bool(got.isfinite().all()), "not finite, or never written"
    distance = ulps(got, expected)
    share = (distance == 0).double().mean().item()
    assert share >= EQUAL_SHARE, f"only {share:.4%} of the elements have equal bits"
    too_far = distance > 1
    if cancelled is not None:
        too_far &= (got.double() - expected.double()).abs() > FREEDOM * EPS32 * cancelled.double()
    assert not bool(too_far.any()), (
        f"{int(too_far.sum())} elements are more than one ulp away, up to {int(distance[too_far].max())} ulp"
    )


def assert_within_fp32_freedom(got: Tensor, wide: Tensor, *, cancelled: Tensor | None = None) -> None:
    """An fp32 result beside its fp64 value: each element within FREEDOM units of its own size, or of its terms'."""
    assert got.dtype == torch.float32 and got.shape == wide.shape
    size = wide.abs() if cancelled is None else wide.abs() + cancelled.double()
    worst = ((got.double() - wide).abs() / size.clamp_min(torch.finfo(torch.float32).tiny)).max().item() / EPS32
    assert worst <= FREEDOM, f"{worst:.1f} fp32 units from the fp64 value, not within {FREEDOM}"


def term_size(y: Tensor, bias: Tensor | None = None) -> Tensor:
    """How large the terms were whose difference an element is: the row's largest result, and the bias."""
    size = y.detach().float().abs().amax(-1, keepdim=True)
    return size if bias is None else size + bias.detach().float().abs()


def exact_rows(rows: int, cols: int, dtype: torch.dtype, *, centred: bool = False, seed: int = 0) -> Tensor:
    """Small whole numbers: in any order, the sum of a row's squares is a whole number below 2²⁴.

    `centred`: neighbours are m + d and m - d, m of the row's own, so that the row and every even slice of it has the
    mean m exactly, and the squared deviations are such whole numbers too.
    """
    assert 49 * cols < 2**24
    generator = torch.Generator(DEVICE).manual_seed(seed)
    whole = torch.randint(-3, 4, (rows, cols), generator=generator, device=DEVICE, dtype=torch.int32)
    if centred:
        pairs = cols // 2
        whole[:, 1 : 2 * pairs : 2] = -whole[:, 0 : 2 * pairs : 2]
        whole[:, 2 * pairs :] = 0
        whole += torch.randint(-4, 5, (rows, 1), generator=generator, device=DEVICE, dtype=torch.int32)
    return whole.to(dtype)


def random_rows(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def random_weight(*shape: int, dtype: torch.dtype, seed: int = 100) -> Tensor:
    """Around one, of either sign now and then, and nowhere zero: an exact zero would hide what it multiplies."""
    weight = 1 + 0.5 * random_rows(*shape, dtype=torch.float32, seed=seed)
    return torch.where(weight.abs() < 0.01, 0.01, weight).to(dtype)
