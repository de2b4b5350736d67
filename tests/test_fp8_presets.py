"""Presets for FP8 outputs: each library's convention written out."""

import itertools

import numpy as np
import pytest

from cases import BF16
from fp8_by_hand import (
    BITS,
    LARGEST,
    TABLES,
    assert_same_bits,
    encoded,
    f32,
    numbers,
    one,
    power_of_two,
    rows_by_hand,
    sample,
)
from onepass.fp8 import Fp8
from onepass.fp8.definition import quantize


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
