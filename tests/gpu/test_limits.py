"""Rows of which an SM has more at once for a limit of registers, or written as many are: their bits are the same."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import onepass
from gpu.cases import CLUSTERS
from gpu.exact import assert_same_bits, random_rows, random_weight
from onepass.plan.device import device_of
from onepass.plan.forward_plans import forward_plan
from onepass.plan.plans import Plan

BF16, FP32 = torch.bfloat16, torch.float32

#: The operation, the dtype, the columns, whether there is a residual, the scaling, and the limits that are met.
CASES = [
    ("layer_norm", FP32, 7168, False, None, {None, 64}),
    ("layer_norm", FP32, 10240, False, None, {None, 64}),
    ("layer_norm", FP32, 16384, False, None, {None, 64}),
    ("layer_norm", FP32, 18432, False, None, {None, 64}),
    ("layer_norm", FP32, 12288, True, None, {None, 64}),
    ("layer_norm", BF16, 14400, True, None, {None, 64}),
    ("layer_norm", BF16, 12288, True, None, {None, 64}),
    ("rms_norm", BF16, 16384, True, "token", {None, 64}),
    ("rms_norm", BF16, 13312, True, "token", {None}),
    ("layer_norm", BF16, 5120, True, "token", {None, 80}),
    ("rms_norm", BF16, 15360, True, "block", {None, 64}),
    ("layer_norm", BF16, 11264, False, "block", {None, 80}),
    ("layer_norm", BF16, 6144, True, "block", {None, 80}),
    ("rms_norm", BF16, 13312, True, "delayed", {None, 64}),
    ("rms_norm", BF16, 8192, True, "static", {None}),
    # Written as many are, where they are more than run at once.
    ("rms_norm", BF16, 16384, True, None, {None}),
    ("rms_norm", FP32, 8192, True, None, {None}),
]


@pytest.mark.skipif(not CLUSTERS, reason="this GPU has no clusters")
@pytest.mark.parametrize(("op", "dtype", "cols", "summed", "scaling", "limits"), CASES)
def test_rows_have_their_bits_however_many_run_at_once(
    op: str, dtype: torch.dtype, cols: int, summed: bool, scaling: str | None, limits: set[int | None]
) -> None:
    rows = 1000
    x, weight = random_rows(rows, cols, dtype=dtype), random_weight(cols, dtype=dtype)
    bias = random_weight(cols, dtype=dtype, seed=5) if op == "layer_norm" else None
    residual = random_rows(rows, cols, dtype=dtype, seed=3) if summed else None

    def results(begin: int, end: int) -> tuple[Plan, list[Tensor]]:
        given = (x[begin:end], weight, bias)
        added = None if residual is None else residual[begin:end]
        problem = onepass.explain(*given, op=op, residual=added).problem
        if scaling is None:
            got = getattr(onepass, op)(*given, residual=added)
            tensors = [*got] if isinstance(got, tuple) else [got]
        else:
            one = torch.ones((), device=x.device)
            fp8 = {
                "static": {"scale": one}, "delayed": {"multiplier": one, "amax": torch.zeros((), device=x.device)},
            }.get(scaling, {})  # fmt: skip
            q = getattr(onepass, op)(*given, residual=added, quantize=onepass.Fp8(scaling, **fp8))
            tensors = [q.data.view(torch.float16), *([] if q.residual is None else [q.residual])]
            tensors += [q.scale] if scaling in ("token", "block") else []
            group = 128 if scaling == "block" else 1
            problem = replace(problem, quantized=scaling, group=group, walked=scaling == "token")
        return forward_plan(problem, device_of(x.device), op == "layer_norm", 16 // dtype.itemsize), tensors

    plan, every = results(0, rows)
    plans = {replace(plan, programs=0)}
    for begin, end in ((0, 1), (7, 73), (5, 138), (9, 209), (30, 294), (100, 430)):
        plan, some = results(begin, end)
        plans.add(replace(plan, programs=0))
        for few, many in zip(some, every, strict=True):
            assert_same_bits(few, many[begin:end])
    assert {plan.registers for plan in plans} == limits
    assert len({plan.prompt for plan in plans}) == 2 or scaling is not None
