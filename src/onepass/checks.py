"""What a call may be handed. A refused call gets one sentence: the argument, what it was, what it may be."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from onepass.fp8 import Fp8
from onepass.spec import CASTS, DTYPES, Norm, Problem

#: Row numbers are 32-bit inside the kernels, and the last tile may reach over the end.
MAX_ROWS = 2**31 - 2**16

#: The first GPUs that convert to FP8.
FP8_CAPABILITY = (8, 9)


class Options(NamedTuple):
    """The options of a call, as the caller spelled them."""

    centred: bool
    eps: float
    offset: float = 0.0
    cast: str = "output"
    round_residual: bool = False
    out_dtype: torch.dtype | None = None
    residual_dtype: torch.dtype | None = None
    inplace_backward: bool = False
    autotune: bool | None = None


def checked(
    options: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> tuple[Norm, Problem]:
    """The Norm and the Problem (rows and lanes not yet worked out) that a call means, or one sentence why not."""
    norm = _norm(options)
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if tensor is not None or name == "x":
            _check_tensor(name, tensor, x)
    rows = x.numel() // max(1, x.shape[-1])
    if isinstance(rows, int) and rows > MAX_ROWS:  # a symbolic row count under torch.compile stays free
        raise ValueError(f"x must have at most {MAX_ROWS} rows, not {rows}")
    _check_affine("weight", weight, x)
    _check_affine("bias", bias, x)
    if weight is not None and bias is not None and weight.shape != bias.shape:
        raise ValueError(f"bias must have the weight's shape {_shape(weight)}, not {_shape(bias)}")
    if bias is not None and norm.cast == "t5":
        raise ValueError('bias must be None with cast="t5": that rounding order is defined for a weight alone')
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"residual must have x's shape {_shape(x)}, not {_shape(residual)}")
    for name in ("out_dtype", "residual_dtype"):
        dtype = getattr(options, name)
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"{name} must be None, {_dtypes()}, not {dtype}")
    weight_dtype = None if weight is None else weight.dtype
    y = options.out_dtype or norm.output_dtype(x.dtype, weight_dtype)
    if options.inplace_backward and y != x.dtype:
        raise ValueError(
            f"inplace_backward must be False where the output's dtype ({y}) is not x's ({x.dtype}): "
            "the gradient of x does not fit over the gradient of the output"
        )
    affine = weight if weight is not None else bias
    problem = Problem(
        rows=1,
        lanes=1,
        cols=x.shape[-1],
        x=x.dtype,
        y=y,
        weight=weight_dtype,
        bias=None if bias is None else bias.dtype,
        residual=None if residual is None else residual.dtype,
        sum=options.residual_dtype or (None if residual is None else residual.dtype),
        per_lane=affine is not None and affine.dim() == 2,
    )
    return norm, problem


def check_quantize(fp8: object, x: Tensor) -> None:
    if not isinstance(fp8, Fp8):
        raise TypeError(f"quantize must be an Fp8 or None, not {type(fp8).__name__}")
    fp8.check_device(x.device)
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < FP8_CAPABILITY:
        name = torch.cuda.get_device_name(x.device)
        raise ValueError(f"quantize must be None on an {name}: FP8 needs compute capability 8.9 (Ada, Hopper) or above")


def _norm(options: Options) -> Norm:
    if not isinstance(options.cast, str) or options.cast not in CASTS:
        raise ValueError(f"cast must be one of {', '.join(map(repr, CASTS))}, not {options.cast!r}")
    if options.centred and options.cast == "none":
        raise ValueError('cast must not be "none" for layer_norm: that order is defined for rms_norm alone')
    for name in ("eps", "offset"):
        value = getattr(options, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} must be a number, not {value!r}")
    if not (options.eps > 0 and math.isfinite(options.eps)):
        raise ValueError(f"eps must be positive and finite, not {options.eps!r}")
    if not math.isfinite(options.offset):
        raise ValueError(f"offset must be finite, not {options.offset!r}")
    if options.autotune not in (None, False, True):
        raise ValueError(f"autotune must be None, False or True, not {options.autotune!r}")
    return Norm(options.centred, float(options.eps), float(options.offset), CASTS[options.cast], options.round_residual)


def _check_tensor(name: str, tensor: object, x: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be {_dtypes()}, not {tensor.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"{name} must be on x's device {x.device}, not on {tensor.device}")
    if tensor.dim() == 0:
        raise ValueError(f"{name} must have at least one dimension, not none")
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name} must be dense in its last dimension, not with a stride of {tensor.stride(-1)}: "
            f"pass {name}.contiguous()"
        )


def _check_affine(name: str, parameter: Tensor | None, x: Tensor) -> None:
    if parameter is None:
        return
    vector = tuple(x.shape[-1:])
    per_head = tuple(x.shape[-2:])
    if parameter.shape != vector and (parameter.dim() != 2 or parameter.shape != per_head):
        shapes = f"{vector}, or {per_head} for one row a head" if x.dim() > 1 else f"{vector}"
        raise ValueError(f"{name} must have the shape {shapes}, to fit x of shape {_shape(x)}, not {_shape(parameter)}")
    if not parameter.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, not with strides {parameter.stride()}: pass {name}.contiguous()"
        )  # fmt: skip


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _dtypes() -> str:
    names = [str(dtype) for dtype in DTYPES]
    return ", ".join(names[:-1]) + " or " + names[-1]
