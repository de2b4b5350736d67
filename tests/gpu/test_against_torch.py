"""rms_norm and layer_norm are torch.nn.functional's, bit for bit where the order of a row sum cannot matter."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from gpu.cases import forward_schedule, schedule_of_many
from gpu.exact import (
    assert_equal_but_for_row_sums,
    assert_same_bits,
    assert_within_fp32_freedom,
    exact_rows,
    random_rows,
    random_weight,
    term_size,
)
from onepass.plan.plans import power_of_two
from onepass.reference import normalize

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

RMS_COLS = {
    BF16: (64, 127, 200, 384, 768, 1000, 1152, 2880, 4096, 5120, 8192, 16384, 32768, 65536, 131072, 262144),
    FP16: (127, 1000, 5120, 65536),
    FP32: (384, 1000, 4096, 5120, 8192, 32768, 65536, 131072),
}
LAYER_COLS = {
    BF16: (64, 200, 384, 1000, 1152, 2880, 4096, 5120, 8192, 16384, 32768, 65536, 262144),
    FP16: (127, 4096, 65536),
    FP32: (384, 1000, 4096, 5120, 8192, 32768, 65536, 131072),
}
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


def sizes(table: dict[torch.dtype, tuple[int, ...]]) -> list:
    return [pytest.param(dtype, cols, id=f"{NAMES[dtype]}-{cols}") for dtype, every in table.items() for cols in every]


def rows_of(cols: int) -> int:
    """Ragged; and for split rows more than there are groups of programs, so that each group takes several."""
    return 301 if cols <= 16384 else 67


def assert_planned(x: torch.Tensor, weight: torch.Tensor, op: str) -> None:
    plan = onepass.explain(x, weight, op=op)
    assert plan.forward is not None
    assert schedule_of_many(plan.forward) == forward_schedule(op, x.dtype, x.shape[-1]), str(plan)


@pytest.mark.parametrize(("dtype", "cols"), sizes(RMS_COLS))
def test_rms_norm_is_torchs(dtype: torch.dtype, cols: int) -> None:
    weight = random_weight(cols, dtype=dtype)
    eps = 1e-6

    x = exact_rows(rows_of(cols), cols, dtype)
    assert_planned(x, weight, "rms_norm")
    y = onepass.rms_norm(x, weight, eps=eps)
    theirs = F.rms_norm(x, (cols,), weight, eps)
    if cols % 4 == 0:
        assert_same_bits(y, theirs)
    else:  # torch's kernel for odd rows keeps a running mean, which is not exact for whole numbers either
        assert_equal_but_for_row_sums(y, theirs)

    x = random_rows(rows_of(cols), cols, dtype=dtype)
    y = onepass.rms_norm(x, weight, eps=eps)
    if dtype == FP32:
        norm = onepass.explain(x, weight, eps=eps).norm
        wide, _ = normalize(norm, x.double(), weight.double(), wide=torch.float64)
        assert_within_fp32_freedom(y, wide)
    else:
        assert_equal_but_for_row_sums(y, F.rms_norm(x, (cols,), weight, eps))


@pytest.mark.parametrize(("dtype", "cols"), sizes(LAYER_COLS))
def test_layer_norm_is_torchs(dtype: torch.dtype, cols: int) -> None:
    weight = random_weight(cols, dtype=dtype)
    norm = onepass.explain(weight[None], weight, op="layer_norm").norm

    # torch keeps a running mean (Welford), inexact for whole numbers too, so exact rows are held to the definition. Its
    # `mean` multiplies by 1 / N, which is exact where N is a power of two.
    x = exact_rows(rows_of(cols), cols, dtype, centred=True)
    assert_planned(x, weight, "layer_norm")
    y = onepass.layer_norm(x, weight)
    defined, _ = normalize(norm, x, weight)
    if cols == power_of_two(cols):
        assert_same_bits(y, defined)
    elif dtype == FP32:
        wide, _ = normalize(norm, x.double(), weight.double(), wide=torch.float64)
        assert_within_fp32_freedom(y, wide, cancelled=term_size(y))
    else:
        assert_equal_but_for_row_sums(y, defined, cancelled=term_size(y))

    x = random_rows(rows_of(cols), cols, dtype=dtype)
    y = onepass.layer_norm(x, weight)
    if dtype == FP32:
        wide, _ = normalize(norm, x.double(), weight.double(), wide=torch.float64)
        assert_within_fp32_freedom(y, wide, cancelled=term_size(y))
    else:
        assert_equal_but_for_row_sums(y, F.layer_norm(x, (cols,), weight), cancelled=term_size(y))


@pytest.mark.parametrize("cols", [1000, 65536])
def test_layer_norm_with_a_bias_is_torchs(cols: int) -> None:
    weight, bias = random_weight(cols, dtype=BF16), random_rows(cols, dtype=BF16, seed=7)
    x = random_rows(rows_of(cols), cols, dtype=BF16)
    assert_planned(x, weight, "layer_norm")
    y = onepass.layer_norm(x, weight, bias)
    theirs = F.layer_norm(x, (cols,), weight, bias)
    assert_equal_but_for_row_sums(y, theirs, cancelled=term_size(y, bias))


def test_a_row_far_from_zero_keeps_its_variance() -> None:
    """E[x²] - E[x]² would lose all of it here: the mean is 4,096 times the deviation."""
    for cols in (4096, 65536):
        x = 4096 + random_rows(rows_of(cols), cols, dtype=FP32)
        weight = random_weight(cols, dtype=FP32)
        assert_planned(x, weight, "layer_norm")
        norm = onepass.explain(x, weight, op="layer_norm").norm
        wide, _ = normalize(norm, x.double(), weight.double(), wide=torch.float64)
        # x - mean cannot be better than fp32 units of the mean.
        assert_within_fp32_freedom(onepass.layer_norm(x, weight), wide, cancelled=4096 * term_size(wide))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_eps_none_is_the_eps_of_torch(dtype: torch.dtype) -> None:
    """On rows so small that eps decides the result; torch's CUDA kernel has its own idea of the default."""
    x = (random_rows(7, 1024, dtype=FP32) * 1e-4).to(dtype)
    ours = onepass.RMSNorm(1024, device="cuda", dtype=dtype)
    theirs = torch.nn.RMSNorm(1024, device="cuda", dtype=dtype)
    assert ours.eps is None and onepass.explain(x, ours.weight).forward is not None
    torch.testing.assert_close(ours(x), theirs(x), rtol=2 * torch.finfo(dtype).eps, atol=0.0)
