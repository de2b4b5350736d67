"""The definition: every Norm in plain PyTorch, to be read beside docs/semantics.md.

CPU tensors are computed here, and the kernels are held to this. Differentiable as it stands, twice if need be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.spec import Norm


def _mean(rows: Tensor) -> Tensor:
    """The sum divided by N. (`mean`, and division by a number, multiply by 1/N on a GPU: not the same.)"""
    total = rows.sum(-1, keepdim=True)
    return total / torch.full_like(total, rows.shape[-1])


def normalize(
    norm: Norm,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    wide: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor | None]:
    """y, and the sum with the residual where there is a residual or a dtype for it.

    `wide` is the dtype of everything inside: fp32 by definition; fp64 gives the value that rounding errors are
    measured against.
    """
    narrow = norm.narrow_dtype(x.dtype)

    def narrowed(value: Tensor) -> Tensor:
        return value if narrow is None else value.to(narrow).to(wide)

    h = x.to(wide)
    total = None
    if residual is not None:
        h = narrowed(h + residual.to(wide))
        residual_dtype = residual_dtype or residual.dtype
    if residual_dtype is not None:
        total = h.to(residual_dtype)
        if norm.round_residual:
            h = total.to(wide)

    if norm.centred:
        h = h - _mean(h)
    mean_square = narrowed(_mean(narrowed(h * h)))
    rstd = narrowed(torch.rsqrt(narrowed(mean_square + norm.eps)))
    y = narrowed(h * rstd)
    x_hat = norm.x_hat_dtype(x.dtype, None if weight is None else weight.dtype)
    if x_hat is not None:
        y = y.to(x_hat).to(wide)
    if weight is not None:
        y = narrowed(y * narrowed(weight.to(wide) + norm.offset))
    if bias is not None:
        y = narrowed(y + bias.to(wide))
    return y.to(out_dtype or norm.output_dtype(x.dtype, None if weight is None else weight.dtype)), total
