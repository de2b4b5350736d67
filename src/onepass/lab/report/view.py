"""A run as the report sees it: every row beside its case and its verdict, in the order of the run's own lists."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onepass.lab.data.case import DIRECTIONS, OPS, Case
from onepass.lab.data.profile import Profile
from onepass.lab.data.row import CONTROL_SUFFIX, Checked, Incorrect, Measured, Row, Unsupported
from onepass.lab.data.run import Run
from onepass.lab.data.timing import Timing
from onepass.lab.data.verdict import CALLS, Verdict

#: Calls whose speed-up is evidence; no other row enters a mean or gets a colour.
EVIDENCE = ("supported", "same", "slower")
#: What the report calls a row that no verdict speaks of.
OWN_CALLS = ("baseline", "control", "checked", "not compared")
ALL_CALLS = CALLS + OWN_CALLS

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Entry:
    """One row of the report. `case` is None for a row whose case the header does not name."""

    row: Row
    case: Case | None
    verdict: Verdict | None
    call: str
    reasons: tuple[str, ...]
    profile: Profile | None = None

    @property
    def speedup(self) -> float | None:
        return self.verdict.speedup if self.verdict and isinstance(self.row, Measured) else None

    @property
    def is_evidence(self) -> bool:
        return self.call in EVIDENCE and self.speedup is not None

    @property
    def group(self) -> tuple[str, str]:
        return (self.case.op, self.case.direction) if self.case else ("", "")

    @property
    def deciding(self) -> Timing | None:
        """The time that rows are compared by: the GPU's where there is one, else the call's."""
        if not isinstance(self.row, Measured):
            return None
        return self.row.timings.get("gpu") or self.row.timings.get("call")

    @property
    def ceiling_share(self) -> float | None:
        if not isinstance(self.row, Measured) or not self.row.ceiling_gbps > 0:
            return None
        return self.row.gbps / self.row.ceiling_gbps


@dataclass(frozen=True)
class View:
    run: Run
    baseline: str
    backends: list[str]
    cases: list[Case]
    entries: list[Entry]
    skipped: list[str]

    @property
    def compared(self) -> list[Entry]:
        """The rows of backends: all but controls."""
        return [entry for entry in self.entries if not entry.row.backend.endswith(CONTROL_SUFFIX)]

    @property
    def has_profiles(self) -> bool:
        return any(entry.profile is not None for entry in self.entries)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """The operations and directions that the run has, in the order in which the library names them."""
        present = {(case.op, case.direction) for case in self.cases}
        return [(op, direction) for op in OPS for direction in DIRECTIONS if (op, direction) in present]


def view(run: Run, verdicts: list[Verdict]) -> View:
    found, skipped = run.rows()
    profiles, unread = run.profiles()
    against = [verdict.against for verdict in verdicts]
    baseline = str(run.header.get("baseline") or "eager")
    if against and baseline not in against:
        baseline = max(set(against), key=against.count)
    judged = {(verdict.case, verdict.backend): verdict for verdict in verdicts if verdict.against == baseline}
    cases = {case.id: case for case in run.cases}
    names = list(dict.fromkeys([*run.backends, *(backend for _, backend in found)]))
    backends = [name for name in names if not name.endswith(CONTROL_SUFFIX)]
    places = {name: place for place, name in enumerate([*cases, *sorted({name for name, _ in found} - set(cases))])}
    order = sorted(found, key=lambda key: (places[key[0]], names.index(key[1])))
    entries = [
        replace(_entry(found[key], cases.get(key[0]), judged.get(key), baseline), profile=profiles.get(key))
        for key in order
    ]
    return View(run, baseline, backends, list(cases.values()), entries, skipped + unread)


def _entry(row: Row, case: Case | None, verdict: Verdict | None, baseline: str) -> Entry:
    """What the row itself says comes before what a verdict says of it."""
    told = verdict.reasons if verdict else ()
    if isinstance(row, Unsupported):
        return Entry(row, case, verdict, "unsupported", told or (row.why,))
    if isinstance(row, Incorrect):
        return Entry(row, case, verdict, "incorrect", told or _errors(row))
    if isinstance(row, Checked):
        return Entry(row, case, verdict, "checked", (row.note,))
    if row.backend == baseline:
        return Entry(row, case, None, "baseline", ())
    if row.backend.endswith(CONTROL_SUFFIX):
        return Entry(row, case, None, "control", ("the same backend a second time: the run's own noise",))
    if verdict is None:
        return Entry(row, case, None, "not compared", (f"no verdict against {baseline}",))
    return Entry(row, case, verdict, verdict.call, told)


def _errors(row: Incorrect) -> tuple[str, ...]:
    errors, limits = row.correctness.errors, row.correctness.limits
    wrong = [(name, errors.get(name, math.nan)) for name in limits if not errors.get(name, math.nan) <= limits[name]]
    return (*(f"{name} off by {error:.2g}, limit {limits[name]:.2g}" for name, error in wrong), row.when)


def shape_name(case: Case) -> str:
    """A case within its operation and direction: 4,096 × 8,192 fp16."""
    weight = f", weight {_SHORT[case.weight_dtype]}" if case.weight_dtype not in (None, case.dtype) else ""
    layout = f", {case.layout} of {case.heads}" if case.layout != "dense" else ""
    eps = f", eps {case.eps:g}" if case.eps != 1e-6 else ""
    fp8 = f", {case.scaling}{' both ways' if case.columnwise else ''}" if case.scaling else ""
    return f"{case.rows:,} × {case.cols:,} {_SHORT[case.dtype]}{weight}{layout}{eps}{fp8}"
