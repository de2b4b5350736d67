"""rms_norm and layer_norm: what a person calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from onepass import reference
from onepass.checks import Options, check_quantize, checked
from onepass.fp8 import Fp8, Quantized, definition
from onepass.route import DIRECT, INTERPRETED, OPS, Route, route_of


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    offset: float = 0,  # no 0.0, which torch.compile(dynamic=True) takes for a symbol: 7 us of each call
    cast: str = "output",
    round_residual: bool = False,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    inplace_backward: bool = False,
    autotune: bool | None = None,
    quantize: Fp8 | None = None,
) -> Any:
    """Root-mean-square normalization of the last dimension: `x · rsqrt(mean(x²) + eps) · (weight + offset) + bias`.

    Args:
        x: any leading dimensions, dense in the last one. Leading dimensions may be strided, a query slice of a fused
            qkv tensor for instance; up to two levels of strides are read as they are, more are copied.
        weight, bias: `(N,)`, or `(heads, N)` for x of shape `(..., heads, N)`.
        eps: added to the mean square.
        residual: of x's shape; then `x + residual` is normalized, and the sum comes back as a second result.
        offset: added to the weight, in fp32 (1.0 for Gemma and for zero-centred weights).
        cast: where values are rounded: "output" once at the end (torch, Gemma, OLMo2; also spelled "gemma"), "llama"
            before the weight too (Llama, Qwen3 and most of transformers), "t5" to the weight's dtype before the
            weight, "none" after every operation.
        round_residual: round the sum to its dtype before it is normalized (vLLM, Liger), not after (FlashInfer).
        out_dtype: dtype of the output; by default the one that the model's own class returns.
        residual_dtype: dtype of the returned sum; by default the residual's. Without a residual it asks for x itself
            in that dtype, to begin a residual stream.
        inplace_backward: let the backward write the gradient of x over the gradient of the output. Saves memory, and
            is wrong wherever that gradient is used again: when the output also feeds something else whose backward
            keeps it, with hooks or `retain_grad` on the output, or a second backward over the same graph.
            Ignored under torch.compile, which plans memory itself.
        autotune: search, at the first call of a problem (shape but for the rows, dtypes, options), for the fastest
            plan on this GPU, and keep it on disk; it compiles every candidate, which takes a while. False never
            searches; None does so where `ONEPASS_AUTOTUNE=1` is set. Whichever it is, what was found before is used.
            Under torch.compile nothing is searched for.
        quantize: give the output in FP8, as an `onepass.Fp8` says (docs/fp8.md).

    Returns:
        `y`, or `(y, x + residual)` with a residual or a `residual_dtype`; with `quantize`, an `onepass.Quantized`.

    Example:
        >>> import torch, onepass
        >>> x, weight = torch.randn(4, 64), torch.ones(64)
        >>> onepass.rms_norm(x, weight).shape
        torch.Size([4, 64])
    """
    options = (False, eps, offset, cast, round_residual, out_dtype, residual_dtype, inplace_backward, autotune)
    return normalize(options, x, weight, bias, residual, quantize)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    offset: float = 0,
    cast: str = "output",
    round_residual: bool = False,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    inplace_backward: bool = False,
    autotune: bool | None = None,
    quantize: Fp8 | None = None,
) -> Any:
    """Layer normalization of the last dimension: `(x - mean) · rsqrt(var + eps) · (weight + offset) + bias`.

    Takes the same arguments as `rms_norm` (except `cast="none"`) and returns the same things.

    Example:
        >>> import torch, onepass
        >>> x = torch.randn(4, 64)
        >>> y, total = onepass.layer_norm(x, torch.ones(64), torch.zeros(64), residual=torch.randn(4, 64))
        >>> total.shape
        torch.Size([4, 64])
    """
    options = (True, eps, offset, cast, round_residual, out_dtype, residual_dtype, inplace_backward, autotune)
    return normalize(options, x, weight, bias, residual, quantize)


def normalize(
    options: tuple[Any, ...],
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    fp8: Fp8 | None = None,
) -> Any:
    """Send a call down its road; see `route.py`. `options` are those of `Options`, which takes a while to make."""
    if is_compiling() and fp8 is None and (INTERPRETED or x.is_cuda):
        # OPS, by a way with as few names as can be: what dynamo looks up here, guards look up again at every call.
        from onepass.ops import normalize as as_op

        return as_op(options, x, weight, bias, residual)
    route = route_of(x, weight, bias, residual)
    if fp8 is not None:
        return _quantize(route, Options(*options), x, weight, bias, residual, fp8)
    if route is DIRECT:
        return _eager().normalize(options, x, weight, bias, residual)
    if route is OPS:
        from onepass import ops

        return ops.normalize(options, x, weight, bias, residual)
    asked = Options(*options)
    norm, problem = checked(asked, x, weight, bias, residual)
    y, total = reference.normalize(norm, x, weight, bias, residual, problem.y, asked.residual_dtype)
    return y if total is None else (y, total)


def _quantize(
    route: Route, options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
    fp8: Fp8,
) -> Quantized:  # fmt: skip
    norm, problem = checked(options, x, weight, bias, residual)
    check_quantize(fp8, x)
    if route is DIRECT:
        return _eager().quantize(options, x, weight, bias, residual, fp8)
    if route is OPS:
        from onepass import ops

        return ops.quantize(options, x, weight, bias, residual, fp8)
    y, total = reference.normalize(norm, x, weight, bias, residual, torch.float32, options.residual_dtype)
    q = definition.quantize(y, fp8, problem.y, residual=total)
    return replace(q, straight_through=y.to(problem.y) if q.unquantized is None else q.unquantized)


def quantize(x: Tensor, fp8: Fp8) -> Quantized:
    """x in FP8, as `fp8` says (docs/fp8.md). Gradients go straight through.

    Example:
        >>> import torch, onepass
        >>> q = onepass.quantize(torch.tensor([[1.0, -2.0, 0.0]]), onepass.Fp8("token"))
        >>> q.data.float(), q.scale.shape
        (tensor([[ 224., -448.,    0.]]), torch.Size([1, 1]))
    """
    options = Options(False, 1.0)
    checked(options, x, None, None, None)
    check_quantize(fp8, x)
    route = route_of(x, None, None, None)
    if route is DIRECT:
        q = _eager().quantize_alone(x.detach(), fp8)
    elif route is OPS:
        from onepass import ops

        q = ops.quantize_alone(x.detach(), fp8)
    else:
        q = definition.quantize(x.detach(), fp8)
    return replace(q, unquantized=x if fp8.also_unquantized else None, straight_through=x)


def transpose_fp8(q: Quantized) -> Quantized:
    """q with its transpose (N, M), byte for byte, and the same scales: one for the tensor, or one a row of q.

    Groups of the transpose run down the columns, and cannot be had from values that were rounded by rows: quantize
    with `columnwise=True` for these.

    Example:
        >>> import torch, onepass
        >>> onepass.transpose_fp8(onepass.quantize(torch.randn(2, 3, 8), onepass.Fp8("tensor"))).data_t.shape
        torch.Size([8, 6])
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"q must be a Quantized, not {type(q).__name__}")
    definition.check_transposable(q)
    if route_of(q.data, None, None, None) is not DIRECT or q.data.numel() == 0 or not q.data.is_contiguous():
        return definition.transpose_fp8(q)
    return definition.with_transpose(q, _eager().transposed(q.data))


@cache
def _eager() -> Any:
    """Imported at the first call that has kernels; and once, because an import statement takes a microsecond."""
    from onepass import eager

    return eager
