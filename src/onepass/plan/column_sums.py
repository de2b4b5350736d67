"""Plans for the sums down columns, dW and dB, where they have programs of their own."""

from __future__ import annotations

import math

from onepass.plan.device import Device
from onepass.plan.in_force import thresholds
from onepass.plan.plans import Plan, cdiv, columns_of_16_bits, power_of_two
from onepass.spec import Problem

#: Numbers of fp32 that a thread loads at once, at the most: 16 bytes.
VECTOR = 4


def few_columns_plan(problem: Problem, rows: int) -> Plan:
    """The programs for dW and dB beside those for so many rows, in the backward of few."""
    t = thresholds()
    wide = columns_of_16_bits(problem) // t.few_columns_each
    tile = next((tile for most, tile in t.few_columns if rows <= max(most, wide)), t.few_columns[-1][1])
    return Plan("few", tile.rows, tile.cols, tile.warps, cdiv(problem.cols, tile.cols))


def affine_plan(problem: Problem, device: Device) -> Plan:
    """Column sums for dW and dB in the stream schedule."""
    tile = thresholds().stream_affine
    block = min(power_of_two(problem.cols), tile.cols)
    blocks = cdiv(problem.cols, block)
    tiles = cdiv(problem.rows, tile.rows)
    sharing = max(1, min(tiles, device.sms * (tile.programs_per_sm or 1) // (blocks * problem.lanes)))
    return Plan("stream", tile.rows, block, tile.warps, sharing * blocks * problem.lanes)


def partials_plan(lanes: int, cols: int, sums: int) -> Plan:
    """So many sums of partial rows of `cols` columns, for each lane; however many there are, the kernel is the same."""
    t = thresholds()
    narrowest, widest = t.partials_blocks
    block = min(power_of_two(cols), max(narrowest, min(widest, power_of_two(cdiv(cols, t.partials_programs)))))
    warps = t.partials_warps
    at_once = 32 * warps * math.gcd(cols, VECTOR)
    rows, loads = at_once // block, t.partials_elements // at_once
    return Plan("tile", rows, block, warps, sums * lanes * cdiv(cols, block), stages=loads)
