"""When a forward asks for weight and bias: before its row, with it, or late; and what few rows have of their own.

None of it changes a row's bits.
"""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force
from onepass.plan.device import Device
from onepass.plan.plans import Plan, piece_of, power_of_two
from onepass.plan.tiles import Tile
from onepass.spec import Problem

#: Few sums of 32 elements a thread take 72 to 79 registers: an SM has room for so many warps of whole programs, by 16.
WARPS_AT_ONCE = 16


def affine_late(problem: Problem, device: Device, tile: Tile, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, with weight and bias asked for late where more programs can then run at once, and there are more."""
    if tile.late is None or problem.quantized:
        return plan
    if plan.programs <= device.sms * tile.late:
        soon = tile.late < in_force.thresholds().affine_first_late
        return plan if soon else affine_first(problem, device, plan, centred, align)
    # A row in fp32, as a sum with the residual is, leaves no room for what is asked for ahead.
    if problem.residual is not None or (centred and problem.x.itemsize == 4):
        return replace(plan, ahead=0)
    return replace(plan, ahead=tile.ahead, registers=tile.registers)


def affine_first(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, with weight and bias asked for before the row where that is faster."""
    t = in_force.thresholds()
    each = _counts_as(problem)
    wide = problem.cols >= (t.affine_first_columns if each == 1 else t.affine_first_fp32_columns)[centred]
    elements = problem.rows * problem.lanes * problem.cols
    many = wide and elements * each > device.sms * t.affine_first_elements
    single = centred and align == 1 and each == 1
    given = problem.quantized == "static" and problem.residual is not None
    return replace(plan, affine_first=True) if _has_affine(problem) and many and not single and not given else plan


def most_prompt_rows(problem: Problem, device: Device) -> int:
    """How many rows count as few."""
    elements = in_force.thresholds().prompt_elements[problem.residual is not None]
    return device.sms * elements // (problem.cols * problem.lanes * _counts_as(problem))


def prompt(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, written for how soon a row is done where rows are few."""
    t, rows = in_force.thresholds(), problem.rows * problem.lanes
    few = problem.rows <= most_prompt_rows(problem, device)
    crowded = plan.slices > 1 and problem.residual is not None
    crowded |= align == 1 and problem.cols > t.prompt_singles
    crowded |= _take_turns(problem, device, plan, centred)
    if not few or crowded or plan.schedule != "tile" or plan.ahead is not None or problem.quantized:
        return plan
    # A division keeps weight and bias before the row's sum; where there is none, they would be asked for behind it.
    undivided = plan.is_even(problem.cols) and problem.cols == power_of_two(problem.cols)
    size = problem.cols * problem.x.itemsize
    lone = not centred and problem.residual is None and rows <= t.lone_rows and size <= t.lone_bytes
    first = plan.affine_first or (_has_affine(problem) and (undivided or lone))
    return replace(plan, prompt=True, affine_first=first)


def _take_turns(problem: Problem, device: Device, plan: Plan, centred: bool) -> bool:
    """Whether sums with the residual would wait for room on an SM, written so; as they are for many they do not."""
    full = not centred and problem.residual is not None and plan.elements == in_force.thresholds().prompt_sums
    large = plan.warps >= 16 or problem.x.itemsize == 4
    return full and large and problem.rows * problem.lanes > device.sms * WARPS_AT_ONCE // plan.warps


def least_in_turns(problem: Problem, device: Device) -> tuple[int, ...]:
    """The fewest rows that do, by 16 warps a row and by eight."""
    at_once = (device.sms * WARPS_AT_ONCE // warps for warps in (16, 8))
    return tuple(rows // problem.lanes + 1 for rows in at_once) if problem.residual is not None else ()


def sum_first(problem: Problem, device: Device, plan: Plan, centred: bool, align: int) -> Plan:
    """The plan, with sums with the residual stored before they are normalized, where rows are sooner done so."""
    t, size = in_force.thresholds(), problem.x.itemsize
    held = plan.schedule in ("tile", "split") and plan.ahead is None
    if problem.sum is None or not held:
        return plan
    alone, shared = t.sum_first_bytes
    wide = problem.cols * size > (shared if plan.slices > 1 else alone)
    few = problem.rows <= most_sums_first(problem, device)
    soon = few and (wide or (plan.slices == 1 and piece_of(problem.x, align) < 16))
    if size == 2:
        plain, row_scaled = t.sum_first_from
        soon |= problem.cols >= plain and not problem.quantized
        soon |= problem.cols >= row_scaled and problem.quantized == "token" and not centred
    return replace(plan, sum_first=True) if soon else plan


def most_sums_first(problem: Problem, device: Device) -> int:
    """How many rows are so few."""
    plain, quantized = in_force.thresholds().sum_first_elements
    return device.sms * (quantized if problem.quantized else plain) // (problem.cols * problem.lanes)


def _has_affine(problem: Problem) -> bool:
    return problem.weight is not None or problem.bias is not None


def _counts_as(problem: Problem) -> int:
    """How many elements of 16 bits one counts as: two in fp32, unless a sum or an FP8 output is held in fp32 anyway."""
    return problem.x.itemsize // 2 if problem.residual is None and not problem.quantized else 1
