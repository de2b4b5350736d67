"""A forward call with everything worked out that does not depend on the data: layout, plan, compiled kernel.

It is built once for given shapes, strides, dtypes and options, kept in a dictionary by those who call it, and then runs
with nothing left to do but allocate the outputs and launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onepass.backward import Backwards
from onepass.handover import Place, Step, divided, make_kernels, outline, stat_strides, switches, word_dtype
from onepass.kernels import (
    flat_forward,
    odd_forward,
    odd_split_forward,
    split_forward,
    stream_forward,
    threads_forward,
    tile_forward,
)
from onepass.plan import forward_plans, in_force, plans
from onepass.plan.device import device_of
from onepass.plan.launch import Call, Launch, whole_call
from onepass.plan.layout import Layout, contiguous_strides, layout_of
from onepass.plan.plans import Plan, power_of_two
from onepass.spec import Norm, Problem

#: What the kernel of a forward is handed, in this order; what follows rstd is for an FP8 output.
FORWARD_TENSORS = ("x", "residual", "weight", "bias", "y", "sum", "mean", "rstd")
QUANTIZED_TENSORS = ("q", "scale", "given", "amax")

#: The switches behind an FP8 output (kernels/quantize.py), where there is none.
NOT_QUANTIZED = dict.fromkeys(
    ("KIND", "GROUP", "ROUND", "BOUNDED", "FLOORED", "ARITHMETIC", "POWER_OF_TWO", "E8M0", "SWIZZLED")
)  # fmt: skip


@dataclass(frozen=True)
class Quantizing:
    """What a kernel must know of an FP8 output."""

    constants: dict[str, Any]
    dtypes: tuple[torch.dtype | None, ...]  # of QUANTIZED_TENSORS
    strides: tuple[int, int]  # of scales: from row to row, and from group to group
    numbers: tuple[float, float, float, float]  # floor, upper bound, the format's largest value and its inverse


PLAIN = Quantizing(NOT_QUANTIZED, (None,) * 4, (0, 0), (0.0,) * 4)


class Forward:
    """One normalization, ready to run on tensors of the shapes, strides and dtypes it was built for."""

    def __init__(
        self, norm: Norm, problem: Problem, x: Tensor, residual: Tensor | None, inplace_backward: bool = False,
        lasting: bool = True,
    ) -> None:  # fmt: skip
        """`problem` has the dtypes right; rows and lanes are worked out here."""
        self.norm = norm
        self.shape = x.shape
        self.place = Place(x.device, lasting)
        self.empty = x.numel() == 0
        self.copies = False
        self.has_y = True
        dense = contiguous_strides(x.shape)
        strides = [x.stride(), dense if residual is None else residual.stride(), dense]
        layout = layout_of(x.shape, strides, problem.per_lane)
        if layout is None:  # more than two levels of strides: the one case that is copied
            self.copies = True
            layout = layout_of(x.shape, [dense] * 3, problem.per_lane)
        assert layout is not None
        self.layout: Layout = layout
        is_dense = layout.is_dense(problem.cols)
        self.problem = replace(problem, rows=layout.rows, lanes=layout.lanes, dense=is_dense)
        self.backwards = Backwards(norm, self.problem, x.shape, x.device, inplace_backward)
        self._like_y = outline(x.shape, problem.y)
        self._like_sum = None if problem.sum is None else outline(x.shape, problem.sum)
        self._like_statistic = outline(x.shape[:-1], torch.float32)
        self._align = layout.align(problem.cols)
        self._ready: dict[tuple[bool, bool], Any] = {}
        #: By whether there are statistics: all of what is below in one function, for tensors as nearly all are.
        self._whole: dict[bool, Call | None] = {}

    def align(self, aligned: bool) -> int:
        return self._align if aligned else 1

    def plan(self, aligned: bool = True) -> Plan:
        return forward_plans.forward_plan(
            self.problem, device_of(self.place.device), self.norm.centred, self.align(aligned)
        )

    def __call__(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, stats: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """y, the sum with the residual, mean and rstd; what the call does not have, or did not want, is None."""
        whole = self._whole.get(stats)
        if whole is not None:
            results = whole(x, residual, weight, bias)
            if results is not None:
                return results
        place = self.place
        if place.is_elsewhere():
            with torch.cuda.device(place.device):
                return self(x, weight, bias, residual, stats)
        y = place.empty(self._like_y)
        total = None if self._like_sum is None else place.empty(self._like_sum)
        mean = place.empty(self._like_statistic) if stats and self.norm.centred else None
        rstd = place.empty(self._like_statistic) if stats else None
        if self.empty:
            return y, total, mean, rstd
        if self.copies:
            x = x.contiguous()
            residual = None if residual is None else residual.contiguous()
        handles, aligned = place.handles((x, residual, weight, bias, y, total, mean, rstd), self._align)
        ready = self._ready.get((aligned, stats))
        if ready is None:
            ready = self._ready[aligned, stats] = self._prepare(aligned, stats)
            if aligned and ready[1] is None and not self.copies:
                self._whole[stats] = self._in_one(ready[0], stats)
                del y, total, mean, rstd  # it makes its own
                return self(x, weight, bias, residual, stats)
        launch, like_mailbox = ready
        stream = place.stream()
        if like_mailbox is not None:
            mailbox = place.filled(like_mailbox, 0, stream)
            handles += place.own_handles([mailbox])
        launch(stream, *handles)
        return y, total, mean, rstd

    def _prepare(self, aligned: bool, stats: bool) -> tuple[Launch, Tensor | None]:
        plan, align, device = self.plan(aligned), self.align(aligned), self.place.device
        # Another row count may get another plan. Its kernel is compiled now, so that no later call waits for it.
        how = (device_of(device), self.norm.centred, align)
        counts = forward_plans.row_counts_apart(self.problem, *how)
        problems = [replace(self.problem, rows=rows) for rows in counts]
        twins = [forward_plans.forward_plan(each, *how) for each in problems]
        steps = [self.step(each, align, stats) for each in (*twins, plan)]
        make_kernels(steps, device)
        words = self.problem.rows * self.problem.lanes * plan.slices
        like_mailbox = outline((words,), word_dtype(self.norm)) if steps[-1].exchanges else None
        return steps[-1].compiled(device)(plan.programs, steps[-1].scalars), like_mailbox

    def _in_one(self, launch: Launch, stats: bool) -> Call | None:
        """The whole of a call, where nothing has to be filled or copied for it."""
        index, problem = self.place.index, self.problem
        if index is None:
            return None
        like_statistic = self._like_statistic if stats else None
        outputs = (
            self._like_y, self._like_sum, like_statistic if self.norm.centred else None, like_statistic,
        )  # fmt: skip
        inputs = (problem.x, problem.residual, problem.weight, problem.bias)
        tensors = sum(each is not None for each in (*inputs, *outputs))
        return whole_call([(launch, range(tensors))], tensors, len(inputs), outputs, range(4), index)

    def _scalars(self, plan: Plan, align: int, quantizing: Quantizing) -> tuple[Any, ...]:
        """The arguments that follow the pointers."""
        problem, norm = self.problem, self.norm
        strides = divided(align, self.layout.strides) + stat_strides(self.layout, 2, problem.cols)
        scale_row, scale_group = quantizing.strides
        affine_lane = problem.cols // align if problem.per_lane else 0
        cols = problem.cols // align
        sizes: tuple[int, ...] = (scale_row, affine_lane, scale_group, problem.rows, problem.lanes, cols)
        if plan.schedule == "split":
            sharing = (plan.slices, in_force.thresholds().patience)
            sizes = (scale_row, affine_lane, scale_group, problem.lanes, cols, *sharing)
        elif plan.schedule == "stream":
            sizes = (scale_row, affine_lane, scale_group, problem.lanes, cols)
        elif plan.schedule == "odd":
            return *strides, problem.rows, problem.lanes, cols, plan.programs, norm.eps, norm.offset
        elif plan.schedule == "odd_split":
            sharing = (plan.slices, plan.programs // plan.slices)
            return *strides, problem.rows, problem.lanes, cols, *sharing, norm.eps, norm.offset
        elif plan.schedule == "flat":
            return problem.rows, cols, plan.programs, norm.eps, norm.offset
        elif plan.schedule == "threads":
            return problem.rows, norm.eps, norm.offset
        return *strides, *sizes, norm.eps, norm.offset, *quantizing.numbers

    def step(self, plan: Plan, align: int, stats: bool, quantizing: Quantizing = PLAIN, keeps: bool = True) -> Step:
        """`keeps`: it writes y, where it has one, and the sum; else what is quantized alone."""
        problem, norm = self.problem, self.norm
        statistic = torch.float32 if stats else None
        dtypes: tuple[torch.dtype | None, ...] = (
            problem.x, problem.residual, problem.weight, problem.bias,
            problem.y if keeps and self.has_y else None, problem.sum if keeps else None,
            statistic if norm.centred else None, statistic, *quantizing.dtypes,
        )  # fmt: skip
        rounded = norm.round_residual and problem.sum is not None
        constants = switches(norm, problem) | {
            "ROUND_SUM": problem.sum if rounded else None,
            "BLOCK": plan.block,
            "ALIGN": align,
        }
        names: tuple[str, ...] = (*FORWARD_TENSORS, *QUANTIZED_TENSORS)
        row_dtypes = dtypes[: FORWARD_TENSORS.index("mean")]
        kernel = stream_forward
        if plan.schedule == "stream":
            constants |= {"BLOCKS": -(-problem.cols // plan.block), "EVEN": problem.cols % plan.block == 0}
            constants |= {"IDENTITY": norm.identity}
        elif plan.schedule == "tile":
            kernel = tile_forward
            constants |= {"IDENTITY": norm.identity}
            constants |= {"ROWS": plan.rows, "PACKED": plans.is_packed(plan, align, backward=False)}
            constants |= {"BLOCKS": plan.blocks, "AS_WALKED": plan.as_walked, "SLICES": plan.slices}
            constants |= {"EVEN": plan.is_even(problem.cols), "UNIT": plan.unit, "AHEAD": plan.ahead}
            constants |= {"AFFINE_FIRST": plan.affine_first, "AT_ONCE": plan.at_once}
            constants |= {"CHAINS": plan.chains, "WARPS": self._lies_over(plan, align, row_dtypes)[0]}
            constants |= {"PROMPT": plan.prompt, "DENSE": plan.prompt and self.layout.is_dense(problem.cols)}
            constants |= {"SUM_FIRST": plan.sum_first}
        elif plan.schedule == "split":
            kernel = split_forward
            dtypes, names = (*dtypes, word_dtype(norm)), (*names, "mailbox")
            peers = max(32 * plan.warps, power_of_two(plan.slices))
            warps, side = self._lies_over(plan, align, row_dtypes) if peers == 32 * plan.warps else (1, 1)
            constants |= {"PEERS": peers, "BLOCKS": plan.blocks, "WARPS": warps, "SIDE": side}
            constants |= {"EVEN": problem.cols % (plan.block * plan.blocks) == 0, "AFFINE_FIRST": plan.affine_first}
            constants |= {"PACKED": plans.is_packed(plan, align, backward=False)}
            constants |= {"EARLY": plan.blocks if plan.ahead is None else plan.ahead, "SUM_FIRST": plan.sum_first}
        else:
            return self._through_shared_memory(plan, align, dtypes[: len(FORWARD_TENSORS)], constants)
        scalars = self._scalars(plan, align, quantizing)
        return Step(kernel, names, dtypes, constants | quantizing.constants, scalars, plan)

    def _lies_over(self, plan: Plan, align: int, dtypes: Sequence[torch.dtype | None]) -> tuple[int, int]:
        """As `plans.lies_over`, where sums may go by warps."""
        problem, added = self.problem, self.problem.residual is not None
        warps, side = plans.lies_over(plan, align, *dtypes)
        if plan.schedule == "split":
            # Few odd rows have the bits of many, which add up otherwise (odd_split.py). Sums with a residual of 16 bits
            # would take so many registers more that an SM had a program less.
            by_warps = align * problem.x.itemsize > 2 and not (added and problem.x.itemsize == 2)
        else:
            # In one vector of each thread: of more, bits would be others than where a row lies as it will. The widest
            # sums with a residual would spill.
            by_warps = plan.rows == 1 and plan.block == 32 * warps * side and not (added and warps == 32)
        return (warps, side) if by_warps and not problem.quantized else (1, 1)

    def _through_shared_memory(
        self, plan: Plan, align: int, dtypes: tuple[torch.dtype | None, ...], constants: dict[str, Any]
    ) -> Step:
        problem = self.problem
        constants |= {"SLOT": plans.slot_of(plan, problem)}
        names: tuple[str, ...] = FORWARD_TENSORS
        copies = {"CHUNKS": plans.chunks_of(plan, problem)}  # where threads make them
        if plan.schedule == "odd_split":
            kernel = odd_split_forward
            dtypes, names = (*dtypes, word_dtype(self.norm)), (*names, "mailbox")
            constants |= {"PEERS": max(32, power_of_two(plan.slices)), "BLOCKS": plan.blocks}
            constants |= {"SLOTS": plans.slots_of(problem)}
        elif plan.schedule == "odd":
            kernel = odd_forward
            constants |= copies | {
                "BLOCKS": plan.blocks,
                "STAGES": plan.stages,
                "PAIRED": plans.has_pairs(plan, problem),
            }
        else:
            del constants["LANED"]  # one row behind the other
            constants |= copies
            if plan.schedule == "flat":
                kernel = flat_forward
                constants |= {"ROWS": plan.rows, "BLOCKS": plan.blocks, "STAGES": plan.stages}
            else:
                kernel = threads_forward
                constants |= {"COLS": problem.cols, "SIDE": plan.unit}
        return Step(kernel, names, dtypes, constants, self._scalars(plan, align, PLAIN), plan)
