"""Sizes and values where an index, a mask or a slice goes wrong: past 2³¹ elements, the widest rows, strided ones."""

import pytest
import torch
from torch import Tensor

import onepass
from gpu.allocation import ROUNDING, measured
from gpu.cases import BF16, FP32, PLAIN, RESIDUAL, Case, differentiated, explained, on_schedule, ours, tensors_of
from gpu.exact import (
    DEVICE,
    EPS32,
    FREEDOM,
    assert_equal_but_for_row_sums,
    assert_same_bits,
    assert_within_fp32_freedom,
    random_rows,
    random_weight,
    same_bits,
)
from onepass.plan import in_force
from onepass.reference import normalize


def test_rows_past_two_to_the_31_elements_are_computed() -> None:
    cols = 4096
    rows = 2**31 // cols + 5
    needed = 6 * 2 * rows * cols
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of GPU memory")
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.empty(rows, cols, dtype=BF16, device=DEVICE).normal_(generator=generator).requires_grad_()
    dy = torch.empty(rows, cols, dtype=BF16, device=DEVICE).normal_(generator=generator)
    weight = random_weight(cols, dtype=BF16).requires_grad_()
    plan = onepass.explain(x, weight)
    assert plan.forward is not None and plan.backward is not None
    assert (plan.forward.schedule, plan.backward.schedule) == ("tile", "tile")
    y = onepass.rms_norm(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    y = y.detach()

    edge = 2**31 // cols
    for part in (slice(0, 3), slice(edge // 2 - 1, edge // 2 + 2), slice(edge - 2, edge + 2), slice(rows - 4, rows)):
        few = x[part].detach().clone().requires_grad_()
        # With dW and the tile of many, as above: another kernel's sums may differ in their last bit.
        with in_force.override(few_rows=0, backward_few=()):
            y_few = onepass.rms_norm(few, weight)
            assert_same_bits(y[part], y_few.detach())
            assert_same_bits(dx[part], torch.autograd.grad(y_few, (few, weight), dy[part].clone())[0])
    total = torch.zeros(cols, dtype=torch.float64, device=DEVICE)
    with torch.no_grad():
        for start in range(0, rows, 65536):
            part = slice(start, start + 65536)
            assert bool(y[part].isfinite().all()) and bool(dx[part].isfinite().all()), f"rows from {start}"
            wide = x[part].float()
            x_hat = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
            total += (x_hat * dy[part].float()).sum(0, dtype=torch.float64)
    # Half a million fp32 additions a column, of which a random walk's worth of roundings remains; then one to bf16.
    assert ((dweight.double() - total).norm() / total.norm()).item() < torch.finfo(BF16).eps / 2


#: Rows far too wide for one program; whether several share them or one streams them is for the planner to say.
WIDE = [
    Case("262,144 columns", "rms_norm", "split or stream", (37, 262144), BF16),
    Case("1,500,000 columns", "rms_norm", "split or stream", (11, 1_500_000), BF16),
]


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_the_widest_rows_are_whole(case: Case) -> None:
    tensors = tensors_of(case)
    plan = explained(case, tensors)
    assert plan.forward is not None and plan.backward is not None
    assert {plan.forward.schedule, plan.backward.schedule} <= {"split", "ring", "stream"}, str(plan)
    got = differentiated(ours(case), tensors)
    expected = differentiated(lambda *given: normalize(plan.norm, *given), tensors)
    assert_equal_but_for_row_sums(got["y"], expected["y"])
    for name in ("dx", "dweight"):
        assert bool(got[name].isfinite().all())
        torch.testing.assert_close(got[name], expected[name])


@pytest.mark.parametrize("rows", [7, 5000])
def test_rows_of_one_element_are_rows(rows: int) -> None:
    case = Case("one column", "rms_norm", "tile", (rows, 1), FP32)
    tensors = tensors_of(case)
    with on_schedule(case, tensors) as plan:
        got = differentiated(ours(case), tensors)
    wide = [None if tensor is None else tensor.double() for tensor in tensors]
    expected = differentiated(
        lambda *given: normalize(plan.norm, *given, wide=torch.float64), type(tensors)(*wide)
    )  # fmt: skip
    assert_within_fp32_freedom(got["y"], expected["y"])
    # dx = rstd · w·dy · (1 - x̂²) all but cancels, so it is held to the size of its terms.
    terms = (expected["y"] / tensors.x.double()).abs() * tensors.dy.double().abs()
    assert bool(((got["dx"].double() - expected["dx"]).abs() <= 2 * FREEDOM * EPS32 * terms).all())
    torch.testing.assert_close(got["dweight"].double(), expected["dweight"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["query", "key"])
def test_a_slice_of_a_fused_qkv_tensor_is_read_where_it_lies(part: str) -> None:
    """16,384 tokens, 32 query heads and 8 of key and value: no copy of x, forward or backward."""
    qkv = random_rows(16384, 48, 128, dtype=BF16)
    x = qkv[:, :32] if part == "query" else qkv[:, 32:40]
    weight = random_weight(128, dtype=BF16)
    plan = onepass.explain(x, weight)
    assert not plan.copies and plan.forward is not None and plan.backward is not None
    assert (plan.forward.schedule, plan.backward.schedule) == ("tile", "tile")

    y, extra = measured(lambda: onepass.rms_norm(x, weight))
    size = x.numel() * x.element_size()
    assert extra <= size + ROUNDING
    assert_same_bits(y, onepass.rms_norm(x.contiguous(), weight))

    dy = random_rows(*x.shape, dtype=BF16, seed=1)
    x.requires_grad_()
    y = onepass.rms_norm(x, weight)
    (dx,), extra = measured(lambda: torch.autograd.grad(y, x, dy))
    assert extra <= size + ROUNDING
    dense = x.detach().contiguous().requires_grad_()
    (expected,) = torch.autograd.grad(onepass.rms_norm(dense, weight), dense, dy)
    assert_same_bits(dx, expected)


@pytest.mark.parametrize(
    "case",
    [PLAIN["block rows"], PLAIN["few rows"], PLAIN["split"], PLAIN["stream"], RESIDUAL["one row"], RESIDUAL["split"]],
    ids=str,
)
def test_nan_and_inf_stay_in_their_row(case: Case) -> None:
    clean = tensors_of(case)
    cols = case.shape[-1]
    x = clean.x.clone()
    bad = {3: float("nan"), 20: float("inf"), 66: float("-inf")}
    for row, value in bad.items():
        x[row, (row * 977) % cols] = value
    sick = clean._replace(x=x)
    with on_schedule(case, clean) as plan:
        healthy, got = differentiated(ours(case), clean), differentiated(ours(case), sick)
    expected, _ = normalize(plan.norm, *sick[:4])
    others = torch.ones(case.shape[0], dtype=torch.bool, device=x.device)
    others[list(bad)] = False
    for name, result in got.items():
        if result.shape == x.shape:
            assert same_bits(result[others], healthy[name][others]), name
    assert torch.equal(got["y"].isnan(), expected.isnan())
    finite = expected.isfinite() & ~others[:, None]
    torch.testing.assert_close(got["y"][finite], expected[finite])
    assert bool(got["dx"][3].isnan().all())


def test_a_call_without_rows_launches_nothing() -> None:
    x = torch.empty(0, 128, dtype=BF16, device=DEVICE, requires_grad=True)
    weight: Tensor = random_weight(128, dtype=BF16).requires_grad_()
    y = onepass.rms_norm(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), torch.empty_like(y))
    assert y.shape == dx.shape == x.shape
    assert not bool(dweight.any())
