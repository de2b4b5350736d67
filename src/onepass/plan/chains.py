"""Chains: how few rows of a forward have more warps each than many, and the same bits.

A row's blocks are summed in chains, block after block in turn (kernels/sums.py). Among many rows a warp has all chains
of its columns; of few rows it has one, in so many times the warps, whose blocks are as many times wider. Either way a
thread adds up the same elements in the same order, and a warp's sums are paired alike.
"""

from __future__ import annotations

from dataclasses import replace

from onepass.plan import in_force
from onepass.plan.device import Device
from onepass.plan.plans import Plan, block_of, cdiv, piece_of, vector_of
from onepass.plan.tiles import Tile
from onepass.spec import Problem

#: Of one program.
MOST_WARPS = 32


def chains_of(problem: Problem, tile: Tile, align: int) -> int:
    """In how many chains a row is summed, by its width alone: no more than its blocks fill evenly, or nearly."""
    block, vector = block_of(tile, problem), vector_of(problem, align)
    side_by_side = min(vector, max(1, tile.rows * block // (32 * tile.warps)))
    warps = max(1, block // (32 * side_by_side))
    # Wider blocks must be laid over more warps and nothing else: a thread has one vector of each, of every tensor.
    whole = 32 * warps * side_by_side == block and (warps == tile.warps if tile.rows == 1 else warps == 1)
    dtypes = (problem.x, problem.residual, problem.weight, problem.bias, problem.y, problem.sum)
    alike = len({dtype.itemsize for dtype in dtypes if dtype is not None}) == 1
    if problem.quantized or piece_of(problem.x, align) < 16 or not whole or not alike:
        return 1
    blocks, chains = cdiv(problem.cols, block), tile.chains
    # One block more in a chain than in the other counts for little among many.
    alone = problem.residual is None and problem.x.itemsize == 2
    uneven = alone and blocks >= in_force.thresholds().uneven_blocks
    while (blocks % chains and not (uneven and chains == 2)) or chains > MOST_WARPS // warps:
        chains //= 2
    return chains


def spread(problem: Problem, device: Device, plan: Plan, chains: int) -> Plan:
    """The plan with a row's chains in a warp, or in a warp each where rows are few."""
    if plan.at_once is not None or chains == 1:
        return plan
    even = plan.blocks % chains == 0
    if plan.rows > 1 or problem.rows * problem.lanes > most_spread(device, plan.warps * chains, even):
        return replace(plan, chains=chains)
    block = plan.block * chains
    return replace(plan, block=block, blocks=cdiv(problem.cols, block), warps=plan.warps * chains)


def most_spread(device: Device, warps: int, even: bool) -> int:
    """The most rows that have a warp for each chain, by the warps that each has then, and whether chains are alike."""
    t = in_force.thresholds()
    if warps >= t.shared_warps:
        return t.shared_rows
    each = t.spread_warps // warps
    return device.sms * (each if even else min(each, t.uneven_rows))
