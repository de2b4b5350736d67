"""Limits of registers, by which an SM has room for another program, where the compiler takes a few more than that."""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force
from onepass.plan.column_sums import few_columns_plan
from onepass.plan.device import Device
from onepass.plan.plans import Plan, piece_of
from onepass.plan.tiles import FewLimit, Limit
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


def few_limited(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The same for a backward of few rows."""
    limit = _few_limit(problem, centred, align)
    few = limit is not None and problem.rows * problem.lanes <= _most_few(problem, device, limit)
    return replace(plan, registers=limit.registers) if limit is not None and few else plan


def most_few_limited(problem: Problem, device: Device, centred: bool, align: int) -> int:
    """The most rows that have that limit."""
    limit = _few_limit(problem, centred, align)
    return 0 if limit is None else _most_few(problem, device, limit) // problem.lanes


def _few_limit(problem: Problem, centred: bool, align: int) -> FewLimit | None:
    if piece_of(problem.h, align) < 16:
        return None
    kind = (centred, problem.residual is not None, problem.h.itemsize)
    return next(
        (
            limit
            for limit in in_force.thresholds().few_limits
            if (limit.centred, limit.residual, limit.itemsize) == kind and limit.first <= problem.cols <= limit.last
        ),
        None,
    )


def _most_few(problem: Problem, device: Device, limit: FewLimit) -> int:
    if limit.per_sm is not None:
        return device.sms * limit.per_sm
    # Beside those for rows there are programs for dW, of as many warps.
    warps = in_force.thresholds().few_row.warps
    at_once = device.sms * (device.registers // (32 * warps * limit.registers))
    return max(0, at_once - few_columns_plan(problem, at_once).programs)
