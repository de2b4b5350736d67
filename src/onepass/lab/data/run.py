"""A run's directory: append-only, so that a run killed at any moment loses no finished row.

runs/<id>/run.json       what was asked: command, cases, backends, options, environment; written once, at the start
runs/<id>/hosts.jsonl    the environments that rows were made in: a line a host and GPU, before its first row
runs/<id>/rows.jsonl     a line a row, in the order they were finished; the last line of a case and backend counts
runs/<id>/report.html    made from those above, at any time, anywhere
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onepass.lab.data.case import Case
from onepass.lab.data.row import Row, from_json, to_json


class RunError(Exception):
    """A run that cannot be begun or read: one sentence for the person who asked."""


@dataclass(frozen=True)
class Run:
    path: Path
    header: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def cases(self) -> list[Case]:
        return [Case.from_json(fields) for fields in self.header["cases"]]

    @property
    def backends(self) -> list[str]:
        return list(self.header["backends"])

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Those that rows were made in; as long as there are none, the one that the command was given in."""
        found = []
        for line in self._lines("hosts.jsonl"):
            with suppress(ValueError):  # a line that a kill cut off is written again before the host's next row
                found.append(json.loads(line))
        return found or [self.header.get("environment") or {}]

    @property
    def environment(self) -> dict[str, Any]:
        """All of them as one; where they differ, a value is the list of theirs."""
        return _merged(self.environments)

    def environment_of(self, row: Row) -> dict[str, Any]:
        for found in reversed(self.environments):
            if (found.get("host"), found.get("gpu_uuid", "")) == (row.host, row.gpu_uuid):
                return found
        return self.header.get("environment") or {}

    def unfinished(self) -> list[Case]:
        """The cases that lack a backend's row."""
        rows, _ = self.rows()
        return [case for case in self.cases if not all((case.id, name) in rows for name in self.backends)]

    @classmethod
    def begin(cls, root: Path, run_id: str, header: dict[str, Any]) -> Run:
        """A new directory; an existing one is refused."""
        path = root / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"run {run_id} exists in {root}: resume it with --resume, or choose another --run-id"
            ) from None
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error.strerror}") from None
        (path / "run.json").write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
        return cls(path, header)

    @classmethod
    def open(cls, path: Path) -> Run:
        try:
            header = json.loads((path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path} is not a run: it has no run.json") from None
        except (OSError, json.JSONDecodeError) as error:
            raise RunError(f"{path / 'run.json'} cannot be read: {error}") from None
        return cls(path, header)

    def append(self, row: Row) -> None:
        self._append("rows.jsonl", to_json(row))

    def append_environment(self, environment: dict[str, Any]) -> None:
        """Once: a host and GPU that is there already is not written again."""
        if json.dumps(environment) not in self._lines("hosts.jsonl"):
            self._append("hosts.jsonl", environment)

    def _append(self, name: str, fields: dict[str, Any]) -> None:
        """One line, on disk before this returns. A line that a kill cut off is ended first, and harms no other."""
        with (self.path / name).open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(fields).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> tuple[dict[tuple[str, str], Row], list[str]]:
        """The rows by case and backend, and a sentence for every line that had to be skipped."""
        found: dict[tuple[str, str], Row] = {}
        damaged: list[str] = []
        for number, line in enumerate(self._lines("rows.jsonl"), start=1):
            try:
                row = from_json(json.loads(line))
            except ValueError as error:
                damaged.append(f"{self.path / 'rows.jsonl'}, line {number}, was skipped: {error}")
                continue
            found[row.case, row.backend] = row
        return found, damaged

    def _lines(self, name: str) -> list[str]:
        path = self.path / name
        if not path.exists():
            return []
        return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def _merged(environments: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in environments for name in each):
        values = [each[name] for each in environments if name in each]
        if all(isinstance(value, dict) for value in values):
            merged[name] = _merged(values)
        else:
            distinct = [value for number, value in enumerate(values) if value not in values[:number]]
            merged[name] = distinct[0] if len(distinct) == 1 else distinct
    return merged
