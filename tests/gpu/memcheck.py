"""Each schedule, forward and backward, once, for compute-sanitizer to watch; not a test that pytest collects.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=src:tests compute-sanitizer --tool memcheck python tests/gpu/memcheck.py

Without PyTorch's cache each tensor is an allocation of its own, so that one element past its end is seen. Columns are
ragged: with an even number of whole blocks no mask would be put to the test.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

import onepass
from gpu.cases import streaming
from onepass.plan import in_force

#: name, schedules of forward and backward, shape; of RMSNorm and of LayerNorm, where these differ
PROBLEMS: list[tuple[str, str, str, tuple[int, ...]]] = [
    ("few short rows", "tile", "few", (37, 100)),
    ("few odd rows", "tile", "few", (35, 1001)),
    ("few rows in blocks", "tile", "few", (35, 3001)),
    ("few rows and heads", "tile", "few", (35, 3, 100)),
    ("many short rows", "tile", "tile", (4101, 100)),
    ("short odd rows", "tile", "tile", (4101, 41)),
    ("odd rows of 53", "tile", "turns", (4101, 53)),
    ("rows of 36", "tile", "tile", (4101, 36)),
    ("odd rows of 61", "tile", "turns", (4101, 61)),
    ("odd rows of 175", "tile", "turns", (4101, 175)),
    ("many odd rows of 37", "threads", "threads", (17003, 37)),
    ("many rows of 34", "threads", "threads", (68003, 34)),
    ("many odd rows of 175", "flat", "turns", (17003, 175)),
    ("odd rows", "tile", "turns", (435, 1001)),
    ("rows in blocks, of which the weight is asked for first", "tile", "tile", (1035, 2880)),
    ("rows and heads", "tile", "tile", (135, 3, 100)),
    ("shared", "tile", "few", (13, 20488)),
    ("wide rows", "tile", "few", (300, 9224)),
    ("shared, however many", "tile", "few", (37, 60008)),
    ("split", "split", "split", (71, 70008)),
    ("few of the widest odd rows", "split", "few_split", (7, 70001)),
    ("many split odd rows", "odd_split", "split_turns or split", (71, 70001)),
    ("few of the widest rows", "split", "few_split", (29, 70008)),
    ("wide rows that clusters share", "split", "few", (37, 70008)),
    ("few wide odd rows", "tile", "few", (35, 9001)),
    ("wide odd rows", "odd", "split_turns", (533, 9001)),
    ("stream", "stream", "stream", (35, 5001)),
]
#: Without a residual, which leaves room to ask for weight and bias ahead, and many odd rows pass through shared memory;
#: the last ones end inside 16 bytes. Of 12,001 columns LayerNorm's weight and bias share registers.
NORMS = ("rms_norm", "layer_norm")
ALONE: list[tuple[str, str, int | None, tuple[int, int], tuple[str, ...]]] = [
    ("wide rows alone", "tile", 1, (137, 50008), NORMS),
    ("wide odd rows alone", "odd_split", None, (300, 28673), NORMS),
    ("few odd rows alone", "tile", None, (35, 7001), NORMS),
    ("many of the shortest odd rows alone", "threads", None, (34003, 93), NORMS),
    ("many short odd rows alone", "flat", None, (12003, 171), NORMS),
    ("many odd rows of 389 alone", "flat", None, (5003, 389), NORMS),
    ("many odd rows alone", "odd", None, (803, 4099), NORMS),
    ("many wide odd rows alone", "odd", None, (301, 12001), NORMS),
]
#: And the backward, which has a ring; the last rows of 10,001 columns end inside 16 bytes. Two of LayerNorm's groups
#: share a partial row.
RINGS = [
    ("ring", (600, 10000), "rms_norm"),
    ("ring", (601, 10008), "rms_norm"),
    ("ring_turns", (603, 10001), "rms_norm"),
    ("ring_turns", (603, 10004), "rms_norm"),
    ("ring", (601, 9984), "layer_norm"),
    ("ring", (271, 70008), "layer_norm"),
    ("ring_turns", (603, 10001), "layer_norm"),
    ("ring_turns", (271, 70001), "layer_norm"),
]

#: Kind of scaling and shape, row-wise and both ways: rows and columns that fill no tile, and that fill all but one.
FP8_PROBLEMS = [
    ("static", (131, 1001)),
    ("token", (133, 3001)),
    ("block", (129, 1001)),
    ("block", (160, 2880)),
    ("mx", (127, 200)),
]


def main() -> None:
    for name, forward, backward, shape in PROBLEMS:
        for op in NORMS:
            schedules = tuple(either.split(" or ")[-(op == "layer_norm")] for either in (forward, backward))
            with streaming() if forward == "stream" else nullcontext():
                step(name, schedules, shape, op)
    for name, forward, ahead, shape, ops in ALONE:
        for op in ops:
            alone(name, (forward, ahead), shape, op)
    for kind, shape in FP8_PROBLEMS:
        quantize(kind, shape)
    with in_force.override(centred_ring_rows=(1, 1)):
        for schedule, shape, op in RINGS:
            ring(schedule, shape, op)
    with in_force.override(patience=0):
        step("split, without waiting", ("split", "split"), (71, 70008), "layer_norm")
    with in_force.override(staged_from=0):
        quantize("block", (384, 7168))
    print("all schedules ran")


def step(name: str, schedules: tuple[str, ...], shape: tuple[int, ...], op: str) -> None:
    cols = shape[-1]
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    residual = torch.randn_like(x).requires_grad_()
    weight = torch.randn(cols, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn_like(weight).requires_grad_()
    plan = onepass.explain(x, weight, bias, op=op, residual=residual)
    assert plan.forward is not None and plan.backward is not None
    assert (plan.forward.schedule, plan.backward.schedule) == schedules, str(plan)
    y, total = getattr(onepass, op)(x, weight, bias, residual=residual)
    torch.autograd.backward([y, total], [torch.randn_like(y), torch.randn_like(total)])
    torch.cuda.synchronize()
    assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in (x, residual, weight, bias))
    print(f"{op:10} {name}: {plan.forward} | {plan.backward}")


def ring(schedule: str, shape: tuple[int, int], op: str) -> None:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn_like(weight).requires_grad_()
    plan = onepass.explain(x, weight, bias, op=op)
    assert plan.backward is not None and plan.backward.schedule == schedule, str(plan)
    y = getattr(onepass, op)(x, weight, bias)
    y.backward(torch.randn_like(y))
    torch.cuda.synchronize()
    assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in (x, weight, bias))
    print(f"{op:10} {schedule}: {plan.forward} | {plan.backward}")


def alone(name: str, meant: tuple[str, int | None], shape: tuple[int, int], op: str) -> None:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
    bias = torch.randn_like(weight) if op == "layer_norm" else None
    plan = onepass.explain(x, weight, bias, op=op)
    assert plan.forward is not None and (plan.forward.schedule, plan.forward.ahead) == meant, str(plan)
    y = getattr(onepass, op)(x, weight, bias)
    torch.cuda.synchronize()
    assert bool(y.isfinite().all())
    print(f"{op:10} {name}: {plan.forward}")


def quantize(kind: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
    given = {"scale": torch.ones((), device="cuda")} if kind == "static" else {}
    for columnwise in (False, True):
        q = onepass.rms_norm(x, weight, quantize=onepass.Fp8(kind, columnwise=columnwise, **given))
        torch.cuda.synchronize()
        assert bool(q.dequantize().isfinite().all())
    print(f"FP8 {kind}: {shape}")


if __name__ == "__main__":
    main()
