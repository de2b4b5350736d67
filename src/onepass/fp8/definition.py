"""The definition: every kind of FP8 quantization in plain PyTorch, to be read beside docs/fp8.md.

CPU tensors are computed here, and the kernels are held to this bit by bit. `scales.py` has the formulas for scales.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.fp8.layouts import lay_out
from onepass.fp8.result import Quantized
from onepass.fp8.scales import Steps, given_steps, steps_from
from onepass.fp8.spec import Fp8
from onepass.spec import DTYPES

#: Kinds with one scale for the tensor, which the transpose shares.
ONE_SCALE = ("static", "delayed", "tensor")


def quantize(
    y: Tensor, fp8: Fp8, like_dtype: torch.dtype | None = None, *, residual: Tensor | None = None
) -> Quantized:
    """`y` in FP8, as `fp8` says. `like_dtype` is the dtype of the unquantized output, by default y's.

    A norm hands in its fp32 result with the dtype that its output would have. `residual` is passed through.

    Example:
        >>> import torch
        >>> from onepass.fp8 import Fp8, definition
        >>> q = definition.quantize(torch.tensor([[1.0, -2.0, 0.0]]), Fp8("token"))
        >>> q.data.float(), q.dequantize()
        (tensor([[ 224., -448.,    0.]]), tensor([[ 1., -2.,  0.]]))
    """
    _check(y, fp8)
    output = y.to(like_dtype or y.dtype)
    values = (output if fp8.round_first else y).detach().to(torch.float32)
    rows = values.reshape(math.prod(y.shape[:-1]), y.shape[-1])
    q = _by_one_scale(rows, fp8) if fp8.scaling in ONE_SCALE else _by_group(rows, fp8)
    if fp8.scaling not in ONE_SCALE and fp8.layout == "row":
        q = replace(q, scale=q.scale.reshape(*y.shape[:-1], q.scale.shape[-1]))
    unquantized = output if fp8.also_unquantized else None
    return replace(q, data=q.data.reshape(y.shape), unquantized=unquantized, residual=residual)


def transpose_fp8(q: Quantized) -> Quantized:
    """q with its transpose (N, M), byte for byte, and the same scales: one for the tensor, or one a row of q.

    Groups of the transpose run down the columns, and cannot be had from values that were rounded by rows.

    Example:
        >>> import torch
        >>> from onepass.fp8 import Fp8, definition
        >>> q = definition.quantize(torch.randn(2, 3, 8), Fp8("tensor"))
        >>> definition.transpose_fp8(q).data_t.shape
        torch.Size([8, 6])
    """
    check_transposable(q)
    return with_transpose(q, _transposed(q.data.reshape(math.prod(q.data.shape[:-1]), q.data.shape[-1])))


def check_transposable(q: Quantized) -> None:
    if q.block is not None:
        raise ValueError(
            f"q must have one scale for the tensor or one a row, not one for every {q.block} columns: "
            "quantize with columnwise=True instead"
        )


def with_transpose(q: Quantized, data_t: Tensor) -> Quantized:
    return replace(q, data_t=data_t, scale_t=q.scale if q.scale.dim() == 0 else q.scale.reshape(1, -1))


def _by_one_scale(rows: Tensor, fp8: Fp8) -> Quantized:
    amax = None
    if fp8.scaling == "tensor":
        amax = _amax(rows.reshape(-1))
        steps = steps_from(amax, fp8)
    else:
        steps = given_steps(fp8)
    if fp8.amax is not None:
        amax = fp8.amax
        amax.copy_(torch.maximum(amax, _amax(rows.reshape(-1))))
    q = Quantized(_converted(rows, steps, fp8), steps.scale, amax=amax)
    return transpose_fp8(q) if fp8.columnwise else q


def _by_group(rows: Tensor, fp8: Fp8) -> Quantized:
    data, scale = _groups_quantized(rows, fp8)
    q = Quantized(data, scale, block=fp8.block, layout=fp8.layout or "row")
    if not fp8.columnwise:
        return q
    if fp8.block is None:
        return transpose_fp8(q)
    data_t, scale_t = _groups_quantized(rows.t(), fp8)
    if fp8.columnwise_order == "rows":
        data_t = _transposed(data_t).t()
    return replace(q, data_t=data_t, scale_t=scale_t)


def _groups_quantized(rows: Tensor, fp8: Fp8) -> tuple[Tensor, Tensor]:
    """Rows and their scales, laid out. The last group of a row may be short: it is filled up with zeros for amax."""
    count, cols = rows.shape
    width = cols if fp8.block is None else fp8.block
    groups = 1 if fp8.block is None else -(-cols // width)
    grouped = F.pad(rows, (0, groups * width - cols)).reshape(count, groups, width)
    steps = steps_from(_amax(grouped), fp8)
    spread = Steps(steps.scale, steps.factor[..., None], steps.divides)
    data = _converted(grouped, spread, fp8).view(torch.uint8).reshape(count, groups * width)[:, :cols]
    return data.contiguous().view(fp8.dtype), lay_out(steps.scale, fp8.layout or "row")


def _converted(values: Tensor, steps: Steps, fp8: Fp8) -> Tensor:
    """To nearest, ties to even, saturating. What is not finite is NaN, and every NaN is the byte 0x7F."""
    scaled = values / steps.factor if steps.divides else values * steps.factor
    lost = scaled.isnan() | ~values.isfinite()
    return torch.where(lost, math.nan, scaled.clamp(-fp8.largest, fp8.largest)).to(fp8.dtype)


def _amax(values: Tensor) -> Tensor:
    """Largest magnitude along the last dimension, NaN if there is one; 0 of nothing."""
    if values.shape[-1] == 0:
        return values.new_zeros(values.shape[:-1])
    return values.abs().amax(-1)


def _transposed(rows: Tensor) -> Tensor:
    """(N, M), copied. Through bytes, as not every device moves FP8."""
    return rows.view(torch.uint8).t().contiguous().view(rows.dtype)


def _check(y: Tensor, fp8: Fp8) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"x must be a tensor, not {type(y).__name__}")
    if y.dtype not in DTYPES:
        raise ValueError(f"x must be {', '.join(map(str, DTYPES[:-1]))} or {DTYPES[-1]}, not {y.dtype}")
    if y.dim() == 0:
        raise ValueError("x must have at least one dimension, not none")
    if not isinstance(fp8, Fp8):
        raise TypeError(f"quantize must be an Fp8, not {type(fp8).__name__}")
    fp8.check_device(y.device)
