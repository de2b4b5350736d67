"""What was tuned: which schedule and tile won for a problem on a GPU, from the package's tables and the user's cache.

A table is JSON lines, an entry each. The package has one for GPUs it was measured on (tables/). The user's own lies in
the cache directory and goes before it; it is only ever appended to, a whole line at a time, so that several processes
may tune at once, and the last entry for a problem counts.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from onepass.plan.cache import cache_directory
from onepass.plan.tiles import Tile

#: Entries of another format are passed over, and those of schedules that there are not.
FORMAT = 1
SCHEDULES = (
    "tile", "turns", "split", "split_turns", "ring", "ring_turns", "stream", "cluster", "odd", "odd_split", "flat",
    "threads",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    signature: str  # tuned.signature
    schedule: str
    tile: Tile
    us: float  # the winner's time
    model_us: float  # that of what the thresholds would have chosen
    rows: int  # at which it was timed
    run: str = ""  # the run behind it, or when it was tuned

    def to_line(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Entry | None:
        """None for a line of another format, or one that a kill cut off."""
        try:
            fields = json.loads(line)
            if fields.pop("format") != FORMAT or fields["schedule"] not in SCHEDULES:
                return None
            return cls(**fields | {"tile": Tile(**fields["tile"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def file_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".jsonl"


def find(gpu: str, signature: str) -> Entry | None:
    return _entries(gpu).get(signature)


def keep(gpu: str, entry: Entry) -> None:
    """For this process and for later ones. Where the cache cannot be written, for this process alone."""
    _entries(gpu)[entry.signature] = entry
    path = cache_directory() / file_name(gpu)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write of one line to a file that is open for appending: lines of several processes do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, entry.to_line().encode())
        finally:
            os.close(descriptor)
    except OSError:
        pass


def forget() -> None:
    """What was read so far; the next question reads it again."""
    _entries.cache_clear()


@cache
def _entries(gpu: str) -> dict[str, Entry]:
    name = file_name(gpu)
    found: dict[str, Entry] = {}
    for source in (files("onepass.plan").joinpath("tables", name), cache_directory() / name):
        try:
            text = source.read_text(encoding="utf-8")
        except OSError:  # there is none, or none that may be read
            continue
        entries = map(Entry.from_line, text.splitlines())
        found |= {entry.signature: entry for entry in entries if entry is not None}
    return found
