"""RMSNorm and LayerNorm as modules: torch.nn's, with the same arguments, parameters and state_dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onepass.fp8 import Fp8
from onepass.functional import normalize

#: As torch means None: that of the dtype in which it computes.
EPSILON = torch.finfo(torch.float32).eps


def _as_constant(offset: float) -> float:
    """Nought and one as ints, which torch.compile takes for constants; floats are symbols with dynamic=True."""
    return int(offset) if isinstance(offset, float) and offset in (0, 1) else offset


class _Fused:
    """What the two modules share: the extra options, and several normalized dimensions as one."""

    normalized_shape: tuple[int, ...]
    weight: Any
    offset: float
    cast: str
    quantize: Fp8 | None

    def _normalize(
        self, centred: bool, eps: float, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
    ) -> Any:
        quantize = self.quantize
        dims = len(self.normalized_shape)
        if x.shape[-dims:] != self.normalized_shape:
            raise ValueError(
                f"x must end in the dimensions {tuple(self.normalized_shape)}, not in shape {tuple(x.shape)}"
            )
        options = (centred, eps, self.offset, self.cast, False, None, None, False, None)
        if dims == 1:
            return normalize(options, x, weight, bias, residual, quantize)
        if quantize is not None:
            raise ValueError(
                f"normalized_shape must have one dimension with quantize, not {tuple(self.normalized_shape)}"
            )
        flat = [None if tensor is None else tensor.flatten(-dims) for tensor in (x, weight, bias, residual)]
        result = normalize(options, *flat)  # type: ignore[arg-type]
        if residual is None:
            return result.view(x.shape)
        return tuple(part.view(x.shape) for part in result)

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]
        if self.weight is not None:
            with torch.no_grad():
                self.weight.sub_(self.offset)

    def extra_repr(self) -> str:
        extra = f"{super().extra_repr()}, offset={self.offset}, cast={self.cast!r}"  # type: ignore[misc]
        return extra if self.quantize is None else f"{extra}, quantize={self.quantize.scaling!r}"


class RMSNorm(_Fused, nn.RMSNorm):
    """A `torch.nn.RMSNorm` on onepass's kernels.

    `offset`, `cast` and `quantize` are those of `onepass.rms_norm`. With an offset the weight starts at zero where
    torch's starts at one, so that the layer starts out the same for `offset=1.0`.

    Example:
        >>> import torch, onepass
        >>> layer = onepass.RMSNorm(64)
        >>> y, total = layer(torch.randn(4, 64), residual=torch.randn(4, 64))
        >>> y.shape
        torch.Size([4, 64])
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0,
        cast: str = "output",
        quantize: Fp8 | None = None,
    ) -> None:
        self.offset, self.cast, self.quantize = _as_constant(offset), cast, quantize
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        eps = EPSILON if self.eps is None else self.eps
        return self._normalize(False, eps, x, self.weight, None, residual)


class LayerNorm(_Fused, nn.LayerNorm):
    """A `torch.nn.LayerNorm` on onepass's kernels; `offset`, `cast` and `quantize` are those of `onepass.layer_norm`.

    Example:
        >>> import torch, onepass
        >>> onepass.LayerNorm((8, 64), bias=False)(torch.randn(4, 8, 64)).shape
        torch.Size([4, 8, 64])
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0,
        cast: str = "output",
        quantize: Fp8 | None = None,
    ) -> None:
        self.offset, self.cast, self.quantize = _as_constant(offset), cast, quantize
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        return self._normalize(True, self.eps, x, self.weight, self.bias, residual)
