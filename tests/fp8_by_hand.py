"""FP8 by loops of its own, for the tests: table look-ups, exact fractions, one group at a time."""

import itertools
import math
from fractions import Fraction

import numpy as np
import torch

from cases import F32

INF, NAN = math.inf, math.nan
f32 = np.float32

# --- FP8 by table -------------------------------------------------------------------------------------------------

BITS = {"e4m3": (4, 3), "e5m2": (5, 2)}
NAN_BYTE, E8M0_NAN_BYTE = 0x7F, 0xFF


def decoded(byte, fmt):
    """The value of a non-negative byte; None for what is not finite."""
    exponents, mantissas = BITS[fmt]
    exponent, mantissa = byte >> mantissas, byte & (2**mantissas - 1)
    bias = 2 ** (exponents - 1) - 1
    if (fmt == "e4m3" and byte == 0x7F) or (fmt == "e5m2" and exponent == 2**exponents - 1):
        return None
    if exponent == 0:
        return math.ldexp(mantissa, 1 - bias - mantissas)
    return math.ldexp(2**mantissas + mantissa, exponent - bias - mantissas)


TABLES = {fmt: np.array([v for b in range(128) if (v := decoded(b, fmt)) is not None]) for fmt in BITS}
LARGEST = {fmt: float(table[-1]) for fmt, table in TABLES.items()}


def encoded(values, fmt):
    """Bytes of fp32 values: the nearest of the table, the even one of two. Exact, as fp64 holds every midpoint."""
    values = np.asarray(values, dtype=f32)
    table = TABLES[fmt]
    size = np.minimum(np.abs(np.nan_to_num(values, posinf=INF, neginf=-INF)).astype(np.float64), table[-1])
    above = np.searchsorted(table, size).clip(max=len(table) - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = table[above] - size, size - table[below]
    nearer = np.where(to_below < to_above, below, above)
    byte = np.where((to_below == to_above) & (above != below), np.where(above % 2 == 0, above, below), nearer)
    byte = np.where(np.signbit(values), byte | 0x80, byte)
    return np.where(np.isnan(values), NAN_BYTE, byte).astype(np.uint8)


# --- one group after the other ------------------------------------------------------------------------------------


def power_of_two(value, up):
    """By trial, with exact fractions; not below 2^-126 upwards."""
    exact = Fraction(float(value))
    exponent = -126 if up else 127
    if up:
        while Fraction(2) ** exponent < exact:
            exponent += 1
    else:
        while Fraction(2) ** exponent > exact:
            exponent -= 1
    return f32(math.ldexp(1.0, exponent))


def e8m0_byte(value):
    byte = 0
    while Fraction(2) ** (byte - 127) < Fraction(float(value)):
        byte += 1
    return byte


def group_by_hand(values, kind, fmt, arithmetic, floor, bound, pow2):
    """(bytes, scale) of the fp32 values that share a scale."""
    largest = f32(LARGEST[fmt])
    amax = f32(0)
    for value in values:
        if not np.isfinite(value):
            return np.full(len(values), NAN_BYTE, np.uint8), E8M0_NAN_BYTE if kind == "mx" else f32(NAN)
        amax = max(amax, abs(value))
    if bound is not None:
        amax = min(amax, f32(bound))
    amax = max(amax, f32(floor))
    with np.errstate(all="ignore"):
        if kind == "mx":
            byte = e8m0_byte(amax * (f32(1) / largest) if arithmetic == "reciprocal" else amax / largest)
            return encoded(values * f32(math.ldexp(1.0, 127 - byte)), fmt), byte
        if amax == 0:
            return encoded(values, fmt), f32(1)
        if arithmetic == "multiplier":
            multiplier = min(largest / amax, np.finfo(f32).max)
            multiplier = power_of_two(multiplier, up=False) if pow2 else multiplier
            return encoded(values * multiplier, fmt), f32(1) / multiplier
        scale = amax * (f32(1) / largest) if arithmetic == "reciprocal" else amax / largest
        scale = power_of_two(scale, up=True) if pow2 else max(scale, f32(2.0**-126))
        scaled = values / scale if arithmetic == "scale" else values * (f32(1) / scale)
        return encoded(scaled, fmt), scale


def rows_by_hand(rows, kind, fmt="e4m3", block=None, arithmetic="multiplier", floor=0.0, bound=None, pow2=False):
    """(bytes, scales) of a matrix, scales as a matrix of one column a group."""
    count, cols = rows.shape
    width = block or max(cols, 1)
    groups = 1 if block is None else -(-cols // block)
    data, scale = np.zeros((count, cols), np.uint8), np.zeros((count, groups), np.uint8 if kind == "mx" else f32)
    for row, group in itertools.product(range(count), range(groups)):
        place = slice(group * width, (group + 1) * width)
        data[row, place], scale[row, group] = group_by_hand(
            rows[row, place], kind, fmt, arithmetic, floor, bound, pow2
        )  # fmt: skip
    return data, scale


def numbers(tensor):
    """A tensor as numpy: FP8 and E8M0 as their bytes."""
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.to(F32).numpy()


def assert_same_bits(tensor, expected):
    actual = numbers(tensor)
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)  # NaN equals NaN
    if actual.dtype == f32:
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def sample(*shape, dtype=F32, seed=0):
    """Rows of very different size, so that a scale from the wrong row or group shows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return (values * torch.exp2(torch.randint(-20, 12, (*shape[:-1], 1), generator=generator).float())).to(dtype)


def ties(rows, seed=0):
    """Rows as near to the midpoints of E4M3 as fp32 allows, where the last bit of a product decides."""
    generator = torch.Generator().manual_seed(seed)
    amax = torch.rand(rows, 1, generator=generator) + 0.5
    midpoints = torch.from_numpy((TABLES["e4m3"][1:] + TABLES["e4m3"][:-1]) / 2).float()
    return torch.cat([amax, midpoints * (amax / 448)], dim=1)


def one(value):
    return torch.tensor([value], dtype=F32)


SIZES = [(0, 128), (1, 1), (1, 300), (5, 128), (127, 40), (129, 65)]
GROUPED = {
    "token": {"scaling": "token"},
    "block": {"scaling": "block"},
    "block of 64": {"scaling": "block", "block": 64},
    "mx": {"scaling": "mx"},
}
FLOOR = {"token": 1e-10, "block": 1e-10, "mx": 0.0}


def grouped_by_hand(rows, fp8):
    return rows_by_hand(
        rows, fp8.scaling, fp8.format, fp8.block, fp8.arithmetic, fp8.floor, fp8.upper_bound, fp8.power_of_two
    )
