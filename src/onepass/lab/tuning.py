"""Tuning over suites, and what it says of the planner: how far its choice was from the one that won."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onepass
from onepass.lab.data.case import Case
from onepass.lab.inputs import make_inputs

if TYPE_CHECKING:
    from onepass.plan.table import Entry

#: The planner does well enough where its choice takes no longer than this much more than the winner.
CLOSE = 0.05


@dataclass(frozen=True)
class Tuned:
    found: tuple[Entry, ...]

    def gain(self, entry: Entry) -> float:
        """What the winner saves of the time that the planner's choice takes."""
        return 1 - entry.us / entry.model_us

    @property
    def close(self) -> float:
        """The share of problems in which the planner's choice was within CLOSE of the winner."""
        within = [entry.model_us <= (1 + CLOSE) * entry.us for entry in self.found]
        return sum(within) / len(within) if within else 1.0

    def __str__(self) -> str:
        if not self.found:
            return "nothing to tune: all of it is in the table"
        worst = max(self.found, key=self.gain)
        return (
            f"{len(self.found)} problems: the planner was within {CLOSE:.0%} of the winner in {self.close:.0%} of "
            f"them; at worst it took {worst.model_us:,.1f} us where {worst.us:,.1f} are enough ({worst.signature})"
        )


def tune_cases(
    cases: Sequence[Case], again: bool = False, progress: Callable[[int, Case], None] = lambda number, case: None
) -> Tuned:
    """Each case's own pass. A problem that differs from another by its rows alone is tuned once, by the first.

    Raises ValueError for FP8 before anything is timed: what is found for a norm is not used for its FP8 form.
    """
    if quantizing := [case.id for case in cases if case.scaling is not None]:
        raise ValueError(f"{quantizing[0]} cannot be tuned: the search is for norms whose output is not FP8")
    found: list[Entry] = []
    for number, case in enumerate(cases, start=1):
        progress(number, case)
        inputs = make_inputs(case, "cuda", seed=0)
        found += onepass.tune(
            inputs.x, inputs.weight, inputs.bias, op="layer_norm" if case.op == "layer_norm" else "rms_norm",
            residual=inputs.residual, directions=(case.direction,), again=again, eps=case.eps,
        )  # fmt: skip
    return Tuned(tuple(found))
