"""A backward call with everything worked out that does not depend on the data, as in forward.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.handover import Place, Step, divided, make_kernels, outline, stat_strides, switches, word_dtype
from onepass.kernels import (
    Kernel,
    few_backward,
    few_split_backward,
    ring_backward,
    split_backward,
    split_turns_backward,
    stream_backward,
    stream_backward_affine,
    sum_partials,
    threads_backward,
    tile_backward,
    turns_backward,
)
from onepass.plan import backward_plans, column_sums, plans
from onepass.plan.device import device_of
from onepass.plan.launch import Call, Launch, whole_call
from onepass.plan.layout import Layout, contiguous_strides, layout_of
from onepass.plan.plans import Plan, itemsize, power_of_two
from onepass.spec import Norm, Problem

#: Whether gradients of x, weight, bias and residual are asked for, in that order; and what each gets.
Wanted = tuple[bool, bool, bool, bool]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Needs(NamedTuple):
    """What is to be computed. `dresidual`: as a tensor of its own, because its dtype is not that of dx."""

    dx: bool
    dresidual: bool
    dweight: bool
    dbias: bool


def needs_of(wanted: Wanted, x: torch.dtype, residual: torch.dtype | None) -> Needs:
    want_x, want_weight, want_bias, want_residual = wanted
    # x and residual get the same values; with equal dtypes, the same tensor.
    shared = residual is None or residual == x
    return Needs(want_x or want_residual, want_residual and not shared, want_weight, want_bias)


def handed_out(wanted: Wanted, computed: Gradients) -> Gradients:
    """To each input its gradient, from what was computed for the Needs: dx, dresidual, dweight, dbias."""
    dx, dresidual, dweight, dbias = computed
    if wanted[3] and dresidual is None:
        dresidual = dx
    return dx if wanted[0] else None, dweight, dbias, dresidual


class Backwards:
    """The backward calls of one normalization: one for each set of strides that tensors arrive with."""

    def __init__(
        self, norm: Norm, problem: Problem, shape: Sequence[int], device: torch.device, inplace: bool = False,
        lasting: bool = True,
    ) -> None:  # fmt: skip
        self.norm = norm
        self.problem = problem
        self.shape = shape
        self.device = device
        self.inplace = inplace
        self.lasting = lasting
        self._built: dict[Any, Backward] = {}
        self._wanted: dict[Any, Backward] = {}

    def wanting(self, wanted: Wanted, dy: Tensor, dsum: Tensor | None, h: Tensor) -> Backward:
        """By what is asked for, in one look-up."""
        key = (wanted, dy.stride(), h.stride(), None if dsum is None else dsum.stride())
        found = self._wanted.get(key)
        if found is None:
            needs = needs_of(wanted, self.problem.x, self.problem.residual)
            found = self._wanted[key] = self(dy, dsum, h, needs)
        return found

    def __call__(self, dy: Tensor, dsum: Tensor | None, h: Tensor, needs: Needs) -> Backward:
        # h too: hooks on saved tensors may bring it back with other strides.
        strides = (dy.stride(), None if dsum is None else dsum.stride(), h.stride())
        found = self._built.get((strides, needs))
        if found is None:
            how = (strides, needs, self.inplace, self.lasting)
            found = Backward(self.norm, self.problem, self.shape, self.device, *how)
            self._built[strides, needs] = found
        return found


#: What the kernels of a backward are handed, in this order; "dweights" and "dbiases" are partial sums.
BACKWARD_TENSORS = (
    "dy", "dsum", "h", "weight", "mean", "rstd", "dx", "dresidual",
    "dweights", "dbiases", "mailbox", "dweight", "dbias",
)  # fmt: skip


def turns_of(problem: Problem, layout: Layout, size: int) -> int:
    """After how many rows one begins as far from `size` bytes as the first, if they are dense and all of one width."""
    sizes = {problem.x.itemsize, problem.y.itemsize, problem.h.itemsize}
    dense = all(row == problem.cols for row, _ in layout.strides)
    if layout.lanes > 1 or problem.per_lane or len(sizes) > 1 or not dense:
        return 1
    elements = size // problem.h.itemsize
    return elements // math.gcd(problem.cols, elements)


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
        lasting: bool = True,
    ) -> None:
        """`strides` are those of dy, of the sum's gradient (None: there is none) and of what was normalized."""
        self.norm = norm
        self.needs = needs
        self.inplace = inplace
        self.shape = shape
        self.place = Place(device, lasting)
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
        turns, sector_turns = (1 if needs.dresidual else turns_of(problem, layout, size) for size in (16, 32))
        self.problem = replace(
            problem, rows=layout.rows, lanes=layout.lanes, dense=layout.is_dense(problem.cols),
            turns=turns, sector_turns=sector_turns,
        )  # fmt: skip
        self._has_dsum = dsum is not None
        affine = (layout.lanes, problem.cols) if problem.per_lane else (problem.cols,)
        self._like_dx = outline(shape, problem.x)
        self._like_dresidual = self._like_dweight = self._like_dbias = None
        if needs.dresidual and problem.residual is not None:
            self._like_dresidual = outline(shape, problem.residual)
        if needs.dweight and problem.weight is not None:
            self._like_dweight = outline(affine, problem.weight)
        if needs.dbias and problem.bias is not None:
            self._like_dbias = outline(affine, problem.bias)
        self._align = layout.align(problem.cols)
        #: What addresses are multiples of where rows are taken in turns. Else they need be no more than rows are.
        self._vector = self._align if turns == 1 else 16 // problem.h.itemsize
        self._ready: dict[tuple[bool, bool], Any] = {}
        #: All of what a call does in one function, for tensors as nearly all are.
        self._whole: Call | None = None

    def align(self, aligned: bool) -> int:
        return self._align if aligned else 1

    def plan(self, aligned: bool = True, rows: int | None = None, in_turns: bool = True) -> Plan:
        """For its own number of rows, or for another; `in_turns` if addresses are such that they may be taken so."""
        problem = self.problem if rows is None else replace(self.problem, rows=rows)
        if not (aligned and in_turns):
            problem = replace(problem, turns=1, sector_turns=1)
        both = self.needs.dx and (self.needs.dweight or self.needs.dbias)
        return backward_plans.backward_plan(
            problem, device_of(self.place.device), self.norm.centred, self.align(aligned), both and not self.inplace
        )

    def __call__(
        self, dy: Tensor, dsum: Tensor | None, h: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor
    ) -> Gradients:
        """dx, dresidual, dweight, dbias; what is not needed is None."""
        if self._whole is not None:
            results = self._whole(dy, dsum, h, weight, mean, rstd)
            if results is not None:
                return results
        place, like_dweight, like_dbias = self.place, self._like_dweight, self._like_dbias
        if place.is_elsewhere():
            with torch.cuda.device(place.device):
                return self(dy, dsum, h, weight, mean, rstd)
        if self.empty:
            return self._of_nothing(dy, h)
        if self.copies:
            dy, h = dy.contiguous(), h.contiguous()
            dsum = None if dsum is None else dsum.contiguous()
        dx = dresidual = dweight = dbias = None
        if self.needs.dx:
            dx = dy if self.inplace else place.empty(self._like_dx)
        if self._like_dresidual is not None:
            dresidual = place.empty(self._like_dresidual)
        tensors = (dy, dsum, h, weight, mean, rstd, dx, dresidual)
        handles, in_turns = place.handles(tensors, self._vector)
        aligned = in_turns or (self._vector != self._align and place.handles(tensors, self._align)[1])
        ready = self._ready.get((aligned, in_turns))
        if ready is None:
            ready = self._ready[aligned, in_turns] = self._prepare(aligned, in_turns)
            launches, like_partials, like_mailbox = ready
            if in_turns and like_mailbox is None and not self.copies and not self.inplace:
                self._whole = self._in_one(launches, like_partials)
                del dx, dresidual, tensors  # it makes its own
                return self(dy, dsum, h, weight, mean, rstd)
        launches, like_partials, like_mailbox = ready
        dweights = dbiases = mailbox = None
        if like_dweight is not None:
            dweight = place.empty(like_dweight)
            dweights = None if like_partials is None else place.empty(like_partials)
        if like_dbias is not None:
            dbias = place.empty(like_dbias)
            dbiases = None if like_partials is None else place.empty(like_partials)
        stream = place.stream()
        if like_mailbox is not None:
            mailbox = place.filled(like_mailbox, 0, stream)
        handles += place.own_handles((dweights, dbiases, mailbox, dweight, dbias))
        for launch, chosen in launches:
            launch(stream, *(handles if chosen is None else [handles[index] for index in chosen]))
        return dx, dresidual, dweight, dbias

    def _in_one(self, launches: list[tuple[Launch, list[int] | None]], like_partials: Tensor | None) -> Call | None:
        """The whole of a call, where nothing has to be filled or copied for it."""
        index, problem = self.place.index, self.problem
        if index is None:
            return None
        inputs = (
            problem.y, problem.sum if self._has_dsum else None, problem.h, problem.weight,
            torch.float32 if self.norm.centred else None, torch.float32,
        )  # fmt: skip
        outputs = (
            self._like_dx if self.needs.dx else None, self._like_dresidual,
            None if self._like_dweight is None else like_partials, None if self._like_dbias is None else like_partials,
            self._like_dweight, self._like_dbias,
        )  # fmt: skip
        tensors = sum(each is not None for each in (*inputs, *outputs))
        parts = [(launch, range(tensors) if chosen is None else chosen) for launch, chosen in launches]
        return whole_call(parts, tensors, len(inputs), outputs, (0, 1, 4, 5), index)

    def _of_nothing(self, dy: Tensor, h: Tensor) -> Gradients:
        """The gradients where there is not one element: sums over no rows are zero."""
        place = self.place
        dx = place.empty(self._like_dx) if not self.inplace else dy
        dresidual = None if self._like_dresidual is None else place.empty(self._like_dresidual)
        dweight = None if self._like_dweight is None else torch.zeros_like(self._like_dweight, device=place.device)
        dbias = None if self._like_dbias is None else torch.zeros_like(self._like_dbias, device=place.device)
        return dx if self.needs.dx else None, dresidual, dweight, dbias

    def _prepare(
        self, aligned: bool, in_turns: bool = True
    ) -> tuple[list[tuple[Launch, list[int] | None]], Tensor | None, Tensor | None]:
        """Launches, each with the tensors it takes (None: all); what partials and a mailbox are made from, if any."""
        align = self.align(aligned)
        # Another row count may get other kernels. They are compiled now, so that no later call waits for them.
        device, centred = device_of(self.place.device), self.norm.centred
        counts = backward_plans.row_counts_apart(self.problem, device, centred, align)
        twins = [self.steps(self.plan(aligned, rows, in_turns), align)[0] for rows in counts]
        steps, partial_rows, words = self.steps(self.plan(aligned, None, in_turns), align)
        make_kernels([step for each in (*twins, steps) for step in each], self.place.device)
        absent = {"dweights", "dbiases"} if partial_rows == 0 else set()
        absent |= {"mailbox"} if words == 0 else set()
        present = [name for name in BACKWARD_TENSORS if self._dtype(name) is not None and name not in absent]
        launches = []
        for step in steps:
            chosen = [present.index(name) for name in step.names if name in present]
            launch = step.compiled(self.place.device)(step.plan.programs, step.scalars)
            launches.append((launch, None if chosen == list(range(len(present))) else chosen))
        like_partials = outline((partial_rows, self.problem.cols), torch.float32) if partial_rows else None
        like_mailbox = outline((words,), word_dtype(self.norm)) if words else None
        return launches, like_partials, like_mailbox

    def steps(self, plan: Plan, align: int) -> tuple[list[Step], int, int]:
        """The launches, one after the other; rows of partial sums; words of the mailbox."""
        problem, norm, needs = self.problem, self.norm, self.needs
        kept = switches(norm, problem) | {"ALIGN": align}
        dy, dsum, h, dx, dresidual = self.layout.strides
        affine_lane = problem.cols // align if problem.per_lane else 0
        cols = problem.cols // align
        wants_affine = needs.dweight or needs.dbias
        statistics = ["mean", "rstd"]
        partial_rows = mailbox = 0
        steps: list[Step] = []

        def add(
            kernel: Kernel, names: list[str], scalars: tuple[Any, ...], constants: dict[str, Any], how: Plan
        ) -> None:
            dtypes = tuple(self._dtype(name) for name in names)
            steps.append(Step(kernel, tuple(names), dtypes, constants, scalars, how))

        every = ["dy", "dsum", "h", "weight", *statistics, "dx", "dresidual", "dweights", "dbiases"]
        statistic = stat_strides(self.layout, 4, problem.cols)
        strides = divided(align, (dy, dsum, h, dx, dresidual)) + statistic
        # In turns places are counted from 16 bytes, or from 32 where these are what rows have in common.
        vector = (16 if plan.turns == problem.turns else 32) // problem.h.itemsize
        turn_row = plan.turns * problem.cols // vector
        in_turns = {key: kept[key] for key in kept if key != "LANED"} | {"TURNS": plan.turns, "ALIGN": vector}
        if plan.schedule == "few":
            columns = column_sums.few_columns_plan(problem, plan.programs // plan.slices)
            warps, side = self._lies_over(plan, align)
            names = ["dy", "dsum", "h", "weight", *statistics, "dx", "dresidual", "dweight", "dbias"]
            scalars = (*strides, problem.rows, problem.lanes, cols, norm.offset)
            constants = kept | {
                "ROWS": columns.rows, "COLS": columns.block, "BLOCK": plan.block, "BLOCKS": plan.blocks,
                "EVEN": plan.is_even(problem.cols), "SLICES": plan.slices, "UNIT": plan.unit,
                "PACKED": plans.is_packed(plan, align, backward=True), "WARPS": warps, "SIDE": side,
            }  # fmt: skip
            beside = -(-columns.programs // plan.slices) * plan.slices  # whole clusters of them
            add(few_backward, names, scalars, constants, replace(plan, programs=plan.programs + beside))
        elif plan.schedule == "few_split":
            mailbox = problem.rows * problem.lanes * plan.slices
            names = ["dy", "dsum", "h", "weight", *statistics, "dx", "dresidual", "dweight", "dbias", "mailbox"]
            scalars = (*strides, problem.rows, problem.lanes, cols, plan.slices, norm.offset)
            constants = kept | {
                "ROWS": plan.rows, "BLOCK": plan.block, "BLOCKS": plan.blocks, "VECTOR": plan.unit,
                "PACKED": plans.is_packed(plan, align, backward=True), "PEERS": max(32, power_of_two(plan.slices)),
            }  # fmt: skip
            add(few_split_backward, names, scalars, constants, plan)
        elif plan.schedule == "tile":
            partial_rows = plan.programs
            warps, side = self._lies_over(plan, align)
            sizes = itemsize(problem.weight), problem.h.itemsize
            scalars = (
                *strides, affine_lane, problem.rows, problem.lanes, cols, plan.programs // problem.lanes, norm.offset,
            )  # fmt: skip
            constants = kept | {
                "ROWS": plan.rows, "BLOCK": plan.block, "BLOCKS": plan.blocks, "EVEN": problem.cols % plan.block == 0,
                "PACKED": plans.is_packed(plan, align, backward=True), "STAGES": plan.stages,
                "WARPS": warps, "SIDE": side,
                "DENSE": self.layout.is_dense(problem.cols) and backward_plans.by_constants(problem, norm.centred),
                "OVER_ROWS": plan.lies_otherwise(min(align, 16 // problem.h.itemsize), *sizes),
            }  # fmt: skip
            add(tile_backward, every, scalars, constants, plan)
        elif plan.schedule == "threads":
            partial_rows = plan.programs * plan.warps
            constants = {key: kept[key] for key in kept if key != "LANED"} | {
                "COLS": problem.cols, "CHUNKS": plans.chunks_of(plan, problem), "SLOT": plans.slot_of(plan, problem),
                "STAGES": plan.stages,
            }  # fmt: skip
            names = [name for name in every if name != "dresidual"]
            add(threads_backward, names, (problem.rows, plan.programs, norm.offset), constants, plan)
        elif plan.schedule == "turns":
            partial_rows = plan.programs
            warps, side = self._lies_over(plan, vector)
            scalars = (turn_row, turn_row, problem.rows, problem.cols, plan.programs // plan.turns, norm.offset)
            constants = in_turns | {
                "ROWS": plan.rows, "BLOCK": plan.block, "BLOCKS": plan.blocks, "WHOLE": problem.cols // plan.block - 1,
                "PACKED": plans.is_packed(plan, vector, backward=True), "STAGES": plan.stages,
                "WARPS": warps, "SIDE": side,
            }  # fmt: skip
            add(turns_backward, [name for name in every if name != "dresidual"], scalars, constants, plan)
        elif plan.schedule == "split_turns" and needs.dx:
            partial_rows = plan.programs // plan.slices
            mailbox = problem.rows * plan.slices
            scalars = (turn_row, turn_row, problem.rows, problem.cols, plan.slices, partial_rows, norm.offset)
            constants = in_turns | {"BLOCK": plan.block, "PEERS": power_of_two(plan.slices), "STAGES": plan.stages}
            names = [name for name in (*every, "mailbox") if name != "dresidual"]
            add(split_turns_backward, names, scalars, constants, plan)
        elif plan.schedule == "split" and needs.dx:
            partial_rows = plan.programs // plan.slices
            mailbox = problem.rows * problem.lanes * plan.slices
            scalars = (*strides, problem.rows, problem.lanes, cols, plan.slices, partial_rows, norm.offset)
            constants = kept | {"BLOCK": plan.block, "PEERS": power_of_two(plan.slices), "STAGES": plan.stages}
            add(split_backward, [*every, "mailbox"], scalars, constants, plan)
        elif plan.schedule in ("ring", "ring_turns") and needs.dx:
            groups, partial_rows = plan.programs // plan.slices, plan.partials
            mailbox = (problem.rows + (partial_rows if norm.centred else 0)) * plan.slices
            row_strides, taken = divided(align, (dy, h, dx))[::2], kept | {"TURNS": 1}
            if plan.turns > 1:
                row_strides, taken, cols = (turn_row,) * 3, in_turns, problem.cols
            scalars = (*row_strides, problem.rows, cols, plan.slices, groups, partial_rows, norm.offset)
            constants = {key: taken[key] for key in taken if key != "LANED"} | {
                "BLOCK": plan.block, "PEERS": power_of_two(plan.slices), "STAGES": plan.stages,
            }  # fmt: skip
            names = ["dy", "h", "weight", *statistics, "dx", "dweights", "dbiases", "mailbox"]
            add(ring_backward, names, scalars, constants, plan)
        else:
            if wants_affine:  # before dx, which may be written over dy
                how = column_sums.affine_plan(problem, device_of(self.place.device))
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
        if wants_affine and partial_rows:
            lanes = problem.lanes if problem.per_lane else 1
            how = column_sums.partials_plan(lanes, problem.cols, needs.dweight + needs.dbias)
            # What it reads and writes is dense, whatever the strides of the tensors above.
            align = Layout(1, 1, ()).align(problem.cols)
            constants = {
                "LANED": lanes > 1, "ROWS": how.rows, "LOADS": how.stages, "BLOCK": how.block, "ALIGN": align,
            }  # fmt: skip
            scalars = (partial_rows // lanes, lanes, problem.cols // align)
            add(sum_partials, ["dweights", "dbiases", "dweight", "dbias"], scalars, constants, how)
        return steps, partial_rows if wants_affine else 0, mailbox

    def _lies_over(self, plan: Plan, align: int) -> tuple[int, int]:
        # A single sum is no sooner there so, unless a thread has much to hold: 19.6 us against 18.5 at 2,048 x 4,096,
        # but 4.9 against 5.6 at 128 x 8,192.
        if not self.norm.centred and (plan.rows > 1 or plan.blocks < 3):
            return 1, 1
        rows = [self._dtype(name) for name in ("dy", "dsum", "h", "weight", "dx", "dresidual")]
        return plans.lies_over(plan, align, *rows)

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
