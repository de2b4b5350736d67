"""The parts of an FP8 output: amax, the scale that follows from it, and the conversion. docs/fp8.md has the formulas.

Amax is a maximum in which NaN stays, and so may be taken in any order; and of values before they are rounded, because
rounding keeps their order: then it is amax that is rounded. The switches:

    ARITHMETIC    which of the equivalent formulas: "multiplier", "inverse", "scale" or "reciprocal"
    POWER_OF_TWO  round the scale up, or the multiplier down, to a power of two
    E8M0          scales are bytes: a biased exponent (then POWER_OF_TWO goes without saying)
    KIND          whose amax a scale is: "given" (nobody's), "row", "group"; "tensor" (which is known by then); or
                  "amax", where it is being found, and nothing is stored
    GROUP         how many columns share a scale
    ROUND         the dtype to which values are rounded before anything else, or None
    SWIZZLED      scales lie in the tiles that MX GEMMs read
"""

import triton
import triton.language as tl

from onepass.kernels.parts import INTERPRETED, WIDEN_BF16, narrowed

INFINITY_BITS = tl.constexpr(0x7F800000)
MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
MANTISSA_BITS = tl.constexpr(23)
MANTISSA = tl.constexpr(0x7FFFFF)
#: 2⁻¹²⁷, the smallest scale of E8M0, as a subnormal fp32 number; E8M0's NaN; a scale's byte and its inverse's, summed.
SMALLEST_E8M0 = tl.constexpr(0x400000)
E8M0_NAN = tl.constexpr(0xFF)
E8M0_INVERSE = tl.constexpr(254)
#: A scale is at least the smallest normal number, so that its inverse is finite; a multiplier at most the largest one.
SMALLEST_SCALE = tl.constexpr(1.1754943508222875e-38)
LARGEST_MULTIPLIER = tl.constexpr(3.4028234663852886e38)


@triton.jit
def full_like(like, value):
    """A number as a block of fp32, because a division by a bare number may become a product with its inverse."""
    return tl.where(like == like, value, value)


