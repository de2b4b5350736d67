"""The correctness gate: results against a reference in fp64, before a time may be taken from whatever made them.

The reference is written here, in plain PyTorch, and shares nothing with any backend. Residual: the exact sum is
normalized, whichever way a backend rounds it. What FP8 may be off by is in fp8_gate.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from onepass.fp8 import Quantized
from onepass.lab.data.case import Case
from onepass.lab.data.row import Correctness
from onepass.lab.fp8_gate import WHOLE_GROUPS, Fp8Errors
from onepass.lab.inputs import Inputs, wanted

#: Units (eps) of a result's own dtype. Rounding to the nearest number errs by at most half a unit, so the result's own
#: rounding is one half; the other half admits one rounding to that dtype on the way: of the sum with the residual
#: (eager, Liger) or of the statistics that the backward reads again (Liger's LayerNorm). Rounding after every step, the
#: wrong statistic, or a forgotten term is further off, because x has rows of different mean and scale.
RESULT_UNITS = 1.0
#: Units of fp32 for the arithmetic in fp32: sums along a row, rsqrt (approximate in CuTe), and a few products.
FP32_UNITS = 16.0
FP32_EPS = torch.finfo(torch.float32).eps
#: How much further a single value may be off, against its own size and its row's: a billion normal values reach six
#: times their spread, times a weight, and where such terms cancel (dx and the sum's gradient) their rounding remains.
VALUE_UNITS = 8.0
#: Elements of which the reference is computed at once: some ten tensors of 128 MiB.
CHUNK = 1 << 24

#: Which input a result belongs to, and so whose shape and dtype it has.
_OF = {"y": "x", "sum": "residual", "dx": "x", "dweight": "weight", "dbias": "bias", "dresidual": "residual"}
_OVER_ROWS = ("dweight", "dbias")
#: Where a Quantized has what FP8 cases want.
_FIELDS = {"q": "data", "scale": "scale", "q_t": "data_t", "scale_t": "scale_t", "sum": "residual"}


def check(case: Case, inputs: Inputs, outputs: Any) -> Correctness:
    """Hold `outputs`, a tensor, a tuple in the order of `wanted(case)` or with FP8 a Quantized, to the reference.

    `errors` has ‖got - ref‖ / ‖ref‖ of every result, and for those with rows that of its worst row and the error of its
    worst value: one row in 32,768, or one value in a row, is lost in the norm of the whole. A result that cannot be
    compared (shape, dtype, device, NaN) or that lies in the memory of an input has an entry instead that says so, and
    counts above its limit of 0: every number is finite, so that a row remains JSON. FP8 has errors of its own.
    """
    names = wanted(case)
    faults = {f"{name} was overwritten": 1.0 for name in inputs.overwritten()}
    if case.scaling is None:
        results = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    elif isinstance(outputs, Quantized):
        results = tuple(getattr(outputs, _FIELDS[name]) for name in names)
    else:
        faults[f"the result is a {type(outputs).__name__}, not a Quantized"] = 1.0
        return Correctness(faults, dict.fromkeys(faults, 0.0))
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
    if not isinstance(result, Tensor):
        return {f"{name} is a {type(result).__name__}, not a tensor": 1.0}
    shape, dtype = _kind(name, inputs)
    found = {"shape": tuple(result.shape), "dtype": result.dtype, "device": result.device}
    for what, expected in {"shape": shape, "dtype": dtype, "device": inputs.x.device}.items():
        if found[what] != expected:
            return {f"{name} has {what} {found[what]}, not {expected}": 1.0}
    if name in ("q", "q_t") and not result.is_contiguous():  # a transpose that is not written is none
        return {f"{name} is not dense, but has strides {result.stride()}": 1.0}
    memory = result.untyped_storage().data_ptr()
    for owner, tensor in inputs.tensors().items():
        if tensor.untyped_storage().data_ptr() == memory and not owner.startswith("given"):  # which is handed on
            return {f"{name} lies in the memory of {owner}": 1.0}
    numbers = result.float() if result.element_size() == 1 else result  # FP8 knows no arithmetic
    count = result.numel() - int(torch.isfinite(numbers).sum())
    if count:
        return {f"{name} has values that are not finite": float(count)}
    count = int((numbers <= 0).sum()) if name in ("scale", "scale_t") else 0
    return {f"{name} has values that are not positive": float(count)} if count else {}


def _kind(name: str, inputs: Inputs) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype that a result has."""
    x, fp8 = inputs.x, inputs.quantize
    if name in _OF:
        like = inputs.tensors()[_OF[name]]
        return tuple(like.shape), like.dtype
    assert fp8 is not None
    *leading, cols = x.shape
    rows = math.prod(leading)
    if name in ("q", "q_t"):
        return ((*leading, cols) if name == "q" else (cols, rows)), torch.float8_e4m3fn
    if fp8.block is not None:
        shape = (*leading, -(-cols // fp8.block)) if name == "scale" else (cols, -(-rows // fp8.block))
    elif fp8.scaling == "token":
        shape = (*leading, 1) if name == "scale" else (1, rows)
    else:
        shape = ()
    return shape, torch.float8_e8m0fnu if fp8.scaling == "mx" else torch.float32


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
    fp8 = None
    if inputs.quantize is not None:
        step = -(-step // WHOLE_GROUPS) * WHOLE_GROUPS
        fp8 = Fp8Errors(inputs, got, RESULT_UNITS * torch.finfo(inputs.x.dtype).eps, FP32_UNITS * FP32_EPS)
        got = {name: got[name] for name in got if name in _OF}
    for start in range(0, inputs.x.shape[0], step):
        rows = slice(start, start + step)
        reference = _reference(case, inputs, rows)
        if fp8 is not None:
            fp8.add(reference["y"].flatten(0, -2))
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
    limits = {name: _limit(case, name, got[name.split()[0]].dtype, norms) for name in errors}
    quantized = {} if fp8 is None else fp8.errors()
    return errors | quantized, limits | dict.fromkeys(quantized, 1.0)


def _limit(case: Case, name: str, dtype: torch.dtype, norms: dict[str, float]) -> float:
    units = FP32_UNITS
    if name in ("dx", "dresidual"):  # a difference: its fp32 errors have the size of the terms, not of what is left
        units *= max(1.0, norms["terms"] / norms[name])
    if name in _OVER_ROWS:  # n terms of either sign add up to about √n of them, and a running sum's errors to √n units
        units += math.sqrt(case.rows)
    limit = RESULT_UNITS * torch.finfo(dtype).eps + units * FP32_EPS
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
        centred = total - total.mean(-1, keepdim=True) if case.norm == "layer_norm" else total
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
