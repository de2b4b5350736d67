"""The torch.library ops: for torch.compile, torch.export, dispatch modes and tensor subclasses.

Two ops with schemas of a fixed arity; a tensor that a call does not have comes back empty. They are defined with
`define`/`impl`, which costs about 2 us a call where `custom_op` costs 5. Plain eager calls do not come through here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from onepass import traced
from onepass.autograd import SECOND_DERIVATIVE, gradients_of
from onepass.backward import Backward, Backwards, Needs
from onepass.checks import Options, checked
from onepass.eager import MAX_CALLS, call_of
from onepass.forward import Forward
from onepass.plan import planner
from onepass.route import INTERPRETED
from onepass.spec import CASTS, Norm, Problem

Dtype = torch.dtype

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

torch.library.define(
    "onepass::norm",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, bool centred, float eps, float offset, str cast, "
    "bool round_residual, ScalarType? out_dtype, ScalarType? residual_dtype, bool stats) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)",
    tags=_TAGS,
)
torch.library.define(
    "onepass::norm_backward",
    "(Tensor dy, Tensor? dsum, Tensor h, Tensor? weight, Tensor mean, Tensor rstd, bool centred, float eps, "
    "float offset, str cast, ScalarType x_dtype, ScalarType? bias_dtype, ScalarType? residual_dtype, bool per_head, "
    "bool[4] needs) -> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)",
    tags=_TAGS,
)


def normalize(options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None) -> Any:
    # `inplace_backward` and `autotune` stay behind: a functional op does not write to what it was given.
    given = (x, weight, bias, residual)
    stats = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)
    y, total, _, _ = torch.ops.onepass.norm(*given, *options[:7], stats)
    return y if residual is None and options.residual_dtype is None else (y, total)


def _or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    # As outputs are made in handover.py, and for the same reason.
    return torch.empty_like(_nothing(like.dtype, like.device)) if tensor is None else tensor


@cache
def _nothing(dtype: Dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _norm(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> tuple[Tensor, ...]:
    *options, stats = rest
    y, total, mean, rstd = call_of(Options(*options), x, weight, bias, residual)(x, weight, bias, residual, stats)
    return y, _or_empty(total, x), _or_empty(mean, x), _or_empty(rstd, x)


@torch.library.register_fake("onepass::norm")
def _norm_fake(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> tuple[Tensor, ...]:
    *options, stats = rest
    norm, problem = checked(Options(*options), x, weight, bias, residual)
    rstd = x.new_empty(x.shape[:-1], dtype=torch.float32) if stats else x.new_empty(0)
    return (
        x.new_empty(x.shape, dtype=problem.y),
        x.new_empty(0) if problem.sum is None else x.new_empty(x.shape, dtype=problem.sum),
        torch.empty_like(rstd) if norm.centred and stats else x.new_empty(0),
        rstd,
    )


def _norm_traced(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> tuple[Tensor, ...] | None:
    *options, stats = rest

    def build() -> Forward:
        return Forward(*checked(Options(*options), x, weight, bias, residual), x, residual)

    results = traced.forward(build, x, weight, bias, residual, stats)
    if results is None:
        return None
    return tuple(results[name] if name in results else x.new_empty(0) for name in ("y", "sum", "mean", "rstd"))


_backwards: dict[Any, Backwards] = {}


def _backward_call(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None,
    centred: bool, eps: float, offset: float, cast: str, x_dtype: Dtype, bias_dtype: Dtype | None,
    residual_dtype: Dtype | None, per_head: bool, needs: list[bool],
) -> Backward:  # fmt: skip
    norm = Norm(centred, eps, offset, CASTS[cast])
    weight_dtype = None if weight is None else weight.dtype
    # What was normalized is x itself, or a sum in a dtype of its own; for the backward these are the same thing, and
    # it must be planned as the one that an eager call plans.
    total = None if residual_dtype is None and h.dtype == x_dtype else h.dtype
    problem = Problem(
        1, 1, h.shape[-1], x_dtype, dy.dtype, weight_dtype, bias_dtype, residual_dtype, total, per_head
    )  # fmt: skip
    key = (norm, problem, planner.generation(), h.shape, h.device)
    backwards = _backwards.get(key)
    if backwards is None:
        if len(_backwards) >= MAX_CALLS:
            _backwards.clear()
        backwards = _backwards[key] = Backwards(norm, problem, h.shape, h.device)
    return backwards(dy, dsum, h, Needs(*needs))


def _norm_backward(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    centred: bool, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    call = _backward_call(dy, dsum, h, weight, centred, *rest)
    results = call(dy, dsum, h, weight, mean if centred else None, rstd)
    return tuple(_or_empty(result, h) for result in results)


def _norm_backward_traced(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    centred: bool, *rest: Any,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    def build() -> Backward:
        return _backward_call(dy, dsum, h, weight, centred, *rest)

    results = traced.backward(build, dy, dsum, h, weight, mean if centred else None, rstd)
    if results is None:
        return None
    names = ("dx", "dresidual", "dweight", "dbias")
    return tuple(results[name] if name in results else h.new_empty(0) for name in names)


@torch.library.register_fake("onepass::norm_backward")
def _norm_backward_fake(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    centred: bool, eps: float, offset: float, cast: str, x_dtype: Dtype, bias_dtype: Dtype | None,
    residual_dtype: Dtype | None, per_head: bool, needs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    affine = h.shape[-2:] if per_head else h.shape[-1:]
    shapes = (h.shape, h.shape, affine, affine)
    dtypes = (x_dtype, residual_dtype, None if weight is None else weight.dtype, bias_dtype)
    return tuple(
        h.new_empty(shape, dtype=dtype) if need else h.new_empty(0)
        for need, shape, dtype in zip(needs, shapes, dtypes, strict=True)
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, residual, centred, eps, offset, cast, _, _, residual_dtype, stats = inputs
    if not stats:
        raise ValueError("stats must be True for a norm that is differentiated, not False")
    _, total, mean, rstd = output
    ctx.summed = residual is not None or residual_dtype is not None
    ctx.mark_non_differentiable(*((mean, rstd) if ctx.summed else (total, mean, rstd)))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(total if ctx.summed else x, weight, mean, rstd)
    affine = weight if weight is not None else bias
    ctx.constants = (
        centred, eps, offset, cast, x.dtype, None if bias is None else bias.dtype,
        None if residual is None else residual.dtype, affine is not None and affine.dim() == 2,
    )  # fmt: skip


def _differentiate(ctx: Any, dy: Any, dsum: Any, *_: Any) -> tuple[Any, ...]:
    h, weight, mean, rstd = ctx.saved_tensors
    x_dtype, residual_dtype = ctx.constants[4], ctx.constants[6]
    dsum = dsum if ctx.summed else None  # an absent sum is an empty tensor, and may get a gradient all the same

    def launch(needs: Needs) -> Any:
        results = torch.ops.onepass.norm_backward(dy, dsum, h, weight, mean, rstd, *ctx.constants, list(needs))
        return tuple(result if need else None for need, result in zip(needs, results, strict=True))

    wanted = ctx.needs_input_grad[:4]
    return *gradients_of(launch, dy, dsum, x_dtype, residual_dtype, wanted), *[None] * 8


def _refuse(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(SECOND_DERIVATIVE)


torch.library.register_autograd("onepass::norm", _differentiate, setup_context=_setup_context)
torch.library.register_autograd("onepass::norm_backward", _refuse)
if not INTERPRETED:
    traced.take_apart("onepass::norm", _norm_traced)
    traced.take_apart("onepass::norm_backward", _norm_backward_traced)
for _device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    torch.library.impl("onepass::norm", _device, _norm)
    torch.library.impl("onepass::norm_backward", _device, _norm_backward)
