"""GPUs, problems and row counts for the tests of the planner."""

from dataclasses import replace

import pytest
import torch

from gpu.exact import AS_OTHERS
from onepass.plan import backward_plans, forward_plans
from onepass.plan.device import Device
from onepass.spec import Problem

H200 = Device("H200", sms=132, registers=65536, shared=233472, cooperative=True)
CLUSTERED = replace(H200, name="H200 with clusters", clusters=True)
GLUON = replace(CLUSTERED, name="H200 with Gluon", gluon=True)
ALONE = replace(H200, name="no cooperation", cooperative=False)
#: Of 16 bits bf16 stands for fp16 too, whose plans are the same (test_planner.py).
DTYPES = (torch.float32, torch.bfloat16)
ALIGNS = (1, 2, 4, 8, 16)
#: Every column count up to 300, every 24th up to 2,100 (where rows go from several a tile to one), then around each
#: power of two and at odd places, up to and past the widest in use.
COLS = sorted(
    {
        *range(1, 301),
        *range(304, 2100, 24),
        1000,
        2049,
        3000,
        3200,
        5120,
        5376,
        11008,
        65535,
        100_000,
        262_144,
        300_000,
        1_000_000,
        5_000_000,
    }
    | {2**power + step for power in range(8, 20) for step in (-1, 0, 1)}
)
norms = pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
ROWS = (1, 7, 16, 129, 255, 300, 511, 512, 4095, 4096, 4097, 9000, 100_000, 2**31 - 1)


def problem_of(rows, cols, dtype=torch.bfloat16, lanes=1, per_lane=False, residual=None):
    return Problem(rows, lanes, cols, dtype, dtype, dtype, None, residual, residual, per_lane)


def plans_of(problem, device, align=1):
    """Forward and backward of both norms."""
    forward = [forward_plans.forward_plan(problem, device, centred, align) for centred in (False, True)]
    return *forward, *(
        backward_plans.backward_plan(problem, device, centred, align, False) for centred in (False, True)
    )


def power_of_two_at_least(number):
    power = 1
    while power < number:
        power *= 2
    return power


def of_one_program(plan):
    """The plan with a program for a row whose clusters share rows (kernels/cluster.py)."""
    if plan.schedule != "tile" or plan.slices == 1:
        return plan
    return replace(plan, block=plan.block * plan.slices, warps=plan.warps * plan.slices, slices=1)


def schedules(problem, device):
    return {plan.schedule for plan in plans_of(problem, device)}


def held_by_a_thread(plan, vector):
    """Threads over which the compiler lays one row of a tile, and the elements of it that each one holds.

    A thread takes whole vectors, unless the tile has too few elements for all threads to get one.
    """
    if plan.schedule == "threads":  # one, which adds a row up as so many would
        return plan.block // plan.unit, plan.unit
    vector = min(vector, max(1, plan.rows * plan.block // (32 * plan.warps)))
    threads = min(max(1, plan.block // vector), 32 * plan.warps)
    return threads, plan.block // threads


def order_of_sums(plan, vector):
    """All that a row's bits follow from. What a warp has of many rows in chains, as many warps have of few.

    Where blocks are an odd number, some of these warps have one more, beyond the row, which adds nothing.
    """
    walked = plan.as_walked or plan.schedule == "stream"
    held = AS_OTHERS.get(plan.schedule, plan.schedule)
    threads, elements = held_by_a_thread(plan, vector)
    schedule, blocks = ("walked", 0) if walked else (held, -(-plan.blocks // plan.chains))
    return schedule, blocks, plan.chains * plan.block, plan.slices, plan.chains * threads, elements
