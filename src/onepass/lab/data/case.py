"""A case: one operation on one shape, to be measured with every backend."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from onepass.fp8.presets import SCALINGS
from onepass.fp8.spec import BLOCKS

NORMS = ("rms_norm", "layer_norm", "add_rms_norm")
#: The same norms with their output in FP8: forward alone, as no gradient depends on what the output is rounded to.
FP8_OPS = tuple(f"{norm}_fp8" for norm in NORMS)
OPS = NORMS + FP8_OPS
DIRECTIONS = ("forward", "backward")
DTYPES = ("float32", "bfloat16", "float16")
#: How x lies in memory: dense, or as the query part of a fused (tokens, 3, heads, cols) tensor; rows = tokens · heads.
LAYOUTS = ("dense", "qkv")

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}

#: What `Case.id` writes. A word that is in the right place and none of those allowed is named by the case itself.
_ID = re.compile(
    r"(?P<op>[a-z0-9_]+)-(?P<direction>[a-z]+)-(?P<rows>\d+)x(?P<cols>\d+)-(?P<dtype>[a-z0-9]+)"
    r"(?:-w(?P<weight_dtype>[a-z]+\d+))?(?:-(?P<layout>qkv)(?P<heads>\d+))?(?:-eps(?P<eps>[\d.]+(?:e[-+]\d+)?))?"
    r"(?:-(?P<scaling>[a-z]+)(?P<columnwise>-both)?)?"
)


@dataclass(frozen=True)
class Case:
    """What is computed, on what. The weight (and LayerNorm's bias) has x's dtype unless `weight_dtype` is given.

    An FP8 output has `scaling`, which says what shares a scale, and with `columnwise` its transpose too.
    """

    op: str
    direction: str
    rows: int
    cols: int
    dtype: str
    weight_dtype: str | None = None
    layout: str = "dense"
    heads: int = 1
    eps: float = 1e-6
    scaling: str | None = None
    columnwise: bool = False

    def __post_init__(self) -> None:
        if self.op in FP8_OPS and self.scaling is None:
            object.__setattr__(self, "scaling", "token")
        for name, value, allowed in (
            ("op", self.op, OPS),
            ("direction", self.direction, DIRECTIONS),
            ("dtype", self.dtype, DTYPES),
            ("weight_dtype", self.weight_dtype or self.dtype, DTYPES),
            ("layout", self.layout, LAYOUTS),
            ("scaling", "token" if self.scaling is None else self.scaling, tuple(SCALINGS)),
            ("columnwise", self.columnwise, (False, True)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value}")
        for name, size in (("rows", self.rows), ("cols", self.cols), ("heads", self.heads)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number above zero, not {size!r}")
        if self.rows % self.heads:
            raise ValueError(f"rows must be a multiple of heads ({self.heads}), not {self.rows}")
        if self.direction not in directions_of(self.op):
            raise ValueError(f"direction must be forward for {self.op}: its backward is that of {self.norm}")
        for name in ("scaling", "columnwise"):
            if getattr(self, name) and self.op in NORMS:
                raise ValueError(f"{name} must be left out for {self.op}: it is for {', '.join(FP8_OPS)}")

    @property
    def norm(self) -> str:
        """What is computed before anything is quantized."""
        return self.op.removesuffix("_fp8")

    @property
    def id(self) -> str:
        """A name that is unique within a run: rms_norm-forward-4096x4096-float16."""
        weight = f"-w{self.weight_dtype}" if self.weight_dtype not in (None, self.dtype) else ""
        layout = f"-{self.layout}{self.heads}" if self.layout != "dense" else ""
        eps = f"-eps{self.eps:g}" if self.eps != 1e-6 else ""
        fp8 = f"-{self.scaling}{'-both' if self.columnwise else ''}" if self.scaling else ""
        return f"{self.op}-{self.direction}-{self.rows}x{self.cols}-{self.dtype}{weight}{layout}{eps}{fp8}"

    @classmethod
    def from_id(cls, name: str) -> Case:
        """The case of that id.

        Example:
            >>> Case.from_id("rms_norm_fp8-forward-64x4096-bfloat16-block-both").columnwise
            True
        """
        found = _ID.fullmatch(name)
        if found is None:
            raise ValueError(f"a case must be like rms_norm-forward-4096x4096-bfloat16, not {name}")
        given = {field: text for field, text in found.groupdict().items() if text is not None}
        kinds = {"rows": int, "cols": int, "heads": int, "eps": float, "columnwise": bool}
        return cls(**{field: kinds.get(field, str)(text) for field, text in given.items()})

    @property
    def bytes(self) -> int:
        """The fewest bytes that must move: each input read once, each output written once."""
        x = self.rows * self.cols * ITEMSIZE[self.dtype]
        parameters = self.cols * ITEMSIZE[self.weight_dtype or self.dtype] * (2 if self.norm == "layer_norm" else 1)
        if self.scaling is not None:  # x, q; x, residual, sum, q
            return (3 if self.norm == "add_rms_norm" else 1) * x + parameters + self._quantized_bytes(self.scaling)
        if self.op == "add_rms_norm":  # x, residual, y, sum; dy, dsum, sum, dx
            return 4 * x + parameters * (1 if self.direction == "forward" else 2)
        return 2 * x + parameters if self.direction == "forward" else 3 * x + 2 * parameters

    def _quantized_bytes(self, scaling: str) -> int:
        """Of q, its transpose, and the scales of each, which are the same where groups do not have a size."""
        values = self.rows * self.cols * (2 if self.columnwise else 1)
        if scaling not in BLOCKS:
            return values + 4 * (self.rows if scaling == "token" else 1)
        group, itemsize = BLOCKS[scaling][0], 1 if scaling == "mx" else 4
        scales = self.rows * -(-self.cols // group)
        if self.columnwise:
            scales += self.cols * -(-self.rows // group)
        return values + scales * itemsize

    @property
    def flops(self) -> int:
        """Arithmetic on elements, by the formulas: enough to tell that it is never the limit."""
        by_norm = {"rms_norm": (4, 9), "layer_norm": (7, 12), "add_rms_norm": (5, 10)}[self.norm]
        per_element = by_norm[DIRECTIONS.index(self.direction)]
        if self.scaling is not None:  # magnitude, maximum, product
            per_element += 6 if self.columnwise else 3
        return self.rows * self.cols * per_element

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"id": self.id, "bytes": self.bytes, "flops": self.flops}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**known)


def directions_of(op: str) -> tuple[str, ...]:
    """The passes that an operation has."""
    return DIRECTIONS[:1] if op in FP8_OPS else DIRECTIONS
