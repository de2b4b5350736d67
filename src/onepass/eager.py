"""The plain eager road: one dictionary look-up from what a call looks like to a call that is ready to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.autograd import apply_directly
from onepass.checks import Options, checked
from onepass.forward import Forward
from onepass.plan import planner
from onepass.search import may_search, search

#: Calls seen so far: a handful in training, one for each number of tokens in a server. Past the limit we start over.
_calls: dict[Any, Forward] = {}
MAX_CALLS = 16384


def call_of(
    options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> Forward:
    """The ready call; a new one is checked first, and nothing is launched if it is refused."""
    try:
        # Spelled out, because every call pays for it.
        key = (
            options, planner.generation(), x.shape, x.stride(), x.dtype, x.device,
            None if weight is None else (weight.shape, weight.stride(), weight.dtype, weight.device),
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
            None if residual is None else (residual.shape, residual.stride(), residual.dtype, residual.device),
        )  # fmt: skip
        call = _calls.get(key)
    except (AttributeError, TypeError):  # not even a key can be made of it
        checked(options, x, weight, bias, residual)
        raise
    if call is None:
        norm, problem = checked(options, x, weight, bias, residual)
        if may_search(options, x):
            search(options, x, weight, bias, residual)
            key = (options, planner.generation(), *key[2:])  # what was found is in force from here on
        if len(_calls) >= MAX_CALLS:
            _calls.clear()
        call = _calls[key] = Forward(norm, problem, x, residual, options.inplace_backward)
    return call


def normalize(options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None) -> Any:
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
