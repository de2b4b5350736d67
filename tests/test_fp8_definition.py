"""The definition of FP8 outputs against loops of its own (fp8_by_hand.py)."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import BF16, F16, F32
from fp8_by_hand import (
    BITS,
    FLOOR,
    GROUPED,
    LARGEST,
    NAN_BYTE,
    SIZES,
    assert_same_bits,
    encoded,
    f32,
    grouped_by_hand,
    numbers,
    one,
    rows_by_hand,
    sample,
    ties,
)
from onepass.fp8 import Fp8
from onepass.fp8.definition import quantize

INF, NAN = math.inf, math.nan

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
