"""The plain eager road: one dictionary look-up from what a call looks like to a call that is ready to run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onepass.autograd import QuantizedNormFunction, apply_directly
from onepass.checks import Options, checked
from onepass.forward import Forward
from onepass.fp8 import Fp8, Quantized
from onepass.fp8.forward import QuantizedForward, transpose_step
from onepass.handover import Place
from onepass.plan import in_force
from onepass.search import may_search, search
from onepass.spec import Norm, Problem

#: Calls seen so far: a handful in training, one for each number of tokens in a server. Past the limit we start over.
_calls: dict[Any, Forward] = {}
_quantized_calls: dict[Any, QuantizedForward] = {}
MAX_CALLS = 16384


def call_of(
    options: tuple[Any, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> Forward:
    """The ready call; a new one is checked first, and nothing is launched if it is refused."""
    try:
        # Spelled out, because every call pays for it.
        key = (
            options, in_force.generation(), x.shape, x.stride(), x.dtype, x.device,
            None if weight is None else (weight.shape, weight.stride(), weight.dtype, weight.device),
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
            None if residual is None else (residual.shape, residual.stride(), residual.dtype, residual.device),
        )  # fmt: skip
        call = _calls.get(key)
    except (AttributeError, TypeError):  # not even a key can be made of it
        checked(Options(*options), x, weight, bias, residual)
        raise
    if call is None:
        asked = Options(*options)
        norm, problem = checked(asked, x, weight, bias, residual)
        if may_search(asked, x):
            search(asked, x, weight, bias, residual)
            key = (options, in_force.generation(), *key[2:])  # what was found is in force from here on
        if len(_calls) >= MAX_CALLS:
            _calls.clear()
        call = _calls[key] = Forward(norm, problem, x, residual, asked.inplace_backward)
    return call


def quantize_alone(x: Tensor, fp8: Fp8, lasting: bool = True) -> Quantized:
    """Quantization without a norm. `lasting`: see handover.Place."""
    key = (fp8.key, lasting, in_force.generation(), x.shape, x.stride(), x.dtype, x.device)
    call = _quantized_calls.get(key)
    if call is None:
        if len(_quantized_calls) >= MAX_CALLS:
            _quantized_calls.clear()
        problem = Problem(1, 1, x.shape[-1], x.dtype, x.dtype)
        # The output is x, and nothing needs to write it again.
        asked = replace(fp8, also_unquantized=False)
        norm = Norm(False, 1.0, identity=True)
        call = _quantized_calls[key] = QuantizedForward(norm, problem, x, None, asked, lasting)
    return call(x, None, None, None, False, fp8)[0]


def transposed(data: Tensor) -> Tensor:
    """(N, M), copied."""
    rows, cols = data.numel() // data.shape[-1], data.shape[-1]
    columns = torch.empty((cols, rows), dtype=data.dtype, device=data.device)
    place, step = Place(data.device), transpose_step(rows, cols)
    with torch.cuda.device(data.device) if data.is_cuda else nullcontext():
        launch = step.compiled(data.device)(step.plan.programs, step.scalars)
        launch(place.stream(), *place.own_handles([data.view(torch.uint8), columns.view(torch.uint8)]))
    return columns


def quantized_call_of(
    options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, fp8: Fp8,
    lasting: bool = True,
) -> QuantizedForward:  # fmt: skip
    """The same for an FP8 output; the options are part of what it is kept by, the tensors among them are not."""
    plain = call_of(options, x, weight, bias, residual)  # which checks
    key = (plain, fp8.key, lasting)
    call = _quantized_calls.get(key)
    if call is None:
        if len(_quantized_calls) >= MAX_CALLS:
            _quantized_calls.clear()
        norm, problem = checked(options, x, weight, bias, residual)
        call = _quantized_calls[key] = QuantizedForward(norm, problem, x, residual, fp8, lasting)
    return call


def quantize(
    options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, fp8: Fp8
) -> Quantized:
    call = quantized_call_of(options, x, weight, bias, residual, fp8)
    given = (x, weight, bias, residual)
    if not torch.is_grad_enabled() or not any(tensor is not None and tensor.requires_grad for tensor in given):
        return call(x, weight, bias, residual, False, fp8)[0]
    made: list[Quantized] = []
    through = QuantizedNormFunction.apply(call, fp8, made, x, weight, bias, residual)
    y, total = (through, None) if isinstance(through, Tensor) else through
    return replace(
        made[0], unquantized=y if fp8.also_unquantized else None, residual=total, straight_through=y
    )  # fmt: skip


def normalize(
    options: tuple[Any, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> Any:
    call = call_of(options, x, weight, bias, residual)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ):
        return apply_directly(call, x, weight, bias, residual)
    y, total, _, _ = call(x, weight, bias, residual, False)
    return y if total is None else (y, total)
