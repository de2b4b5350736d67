"""What is planned by at the moment: thresholds, which a test may override, and what a search tries instead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from onepass.plan.thresholds import Thresholds

if TYPE_CHECKING:
    from onepass.plan.plans import Choice

_thresholds = Thresholds()
_overridden = False
_generation = 0
_generations = itertools.count(1)


class _Forced(threading.local):
    """What a search tries, by direction, and the generation it makes. Its thread's own: others plan as ever."""

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}
        self.generation: int | None = None


_forced = _Forced()


def thresholds() -> Thresholds:
    return _thresholds


def is_overridden() -> bool:
    return _overridden


def forced() -> dict[str, Choice]:
    """What a search tries, by direction."""
    return _forced.choices


def generation() -> int:
    """Which set of thresholds and tuned choices is in force: whoever keeps plans keeps them under this number."""
    return _generation if _forced.generation is None else _forced.generation


def renew() -> None:
    """Plans that were made so far are no longer those that would be made."""
    global _generation
    _generation = next(_generations)


@contextmanager
def override(**changes: object) -> Iterator[Thresholds]:
    """Plan with other thresholds for a while: for tests that aim at one schedule, and for measurements."""
    global _thresholds, _generation, _overridden
    before = _thresholds, _generation, _overridden
    _thresholds = replace(_thresholds, **changes)  # type: ignore[arg-type]
    _generation, _overridden = next(_generations), True  # and tuned choices do not count
    try:
        yield _thresholds
    finally:
        _thresholds, _generation, _overridden = before


@contextmanager
def force(direction: str, choice: Choice) -> Iterator[None]:
    """Plan by this choice for a while, in this thread: for a search."""
    before = _forced.choices, _forced.generation
    _forced.choices, _forced.generation = before[0] | {direction: choice}, next(_generations)
    try:
        yield
    finally:
        _forced.choices, _forced.generation = before
