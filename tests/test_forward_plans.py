"""A forward's plan as a pure function: the row count never reaches into a row's arithmetic."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from onepass.plan import backward_plans, both_ways, forward_plans, in_force, plans, row_counts
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
    held_by_a_thread,
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
        kept = {(*order_of_sums(p), p.block, p.slices, *held_by_a_thread(p, vector)) for p in plans}
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
    for alone in ((12288, bf16, 8), (12288, bf16, 8, True), (4096, fp32, 4), (6201, bf16, 1, True)):
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
            assert (plan.rows, plan.warps) == (min(many.rows, many.warps) if alone else many.rows, many.warps)
            continue
        assert one.rows <= many.rows and cols <= 2048
        assert plan.warps * one.rows == plan.rows * one.warps
        largest = one.rows == 1 or 2 * plan.warps > 16 or 2 * plan.rows * power_of_two_at_least(cols) > t.small_elements
        assert plan.programs <= t.small_programs or largest
        assert plan.rows == one.rows or -(-rows // (plan.rows // 2)) > t.small_programs


@norms
def test_many_rows_ask_for_weight_and_bias_first(centred):
    def first(rows, cols, align=8, **changes):
        return forward_plans.forward_plan(
            replace(problem_of(rows, cols), **changes), CLUSTERED, centred, align
        ).affine_first

    most = CLUSTERED.sms * in_force.thresholds().affine_first_elements // 4352
    assert [first(rows, 4352) for rows in (1, most, most + 1, 4096, 1 << 20)] == [False, False, True, True, True]
    assert not first(1 << 20, 512), "rows that are short"
    assert first(1 << 20, 1024) == (not centred)
    assert first(8192, 4099, align=1) == (not centred), "loaded element by element"
    assert not first(8192, 32768), "where they are asked for late"
    total = {"residual": torch.bfloat16, "sum": torch.bfloat16}
    assert first(8192, 4096, **total) and first(8192, 4096, quantized="static")
    assert not first(8192, 4096, quantized="static", **total)


@norms
def test_few_rows_have_a_plan_for_how_soon_each_is_done(centred):
    def plan(rows, cols, **changes):
        return forward_plans.forward_plan(replace(problem_of(rows, cols), **changes), CLUSTERED, centred, 8)

    for cols in (64, 216, 1024, 4096, 4352, 65_536):
        most = forward_plans.most_prompt_rows(problem_of(1, cols), CLUSTERED)
        assert [plan(rows, cols).prompt for rows in (1, most, most + 1, 1 << 20)] == [True, True, False, False], cols
        lanes = replace(problem_of(1, cols), lanes=4)
        assert forward_plans.most_prompt_rows(lanes, CLUSTERED) == most // 4
        # Without a division nothing but their order keeps weight and bias before the row's sum.
        power = cols & (cols - 1) == 0
        assert plan(1, cols).affine_first == power and not plan(1, cols, weight=None, bias=None).affine_first
    assert not plan(1, 4096, quantized="row").prompt and not plan(1, 262_144).prompt, "nor where rows are sliced"
    total = {"residual": torch.bfloat16, "sum": torch.bfloat16}
    assert plan(1300, 4096, **total).prompt and not plan(1300, 4096).prompt
    assert plan(8, 4096, **total).prompt and not plan(8, 65_536, **total).prompt, "a cluster a row"


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


def plan_of_odd(centred, residual, /, rows, cols, device=GLUON, align=1, **changes):
    """The problem and its plan: dense rows that begin at odd addresses, unless the changes say otherwise."""
    given = {"bias": torch.bfloat16 if centred else None, "residual": residual, "sum": residual, "dense": True}
    problem = replace(problem_of(rows, cols), **given | changes)
    return problem, forward_plans.forward_plan(problem, device, centred, align)


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_many_odd_rows_pass_through_shared_memory_and_few_have_the_same_tile(centred, residual):
    plan_of = partial(plan_of_odd, centred, residual)
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


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_many_of_the_widest_odd_rows_wait_in_shared_memory_and_few_have_the_same_slices(centred, residual):
    plan_of = partial(plan_of_odd, centred, residual)
    for cols in (24577, 28673, 44001, 65535, 131073, 262145, 1_000_001):
        problem = plan_of(1, cols)[0]
        many = forward_plans.least_in_slices(problem, GLUON, centred, 1)
        few = plan_of(many - 1, cols)[1] if many > 1 else None
        registers = set()
        for rows in (many, 300, 4096, 1 << 20):
            problem, plan = plan_of(rows, cols)
            assert plan.schedule == "odd_split" and plan.together and plan.stages == 3, str(plan)
            assert plan.slices * plan.block * plan.blocks >= cols > (plan.slices - 1) * plan.block * plan.blocks
            groups, rest = divmod(plan.programs, plan.slices)
            assert rest == 0 and 0 < groups <= rows
            at_once = -(-plan.programs // GLUON.sms)
            slot = plans.slot_of(plan, problem)
            assert slot % 64 == 0 and slot >= 64 + 63 + plan.block * plan.blocks
            assert at_once * (2 * plans.slots_of(problem) * slot + 128 + 1024) <= GLUON.shared
            warps = -(-at_once * plan.warps // 4)  # of each quarter of an SM
            assert warps * 32 * plan.registers <= GLUON.registers // 4
            registers.add(plan.registers)
            if few is not None:
                same = (few.schedule, few.slices, few.block, few.blocks, few.warps)
                assert same == ("split", plan.slices, plan.block, plan.blocks, plan.warps), "the same bits"
        assert len(registers) == 1, "one kernel for all row counts"
        apart = row_counts.row_counts_apart(forward_plans.most_prompt_rows(problem, GLUON), many)
        assert {plan_of(rows, cols)[1].schedule for rows in apart} >= {"odd_split"}, "compiled with the first call"
    widths = [plan_of(4096, cols)[1].blocks for cols in (131_072 - 1, 131_073, 262_143, 262_145)]
    assert widths == ([4, 6, 6, 6] if centred else [4, 4, 4, 6]), "fewer slices of the widest"
    assert plan_of(4096, 24575)[1].schedule == "odd"
    for device in (CLUSTERED, replace(GLUON, cooperative=False)):
        assert plan_of(4096, 44001, device)[1].schedule != "odd_split", "without Gluon, or programs that run together"
    assert plan_of(4096, 44001, replace(GLUON, shared=16 << 10))[1].schedule == "split", "no room"
    wider = {"residual": torch.float32, "sum": torch.float32}
    others = (wider, {"y": torch.float32}, {"quantized": "static"}, {"per_lane": True, "lanes": 2})
    assert "odd_split" not in {plan_of(4096, 44001, **changes)[1].schedule for changes in others}
    assert plan_of(4096, 44001, lanes=3, weight=torch.float32)[1].schedule == "odd_split"
    slots = [plans.slots_of(plan_of(4096, 44001, weight=weight)[0]) for weight in (torch.bfloat16, torch.float32, None)]
    assert slots == [(3 if residual is None else 6) + affine for affine in ((2, 0, 1) if centred else (1, 0, 0))]


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


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_many_short_odd_rows_pass_through_shared_memory_some_at_once(centred, residual):
    plan_of = partial(plan_of_odd, centred, residual)
    t = in_force.thresholds()
    for cols in (145, 203, 255, 257, 389, 511):
        many = -(-GLUON.sms * t.flat_elements // cols)
        few = plan_of(many - 1, cols)[1]
        assert few.schedule == "tile" and few.prompt
        for rows in (many, 1 << 20, 1 << 27):
            problem, plan = plan_of(rows, cols)
            assert plan.schedule == "flat" and plan.warps == 1 and plan.blocks > 1, str(plan)
            assert (plan.block, plan.blocks) == (few.block, few.blocks), "the same bits"
            assert few.block == 32 or few.warps == 1, "a row lies over a warp there too"
            assert plan.rows in (2, 4, 8)
            slot = plans.slot_of(plan, problem)
            stored = power_of_two_at_least(plan.blocks) * plan.block
            assert slot % 64 == 0 and slot >= 63 + (plan.rows - 1) * cols + stored, "beyond the last row too"
            assert plans.chunks_of(plan, problem) * 256 >= 63 + plan.rows * cols + 7
            tensors = 1 if residual is None else 2
            if plan.stages == 1:
                assert plan.programs == -(-rows // plan.rows) and plan.registers is None
                continue
            at_once = -(-plan.programs // GLUON.sms)
            assert plan.programs <= -(-rows // plan.rows)
            assert at_once * (2 * tensors * plan.stages * slot + 1024) <= GLUON.shared
            assert at_once * 32 * plan.registers <= GLUON.registers
        assert plan_of(1 << 20, cols, dense=False)[1].schedule == "tile", "apart"
        assert plan_of(1 << 20, cols, H200)[1].schedule == "tile", "without Gluon"
        apart = row_counts.row_counts_apart(forward_plans.most_prompt_rows(problem, GLUON))
        assert "flat" in {plan_of(rows, cols)[1].schedule for rows in apart}, "compiled with the first call"
    assert plan_of(1 << 20, 513)[1].schedule == plan_of(1 << 20, 254, align=2)[1].schedule == "tile"
    wider = {"residual": torch.float32, "sum": torch.float32}
    others = (wider, {"y": torch.float32}, {"quantized": "static"}, {"per_lane": True, "lanes": 2, "dense": False})
    assert "flat" not in {plan_of(1 << 20, 145, **changes)[1].schedule for changes in others}


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@norms
def test_many_of_the_shortest_odd_rows_have_a_thread_each(centred, residual):
    plan_of = partial(plan_of_odd, centred, residual)
    t = in_force.thresholds()
    kind = 1 if centred else 0 if residual is None else 2
    widest, pairs = t.threads_to[kind], t.threads_paired_to[kind] // 4 * 4 - 2
    for cols, align in ((3, 1), (9, 1), (33, 1), (64, 1), (36, 4), (65, 1), (94, 2), (76, 4), (widest, 1), (pairs, 2)):
        problem, plan = plan_of(1 << 20, cols, align=align)
        many = forward_plans.least_by_thread(problem, GLUON, align)
        few = plan_of(many - 1, cols, align=align)[1]
        assert few.schedule in ("tile", "flat")
        for rows in (many, 1 << 20, 1 << 27):
            plan = plan_of(rows, cols, align=align)[1]
            assert (plan.schedule, plan.rows) == ("threads", 32 * plan.warps) and plan.programs * plan.rows >= rows
            assert plan.block == few.block and plan.unit <= align, "the same bits"
            slot = plans.slot_of(plan, problem)
            assert slot >= plans.chunks_of(plan, problem) * 256 * plan.warps >= 63 + plan.rows * cols + 7
            assert 2 * slot * (1 if residual is None else 2) <= GLUON.shared // 8, "eight of them at the least"
        assert plan_of(1 << 20, cols, align=align, dense=False)[1].schedule == "tile", "apart"
        assert plan_of(1 << 20, cols, H200, align=align)[1].schedule == "tile", "without Gluon"
        least = forward_plans.least_by_thread(problem, GLUON, align)
        apart = row_counts.row_counts_apart(forward_plans.most_prompt_rows(problem, GLUON), least)
        assert "threads" in {plan_of(rows, cols, align=align)[1].schedule for rows in apart}, "with the first call"
    assert plan_of(1 << 20, widest + 2)[1].schedule == "flat"
    assert plan_of(1 << 20, pairs + 8, align=2)[1].schedule == "tile"
    assert plan_of(1 << 20, 64, align=16)[1].schedule == "tile"
    wider = {"residual": torch.float32, "sum": torch.float32}
    others = (wider, {"y": torch.float32}, {"quantized": "static"}, {"per_lane": True, "lanes": 2, "dense": False})
    assert "threads" not in {plan_of(1 << 20, 33, **changes)[1].schedule for changes in others}
    in_fp32 = {"x": torch.float32, "y": torch.float32} | ({} if residual is None else wider)
    assert plan_of(1 << 20, 33, **in_fp32)[1].schedule == "threads"


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
