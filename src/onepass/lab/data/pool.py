"""Pooling: a case that was sampled again has the rounds of all its samplings, as if they had been one.

Rounds of two backends are pairs, so a sampling counts for all backends of its case or for none: one that a kill cut off
is left out, and so is one in which the GPU held back, if there is another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from onepass.lab.data.row import Conditions, Measured, Row
from onepass.lab.data.timing import DECIDING, summarize

Key = tuple[str, str]  # case and backend


def pooled(rows: Iterable[Row]) -> dict[Key, Row]:
    """The rows by case and backend: the last of each, joined by earlier ones if all have times of one machine."""
    last: dict[Key, Row] = {}
    samplings: dict[str, dict[Key, dict[str, Measured]]] = {}  # by case, row, and when the sampling began
    for row in rows:
        key = row.case, row.backend
        of_case = samplings.setdefault(row.case, {})
        if not isinstance(row, Measured):
            of_case.pop(key, None)
        elif _same_machine(row, last.get(key)):
            of_case[key][row.began] = row
        else:
            of_case[key] = {row.began: row}
        last[key] = row
    for of_case in samplings.values():
        began = _counting(of_case)
        for key, taken in of_case.items():
            counting = [row for when, row in taken.items() if when in began]
            last[key] = _together(counting) if counting else last[key]
    return last


def _same_machine(row: Measured, other: Row | None) -> bool:
    return isinstance(other, Measured) and (row.host, row.device) == (other.host, other.device)


def _counting(of_case: dict[Key, dict[str, Measured]]) -> set[str]:
    """When the samplings began that all backends took part in; only those without throttling, if there are any."""
    common = set.intersection(*(set(taken) for taken in of_case.values())) if of_case else set()
    held_back = {when for taken in of_case.values() for when, row in taken.items() if row.throttled}
    return common - held_back or common


def _together(rows: list[Measured]) -> Measured:
    last = rows[-1]
    if len(rows) == 1:
        return last
    kinds = [kind for kind in last.timings if all(kind in row.timings for row in rows)]
    timings = {kind: summarize(kind, [each for row in rows for each in row.timings[kind].rounds]) for kind in kinds}
    deciding = next((kind for kind in DECIDING if kind in timings and timings[kind].p50 > 0), None)
    pace = last.timings[deciding].p50 / timings[deciding].p50 if deciding else 1.0
    return replace(
        last,
        timings=timings,
        gbps=last.gbps * pace,
        tflops=last.tflops * pace,
        ceiling_gbps=max(row.ceiling_gbps for row in rows),
        throttled=tuple(sorted({reason for row in rows for reason in row.throttled})),
        conditions=Conditions.over(row.conditions for row in rows),
    )
