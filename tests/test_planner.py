"""The planner as a pure function: every problem has a plan, and the row count never reaches into a row's arithmetic."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.plan import (
    backward_plans,
    both_ways,
    column_sums,
    forward_plans,
    in_force,
    plans,
    row_counts,
    tuned,
)
from onepass.plan.device import INTERPRETER, Device
from onepass.plan.thresholds import Tile
from onepass.plan.turns import takes_turns
from onepass.spec import Problem

H200 = Device("H200", sms=132, registers=65536, shared=233472, cooperative=True)
CLUSTERED = replace(H200, name="H200 with clusters", clusters=True)
GLUON = replace(CLUSTERED, name="H200 with Gluon", gluon=True)
ALONE = replace(H200, name="no cooperation", cooperative=False)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
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
ROWS = (1, 7, 16, 129, 255, 300, 511, 512, 4095, 4096, 4097, 100_000, 2**31 - 1)


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


def held_by_a_thread(plan, vector):
    """Threads over which the compiler lays one row of a tile, and the elements of it that each one holds.

    A thread takes whole vectors, unless the tile has too few elements for all threads to get one.
    """
    vector = min(vector, max(1, plan.rows * plan.block // (32 * plan.warps)))
    threads = min(max(1, plan.block // vector), 32 * plan.warps)
    return threads, plan.block // threads


def of_one_program(plan):
    """The plan with a program for a row whose clusters share rows (kernels/cluster.py)."""
    if plan.schedule != "tile" or plan.slices == 1:
        return plan
    return replace(plan, block=plan.block * plan.slices, warps=plan.warps * plan.slices, slices=1)


def order_of_sums(plan):
    walked = plan.as_walked or plan.schedule == "stream"
    held = "tile" if plan.schedule == "odd" else plan.schedule  # which has it from tile.py
    return ("walked", 0) if walked else (held, plan.blocks)


def plans_over_rows(cols, dtype, align, centred, device=H200):
    return [forward_plans.forward_plan(problem_of(rows, cols, dtype), device, centred, align) for rows in ROWS]


@pytest.mark.parametrize("device", [H200, CLUSTERED, GLUON, ALONE, INTERPRETER], ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_row_counts_change_nothing_about_a_row(centred, dtype, device):
    """Batch invariance: schedule, block, threads a row and elements a thread are those of a single row.

    But that what is walked may be held: then the blocks of a tile are those of the walk.
    """
    for cols, align in product(COLS, ALIGNS):
        if cols % align:
            continue
        vector = min(16 // dtype.itemsize, align)
        plans = [of_one_program(plan) for plan in plans_over_rows(cols, dtype, align, centred, device)]
        kept = {(*order_of_sums(p), p.block, p.slices, *held_by_a_thread(p, vector)) for p in plans}
        assert len(kept) == 1, (cols, align, plans)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_row_counts_choose_between_three_tiles_at_the_most(centred, dtype):
    """A kernel is compiled for what stands below: a new row count must not bring a further set of it."""
    for cols in COLS:
        plans = plans_over_rows(cols, dtype, 1, centred)
        assert len({(p.rows, p.block, p.blocks, p.warps, p.stages) for p in plans}) <= 3, cols
        for align, may_read_twice in product((1, 16), (False, True)):
            backward = [
                backward_plans.backward_plan(problem_of(rows, cols, dtype), H200, centred, align, may_read_twice)
                for rows in ROWS
            ]
            kernels = {(p.schedule, p.rows, p.block, p.blocks, p.warps, p.stages) for p in backward}
            few = may_read_twice and backward[0].schedule == "few"
            odd = few and align == 1 and dtype.itemsize == 2 and cols <= 16384
            short = centred and align == 16 and 65 <= cols * dtype.itemsize // 2 <= 128
            assert len(kernels) == 1 + few + odd + short, cols


@pytest.mark.parametrize("device", [H200, CLUSTERED], ids=lambda device: device.name)
@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_row_counts_that_were_prepared_for_have_all_kernels(centred, residual, device):
    """So no later row count waits for the compiler."""

    def kernels(cols, counts):
        problems = [problem_of(rows, cols, residual=residual) for rows in counts]
        plans = [forward_plans.forward_plan(problem, device, centred, 8) for problem in problems]
        plans += [backward_plans.backward_plan(problem, device, centred, 8, True) for problem in problems]
        few = {column_sums.few_columns_plan(p, p.rows) for p in problems}
        kinds = {
            (
                p.schedule,
                p.rows,
                p.block,
                p.blocks,
                p.warps,
                p.stages,
                p.slices,
                p.as_walked,
                p.ahead,
                p.registers,
                p.affine_first,
            )
            for p in plans
        }
        return kinds | few

    for cols in (64, 1000, 4096, 8192, 12288, 16384, 20480, 32768, 65536, 73728, 131_072, 262_144):
        prepared = kernels(cols, row_counts.row_counts_apart())
        assert kernels(cols, {*ROWS, 2, 17, 60, 65, 100, 132, 133, 200}) <= prepared, cols


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_clusters_have_the_warps_of_one_program(centred, dtype):
    shared = 0
    for cols, residual in product((4096, 8192, 12288, 16384, 20480, 32768, 54976, 65536), (None, dtype)):
        problem = problem_of(1, cols, dtype, residual=residual)
        plan, alone = (forward_plans.forward_plan(problem, device, centred, 8) for device in (CLUSTERED, H200))
        if alone.schedule == "split" or plan.slices == 1:
            assert plan == alone or plan.slices == 8, "those that are too wide for one program"
            continue
        shared += 1
        assert plan.programs == plan.slices == 8
        assert (plan.warps * 8, plan.block * 8) == (alone.warps, alone.block)
        assert plan.unit == 32 * min(16 // dtype.itemsize, alone.block // (32 * alone.warps)), (
            "what a warp loads at once"
        )
        assert plan.blocks * plan.block * 8 >= cols > (plan.blocks - 1) * plan.block * 8
    assert shared, "no shape of this test was shared"


def test_clusters_are_for_rows_that_can_be_laid_out_by_vectors_of_a_known_width():
    alike = problem_of(1, 32768)
    others = (
        replace(alike, weight=torch.float32), replace(alike, y=torch.float32), replace(alike, quantized="tensor"),
        replace(alike, quantized="block", group=128), replace(alike, rows=65),
    )  # fmt: skip
    assert forward_plans.forward_plan(alike, CLUSTERED, False, 8).slices == 8
    assert forward_plans.forward_plan(alike, CLUSTERED, False, 4).slices == 1, "rows do not begin on 16 bytes"
    assert all(forward_plans.forward_plan(other, CLUSTERED, False, 8).slices == 1 for other in others)


@norms
def test_small_tiles_of_short_rows_are_put_together_until_few_programs_are_left(centred):
    t = in_force.thresholds()
    for cols, rows in product(COLS, (64, 500, 849, 3000, 4095)):
        align = min(16, cols & -cols)
        one, plan, many = (
            forward_plans.forward_plan(problem_of(count, cols), H200, centred, align)
            for count in (1, rows, t.block_row_min_rows)
        )
        if many.rows == 1 or align < 8:
            # Each row has a warp, of those that are loaded element by element, where they are few.
            alone = align == 1 and many.block >= 32 and -(-rows // many.rows) < t.small_programs
            assert (plan.rows, plan.warps) == (min(many.rows, many.warps) if alone else many.rows, many.warps)
            continue
        assert one.rows <= many.rows and cols <= 2048
        assert plan.warps * one.rows == plan.rows * one.warps
        largest = one.rows == 1 or 2 * plan.warps > 16 or 2 * plan.rows * power_of_two_at_least(cols) > t.small_elements
        assert plan.programs <= t.small_programs or largest
        assert plan.rows == one.rows or -(-rows // (plan.rows // 2)) > t.small_programs


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


def schedules(problem, device):
    return {plan.schedule for plan in plans_of(problem, device)}


def test_wide_rows_split_where_programs_can_cooperate_and_stream_where_not():
    for cols in (131_072, 262_144):
        assert schedules(problem_of(64, cols), H200) == {"split"}
        assert schedules(problem_of(64, cols), ALONE) == {"stream"}


def test_a_row_too_wide_for_the_whole_device_streams():
    assert schedules(problem_of(64, 50_000_000), H200) == {"stream"}


def test_a_weight_for_each_head_is_not_split_in_the_backward():
    assert schedules(problem_of(64, 262_144, lanes=4, per_lane=True), H200) == {"split", "stream"}


def test_backward_programs_are_whole_lanes():
    """A program adds up dW of one lane, so lanes must not share one."""
    for cols, lanes in product((64, 128, 1024, 4096), (1, 3, 40, 1000)):
        plan = backward_plans.backward_plan(problem_of(4096, cols, lanes=lanes, per_lane=True), H200, False, 1, True)
        assert plan.schedule == "tile" and plan.programs % lanes == 0 and plan.programs >= lanes


@norms
def test_rows_that_could_be_taken_in_turns_are_few_up_to_fewer(centred):
    def schedule(rows, cols, turns):
        problem = replace(problem_of(rows, cols), turns=turns)
        return backward_plans.backward_plan(problem, H200, centred, 1, True).schedule

    for rows, cols in ((300, 6001), (400, 3001), (30, 16001)):
        assert schedule(rows, cols, 8) == schedule(rows, cols, 1) == "few"
    for rows, cols in ((500, 3001), (300, 12001), (256, 16001)):
        assert schedule(rows, cols, 8) in ("turns", "split_turns") and schedule(rows, cols, 1) == "few"


@norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_in_turns_have_as_many_programs_for_each(centred, dtype):
    vector = 16 // dtype.itemsize
    t = in_force.thresholds()
    for cols, rows in product((65, 129, 1001, 2050, 4099, 8191, 16001, 40001), (1, 300, 4096, 100_000)):
        turns = vector // math.gcd(cols, vector)
        align = vector // turns
        problem = replace(problem_of(rows, cols, dtype), turns=turns)
        plan = backward_plans.backward_plan(problem, H200, centred, align, False)
        narrow = align * dtype.itemsize <= 4
        assert takes_turns(problem, align) == (narrow and cols * dtype.itemsize >= t.turns_from_bytes)
        if plan.schedule != "turns":
            assert not takes_turns(problem, align) or cols * dtype.itemsize > 16000
            groups = plan.programs // plan.slices
            assert plan.schedule != "split_turns" or (groups >= turns and groups % turns == 0)
            continue
        assert plan.programs % turns == 0 and plan.programs <= max(turns, 132 * 16)
        assert plan.blocks * plan.block >= cols + vector - 1 > (plan.blocks - 1) * plan.block
        assert plan.block == power_of_two_at_least(plan.block) >= vector
        partials = 4 * cols * plan.programs
        assert partials <= max(t.partials_bytes, 4 * cols * turns, rows * cols * dtype.itemsize // t.partials_of_x)
    (shortest, *_), *_ = t.turns_few
    short = replace(problem_of(1, shortest - 8), turns=8)
    assert backward_plans.backward_plan(short, H200, centred, 1, False).rows > 1, "however few they are"
    for residual, tiles in ((None, t.turns_few), (torch.bfloat16, t.summed_turns_few)):
        for cols, from_rows in ((most - 7, rows) for _, most, rows, _ in tiles):
            problem = replace(problem_of(1, cols, residual=residual), turns=8)
            few, many = (
                backward_plans.backward_plan(replace(problem, rows=rows), H200, centred, 1, False)
                for rows in (from_rows - 1, from_rows)
            )
            assert few.rows == 1 and (many.rows > 1 or few.programs < many.programs), cols
    one = replace(problem_of(4096, 4100), turns=2)
    assert backward_plans.backward_plan(one, H200, centred, 4, False).schedule == "tile", "in pieces of 8 bytes"


@norms
def test_row_counts_that_were_prepared_for_have_all_kernels_of_rows_in_turns(centred):
    def kernels(cols, counts):
        problems = [replace(problem_of(rows, cols), turns=8) for rows in counts]
        plans = [backward_plans.backward_plan(problem, H200, centred, 1, True) for problem in problems]
        return {(p.schedule, p.rows, p.block, p.blocks, p.warps, p.stages, p.slices) for p in plans}

    for cols in (175, 369, 4099, 12001, 20001, 70001):
        prepared = kernels(cols, row_counts.row_counts_apart())
        assert kernels(cols, {*ROWS, 2, 600, 3000, 10_000, 20_000}) <= prepared, cols


def test_few_rows_have_a_backward_of_one_launch():
    t = in_force.thresholds()
    widths, counts = (1, 2048, 4096, 8193, 16384, 16385, 32768, 32769), (t.few_wide_rows, 256, t.few_rows)
    row_counts = (1, *counts, *(rows + 1 for rows in counts))
    for cols, rows, lanes, twice, centred in product(widths, row_counts, (1, 2), (False, True), (False, True)):
        plan = backward_plans.backward_plan(problem_of(rows, cols, lanes=lanes), H200, centred, 1, twice)
        most = {1: 256 if centred else t.few_odd_rows, 2048: 409, 4096: 512, 8193: 511}.get(cols, 256)
        if cols > 16384:
            most = t.few_wide_rows if cols <= 32768 else 0
        assert (plan.schedule == "few") == (rows * lanes <= most and twice), (cols, rows, lanes)
    assert [column_sums.few_columns_plan(problem_of(256, cols), 256).programs for cols in (1, 32, 33)] == [1, 1, 2]
    assert [column_sums.few_columns_plan(problem_of(1, cols), 1).programs for cols in (1, 256, 257)] == [1, 1, 2]


def test_column_sums_cover_every_column():
    for cols, lanes, rows in product((1, 100, 65_536, 300_000), (1, 3), (1, 100, 100_000)):
        plan = column_sums.affine_plan(problem_of(rows, cols, lanes=lanes), H200)
        blocks = -(-cols // plan.block)
        assert plan.programs % (blocks * lanes) == 0 and plan.programs >= blocks * lanes


def test_sums_of_partials_cover_every_column_of_every_lane():
    for lanes, cols, both in product((1, 3), (1, 33, 4096), (False, True)):
        plan = column_sums.partials_plan(lanes, cols, both)
        assert plan.programs == lanes * -(-cols // plan.block)


def test_a_tuned_backward_serves_eager_and_compiled_calls_alike():
    """An op is handed what was normalized, and cannot tell x from a copy of it in the same dtype."""
    plain = problem_of(64, 2880)
    copied = replace(plain, sum=plain.x)
    assert tuned.signature("backward", plain, False, 16) == tuned.signature("backward", copied, False, 16)
    assert tuned.signature("forward", plain, False, 16) != tuned.signature("forward", copied, False, 16)
    summed = replace(copied, residual=plain.x)
    assert tuned.signature("backward", summed, False, 16) != tuned.signature("backward", plain, False, 16)


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


@norms
def test_many_rows_ask_for_weight_and_bias_first(centred):
    def first(rows, cols, align=8, **changes):
        return forward_plans.forward_plan(
            replace(problem_of(rows, cols), **changes), CLUSTERED, centred, align
        ).affine_first

    most = CLUSTERED.sms * in_force.thresholds().affine_first_elements // 4096
    assert [first(rows, 4096) for rows in (1, most, most + 1, 4096, 1 << 20)] == [False, False, True, True, True]
    assert not first(1 << 20, 512), "rows that are short"
    assert first(1 << 20, 1024) == (not centred)
    assert first(8192, 4099, align=1) == (not centred), "loaded element by element"
    assert not first(8192, 32768), "where they are asked for late"
    total = {"residual": torch.bfloat16, "sum": torch.bfloat16}
    assert first(8192, 4096, **total) and first(8192, 4096, quantized="static")
    assert not first(8192, 4096, quantized="static", **total)


def test_very_many_rows_of_layer_norm_ask_for_weight_and_bias_late():
    def when(rows, cols, dtype=torch.bfloat16, **changes):
        problem = replace(problem_of(rows, cols, dtype), **changes)
        plan = forward_plans.forward_plan(problem, CLUSTERED, True, 8)
        assert plan.ahead is None or not plan.affine_first
        return "late" if plan.ahead is not None else "first" if plan.affine_first else "last"

    t = in_force.thresholds()
    for least, tile in zip(t.late_centred_from, t.late_centred_tiles, strict=True):
        most = CLUSTERED.sms * tile.late
        for cols in (least + 7, tile.cols):
            assert [when(rows, cols) for rows in (300, most, most + 1)] == ["last", "first", "late"]
        assert when(most + 1, tile.cols + 8) == when(most + 1, tile.cols // 2, torch.float32) == "first"
    assert [when(rows, 9216) for rows in (300, 2112, 2113)] == ["first", "first", "late"]
    assert [when(rows, 32768) for rows in (200, 300)] == ["last", "late"], "the widest do not gain by it"


def test_blocks_get_narrower_unless_a_tile_says_otherwise():
    tile = Tile(4096, 1, 4, block=1024)
    assert [plans.snug(tile, cols, 8).block for cols in (3080, 3584, 4096)] == [512, 512, 1024]
    assert plans.snug(replace(tile, narrows=False), 3080, 8).block == 1024


def test_wide_rows_with_a_residual_are_shared_in_the_backward():
    def plan_of(cols, **how):
        return backward_plans.backward_plan(problem_of(4096, cols, **how), GLUON, False, 8, True)

    t = in_force.thresholds()
    total = {"residual": torch.bfloat16}
    assert plan_of(8192, **total).schedule == plan_of(8192).schedule == "tile"
    for cols, tile in ((8200, t.centred_backward_slice), (16384, t.centred_backward_slice), (16392, t.backward_slice)):
        plan = plan_of(cols, **total)
        assert (plan.schedule, plan.block, plan.warps) == ("split", tile.cols, tile.warps)


def test_wide_rows_of_rms_norm_wait_for_their_sums_in_shared_memory():
    def plan_of(problem, device=GLUON, align=16, centred=False):
        return backward_plans.backward_plan(problem, device, centred, align, True)

    t = in_force.thresholds()
    for cols, dtype, rows in product((8200, 8448, 65536, 100_000, 131_072, 262_144, 300_000), DTYPES, (600, 8192)):
        plan = plan_of(problem_of(rows, cols, dtype))
        assert (plan.schedule, plan.together, plan.rows) == ("ring", True, 1)
        assert plan.slices * plan.block >= cols > (plan.slices - 1) * plan.block
        per_sm = -(-plan.programs // GLUON.sms)
        assert plan.registers * plan.warps * 32 * per_sm <= GLUON.registers
        assert per_sm * plan.stages * plan.block * 2 * dtype.itemsize < GLUON.shared
        x = rows * cols * dtype.itemsize
        assert 4 * cols * (plan.programs // plan.slices) <= max(t.partials_bytes, x // t.partials_of_x)
    plain = problem_of(4096, 16384)
    small = replace(GLUON, shared=100 << 10)
    assert [plan_of(plain, device).schedule for device in (CLUSTERED, small)] == ["tile", "tile"]
    others = (
        replace(plain, cols=8192), replace(plain, residual=plain.x, sum=plain.x), replace(plain, weight=torch.float32),
        replace(plain, lanes=2), replace(plain, y=torch.float32),
    )  # fmt: skip
    with in_force.force("backward", plans.Choice("ring", t.rings[0])):  # as a table may have it of another problem
        assert plan_of(plain).schedule == "ring"
        assert "ring" not in {plan_of(problem).schedule for problem in others[1:]}
        assert "ring" not in {plan_of(plain, align=4).schedule, plan_of(plain, centred=True).schedule}
    assert "ring" not in {plan_of(problem).schedule for problem in others}
    assert "ring" not in {plan_of(plain, align=4).schedule, plan_of(plain, centred=True).schedule}


def test_a_ring_counts_from_sectors_unless_that_leaves_too_few_groups():
    def plan_of(rows, cols, **changes):
        turns, sector_turns = (size // math.gcd(cols, size) for size in (8, 16))
        problem = replace(problem_of(rows, cols), **{"turns": turns, "sector_turns": sector_turns} | changes)
        return backward_plans.backward_plan(problem, GLUON, False, min(16, cols & -cols), True)

    turns = {cols: plan_of(4096, cols).turns for cols in (16384, 20000, 20001, 20002, 20004, 20008, 20016)}
    assert turns == {16384: 1, 20000: 1, 20001: 16, 20002: 8, 20004: 4, 20008: 2, 20016: 1}
    assert plan_of(2048, 65537).turns == 8, "sixteen groups for 24"
    assert plan_of(4096, 20008, sector_turns=1).turns == 1, "rows that are not dense"


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_many_odd_rows_pass_through_shared_memory_and_few_have_the_same_tile(centred, residual):
    total = {"residual": residual, "sum": residual}

    def plan_of(rows, cols, device=GLUON, align=1, **changes):
        bias = torch.bfloat16 if centred else None
        problem = replace(problem_of(rows, cols), **{"bias": bias} | total | changes)
        return problem, forward_plans.forward_plan(problem, device, centred, align)

    t = in_force.thresholds()
    for cols in (1281, 1793, 2049, 3521, 4099, 4225, 6143, 6145, 8191, 12287, 12289, 16383, 16385, 24575):
        many = -(-GLUON.sms * t.odd_elements // cols)
        few = plan_of(many - 1, cols)[1]
        assert few.schedule == "tile" and few.slices == few.rows == 1 and few.registers is None
        for rows in (many, 4096, 1 << 20):
            problem, plan = plan_of(rows, cols)
            assert plan.schedule == "odd" and not plan.together
            assert (plan.block, plan.blocks, plan.warps) == (few.block, few.blocks, few.warps), "the same bits"
            assert plan.block == 32 * plan.warps and plan.block * plan.blocks >= cols
            at_once = -(-plan.programs // GLUON.sms)
            slot = plans.slot_of(plan, problem)
            assert slot % 64 == 0 and slot >= 63 + plan.block * plan.blocks
            assert plans.chunks_of(plan, problem) * 256 * plan.warps >= 63 + cols + 7
            tensors = 1 if residual is None else 2
            assert at_once * (2 * tensors * plan.stages * slot + 1024) <= GLUON.shared
            assert at_once * plan.warps * 32 * plan.registers <= GLUON.registers
            assert plan.programs <= rows
            columns = (3 if centred and not plans.has_pairs(plan, problem) else 2) * plan.blocks
            assert columns < plan.registers <= 255
    assert plan_of(4096, 1279)[1].schedule == plan_of(4096, 1279, H200)[1].schedule == "tile"
    assert plan_of(4096, 4099, H200)[1].schedule == "tile", "without Gluon"
    small = replace(GLUON, shared=100 << 10)
    assert plan_of(4096, 24575, small)[1].schedule == "tile", "no room"
    assert plan_of(4096, 12287, small)[1].schedule == ("odd" if residual is None else "tile")
    assert plan_of(4096, 4098, align=2)[1].schedule == "tile"
    wider = {"residual": torch.float32, "sum": torch.float32}
    others = (wider, {"y": torch.float32}, {"quantized": "static"}, {"per_lane": True, "lanes": 2})
    assert "odd" not in {plan_of(4096, 4099, **changes)[1].schedule for changes in others}
    assert plan_of(4096, 4099, lanes=3, weight=torch.float32)[1].schedule == "odd"
    assert not plans.has_pairs(*reversed(plan_of(4096, 12287, weight=torch.float32)))


@norms
def test_rows_that_fill_a_warp_are_put_together_where_they_are_short_or_many(centred):
    def rows_of(rows, cols, residual=None):
        plan = forward_plans.forward_plan(problem_of(rows, cols, residual=residual), CLUSTERED, centred, 8)
        assert plan.block < 256 or plan.rows <= plan.warps, "a row that fills a warp has one of its own"
        return plan.rows

    with_residual = {rows: rows_of(rows, 312, residual=torch.bfloat16) for rows in (64, 128, 3153)}
    assert centred or with_residual == {64: 1, 128: 2, 3153: 16}
    assert rows_of(3153, 512) > 1 and rows_of(3153, 1024) == 1
    assert (rows_of(1999, 768), rows_of(2000, 768)) == ((1, 1) if centred else (1, 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_rows_wait_in_shared_memory_in_turns(dtype):
    vector = 16 // dtype.itemsize

    def plan_of(rows, cols, device=GLUON, centred=False, **changes):
        turns, sector_turns = (size // math.gcd(cols, size) for size in (vector, 2 * vector))
        problem = replace(problem_of(rows, cols, dtype), turns=turns, sector_turns=sector_turns, **changes)
        return turns, backward_plans.backward_plan(problem, device, centred, vector // turns, True)

    t = in_force.thresholds()
    for cols, rows in product((8195, 8204, 10239, 65537, 100_003, 200_001), (600, 8192)):
        turns, plan = plan_of(rows, cols)
        assert (plan.schedule, plan.together, plan.rows) == ("ring_turns" if turns > 1 else "ring", True, 1)
        by_sector = plan.turns > turns
        assert plan.turns == (2 * turns if by_sector else turns)
        size = vector * (1 + by_sector)
        assert plan.turns * cols % size == 0, "and so is what they begin with"
        assert plan.slices * plan.block >= cols + size - 1 > (plan.slices - 1) * plan.block
        groups = plan.programs // plan.slices
        assert groups >= plan.turns and groups % plan.turns == 0, "the rows of a group lie alike"
        assert plan.slices > 1, "a program has one end of a row at the most"
        assert 4 * cols * groups <= max(t.partials_bytes, rows * cols * dtype.itemsize // t.partials_of_x)
    assert plan_of(600, 20001, H200)[1].schedule == "split_turns"
    others = [plan_of(600, 20001, centred=True), plan_of(600, 20001, residual=dtype, sum=dtype)]
    assert {plan.schedule for _, plan in others} <= {"split_turns", "split"}
    with in_force.force("backward", plans.Choice("ring", t.rings[0])):  # as a table may have it of aligned rows
        assert plan_of(600, 20001)[1].schedule == "split_turns"


@pytest.mark.parametrize("kind", ["alone", "residual", "centred"])
def test_the_widest_rows_are_few_up_to_so_many_elements(kind):
    t = in_force.thresholds()
    total = torch.bfloat16 if kind == "residual" else None

    def schedule(rows, cols):
        problem = replace(problem_of(rows, cols), residual=total, sum=total)
        return backward_plans.backward_plan(problem, CLUSTERED, kind == "centred", 8, True).schedule

    most = {"alone": 0, "residual": 1, "centred": 2}[kind]
    for cols in (65544, 90112, 131072):
        few = min(cols // t.few_columns_each, t.few_widest_elements[most] // cols)
        assert few > 16 and schedule(few, cols) == "few" != schedule(few + 1, cols)
    assert schedule(1, 131080) != "few", "more than a cluster holds"
    wide, narrow = (tile for _, tile in t.few_columns)
    for rows, cols, tile in ((24, 20480, wide), (25, 20480, narrow), (40, 40960, wide), (41, 40960, narrow)):
        assert column_sums.few_columns_plan(problem_of(rows, cols), rows).block == tile.cols


@norms
def test_short_rows_are_taken_in_turns_where_they_fill_their_blocks(centred):
    def schedule(cols, dtype, align=1):
        turns = 16 // dtype.itemsize // align
        problem = replace(problem_of(100_000, cols, dtype), turns=turns)
        return backward_plans.backward_plan(problem, H200, centred, align, True).schedule

    in_turns = {
        dtype: {cols for cols in range(1, 97, 2) if schedule(cols, dtype) == "turns"}
        for dtype in (torch.bfloat16, torch.float32)
    }
    assert in_turns[torch.bfloat16] == {*range(9, 27, 2), *range(49, 59, 2)}
    assert in_turns[torch.float32] == {*range(5, 31, 2), *range(49, 97, 2)}
    assert schedule(50, torch.bfloat16, align=2) == "tile", "in pieces of 4 bytes"


def test_many_whole_rows_both_ways_are_staged_in_shared_memory():
    plain = replace(problem_of(8192, 4096), quantized="block", group=128)

    def staged(problem, device=GLUON, align=16):
        by_rows = both_ways.rows_beside_columns(problem, device, False, align)
        return both_ways.staged_plan(problem, device, by_rows, align)

    plan = staged(plain)
    assert plan is not None and (plan.schedule, plan.rows, plan.slices) == ("staged", 2, 64)
    rows, tiles = (plan.stages + 64) * 64, 64 * 64
    assert plan.programs == rows + tiles, "rows ahead of the tiles, and those of all blocks"
    assert staged(plain, device=CLUSTERED) is None
    assert staged(plain, align=4) is None
    few, ragged, wide = replace(plain, rows=128), replace(plain, rows=8193), replace(plain, cols=16384)
    others = (few, ragged, wide, replace(plain, cols=4160), replace(plain, lanes=2), replace(plain, group=64))
    others += (replace(plain, x=torch.float32, y=torch.float32), replace(plain, residual=torch.bfloat16))
    others += (replace(plain, quantized="mx", group=32), replace(plain, quantized="token", group=1))
    assert [staged(problem) for problem in others] == [None] * len(others)
