"""A forward's plan for rows that begin at odd addresses: many through shared memory, few with the same bits."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from onepass.plan import affine, forward_plans, in_force, plans, row_counts
from planning import CLUSTERED, GLUON, H200, norms, power_of_two_at_least, problem_of


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
    least = t.odd_from[1 if centred else 0 if residual is None else 2]
    for cols in (least, 1281, 1793, 2049, 3521, 4099, 4225, 6143, 6145, 8191, 12287, 12289, 16383, 16385, 24575):
        many = -(-GLUON.sms * t.odd_elements // cols)
        few = plan_of(many - 1, cols)[1]
        assert few.schedule == "tile" and few.slices == few.rows == 1 and few.registers is None
        for rows in (many, 8192, 1 << 20):
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
    assert plan_of(8192, least - 2)[1].schedule == plan_of(8192, least - 2, H200)[1].schedule == "tile"
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
        apart = row_counts.row_counts_apart(affine.most_prompt_rows(problem, GLUON), many)
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
        apart = row_counts.row_counts_apart(affine.most_prompt_rows(problem, GLUON))
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
        apart = row_counts.row_counts_apart(affine.most_prompt_rows(problem, GLUON), least)
        assert "threads" in {plan_of(rows, cols, align=align)[1].schedule for rows in apart}, "with the first call"
    assert plan_of(1 << 20, widest + 2)[1].schedule == "flat"
    assert plan_of(1 << 20, pairs + 8, align=2)[1].schedule == "tile"
    assert plan_of(1 << 20, 64, align=16)[1].schedule == "tile"
    wider = {"residual": torch.float32, "sum": torch.float32}
    others = (wider, {"y": torch.float32}, {"quantized": "static"}, {"per_lane": True, "lanes": 2, "dense": False})
    assert "threads" not in {plan_of(1 << 20, 33, **changes)[1].schedule for changes in others}
    in_fp32 = {"x": torch.float32, "y": torch.float32} | ({} if residual is None else wider)
    assert plan_of(1 << 20, 33, **in_fp32)[1].schedule == "threads"
