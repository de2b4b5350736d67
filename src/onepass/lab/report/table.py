"""The report's table: what each cell shows, and the number by which its column sorts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.lab.data.citation import Citation
from onepass.lab.data.profile import Profile, Unprofiled
from onepass.lab.data.row import Measured
from onepass.lab.report.summary import ratio_text
from onepass.lab.report.view import Entry, View, shape_name

TIMES = ("gpu", "call", "host")


@dataclass(frozen=True)
class Number:
    """A cell: its text, and the value to sort by; None sorts last, either way."""

    text: str = "–"
    value: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Line:
    citation: Citation
    op: str
    direction: str
    shape: str
    place: int  # the case's in the run, by which its column sorts
    call: str
    reasons: tuple[str, ...]
    numbers: list[Number]  # in the order of columns()


#: The number columns: the group above, the name that the button shows, what it means.
COLUMNS = [
    ("", "speed-up", "median time of the baseline over this backend's, with its 95 % confidence interval"),
    *((kind, p, f"{p} of the {kind} time, µs") for kind in TIMES for p in ("p50", "p95")),
    ("", "noise", "interquartile range over median of the deciding time"),
    ("", "GB/s", "bytes that must move over the deciding time"),
    ("", "% of ceiling", "share of a plain copy of the same size"),
    ("", "kernels", "kernels that a call launches"),
]
#: Further ones, where rows of the run were profiled.
COUNTERS = [
    ("ncu", "DRAM", "share of the memory's peak rate, by the hardware's counters"),
    ("ncu", "bytes", "DRAM bytes over the bytes that must move"),
    ("ncu", "occupancy", "achieved: active warps over those that there is room for"),
]


def columns(view: View) -> list[tuple[str, str, str]]:
    return COLUMNS + (COUNTERS if view.has_profiles else [])


def lines(view: View) -> list[Line]:
    places = {case.id: place for place, case in enumerate(view.cases)}
    return [_line(view, entry, places.get(entry.row.case, len(places))) for entry in view.entries]


def _line(view: View, entry: Entry, place: int) -> Line:
    citation = Citation(view.run.id, entry.row.case, entry.row.backend)
    op, direction = entry.group
    shape = shape_name(entry.case) if entry.case else entry.row.case
    counters = _counters(entry.profile) if view.has_profiles else []
    numbers = [_speedup(entry), *_times(entry), *_rates(entry), *counters]
    return Line(citation, op, direction, shape, place, entry.call, entry.reasons, numbers)


def _speedup(entry: Entry) -> Number:
    if entry.call == "baseline":
        return Number("1.00×", 1.0)
    if entry.speedup is None or not entry.verdict:
        return Number()
    low, high = entry.verdict.low, entry.verdict.high
    note = f"{low:.3f} – {high:.3f}" if low is not None and high is not None else ""
    return Number(ratio_text(entry.speedup), entry.speedup, note)


def _times(entry: Entry) -> list[Number]:
    timings = entry.row.timings if isinstance(entry.row, Measured) else {}
    return [
        _number(getattr(timings[kind], p), "{:,.2f}") if kind in timings else Number()
        for kind in TIMES
        for p in ("p50", "p95")
    ]


def _rates(entry: Entry) -> list[Number]:
    row, deciding, share = entry.row, entry.deciding, entry.ceiling_share
    if not isinstance(row, Measured):
        return [Number()] * 4
    return [
        _number(deciding.noise, "{:.1%}") if deciding else Number(),
        _number(row.gbps, "{:,.0f}" if row.gbps >= 100 else "{:.1f}"),
        _number(share, "{:.1%}"),
        _number(row.kernels, "{}"),
    ]


def _counters(profile: Profile | None) -> list[Number]:
    if profile is None:
        return [Number()] * 3
    if isinstance(profile, Unprofiled):
        return [Number("unprofiled", note=profile.why), Number(), Number()]
    return [
        _number(profile.dram_percent / 100, "{:.0%}"),
        _number(profile.traffic, "{:.2f}×"),
        _number(profile.occupancy_percent / 100, "{:.0%}"),
    ]


def _number(value: float | None, form: str) -> Number:
    return Number() if value is None or not math.isfinite(value) else Number(form.format(value), value)
