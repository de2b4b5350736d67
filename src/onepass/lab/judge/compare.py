"""Two runs, row by row: what became slower or faster beyond noise, and what cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from onepass.lab.data.row import CONTROL_SUFFIX, Incorrect, Measured, Row
from onepass.lab.data.run import Run, RunError
from onepass.lab.judge.judge import PRESETS, Presets, controls_of, deciding_kind
from onepass.lab.judge.stats import Interval, independent_interval, relative_interval, smallest_effect

#: regression, improvement: beyond noise, or no longer (or newly) correct. noise: no change that the runs can tell.
#: missing: one of the runs has no times for it. not comparable: another machine.
CHANGES = ("regression", "improvement", "noise", "missing", "not comparable")
#: What makes a machine. Versions and commits are what one compares runs for; these differ only by mistake.
MACHINE = ("gpu", "host", "cpu", "power_limit", "gpu_uuid", "threads")
#: Of these, what older runs did not record: it makes another machine only where both runs say it.
NOT_ALWAYS_RECORDED = ("gpu_uuid", "threads")
#: The chance that a comparison in which nothing changed names any regression at all, over all of its rows together.
FALSE_ALARMS = 0.05

Key = tuple[str, str]  # case and backend


@dataclass(frozen=True)
class Change:
    case: str
    backend: str
    change: str
    reason: str
    ratio: float | None = None  # median time in B / median time in A: above 1 is slower
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.change not in CHANGES:
            raise ValueError(f"change must be one of {', '.join(CHANGES)}, not {self.change}")


@dataclass(frozen=True)
class Comparison:
    a: str
    b: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()  # what else differs between the runs, and lines that could not be read

    @property
    def regressed(self) -> bool:
        """Only a regression beyond noise; a row that is missing or not comparable is none."""
        return any(change.change == "regression" for change in self.changes)

    def of(self, change: str) -> list[Change]:
        return [found for found in self.changes if found.change == change]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(change))} {change}" for change in CHANGES if self.of(change)) or "no rows"
        lines = [f"{self.a} → {self.b}: {counts}"]
        for change in CHANGES:
            lines += [f"  {change}: {each.backend} on {each.case}: {each.reason}" for each in self.of(change)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def compare(
    a: Run, b: Run, presets: Presets = PRESETS["default"], *, relative: bool = False, only: Container[str] | None = None
) -> Comparison:
    """From run A to run B. Nothing is pooled: a row is compared with its own in the other run.

    `relative` compares how long rows take by their own run's baseline, and so takes runs of two machines with the same
    GPU model; it says of a case that one run left out nothing at all. `only` names the backends that count.
    """
    rows_a, damaged_a = a.rows()
    rows_b, damaged_b = b.rows()
    keys = [key for key in dict.fromkeys([*rows_a, *rows_b]) if not key[1].endswith(CONTROL_SUFFIX)]
    if only is not None:
        keys = [key for key in keys if key[1] in only]
    if relative:
        return _relative(a, rows_a, b, rows_b, keys, presets)
    timed = sum(isinstance(rows_a.get(key), Measured) and isinstance(rows_b.get(key), Measured) for key in keys)
    confidence = 1 - FALSE_ALARMS / max(1, timed)
    effects = [{case: smallest_effect(found) for case, found in controls_of(rows).items()} for rows in (rows_a, rows_b)]
    changes = []
    for case, backend in keys:
        was, now = rows_a.get((case, backend)), rows_b.get((case, backend))
        elsewhere = _elsewhere(a, was, b, now)
        if elsewhere is not None:
            changes.append(Change(case, backend, "not comparable", elsewhere))
        elif isinstance(was, Measured) and isinstance(now, Measured):
            effect = max(presets.between_runs, *(effect.get(case, 0.0) for effect in effects))
            changes.append(_timed(was, now, effect, confidence, presets))
        else:
            changes.append(_untimed(case, backend, was, now))
    return Comparison(a.id, b.id, tuple(changes), (*_software(a, b), *damaged_a, *damaged_b))


def _relative(
    a: Run, rows_a: dict[Key, Row], b: Run, rows_b: dict[Key, Row], keys: list[Key], presets: Presets
) -> Comparison:
    baseline = a.header["baseline"]
    if b.header["baseline"] != baseline:
        raise RunError(f"the runs have different baselines, {baseline} and {b.header['baseline']}")
    shared = [key for key in keys if key in rows_a and key in rows_b and key[1] != baseline]
    confidence = 1 - FALSE_ALARMS / max(1, len(shared))
    changes = []
    for case, backend in shared:
        was, now = rows_a[case, backend], rows_b[case, backend]
        yardsticks = rows_a.get((case, baseline)), rows_b.get((case, baseline))
        if was.device != now.device:
            changes.append(Change(case, backend, "not comparable", f"measured on {was.device} and {now.device}"))
        elif isinstance(was, Measured) and isinstance(now, Measured):
            changes.append(_timed(was, now, presets.between_machines, confidence, presets, yardsticks))
        else:
            changes.append(_untimed(case, backend, was, now))
    return Comparison(a.id, b.id, tuple(changes), tuple(_software(a, b)))


def _timed(
    was: Measured,
    now: Measured,
    effect: float,
    confidence: float,
    presets: Presets,
    yardsticks: tuple[Row | None, Row | None] | None = None,
) -> Change:
    """By the clock, or, with yardsticks, by how long something else takes in the same run."""

    def change(name: str, reason: str, interval: Interval | None = None) -> Change:
        bounds = [None if number is None or not math.isfinite(number) else number for number in interval or [None] * 3]
        return Change(now.case, now.backend, name, reason, *bounds)

    kind = deciding_kind(was, now)
    if kind is None:
        return change("not comparable", "no kind of time in common")
    for row, name in ((was, "A"), (now, "B")):
        if row.throttled:
            return change("noise", f"the GPU was held back in {name} ({', '.join(row.throttled)}): not evidence")
    times = f"{was.timings[kind].p50:,.2f} → {now.timings[kind].p50:,.2f} µs of {kind} time"
    if yardsticks is None:
        interval = independent_interval(now.timings[kind].rounds, was.timings[kind].rounds, confidence=confidence)
    else:
        by_a, by_b = yardsticks
        if not isinstance(by_a, Measured) or not isinstance(by_b, Measured):
            return change("missing", "a run has no times of its baseline on this case")
        pair_a = was.timings[kind].rounds, by_a.timings[kind].rounds
        pair_b = now.timings[kind].rounds, by_b.timings[kind].rounds
        interval = relative_interval(pair_a, pair_b, confidence=confidence)
        times += f", {by_a.timings[kind].p50:,.2f} → {by_b.timings[kind].p50:,.2f} of the baseline"
    for row, name in ((was, "A"), (now, "B")):
        timing = row.timings[kind]
        if len(timing.rounds) < presets.rounds:
            return change("noise", f"{name} has too few rounds ({len(timing.rounds)} of {presets.rounds})", interval)
        if not timing.noise <= presets.noise:
            return change("noise", f"{name}'s samples scatter by {timing.noise:.0%} of their median", interval)
    if not interval.low > 1 and not interval.high < 1:
        return change("noise", f"{times}: within the runs' scatter", interval)
    if not abs(interval.ratio - 1) > effect:
        return change("noise", f"{times}: within the {effect:.1%} that two runs of the same may differ by", interval)
    by_the_clock = now.timings[kind].p50 / was.timings[kind].p50 - 1
    if yardsticks is not None and (by_the_clock if interval.ratio > 1 else -by_the_clock) <= presets.between_runs:
        # It is the yardstick that changed: other code shows by the clock too, if not by as much on another machine.
        return change("noise", f"{times}: {by_the_clock:+.1%} by the clock, the rest is the baseline's", interval)
    if interval.ratio > 1:
        return change("regression", f"{times}: {interval.ratio - 1:.1%} slower", interval)
    return change("improvement", f"{times}: {1 - interval.ratio:.1%} less time", interval)


def _untimed(case: str, backend: str, was: Row | None, now: Row | None) -> Change:
    """A result that became wrong is a regression that no noise explains."""
    if isinstance(now, Incorrect) and was is not None and not isinstance(was, Incorrect):
        return Change(case, backend, "regression", f"no longer correct, {now.when}")
    if isinstance(was, Incorrect) and isinstance(now, Measured):
        return Change(case, backend, "improvement", "now correct")
    lacking = [f"{name} {_lack(row)}" for row, name in ((was, "A"), (now, "B")) if not isinstance(row, Measured)]
    return Change(case, backend, "missing", "; ".join(lacking))


def _lack(row: Row | None) -> str:
    return "has no such row" if row is None else f"is {type(row).__name__.lower()}"


def _elsewhere(a: Run, was: Row | None, b: Run, now: Row | None) -> str | None:
    """In what the two rows' machines differ; what a row says of itself goes before its run's environment."""
    if was is None or now is None:
        return None
    machine_a, machine_b = _machine(a, was), _machine(b, now)
    differing = [
        f"{name} {machine_a[name] or 'unknown'} and {machine_b[name] or 'unknown'}"
        for name in machine_a
        if machine_a[name] != machine_b[name]
        and not (name in NOT_ALWAYS_RECORDED and None in (machine_a[name], machine_b[name]))
    ]
    return f"measured on different machines: {', '.join(differing)}" if differing else None


def _machine(run: Run, row: Row) -> dict[str, Any]:
    environment = run.environment_of(row)
    found = {name: environment.get(name) for name in MACHINE}
    return found | {"host": row.host or found["host"], "device": row.device or run.header.get("device")}


def _software(a: Run, b: Run) -> list[str]:
    """What a change may come from besides the code that was meant."""
    flat = [_flat({k: v for k, v in run.environment.items() if k not in MACHINE}) for run in (a, b)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if flat[0].get(name) != flat[1].get(name)]
    return [f"{name} differs: {flat[0].get(name, 'none')} → {flat[1].get(name, 'none')}" for name in names]


def _flat(environment: dict[str, Any]) -> dict[str, Any]:
    packages = environment.get("packages", {})
    return {name: value for name, value in environment.items() if name != "packages"} | dict(packages)
