"""Limits of registers, by which an SM has room for another program, where the compiler takes a few more than that."""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force
from onepass.plan.device import Device
from onepass.plan.plans import Plan, piece_of
from onepass.plan.tiles import Limit
from onepass.spec import Problem


def limited(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, with a limit of registers where there is one for it."""
    alone = plan.schedule == "tile" and plan.slices == 1 and plan.registers is None
    if not alone or piece_of(problem.x, align) < 16:
        return plan
    rows = problem.rows * problem.lanes
    for limit in _limits(problem, centred):
        here = limit.late in (None, plan.ahead is not None) and limit.sum_first in (None, plan.sum_first)
        if here and rows > device.sms * limit.per_sm:
            return replace(plan, registers=limit.registers)
    return plan


def least_limited(problem: Problem, device: Device, centred: bool) -> tuple[int, ...]:
    """The fewest rows that have each of the limits."""
    return tuple((device.sms * limit.per_sm) // problem.lanes + 1 for limit in _limits(problem, centred))


def _limits(problem: Problem, centred: bool) -> list[Limit]:
    """Those for its columns and dtypes."""
    kind = (problem.quantized, centred, problem.residual is not None, problem.x.itemsize)
    return [
        limit
        for limit in in_force.thresholds().limits
        if (limit.quantized, limit.centred, limit.residual, limit.itemsize) == kind
        and limit.first <= problem.cols <= limit.last
    ]
