"""The planner as a pure function: every problem has a plan, and thresholds are what they are set to."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.plan import backward_plans, column_sums, forward_plans, in_force, plans
from onepass.plan.device import INTERPRETER
from planning import (
    ALIGNS,
    ALONE,
    CLUSTERED,
    COLS,
    GLUON,
    H200,
    ROWS,
    norms,
    of_one_program,
    plans_of,
    power_of_two_at_least,
    problem_of,
    schedules,
)

#: Around where schedules and tiles change; rows that begin on 16 bytes, on 8, on 4 and on 2.
WIDTHS = (
    24, 40, 64, 72, 96, 128, 175, 369, 433, 700, 768, 801, 1000, 1664, 2048, 2050, 2304, 4096, 4099, 4352, 6144, 8192,
    12_001, 12_288, 16_384, 17_387, 20_001, 20_002, 20_480, 24_576, 26_000, 27_001, 32_768, 35_002, 35_085, 40_504,
    44_001, 60_001, 60_004, 65_536, 70_001, 73_728, 90_001, 98_305, 113_431, 131_072, 131_074, 160_001, 262_144,
    300_000, 300_001,
)  # fmt: skip


def test_fp16_is_planned_as_bf16_is():
    for cols, align, residual in product(WIDTHS, ALIGNS, (False, True)):
        if cols % align == 0:
            of_dtype = [
                [plans_of(problem_of(rows, cols, dtype, residual=dtype if residual else None), GLUON, align)
                 for rows in (1, 300, 100_000)]
                for dtype in (torch.bfloat16, torch.float16)
            ]  # fmt: skip
            assert of_dtype[0] == of_dtype[1], cols


@pytest.mark.parametrize("device", [H200, CLUSTERED, GLUON], ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("summed", [False, True], ids=["alone", "residual"])
@norms
def test_row_counts_that_were_prepared_for_have_all_kernels(centred, summed, dtype, device):
    """So no later row count waits for the compiler. A kernel is compiled for all of a plan but its programs."""
    vector = 16 // dtype.itemsize

    def forwards(one, align, counts):
        planned = (forward_plans.forward_plan(replace(one, rows=rows), device, centred, align) for rows in counts)
        return {replace(plan, programs=0) for plan in planned}

    def backwards(one, align, counts):
        found = set()
        for rows in counts:
            problem = replace(one, rows=rows)
            plan = replace(backward_plans.backward_plan(problem, device, centred, align, True), programs=0)
            columns = replace(column_sums.few_columns_plan(problem, rows), programs=0)
            found.add((plan, columns if plan.schedule == "few" else None))
        return found

    later = {*ROWS, 2, 4, 5, 17, 32, 33, 40, 60, 65, 100, 132, 133, 200, 264, 265, 600, 1279, 1281, 3000, 8191, 8192}
    for cols in WIDTHS:
        align = min(16, cols & -cols)
        turns, sector_turns = (size // math.gcd(cols, size) for size in (vector, 2 * vector))
        one = problem_of(1, cols, dtype, residual=dtype if summed else None)
        walked = replace(one, turns=turns, sector_turns=sector_turns)
        for kernels, problem, planner in ((forwards, one, forward_plans), (backwards, walked, backward_plans)):
            apart = planner.row_counts_apart(problem, device, centred, align)
            around = {max(1, rows + more) for rows in apart for more in (-1, 0, 1)}
            missing = kernels(problem, align, later | around) - kernels(problem, align, apart)
            assert not missing, (cols, missing)


@pytest.mark.parametrize("quantized", ["static", "delayed", "token", "block", "amax"])
@pytest.mark.parametrize("summed", [False, True], ids=["alone", "residual"])
@norms
def test_row_counts_of_fp8_outputs_that_were_prepared_for_have_all_kernels(centred, summed, quantized):
    for cols in WIDTHS:
        align, group = min(16, cols & -cols), 128 if quantized == "block" else 1
        one = problem_of(1, cols, residual=torch.bfloat16 if summed else None)
        one = replace(one, quantized=quantized, group=group, walked=quantized == "token")
        apart = forward_plans.row_counts_apart(one, GLUON, centred, align)
        around = {max(1, rows + more) for rows in apart for more in (-1, 0, 1)}
        later, prepared = (
            {
                replace(forward_plans.forward_plan(replace(one, rows=rows), GLUON, centred, align), programs=0)
                for rows in counts
            }
            for counts in ({*ROWS, *around}, apart)
        )
        assert later <= prepared, (cols, later - prepared)


@pytest.mark.parametrize("device", [H200, CLUSTERED, ALONE, INTERPRETER], ids=lambda device: device.name)
def test_every_number_of_columns_has_a_plan(device):
    for cols, dtype, rows, align in product(COLS, (torch.float32, torch.bfloat16), (0, 1, 4096), ALIGNS):
        if cols % align:
            continue
        problem = problem_of(rows, cols, dtype, residual=None if align == 1 else dtype)
        for plan in plans_of(problem, device, align):
            assert plan.schedule in ("tile", "split", "stream")
            assert plan.block == power_of_two_at_least(plan.block), "Triton's blocks are powers of two"
            assert plan.rows == power_of_two_at_least(plan.rows)
            assert plan.warps in (1, 2, 4, 8, 16, 32)
            if plan.schedule == "tile":
                plan = of_one_program(plan)
                assert plan.blocks * plan.block >= cols > (plan.blocks - 1) * plan.block
            if plan.schedule == "split":
                assert plan.slices * plan.blocks * plan.block >= cols > (plan.slices - 1) * plan.blocks * plan.block


@pytest.mark.parametrize("device", [H200, INTERPRETER], ids=lambda device: device.name)
def test_programs_that_wait_for_each_other_fit_on_the_device_at_once(device):
    """Else the cooperative launch is refused, or, without one, the programs wait for ever."""
    split = 0
    for cols, rows, lanes in product(COLS, (1, 3, 100_000), (1, 2)):
        problem = problem_of(rows, cols, lanes=lanes)
        for plan in plans_of(problem, device):
            if not plan.together:
                continue
            split += 1
            assert plan.programs % plan.slices == 0
            assert plan.programs // plan.slices <= rows * lanes
            per_sm = -(-plan.programs // device.sms)
            assert plan.registers * plan.warps * 32 * per_sm <= device.registers
            assert plan.registers <= 255
    assert split, "no shape of this test was split"


def test_wide_rows_split_where_programs_can_cooperate_and_stream_where_not():
    for cols in (131_072, 262_144):
        assert schedules(problem_of(64, cols), H200) == {"split"}
        assert schedules(problem_of(64, cols), ALONE) == {"stream"}


def test_a_row_too_wide_for_the_whole_device_streams():
    assert schedules(problem_of(64, 50_000_000), H200) == {"stream"}


def test_thresholds_come_back_after_an_override():
    before, number = in_force.thresholds(), in_force.generation()
    with in_force.override(block_row_min_rows=7) as changed:
        assert in_force.thresholds() is changed and changed.block_row_min_rows == 7
        assert in_force.generation() != number
        with in_force.override(block_row_min_rows=9):
            assert in_force.thresholds().block_row_min_rows == 9
        assert in_force.thresholds() is changed
    assert in_force.thresholds() is before and in_force.generation() == number
    with pytest.raises(KeyError), in_force.override(block_row_min_rows=7):
        raise KeyError
    assert in_force.thresholds() is before


def test_no_two_overrides_share_a_generation():
    """Calls are kept under their generation: were one reused, a call would run with another's plan."""
    seen = set()
    for _ in range(3):
        with in_force.override(block_row_min_rows=64):
            seen.add(in_force.generation())
    assert len(seen) == 3


def test_an_unknown_threshold_is_refused():
    with pytest.raises(TypeError), in_force.override(no_such_threshold=1):
        pass


def test_a_plan_reads_as_a_sentence():
    plan = plans.Plan("split", 1, 8192, 8, 264, stages=3, slices=32)
    assert str(plan) == "split: 1 x 8,192 tile, 8 warps, 264 programs, 32 programs a row, 3 stages"
    row = plans.Plan("tile", 1, 1024, 4, 264, blocks=5, stages=3)
    assert str(row) == "tile: 1 x 1,024 x 5 tile, 4 warps, 264 programs, 3 stages"
    assert str(plans.Plan("tile", 32, 128, 4, 1000)) == "tile: 32 x 128 tile, 4 warps, 1,000 programs"
