"""What an FP8 output is: format, kind of scaling and every option of it, checked; and the tensors that are given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from onepass.fp8.presets import DYNAMIC, PRESET_FORMATS, PRESETS, SCALINGS, defaults

#: The formats, and the dtype of each. E4M3 has a bit more precision, E5M2 more range.
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

#: The largest finite value of each format.
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}

#: How many values share a scale, for the kinds whose groups have a size; the first is the default.
BLOCKS = {"block": (128, 64), "mx": (32,)}

#: How a scale becomes of amax and how it is applied; `definition.py` has the formulas. The first is the default.
ARITHMETIC = {
    "static": ("inverse", "scale", "multiplier"),
    "delayed": ("multiplier",),
    "tensor": ("multiplier", "inverse", "scale", "reciprocal"),
    "token": ("multiplier", "inverse", "scale", "reciprocal"),
    "block": ("multiplier", "inverse", "scale", "reciprocal"),
    "mx": ("inverse", "reciprocal"),
}

#: How scales may lie in memory; `layouts.py` says how.
LAYOUTS = {"block": ("row", "tma"), "mx": ("row", "swizzled")}

#: How the column-wise tensor may lie in memory: rows of the transpose, or as the untransposed tensor would.
ORDERS = {"mx": ("transposed", "rows")}

#: The fields that are tensors: no part of what a kernel is compiled for.
TENSORS = ("scale", "multiplier", "amax")


@dataclass(frozen=True, eq=False)
class Fp8:
    """How to quantize to FP8. Options that are left at None take the default of the kind, or of `like`.

    Args:
        scaling: what shares a scale: "static", "delayed", "tensor", "token" (a row), "block" (1×128 or 1×64) or "mx"
            (1×32, E8M0). "token" by default: it needs nothing to be given, and no second pass.
        format: "e4m3" (up to 448) by default, as activations want precision first; "e5m2" (up to 57344).
        block: the columns that share a scale: 128 or 64 for "block", 32 for "mx".
        columnwise: also give the (N, M) transpose, quantized from the same values with scales of its own.
        also_unquantized: also give the output as it would be without quantization.
        scale: for "static": fp32, one element: y is divided by it, and it is handed on.
        multiplier: for "delayed", and for "static" instead of a scale: fp32, one element: y is multiplied by it,
            and its inverse is handed on.
        amax: for "delayed": fp32, one element: becomes the larger of itself and the amax of this call.
        power_of_two: round the scale up (the multiplier down) to a power of two. Off by default, save for "mx".
        floor: the least amax. 1e-10 for "token" and "block", so that a row of zeros has a scale too; 0 for "tensor".
        upper_bound: the largest amax; what is larger saturates. None by default.
        round_first: round to the dtype of the output before amax and before quantizing. On by default, so that the
            result is that of quantizing the output; off for "delayed".
        arithmetic: which of the equivalent formulas gives the bits: "multiplier", "inverse", "scale" or "reciprocal".
        layout: how the scales lie: "row" by default; "tma" for "block": transposed, padded to 4 rows; "swizzled" for
            "mx": tiles of 128×4.
        columnwise_order: "transposed" by default; "rows" for "mx": the (N, M) result lies as the (M, N) one would.
        like: take the defaults of "transformer_engine", "vllm" or "deepgemm" (docs/fp8.md).

    Two are equal if their options are and their tensors are the same objects. `key` is what a launch may be cached by.

    Example:
        >>> from onepass.fp8 import Fp8
        >>> Fp8("block", like="deepgemm").floor
        0.0001
    """

    scaling: str = "token"
    format: str = "e4m3"
    block: int | None = None
    columnwise: bool = False
    also_unquantized: bool = False
    scale: Tensor | None = None
    multiplier: Tensor | None = None
    amax: Tensor | None = None
    power_of_two: bool | None = None
    floor: float | None = None
    upper_bound: float | None = None
    round_first: bool | None = None
    arithmetic: str | None = None
    layout: str | None = None
    columnwise_order: str | None = None
    like: str | None = None

    def __post_init__(self) -> None:
        _one_of("scaling", self.scaling, SCALINGS)
        _one_of("format", self.format, FORMATS)
        self._check_like()
        for name in ("columnwise", "also_unquantized"):
            _flag(name, getattr(self, name))
        for name in ("power_of_two", "round_first"):
            if getattr(self, name) is not None:
                _flag(name, getattr(self, name))
        self._check_given()
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        filled = defaults(self.scaling, self.like, self.power_of_two)
        if self.multiplier is not None:
            filled["arithmetic"] = "multiplier"
        filled["block"] = BLOCKS[self.scaling][0] if self.scaling in BLOCKS else None
        for name, value in filled.items():
            if given[name] is None:
                object.__setattr__(self, name, value)
        self._check_amax_options()
        self._check_choices()

    @property
    def key(self) -> tuple[object, ...]:
        """Every option, and no tensor: equal keys are served by one compiled kernel. `like` has done its work."""
        return tuple(getattr(self, name) for name in OPTIONS)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fp8):
            return NotImplemented
        return self.key == other.key and all(getattr(self, name) is getattr(other, name) for name in TENSORS)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def dtype(self) -> torch.dtype:
        return FORMATS[self.format]

    @property
    def largest(self) -> float:
        return LARGEST[self.format]

    def check_device(self, device: torch.device) -> None:
        """What is given must lie where the values do."""
        for name in TENSORS:
            tensor = getattr(self, name)
            if tensor is not None and tensor.device != device:
                raise ValueError(f"{name} must be on x's device {device}, not on {tensor.device}")

    def _check_like(self) -> None:
        if self.like is None:
            return
        _one_of("like", self.like, PRESETS, "None, ")
        if self.scaling not in PRESETS[self.like]:
            raise ValueError(
                f"scaling must be one of {_names(PRESETS[self.like])} with like={self.like!r}, not {self.scaling!r}"
            )
        if self.format not in PRESET_FORMATS[self.like]:
            raise ValueError(
                f"format must be {_names(PRESET_FORMATS[self.like])} with like={self.like!r}, not {self.format!r}"
            )

    def _check_given(self) -> None:
        """Which tensors a kind needs, and that they are one fp32 number each."""
        takes = {"static": ("scale", "multiplier"), "delayed": ("multiplier", "amax")}.get(self.scaling, ())
        for name in TENSORS:
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if name not in takes:
                raise ValueError(f"{name} must be None with scaling={self.scaling!r}, not {_kind_of(tensor)}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
            if tensor.dtype != torch.float32:
                raise ValueError(f"{name} must be torch.float32, not {tensor.dtype}")
            if tensor.numel() != 1:
                raise ValueError(f"{name} must have one element, not the shape {tuple(tensor.shape)}")
        if self.scaling == "static" and (self.scale is None) == (self.multiplier is None):
            found = "none" if self.scale is None else "a multiplier too"
            raise ValueError(f'scale must be given with scaling="static", or else a multiplier, not {found}')
        if self.scaling == "delayed":
            for name in takes:
                if getattr(self, name) is None:
                    raise ValueError(f'{name} must be a tensor with scaling="delayed", not None')

    def _check_amax_options(self) -> None:
        """Options on how amax becomes a scale are for kinds that do this; "mx" rounds to a power of two always."""
        if self.scaling not in DYNAMIC:
            power_of_two = self.scaling == "mx"
            for name, fixed in (("power_of_two", power_of_two), ("floor", 0.0), ("upper_bound", None)):
                if getattr(self, name) != fixed:
                    value = getattr(self, name)
                    raise ValueError(f"{name} must be left out with scaling={self.scaling!r}, not {value!r}")
        for name in ("floor", "upper_bound"):
            value = getattr(self, name)
            if name == "upper_bound" and value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name} must be a number, not {value!r}")
            if not 0 <= value <= torch.finfo(torch.float32).max:
                raise ValueError(f"{name} must be finite in fp32 and not negative, not {value!r}")
        if self.upper_bound is not None and self.floor is not None and self.upper_bound <= self.floor:
            raise ValueError(f"upper_bound must be above the floor {self.floor!r}, not {self.upper_bound!r}")

    def _check_choices(self) -> None:
        """Options whose values depend on the kind."""
        if self.scaling in BLOCKS:
            sizes = BLOCKS[self.scaling]
            if self.block not in sizes or isinstance(self.block, bool):
                offered = " or ".join(map(str, sizes))
                raise ValueError(f"block must be {offered} with scaling={self.scaling!r}, not {self.block!r}")
        elif self.block is not None:
            raise ValueError(f"block must be None with scaling={self.scaling!r}, not {self.block!r}")
        where = f" with scaling={self.scaling!r}"
        arithmetic = ARITHMETIC[self.scaling]
        if self.scaling == "static":
            arithmetic = arithmetic[:2] if self.multiplier is None else arithmetic[2:]
            where += " and a scale" if self.multiplier is None else " and a multiplier"
        _one_of("arithmetic", self.arithmetic, arithmetic, where=where)
        where = f" with scaling={self.scaling!r}"
        _one_of("layout", self.layout, LAYOUTS.get(self.scaling, ("row",)), where=where)
        _one_of("columnwise_order", self.columnwise_order, ORDERS.get(self.scaling, ("transposed",)), where=where)


#: The fields of `Fp8.key`.
OPTIONS = tuple(field.name for field in fields(Fp8) if field.name not in (*TENSORS, "like"))


def _one_of(name: str, value: object, names: Iterable[str], first: str = "", where: str = "") -> None:
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {first}{_names(names)}{where}, not {value!r}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _kind_of(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)
