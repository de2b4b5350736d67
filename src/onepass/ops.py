"""The torch.library ops: for torch.compile, torch.export, dispatch modes and tensor subclasses.

Two ops with schemas of a fixed arity; a tensor that a call does not have comes back empty. They are defined with
`define`/`impl`, which costs about 2 us a call where `custom_op` costs 5. Plain eager calls do not come through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling, is_exporting

from onepass import eager, graph_ops, inductor, traced
from onepass.autograd import SECOND_DERIVATIVE, gradients_of
from onepass.backward import Needs
from onepass.checks import Options, checked
from onepass.eager import call_of, quantized_call_of
from onepass.fp8 import Fp8, Quantized
from onepass.fp8.forward import Scales
from onepass.fp8.spec import OPTIONS
from onepass.route import INTERPRETED

Dtype = torch.dtype

torch.library.define(
    "onepass::norm",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, bool centred, float eps, float offset, str cast, "
    "bool round_residual, ScalarType? out_dtype, ScalarType? residual_dtype, bool stats) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)",
    tags=graph_ops.TAGS,
)
_norm_op = torch.ops.onepass.norm.default
torch.library.define(
    "onepass::norm_backward",
    "(Tensor dy, Tensor? dsum, Tensor h, Tensor? weight, Tensor mean, Tensor rstd, bool centred, float eps, "
    "float offset, str cast, ScalarType x_dtype, ScalarType? bias_dtype, ScalarType? residual_dtype, bool per_head, "
    "bool[4] needs) -> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)",
    tags=graph_ops.TAGS,
)


torch.library.define(
    "onepass::norm_fp8",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? given, bool centred, float eps, float offset, "
    "str cast, bool round_residual, ScalarType? out_dtype, ScalarType? residual_dtype, bool stats, str scaling, "
    "str format, int? block, bool columnwise, bool also_unquantized, bool power_of_two, float floor, "
    "float? upper_bound, bool round_first, str arithmetic, str layout, str columnwise_order) "
    "-> (Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor data, Tensor scale, Tensor data_t, Tensor scale_t, "
    "Tensor amax)",
    tags=graph_ops.TAGS,
)


torch.library.define(
    "onepass::quantize_fp8",
    "(Tensor x, Tensor? given, str scaling, str format, int? block, bool columnwise, bool also_unquantized, "
    "bool power_of_two, float floor, float? upper_bound, bool round_first, str arithmetic, str layout, "
    "str columnwise_order) -> (Tensor data, Tensor scale, Tensor data_t, Tensor scale_t, Tensor amax)",
    tags=graph_ops.TAGS,
)


def normalize(
    options: tuple[Any, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> Any:
    # `inplace_backward` and `autotune` stay behind: a functional op does not write to what it was given. And nothing
    # is looked up that need not be, any(...) for instance: under torch.compile guards do so again at every call.
    stats = is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    )
    y, total, _, _ = _norm_op(x, weight, bias, residual, *options[:7], stats)
    return y if residual is None and options[6] is None else (y, total)


def quantize(
    options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, fp8: Fp8
) -> Quantized:
    tensors = (x, weight, bias, residual)
    stats = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    given = fp8.multiplier if fp8.scale is None else fp8.scale
    y, total, _, _, *made = torch.ops.onepass.norm_fp8(*tensors, given, *options[:7], stats, *fp8.key)
    summed = residual is not None or options.residual_dtype is not None
    return replace(
        _result(fp8, *made), unquantized=y if fp8.also_unquantized else None, residual=total if summed else None,
        straight_through=y if stats else None,
    )  # fmt: skip


def quantize_alone(x: Tensor, fp8: Fp8) -> Quantized:
    given = fp8.multiplier if fp8.scale is None else fp8.scale
    return _result(fp8, *torch.ops.onepass.quantize_fp8(x, given, *fp8.key))


def _result(fp8: Fp8, data: Tensor, scale: Tensor, data_t: Tensor, scale_t: Tensor, amax: Tensor) -> Quantized:
    """As a user sees it: an op hands out empty tensors for what there is not, and writes to none that it was given."""
    if fp8.amax is not None:
        fp8.amax.copy_(torch.maximum(fp8.amax, amax.reshape(fp8.amax.shape)))
    if fp8.scale is not None:
        scale = fp8.scale.detach().reshape(())
    if fp8.columnwise and fp8.block is None:
        scale_t = scale if fp8.scaling != "token" else scale.reshape(1, -1)
    return Quantized(
        data, scale, data_t if fp8.columnwise else None, scale_t if fp8.columnwise else None,
        fp8.amax if fp8.amax is not None else amax if fp8.scaling == "tensor" else None,
        block=fp8.block, layout=fp8.layout or "row",
    )  # fmt: skip


def _norm_fp8(x: Tensor, weight: Any, bias: Any, residual: Any, given: Any, *rest: Any) -> tuple[Tensor, ...]:
    options, stats, fp8 = Options(*rest[:7]), rest[7], _fp8_of(given, *rest[8:])
    call = quantized_call_of(options, x, weight, bias, residual, fp8, lasting=False)
    q, mean, rstd = call(x, weight, bias, residual, stats, fp8)
    straight = call.straight().detach() if q.unquantized is None else q.unquantized
    found = (straight, q.residual, mean if stats else None, rstd if stats else None)
    return *(_or_empty(tensor, x) for tensor in found), *_parts(q, fp8, x)


def _quantize_fp8(x: Tensor, given: Any, *rest: Any) -> tuple[Tensor, ...]:
    fp8 = _fp8_of(given, *rest)
    return _parts(eager.quantize_alone(x, fp8, lasting=False), fp8, x)


def _parts(q: Quantized, fp8: Fp8, x: Tensor) -> tuple[Tensor, ...]:
    """What is new in a result; not what was given, nor what is a view of something else."""
    scale = None if fp8.scale is not None else q.scale
    found = (q.data, scale, q.data_t, q.scale_t if fp8.block is not None else None, q.amax)
    return tuple(_or_empty(tensor, x) for tensor in found)


@torch.library.register_fake("onepass::norm_fp8")
def _norm_fp8_fake(x: Tensor, weight: Any, bias: Any, residual: Any, given: Any, *rest: Any) -> tuple[Tensor, ...]:
    options, stats, fp8 = Options(*rest[:7]), rest[7], _fp8_of(given, *rest[8:])
    norm, problem = checked(options, x, weight, bias, residual)
    none = x.new_empty(0)
    y = x.new_empty(x.shape if fp8.also_unquantized else (), dtype=problem.y).expand(x.shape)
    total = none if problem.sum is None else x.new_empty(x.shape, dtype=problem.sum)
    rstd = x.new_empty(x.shape[:-1], dtype=torch.float32) if stats else none
    mean = torch.empty_like(rstd) if norm.centred and stats else none
    return y, total, mean, rstd, *_quantize_fp8_fake(x, given, *rest[8:])


@torch.library.register_fake("onepass::quantize_fp8")
def _quantize_fp8_fake(x: Tensor, given: Any, *rest: Any) -> tuple[Tensor, ...]:
    inductor.register_lowerings()
    fp8, none = _fp8_of(given, *rest), x.new_empty(0)
    rows, cols = x.numel() // max(1, x.shape[-1]), x.shape[-1]
    data = x.new_empty(x.shape, dtype=fp8.dtype)
    scales = Scales(fp8, tuple(x.shape[:-1]), rows, cols)
    scale = none if fp8.scale is not None else scales.seen(scales.make(x.device))
    data_t = scale_t = none
    if fp8.columnwise:
        as_rows = fp8.columnwise_order == "rows"
        data_t = x.new_empty((rows, cols) if as_rows else (cols, rows), dtype=fp8.dtype)
        data_t = data_t.t() if as_rows else data_t
        if fp8.block is not None:
            columns = Scales(fp8, (cols,), cols, rows)
            scale_t = columns.seen(columns.make(x.device))
    amax = x.new_empty((), dtype=torch.float32) if fp8.scaling in ("delayed", "tensor") else none
    return data, scale, data_t, scale_t, amax


def _fp8_of(given: Tensor | None, scaling: str, *rest: Any) -> Fp8:
    """The options as they were; a delayed kind's amax is one of its own, to begin with."""
    asked: dict[str, Any] = dict(zip(OPTIONS, (scaling, *rest), strict=True))
    multiplied = asked["arithmetic"] == "multiplier"
    if scaling in ("static", "delayed"):
        asked["multiplier" if multiplied else "scale"] = given
    if scaling == "delayed":
        assert given is not None
        asked["amax"] = torch.zeros((), dtype=torch.float32, device=given.device)
    return Fp8(**asked)


