"""A case: one operation on one shape, to be measured with every backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OPS = ("rms_norm", "layer_norm", "add_rms_norm")
DIRECTIONS = ("forward", "backward")
DTYPES = ("float32", "bfloat16", "float16")
#: How x lies in memory: dense, or as the query part of a fused (tokens, 3, heads, cols) tensor; rows = tokens · heads.
LAYOUTS = ("dense", "qkv")

_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Case:
    """What is computed, on what. The weight (and LayerNorm's bias) has x's dtype unless `weight_dtype` is given."""

    op: str
    direction: str
    rows: int
    cols: int
    dtype: str
    weight_dtype: str | None = None
    layout: str = "dense"
    heads: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("op", self.op, OPS),
            ("direction", self.direction, DIRECTIONS),
            ("dtype", self.dtype, DTYPES),
            ("weight_dtype", self.weight_dtype or self.dtype, DTYPES),
            ("layout", self.layout, LAYOUTS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value}")
        for name, size in (("rows", self.rows), ("cols", self.cols), ("heads", self.heads)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number above zero, not {size!r}")
        if self.rows % self.heads:
            raise ValueError(f"rows must be a multiple of heads ({self.heads}), not {self.rows}")

    @property
    def id(self) -> str:
        """A name that is unique within a run: rms_norm-forward-4096x4096-float16."""
        weight = f"-w{self.weight_dtype}" if self.weight_dtype not in (None, self.dtype) else ""
        layout = f"-{self.layout}{self.heads}" if self.layout != "dense" else ""
        eps = f"-eps{self.eps:g}" if self.eps != 1e-6 else ""
        return f"{self.op}-{self.direction}-{self.rows}x{self.cols}-{self.dtype}{weight}{layout}{eps}"

    @property
    def bytes(self) -> int:
        """The fewest bytes that must move: each input read once, each output written once."""
        x = self.rows * self.cols * _ITEMSIZE[self.dtype]
        parameters = self.cols * _ITEMSIZE[self.weight_dtype or self.dtype] * (2 if self.op == "layer_norm" else 1)
        if self.op == "add_rms_norm":  # x, residual, y, sum; dy, dsum, sum, dx
            return 4 * x + parameters * (1 if self.direction == "forward" else 2)
        return 2 * x + parameters if self.direction == "forward" else 3 * x + 2 * parameters

    @property
    def flops(self) -> int:
        """Arithmetic on elements, by the formulas: enough to tell that it is never the limit."""
        per_element = {"rms_norm": (4, 9), "layer_norm": (7, 12), "add_rms_norm": (5, 10)}[self.op]
        return self.rows * self.cols * per_element[DIRECTIONS.index(self.direction)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"id": self.id, "bytes": self.bytes, "flops": self.flops}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**known)
