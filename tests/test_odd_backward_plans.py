"""A backward's plan for rows that do not all begin on 16 bytes, or not on 32: which tiles, in turns, in which ring."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.plan import backward_plans, in_force, plans, row_counts
from onepass.plan.turns import takes_turns
from planning import DTYPES, GLUON, H200, norms, power_of_two_at_least, problem_of


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


def test_a_ring_counts_from_sectors_unless_that_leaves_too_few_groups():
    def plan_of(rows, cols, **changes):
        turns, sector_turns = (size // math.gcd(cols, size) for size in (8, 16))
        problem = replace(problem_of(rows, cols), **{"turns": turns, "sector_turns": sector_turns} | changes)
        return backward_plans.backward_plan(problem, GLUON, False, min(16, cols & -cols), True)

    turns = {cols: plan_of(4096, cols).turns for cols in (16384, 20000, 20001, 20002, 20004, 20008, 20016)}
    assert turns == {16384: 1, 20000: 1, 20001: 16, 20002: 8, 20004: 4, 20008: 2, 20016: 1}
    assert plan_of(2048, 65537).turns == 8, "sixteen groups for 24"
    assert plan_of(4096, 20008, sector_turns=1).turns == 1, "rows that are not dense"


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
    assert plan_of(600, 20001, residual=dtype, sum=dtype)[1].schedule in ("split_turns", "split")
    with in_force.force("backward", plans.Choice("ring", t.rings[0])):  # as a table may have it of aligned rows
        assert plan_of(600, 20001)[1].schedule == "split_turns"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_odd_rows_of_layer_norm_wait_there_too_and_groups_that_share_lie_alike(dtype):
    t = in_force.thresholds()

    def plan_of(rows, cols, **changes):
        turns, sector_turns = (size // math.gcd(cols, size) for size in (8, 16))
        problem = replace(problem_of(rows, cols, dtype), bias=dtype, turns=turns, sector_turns=sector_turns, **changes)
        return problem, backward_plans.backward_plan(problem, GLUON, True, 8 // turns, True)

    shared = 0
    for cols, rows in product((8195, 8204, 10_239, 65_537, 100_003, 131_073, 200_001), (8192, 40_000)):
        problem, plan = plan_of(rows, cols)
        assert plan.schedule == "ring_turns" and plan.together
        assert plan.block == t.centred_turns_rings[cols > 131_072].cols
        groups = plan.programs // plan.slices
        assert groups % plan.turns == 0 and plan.partials % plan.turns == 0, "the rows of a group lie alike"
        assert groups <= 2 * plan.partials and plan.partials <= groups
        assert 8 * cols * plan.partials <= max(t.partials_bytes, rows * cols * dtype.itemsize // t.partials_of_x)
        shared += plan.partials < groups
        least = backward_plans.least_in_ring(problem, GLUON, True)
        if t.partials_bytes >= 8 * cols * problem.turns:  # else so few rows have not room for one group of each turn
            assert plan_of(least, cols)[1].schedule == "ring_turns" != plan_of(least - 1, cols)[1].schedule
        assert least in backward_plans.row_counts_apart(problem, GLUON, True, 8 // problem.turns)
    assert shared
    assert plan_of(8192, 9001, residual=dtype, sum=dtype)[1].schedule != "ring_turns"


@pytest.mark.parametrize("kind", ["alone", "centred", "residual"])
def test_rows_that_begin_on_8_bytes_have_tiles_of_their_own(kind):
    t, which = in_force.thresholds(), ("alone", "centred", "residual").index(kind)

    def plan_of(cols, align, dtype):
        total = dtype if kind == "residual" else None
        problem = replace(problem_of(20_000, cols, dtype), residual=total, sum=total)
        return backward_plans.backward_plan(problem, H200, kind == "centred", align, True)

    for dtype, tables in ((torch.bfloat16, t.eights_of_16_bits_between), (torch.float32, t.eights_of_fp32_between)):
        each, tiles = dtype.itemsize // 2, tables[which]
        assert [least for least, _ in tiles] == sorted(least for least, _ in tiles)
        for least, tile in tiles:
            for cols in (-(-least // 8) * 8 + 4, tile.cols - 4):
                plan = plan_of(cols // each, 4 // each, dtype)
                assert (plan.schedule, plan.rows, plan.warps) == ("tile", tile.rows, tile.warps)
                assert plan.block <= tile.block
            on_16 = plan_of((tile.cols - 8) // each, 8 // each, dtype)
            with in_force.override(eights_of_16_bits_between=((),) * 3, eights_of_fp32_between=((),) * 3):
                assert plan_of((tile.cols - 8) // each, 8 // each, dtype) == on_16, "on 16 bytes as ever"
                assert plan_of((tile.cols - 4) // each, 4 // each, dtype) != plan


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_wide_rows_that_begin_on_8_bytes_are_taken_in_turns_by_layer_norm_alone(dtype):
    least = in_force.thresholds().centred_eights_in_turns_from[dtype.itemsize // 4]

    def schedule(cols, centred=True, turns=2, **changes):
        problem = replace(problem_of(4000, cols, dtype), turns=turns, **changes)
        return backward_plans.backward_plan(problem, H200, centred, 8 // dtype.itemsize, True).schedule

    wide = least + 8 // dtype.itemsize - 1
    assert [schedule(cols) for cols in (wide - 16, wide, 8192 - 8 // dtype.itemsize)] == ["tile", "turns", "turns"]
    assert schedule(wide, turns=1) == "tile" != schedule(wide)
    assert schedule(wide, centred=False) != "turns"
    assert schedule(wide, residual=dtype, sum=dtype) == "tile", "with a residual it was not timed"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_many_sums_are_shared_in_turns_that_one_program_could_hold(dtype):
    t, each, vector = in_force.thresholds(), dtype.itemsize // 2, 16 // dtype.itemsize
    least = t.summed_turns_shared_from[dtype.itemsize // 4]

    def schedule(cols, rows, centred=False, total=dtype):
        turns = vector // math.gcd(cols, vector)
        problem = replace(problem_of(rows, cols, dtype), turns=turns, residual=total, sum=total)
        return backward_plans.backward_plan(problem, H200, centred, vector // turns, True).schedule

    odd, many = least + 2, -(-t.many_elements // (least + 2) // each)
    assert [schedule(odd, rows) for rows in (many - 1, many)] == ["turns", "split_turns"]
    assert schedule(odd - 4, 20_000) == "turns" and schedule(odd, many, centred=True) == "turns"
    assert schedule(odd, many, total=None) != "split_turns"
    eights = least + 8 // dtype.itemsize - 1
    assert schedule(eights, 4 * many) == ("tile" if dtype == torch.bfloat16 else "split_turns")


def test_rows_in_turns_of_fp32_have_narrower_blocks():
    t = in_force.thresholds()

    def block(cols, dtype, residual=None, rows=20_000):
        vector = 16 // dtype.itemsize
        problem = replace(problem_of(rows, cols, dtype, residual=residual), turns=vector)
        return backward_plans.backward_plan(problem, H200, False, 1, True).block

    alone = [tile.block for _, tile in t.turns_of_fp32_between]
    assert [block(cols, torch.float32) for cols in (433, 801, 1001)] == [alone[0], alone[1], alone[1]]
    assert [block(cols, torch.float32, torch.float32) for cols in (433, 801, 1001)] == [128, 128, 256]
    assert [block(cols, torch.bfloat16) for cols in (867, 1601)] == [128, 256]
    assert block(433, torch.float32, rows=1500) == 256, "few of them"
    for residual, tiles in ((None, t.turns_of_fp32_many), (torch.float32, t.summed_turns_of_fp32_many)):
        for first, last, least, tile in tiles:
            for cols in (first // 2 - 2, last // 2 - 3):
                assert block(cols, torch.float32, residual, least) == tile.block
                assert block(cols, torch.float32, residual, least - 1) > tile.block, "few of them"


def test_rows_in_turns_with_a_residual_of_16_bits_have_their_own_tiles():
    t = in_force.thresholds()

    def planned(cols, rows, centred=False, dtype=torch.bfloat16):
        problem = replace(problem_of(rows, cols, dtype, residual=dtype), turns=16 // dtype.itemsize)
        return backward_plans.backward_plan(problem, H200, centred, 1, True)

    for first, tile in t.turns_of_16_bits_between[2]:
        for cols in (first - 7, tile.cols - 7):  # many of the widest are shared
            plan = planned(cols, 20_000 if cols < t.summed_turns_shared_from[0] else 1000)
            assert (plan.schedule, plan.block, plan.stages) == ("turns", tile.block, tile.stages), cols
    for first, last, fewer, tile in t.summed_turns_of_16_bits_few:
        for cols in (first - 7, last - 7):
            few, many = planned(cols, fewer - 1), planned(cols, fewer)
            assert (few.block, few.warps) == (tile.block, tile.warps) and many.programs > few.programs
            assert planned(cols, fewer - 1, centred=True).block < tile.block, "LayerNorm's"
            assert planned(cols // 2, fewer - 1, dtype=torch.float32).block < tile.block


def test_a_wide_ring_has_the_fewest_slices_where_rows_begin_in_the_middle_of_lines():
    def block(cols, dtype=torch.bfloat16):
        vector = 16 // dtype.itemsize
        turns, sector_turns = (size // math.gcd(cols, size) for size in (vector, 2 * vector))
        problem = replace(problem_of(2000, cols, dtype), turns=turns, sector_turns=sector_turns)
        return backward_plans.backward_plan(problem, GLUON, False, min(16, cols & -cols), True).block

    assert [block(cols) for cols in (28672, 28680, 49152, 40968, 60001)] == [1024, 1024, 1024, 4096, 4096]
    assert [block(cols) for cols in (65544, 65537)] == [4096, 2048], "24 groups of 17 programs, or 32 of 33"
    assert [block(cols, torch.float32) for cols in (24576, 20484)] == [512, 2048]


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@norms
def test_many_short_odd_rows_have_a_thread_each_and_all_their_programs_run_at_once(centred, residual, dtype):
    t, vector = in_force.thresholds(), 16 // dtype.itemsize

    def plan_of(rows, cols, device=GLUON, **changes):
        kind = dtype if residual else None
        align = min(vector, cols & -cols)
        dense = {"turns": vector // align, "residual": kind, "sum": kind}
        problem = replace(problem_of(rows, cols, dtype), **dense | changes)
        return problem, backward_plans.backward_plan(problem, device, centred, align, True)

    widest = t.threads_backward_tiles[1 if centred else 2 if residual else 0][-1].cols * 2 // dtype.itemsize
    for cols in (3, 9, 10, 17, 25, widest - 1 + widest % 2):
        problem, plan = plan_of(1 << 22, cols)
        least = backward_plans.least_by_thread(problem, GLUON, min(vector, cols & -cols))
        assert plan_of(least - 1, cols)[1].schedule in ("tile", "turns")
        for rows in (least, least + 1, 1 << 22):
            problem, plan = plan_of(rows, cols)
            assert (plan.schedule, plan.rows) == ("threads", 32 * plan.warps) and plan.programs * plan.rows <= rows + 63
            at_once = -(-plan.programs // GLUON.sms)
            slots = plan.stages * (3 if residual else 2) * plans.slot_of(plan, problem) * dtype.itemsize
            assert at_once * (slots + 1024) <= GLUON.shared
            # A warp's registers are in one of the four parts that an SM has of them.
            assert GLUON.registers // 4 // (32 * plan.registers) * 4 >= at_once * plan.warps
            partials = 4 * cols * plan.programs * plan.warps
            assert partials <= max(t.partials_bytes, rows * cols * dtype.itemsize // t.partials_of_x)
        assert plan_of(1 << 22, cols, turns=1)[1].schedule != "threads", "not dense"
        assert plan_of(1 << 22, cols, H200)[1].schedule != "threads", "without Gluon"
        counts = row_counts.row_counts_apart(0, least)
        assert "threads" in {plan_of(rows, cols)[1].schedule for rows in counts}, "compiled with the first call"
    assert plan_of(1 << 22, widest + 2 - widest % 2 + 1)[1].schedule != "threads"


@pytest.mark.parametrize("residual", [None, torch.bfloat16], ids=["alone", "residual"])
@pytest.mark.parametrize("centred", [False, True], ids=["rms_norm", "layer_norm"])
def test_many_rows_that_begin_in_the_middle_of_32_bytes_have_a_warp_each(centred, residual):
    def tile_of(rows, cols, **changes):
        problem = replace(problem_of(rows, cols, residual=residual), dense=True, **changes)
        plan = backward_plans.backward_plan(problem, H200, centred, cols & -cols, True)
        return plan.schedule, plan.rows, plan.warps, plan.block, plan.stages

    alone = ("tile", 1, 1, 128, 4)
    widths = {True: (520, 648, 840), False: (472, 504, 712, 1016) if residual else (424, 472, 520, 1016)}[centred]
    for cols in widths:
        assert tile_of(16_384, cols) == tile_of(200_000, cols) == alone != tile_of(4000, cols), cols
    assert alone != tile_of(200_000, 656), "all begin on 32"
    assert tile_of(200_000, 1032) != alone and tile_of(200_000, 312) != alone
