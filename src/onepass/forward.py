"""A forward call with everything worked out that does not depend on the data: layout, plan, compiled kernel.

It is built once for given shapes, strides, dtypes and options, kept in a dictionary by those who call it, and then runs
with nothing left to do but allocate the outputs and launch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onepass.backward import Backwards
from onepass.handover import Place, Step, contiguous_strides, divided, stat_strides, switches, word_dtype
from onepass.kernels.split import split_forward
from onepass.kernels.stream import stream_forward
from onepass.kernels.tile import tile_forward
from onepass.plan import planner
from onepass.plan.device import device_of
from onepass.plan.launch import Launch
from onepass.plan.layout import Layout, layout_of
from onepass.plan.planner import Plan, power_of_two
from onepass.spec import Norm, Problem

#: What the kernel of a forward is handed, in this order.
FORWARD_TENSORS = ("x", "residual", "weight", "bias", "y", "sum", "mean", "rstd", "mailbox")


class Forward:
    """One normalization, ready to run on tensors of the shapes, strides and dtypes it was built for."""

    def __init__(
        self, norm: Norm, problem: Problem, x: Tensor, residual: Tensor | None, inplace_backward: bool = False
    ) -> None:
        """`problem` has the dtypes right; rows and lanes are worked out here."""
        self.norm = norm
        self.shape = x.shape
        self.place = Place(x.device)
        self.empty = x.numel() == 0
        self.copies = False
        dense = contiguous_strides(x.shape)
        strides = [x.stride(), dense if residual is None else residual.stride(), dense]
        layout = layout_of(x.shape, strides, problem.per_lane)
        if layout is None:  # more than two levels of strides: the one case that is copied
            self.copies = True
            layout = layout_of(x.shape, [dense] * 3, problem.per_lane)
        assert layout is not None
        self.layout: Layout = layout
        self.problem = replace(problem, rows=layout.rows, lanes=layout.lanes)
        self.backwards = Backwards(norm, self.problem, x.shape, x.device, inplace_backward)
        y_is_like_x = x.is_contiguous() and problem.y == x.dtype
        self._like_y = None if y_is_like_x else self.place.like(x.shape, problem.y)
        self._like_sum = None if problem.sum is None else self.place.like(x.shape, problem.sum)
        self._like_statistic = self.place.like(x.shape[:-1], torch.float32)
        self._align = layout.align(problem.cols)
        self._ready: dict[tuple[bool, bool], Any] = {}

    def align(self, aligned: bool) -> int:
        return self._align if aligned else 1

    def plan(self, aligned: bool = True) -> Plan:
        return planner.forward_plan(self.problem, device_of(self.place.device), self.norm.centred, self.align(aligned))

    def __call__(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, stats: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """y, the sum with the residual, mean and rstd; what the call does not have, or did not want, is None."""
        place = self.place
        if place.is_elsewhere():
            with torch.cuda.device(place.device):
                return self(x, weight, bias, residual, stats)
        y = torch.empty_like(x if self._like_y is None else self._like_y)
        total = None if self._like_sum is None else torch.empty_like(self._like_sum)
        mean = torch.empty_like(self._like_statistic) if stats and self.norm.centred else None
        rstd = torch.empty_like(self._like_statistic) if stats else None
        if self.empty:
            return y, total, mean, rstd
        if self.copies:
            x = x.contiguous()
            residual = None if residual is None else residual.contiguous()
        handles, aligned = place.handles((x, residual, weight, bias, y, total, mean, rstd), self._align)
        ready = self._ready.get((aligned, stats))
        if ready is None:
            ready = self._ready[aligned, stats] = self._prepare(aligned, stats)
        launch, like_mailbox = ready
        if like_mailbox is not None:
            mailbox = torch.zeros_like(like_mailbox)
            handles += place.own_handles([mailbox])
        launch(place.stream(), *handles)
        return y, total, mean, rstd

    def _prepare(self, aligned: bool, stats: bool) -> tuple[Launch, Tensor | None]:
        plan, align = self.plan(aligned), self.align(aligned)
        # Another row count may get another plan. Its kernel is compiled now, so that no later call waits for it.
        for rows in planner.row_counts_apart():
            twin = planner.forward_plan(
                replace(self.problem, rows=rows), device_of(self.place.device), self.norm.centred, align
            )
            self.step(twin, align, stats).kernel(self.place.device)
        words = self.problem.rows * self.problem.lanes * plan.slices
        like_mailbox = self.place.like((words,), word_dtype(self.norm)) if plan.schedule == "split" else None
        step = self.step(plan, align, stats)
        return step.kernel(self.place.device)(plan.programs, step.scalars), like_mailbox

    def _scalars(self, plan: Plan, align: int) -> tuple[Any, ...]:
        """The arguments that follow the pointers."""
        problem, norm = self.problem, self.norm
        strides = divided(align, self.layout.strides) + stat_strides(self.layout, 2, problem.cols)
        affine_lane = problem.cols // align if problem.per_lane else 0
        cols = problem.cols // align
        if plan.schedule == "tile":
            # Strides of scales, and the numbers behind an FP8 output: none as yet.
            strides += (0, 0)
            sizes: tuple[int, ...] = (affine_lane, 0, problem.rows, problem.lanes, cols)
        elif plan.schedule == "split":
            sizes = (problem.rows, problem.lanes, cols, plan.slices, plan.programs // plan.slices)
        else:
            sizes = (affine_lane, problem.lanes, cols)
        numbers = (0.0, 0.0, 0.0, 0.0) if plan.schedule == "tile" else ()
        return *strides, *sizes, norm.eps, norm.offset, *numbers

    def step(self, plan: Plan, align: int, stats: bool) -> Step:
        problem, norm = self.problem, self.norm
        statistic = torch.float32 if stats else None
        dtypes: tuple[torch.dtype | None, ...] = (
            problem.x, problem.residual, problem.weight, problem.bias, problem.y, problem.sum,
            statistic if norm.centred else None, statistic,
        )  # fmt: skip
        constants = switches(norm, problem) | {
            "ROUND_SUM": norm.round_residual and problem.sum is not None,
            "BLOCK": plan.block,
            "ALIGN": align,
        }
        function: Any = stream_forward
        if plan.schedule == "stream":
            constants |= {"BLOCKS": -(-problem.cols // plan.block), "EVEN": problem.cols % plan.block == 0}
        elif plan.schedule == "tile":
            function = tile_forward
            dtypes += (None, None, None)
            constants |= dict.fromkeys(("KIND", "GROUP", "ROUND", "BOUNDED", "ARITHMETIC", "POWER_OF_TWO", "E8M0"))
            constants |= {"ROWS": plan.rows, "PACKED": planner.is_packed(plan, align, backward=False)}
            constants |= {"BLOCKS": plan.blocks, "EVEN": problem.cols % plan.block == 0}
        elif plan.schedule == "split":
            function = split_forward
            dtypes += (word_dtype(norm),)
            constants |= {"PEERS": power_of_two(plan.slices), "STAGES": plan.stages}
        names = FORWARD_TENSORS[: len(dtypes)]
        return Step(function, names, dtypes, constants, self._scalars(plan, align), plan)
