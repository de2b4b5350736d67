"""From amax to a scale and to what values are multiplied with: each formula, one IEEE operation after the other.

Written so that a kernel can give the same bits: everything is fp32, every division is IEEE's and between tensors (by a
Python number, PyTorch multiplies with the reciprocal on a GPU), and powers of two are made of exponent bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from onepass.fp8.spec import Fp8

LARGEST_FP32 = torch.finfo(torch.float32).max

#: A scale is at least the smallest normal number, so that its inverse is finite.
SMALLEST_SCALE = 2.0**-126

#: fp32: eight bits of exponent above 23 of mantissa.
MANTISSA_BITS, MANTISSA, EXPONENT = 23, 0x7FFFFF, 0xFF

#: 2⁻¹²⁷, the smallest scale of E8M0, is subnormal in fp32: this mantissa under an exponent of 0.
SMALLEST_E8M0 = 0x400000

#: E8M0's byte for NaN; it has no infinity. And the sum of the bytes of a scale and its inverse.
E8M0_NAN, E8M0_INVERSE = 0xFF, 254


class Steps(NamedTuple):
    """What a group is quantized with: `factor` multiplies its values, or divides them; `scale` is handed on."""

    scale: Tensor
    factor: Tensor
    divides: bool = False


def given_steps(fp8: Fp8) -> Steps:
    """For the kinds "static" and "delayed". The scale that is handed on has no dimensions."""
    if fp8.multiplier is not None:
        multiplier = fp8.multiplier.detach().reshape(())
        return Steps(torch.ones_like(multiplier) / multiplier, multiplier)
    assert fp8.scale is not None
    return _applied(fp8.scale.detach().reshape(()), fp8)


def steps_from(amax: Tensor, fp8: Fp8) -> Steps:
    """For the kinds that look at the values; `amax` has an element for each group."""
    # No infinity goes on from here: its group is NaN as a whole, where 448 / inf would make it a group of zeros.
    amax = torch.where(amax < math.inf, amax, math.nan)
    if fp8.upper_bound is not None:
        amax = torch.minimum(amax, _constant(fp8.upper_bound, amax))
    amax = torch.maximum(amax, _constant(fp8.floor or 0.0, amax))
    if fp8.scaling == "mx":
        return _e8m0_steps(_amax_over_largest(amax, fp8))
    one = torch.ones_like(amax)
    if fp8.arithmetic == "multiplier":
        multiplier = _constant(fp8.largest, amax) / amax
        multiplier = torch.minimum(multiplier, _constant(LARGEST_FP32, amax))
        if fp8.power_of_two:
            multiplier = power_of_two_below(multiplier)
        multiplier = torch.where(amax == 0, one, multiplier)
        return Steps(one / multiplier, multiplier)
    scale = _amax_over_largest(amax, fp8)
    if fp8.power_of_two:
        scale = power_of_two_above(scale)
    scale = torch.maximum(scale, _constant(SMALLEST_SCALE, amax))
    return _applied(torch.where(amax == 0, one, scale), fp8)


def power_of_two_below(value: Tensor) -> Tensor:
    """The largest power of two that is not above a positive normal number: its exponent alone."""
    exponent = value.view(torch.int32) >> MANTISSA_BITS
    return torch.where(value.isnan(), value, (exponent << MANTISSA_BITS).view(torch.float32))


def power_of_two_above(value: Tensor) -> Tensor:
    """The smallest power of two that is not below a positive number; 2⁻¹²⁶ for a subnormal one."""
    bits = value.view(torch.int32)
    exponent = (bits >> MANTISSA_BITS) + ((bits & MANTISSA) != 0).to(torch.int32)
    return torch.where(value.isnan(), value, (exponent << MANTISSA_BITS).view(torch.float32))


def _e8m0_steps(scale: Tensor) -> Steps:
    """The scale rounded up to a power of two, as its biased exponent in a byte, and the inverse as fp32.

    Byte 0 is 2⁻¹²⁷: its inverse 2¹²⁷ is the largest that occurs, and amax / 448 is too small to reach 2¹²⁷ itself.
    """
    bits = scale.view(torch.int32)
    exponent, mantissa = bits >> MANTISSA_BITS, bits & MANTISSA
    above = torch.where(exponent == 0, mantissa > SMALLEST_E8M0, mantissa != 0)
    byte = exponent + above.to(torch.int32)
    inverse = ((E8M0_INVERSE - byte) << MANTISSA_BITS).view(torch.float32)
    byte = torch.where(scale.isnan(), E8M0_NAN, byte)
    inverse = torch.where(scale.isnan(), scale, inverse)
    return Steps(byte.to(torch.uint8).view(torch.float8_e8m0fnu), inverse)


def _amax_over_largest(amax: Tensor, fp8: Fp8) -> Tensor:
    largest = _constant(fp8.largest, amax)
    if fp8.arithmetic == "reciprocal":
        return amax * (torch.ones_like(largest) / largest)
    return amax / largest


def _applied(scale: Tensor, fp8: Fp8) -> Steps:
    if fp8.arithmetic == "scale":
        return Steps(scale, scale, divides=True)
    return Steps(scale, torch.ones_like(scale) / scale)


def _constant(value: float, like: Tensor) -> Tensor:
    """A number as fp32, so that no operation rounds it in a way of its own."""
    return torch.full((), value, dtype=torch.float32, device=like.device)
