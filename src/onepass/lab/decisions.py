"""Decision records: what was decided, in MADR form, and the rows that it rests on, which a check judges again."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from onepass.lab.data.citation import Citation
from onepass.lab.data.row import Row
from onepass.lab.data.run import Run, RunError
from onepass.lab.data.verdict import CALLS
from onepass.lab.judge.judge import controls_of, judge_row
from onepass.lab.judge.stats import Interval

#: Where runs are looked for: those that are kept in the repository, then those that were made here.
RUNS = (Path("evidence/runs"), Path("runs"))
#: What MADR asks of a record, and what its template names as worth having: no decision is without consequences.
SECTIONS = ("Context and Problem Statement", "Considered Options", "Decision Outcome", "Consequences")

_NAME = re.compile(r"(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md")
_FRONT_MATTER = re.compile(r"---\n(.*?\n)---\n(.*)", re.DOTALL)
_FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.DOTALL | re.MULTILINE)
#: Statuses under which the decision stands, and so must its calls; under the others its rows need only be there.
_STANDING = ("proposed", "accepted")
_FALLEN = re.compile(r"rejected|deprecated|superseded by (?:ADR-)?(?P<successor>\d{4})")


@dataclass(frozen=True)
class Evidence:
    """A claim: that this row, judged against that backend, gets this call."""

    row: Citation
    call: str
    against: str | None = None  # the run's baseline where it is not said


@dataclass
class Record:
    """A record as it was read, with a sentence for everything that is wrong with it."""

    name: str
    title: str = ""
    status: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def number(self) -> str | None:
        found = _NAME.fullmatch(self.name)
        return found[1] if found else None

    def __str__(self) -> str:
        """A line if it holds, else a line a fault."""
        if self.faults:
            return "\n".join(f"{self.name}: {fault}" for fault in self.faults)
        rows = f"{len(self.evidence)} row{'' if len(self.evidence) == 1 else 's'}"
        return f"{self.name}: {self.status}, {rows} {'as claimed' if self.status in _STANDING else 'there'}"


def check(directory: Path, roots: Sequence[Path] = RUNS) -> list[Record]:
    """All records of a directory; those without faults hold. A README beside them is none."""
    if not directory.is_dir():
        raise RunError(f"{directory} is no directory of decision records: it is not there")
    records = [read(path) for path in sorted(directory.glob("*.md")) if path.name != "README.md"]
    runs = _Runs(roots)
    for record in records:
        record.faults += [fault for fault in (_numbering(record, records), _succession(record, records)) if fault]
        record.faults += [fault for evidence in record.evidence if (fault := _doubt(evidence, record.status, runs))]
    return records


def read(path: Path) -> Record:
    record = Record(path.name)
    if record.number is None:
        record.faults.append("its file name is not of the form NNNN-title-in-small-letters.md")
    try:
        found = _FRONT_MATTER.fullmatch(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        record.faults.append(f"it cannot be read: {error}")
        return record
    if found is None:
        record.faults.append("it does not begin with front matter between two lines of ---")
        return record
    try:
        _take_front_matter(record, _yaml(found[1]))
    except ValueError as error:
        record.faults.append(f"its front matter cannot be read: {error}")
    _take_sections(record, found[2])
    return record


def _yaml(text: str) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise RunError("decision records are read by PyYAML, which is not installed: pip install pyyaml") from None

    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 2}: " if mark else ""
        raise ValueError(f"{place}{getattr(error, 'problem', None) or 'it is not YAML'}") from None
    if not isinstance(fields, dict):
        raise ValueError("it has no fields")
    return fields


def _take_front_matter(record: Record, fields: dict[str, Any]) -> None:
    """Further fields of MADR, such as decision-makers, are the writer's own."""
    record.status = str(fields.get("status") or "")
    if record.status not in _STANDING and not _FALLEN.fullmatch(record.status):
        record.faults.append(
            f"status must be {', '.join(_STANDING)}, rejected, deprecated or superseded by NNNN, not "
            f"{record.status or 'nothing'}"
        )
    if not isinstance(fields.get("date"), datetime.date):
        record.faults.append(f"date must be a day such as 2026-11-15, not {fields.get('date', 'nothing')}")
    claims = fields.get("evidence") or []
    if not isinstance(claims, list) or not claims:
        record.faults.append("it names no rows: evidence must be a list of row, call and, if wanted, against")
        return
    for place, claim in enumerate(claims, start=1):
        try:
            record.evidence.append(_evidence(claim))
        except ValueError as error:
            record.faults.append(f"evidence {place} cannot be read: {error}")


