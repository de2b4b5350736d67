"""The gate's part for FP8: how far rounding may carry a value, so that whatever is further off is wrong.

With y from the reference, a right q and its scale s obey, value by value,

    |q · s - y|  <=  half a step · s  +  slack
    |448 · s - largest |y| of the group|  <=  largest slack of the group

Half a step is that of E4M3 at y / s: 2⁻⁴ of the power of two below it, and below the smallest normal number, 2⁻⁶, it
is 2⁻¹⁰ throughout. Rounding to the nearest is off by no more. Slack is what the other results have too: one unit of x's
dtype, for the rounding of y and for one of the sum with the residual, and fp32's arithmetic. It moves the value that is
rounded, and a largest value is off by no more than the values are. Errors are shares of these bounds: 1 is the limit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.fp8.spec import LARGEST
from onepass.lab.inputs import Inputs

#: Bits of E4M3's mantissa, and the exponent of its smallest normal number.
MANTISSA_BITS, SMALLEST_EXPONENT = 3, -6
#: Rows of a chunk are a multiple of this, so that no group of the transpose is cut.
WHOLE_GROUPS = 128


class Fp8Errors:
    """The errors of FP8 results, a chunk of rows at a time.

    `got` may have q with scale, and q_t with scale_t; one without the other is not looked at. `unit` is that of x's
    dtype, `fp32_error` the error of the arithmetic in fp32 against a value's own size and its row's.
    """

    def __init__(self, inputs: Inputs, got: dict[str, Tensor], unit: float, fp32_error: float) -> None:
        assert inputs.quantize is not None
        self._fp8, self._got, self._unit, self._fp32_error = inputs.quantize, got, unit, fp32_error
        self._rows, self._seen = inputs.x[..., 0].numel(), 0
        self._zero = torch.zeros((), dtype=torch.float64, device=inputs.x.device)
        self._amax = self._slack = self._zero
        self._worst: dict[str, Tensor] = {}

    def add(self, y: Tensor) -> None:
        """The next rows of the reference, flat: a multiple of WHOLE_GROUPS, but for the last."""
        rms = y.square().mean(-1, keepdim=True).sqrt()
        slack = self._unit * y.abs() + self._fp32_error * (y.abs() + rms)
        self._amax = torch.maximum(self._amax, y.abs().max())
        self._slack = torch.maximum(self._slack, slack.max())
        rows = slice(self._seen, self._seen + y.shape[0])
        self._seen = rows.stop
        if {"q", "scale"} <= self._got.keys():
            q, scale = self._got["q"].reshape(self._rows, -1)[rows], self._got["scale"]
            if scale.dim():
                scale = scale.reshape(self._rows, -1)[rows]
            self._add("", q, scale, y, slack)
        if {"q_t", "scale_t"} <= self._got.keys():
            q, scale = self._got["q_t"][:, rows], self._got["scale_t"]
            if scale.dim():
                group = self._fp8.block or 1
                scale = scale[:, rows.start // group : -(-rows.stop // group)]
            self._add("_t", q, scale, y.t(), slack.t())

    def _add(self, suffix: str, q: Tensor, scale: Tensor, y: Tensor, slack: Tensor) -> None:
        """`scale` has no dimensions, or one for each group along the last, or as "token" has it, one for each row."""
        fp8, scale = self._fp8, scale.float().double()
        each = scale
        if fp8.block is not None:
            each = scale.repeat_interleave(fp8.block, dim=-1)[:, : y.shape[-1]]
        half_step = _half_step(y.abs() / each) * each
        self._note(f"q{suffix} worst value", (q.float().double() * each - y).abs() / (half_step + slack))
        if fp8.scaling == "token":  # the transpose has the same scales, across its groups
            along = -1 if suffix == "" else 0
            amax, allowed = y.abs().amax(along, keepdim=True), slack.amax(along, keepdim=True)
        elif fp8.block is not None:
            amax, allowed = _by_group(y.abs(), fp8.block), _by_group(slack, fp8.block)
        else:
            return  # one scale for the tensor: known when all rows are
        self._note(f"scale{suffix} worst", self._off(scale, amax) / allowed)

    def _off(self, scale: Tensor, amax: Tensor) -> Tensor:
        """How far the largest value that a scale can carry is from amax; a power of two may carry up to twice that."""
        carried = LARGEST["e4m3"] * scale
        if self._fp8.scaling == "mx":
            return torch.maximum(amax - carried, carried / 2 - amax).clamp_min(0)
        return (carried - amax).abs()

    def errors(self) -> dict[str, float]:
        """By name; the limit of each is 1."""
        for name in ("scale", "scale_t"):
            if name in self._got and self._got[name].dim() == 0:
                self._note(f"{name} worst", self._one_scale_off(self._got[name].double()))
        if self._fp8.amax is not None:
            merged = self._fp8.amax.double().nan_to_num(0.0, 0.0, 0.0)  # as wrong as nothing, and a number in JSON
            self._note("amax", (merged - self._amax).abs() / self._slack)
        return {name: found.item() for name, found in self._worst.items()}

    def _one_scale_off(self, scale: Tensor) -> Tensor:
        if self._fp8.scaling == "tensor":
            return self._off(scale, self._amax) / self._slack
        if self._fp8.scale is not None:
            off = scale / self._fp8.scale - 1
        else:
            assert self._fp8.multiplier is not None
            off = scale * self._fp8.multiplier - 1
        return off.abs() / self._fp32_error

    def _note(self, name: str, shares: Tensor) -> None:
        self._worst[name] = torch.maximum(self._worst.get(name, self._zero), shares.max())


def _half_step(magnitude: Tensor) -> Tensor:
    """Half the distance of E4M3's numbers there."""
    exponent = torch.frexp(magnitude.clamp_min(2.0**SMALLEST_EXPONENT)).exponent - 1  # of the power of two below
    return torch.ldexp(torch.ones_like(magnitude), exponent - MANTISSA_BITS - 1)


def _by_group(values: Tensor, group: int) -> Tensor:
    """The largest of each group along the last dimension; the last group may be short."""
    short = -values.shape[-1] % group
    return F.pad(values, (0, short)).unflatten(-1, (-1, group)).amax(-1)
