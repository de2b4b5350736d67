"""Suites: named lists of cases, read from the JSON files beside this one.

A file has `about`, in words, and `grids` or `cases` or both. A grid is every combination of its lists (`ops`,
`directions`, `rows` or `tokens`, `cols`, `dtypes`, `heads`, `scalings`), with `layout`, `weight_dtype`, `eps` and
`columnwise` for all of them; `cols` may be an object that says whose size each one is. `defaults` are the fields that a
grid leaves out. A case has the fields of `Case`.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from onepass.lab.data.case import Case

_FILE_FIELDS = ("about", "defaults", "grids", "cases")
_LISTS = ("ops", "directions", "rows", "tokens", "cols", "dtypes", "heads", "scalings")
_SINGLE = ("layout", "weight_dtype", "eps", "columnwise")
_CASE_FIELDS = tuple(Case.__dataclass_fields__)


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    cases: tuple[Case, ...]


@cache
def suites() -> dict[str, Suite]:
    """Every suite that comes with the lab, by name.

    Example:
        >>> suites()["seed"].cases[0].id
        'rms_norm-forward-512x1024-float16'
    """
    found = sorted((file for file in files("onepass.lab").joinpath("suites").iterdir()), key=lambda file: file.name)
    texts = {file.name.removesuffix(".json"): file.read_text("utf-8") for file in found if file.name.endswith(".json")}
    return {name: parse(name, text) for name, text in texts.items()}


def suite(name: str) -> Suite:
    """The suite of that name. Raises ValueError with the names there are."""
    if name not in suites():
        raise ValueError(f"suite must be one of {', '.join(suites())}, not {name}")
    return suites()[name]


#: Of one tensor of a random case: from what a few tokens take to what leaves any L2.
_RANDOM_BYTES = (1 << 16, 1 << 28)
_RANDOM_COLS = (32, 131072)


def random_cases(count: int, seed: int) -> list[Case]:
    """Cases that nobody listed: sizes by their logarithm, a quarter of the widths odd, the others as models have them.

    The first cases of a longer list by the same seed are those of a shorter one.

    >>> [case.id for case in random_cases(2, seed=0)] == [case.id for case in random_cases(3, seed=0)][:2]
    True
    """
    draw = random.Random(seed)
    cases: dict[Case, None] = {}
    while len(cases) < count:
        dtype = draw.choice(["bfloat16", "bfloat16", "bfloat16", "float16", "float32"])
        cols, size = (math.exp(draw.uniform(*map(math.log, span))) for span in (_RANDOM_COLS, _RANDOM_BYTES))
        unit = draw.choice([1, 8, 64, 128])
        width = max(unit, int(cols) // unit * unit) if unit > 1 else int(cols) | 1
        rows = max(1, int(size) // (width * (4 if dtype == "float32" else 2)))
        op = draw.choice(["rms_norm", "rms_norm", "layer_norm", "add_rms_norm"])
        cases[Case(op, draw.choice(["forward", "backward"]), rows, width, dtype)] = None
    return list(cases)


def parse(name: str, text: str) -> Suite:
    """A suite from the text of its file. Raises ValueError that names the file and the field."""
    try:
        fields = json.loads(text)
        _known(fields, _FILE_FIELDS, "the file")
        if not isinstance(fields.get("about"), str) or not fields["about"]:
            raise ValueError("about must say in words what the suite is for")
        for part in ("grids", "cases"):
            if not isinstance(fields.get(part, []), list):
                raise ValueError(f"{part} must be a list, not {fields[part]!r}")
        cases: list[Case] = []
        for number, grid in enumerate(fields.get("grids", [])):
            with _Within(f"grids[{number}]"):
                cases += _grid(fields.get("defaults", {}) | grid)
        for number, case in enumerate(fields.get("cases", [])):
            with _Within(f"cases[{number}]"):
                _known(case, _CASE_FIELDS, "a case")
                cases.append(Case(**case))
        ids = [case.id for case in cases]
        if twice := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            raise ValueError(f"{twice[0]} stands in it twice")
        if not cases:
            raise ValueError("grids and cases are both empty")
    except (ValueError, TypeError) as error:
        raise ValueError(f"suites/{name}.json: {error}") from None
    return Suite(name, fields["about"], tuple(cases))


def _grid(fields: dict[str, Any]) -> Iterator[Case]:
    _known(fields, _LISTS + _SINGLE, "a grid")
    fields = {"heads": [1], "scalings": [None]} | fields
    if ("rows" in fields) == ("tokens" in fields):
        raise ValueError("rows or tokens must be given, and not both")
    height = "rows" if "rows" in fields else "tokens"
    axes = ("ops", "dtypes", "heads", "scalings", "cols", height, "directions")
    lists = []
    for name in axes:
        values = fields.get(name)
        if name == "cols" and isinstance(values, dict):
            values = [int(cols) for cols in values]
        if not isinstance(values, list) or not values:
            raise ValueError(f"{name} must be a list that is not empty, not {values!r}")
        lists.append(values)
    single: dict[str, Any] = {name: fields[name] for name in _SINGLE if name in fields}
    for op, dtype, heads, scaling, cols, size, direction in itertools.product(*lists):
        rows = size * heads if height == "tokens" else size
        yield Case(
            op=op, direction=direction, rows=rows, cols=cols, dtype=dtype, heads=heads, scaling=scaling, **single
        )  # fmt: skip


def _known(fields: Any, names: tuple[str, ...], what: str) -> None:
    if not isinstance(fields, dict):
        raise ValueError(f"{what} must be an object, not {fields!r}")
    if unknown := [name for name in fields if name not in names]:
        raise ValueError(f"{what} has no field {unknown[0]}; it may have {', '.join(names)}")


class _Within:
    """Puts the place in the file before what is wrong there."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ValueError, TypeError)):
            raise ValueError(f"{self.place}: {error}") from None
