"""Which rows a backward takes in turns (kernels/turns.py)."""

from __future__ import annotations

from onepass.plan import in_force
from onepass.plan.plans import piece_of
from onepass.spec import Problem


def takes_turns(problem: Problem, align: int) -> bool:
    """Whether a backward's programs take rows that lie alike, so that all can be loaded in vectors."""
    t = in_force.thresholds()
    least = t.turns_from_bytes if problem.residual is None else t.summed_turns_from_bytes
    size, piece = problem.h.itemsize, piece_of(problem.h, align)
    short = any(piece == each == size and first <= problem.cols <= last for each, first, last in t.turns_short)
    return problem.turns > 1 and piece <= 4 and (short or problem.cols * size >= least)


def reach(problem: Problem) -> int:
    """The columns, and what may come before them in the 16 bytes in which a row begins that is taken in turns."""
    return problem.cols + 16 // problem.h.itemsize - 1
