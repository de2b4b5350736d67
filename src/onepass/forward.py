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
from onepass.handover import Place, contiguous_strides, divided, stat_strides, switches, word_dtype
from onepass.kernels.split import split_forward
from onepass.kernels.stream import stream_forward
from onepass.kernels.tile import tile_forward
from onepass.plan import planner
from onepass.plan.device import device_of
from onepass.plan.launch import Run, kernel
from onepass.plan.layout import Layout, layout_of
from onepass.plan.planner import Plan, power_of_two
from onepass.spec import Norm, Problem


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
        self.backwards = Backwards(norm, self.problem, inplace_backward)
        # empty_like takes half as long as empty with a shape, a dtype and a device.
        self._y_is_like_x = x.is_contiguous() and problem.y == x.dtype
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
        place, problem, device = self.place, self.problem, self.place.device
        if place.is_elsewhere():
            with torch.cuda.device(device):
                return self(x, weight, bias, residual, stats)
        y = torch.empty_like(x) if self._y_is_like_x else torch.empty(self.shape, dtype=problem.y, device=device)
        total = None if problem.sum is None else torch.empty(self.shape, dtype=problem.sum, device=device)
        rstd = torch.empty(self.shape[:-1], dtype=torch.float32, device=device) if stats else None
        mean = torch.empty_like(rstd) if rstd is not None and self.norm.centred else None
        if self.empty:
            return y, total, mean, rstd
        if self.copies:
            x = x.contiguous()
            residual = None if residual is None else residual.contiguous()
        handles, aligned = place.handles((x, residual, weight, bias, y, total, mean, rstd), self._align)
        ready = self._ready.get((aligned, stats))
        if ready is None:
            ready = self._ready[aligned, stats] = self._prepare(aligned, stats)
        run, programs, scalars, mailbox = ready
        if mailbox:
            words = torch.zeros(mailbox, dtype=word_dtype(self.norm), device=device)
            handles += place.handles([words], 1)[0]
        run(programs, place.stream(), *handles, *scalars)
        return y, total, mean, rstd

    def _prepare(self, aligned: bool, stats: bool) -> tuple[Any, int, tuple[Any, ...], int]:
        plan = self.plan(aligned)
        # Another row count may get another plan. Its kernel is compiled now, so that no later call waits for it.
        for rows in planner.row_counts_apart():
            twin = planner.forward_plan(
                replace(self.problem, rows=rows), device_of(self.place.device), self.norm.centred, self.align(aligned)
            )
            self._kernel(twin, self.align(aligned), stats)
        mailbox = self.problem.rows * self.problem.lanes * plan.slices if plan.schedule == "split" else 0
        align = self.align(aligned)
        return self._kernel(plan, align, stats), plan.programs, self._scalars(plan, align), mailbox

    def _scalars(self, plan: Plan, align: int) -> tuple[Any, ...]:
        """The arguments that follow the pointers."""
        problem, norm = self.problem, self.norm
        strides = divided(align, self.layout.strides) + stat_strides(self.layout, 2, problem.cols)
        affine_lane = problem.cols // align if problem.per_lane else 0
        cols = problem.cols // align
        if plan.schedule == "tile":
            sizes: tuple[int, ...] = (affine_lane, problem.rows, problem.lanes, cols)
        elif plan.schedule == "split":
            sizes = (problem.rows, problem.lanes, cols, plan.slices, plan.programs // plan.slices)
        else:
            sizes = (affine_lane, problem.lanes, cols)
        return *strides, *sizes, norm.eps, norm.offset

    def _kernel(self, plan: Plan, align: int, stats: bool) -> Run:
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
            constants |= {"ROWS": plan.rows, "BLOCKS": plan.blocks, "PACKED": planner.is_packed(plan, backward=False)}
            constants |= {"BLOCKS": -(-problem.cols // plan.block), "EVEN": problem.cols % plan.block == 0}
        elif plan.schedule == "split":
            function = split_forward
            dtypes += (word_dtype(norm),)
            constants |= {"PEERS": power_of_two(plan.slices), "STAGES": plan.stages}
        return kernel(
            function, dtypes, constants, warps=plan.warps, device=self.place.device, registers=plan.registers,
            cooperative=plan.schedule == "split",
        )  # fmt: skip
