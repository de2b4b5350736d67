"""The run in plain words: what was measured, where onepass is ahead and behind, and how small a difference shows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median

from onepass.lab.report.view import ALL_CALLS, EVIDENCE, Entry, View

OURS = "onepass"
#: Below this a mean is called level when the run's own smallest effect is not known.
LEVEL = 0.01
NEAR_ONE = 0.05


@dataclass(frozen=True)
class Mean:
    """A geometric mean of speed-ups, over how many cases of how many it was taken, and the least of several."""

    ratio: float | None
    cases: int
    of: int
    least: float | None


@dataclass(frozen=True)
class Summary:
    counts: list[tuple[str, int]]  # call, rows
    sentences: list[str]
    effect: str
    means: list[tuple[str, list[Mean]]]  # operation and direction, a mean a backend
    backends: list[str]  # the columns of means


def summarise(view: View, smallest_effect: float | None) -> Summary:
    counted = Counter(entry.call for entry in view.entries)
    backends = [name for name in _timed(view) if name != view.baseline]
    by_key = {(entry.row.case, entry.row.backend): entry for entry in view.entries}
    means = [(" ".join(group), [_mean(view, by_key, group, backend) for backend in backends]) for group in view.groups]
    level = LEVEL if smallest_effect is None else smallest_effect
    return Summary(
        counts=[(call, counted[call]) for call in ALL_CALLS if counted[call]],
        sentences=[_what_was_measured(view), *_where_ours_stands(view, by_key, level)],
        effect=_effect(view, smallest_effect),
        means=means,
        backends=backends,
    )


def geometric_mean(ratios: list[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _timed(view: View) -> list[str]:
    """The backends that have times at all: of one that was only checked there is no standing to tell."""
    timed = {entry.row.backend for entry in view.entries if entry.deciding}
    return [name for name in view.backends if name in timed]


Entries = dict[tuple[str, str], Entry]


def _mean(view: View, entries: Entries, group: tuple[str, str], backend: str, other: str | None = None) -> Mean:
    """Speed-up over the baseline or, through it, over another backend on the cases where both have evidence."""
    cases = [case for case in view.cases if (case.op, case.direction) == group]
    ratios = []
    for case in cases:
        mine = _evidence(entries, case.id, backend)
        theirs = 1.0 if other is None else _evidence(entries, case.id, other)
        if mine and theirs:
            ratios.append(mine / theirs)
    return Mean(geometric_mean(ratios), len(ratios), len(cases), min(ratios) if len(ratios) > 1 else None)


def _evidence(entries: Entries, case: str, backend: str) -> float | None:
    entry = entries.get((case, backend))
    return entry.speedup if entry and entry.is_evidence else None


def _what_was_measured(view: View) -> str:
    asked = len(view.cases) * len(view.backends)
    if not view.entries:
        return f"The run asked for {_count(len(view.cases), 'case')} and has no rows yet."
    names = ", ".join(view.backends)
    missing = asked - len(view.compared)
    unfinished = f" {_count(missing, 'row')} of {asked} not there: the run did not finish." if missing > 0 else ""
    return (
        f"{_count(len(view.cases), 'case')} with {_count(len(view.backends), 'backend')} ({names}), "
        f"compared with {view.baseline}.{unfinished}"
    )


def _where_ours_stands(view: View, entries: Entries, level: float) -> list[str]:
    if OURS not in view.backends:
        return ["onepass was not among the backends of this run."] if view.entries else []
    if view.baseline == OURS:
        return ["Everything is compared with onepass itself: a mean below 1 is a backend that it is ahead of."]
    return [
        _standing(view, entries, level, other)
        for other in (None, *(name for name in _timed(view) if name not in (OURS, view.baseline)))
    ]


def _standing(view: View, entries: Entries, level: float, other: str | None) -> str:
    placed: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
    for group in view.groups:
        mean = _mean(view, entries, group, OURS, other)
        if mean.ratio is not None:
            place = "ahead" if mean.ratio > 1 + level else "behind" if mean.ratio < 1 / (1 + level) else "level"
            # Three digits behind the point near 1, where two would hide which side of it the mean is on.
            ratio = f"{mean.ratio:.3f}×" if abs(mean.ratio - 1) < NEAR_ONE else ratio_text(mean.ratio)
            # A mean that is ahead must not pass for being ahead everywhere.
            lost = mean.least if mean.least is not None and mean.least < 1 / (1 + level) else None
            least = "" if lost is None else f", {ratio_text(lost)} at the least"
            words = f"{' '.join(group)} {ratio} ({mean.cases} of {mean.of}{least})"
            placed[place].append(words.replace(" ", "\N{NO-BREAK SPACE}"))
    parts = [f"{place} in {', '.join(groups)}" for place, groups in placed.items() if groups]
    return f"Against {other or view.baseline}, onepass {'is ' + '; '.join(parts) if parts else 'has no evidence'}."


def _effect(view: View, smallest_effect: float | None) -> str:
    if smallest_effect is not None:
        return f"The smallest effect this run could tell, by its A/A controls, is {smallest_effect:.2%} (median case)."
    widths = [
        (entry.verdict.high - entry.verdict.low) / 2 / entry.speedup
        for entry in view.entries
        if entry.call in EVIDENCE and entry.verdict and entry.speedup
        if entry.verdict.low is not None and entry.verdict.high is not None
    ]
    if not widths:
        return "The smallest effect this run could tell is not known: no row has a confidence interval."
    return (
        f"Half the rows tell effects of {median(widths):.2%} and more, the widest only from {max(widths):.1%} on "
        "(half-widths of the 95 % confidence intervals)."
    )


def ratio_text(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 9.95 else f"{ratio:.2f}×"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
