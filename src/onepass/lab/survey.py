"""Widths drawn at random, many of each alignment: what share of a copy's rate each reaches, and which fall short.

A kernel's tile may suit the widths that somebody listed and no others. What is wrong shows beside the next widths, so
each is held against those near it whose rows begin on 16 bytes, as the widths of models do.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onepass.lab.data.case import DIRECTIONS, ITEMSIZE, NORMS, Case

#: The most bytes, up to these, on which all rows of a dense tensor begin.
PIECES = (16, 8, 4, 2)
FRIENDLY = PIECES[0]
#: A width falls short where it reaches less than this part of what the nearest friendly ones do, in the middle of them.
CLOSE = 0.9
NEAREST = 3
#: One that is planned as before differs from itself by less than this part of its time.
SCATTER = 0.03


@dataclass(frozen=True)
class Kind:
    """What is surveyed: a norm's pass in one dtype."""

    op: str
    direction: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op}-{self.direction}-{self.dtype}"

    @classmethod
    def named(cls, name: str) -> Kind:
        op, *others = name.split("-")
        known = op in NORMS and len(others) == 2 and others[0] in DIRECTIONS and others[1] in ITEMSIZE
        if not known:
            raise ValueError(f"a kind must be like layer_norm-backward-bfloat16, not {name}")
        return cls(op, *others)


def kind_of(case: Case) -> Kind:
    return Kind(case.op, case.direction, case.dtype)


def piece_of(case: Case) -> int:
    """The most bytes, up to 16, on which all its rows begin."""
    row = case.cols * ITEMSIZE[case.dtype]
    return min(FRIENDLY, row & -row)


def grouped(cases: Iterable[Case]) -> dict[tuple[Kind, int], list[Case]]:
    """By kind and alignment."""
    groups: dict[tuple[Kind, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((kind_of(case), piece_of(case)), []).append(case)
    return groups


def drawn(kind: Kind, count: int, cols: tuple[int, int], size: int, seed: int) -> list[Case]:
    """`count` cases of each alignment, their widths spread over `cols` by their logarithm, x of `size` bytes.

    >>> cases = drawn(Kind("rms_norm", "forward", "bfloat16"), 2, (64, 4096), 1 << 20, seed=0)
    >>> [piece_of(case) for case in cases]
    [16, 16, 8, 8, 4, 4, 2, 2]
    """
    draw = random.Random(f"{kind} {seed}")
    itemsize = ITEMSIZE[kind.dtype]
    least, most = map(math.log, cols)
    cases: dict[Case, None] = {}
    for piece in PIECES:
        unit = piece // itemsize
        for part in range(count if unit else 0):
            wanted = math.exp(least + (most - least) * (part + draw.random()) / count)
            width = max(1, round(wanted / unit)) * unit
            if piece < FRIENDLY and width // unit % 2 == 0:  # it would begin on more
                width += unit
            cases[Case(kind.op, kind.direction, max(1, size // (width * itemsize)), width, kind.dtype)] = None
    return list(cases)


@dataclass(frozen=True)
class Width:
    """How long one took."""

    case: Case
    us: float
    plan: str
    copy_gbps: float  # what a copy of as many bytes reaches there

    @property
    def share(self) -> float:
        """Of a plain copy's rate."""
        return self.case.bytes / self.us / 1e3 / self.copy_gbps

    def to_json(self) -> str:
        return json.dumps({"case": self.case.id, "us": self.us, "plan": self.plan, "copy_gbps": self.copy_gbps})

    @classmethod
    def from_json(cls, line: str) -> Width:
        fields = json.loads(line)
        return cls(Case.from_id(fields["case"]), fields["us"], fields["plan"], fields["copy_gbps"])


def beside(width: Width, others: Iterable[Width]) -> float | None:
    """The share that the nearest friendly widths of its kind reach, but for itself; None where there are none."""
    friendly = [
        other
        for other in others
        if piece_of(other.case) == FRIENDLY and kind_of(other.case) == kind_of(width.case) and other != width
    ]
    nearest = sorted(friendly, key=lambda other: abs(math.log(other.case.cols / width.case.cols)))[:NEAREST]
    return statistics.median(other.share for other in nearest) if nearest else None


@dataclass(frozen=True)
class Change:
    """What became of a width from one survey to another."""

    before: Width
    after: Width

    @property
    def replanned(self) -> bool:
        return self.before.plan != self.after.plan

    @property
    def ratio(self) -> float:
        """Of the time now to the time before."""
        return self.after.us / self.before.us


def changes(before: Iterable[Width], after: Iterable[Width]) -> list[Change]:
    """Of the widths that both have; what got slowest first."""
    earlier = {width.case: width for width in before}
    both = (Change(earlier[width.case], width) for width in after if width.case in earlier)
    return sorted(both, key=lambda change: -change.ratio)


def falling_short(widths: Sequence[Width]) -> dict[Width, float]:
    """Those that do, and the part that each reaches of what is beside it; the least first."""
    parts = {width: width.share / (beside(width, widths) or width.share) for width in widths}
    return {width: part for width, part in sorted(parts.items(), key=lambda found: found[1]) if part < CLOSE}
