"""The tensors of a case: random, from a seed, and the same ones for every backend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from onepass.fp8 import Fp8
from onepass.lab.data.case import Case

#: Rows are shifted by half of their spread and scaled by a factor of their own within these bounds. Plain normal rows
#: have mean 0 and mean square 1 already, so that on a wide row a kernel that skipped the statistics would pass. Along a
#: row the values grow from a half to one and a half, so that the statistics of a part are not those of the whole.
SHIFT = 0.5
SCALES = (0.5, 2.0)
GROWTH = (0.5, 1.5)
#: Weights lie within these bounds: none is so small that its column counts for nothing.
WEIGHTS = (0.5, 1.5)
#: What "static" divides by, and "delayed" multiplies with: up to 448 · 0.05 = 22.4 nothing saturates. Six times their
#: spread, at the end of a row, with the largest weight and a bias of six, values are at 19.
STATIC_SCALE = 0.05
DELAYED_MULTIPLIER = 20.0


def wanted(case: Case) -> tuple[str, ...]:
    """The names of what a case computes, in the order that a backend returns them.

    Example:
        >>> from onepass.lab.data.case import Case
        >>> wanted(Case("add_rms_norm", "backward", rows=4, cols=64, dtype="float32"))
        ('dx', 'dweight', 'dresidual')
    """
    if case.direction == "forward":
        values = ("y",) if case.scaling is None else ("q", "scale")
        transposed = ("q_t", "scale_t") if case.columnwise else ()
        return (*values, *transposed, *(("sum",) if case.norm == "add_rms_norm" else ()))
    extra = {"rms_norm": (), "layer_norm": ("dbias",), "add_rms_norm": ("dresidual",)}[case.op]
    return ("dx", "dweight", *extra)


@dataclass(frozen=True, eq=False)
class Inputs:
    """x, the parameters, the residual, the gradients that arrive at y (dy) and at the sum (dsum), and how to quantize.

    Dense x is (rows, cols). In the layout "qkv" it is (tokens, heads, cols), the query part of a fused tensor, not
    copied; everything else is dense, in x's shape.

    Example:
        >>> from onepass.lab.data.case import Case
        >>> make_inputs(Case("rms_norm", "forward", rows=4, cols=64, dtype="float16"), "cpu", seed=0).x.shape
        torch.Size([4, 64])
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    dy: Tensor
    dsum: Tensor | None
    quantize: Fp8 | None
    marks: dict[str, Tensor]  # of every tensor, as it was made

    def tensors(self) -> dict[str, Tensor]:
        """All that are there and not to be written, by name. An amax that is given is there to be written."""
        named = {name: getattr(self, name) for name in ("x", "weight", "bias", "residual", "dy", "dsum")}
        if self.quantize is not None:
            named |= {f"given {name}": getattr(self.quantize, name) for name in ("scale", "multiplier")}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def overwritten(self) -> tuple[str, ...]:
        """The names of those that no longer hold the values they were made with."""
        return tuple(
            name for name, tensor in self.tensors().items() if not torch.equal(_mark(tensor), self.marks[name])
        )


def make_inputs(case: Case, device: torch.device | str, seed: int) -> Inputs:
    """Fresh tensors; equal seeds give equal values on one kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    weight_dtype = getattr(torch, case.weight_dtype or case.dtype)
    fused = case.layout == "qkv"
    shape = (case.rows // case.heads, case.heads, case.cols) if fused else (case.rows, case.cols)

    def normal(*size: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(size, dtype=dtype, device=device, generator=generator)

    def uniform(low: float, high: float, *size: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.rand(size, dtype=dtype, device=device, generator=generator).mul_(high - low).add_(low)

    x = normal(shape[0], 3, *shape[1:])[:, 0] if fused else normal(*shape)
    x.add_(SHIFT).mul_(uniform(*SCALES, *shape[:-1], 1))
    x.mul_(torch.linspace(*GROWTH, case.cols, device=device).to(dtype))
    weight = uniform(*WEIGHTS, case.cols, dtype=weight_dtype)
    bias = normal(case.cols, dtype=weight_dtype) if case.norm == "layer_norm" else None
    residual = normal(*shape) if case.norm == "add_rms_norm" else None
    dy, dsum = normal(*shape), None if residual is None else normal(*shape)
    made = Inputs(x, weight, bias, residual, dy, dsum, _quantize(case, device), {})
    made.marks.update({name: _mark(tensor) for name, tensor in made.tensors().items()})
    return made


def _quantize(case: Case, device: torch.device | str) -> Fp8 | None:
    if case.scaling is None:
        return None

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float32, device=device)

    kind = partial(Fp8, case.scaling, columnwise=case.columnwise)
    if case.scaling == "static":
        return kind(scale=number(STATIC_SCALE))
    if case.scaling == "delayed":
        return kind(multiplier=number(DELAYED_MULTIPLIER), amax=number(0.0))
    return kind()


def _mark(tensor: Tensor) -> Tensor:
    """The sum of the bits, read as whole numbers: it tells, without a copy, that a kernel wrote over its input."""
    whole = torch.int32 if tensor.element_size() == 4 else torch.int16
    return tensor.view(whole).sum(dtype=torch.int64)
