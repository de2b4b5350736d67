"""Which schedule, tile and grid a call would get: the planner's answer in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onepass.checks import Options, checked
from onepass.route import REFERENCE, route_of
from onepass.spec import Norm, Problem

if TYPE_CHECKING:
    from onepass.plan.plans import Plan

#: The operations, and the eps each one has by default.
EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}


@dataclass(frozen=True)
class Explanation:
    """What would run. `forward` and `backward` are None where the reference computes the call."""

    norm: Norm
    problem: Problem
    device: torch.device
    forward: Plan | None = None
    backward: Plan | None = None
    copies: bool = False

    def __str__(self) -> str:
        name = "layer_norm" if self.norm.centred else "rms_norm"
        p = self.problem
        lanes = "" if p.lanes == 1 else f" x {p.lanes:,} lanes"
        first = f"{name} of {p.rows:,} rows{lanes} x {p.cols:,} columns, {p.x} to {p.y}, on {self.device}"
        if self.forward is None or self.backward is None:
            return f"{first}\n  computed in plain PyTorch"
        copied = "\n  x is copied first: its rows have more than two levels of strides" if self.copies else ""
        return f"{first}\n  forward   {self.forward}\n  backward  {self.backward}{copied}"


def explain(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    op: str = "rms_norm",
    residual: Tensor | None = None,
    **options: Any,
) -> Explanation:
    """What `rms_norm` (or `op="layer_norm"`) would do with these arguments: schedule, tile, programs; both passes.

    Takes the same options and launches nothing. The backward is that of a dense gradient.

    Example:
        >>> import torch, onepass
        >>> print(onepass.explain(torch.randn(4, 64)))
        rms_norm of 4 rows x 64 columns, torch.float32 to torch.float32, on cpu
          computed in plain PyTorch
    """
    if op not in EPS:
        raise ValueError(f"op must be one of {', '.join(map(repr, EPS))}, not {op!r}")
    asked = Options(**({"centred": op == "layer_norm", "eps": EPS[op]} | options))
    norm, problem = checked(asked, x, weight, bias, residual)
    if route_of(x, weight, bias, residual) is REFERENCE:
        rows = x.numel() // max(1, problem.cols)
        return Explanation(norm, replace(problem, rows=rows), x.device)
    from onepass.backward import Backward, Needs
    from onepass.forward import Forward
    from onepass.plan.layout import contiguous_strides

    call = Forward(norm, problem, x, residual)
    dense = contiguous_strides(x.shape)
    normalized = x.stride() if problem.sum is None else dense
    needs = Needs(True, False, weight is not None, bias is not None)
    backward = Backward(norm, call.problem, x.shape, x.device, (dense, None, normalized), needs, asked.inplace_backward)
    _, aligned = call.place.handles((x, weight, bias, residual), call.align(True))
    forward = call.plan(aligned)
    return Explanation(norm, call.problem, x.device, forward, backward.plan(), call.copies)