@triton.jit
def above(value, least):
    """The larger one; NaN stays."""
    return tl.maximum(value, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def below(value, most):
    return tl.minimum(value, most, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def within(values, m, MASKED: tl.constexpr):
    """Zero outside the row, where a bias or a mean may have left something."""
    if MASKED:
        return tl.where(m, values, 0.0)
    else:
        return values


@triton.jit
def amax_of(magnitudes, AXIS: tl.constexpr, ROUND: tl.constexpr):
    """The largest one along an axis, which stays, as a value of ROUND would be; NaN if there is one."""
    if INTERPRETED:  # which has a fast maximum, but not one in which NaN stays: bits order as magnitudes do
        bits = tl.max(magnitudes.to(tl.int32, bitcast=True), axis=AXIS, keep_dims=True)
        amax = bits.to(tl.float32, bitcast=True)
    else:
        amax = tl.reduce(magnitudes, AXIS, above, keep_dims=True)
    return rounded(amax, ROUND)


#: A true division for each of a tile's scales would be a third of all its instructions: they have a branch for what is
#: out of their range. Here nothing is, so these are the branches that would be taken: an approximation, which Newton's
#: step makes exact to the last bit.
INVERSE = tl.constexpr(
    "{ .reg .f32 near, negative, error; rcp.approx.ftz.f32 near, $1; neg.f32 negative, $1; "
    "fma.rn.f32 error, negative, near, 0f3F800000; fma.rn.f32 $0, near, error, near; }"
)


@triton.jit
def inverse_of(value):
    """1 / value, to the bits of a true division, of what lies between 2⁻¹²⁶ and 2¹²⁵; NaN stays."""
    if INTERPRETED:
        return tl.div_rn(full_like(value, 1.0), value)
    else:
        return tl.inline_asm_elementwise(INVERSE, "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def corrected(quotient, dividend, divisor, inverse_of_divisor):
    """A quotient that is all but right, made so by what it leaves."""
    return tl.fma(tl.fma(-quotient, divisor, dividend), inverse_of_divisor, quotient)


@triton.jit
def over_largest(amax, largest, inverse_of_largest):
    """amax / largest, to the bits of a true division."""
    if INTERPRETED:
        return tl.div_rn(amax, full_like(amax, largest))
    else:
        return corrected(amax * inverse_of_largest, amax, full_like(amax, largest), full_like(amax, inverse_of_largest))


#: Both sides of a division by amax are made so much smaller, since the inverse of a huge one would be subnormal.
SMALLER = tl.constexpr(2.0**-32)


@triton.jit
def largest_over(amax, largest):
    """largest / amax, to the bits of a true division, of an amax from 2⁻⁶⁰ on."""
    if INTERPRETED:
        return tl.div_rn(full_like(amax, largest), amax)
    else:
        divisor = amax * SMALLER
        dividend = full_like(amax, largest * SMALLER)
        inverse = inverse_of(divisor)
        return corrected(dividend * inverse, dividend, divisor, inverse)


@triton.jit
def steps_from(
    amax, floor, upper, largest, inverse_of_largest,
    BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr,
    E8M0: tl.constexpr,
):  # fmt: skip
    """From amax: the scale that is handed on, and the factor that values meet.

    What is not finite makes both NaN, and so its whole group. FLOORED: the floor is at least 2⁻⁶⁰.
    """
    # The plain multiplier of infinity is NaN by itself: its inverse is 0, and what is left of 1 then NaN.
    if INTERPRETED or BOUNDED or POWER_OF_TWO or not (FLOORED and ARITHMETIC == "multiplier"):
        amax = tl.where(amax < float("inf"), amax, float("nan"))
    lost = amax != amax
    if BOUNDED:
        amax = below(amax, upper)
    amax = above(amax, floor)
    if ARITHMETIC == "multiplier":
        if FLOORED:
            factor = largest_over(amax, largest)
        else:
            factor = below(tl.div_rn(full_like(amax, largest), amax), LARGEST_MULTIPLIER)
        if POWER_OF_TWO:
            exponent = factor.to(tl.int32, bitcast=True) >> MANTISSA_BITS
            factor = tl.where(lost, amax, (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True))
        if FLOORED:
            return inverse_of(factor), factor
        else:
            factor = tl.where(amax == 0.0, 1.0, factor)
            return tl.div_rn(full_like(factor, 1.0), factor), factor
    if ARITHMETIC == "reciprocal":
        scale = amax * inverse_of_largest
    else:
        scale = over_largest(amax, largest, inverse_of_largest)
    if E8M0:
        return e8m0_steps(scale)
    else:
        if POWER_OF_TWO:
            raw = scale.to(tl.int32, bitcast=True)
            exponent = (raw >> MANTISSA_BITS) + ((raw & MANTISSA) != 0).to(tl.int32)
            scale = tl.where(lost, scale, (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True))
        if not FLOORED:
            scale = tl.where(amax == 0.0, 1.0, above(scale, SMALLEST_SCALE))
        if ARITHMETIC == "scale":
            return scale, scale
        else:
            return scale, inverse_of(scale)


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
def scaled(values, factor, DIVIDES: tl.constexpr, CHECKED: tl.constexpr):
    """Values as they are converted. CHECKED: the factor is given, so what is not finite must be seen here."""
    if DIVIDES:
        result = tl.div_rn(values, full_like(values, factor))
    else:
        result = values * factor
    if CHECKED:
        # Nothing to a finite value, not even to a zero's sign; NaN to what is not.
        result += values * 0.0
    return result


@triton.jit
def clamped(values, largest):
    """Within the format; NaN stays."""
    return tl.clamp(values, -largest, largest, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def converted(values, factor, largest, FORMAT: tl.constexpr, DIVIDES: tl.constexpr, CHECKED: tl.constexpr):
    """To nearest even, saturating, which the GPU's own conversion does too; NaN stays."""
    result = scaled(values, factor, DIVIDES, CHECKED)
    if INTERPRETED:
        return converted_by_hand(clamped(result, largest), FORMAT)
    else:
        return result.to(FORMAT)


#: Four values to four bytes of a word, the first one lowest. It saturates, and NaN stays.
TO_E4M3 = tl.constexpr(
    """{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
    }"""
)
TO_E5M2 = tl.constexpr(
    """{
    .reg .b16 low, high;
    cvt.rn.satfinite.e5m2x2.f32 low, $2, $1;
    cvt.rn.satfinite.e5m2x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
    }"""
)


@triton.jit
def word_of(first, second, third, fourth, largest, FORMAT: tl.constexpr):
    """Four blocks of values, converted, as one block of words."""
    if INTERPRETED:
        word = byte_of(first, largest, FORMAT) | (byte_of(second, largest, FORMAT) << 8)
        return word | (byte_of(third, largest, FORMAT) << 16) | (byte_of(fourth, largest, FORMAT) << 24)
    elif FORMAT is tl.float8e5:
        return tl.inline_asm_elementwise(
            TO_E5M2, "=r,f,f,f,f", [first, second, third, fourth], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            TO_E4M3, "=r,f,f,f,f", [first, second, third, fourth], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def byte_of(values, largest, FORMAT: tl.constexpr):
    return converted_by_hand(clamped(values, largest), FORMAT).to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def converted_by_hand(values, FORMAT: tl.constexpr):
    """The same on integers, for the interpreter, whose own conversion loses a carry. Values are within the format."""
    E5M2: tl.constexpr = FORMAT is tl.float8e5
    MANTISSA: tl.constexpr = 2 if E5M2 else 3
    BIAS: tl.constexpr = 15 if E5M2 else 7
    SHIFT: tl.constexpr = 23 - MANTISSA
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE_BITS
    to_even = (1 << (SHIFT - 1)) - 1 + ((magnitude >> SHIFT) & 1)
    normal = ((magnitude + to_even) >> SHIFT) - ((127 - BIAS) << MANTISSA)
    # A subnormal is a whole number of the smallest one; adding 1.5 · 2²³ rounds to whole numbers, ties to even.
    units = tl.abs(values) * (1 << (BIAS - 1 + MANTISSA)) + 12582912.0
    subnormal = units.to(tl.int32, bitcast=True) - 0x4B400000
    code = tl.where(magnitude < ((128 - BIAS) << 23), subnormal, normal) | ((bits >> 24) & 0x80)
    return tl.where(magnitude > INFINITY_BITS, 0x7F, code).to(tl.uint8).to(FORMAT, bitcast=True)


#: Two values at once: left alone, the compiler rounds them one by one, with an instruction that is a quarter as fast
#: (235 us against 257 for tiles of 1 x 128 both ways, at 32,768 x 4,096).
PACK_BF16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
PACK_FP16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")
#: The same instruction, with nothing in the lower half: so it is the value in fp32 again.
ROUND_TO_BF16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $1, 0f00000000;")
ROUND_TO_FP16 = tl.constexpr("{ .reg .b16 half; cvt.rn.f16.f32 half, $1; cvt.f32.f16 $0, half; }")


@triton.jit
def widened(values):
    """In fp32."""
    if INTERPRETED or values.dtype is not tl.bfloat16:
        return values.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(WIDEN_BF16, "=f,=f,r", [values], dtype=tl.float32, is_pure=True, pack=2)


@triton.jit
def rounded(values, ROUND: tl.constexpr):
    """What is quantized, in fp32."""
    if INTERPRETED or ROUND is None or ROUND is tl.float32:
        return narrowed(values, ROUND)
    elif ROUND is tl.bfloat16:
        return tl.inline_asm_elementwise(ROUND_TO_BF16, "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise(ROUND_TO_FP16, "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def packed(values, ROUND: tl.constexpr):
    """What is quantized, in the dtype to which it is rounded."""
    if ROUND is not None:
        if INTERPRETED or ROUND is tl.float32:
            values = values.to(ROUND)
        elif ROUND is tl.bfloat16:
            values = tl.inline_asm_elementwise(
                PACK_BF16, "=r,f,f", [values], dtype=tl.bfloat16, is_pure=True, pack=2
            )  # fmt: skip
        else:
            values = tl.inline_asm_elementwise(
                PACK_FP16, "=r,f,f", [values], dtype=tl.float16, is_pure=True, pack=2
            )  # fmt: skip
    return values


@triton.jit
def factor_of_tensor(
    p_given, p_amax, p_scale, floor, upper, largest, inverse,
    KIND: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
):  # fmt: skip
    """What every value meets where the tensor has one scale: given, or from its amax. Other kinds have none as yet.

    The first program writes the scale that is handed on, unless it is the one that was given.
    """
    factor = 0.0
    if KIND == "given":
        given = tl.load(p_given)
        factor = given
        if ARITHMETIC == "inverse":
            factor = tl.div_rn(full_like(given, 1.0), given)
        if ARITHMETIC == "multiplier" and tl.program_id(0) == 0:
            tl.store(p_scale, tl.div_rn(full_like(given, 1.0), given))
    if KIND == "tensor":
        amax = tl.load(p_amax).to(tl.float32, bitcast=True)
        scale, factor = steps_from(
            amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, False
        )
        if tl.program_id(0) == 0:
            tl.store(p_scale, scale)
    return factor


@triton.jit
def merge_amax(p_amax, magnitudes, ROUND: tl.constexpr):
    """The order in which programs come does not matter to a maximum. Magnitudes order as their bits do, NaN above all.

    Most of them find a larger one there already: so they look first, since all changes of one word wait for each other.
    """
    top = tl.max(amax_of(amax_of(magnitudes, 1, ROUND), 0, ROUND).to(tl.int32, bitcast=True))
    if top > tl.load(p_amax, volatile=True):
        tl.atomic_max(p_amax, top, sem="relaxed")


@triton.jit
def scale_place(flat, group, scale_row, scale_group, SWIZZLED: tl.constexpr):
    """Where the scale of a group of a row lies. Swizzled, `scale_row` is the number of groups, padded."""
    if SWIZZLED:
        within = flat % 32 * 16 + flat % 128 // 32 * 4 + group % 4
        return flat // 128 * (scale_row * 128) + group // 4 * 512 + within
    else:
        return flat * scale_row + group * scale_group


@triton.jit
def store_quantized(
    p_q, o_q, p_scale, flat, scale_row, scale_group, values, m, m_row, first, cols, factor,
    floor, upper, largest, inverse, KIND: tl.constexpr, GROUP: tl.constexpr, BOUNDED: tl.constexpr,
    FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER_OF_TWO: tl.constexpr, E8M0: tl.constexpr,
    SWIZZLED: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """A block of rows from column `first` on. Groups are the block's own, which begins at one; `flat` numbers rows."""
    FORMAT: tl.constexpr = p_q.dtype.element_ty
    DIVIDES: tl.constexpr = ARITHMETIC == "scale"
    if KIND == "group":
        GROUPS: tl.constexpr = BLOCK // GROUP
        grouped = tl.reshape(values, (ROWS, GROUPS, GROUP))
        amax = amax_of(tl.abs(grouped), 2, None)
        scale, factor = steps_from(
            amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER_OF_TWO, E8M0
        )
        q = tl.reshape(converted(grouped, factor, largest, FORMAT, DIVIDES, False), (ROWS, BLOCK))
        group = first // GROUP + tl.arange(0, GROUPS)[None, :]
        o_scale = scale_place(flat, group, scale_row, scale_group, SWIZZLED)
        tl.store(p_scale + o_scale, tl.reshape(scale, (ROWS, GROUPS)), mask=m_row & (group * GROUP < cols))
    else:
        q = converted(values, factor, largest, FORMAT, DIVIDES, KIND == "given")
    if MASKED:
        tl.store(p_q + o_q, q, mask=m, eviction_policy=HINT)
    else:
        tl.store(p_q + o_q, q, eviction_policy=HINT)
