"""The parts of an FP8 output: amax, the scale that follows from it, and the conversion. docs/fp8.md has the formulas.

Amax is taken on the bits as integers: magnitudes order like their bits, with infinity and then NaN above them, so one
maximum serves all, in any order. The switches:

    ARITHMETIC    which of the equivalent formulas: "multiplier", "inverse", "scale" or "reciprocal"
    POWER_OF_TWO  round the scale up, or the multiplier down, to a power of two
    E8M0          scales are bytes: a biased exponent (then POWER_OF_TWO goes without saying)
"""

import triton
import triton.language as tl

INFINITY_BITS = tl.constexpr(0x7F800000)
MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
MANTISSA_BITS = tl.constexpr(23)
MANTISSA = tl.constexpr(0x7FFFFF)
#: 2⁻¹²⁷, the smallest scale of E8M0, as a subnormal fp32 number; E8M0's NaN; the sum of a scale's byte and its inverse's.
SMALLEST_E8M0 = tl.constexpr(0x400000)
E8M0_NAN = tl.constexpr(0xFF)
E8M0_INVERSE = tl.constexpr(254)
#: A scale is at least the smallest normal number, so that its inverse is finite; a multiplier at most the largest one.
SMALLEST_SCALE = tl.constexpr(1.1754943508222875e-38)
LARGEST_MULTIPLIER = tl.constexpr(3.4028234663852886e38)


@triton.jit
def bits_of_magnitude(values):
    return values.to(tl.int32, bitcast=True) & MAGNITUDE_BITS


@triton.jit
def full_like(like, value):
    """A number as a block of fp32, because a division by a bare number may become a product with its inverse."""
    return tl.zeros_like(like) + value


@triton.jit
def steps_from(
    bits, floor, upper, largest, inverse_of_largest,
    BOUNDED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr,
):  # fmt: skip
    """From the bits of amax: the scale that is handed on, and the factor that values meet.

    What is not finite makes both NaN, and so its whole group.
    """
    amax = tl.where(bits < INFINITY_BITS, bits, MAGNITUDE_BITS).to(tl.float32, bitcast=True)
    lost = amax != amax
    if BOUNDED:
        amax = tl.where(lost, amax, tl.minimum(amax, upper))
    amax = tl.where(lost, amax, tl.maximum(amax, floor))
    if ARITHMETIC == "multiplier":
        factor = tl.div_rn(full_like(amax, largest), amax)
        factor = tl.where(lost, amax, tl.minimum(factor, LARGEST_MULTIPLIER))
        if POWER_OF_TWO:
            exponent = factor.to(tl.int32, bitcast=True) >> MANTISSA_BITS
            factor = tl.where(lost, amax, (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True))
        factor = tl.where(amax == 0.0, 1.0, factor)
        return tl.div_rn(full_like(factor, 1.0), factor), factor
    if ARITHMETIC == "reciprocal":
        scale = amax * inverse_of_largest
    else:
        scale = tl.div_rn(amax, full_like(amax, largest))
    if E8M0:
        return e8m0_steps(scale)
    else:
        if POWER_OF_TWO:
            raw = scale.to(tl.int32, bitcast=True)
            exponent = (raw >> MANTISSA_BITS) + ((raw & MANTISSA) != 0).to(tl.int32)
            scale = tl.where(lost, scale, (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True))
        scale = tl.where(lost, scale, tl.maximum(scale, SMALLEST_SCALE))
        scale = tl.where(amax == 0.0, 1.0, scale)
        if ARITHMETIC == "scale":
            return scale, scale
        else:
            return scale, tl.div_rn(full_like(scale, 1.0), scale)


@triton.jit
def e8m0_steps(scale):
    """The scale rounded up to a power of two, as a byte, and its inverse in fp32."""
    raw = scale.to(tl.int32, bitcast=True)
    exponent = raw >> MANTISSA_BITS
    mantissa = raw & MANTISSA
    above = tl.where(exponent == 0, mantissa > SMALLEST_E8M0, mantissa != 0)
    byte = exponent + above.to(tl.int32)
    inverse = ((byte * -1 + E8M0_INVERSE) << MANTISSA_BITS).to(tl.float32, bitcast=True)
    lost = scale != scale
    return tl.where(lost, E8M0_NAN, byte).to(tl.uint8), tl.where(lost, scale, inverse)


@triton.jit
def converted(values, factor, largest, FORMAT: tl.constexpr, DIVIDES: tl.constexpr, CHECKED: tl.constexpr):
    """To nearest even, saturating; NaN stays. CHECKED: the factor is given, so what is not finite must be seen here."""
    if DIVIDES:
        scaled = tl.div_rn(values, full_like(values, factor))
    else:
        scaled = values * factor
    scaled = tl.clamp(scaled, -largest, largest, propagate_nan=tl.PropagateNan.ALL)
    if CHECKED:
        scaled = tl.where(bits_of_magnitude(values) < INFINITY_BITS, scaled, float("nan"))
    return scaled.to(FORMAT)