def _or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    # An op gives back tensors, and none of them twice. Made like another, one takes less time than from a dtype.
    return torch.empty_like(_nothing(like.dtype, like.device)) if tensor is None else tensor


def _with_empties(tensors: Iterable[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """While a graph is traced."""
    return tuple(like.new_empty(0) if tensor is None else tensor for tensor in tensors)


@cache
def _nothing(dtype: Dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _norm(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> tuple[Tensor, ...]:
    *options, stats = rest
    made = call_of(Options(*options), x, weight, bias, residual)(x, weight, bias, residual, stats)
    return tuple(_or_empty(tensor, x) for tensor in made)


@torch.library.register_fake("onepass::norm")
def _norm_fake(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    if is_compiling() and not is_exporting():
        int(x.shape[-1])  # a constant of the graph, as torch's normalized_shape is: a symbol takes 2 us of each call
    return _with_empties(graph_ops.outputs_of_norm(x, *rest), x)


def _norm_in_graph(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _with_empties(graph_ops.normalize(x, *rest), x)


def _norm_backward(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *others, needs = rest
    options = (*others, tuple(needs))
    call = graph_ops.backward_call_of(options, options, dy, dsum, h, weight)
    made = call(dy, dsum, h, weight, mean if call.norm.centred else None, rstd)
    return tuple(_or_empty(tensor, h) for tensor in made)


@torch.library.register_fake("onepass::norm_backward")
def _norm_backward_fake(dy: Tensor, dsum: Tensor | None, h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _with_empties(graph_ops.outputs_of_backward(dy, dsum, h, *rest), h)


def _norm_backward_in_graph(
    dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
    centred: bool, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (dy, dsum, h, weight, mean if centred else None, rstd)
    return _with_empties(graph_ops.differentiate(*given, centred, *rest), h)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, residual, centred, eps, offset, cast, _, _, residual_dtype, stats = inputs
    if not stats:
        raise ValueError("stats must be True for a norm that is differentiated, not False")
    _, total, mean, rstd, *quantized = output
    ctx.summed = residual is not None or residual_dtype is not None
    ctx.mark_non_differentiable(*((mean, rstd) if ctx.summed else (total, mean, rstd)), *quantized)
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


def _setup_fp8_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _setup_context(ctx, (*inputs[:4], *inputs[5:13]), output)  # without the scale, and without Fp8's options


def _differentiate_fp8(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    return *_differentiate(ctx, *gradients), None, *[None] * len(OPTIONS)


def _refuse(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(SECOND_DERIVATIVE)


torch.library.register_autograd("onepass::norm", _differentiate, setup_context=_setup_context)
torch.library.register_autograd("onepass::norm_fp8", _differentiate_fp8, setup_context=_setup_fp8_context)
torch.library.register_autograd("onepass::norm_backward", _refuse)
traced.replace_in_graphs("onepass::norm", _norm_in_graph)
traced.replace_in_graphs("onepass::norm_backward", _norm_backward_in_graph)
for _device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    torch.library.impl("onepass::norm", _device, _norm)
    torch.library.impl("onepass::norm_fp8", _device, _norm_fp8)
    torch.library.impl("onepass::quantize_fp8", _device, _quantize_fp8)
    torch.library.impl("onepass::norm_backward", _device, _norm_backward)
inductor.calls_directly(torch.ops.onepass.norm_fp8.default, _norm_fp8)
inductor.calls_directly(torch.ops.onepass.quantize_fp8.default, _quantize_fp8)
