"""What a quantizing call returns: the FP8 tensor with its scales, its transpose, and what was asked for beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onepass.fp8.layouts import row_major

#: The fields that are tensors or None, in the order in which a pytree has them.
LEAVES = ("data", "scale", "data_t", "scale_t", "amax", "unquantized", "residual", "straight_through")


@dataclass(frozen=True, eq=False)
class Quantized:
    """An FP8 tensor. Scales are for dequantizing: `data · scale` is the value, group by group.

    `data` has the shape of what was quantized, `(..., N)`; M is the number of its rows. Scales are fp32, E8M0 for
    "mx"; their shapes are those of docs/fp8.md. A pytree: its leaves are the tensors.

    Attributes:
        data, scale: the rows, quantized, and their scales.
        data_t, scale_t: the transpose (N, M) with its own scales, where `columnwise` asked for it.
        amax: of the whole tensor, for the kinds "tensor" and "delayed"; for the latter it is the tensor that was given.
        unquantized: the output before quantization, where `also_unquantized` asked for it.
        residual: the sum with the residual, where the call had one.
        straight_through: what gradients go through: a tensor of the output's shape and dtype whose gradient is that of
            the output before quantization. `unquantized` where that was asked for; else its values are not to be read.
        block: how many neighbours share a scale; None where a row or the tensor does.
        layout: how the scales lie.

    Example:
        >>> import torch
        >>> from onepass.fp8 import Fp8, definition
        >>> q = definition.quantize(torch.randn(4, 256), Fp8("block"))
        >>> q.data.dtype, q.scale.shape, q.dequantize().shape
        (torch.float8_e4m3fn, torch.Size([4, 2]), torch.Size([4, 256]))
    """

    data: Tensor
    scale: Tensor
    data_t: Tensor | None = None
    scale_t: Tensor | None = None
    amax: Tensor | None = None
    unquantized: Tensor | None = None
    residual: Tensor | None = None
    straight_through: Tensor | None = None
    block: int | None = None
    layout: str = "row"

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of `data`, computed in fp32. Gradients go straight through to what was quantized."""
        values = self._dequantized(self.data, self.scale, dtype)
        through = self.straight_through
        return values if through is None or not through.requires_grad else _StraightThrough.apply(values, through)

    def dequantize_columnwise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of `data_t`, (N, M): they differ from the transposed `dequantize()` where groups do."""
        if self.data_t is None or self.scale_t is None:
            raise ValueError("data_t must be a tensor to be dequantized, not None: quantize with columnwise=True")
        return self._dequantized(self.data_t, self.scale_t, dtype)

    def _dequantized(self, data: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        values = data.to(torch.float32)
        if self.block is None:
            return (values * scale).to(dtype)
        cols = data.shape[-1]
        rows, groups = values.numel() // max(1, cols), -(-cols // self.block)
        each = row_major(scale, self.layout, rows, groups).to(torch.float32)
        each = each.repeat_interleave(self.block, dim=-1)[:, :cols]
        return (values * each.reshape(values.shape)).to(dtype)


class _StraightThrough(torch.autograd.Function):
    """One tensor's values with another's gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, through: Tensor) -> Tensor:
        ctx.dtype = through.dtype
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient.to(ctx.dtype)


def _flatten(q: Quantized) -> tuple[list[Any], tuple[Any, ...]]:
    return [getattr(q, name) for name in LEAVES], (q.block, q.layout)


def _flatten_with_keys(q: Quantized) -> tuple[list[tuple[pytree.KeyEntry, Any]], tuple[Any, ...]]:
    leaves, context = _flatten(q)
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(LEAVES, leaves, strict=True)], context


def _unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> Quantized:
    return Quantized(*leaves, *context)


pytree.register_pytree_node(
    Quantized,
    _flatten,
    _unflatten,
    serialized_type_name="onepass.fp8.Quantized",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=_flatten_with_keys,
)
