"""A backward's plan as a pure function: who takes which rows, in how many programs, with which partial sums."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.plan import backward_plans, column_sums, in_force, plans, tuned
from planning import CLUSTERED, DTYPES, GLUON, H200, norms, problem_of, schedules


def test_a_weight_for_each_head_is_not_split_in_the_backward():
    assert schedules(problem_of(64, 262_144, lanes=4, per_lane=True), H200) == {"split", "stream"}


def test_backward_programs_are_whole_lanes():
    """A program adds up dW of one lane, so lanes must not share one."""
    for cols, lanes in product((64, 128, 1024, 4096), (1, 3, 40, 1000)):
        plan = backward_plans.backward_plan(problem_of(4096, cols, lanes=lanes, per_lane=True), H200, False, 1, True)
        assert plan.schedule == "tile" and plan.programs % lanes == 0 and plan.programs >= lanes


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
    for lanes, cols, sums in product((1, 3), (1, 2, 33, 4096), (1, 2)):
        plan = column_sums.partials_plan(lanes, cols, sums)
        assert plan.programs == sums * lanes * -(-cols // plan.block)
        assert plan.rows * plan.block * plan.stages == column_sums.thresholds().partials_elements


def test_a_tuned_backward_serves_eager_and_compiled_calls_alike():
    """An op is handed what was normalized, and cannot tell x from a copy of it in the same dtype."""
    plain = problem_of(64, 2880)
    copied = replace(plain, sum=plain.x)
    assert tuned.signature("backward", plain, False, 16) == tuned.signature("backward", copied, False, 16)
    assert tuned.signature("forward", plain, False, 16) != tuned.signature("forward", copied, False, 16)
    summed = replace(copied, residual=plain.x)
    assert tuned.signature("backward", summed, False, 16) != tuned.signature("backward", plain, False, 16)


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
    for cols, dtype, rows in product((8200, 8448, 65536, 100_000, 131_072, 262_144, 300_000), DTYPES, (900, 8192)):
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
        assert plan_of(plain, align=4).schedule != "ring"
    assert "ring" not in {plan_of(problem).schedule for problem in others}
    assert plan_of(plain, align=4).schedule != "ring"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_many_wide_rows_of_layer_norm_wait_for_their_sums_in_shared_memory(dtype):
    def plan_of(rows, cols, dtype=dtype, **changes):
        bias = {"bias": dtype} | changes
        problem = replace(problem_of(rows, cols, dtype), **bias)
        return problem, backward_plans.backward_plan(problem, GLUON, True, min(8, cols & -cols), True)

    t = in_force.thresholds()
    for cols, rows in product((8256, 12_288, 16_384, 65_536, 65_544, 131_072, 262_144), (4096, 8192, 100_000)):
        problem, plan = plan_of(rows, cols)
        assert (plan.schedule, plan.together, plan.rows) == ("ring", True, 1)
        assert plan.slices * plan.block >= cols > (plan.slices - 1) * plan.block
        per_sm = -(-plan.programs // GLUON.sms)
        assert plan.registers * plan.warps * 32 * per_sm <= GLUON.registers
        assert per_sm * plan.stages * plan.block * 2 * dtype.itemsize < GLUON.shared
        groups = plan.programs // plan.slices
        assert groups <= 2 * plan.partials <= 2 * groups, "each partial row is of one group or two"
        x = rows * cols * dtype.itemsize
        assert 8 * cols * plan.partials <= max(t.partials_bytes, x // t.partials_of_x)
        least = backward_plans.least_in_ring(problem, GLUON, True)
        assert [plan_of(fewer, cols)[1].schedule for fewer in (least - 1, least)] == ["split", "ring"]
        assert least in backward_plans.row_counts_apart(problem, GLUON, True, 8), "compiled with the first call"
        assert least >= t.centred_ring_rows[0] * groups
    assert plan_of(8192, 8192)[1].schedule == "tile"
    assert plan_of(8192, 16_392)[1].schedule == "split", "slices that begin in the middle of lines"
    assert plan_of(8192, 16_384, torch.float32)[1].schedule == "split"
    assert plan_of(8192, 16_384, residual=dtype, sum=dtype)[1].schedule == "split"
    assert plan_of(8192, 16_384, turns=2)[1].schedule != "ring"


@pytest.mark.parametrize("kind", ["alone", "residual", "centred"])
def test_the_widest_rows_are_few_up_to_so_many_elements(kind):
    t = in_force.thresholds()
    total = torch.bfloat16 if kind == "residual" else None

    def schedule(rows, cols):
        problem = replace(problem_of(rows, cols), residual=total, sum=total)
        return backward_plans.backward_plan(problem, CLUSTERED, kind == "centred", 8, True).schedule

    most = {"alone": 0, "centred": 1, "residual": 2}[kind]
    for cols in (65544, 90112, 131072):
        few = min(cols // t.few_columns_each, t.few_shared_elements[-1][1][most] // cols)
        assert few > 16 and schedule(few, cols) == "few" != schedule(few + 1, cols)
    widest = t.few_wide_slice.cols
    assert schedule(1, widest) == "few" != schedule(1, widest + 8), "more than a cluster holds"
    wide, narrow = (tile for _, tile in t.few_columns)
    for rows, cols, tile in ((24, 20480, wide), (25, 20480, narrow), (40, 40960, wide), (41, 40960, narrow)):
        assert column_sums.few_columns_plan(problem_of(rows, cols), rows).block == tile.cols


@pytest.mark.parametrize("kind", ["alone", "residual", "centred"])
def test_clusters_for_few_wide_rows_have_as_many_warps_as_these_need(kind):
    t = in_force.thresholds()

    def warps(rows, cols, dtype=torch.bfloat16, align=8):
        total = dtype if kind == "residual" else None
        problem = problem_of(rows, cols, dtype, residual=total)
        plan = backward_plans.backward_plan(problem, CLUSTERED, kind == "centred", align, True)
        if plan.schedule != "few":
            return None
        assert plan.slices * plan.block * plan.blocks >= cols > plan.slices * plan.block * (plan.blocks - 1)
        assert plan.warps == 4 or align == 1 or plan.block == 32 * plan.warps * 16 // dtype.itemsize
        return plan.warps

    lone, wide = t.few_lone
    assert [warps(lone, wide - 8), warps(lone, wide), warps(lone + 1, wide)] == [4, 8, 4]
    assert [warps(8, cols) for cols in (131072, 131080, 262144)] == [4, 8, 8]
    assert [warps(8, cols, torch.float32) for cols in (65536, 65540, 131072)] == [4, 8, 8]
    single, last = t.few_single_between
    if kind == "centred":
        assert [warps(8, cols | 1, align=1) for cols in (single - 2, single, last - 1)] == [4, 8, 8]
        assert warps(8, last + 1, align=1) is None, "too much for their registers"
    else:
        assert [warps(rows, 65537, align=1) for rows in (8, 31, 32)] == [4, 4, None]
    assert warps(1, 300_000) is None


@pytest.mark.parametrize("kind", ["alone", "residual", "centred"])
@pytest.mark.parametrize("align", [1, 2, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_programs_have_the_same_columns_of_all_of_few_wide_rows(kind, align, dtype):
    t = in_force.thresholds()
    total = dtype if kind == "residual" else None

    def plan_of(rows, cols, device=GLUON):
        problem = replace(problem_of(rows, cols, dtype), residual=total, sum=total)
        return backward_plans.backward_plan(problem, device, kind == "centred", align, True)

    odd_sum = kind == "residual" and align * dtype.itemsize == 2
    tiles = t.few_split_odd_summed_tiles if odd_sum else t.few_split_tiles
    for tile in tiles:
        widest = tile.cols * 2 // dtype.itemsize
        for cols in (cols for cols in (t.few_split_from, 70_000, widest) if t.few_split_from <= cols <= widest):
            plan = plan_of(tile.rows, cols)
            assert (plan.schedule, plan.together) == ("few_split", True)
            narrower = [
                each.warps for each in tiles if each.rows == tile.rows and cols * dtype.itemsize <= 2 * each.cols
            ]
            assert (plan.rows, plan.warps) == (tile.rows, narrower[0]) and plan.programs == plan.slices <= 128
            reach = plan.block * plan.blocks
            assert plan.slices * reach >= cols > (plan.slices - 1) * reach
            assert plan.unit * dtype.itemsize == min(4, align * dtype.itemsize)
            assert plan.block * plan.rows % (32 * plan.warps * plan.unit) == 0, "whole warps of rows"
        held = tile.cols < max(each.cols for each in tiles if each.rows == tile.rows)  # in more warps
        assert (plan_of(tile.rows, widest + 16).schedule == "few_split") == held, "more than they hold"
    assert plan_of(1, t.few_split_from - 1).schedule == "few"
    assert plan_of(33, 100_000).schedule != "few_split"
    assert plan_of(16, 100_000, CLUSTERED).schedule != "few_split", "no Gluon"


@norms
def test_some_hundred_rows_have_fewer_programs(centred):
    t = in_force.thresholds()
    alone = t.centred_backward_few if centred else t.backward_few
    for residual, tiles in ((None, alone), (torch.bfloat16, t.summed_backward_few)):
        for least, most, from_rows, tile in tiles:
            for cols in (-(-least // 8) * 8, most):
                few, many = (
                    backward_plans.backward_plan(problem_of(rows, cols, residual=residual), H200, centred, 8, True)
                    for rows in (from_rows - 1, from_rows)
                )
                assert (few.schedule, few.warps) == ("tile", tile.warps), cols
                assert few.programs * few.rows <= many.programs * many.rows, "at work at once"
                odd = backward_plans.backward_plan(problem_of(from_rows - 1, cols - 1), H200, centred, 1, True)
                assert odd.programs * odd.warps > few.programs * few.warps, "in pieces of 2 bytes"


def test_rows_that_programs_share_are_many_by_their_elements():
    """Fewer are held in registers, in narrower slices, and even fewer are read twice."""
    t = in_force.thresholds()

    def plan_of(rows, cols, turns=1, residual=None, centred=False, align=8):
        problem = replace(problem_of(rows, cols), turns=turns, sector_turns=turns, residual=residual, sum=residual)
        return backward_plans.backward_plan(problem, GLUON, centred, align, True)

    for cols, slice_ in ((16_640, t.centred_backward_slice), (32_768, t.centred_backward_slice),
                         (49_152, t.backward_slice), (65_528, t.backward_slice)):  # fmt: skip
        most = t.few_shared_elements[-1][1][0] // cols
        many = -(-t.many_elements // cols)
        least = max(most, 129 if cols < 32_768 else 0) + 1
        assert plan_of(min(most, 128), cols).schedule == "few"
        assert [plan_of(rows, cols).schedule for rows in (least, many - 1, many)] == ["split", "split", "ring"]
        assert {plan_of(rows, cols).block for rows in (least, many - 1)} == {slice_.cols}
    for cols, align in ((17_001, 1), (33_001, 1), (33_002, 2), (54_283, 1)):
        turns = 8 // align
        many = backward_plans.least_in_ring(replace(problem_of(1, cols), turns=turns), GLUON, False)
        schedules = [plan_of(rows, cols, turns, align=align).schedule for rows in (20, many - 1, many)]
        assert schedules == ["few", "split_turns", "ring_turns"], cols
    assert plan_of(57, 54_283, 8, align=1).block == plan_of(57, 54_283, 8, torch.bfloat16, align=1).block == 1024
    assert plan_of(600, 54_283, 8, torch.bfloat16, align=1).block == 2048
    for rows, of_single, of_pairs in ((90, "split_turns", "split"), (600, "ring_turns", "ring_turns")):
        assert plan_of(rows, 62_001, 8, centred=True, align=1).schedule == of_single
        assert plan_of(rows, 62_002, 4, centred=True, align=2).schedule == of_pairs
    # Single elements of LayerNorm, if programs for dW have as many columns as they have for few rows.
    assert [plan_of(rows, 54_283, 8, centred=True, align=1).schedule for rows in (53, 54)] == ["few", "split_turns"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_some_widths_of_layer_norm_have_a_tile_of_their_own(dtype):
    for least, tile in in_force.thresholds().centred_backward_between:
        for rows, cols in product((4000, 100_000), (-(-least // 8) * 8, tile.cols)):
            plan = backward_plans.backward_plan(problem_of(rows, cols, dtype), H200, True, 8, True)
            assert (plan.rows, plan.block, plan.warps, plan.stages) == (tile.rows, tile.block, tile.warps, tile.stages)
        half = backward_plans.backward_plan(problem_of(1000, tile.cols // 2, torch.float32), H200, True, 4, True)
        assert (half.block, half.stages) != (tile.block, tile.stages), "fp32 has not"
