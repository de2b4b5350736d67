"""What a graph of torch.compile has of a call.

The ops of ops.py have gradients of their own, an argument for each option, and as many outputs as a call can have at
the most, of which most are empty: for a small tensor that takes longer than the call itself. These have all options in
one string, hand out a list of what there is, and run what an eager call runs, with its bits. They are behind autograd,
and inductor does without the dispatcher for them (inductor.py). That a graph's kernels were inductor's own to launch
was tried, and is slower: its launch of a user's kernel takes longer than our whole call.

PyTorch keeps compiled graphs on disk, from one version of onepass to the next, and finds them by what was traced before
these ops took its place. So an op of a release stays as it is, and what changes is a new one beside it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from onepass import inductor
from onepass.backward import Backward, Backwards, Needs
from onepass.checks import Options, checked
from onepass.eager import MAX_CALLS
from onepass.forward import Forward
from onepass.plan import in_force
from onepass.route import INTERPRETED
from onepass.spec import CASTS, Norm, Problem

Maybe = Tensor | None

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
torch.library.define(
    "onepass::run_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, str options) -> Tensor[]",
    tags=TAGS,
)
torch.library.define(
    "onepass::run_norm_backward",
    "(Tensor dy, Tensor? dsum, Tensor h, Tensor? weight, Tensor? mean, Tensor rstd, str options) -> Tensor[]",
    tags=TAGS,
)


def normalize(x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe, *rest: Any) -> tuple[Maybe, ...]:
    """As `onepass::norm`, with None for what there is not."""
    kinds = [None if tensor is None else str(tensor.dtype) for tensor in (x, weight, bias, residual)]
    text = _written((*rest, [str(x.device), *kinds]))
    made = torch.ops.onepass.run_norm(x, weight, bias, residual, text)
    return _spread(made, outputs_of_norm(x, weight, bias, residual, *rest))


def differentiate(
    dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor, *rest: Any
) -> tuple[Maybe, ...]:
    """As `onepass::norm_backward`, with None for what there is not."""
    made = torch.ops.onepass.run_norm_backward(dy, dsum, h, weight, mean, rstd, _written(rest))
    return _spread(made, outputs_of_backward(dy, dsum, h, weight, mean, rstd, *rest))


def outputs_of_norm(x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe, *rest: Any) -> tuple[Maybe, ...]:
    """Tensors as y, sum, mean and rstd will be, or None."""
    *options, stats = rest
    norm, problem = checked(Options(*options), x, weight, bias, residual)
    rstd = x.new_empty(x.shape[:-1], dtype=torch.float32) if stats else None
    return (
        x.new_empty(x.shape, dtype=problem.y),
        None if problem.sum is None else x.new_empty(x.shape, dtype=problem.sum),
        torch.empty_like(rstd) if rstd is not None and norm.centred else None,
        rstd,
    )


def outputs_of_backward(
    dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor,
    centred: bool, eps: float, offset: float, cast: str, x_dtype: torch.dtype, bias_dtype: torch.dtype | None,
    residual_dtype: torch.dtype | None, per_head: bool, needs: Sequence[bool],
) -> tuple[Maybe, ...]:  # fmt: skip
    """Tensors as dx, dresidual, dweight and dbias will be, or None."""
    affine = h.shape[-2:] if per_head else h.shape[-1:]
    shapes = (h.shape, h.shape, affine, affine)
    dtypes = (x_dtype, residual_dtype, None if weight is None else weight.dtype, bias_dtype)
    return tuple(
        h.new_empty(shape, dtype=dtype) if need else None
        for need, shape, dtype in zip(needs, shapes, dtypes, strict=True)
    )


def backward_of(
    dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe,
    centred: bool, eps: float, offset: float, cast: str, x_dtype: torch.dtype, bias_dtype: torch.dtype | None,
    residual_dtype: torch.dtype | None, per_head: bool, needs: Sequence[bool],
) -> Backward:  # fmt: skip
    """The backward call that an eager one would have."""
    weight_dtype = None if weight is None else weight.dtype
    # What was normalized is x itself, or a sum in a dtype of its own; for the backward these are the same thing, and
    # it must be planned as the one that an eager call plans.
    total = None if residual_dtype is None and h.dtype == x_dtype else h.dtype
    problem = Problem(
        1, 1, h.shape[-1], x_dtype, dy.dtype, weight_dtype, bias_dtype, residual_dtype, total, per_head
    )  # fmt: skip
    backwards = Backwards(
        Norm(centred, float(eps), float(offset), CASTS[cast]), problem, h.shape, h.device, lasting=False
    )
    return backwards(dy, dsum, h, Needs(*needs))


_backwards: dict[Any, Backward] = {}


def backward_call_of(
    name: Hashable, options: Sequence[Any], dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe
) -> Backward:
    """The ready call. `name` is what the options are known by."""
    key = (
        name, in_force.generation(), h.shape, h.stride(), h.dtype, h.device, dy.stride(), dy.dtype,
        None if dsum is None else dsum.stride(), None if weight is None else weight.dtype,
    )  # fmt: skip
    call = _backwards.get(key)
    if call is None:
        if len(_backwards) >= MAX_CALLS:
            _backwards.clear()
        call = _backwards[key] = backward_of(dy, dsum, h, weight, *options)
    return call


_forwards: dict[Any, tuple[Forward, bool]] = {}


def _run_norm(x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe, text: str) -> list[Tensor]:
    # Not by eager.call_of: nothing is searched for here, and no memory kept (handover.Place). The text has all dtypes,
    # and the device; the shapes of the others follow from x.
    key = (
        text, in_force.generation(), x.shape, x.stride(), None if weight is None else weight.stride(),
        None if bias is None else bias.stride(), None if residual is None else residual.stride(),
    )  # fmt: skip
    ready = _forwards.get(key)
    if ready is None:
        if len(_forwards) >= MAX_CALLS:
            _forwards.clear()
        *options, stats, _ = _read(text)
        norm, problem = checked(Options(*options), x, weight, bias, residual)
        ready = _forwards[key] = Forward(norm, problem, x, residual, lasting=False), stats
    call, stats = ready
    return _present(call(x, weight, bias, residual, stats))


def _run_norm_backward(
    dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor, text: str
) -> list[Tensor]:
    call = backward_call_of(text, _read(text), dy, dsum, h, weight)
    return _present(call(dy, dsum, h, weight, mean, rstd))


@torch.library.register_fake("onepass::run_norm")
def _run_norm_fake(x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe, text: str) -> list[Tensor]:
    inductor.register_lowerings()
    *options_and_stats, _ = _read(text)
    return _present(outputs_of_norm(x, weight, bias, residual, *options_and_stats))


@torch.library.register_fake("onepass::run_norm_backward")
def _run_norm_backward_fake(
    dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor, text: str
) -> list[Tensor]:
    inductor.register_lowerings()
    return _present(outputs_of_backward(dy, dsum, h, weight, mean, rstd, *_read(text)))


def _present(tensors: Iterable[Maybe]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _spread(made: Iterable[Tensor], places: Iterable[Maybe]) -> tuple[Maybe, ...]:
    """What was made, each at its place."""
    remaining = iter(made)
    return tuple(None if place is None else next(remaining) for place in places)


def _written(values: Iterable[Any]) -> str:
    """JSON, but for its quotation marks: inductor does not escape them where it writes a graph down in C++."""
    return json.dumps([str(value) if isinstance(value, torch.dtype) else value for value in values]).replace('"', "'")


@cache
def _read(text: str) -> tuple[Any, ...]:
    values = json.loads(text.replace("'", '"'))
    dtypes = {value: getattr(torch, value.removeprefix("torch.")) for value in values if _is_dtype(value)}
    return tuple(dtypes[value] if _is_dtype(value) else value for value in values)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("torch.")


_library = torch.library.Library("onepass", "FRAGMENT")
for _device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    for _name, _function in (("run_norm", _run_norm), ("run_norm_backward", _run_norm_backward)):
        torch.library.impl(f"onepass::{_name}", _device, _function)
        _library.impl(_name, torch.library.fallthrough_kernel, f"Autograd{_device}")
inductor.calls_directly(torch.ops.onepass.run_norm.default, _run_norm)
inductor.calls_directly(torch.ops.onepass.run_norm_backward.default, _run_norm_backward)
