"""A forward's plan as a pure function: the row count never reaches into a row's arithmetic."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.plan import affine, backward_plans, both_ways, forward_plans, in_force, plans
from onepass.plan.device import INTERPRETER
from onepass.plan.tiles import Tile
from planning import (
    ALIGNS,
    ALONE,
    CLUSTERED,
    COLS,
    DTYPES,
    GLUON,
    H200,
    ROWS,
    norms,
    of_one_program,
    order_of_sums,
    power_of_two_at_least,
    problem_of,
)


def plans_over_rows(cols, dtype, align, centred, device=H200):
    """Of dense rows; and of the same where they lie apart, which makes a difference to kernels in Gluon alone."""
    lies = (True, False) if device.gluon else (True,)
    problems = [replace(problem_of(rows, cols, dtype), dense=dense) for rows in ROWS for dense in lies]
    return [forward_plans.forward_plan(problem, device, centred, align) for problem in problems]


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
        kept = {order_of_sums(p, vector) for p in plans}
        assert len(kept) == 1, (cols, align, plans)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@norms
def test_row_counts_choose_between_three_tiles_at_the_most(centred, dtype):
    """A kernel is compiled for what stands below: a new row count must not bring a further set of it."""
    t = in_force.thresholds()
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
            columns = cols * dtype.itemsize // 2
            shorts = backward_plans._short_tiles(problem_of(1, cols, dtype), centred) if align == 16 else ()
            tiles = [tile for least, most, _, tile in shorts if least <= columns <= most]
            short = len({(tile.rows, tile.block, tile.warps, tile.stages) for tile in tiles})
            # Fewer programs may be of the same kernel.
            fewer = align == 16 and any(least <= columns <= most for least, most, *_ in t.backward_few)
            # And few that are shared have narrower slices.
            fewer |= not centred and t.backward_tiles[-1].cols < columns and cols <= t.few_narrow_most
            assert 0 <= len(kernels) - (1 + few + odd + short) <= fewer, cols


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
        replace(alike, weight=torch.float32), replace(alike, y=torch.float32), replace(alike, rows=81),
        replace(alike, quantized="tensor"), replace(alike, quantized="block", group=128),
    )  # fmt: skip
    assert forward_plans.forward_plan(alike, CLUSTERED, False, 8).slices == 8
    assert all(forward_plans.forward_plan(other, CLUSTERED, False, 8).slices == 1 for other in others)
    # A wider bias changes nothing of how rows lie that begin on 16 bytes (tests/compiled); of others nobody looked.
    biased = replace(alike, bias=torch.float32)
    assert forward_plans.forward_plan(biased, CLUSTERED, True, 8).slices == 8
    assert forward_plans.forward_plan(replace(biased, cols=20_001), CLUSTERED, True, 1).slices == 1


@pytest.mark.parametrize("centred", [False, True])
def test_fp32_at_odd_addresses_has_slices_half_as_wide(centred):
    even, odd = (
        forward_plans.forward_plan(problem_of(100, cols, torch.float32), H200, centred, align)
        for cols, align in ((70_000, 4), (70_001, 1))
    )
    assert even.schedule == odd.schedule == "split"
    assert even.block * even.blocks == 2 * odd.block * odd.blocks


@pytest.mark.parametrize("residual", [None, torch.float32])
def test_fp32_at_odd_addresses_has_an_element_a_thread(residual):
    for cols in (515, 1001, 1159, 1791):
        plan = forward_plans.forward_plan(problem_of(100, cols, torch.float32, residual=residual), H200, False, 1)
        assert (plan.schedule, plan.rows, plan.block) == ("tile", 1, 32 * plan.warps), cols


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@norms
def test_few_rows_that_begin_anywhere_have_clusters_too(centred, dtype):
    t, shared = in_force.thresholds(), set()
    for cols, align in product((20001, 20002, 20004, 30001, 30002, 44001), (1, 2, 4)):
        if cols % align or align * dtype.itemsize >= 16:
            continue
        problem = problem_of(1, cols, dtype)
        plan, alone = (forward_plans.forward_plan(problem, device, centred, align) for device in (CLUSTERED, H200))
        if alone.schedule == "split":
            continue
        assert (plan.slices, plan.warps * 8, plan.block * 8) == (8, alone.warps, alone.block)
        assert plan.unit == 32 * min(align, alone.block // (32 * alone.warps)), "what a warp loads at once"
        most = t.shared_odd_rows
        if 8 * plan.blocks * plan.block >= t.shared_wide_odd_from:
            most = t.shared_singles_per_sm * CLUSTERED.sms if align == 1 else t.shared_widest_rows
            most = min(most, CLUSTERED.sms * t.held_per_sm) if plan.as_walked else most
        slices = [
            forward_plans.forward_plan(replace(problem, rows=rows), CLUSTERED, centred, align).slices
            for rows in (most, most + 1)
        ]
        assert slices == [8, 1], (cols, align)
        quantized = replace(problem, quantized="static")
        assert forward_plans.forward_plan(quantized, CLUSTERED, centred, align).slices == 1
        shared.add(align)
    assert shared == ({1, 2} if dtype == torch.float32 else {1, 2, 4}), "no shape of such rows was shared"


def test_few_rows_of_eight_warps_have_clusters_where_a_thread_would_have_many_loads():
    def slices(rows, cols, dtype, align, centred=False, residual=None, quantized=None):
        problem = replace(problem_of(rows, cols, dtype, residual=residual), quantized=quantized)
        return forward_plans.forward_plan(problem, CLUSTERED, centred, align).slices

    bf16, fp32 = torch.bfloat16, torch.float32
    for shared in (
        (16384, bf16, 8), (16384, bf16, 8, True), (8192, fp32, 4), (6201, bf16, 1), (12001, bf16, 1, True),
        (6001, fp32, 1), (8002, bf16, 2),
    ):  # fmt: skip
        assert [slices(rows, *shared) for rows in (1, 32, 33)] == [8, 8, 1], shared
    assert [slices(rows, 4096, fp32, 4, residual=fp32) for rows in (1, 48, 49)] == [8, 8, 1]
    for alone in ((9216, bf16, 8), (12288, bf16, 8, True), (4096, fp32, 4), (6201, bf16, 1, True)):
        assert slices(1, *alone) == 1, alone
    assert slices(1, 16384, bf16, 8, quantized="static") == 1


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
            few = t.small_programs if many.block < 64 else t.lone_programs[centred]
            alone = align == 1 and many.block >= 32 and -(-rows // many.rows) < few
            warps = many.warps * many.chains // plan.chains  # a warp for each chain, where they are few
            assert (plan.rows, plan.warps) == (min(many.rows, many.warps) if alone else many.rows, warps)
            continue
        assert one.rows <= many.rows and cols <= 2048
        if many.chains > 1:
            one = replace(one, warps=one.warps // many.chains)
            plan = replace(plan, warps=plan.warps * plan.chains // many.chains)
        assert plan.warps * one.rows == plan.rows * one.warps
        largest = one.rows == 1 or 2 * plan.warps > 16 or 2 * plan.rows * power_of_two_at_least(cols) > t.small_elements
        assert plan.programs <= t.small_programs or largest
        assert plan.rows == one.rows or -(-rows // (plan.rows // 2)) > t.small_programs


@norms
def test_many_rows_ask_for_weight_and_bias_first(centred):
    def first(rows, cols, align=8, dtype=torch.bfloat16, **changes):
        problem = replace(problem_of(rows, cols, dtype), **changes)
        return forward_plans.forward_plan(problem, CLUSTERED, centred, align).affine_first

    t = in_force.thresholds()
    most = CLUSTERED.sms * t.affine_first_elements // 4352
    few = t.lone_rows + 1
    assert [first(rows, 4352) for rows in (few, most, most + 1, 4096, 1 << 20)] == [False, False, True, True, True]
    assert not first(1 << 20, 512), "rows that are short"
    assert first(1 << 20, 1024) == (not centred)
    assert first(8192, 4099, align=1) == (not centred), "loaded element by element"
    assert not first(8192, 32768), "where they are asked for late"
    total = {"residual": torch.bfloat16, "sum": torch.bfloat16}
    assert first(8192, 4096, **total) and first(8192, 4096, quantized="static")
    assert not first(8192, 4096, quantized="static", **total)
    half, fp32 = CLUSTERED.sms * t.affine_first_elements // (2 * 1536), torch.float32
    assert [first(rows, 1536, 4, fp32) for rows in (few, half, half + 1, 1 << 20)] == [False, False, True, True]
    assert [first(8192, cols, 4, fp32) for cols in (188, 192, 508, 512)] == [False, centred, centred, True]
    assert first(8192, 1091, 1, fp32) and not first(half + 1, 1536, 4, fp32, quantized="static")


@norms
def test_few_rows_have_a_plan_for_how_soon_each_is_done(centred):
    def plan(rows, cols, **changes):
        return forward_plans.forward_plan(replace(problem_of(rows, cols), **changes), CLUSTERED, centred, 8)

    for cols in (64, 216, 1024, 4096, 4352, 65_536):
        most = affine.most_prompt_rows(problem_of(1, cols), CLUSTERED)
        assert [plan(rows, cols).prompt for rows in (1, most, most + 1, 1 << 20)] == [True, True, False, False], cols
        lanes = replace(problem_of(1, cols), lanes=4)
        assert affine.most_prompt_rows(lanes, CLUSTERED) == most // 4
        # Without a division nothing but their order keeps weight and bias before the row's sum.
        power = cols & (cols - 1) == 0
        assert plan(5, cols).affine_first == power and not plan(5, cols, weight=None, bias=None).affine_first
        in_fp32 = problem_of(1, cols, torch.float32)
        assert affine.most_prompt_rows(in_fp32, CLUSTERED) == most // 2
        summed = replace(in_fp32, residual=torch.float32)
        assert affine.most_prompt_rows(summed, CLUSTERED) in (2 * most, 2 * most + 1)
    assert not plan(1, 4096, quantized="row").prompt and not plan(1, 262_144).prompt, "nor where rows are sliced"
    total = {"residual": torch.bfloat16, "sum": torch.bfloat16}
    assert plan(1300, 4096, **total).prompt and not plan(1300, 4096).prompt
    assert plan(8, 4096, **total).prompt and not plan(8, 65_536, **total).prompt, "a cluster a row"


@norms
def test_rows_on_their_own_ask_for_the_weight_first(centred):
    def first(rows, cols, **changes):
        problem = replace(problem_of(rows, cols), **changes)
        plan = forward_plans.forward_plan(problem, CLUSTERED, centred, 8)
        assert plan.prompt
        return plan.affine_first

    t = in_force.thresholds()
    assert [first(rows, 3072) for rows in (1, t.lone_rows, t.lone_rows + 1)] == [not centred, not centred, False]
    widest = t.lone_bytes // 2 - 8
    assert first(1, widest) == (not centred) and not first(1, widest + 16)
    assert not first(1, 3072, residual=torch.bfloat16, sum=torch.bfloat16) and not first(
        1, 3072, weight=None, bias=None
    )
    assert not first(2, 3072, lanes=4)


def test_wide_rows_of_single_elements_have_the_plan_of_many():
    t = in_force.thresholds()
    for cols in (33, t.prompt_singles - 1, t.prompt_singles + 1, 20_001):
        plan = forward_plans.forward_plan(problem_of(8, cols), CLUSTERED, False, 1)
        assert plan.schedule == "tile" and plan.prompt == (cols < t.prompt_singles)


def test_very_many_rows_of_layer_norm_ask_for_weight_and_bias_late():
    def when(rows, cols, dtype=torch.bfloat16, **changes):
        problem = replace(problem_of(rows, cols, dtype), **changes)
        plan = forward_plans.forward_plan(problem, CLUSTERED, True, 8)
        assert plan.ahead is None or not plan.affine_first
        return "late" if plan.ahead is not None else "first" if plan.affine_first else "last"

    t = in_force.thresholds()
    for least, tile in t.late_centred_between:
        most = CLUSTERED.sms * tile.late
        soon = tile.late < t.affine_first_late
        for cols in (least + 7, tile.cols - 8) if least < tile.cols else ():
            assert [when(rows, cols) for rows in (100, most)] == ["last", "last" if soon else "first"]
        assert when(most + 1, least) == when(most + 1, tile.cols) == "late"
        if soon:
            continue
        assert when(most + 1, tile.cols + 8) == when(most + 1, tile.cols // 2, torch.float32) == "first"
    assert [when(rows, 9216) for rows in (300, 2112, 2113)] == ["first", "first", "late"]
    assert [when(rows, 32768) for rows in (132, 133)] == ["last", "late"], "once an SM has two rows"


def test_blocks_get_narrower_unless_a_tile_says_otherwise():
    tile = Tile(4096, 1, 4, block=1024)
    assert [plans.snug(tile, cols, 8).block for cols in (3080, 3584, 4096)] == [512, 512, 1024]
    assert plans.snug(replace(tile, narrows=False), 3080, 8).block == 1024


def test_rows_that_begin_on_16_bytes_are_shared_as_long_as_it_is_sooner():
    def most(cols, centred, dtype=torch.bfloat16):
        slices = [
            forward_plans.forward_plan(problem_of(rows, cols, dtype), CLUSTERED, centred, 16 // dtype.itemsize).slices
            for rows in range(1, 101)
        ]
        assert set(slices) == {1, 8} and sorted(slices, reverse=True) == slices
        return slices.count(8)

    assert [most(cols, False) for cols in (17472, 24576, 32768, 49152, 65536)] == [48, 48, 80, 80, 72]
    assert [most(cols, True) for cols in (17472, 24576, 32768, 40960, 49152)] == [48, 48, 80, 80, 56]
    assert [most(cols, False, torch.float32) for cols in (16384, 20480, 32768)] == [32, 80, 72]


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


def test_rows_of_fp32_are_put_together_where_they_are_many():
    def tile(rows, cols, centred, **kinds):
        plan = forward_plans.forward_plan(problem_of(rows, cols, torch.float32, **kinds), CLUSTERED, centred, 4)
        return plan.rows, plan.warps

    assert [tile(rows, 312, True) for rows in (1299, 1300, 4095)] == [(1, 1), (16, 16), (16, 16)]
    assert tile(3000, 512, True) == (1, 1), "of two vectors a thread a row is alone"
    for kinds in ({}, {"residual": torch.float32}):
        assert [tile(rows, 264, False, **kinds) for rows in (1999, 2000, 4095)] == [(1, 2), (4, 8), (4, 8)]
        assert tile(3000, 512, False, **kinds)[0] == 1, "wider than that they are slower so"


@pytest.mark.parametrize("residual", [None, torch.float32])
def test_wide_rows_of_fp32_leave_room_for_a_second(residual):
    def late(rows, cols):
        plan = forward_plans.forward_plan(problem_of(rows, cols, torch.float32, residual=residual), CLUSTERED, False, 4)
        assert plan.schedule == "tile" and plan.slices == (8 if rows == 1 else 1)
        return plan.ahead is not None

    assert [late(rows, 14208) for rows in (1, 132, 133, 5000)] == [False, False, True, True]
    assert not late(5000, 12288), "which has room by half the warps"


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


def test_sums_with_a_residual_are_held_where_they_are_few_or_many_and_walked_between():
    bf16 = torch.bfloat16

    def plan_of(rows, cols, align=8, **changes):
        problem = replace(problem_of(rows, cols, bf16), **({"residual": bf16, "sum": bf16} | changes))
        return forward_plans.forward_plan(problem, CLUSTERED, False, align)

    def schedules(cols, **changes):
        return [plan_of(rows, cols, **changes).schedule for rows in (1, 132, 133, 330, 331, 100_000)]

    for cols in (16_904, 20_480, 24_576):
        assert schedules(cols) == ["tile", "tile", "stream", "stream", "tile", "tile"]
    for cols in (24_584, 26_000, 32_768):
        assert schedules(cols) == ["tile"] * 6
        assert plan_of(100_000, cols).slices == 1 and plan_of(64, cols).slices == 8
    every = [plan_of(rows, cols) for rows in (1, 200, 4096) for cols in (20_480, 30_000)]
    assert {(plan.block * plan.slices, plan.warps * plan.slices) for plan in every} == {(8192, 32)}, "the same bits"
    assert all(plan.as_walked for plan in every if plan.schedule == "tile")
    assert plan_of(4096, 16_392).schedule == "stream", "two blocks, and eight columns"
    assert plan_of(4096, 32_776).slices == 8, "a cluster"
    for changes in ({"sum": torch.float32}, {"residual": torch.float32}, {"quantized": "static"}, {"align": 4}):
        assert not plan_of(4096, 20_480, **changes).as_walked


def test_both_moments_are_found_in_one_walk_where_rows_begin_on_16_bytes():
    def at_once(cols, align, dtype=torch.bfloat16):
        return forward_plans.forward_plan(problem_of(4096, cols, dtype), GLUON, True, align).at_once

    assert [at_once(cols, 8) for cols in (32_768, 32_776, 60_000)] == [None, 8, 8]
    assert [at_once(60_004, 4), at_once(60_002, 2), at_once(40_960, 4, torch.float32)] == [None] * 3
