"""Pooling: a case that was sampled again has the rounds of all its samplings, as if they had been one.

Rounds of two backends are pairs, so a sampling counts for all backends of its case or for none: one that a kill cut off
is left out, and so is one in which the GPU held back, if there is another. Of what remains, the last decides the place,
and samplings elsewhere are left out too: two GPUs need not be equally fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from onepass.lab.data.row import Conditions, Measured, Row
from onepass.lab.data.timing import DECIDING, summarize

Key = tuple[str, str]  # case and backend
Sampling = tuple[tuple[str, str, str], str]  # its place, and when it began


def pooled(rows: Iterable[Row]) -> dict[Key, Row]:
    """The rows by case and backend: the last of each, or, where there are times, those of all samplings that count."""
    last: dict[Key, Row] = {}
    samplings: dict[str, dict[Key, dict[Sampling, Measured]]] = {}  # by case
    for row in rows:
        key = row.case, row.backend
        of_case = samplings.setdefault(row.case, {})
        earlier = of_case.pop(key, {})
        if isinstance(row, Measured):  # one that does not say when it was sampled stands alone
            of_case[key] = (earlier if row.began else {}) | {(row.place, row.began): row}
        last[key] = row
    for of_case in samplings.values():
        counting = _counting(of_case)
        for key, taken in of_case.items():
            joined = [row for sampling, row in taken.items() if sampling in counting]
            last[key] = _together(joined) if joined else last[key]
    return last


def _counting(of_case: dict[Key, dict[Sampling, Measured]]) -> set[Sampling]:
    held_back = {sampling for taken in of_case.values() for sampling, row in taken.items() if row.throttled}
    of_any = next(iter(of_case.values()), {})
    complete = [sampling for sampling in of_any if all(sampling in taken for taken in of_case.values())]
    calm = [sampling for sampling in complete if sampling not in held_back] or complete
    return {sampling for sampling in calm if sampling[0] == calm[-1][0]}


def _together(rows: list[Measured]) -> Measured:
    last = rows[-1]
    if len(rows) == 1:
        return last
    kinds = [kind for kind in last.timings if all(kind in row.timings for row in rows)]
    timings = {
        kind: summarize(
            kind,
            [each for row in rows for each in row.timings[kind].rounds],
            [each for row in rows for each in row.timings[kind].set_aside],
        )
        for kind in kinds
    }
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
