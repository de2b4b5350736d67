"""A run's directory: append-only, so that a run killed at any moment loses no finished row.

runs/<id>/run.json       what was asked: command, cases, backends, options, environment; written once, at the start
runs/<id>/hosts.jsonl    the environments that rows were made in: a line a host and GPU, before its first row
runs/<id>/rows.jsonl     a line a row, in the order they were finished; rows.jsonl.gz once the run is put away
runs/<id>/profiles.jsonl what the hardware's counters say of rows, a line each, where it was asked for
runs/<id>/report.html    made from those above, at any time, anywhere
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onepass.lab.data import profile as profile_data
from onepass.lab.data import row as row_data
from onepass.lab.data.case import Case
from onepass.lab.data.pool import pooled
from onepass.lab.data.profile import Profile
from onepass.lab.data.row import Row


class RunError(Exception):
    """A run that cannot be begun or read: one sentence for the person who asked."""


@dataclass(frozen=True)
class Run:
    path: Path
    header: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.resolve().name  # also of "."

    @property
    def cases(self) -> list[Case]:
        return [Case.from_json(fields) for fields in self.header["cases"]]

    @property
    def backends(self) -> list[str]:
        return list(self.header["backends"])

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Those that rows were made in; as long as there are none, the one that the command was given in."""
        found, _ = self._read("hosts.jsonl", dict)  # a line that a kill cut off is written again, before the next row
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

    def unfinished(self, again: Container[str] = ()) -> list[Case]:
        """The cases that lack a backend's row, and those whose ids are in `again`, whatever there is of them."""
        rows, _ = self.rows()
        return [
            case
            for case in self.cases
            if case.id in again or not all((case.id, name) in rows for name in self.backends)
        ]

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
        self._append("rows.jsonl", row_data.to_json(row))

    def append_profile(self, profile: Profile) -> None:
        self._append("profiles.jsonl", profile_data.to_json(profile))

    def append_environment(self, environment: dict[str, Any]) -> None:
        """Once: a host and GPU that is there already is not written again."""
        if json.dumps(environment) not in _lines(self._path("hosts.jsonl")):
            self._append("hosts.jsonl", environment)

    def rows(self) -> tuple[dict[tuple[str, str], Row], list[str]]:
        """The rows by case and backend, samplings pooled, and a sentence for every line that had to be skipped."""
        found, damaged = self._read("rows.jsonl", row_data.from_json)
        return pooled(found), damaged

    def profiles(self) -> tuple[dict[tuple[str, str], Profile], list[str]]:
        """The profiles by case and backend, the last of each, and a sentence for every line that had to be skipped."""
        found, damaged = self._read("profiles.jsonl", profile_data.from_json)
        return {(profile.case, profile.backend): profile for profile in found}, damaged

    def must_take_rows(self) -> None:
        """Refuses a run that no row can be added to, before the time is spent that making one takes."""
        self._open_path("rows.jsonl")

    def _open_path(self, name: str) -> Path:
        path = self._path(name)
        if path.suffix == ".gz":
            raise RunError(f"{path} is compressed: unpack it with gunzip to add to it")
        return path

    def _append(self, name: str, fields: dict[str, Any]) -> None:
        """One line, on disk before this returns. A line that a kill cut off is ended first, and harms no other."""
        path = self._open_path(name)
        with path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(fields).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, name: str, from_json: Callable[[dict[str, Any]], Any]) -> tuple[list[Any], list[str]]:
        path = self._path(name)
        found: list[Any] = []
        damaged: list[str] = []
        for number, line in enumerate(_lines(path), start=1):
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise ValueError("not a JSON object")
                found.append(from_json(fields))
            except ValueError as error:
                damaged.append(f"{path}, line {number}, was skipped: {error}")
        return found, damaged

    def _path(self, name: str) -> Path:
        """The file of that name, or what gzip made of it."""
        plain, packed = self.path / name, self.path / f"{name}.gz"
        return packed if packed.exists() and not plain.exists() else plain


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    return [line for line in content.decode(encoding="utf-8", errors="replace").splitlines() if line.strip()]


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
