"""The correctness gate: results against a reference in fp64, before a time may be taken from whatever made them.

The reference is written here, in plain PyTorch, and shares nothing with any backend. Residual: the exact sum is
normalized, whichever way a backend rounds it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from onepass.lab.data.case import Case
from onepass.lab.data.row import Correctness
from onepass.lab.inputs import Inputs, wanted

#: Units (eps) of a result's own dtype. Rounding to the nearest number errs by at most half a unit, so the result's own
#: rounding is one half; the other half admits one rounding to that dtype on the way: of the sum with the residual
#: (eager, Liger) or of the statistics that the backward reads again (Liger's LayerNorm). Rounding after every step, the
#: wrong statistic, or a forgotten term is further off, because x has rows of different mean and scale.
RESULT_UNITS = 1.0
#: Units of fp32 for the arithmetic in fp32: sums along a row, rsqrt (approximate in CuTe), and a few products.
FP32_UNITS = 16.0
#: How much further a single value may be off, against its own size and its row's: a billion normal values reach six
#: times their spread, times a weight, and where such terms cancel (dx and the sum's gradient) their rounding remains.
VALUE_UNITS = 8.0
#: Elements of which the reference is computed at once: some ten tensors of 128 MiB.
CHUNK = 1 << 24

#: Which input a gradient belongs to, and so whose shape and dtype it has.
_OF = {"y": "x", "sum": "residual", "dx": "x", "dweight": "weight", "dbias": "bias", "dresidual": "residual"}
_OVER_ROWS = ("dweight", "dbias")


def check(case: Case, inputs: Inputs, outputs: Any) -> Correctness:
    """Hold `outputs`, a tensor or a tuple in the order of `wanted(case)`, to the reference.

    `errors` has ‖got - ref‖ / ‖ref‖ of every result, and for those with rows that of its worst row and the error of its
    worst value: one row in 32,768, or one value in a row, is lost in the norm of the whole. A result that cannot be
    compared (shape, dtype, device, NaN) or that lies in the memory of an input has an entry instead that says so, and
    counts above its limit of 0: every number is finite, so that a row remains JSON.
    """
    names = wanted(case)
    results = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    faults = {f"{name} was overwritten": 1.0 for name in inputs.overwritten()}
    if len(results) != len(names):
        faults[f"{len(results)} results, not {len(names)}: {', '.join(names)}"] = 1.0
        return Correctness(faults, dict.fromkeys(faults, 0.0))
    sound: dict[str, Tensor] = {}
    for name, result in zip(names, results, strict=True):
        found = _faults(name, result, inputs)
        faults |= found
        if not found:
            sound[name] = result.detach()
    errors, limits = _compare(case, inputs, sound) if sound else ({}, {})
    return Correctness(errors | faults, limits | dict.fromkeys(faults, 0.0))


def _faults(name: str, result: Any, inputs: Inputs) -> dict[str, float]:
    """Why a result cannot be compared, in words."""
    like = inputs.tensors()[_OF[name]]
    if not isinstance(result, Tensor):
        return {f"{name} is a {type(result).__name__}, not a tensor": 1.0}
    for what in ("shape", "dtype", "device"):
        got, expected = getattr(result, what), getattr(like, what)
        if got != expected:
            plain = tuple if what == "shape" else str
            return {f"{name} has {what} {plain(got)}, not {plain(expected)}": 1.0}
    memory = result.untyped_storage().data_ptr()
    for owner, tensor in inputs.tensors().items():
        if tensor.untyped_storage().data_ptr() == memory:
            return {f"{name} lies in the memory of {owner}": 1.0}
    count = result.numel() - int(torch.isfinite(result).sum())
    return {f"{name} has values that are not finite": float(count)} if count else {}


def _compare(case: Case, inputs: Inputs, got: dict[str, Tensor]) -> tuple[dict[str, float], dict[str, float]]:
    """Errors and limits of results that are tensors of the right kind, a chunk of rows at a time."""
    zero = torch.zeros((), dtype=torch.float64, device=inputs.x.device)
    off: dict[str, Tensor] = defaultdict(lambda: zero)  # squared
    size: dict[str, Tensor] = defaultdict(lambda: zero)  # squared
    worst: dict[str, Tensor] = defaultdict(lambda: zero)
    over_rows: dict[str, Tensor] = defaultdict(lambda: zero)

    def add(name: str, actual: Tensor, expected: Tensor, terms: Tensor | None = None) -> None:
        error = (actual.double() - expected).abs_()
        off[name] = off[name] + error.square().sum()
        size[name] = size[name] + expected.square().sum()
        if name in _OVER_ROWS:
            return
        scale = expected.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        if terms is not None:
            scale = torch.maximum(scale, terms.norm(dim=-1, keepdim=True))
        by_row = (error.norm(dim=-1, keepdim=True) / scale).max()
        by_value = (error / (expected.abs() + scale / math.sqrt(case.cols))).max()
        worst[f"{name} worst row"] = torch.maximum(worst[f"{name} worst row"], by_row)
        worst[f"{name} worst value"] = torch.maximum(worst[f"{name} worst value"], by_value)

    step = max(1, CHUNK // inputs.x[0].numel())
    for start in range(0, inputs.x.shape[0], step):
        rows = slice(start, start + step)
        reference = _reference(case, inputs, rows)
        terms = reference.pop("terms", None)
        if terms is not None:
            size["terms"] = size["terms"] + terms.square().sum()
        for name in got:
            if name in _OVER_ROWS:
                over_rows[name] = over_rows[name] + reference[name]
            else:
                add(name, got[name][rows], reference[name], terms)
    for name, expected in over_rows.items():
        add(name, got[name], expected)

    norms = {name: math.sqrt(value.item()) or 1.0 for name, value in size.items()}
    errors = {name: math.sqrt(off[name].item()) / norms[name] for name in got}
    errors |= {name: value.item() for name, value in worst.items()}
    return errors, {name: _limit(case, name, got[name.split()[0]].dtype, norms) for name in errors}


def _limit(case: Case, name: str, dtype: torch.dtype, norms: dict[str, float]) -> float:
    units = FP32_UNITS
    if name in ("dx", "dresidual"):  # a difference: its fp32 errors have the size of the terms, not of what is left
        units *= max(1.0, norms["terms"] / norms[name])
    if name in _OVER_ROWS:  # n terms of either sign add up to about √n of them, and a running sum's errors to √n units
        units += math.sqrt(case.rows)
    limit = RESULT_UNITS * torch.finfo(dtype).eps + units * torch.finfo(torch.float32).eps
    return VALUE_UNITS * limit if name.endswith("worst value") else limit


def _reference(case: Case, inputs: Inputs, rows: slice) -> dict[str, Tensor]:
    """What those rows give, in fp64; "terms" is the first term of dx, rstd · weight · dy, for its size."""
    backward = case.direction == "backward"

    def wide(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().double().requires_grad_(backward)

    total, weight, bias = wide(inputs.x[rows]), wide(inputs.weight), wide(inputs.bias)
    assert total is not None and weight is not None
    if inputs.residual is not None:
        total = (total.detach() + inputs.residual[rows].double()).requires_grad_(backward)
    with torch.set_grad_enabled(backward):
        centred = total - total.mean(-1, keepdim=True) if case.op == "layer_norm" else total
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + case.eps)
        y = centred * rstd * weight
        if bias is not None:
            y = y + bias
    if not backward:
        return {"y": y, "sum": total}
    dy = inputs.dy[rows].double()
    leaves = (total, weight) if bias is None else (total, weight, bias)
    dtotal, dweight, *dbias = torch.autograd.grad(y, leaves, dy)
    if inputs.dsum is not None:
        dtotal = dtotal + inputs.dsum[rows].double()
    terms = (rstd * weight * dy).detach()
    return {"dx": dtotal, "dresidual": dtotal, "dweight": dweight, "terms": terms} | (
        {"dbias": dbias[0]} if dbias else {}
    )