def _evidence(claim: Any) -> Evidence:
    if not isinstance(claim, dict) or not {"row", "call"} <= set(claim) <= {"row", "call", "against"}:
        raise ValueError(f"it must have row, call and, if wanted, against, and has {_listed(claim)}")
    if claim["call"] not in CALLS:
        raise ValueError(f"call must be one of {', '.join(CALLS)}, not {claim['call']}")
    against = claim.get("against")
    return Evidence(Citation.parse(str(claim["row"])), claim["call"], None if against is None else str(against))


def _listed(claim: Any) -> str:
    return ", ".join(map(str, claim)) if isinstance(claim, dict) else f"only {claim}"


def _take_sections(record: Record, text: str) -> None:
    prose = _FENCED.sub("", text)
    title = re.search(r"^# +(\S.*)$", prose, re.MULTILINE)
    if title is None:
        record.faults.append("it has no title (a line that begins with #)")
    else:
        record.title = title[1].strip()
    headings = {heading.strip() for heading in re.findall(r"^#{2,3} +(.*)$", prose, re.MULTILINE)}
    record.faults += [f"its section {section} is missing" for section in SECTIONS if section not in headings]


def _numbering(record: Record, records: Iterable[Record]) -> str | None:
    others = [each.name for each in records if each is not record and each.number == record.number is not None]
    return f"its number is also that of {', '.join(others)}" if others else None


def _succession(record: Record, records: Iterable[Record]) -> str | None:
    found = _FALLEN.fullmatch(record.status)
    successor = found["successor"] if found else None
    if successor is None or any(each.number == successor for each in records if each is not record):
        return None
    return f"it is superseded by {successor}, which is not there"


class _Runs:
    """Runs by their ids, each read once however many records name it."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self.run = cache(self._run)
        self.rows = cache(self._rows)
        self.controls = cache(self._controls)

    def _run(self, run_id: str) -> Run:
        path = next((root / run_id for root in self._roots if (root / run_id / "run.json").exists()), None)
        if path is None:
            raise RunError(f"there is no run {run_id} in {' or '.join(map(str, self._roots))}")
        return Run.open(path)

    def _rows(self, run_id: str) -> Mapping[tuple[str, str], Row]:
        return self.run(run_id).rows()[0]

    def _controls(self, run_id: str) -> Mapping[str, Interval]:
        return controls_of(self.rows(run_id))


def _doubt(evidence: Evidence, status: str, runs: _Runs) -> str | None:
    """Why the record cannot rest on this row, or None if it can."""
    row = evidence.row
    try:
        run = runs.run(row.run)
        if (row.case, row.backend) not in runs.rows(row.run):
            return f"{row} is missing: {run.path} has no such row"
        if status not in _STANDING:
            return None
        against = evidence.against or run.header.get("baseline")
        if not against:
            return f"{row} must say against what it is judged: its run has no baseline"
        verdict = judge_row(runs.rows(row.run), runs.controls(row.run), row.case, row.backend, against)
    except RunError as error:
        return f"{row} cannot be checked: {error}"
    if verdict is None:
        return f"{row} cannot be judged against {against}: it is what others are compared with"
    if verdict.call != evidence.call:
        return f"{row} against {against} is {verdict.call}, not {evidence.call} as claimed: {verdict.reasons[0]}"
    return None
