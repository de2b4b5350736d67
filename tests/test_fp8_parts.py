"""The parts of an FP8 output against the definition: the same bits, in Triton's interpreter too."""

import pytest
import torch
import triton
import triton.language as tl

import onepass
from onepass.fp8 import Fp8, definition
from onepass.fp8.forward import FLOORED_FROM
from onepass.fp8.scales import steps_from as defined_steps
from onepass.fp8.spec import ARITHMETIC, FORMATS
from onepass.kernels.quantize import steps_from

BLOCK = 1024
SPECIAL = [0.0, 1e-45, 1e-40, 1e-38, 3.4e38, float("inf"), float("nan"), 448.0, 1.0, 5.2e-37, 2.6e-36, 6e-39]

KINDS = [
    (scaling, arithmetic, power_of_two, upper_bound)
    for scaling in ("tensor", "token", "block")
    for arithmetic in ARITHMETIC[scaling]
    for power_of_two in (False, True)
    for upper_bound in (None, 3.0)
] + [("mx", arithmetic, None, None) for arithmetic in ARITHMETIC["mx"]]


@triton.jit
def steps_of(
    p_values, p_scale, p_factor, count, floor, upper, largest, inverse,
    BLOCK: tl.constexpr, BOUNDED: tl.constexpr, FLOORED: tl.constexpr, ARITHMETIC: tl.constexpr, POWER: tl.constexpr,
    E8M0: tl.constexpr,
):  # fmt: skip
    o = tl.arange(0, BLOCK)
    m = o < count
    amax = tl.abs(tl.load(p_values + o, mask=m, other=0.0))
    scale, factor = steps_from(amax, floor, upper, largest, inverse, BOUNDED, FLOORED, ARITHMETIC, POWER, E8M0)
    tl.store(p_scale + o, scale, mask=m)
    tl.store(p_factor + o, factor, mask=m)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("scaling", "arithmetic", "power_of_two", "upper_bound"), KINDS)
def test_scale_and_factor_have_the_bits_of_the_definition(scaling, arithmetic, power_of_two, upper_bound, form):
    fp8 = Fp8(scaling, format=form, arithmetic=arithmetic, power_of_two=power_of_two, upper_bound=upper_bound)
    values = torch.cat(
        [torch.randn(300).exp(), torch.rand(180) * 1e-36, 2.0 ** torch.arange(-149.0, 128.0), torch.tensor(SPECIAL)]
    )
    assert len(values) <= BLOCK
    mx = scaling == "mx"
    scale, factor = torch.empty_like(values, dtype=torch.uint8 if mx else torch.float32), torch.empty_like(values)
    inverse = float(torch.ones(()) / fp8.largest)
    steps_of[(1,)](
        -values, scale, factor, len(values), fp8.floor or 0.0, upper_bound or 0.0, fp8.largest, inverse,
        BLOCK, upper_bound is not None, (fp8.floor or 0.0) >= FLOORED_FROM, arithmetic, bool(power_of_two), mx,
    )  # fmt: skip
    expected = defined_steps(values, fp8)
    assert torch.equal(scale.view(torch.uint8), expected.scale.view(torch.uint8)) or same(scale, expected.scale)
    assert same(factor, expected.factor)


def same(got, expected):
    return bool(((got == expected) | (got.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(5, 300), (4, 256), (1, 77)])
@pytest.mark.parametrize("how", ["scale", "multiplier", "token", "block", "block 64", "mx", "power of two"])
def test_rows_are_quantized_to_the_bits_of_the_definition(how, shape, form):
    options = {
        "scale": {"scaling": "static", "scale": torch.tensor(0.01)},
        "multiplier": {"scaling": "static", "multiplier": torch.tensor(37.0)},
        "block 64": {"scaling": "block", "block": 64},
        "power of two": {"scaling": "block", "power_of_two": True, "arithmetic": "inverse"},
    }.get(how, {"scaling": how})
    fp8 = Fp8(format=form, **options)
    x = torch.randn(shape).to(torch.bfloat16)
    x[-1, 5:9] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-30])
    x[0, -1] = 3e4
    q, expected = onepass.quantize(x, fp8), definition.quantize(x, fp8)
    assert torch.equal(q.data.view(torch.uint8), expected.data.view(torch.uint8))
    assert same(q.scale.float(), expected.scale.float())


def test_every_value_is_converted_as_pytorch_converts_it():
    """All bf16 numbers within the format, and every midpoint of two neighbours."""
    for form, dtype in FORMATS.items():
        codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        codes = codes[codes.isfinite()].unique()
        values = torch.cat(
            [codes, (codes[1:] + codes[:-1]) / 2, torch.nextafter((codes[1:] + codes[:-1]) / 2, codes[1:])]
        )
        fp8 = Fp8("static", format=form, multiplier=torch.tensor(1.0))
        q = onepass.quantize(values[None], fp8)
        assert torch.equal(q.data.float(), values[None].to(dtype).float())
