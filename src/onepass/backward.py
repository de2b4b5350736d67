"""A backward call with everything worked out that does not depend on the data, as in forward.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.handover import Place, contiguous_strides, divided, stat_strides, switches, word_dtype
from onepass.kernels.reduce import sum_partials
from onepass.kernels.split import split_backward
from onepass.kernels.stream import stream_backward, stream_backward_affine
from onepass.kernels.tile import tile_backward
from onepass.plan import planner
from onepass.plan.device import device_of
from onepass.plan.launch import kernel
from onepass.plan.layout import Layout, layout_of
from onepass.plan.planner import Plan, power_of_two
from onepass.spec import Norm, Problem


class Needs(NamedTuple):
    """Which gradients are wanted. `dresidual`: as a tensor of its own, because its dtype is not that of dx."""

    dx: bool
    dresidual: bool
    dweight: bool
    dbias: bool


class Backwards:
    """The backward calls of one normalization: one for each set of strides that gradients arrive with."""

    def __init__(self, norm: Norm, problem: Problem, inplace: bool = False) -> None:
        self.norm = norm
        self.problem = problem
        self.inplace = inplace
        self._built: dict[Any, Backward] = {}

    def __call__(self, dy: Tensor, dsum: Tensor | None, h: Tensor, needs: Needs) -> Backward:
        key = (h.shape, h.stride(), h.device, dy.stride(), None if dsum is None else dsum.stride(), needs)
        found = self._built.get(key)
        if found is None:
            strides = (dy.stride(), None if dsum is None else dsum.stride(), h.stride())
            found = Backward(self.norm, self.problem, h.shape, h.device, strides, needs, self.inplace)
            self._built[key] = found
        return found


#: What the kernels of a backward are handed, in this order; "dweights" and "dbiases" are partial sums.
BACKWARD_TENSORS = (
    "dy", "dsum", "h", "weight", "mean", "rstd", "dx", "dresidual",
    "dweights", "dbiases", "mailbox", "dweight", "dbias",
)  # fmt: skip


class Backward:
    """The gradients of one normalization, ready to run."""

    def __init__(
        self,
        norm: Norm,
        problem: Problem,
        shape: Sequence[int],
        device: torch.device,
        strides: tuple[Sequence[int], Sequence[int] | None, Sequence[int]],
        needs: Needs,
        inplace: bool = False,
    ) -> None:
        """`strides` are those of dy, of the sum's gradient (None: there is none) and of what was normalized."""
        self.norm = norm
        self.needs = needs
        self.inplace = inplace
        self.shape = shape
        self.place = Place(device)
        self.empty = 0 in shape
        dy, dsum, h = strides
        dense = contiguous_strides(shape)
        every = [dy, dense if dsum is None else dsum, h, dy if inplace else dense, dense]
        layout = layout_of(shape, every, problem.per_lane)
        # A gradient may arrive expanded or transposed. One that is written over must not be expanded in any dimension.
        expanded = any(step == 0 and size > 1 for step, size in zip(dy, shape, strict=True))
        sparse = shape[-1] > 1 and any(stride[-1] != 1 for stride in every)
        self.copies = layout is None or sparse or (inplace and expanded)
        if self.copies:
            layout = layout_of(shape, [dense] * 5, problem.per_lane)
        assert layout is not None
        self.layout: Layout = layout
        self.problem = replace(problem, rows=layout.rows, lanes=layout.lanes)
        self._has_dsum = dsum is not None
        self._dx_is_like_h = tuple(h) == dense and problem.h == problem.x  # as in forward.py
        self._align = layout.align(problem.cols)
        self._ready: dict[bool, Any] = {}

    def plan(self) -> Plan:
        return planner.backward_plan(self.problem, device_of(self.place.device), self.norm.centred)

    def __call__(
        self, dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """dx, dresidual, dweight, dbias; what is not needed is None."""
        place, needs, problem, device = self.place, self.needs, self.problem, self.place.device
        if place.is_elsewhere():
            with torch.cuda.device(device):
                return self(dy, dsum, h, weight, mean, rstd)
        if self.copies:
            dy, h = dy.contiguous(), h.contiguous()
            dsum = None if dsum is None else dsum.contiguous()
        dx = dresidual = dweight = dbias = None
        if needs.dx and self.inplace:
            dx = dy
        elif needs.dx:
            dx = torch.empty_like(h) if self._dx_is_like_h else torch.empty(self.shape, dtype=problem.x, device=device)
        if needs.dresidual:
            dresidual = torch.empty(self.shape, dtype=problem.residual, device=device)
        affine = (problem.lanes, problem.cols) if problem.per_lane else (problem.cols,)
        if self.empty:
            dweight = torch.zeros(affine, dtype=problem.weight, device=device) if needs.dweight else None
            dbias = torch.zeros(affine, dtype=problem.bias, device=device) if needs.dbias else None
            return dx, dresidual, dweight, dbias
        handles, aligned = place.handles((dy, dsum, h, weight, mean, rstd, dx, dresidual), self._align)
        ready = self._ready.get(aligned)
        if ready is None:
            ready = self._ready[aligned] = self._prepare(aligned)
        launches, partial_rows, mailbox = ready
        dweights = dbiases = words = None
        if needs.dweight and weight is not None:
            dweights = torch.empty((partial_rows, problem.cols), dtype=torch.float32, device=device)
            dweight = torch.empty_like(weight)
        if needs.dbias:
            dbiases = torch.empty((partial_rows, problem.cols), dtype=torch.float32, device=device)
            dbias = torch.empty(affine, dtype=problem.bias, device=device)
        if mailbox:
            words = torch.zeros(mailbox, dtype=word_dtype(self.norm), device=device)
        handles += place.handles((dweights, dbiases, words, dweight, dbias), 1)[0]
        stream = place.stream()
        for run, programs, chosen, scalars in launches:
            run(programs, stream, *[handles[index] for index in chosen], *scalars)
        return dx, dresidual, dweight, dbias

    def _prepare(self, aligned: bool) -> tuple[Any, ...]:
        problem, norm, needs = self.problem, self.norm, self.needs
        align, plan = self._align if aligned else 1, self.plan()
        kept = switches(norm, problem) | {"ALIGN": align}
        dy, dsum, h, dx, dresidual = self.layout.strides
        affine_lane = problem.cols // align if problem.per_lane else 0
        cols = problem.cols // align
        wants_affine = needs.dweight or needs.dbias
        statistics = ["mean", "rstd"]
        partial_rows = mailbox = 0
        launches = []

        def add(
            function: Any, names: list[str], scalars: tuple[Any, ...], constants: dict[str, Any], how: Plan
        ) -> None:
            run = kernel(
                function, tuple(self._dtype(name) for name in names), constants, warps=how.warps,
                device=self.place.device, registers=how.registers, cooperative=how.schedule == "split",
            )  # fmt: skip
            launches.append((run, how.programs, [BACKWARD_TENSORS.index(name) for name in names], scalars))

        every = ["dy", "dsum", "h", "weight", *statistics, "dx", "dresidual", "dweights", "dbiases"]
        statistic = stat_strides(self.layout, 4, problem.cols)
        strides = divided(align, (dy, dsum, h, dx, dresidual)) + statistic
        if plan.schedule == "tile":
            partial_rows = plan.programs
            scalars = (
                *strides, affine_lane, problem.rows, problem.lanes, cols, plan.programs // problem.lanes, norm.offset,
            )  # fmt: skip
            constants = kept | {
                "ROWS": plan.rows, "BLOCK": plan.block, "BLOCKS": plan.blocks, "EVEN": problem.cols % plan.block == 0,
                "PACKED": planner.is_packed(plan, backward=True), "STAGES": plan.stages,
            }  # fmt: skip
            add(tile_backward, every, scalars, constants, plan)
        elif plan.schedule == "split" and needs.dx:
            partial_rows = plan.programs // plan.slices
            mailbox = problem.rows * problem.lanes * plan.slices
            scalars = (*strides, problem.rows, problem.lanes, cols, plan.slices, partial_rows, norm.offset)
            constants = kept | {"BLOCK": plan.block, "PEERS": power_of_two(plan.slices), "STAGES": plan.stages}
            add(split_backward, [*every, "mailbox"], scalars, constants, plan)
        else:
            if wants_affine:  # before dx, which may be written over dy
                how = planner.affine_plan(problem, device_of(self.place.device))
                partial_rows = how.programs // -(-problem.cols // how.block)
                sharing = partial_rows // problem.lanes
                scalars = (*divided(align, (dy, h)), *statistic, problem.rows, problem.lanes, cols, sharing)
                names = ["dy", "h", *statistics, "dweights", "dbiases"]
                constants = {key: kept[key] for key in kept if key != "SHIFTED"}
                add(stream_backward_affine, names, scalars, constants | {"ROWS": how.rows, "BLOCK": how.block}, how)
            if needs.dx:
                names = ["dy", "dsum", "h", "weight", *statistics, "dx", "dresidual"]
                scalars = (*strides, affine_lane, problem.lanes, cols, norm.offset)
                constants = {key: kept[key] for key in kept if key != "X_HAT"} | {"BLOCK": plan.block}
                add(stream_backward, names, scalars, constants, plan)
        if wants_affine:
            lanes = problem.lanes if problem.per_lane else 1
            how = planner.partials_plan(lanes, problem.cols)
            # What it reads and writes is dense, whatever the strides of the tensors above.
            align = Layout(1, 1, ()).align(problem.cols)
            constants = {"ROWS": how.rows, "BLOCK": how.block, "ALIGN": align}
            scalars = (partial_rows // lanes, lanes, problem.cols // align)
            add(sum_partials, ["dweights", "dbiases", "dweight", "dbias"], scalars, constants, how)
        return launches, partial_rows, mailbox

    def _dtype(self, name: str) -> torch.dtype | None:
        """The dtype of a kernel's pointer, None where this call has no such tensor."""
        problem, needs = self.problem, self.needs
        return {
            "dy": problem.y,
            "dsum": problem.sum if self._has_dsum else None,
            "h": problem.h,
            "weight": problem.weight,
            "mean": torch.float32 if self.norm.centred else None,
            "rstd": torch.float32,
            "dx": problem.x if needs.dx else None,
            "dresidual": problem.residual if needs.dresidual else None,
            "dweights": torch.float32 if needs.dweight else None,
            "dbiases": torch.float32 if needs.dbias else None,
            "mailbox": word_dtype(self.norm),
            "dweight": problem.weight if needs.dweight else None,
            "dbias": problem.bias if needs.dbias else None,
        }[name]
