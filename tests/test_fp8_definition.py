"""The definition of FP8 outputs against loops of its own: table look-ups, exact fractions, one group at a time."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from cases import BF16, F16, F32
from onepass.fp8 import Fp8, Quantized
from onepass.fp8.definition import quantize, transpose_fp8

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


# --- kinds with groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", BITS)
@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("size", SIZES)
def test_groups_have_the_bits_of_the_loops_both_ways(kind, fmt, size):
    fp8 = Fp8(**GROUPED[kind], format=fmt, columnwise=True)
    assert fp8.floor == FLOOR[fp8.scaling]
    y = sample(*size, dtype=BF16)
    q = quantize(y, fp8)
    data, scale = grouped_by_hand(numbers(y), fp8)
    assert_same_bits(q.data, data)
    assert_same_bits(q.scale, scale)
    # A row's scale goes with the row; groups are made anew, down the columns.
    data, scale = (data.T, scale.T) if fp8.block is None else grouped_by_hand(numbers(y).T, fp8)
    assert_same_bits(q.data_t, data)
    assert_same_bits(q.scale_t, scale)
    assert q.data_t.is_contiguous()


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("arithmetic", ["multiplier", "inverse", "scale", "reciprocal"])
@pytest.mark.parametrize("scaling", ["tensor", "token", "block"])
def test_each_arithmetic_has_its_own_bits(scaling, arithmetic, pow2):
    fp8 = Fp8(scaling, arithmetic=arithmetic, power_of_two=pow2, floor=1e-3, upper_bound=2.0)
    for y in (sample(23, 200), ties(40)):
        q = quantize(y, fp8)
        rows = numbers(y).reshape(1, -1) if scaling == "tensor" else numbers(y)
        data, scale = grouped_by_hand(rows, fp8)
        assert_same_bits(q.data, data.reshape(y.shape))
        assert_same_bits(q.scale, scale.reshape(q.scale.shape))


def test_the_ways_to_compute_do_differ():
    """Or the test above would show nothing."""
    y = ties(40)
    results = {a: quantize(y, Fp8("token", arithmetic=a)) for a in ("multiplier", "inverse", "scale", "reciprocal")}
    for first, second in itertools.combinations(results.values(), 2):
        data = torch.equal(first.data.view(torch.uint8), second.data.view(torch.uint8))
        assert not (data and torch.equal(first.scale, second.scale))


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=70),
    kind=st.sampled_from(list(GROUPED)),
    fmt=st.sampled_from(list(BITS)),
    floor=st.sampled_from([0.0, 1e-10, 1.0]),
    pow2=st.booleans(),
    arithmetic=st.sampled_from(["multiplier", "inverse", "scale", "reciprocal"]),
)
def test_any_row_of_fp32_has_the_bits_of_the_loops(values, kind, fmt, floor, pow2, arithmetic):
    options = dict(GROUPED[kind], format=fmt)
    if kind == "mx":
        options["arithmetic"] = "reciprocal" if arithmetic == "reciprocal" else "inverse"
    else:
        options |= {"floor": floor, "power_of_two": pow2, "arithmetic": arithmetic}
    fp8 = Fp8(**options)
    y = torch.tensor([values], dtype=F32)
    q = quantize(y, fp8)
    data, scale = grouped_by_hand(numbers(y), fp8)
    assert_same_bits(q.data, data)
    assert_same_bits(q.scale, scale)


def test_every_bf16_amax_gives_the_same_power_of_two_by_division_and_by_reciprocal():
    """So the conventions that divide and those that multiply with 1/448 agree for bf16 rows, in UE8M0 and in MX."""
    y = torch.arange(1, 0x7F80, dtype=torch.int32).to(torch.int16).view(BF16)[:, None]
    for options in ({"scaling": "mx"}, {"scaling": "block", "power_of_two": True, "floor": 0.0}):
        divided = quantize(y, Fp8(**options, arithmetic="inverse"))
        multiplied = quantize(y, Fp8(**options, arithmetic="reciprocal"))
        assert torch.equal(divided.scale.float(), multiplied.scale.float())
        assert torch.equal(divided.data.float(), multiplied.data.float())


# --- kinds with one scale -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", BITS)
@pytest.mark.parametrize("size", [(0, 8), (1, 1), (129, 65), (3, 5, 7)])
def test_a_tensor_has_one_scale_and_its_transpose_shares_it(fmt, size):
    y = sample(*size, dtype=F16)
    q = quantize(y, Fp8("tensor", format=fmt, columnwise=True))
    data, scale = rows_by_hand(numbers(y).reshape(1, -1), "tensor", fmt)
    assert_same_bits(q.data, data.reshape(size))
    assert_same_bits(q.scale, scale.reshape(()))
    assert_same_bits(q.data_t, data.reshape(-1, size[-1]).T)
    assert q.scale_t is q.scale
    assert q.amax == (y.float().abs().max() if y.numel() else 0)


@pytest.mark.parametrize("fmt", BITS)
def test_a_given_scale_divides_and_is_handed_on(fmt):
    y, scale = sample(9, 40, dtype=BF16), one(0.37)
    q = quantize(y, Fp8("static", format=fmt, scale=scale))
    assert_same_bits(q.data, encoded(numbers(y) * (f32(1) / f32(0.37)), fmt))
    assert q.scale == scale and q.amax is None and q.data_t is None
    q = quantize(y, Fp8("static", format=fmt, scale=scale, arithmetic="scale"))
    assert_same_bits(q.data, encoded(numbers(y) / f32(0.37), fmt))
    q = quantize(y, Fp8("static", format=fmt, multiplier=scale))
    assert_same_bits(q.data, encoded(numbers(y) * f32(0.37), fmt))
    assert q.scale == f32(1) / f32(0.37)


def test_delayed_scaling_takes_the_unrounded_result_and_merges_its_amax():
    y, amax = sample(9, 40), one(1.0)
    fp8 = Fp8("delayed", multiplier=one(0.37), amax=amax, also_unquantized=True)
    q = quantize(y, fp8, BF16)
    assert_same_bits(q.data, encoded(numbers(y) * f32(0.37), "e4m3"))
    assert q.amax is amax and amax == y.abs().max() > 1
    assert not torch.equal(amax, y.to(BF16).float().abs().max().reshape(1))
    assert q.unquantized.dtype == BF16 and torch.equal(q.unquantized, y.to(BF16))
    before = amax.clone()
    quantize(y / 2, fp8)
    assert torch.equal(amax, before)
    quantize(torch.empty(0, 40), fp8)
    assert torch.equal(amax, before)
    quantize(torch.tensor([[NAN, 1.0]]), fp8)
    assert amax.isnan()


# --- rounding first, shapes, layouts ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GROUPED)
def test_rounding_first_is_quantizing_the_rounded_output(kind):
    y = sample(7, 200)
    first = quantize(y, Fp8(**GROUPED[kind], also_unquantized=True), BF16)
    second = quantize(y.to(BF16), Fp8(**GROUPED[kind]))
    assert torch.equal(first.data.float(), second.data.float()) and torch.equal(first.scale, second.scale)
    assert torch.equal(first.unquantized, y.to(BF16)) and second.unquantized is None
    unrounded = quantize(y, Fp8(**GROUPED[kind], round_first=False), BF16)
    assert not torch.equal(unrounded.dequantize(), first.dequantize())


@pytest.mark.parametrize("kind", [*GROUPED, "tensor"])
@pytest.mark.parametrize("shape", [(200,), (2, 3, 200), (0, 3, 200), (2, 1, 5, 33)])
def test_leading_dimensions_are_rows(kind, shape):
    fp8 = Fp8(**GROUPED.get(kind, {"scaling": kind}), columnwise=True)
    y = sample(*shape)
    flat = y.reshape(math.prod(shape[:-1]), shape[-1])
    q, expected = quantize(y, fp8), quantize(flat, fp8)
    assert q.data.shape == y.shape and q.data_t.shape == flat.t().shape
    assert q.scale.shape == (() if kind == "tensor" else (*shape[:-1], expected.scale.shape[-1]))
    assert torch.equal(q.data.float().reshape(flat.shape), expected.data.float())
    assert torch.equal(q.data_t.float(), expected.data_t.float())
    assert torch.equal(q.dequantize().reshape(flat.shape), expected.dequantize())


@pytest.mark.parametrize("rows", [0, 1, 4, 127, 129])
@pytest.mark.parametrize("cols", [1, 130, 512])
def test_scales_for_tma_are_transposed_and_padded_to_four_rows(rows, cols):
    y = sample(rows, cols)
    plain, q = (quantize(y, Fp8("block", layout=layout, columnwise=True)) for layout in ("row", "tma"))
    for scale, expected, count in ((q.scale, plain.scale, rows), (q.scale_t, plain.scale_t, cols)):
        assert torch.equal(scale, expected) and scale.shape == expected.shape
        assert scale.stride() == (1, -(-count // 4) * 4) or scale.numel() == 0
    assert torch.equal(q.dequantize(), plain.dequantize())
    assert torch.equal(q.dequantize_columnwise(), plain.dequantize_columnwise())


@pytest.mark.parametrize(("rows", "cols"), [(0, 64), (1, 32), (127, 96), (129, 200), (256, 256)])
def test_swizzled_scales_lie_where_an_mx_gemm_reads_them(rows, cols):
    y = sample(rows, cols)
    plain, q = (quantize(y, Fp8("mx", layout=layout, columnwise=True)) for layout in ("row", "swizzled"))
    for scale, expected in ((q.scale, numbers(plain.scale)), (q.scale_t, numbers(plain.scale_t))):
        count, groups = expected.shape
        tiles_across = -(-groups // 4)
        memory = np.zeros(-(-count // 128) * 128 * tiles_across * 4, np.uint8)
        for r, g in itertools.product(range(count), range(groups)):
            tile = r // 128 * tiles_across + g // 4
            memory[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + g % 4] = expected[r, g]
        assert scale.is_contiguous() and scale.dtype == torch.float8_e8m0fnu
        np.testing.assert_array_equal(numbers(scale).reshape(-1), memory)
    assert torch.equal(q.dequantize(), plain.dequantize())
    assert torch.equal(q.dequantize_columnwise(), plain.dequantize_columnwise())


def test_the_columnwise_tensor_can_lie_as_rows():
    y = sample(70, 96)
    plain, q = (quantize(y, Fp8("mx", columnwise=True, columnwise_order=order)) for order in ("transposed", "rows"))
    assert torch.equal(q.data_t.float(), plain.data_t.float()) and torch.equal(q.scale_t, plain.scale_t)
    assert plain.data_t.stride() == (70, 1) and q.data_t.stride() == (1, 96)


# --- special values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GROUPED)
def test_zeros_have_the_scale_of_the_floor_and_stay_zeros_with_their_sign(kind):
    fp8 = Fp8(**GROUPED[kind])
    y = torch.tensor([[0.0, -0.0] * 80, [1.0, -0.0] * 80])
    q = quantize(y, fp8)
    assert numbers(q.data)[0].tolist() == [0x00, 0x80] * 80
    assert numbers(q.data)[1, 1::2].tolist() == [0x80] * 80
    lowest = torch.tensor(2.0**-127) if kind == "mx" else 1 / (torch.tensor(448.0) / torch.tensor(1e-10))
    assert torch.equal(q.scale[0].float(), lowest.expand(q.scale.shape[1]))
    assert torch.equal(q.dequantize()[0], y[0])


@pytest.mark.parametrize("options", [{}, {"power_of_two": True}, {"arithmetic": "scale"}, {"like": "vllm"}])
def test_a_tensor_of_zeros_has_the_scale_one(options):
    q = quantize(torch.zeros(3, 40), Fp8("tensor", **options))
    assert q.scale == 1 and q.amax == 0 and not numbers(q.data).any()


def test_a_block_of_zeros_leaves_its_neighbours_alone():
    y = sample(3, 384).abs() + 1
    y[1, 128:256] = 0
    q, before = quantize(y, Fp8("block", floor=0.0)), quantize(y + 0.0, Fp8("block"))
    assert q.scale[1, 1] == 1 and not numbers(q.data)[1, 128:256].any()
    assert torch.equal(q.scale[1, [0, 2]], before.scale[1, [0, 2]])


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
def test_what_is_not_finite_is_nan_in_its_group_and_nowhere_else(kind, bad):
    fp8 = Fp8(**GROUPED[kind], columnwise=True, upper_bound=None if kind == "mx" else 1e30)
    y = sample(200, 300)
    clean, row, col = quantize(y, fp8), 140, 70
    y[row, col] = bad
    q = quantize(y, fp8)
    both = (
        (q.data, q.scale, clean.data, clean.scale, row, col),
        (q.data_t, q.scale_t, clean.data_t, clean.scale_t, col, row),
    )
    for data, scale, before, before_scale, r, c in both if fp8.block else both[:1]:
        width = fp8.block or data.shape[1]
        group = np.zeros(data.shape, bool)
        group[r, c // width * width : (c // width + 1) * width] = True
        assert (numbers(data)[group] == NAN_BYTE).all()
        np.testing.assert_array_equal(numbers(data)[~group], numbers(before)[~group])
        hit = np.zeros(scale.shape, bool)
        hit[r, c // width] = True
        assert scale.float()[torch.from_numpy(hit)].isnan().all()
        np.testing.assert_array_equal(numbers(scale)[~hit], numbers(before_scale)[~hit])


@pytest.mark.parametrize("fmt", BITS)
@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
def test_with_a_given_scale_only_the_element_itself_is_nan(fmt, bad):
    y = sample(5, 40)
    fp8 = Fp8("static", format=fmt, scale=one(2.0))
    clean = quantize(y, fp8)
    y[2, 3] = bad
    q = quantize(y, fp8)
    assert numbers(q.data)[2, 3] == NAN_BYTE
    assert (numbers(q.data) != numbers(clean.data)).sum() == 1
    q = quantize(y, Fp8("tensor", format=fmt))
    assert (numbers(q.data) == NAN_BYTE).all() and q.scale.isnan()


@pytest.mark.parametrize("fmt", BITS)
def test_finite_values_saturate(fmt):
    y = torch.tensor([[1e30, -1e30, 3e38, LARGEST[fmt] * 1.5, -LARGEST[fmt]]])
    q = quantize(y, Fp8("static", format=fmt, multiplier=one(1e10)))
    assert q.data.float().tolist() == [[LARGEST[fmt] * s for s in (1, -1, 1, 1, -1)]]
    q = quantize(y, Fp8("token", format=fmt, upper_bound=1.0))
    assert q.data.float().tolist() == [[LARGEST[fmt] * s for s in (1, -1, 1, 1, -1)]]


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("amax", [1e-45, 1e-40, 2.0**-126, 1e-36, 1e-30, 3e38, float(np.finfo(f32).max)])
def test_a_tiny_or_huge_amax_has_a_usable_scale(kind, amax):
    options = dict(GROUPED[kind]) if kind == "mx" else dict(GROUPED[kind], floor=0.0)
    y = torch.tensor([[amax, -amax, 0.0, amax / 2]])
    for more in [{}] if kind == "mx" else [{}, {"power_of_two": True}, {"arithmetic": "inverse"}]:
        fp8 = Fp8(**options, **more)
        q = quantize(y, fp8)
        data, scale = grouped_by_hand(numbers(y), fp8)
        assert_same_bits(q.data, data)
        assert_same_bits(q.scale, scale)
        assert q.data.float().isfinite().all() and (q.scale.float() > 0).all() and q.scale.float().isfinite().all()
        if 1e-36 <= amax <= 3e38:  # the largest of all rounds up, to more than fp32 holds
            torch.testing.assert_close(q.dequantize(), y, rtol=0.07, atol=0)


def test_one_huge_value_costs_its_own_group_and_no_other():
    y = torch.ones(1, 256)
    y[0, 3] = 1e30
    q = quantize(y, Fp8("block"))
    assert numbers(q.data)[0, :3].tolist() == [0, 0, 0] and q.data[0, 3].float() == 448
    torch.testing.assert_close(q.dequantize()[0, 128:], y[0, 128:], rtol=1e-6, atol=0)


# --- presets: each convention written out -------------------------------------------------------------------------


def deepgemm(x, ue8m0):
    data, scale = np.zeros(x.shape, np.uint8), np.zeros((x.shape[0], -(-x.shape[1] // 128)), f32)
    for row, group in itertools.product(*map(range, scale.shape)):
        place = slice(group * 128, group * 128 + 128)
        sf = max(np.abs(x[row, place]).max(), f32(1e-4)) * (f32(1) / f32(448))
        sf = power_of_two(sf, up=True) if ue8m0 else sf
        data[row, place], scale[row, group] = encoded(x[row, place] * (f32(1) / sf), "e4m3"), sf
    return data, scale


def vllm_token(x, bound):
    least = f32(1) / (f32(448) * f32(512))
    scale = np.array([[max(min(np.abs(row).max(), f32(bound)) / f32(448), least)] for row in x], f32)
    return encoded(x / scale, "e4m3"), scale


def vllm_group(x, ue8m0):
    data, scale = np.zeros(x.shape, np.uint8), np.zeros((x.shape[0], x.shape[1] // 128), f32)
    for row, group in itertools.product(*map(range, scale.shape)):
        place = slice(group * 128, group * 128 + 128)
        s = max(np.abs(x[row, place]).max(), f32(1e-10)) / f32(448)
        s = power_of_two(max(s, f32(1e-10)), up=True) if ue8m0 else s
        data[row, place], scale[row, group] = encoded(x[row, place] / s, "e4m3"), s
    return data, scale


def transformer_engine_multiplier(amax, pow2, fmt):
    if amax == 0 or not np.isfinite(amax):
        return f32(1)
    with np.errstate(over="ignore"):
        multiplier = min(f32(LARGEST[fmt]) / amax, np.finfo(f32).max)
    return power_of_two(multiplier, up=False) if pow2 else multiplier


def wide_sample(rows, cols):
    """bf16 rows from zeros over tiny ones to large ones, as the floors differ there."""
    y = sample(rows, cols)
    y[0], y[1], y[2], y[3] = 0, y[1].sign() * 1e-12, y[2].sign() * 3e-9, y[3].sign() * 1e-5
    return y.to(BF16)


@pytest.mark.parametrize("pow2", [None, True, False])
@pytest.mark.parametrize("cols", [128, 300])
def test_deepgemm(cols, pow2):
    y = wide_sample(13, cols)
    q = quantize(y, Fp8("block", like="deepgemm", power_of_two=pow2))
    data, scale = deepgemm(numbers(y), pow2 is not False)
    assert_same_bits(q.data, data)
    assert_same_bits(q.scale, scale)
    assert q.scale.stride() == (1, 16)


def test_vllm():
    y = wide_sample(13, 384)
    q = quantize(y, Fp8("token", like="vllm", upper_bound=20.0))
    for tensor, expected in zip((q.data, q.scale), vllm_token(numbers(y), 20.0), strict=True):
        assert_same_bits(tensor, expected)
    for pow2 in (False, True):
        q = quantize(y, Fp8("block", like="vllm", power_of_two=pow2))
        for tensor, expected in zip((q.data, q.scale), vllm_group(numbers(y), pow2), strict=True):
            assert_same_bits(tensor, expected)
    q = quantize(y, Fp8("tensor", like="vllm"))
    scale = np.abs(numbers(y)).max() / f32(448)
    assert q.scale == scale
    assert_same_bits(q.data, encoded(numbers(y) * (f32(1) / scale), "e4m3"))
    q = quantize(y, Fp8("static", like="vllm", scale=one(0.11)))
    assert_same_bits(q.data, encoded(numbers(y) * (f32(1) / f32(0.11)), "e4m3"))


@pytest.mark.parametrize("fmt", BITS)
def test_transformer_engine(fmt):
    y = wide_sample(40, 256)
    x = numbers(y)
    q = quantize(y, Fp8("tensor", fmt, like="transformer_engine"))
    multiplier = transformer_engine_multiplier(np.abs(x).max(), False, fmt)
    assert_same_bits(q.data, encoded(x * multiplier, fmt))
    assert q.scale == f32(1) / multiplier
    q = quantize(y, Fp8("block", fmt, like="transformer_engine", columnwise=True))
    for rows, data, scale in ((x, q.data, q.scale), (x.T, q.data_t, q.scale_t)):
        for row, group in itertools.product(*map(range, scale.shape)):
            place = slice(group * 128, group * 128 + 128)
            multiplier = transformer_engine_multiplier(np.abs(rows[row, place]).max(), True, fmt)
            np.testing.assert_array_equal(numbers(data)[row, place], encoded(rows[row, place] * multiplier, fmt))
            assert scale[row, group] == f32(1) / multiplier
    assert q.scale_t.stride() == (1, 256)
    q = quantize(y, Fp8("mx", fmt, like="transformer_engine", columnwise=True))
    data, scale = rows_by_hand(x, "mx", fmt, 32, "reciprocal")
    assert_same_bits(q.data, data)
    np.testing.assert_array_equal(numbers(q.dequantize()), decode_all(data, fmt) * spread(scale, 256))
    assert q.scale.shape == (128, 8) and q.scale_t.shape == (256, 4) and q.data_t.stride() == (1, 256)


def decode_all(data, fmt):
    return np.where(data & 0x80, -1, 1).astype(f32) * TABLES[fmt].astype(f32)[data & 0x7F]


def spread(scale, cols):
    return np.repeat(np.ldexp(1.0, scale.astype(int) - 127), 32, axis=1)[:, :cols].astype(f32)


def test_an_option_that_is_given_wins_over_its_preset():
    fp8 = Fp8("block", like="deepgemm", floor=0.5, layout="row")
    assert (fp8.floor, fp8.layout, fp8.arithmetic, fp8.power_of_two) == (0.5, "row", "reciprocal", True)


# --- the objects --------------------------------------------------------------------------------------------------


def test_equal_options_are_one_key_and_tensors_count_by_identity():
    first, second = one(1.0), one(1.0)
    assert Fp8("token") == Fp8() and hash(Fp8("token")) == hash(Fp8()) and Fp8() != Fp8("block")
    a, b = Fp8("static", scale=first), Fp8("static", scale=second)
    assert a != b and a == Fp8("static", scale=first) and a.key == b.key and hash(a) == hash(b)
    assert Fp8("block", like="vllm").key == Fp8("block", arithmetic="scale").key
    assert replace(Fp8("block", like="deepgemm"), columnwise=True).floor == 1e-4
    for kind in ("static", "delayed", "mx", "tensor"):
        given = {"static": {"scale": first}, "delayed": {"multiplier": first, "amax": second}}.get(kind, {})
        assert replace(Fp8(kind, **given), also_unquantized=True).also_unquantized
    with pytest.raises(AttributeError):
        a.scaling = "token"


def test_a_result_goes_through_a_pytree():
    q = quantize(sample(4, 300), Fp8("block", layout="tma", columnwise=True), residual=torch.ones(4, 300))
    leaves, spec = pytree.tree_flatten(q)
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Quantized) and again.data is q.data and again.residual is q.residual
    assert (again.block, again.layout, again.amax) == (128, "tma", None)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    names = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(q)]
    assert ".data" in names and ".residual" in names
    moved = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), q)
    assert moved.data.device.type == "meta" and moved.scale.shape == q.scale.shape


@pytest.mark.parametrize("kind", ["token", "block", "mx", "tensor"])
def test_a_result_goes_through_compile_in_one_graph(kind):
    fp8 = Fp8(kind, columnwise=True)
    compiled = torch.compile(lambda y: quantize(y, fp8), backend="eager", fullgraph=True)
    y = sample(5, 200)
    q, expected = compiled(y), quantize(y, fp8)
    assert isinstance(q, Quantized)
    assert torch.equal(q.dequantize(), expected.dequantize()) and torch.equal(q.scale.float(), expected.scale.float())


def test_transposing_moves_bytes_and_shares_the_scale():
    y = sample(2, 3, 40)
    q = transpose_fp8(quantize(y, Fp8("tensor")))
    assert_same_bits(q.data_t, numbers(q.data).reshape(6, 40).T)
    assert torch.equal(q.dequantize_columnwise(), q.dequantize().reshape(6, 40).t())
    assert transpose_fp8(quantize(torch.empty(0, 8), Fp8("tensor"))).data_t.shape == (8, 0)
    q = transpose_fp8(quantize(y, Fp8("token")))
    assert q.scale_t.shape == (1, 6) and torch.equal(q.dequantize_columnwise(), q.dequantize().reshape(6, 40).t())


def test_the_unquantized_output_keeps_its_gradient():
    y = sample(3, 40).requires_grad_()
    q = quantize(y, Fp8("token", also_unquantized=True))
    q.unquantized.sum().backward()
    assert not q.data.requires_grad and y.grad is not None


# --- refusals -----------------------------------------------------------------------------------------------------

#: Arguments, the one that the sentence must begin with, and words that it must have.
REFUSED = {
    "unknown kind": ({"scaling": "row"}, "scaling", ["'row'", "'token'", "'mx'"]),
    "no kind": ({"scaling": None}, "scaling", ["None", "'static'"]),
    "unknown format": ({"format": "e3m4"}, "format", ["'e3m4'", "'e4m3'", "'e5m2'"]),
    "a dtype for a format": ({"format": torch.float8_e4m3fn}, "format", ["torch.float8_e4m3fn", "'e4m3'"]),
    "static without its scale": ({"scaling": "static"}, "scale", ["static", "multiplier", "none"]),
    "static with both": ({"scaling": "static", "scale": one(1), "multiplier": one(1)}, "scale", ["multiplier too"]),
    "delayed without multiplier": ({"scaling": "delayed", "amax": one(0)}, "multiplier", ["delayed", "None"]),
    "delayed without amax": ({"scaling": "delayed", "multiplier": one(1)}, "amax", ["delayed", "None"]),
    "delayed with a scale": ({"scaling": "delayed", "scale": one(1)}, "scale", ["delayed", "None"]),
    "a scale for token": ({"scale": one(1)}, "scale", ["'token'", "None"]),
    "a scale in fp64": ({"scaling": "static", "scale": one(1).double()}, "scale", ["float64", "float32"]),
    "two scales": ({"scaling": "static", "scale": torch.ones(2)}, "scale", ["one element", "(2,)"]),
    "block of 100": ({"scaling": "block", "block": 100}, "block", ["128 or 64", "100", "'block'"]),
    "mx of 64": ({"scaling": "mx", "block": 64}, "block", ["32", "64", "'mx'"]),
    "block for token": ({"block": 128}, "block", ["None", "128", "'token'"]),
    "columnwise of 1": ({"columnwise": 1}, "columnwise", ["True or False", "1"]),
    "power_of_two of 2": ({"power_of_two": 2}, "power_of_two", ["True or False", "2"]),
    "mx without powers of two": ({"scaling": "mx", "power_of_two": False}, "power_of_two", ["'mx'", "False"]),
    "a floor for mx": ({"scaling": "mx", "floor": 1e-4}, "floor", ["'mx'", "0.0001"]),
    "a bound for static": ({"scaling": "static", "scale": one(1), "upper_bound": 1.0}, "upper_bound", ["'static'"]),
    "negative floor": ({"floor": -1.0}, "floor", ["-1.0", "negative"]),
    "infinite floor": ({"floor": INF}, "floor", ["inf", "finite"]),
    "NaN bound": ({"upper_bound": NAN}, "upper_bound", ["nan", "finite"]),
    "a bound in a string": ({"upper_bound": "1"}, "upper_bound", ["'1'", "number"]),
    "a bound below the floor": ({"upper_bound": 1e-11}, "upper_bound", ["1e-10", "1e-11"]),
    "unknown arithmetic": ({"arithmetic": "fast"}, "arithmetic", ["'fast'", "'scale'", "'multiplier'"]),
    "inverse of a multiplier": (
        {"scaling": "static", "multiplier": one(1), "arithmetic": "inverse"}, "arithmetic", ["'inverse'", "multiplier"]
    ),
    "tma for token": ({"layout": "tma"}, "layout", ["'row'", "'tma'", "'token'"]),
    "swizzled blocks": ({"scaling": "block", "layout": "swizzled"}, "layout", ["'row', 'tma'", "'swizzled'"]),
    "tma for mx": ({"scaling": "mx", "layout": "tma"}, "layout", ["'row', 'swizzled'", "'tma'"]),
    "blocks in rows": ({"scaling": "block", "columnwise_order": "rows"}, "columnwise_order", ["'rows'", "'block'"]),
    "unknown preset": ({"like": "torchao"}, "like", ["'torchao'", "None", "'vllm'", "'deepgemm'"]),
    "DeepGEMM by token": ({"like": "deepgemm"}, "scaling", ["'token'", "'block'", "'deepgemm'"]),
    "vLLM in e5m2": ({"like": "vllm", "format": "e5m2"}, "format", ["'e5m2'", "'e4m3'", "'vllm'"]),
}  # fmt: skip


def assert_sentence(message, argument, words):
    assert message.startswith(f"{argument} must"), message
    assert "\n" not in message and ". " not in message and not message.endswith("."), message
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_in_one_sentence(mistake):
    arguments, argument, words = REFUSED[mistake]
    with pytest.raises(ValueError) as caught:
        Fp8(**arguments)
    assert_sentence(str(caught.value), argument, words)


def test_a_call_that_cannot_be_meant_is_refused_and_nothing_is_written():
    amax = one(0.0)
    elsewhere = Fp8("delayed", multiplier=torch.ones(1, device="meta"), amax=amax)
    y = sample(3, 40)
    for error, call, argument, words in (
        (ValueError, lambda: quantize(y, elsewhere), "multiplier", ["meta", "cpu"]),
        (ValueError, lambda: quantize(y.double(), Fp8()), "x", ["float64", "float32"]),
        (ValueError, lambda: quantize(torch.tensor(1.0), Fp8()), "x", ["dimension"]),
        (TypeError, lambda: quantize([1.0], Fp8()), "x", ["list", "tensor"]),
        (TypeError, lambda: quantize(y, "token"), "quantize", ["str", "Fp8"]),
        (TypeError, lambda: Fp8("static", scale=1.0), "scale", ["float", "tensor"]),
        (ValueError, lambda: transpose_fp8(quantize(y, Fp8("block"))), "q", ["128 columns", "columnwise=True"]),
        (ValueError, lambda: quantize(y, Fp8()).dequantize_columnwise(), "data_t", ["None", "columnwise=True"]),
    ):
        with pytest.raises(error) as caught:
            call()
        assert_sentence(str(caught.value), argument, words)
    assert amax == 0
