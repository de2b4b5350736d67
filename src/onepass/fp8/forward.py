"""A forward call whose output is FP8, with everything worked out that does not depend on the data, as in forward.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onepass import reference
from onepass.forward import QUANTIZED_TENSORS, Forward, Quantizing
from onepass.fp8 import definition
from onepass.fp8.layouts import TILE_GROUPS, TILE_ROWS, TMA_ROWS, round_up
from onepass.fp8.result import Quantized
from onepass.fp8.spec import Fp8
from onepass.handover import Step, make_kernels, outline, switches, word_dtype
from onepass.kernels import columnwise_forward, staged_forward, transpose_bytes
from onepass.plan import both_ways, forward_plans, in_force
from onepass.plan.device import device_of
from onepass.plan.launch import Launch
from onepass.plan.layout import contiguous_strides, layout_of
from onepass.plan.plans import Plan
from onepass.spec import Norm, Problem

#: Divisions by an amax of no less than this need no care for what is subnormal; as kernels/quantize.py has it.
FLOORED_FROM = 2.0**-60

#: Rows of a tile of the transpose, as kernels/columnwise.py has them; and a multiple of how many rows there must be for
#: it to be stored 16 bytes at once. FP8 GEMMs ask for no less.
TILE = 128
LONG_BY = 16
#: What the number of rows may be a multiple of, for kernels that know it.
ROWS_BY = (1, LONG_BY, TILE)

#: Switches of the kernel for rows that the one for both ways does not have.
ROWS_ALONE = ("CHAINS", "WARPS", "SLICES", "UNIT", "AHEAD", "AT_ONCE", "PROMPT", "SUM_FIRST", "DENSE")

#: Whose amax a scale is, as the kernels call it; the tensor's takes two launches.
KINDS = {"static": "given", "delayed": "given", "token": "row", "block": "group", "mx": "group"}


class QuantizedForward(Forward):
    """One normalization and quantization, ready to run on tensors of the shapes, strides and dtypes it was built for.

    It is built for the options of an Fp8 (`Fp8.key`); its tensors come with each call.
    """

    def __init__(
        self, norm: Norm, problem: Problem, x: Tensor, residual: Tensor | None, fp8: Fp8, lasting: bool = True
    ) -> None:
        # For a scale of the row, programs that share it would have to wait once more; without a norm, for nothing.
        walked = fp8.scaling == "token" or norm.identity
        asked = replace(problem, quantized=fp8.scaling, group=fp8.block or 1, walked=walked)
        super().__init__(norm, asked, x, residual, lasting=lasting)
        self.fp8 = fp8
        self.has_y = fp8.also_unquantized
        if fp8.columnwise and self.problem.lanes > 1 and not problem.per_lane:
            # Rows of the transpose are M long, whatever dimensions M was: they need one number each.
            self.copies = True
            dense = layout_of(x.shape, [contiguous_strides(x.shape)] * 3)
            assert dense is not None
            self.layout = dense
            self.problem = replace(self.problem, rows=dense.rows, lanes=dense.lanes)
            self._align = dense.align(problem.cols)
        rows = self.problem.rows * self.problem.lanes
        self._like_q = outline(x.shape, fp8.dtype)
        self._like_amax = outline((), torch.float32)
        self._scales = Scales(fp8, tuple(x.shape[:-1]), rows, problem.cols)
        self._column_scales = Scales(fp8, (problem.cols,), problem.cols, rows)
        self._shape = x.shape

    def __call__(  # type: ignore[override]
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, stats: bool, fp8: Fp8
    ) -> tuple[Quantized, Tensor | None, Tensor | None]:
        """The result, and mean and rstd where they are wanted."""
        place = self.place
        if place.is_elsewhere():
            with torch.cuda.device(place.device):
                return self(x, weight, bias, residual, stats, fp8)
        if self.empty:
            return self._of_nothing(x, weight, bias, residual, stats, fp8)
        if self.copies:
            x = x.contiguous()
            residual = None if residual is None else residual.contiguous()
        y = torch.empty(x.shape, dtype=self.problem.y, device=x.device) if self.has_y else None
        total = None if self._like_sum is None else place.empty(self._like_sum)
        # Groups down columns begin from the rows' statistics, which are waited for; and a tensor's second launch from
        # those of the first, so that it quantizes what amax was found of.
        awaited = fp8.columnwise and fp8.block is not None and not self.norm.identity
        kept = stats or awaited or (fp8.scaling == "tensor" and not self.norm.identity)
        stream = place.stream()

        def statistic() -> Tensor:
            # Those that are waited for are known by their bits (kernels/columnwise.py).
            return place.filled(self._like_statistic, -1, stream) if awaited else place.empty(self._like_statistic)

        mean = statistic() if kept and self.norm.centred else None
        rstd = statistic() if kept else None
        q = place.empty(self._like_q)
        scale = self._scales.make(place.device)
        given = fp8.multiplier if fp8.scale is None else fp8.scale
        amax = fp8.amax
        if fp8.scaling == "tensor":
            amax = place.filled(self._like_amax, 0, stream)
        # Maxima are taken on bits.
        bits = None if amax is None else amax.view(torch.int32)
        _, aligned = place.handles((x, residual, weight, bias, y, total, mean, rstd, q), self._align)
        ready = self._ready.get((aligned, kept))
        if ready is None:
            ready = self._ready[aligned, kept] = self._prepare(aligned, kept)
        tensors = {
            "x": x, "residual": residual, "weight": weight, "bias": bias, "y": y, "sum": total, "mean": mean,
            "rstd": rstd, "q": q, "scale": scale, "given": given, "amax": bits,
        }  # fmt: skip
        data_t = column_scale = None
        if fp8.columnwise:
            data_t, column_scale = self._columns(tensors)
        for launch, names, words in ready:
            tensors["zeros"] = None if words is None else place.filled(words, 0, stream)
            launch(stream, *place.own_handles([tensors[name] for name in names]))
        handed_on = fp8.scale.detach().reshape(()) if fp8.scale is not None else self._scales.seen(scale)
        if fp8.columnwise and fp8.block is None:
            column_scale = handed_on if handed_on.dim() == 0 else handed_on.reshape(1, -1)
        result = Quantized(
            q, handed_on, data_t, column_scale, amax, y, total, block=fp8.block, layout=fp8.layout or "row"
        )
        return result, mean, rstd

    def _columns(self, tensors: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Adds what the transpose is written to; and that as a user sees it, with its scales where it has some."""
        fp8, device = self.fp8, self.place.device
        rows, cols = self.problem.rows * self.problem.lanes, self.problem.cols
        as_rows = fp8.columnwise_order == "rows"
        columns = torch.empty((rows, cols) if as_rows else (cols, rows), dtype=fp8.dtype, device=device)
        tensors["columns"] = columns
        scale = None
        if fp8.block is not None:
            tensors["column_scale"] = self._column_scales.make(device)
            scale = self._column_scales.seen(tensors["column_scale"])
        return columns.t() if as_rows else columns, scale

    def straight(self) -> Tensor:
        """For gradients to come through: as the output would be, but of one element that is nowhere read."""
        return self.place.element(self.problem.y).expand(self._shape)

    def _prepare(self, aligned: bool, stats: bool) -> list[tuple[Launch, list[str], Tensor | None]]:  # type: ignore[override]
        """Launches, each with the tensors it takes and what its words of zeros are made from, if it has some."""
        align, place = self.align(aligned), self.place
        launches = []
        every = self._steps(align, stats)
        # Of several row counts, so that no later call waits for a compiler; its own is the last.
        make_kernels([step for steps in every for step in steps], place.device)
        for *_, step in every:
            bind = step.compiled(place.device)
            names = [name for name, dtype in zip(step.names, step.dtypes, strict=True) if dtype]
            words = 0
            if step.exchanges:
                words, names[-1] = self.problem.rows * self.problem.lanes * step.plan.slices, "zeros"
            elif "zeros" in names:
                words = -(-self.problem.rows * self.problem.lanes // TILE)
            dtype = word_dtype(self.norm) if step.exchanges else torch.int32
            like_words = outline((words,), dtype) if words else None
            launches.append((bind(step.plan.programs, step.scalars), names, like_words))
        return launches

    def _steps(self, align: int, stats: bool) -> list[list[Step]]:
        """The launches, one after the other, each for several row counts."""
        both, tensor = self.fp8.columnwise, self.fp8.scaling == "tensor"
        rowwise: list[tuple[str, bool]] = []
        if tensor:
            rowwise = [("amax", True)] if both else [("amax", True), ("tensor", False)]
        elif not both:
            rowwise = [(KINDS[self.fp8.scaling], True)]
        launches = []
        for kind, keeps in rowwise:
            scaling = "amax" if kind == "amax" else self.fp8.scaling  # nothing but it is found
            problem = replace(self.problem, quantized=scaling)
            how = (device_of(self.place.device), self.norm.centred, align)
            counts = (*forward_plans.row_counts_apart(problem, *how), problem.rows)
            plans = [forward_plans.forward_plan(replace(problem, rows=rows), *how) for rows in counts]
            launches.append([self.step(plan, align, stats, self._quantizing(kind), keeps) for plan in plans])
        if both:
            kind = "tensor" if tensor else KINDS[self.fp8.scaling]
            own = rows_by(self.problem.rows * self.problem.lanes)
            others = [each for each in ROWS_BY if each != own]
            launches.append([self._column_step(align, kind, stats, each) for each in (*others, own)])
        return launches

    def _column_step(self, align: int, kind: str, stats: bool, rows_by: int) -> Step:
        problem, norm, fp8 = self.problem, self.norm, self.fp8
        device = device_of(self.place.device)
        by_rows = both_ways.rows_beside_columns(problem, device, norm.centred, align)
        (x_row, _), *_ = self.layout.strides
        near = x_row * TILE < 1 << 31  # the rows of a tile, from the first one on
        if rows_by == TILE and near and not norm.centred and not norm.identity and fp8.columnwise_order != "rows":
            staged = both_ways.staged_plan(problem, device, by_rows, align)
            if staged is not None:
                return self._staged_step(staged, align)
        tile = both_ways.columnwise_tile(problem, by_rows)
        plan = both_ways.columnwise_plan(problem, by_rows, tile, norm.centred)
        rowwise = self.step(by_rows, align, stats, self._quantizing(kind), keeps=kind != "tensor")
        rows = problem.rows * problem.lanes
        as_rows = fp8.columnwise_order == "rows"
        held = {name: value for name, value in rowwise.constants.items() if name not in ROWS_ALONE}
        constants = {"ROWS": 1, "PACKED": False, "AS_WALKED": False, "AFFINE_FIRST": False} | held | {
            "HELD": by_rows.schedule == "tile", "COLS": tile.cols, "TILES": plan.slices,
            "RAGGED": problem.cols % tile.cols != 0,
            "ROWS_BY": rows_by, "TRANSPOSED": not as_rows,
        }  # fmt: skip
        scale = (torch.uint8 if fp8.scaling == "mx" else torch.float32) if fp8.block is not None else None
        column_row = problem.cols if as_rows else rows if rows_by == 1 else rows // LONG_BY
        scalars = self._scalars(replace(by_rows, schedule="tile"), align, self._quantizing(kind))
        return Step(
            columnwise_forward, (*rowwise.names, "columns", "column_scale", "zeros"),
            (*rowwise.dtypes, fp8.dtype, scale, torch.int32 if scale is None else None), constants,
            (*scalars, column_row, *self._column_scales.strides, plan.stages), plan,
        )  # fmt: skip

    def _staged_step(self, plan: Plan, align: int) -> Step:
        """Both ways from shared memory, where rows are as in the kernel above, for all that it does not serve."""
        problem, norm, fp8 = self.problem, self.norm, self.fp8
        quantizing = self._quantizing("group")
        same = ("ROUND", "BOUNDED", "FLOORED", "ARITHMETIC", "POWER_OF_TWO")
        constants = {name: value for name, value in switches(norm, problem).items() if name not in ("CENTRED", "LANED")}
        constants |= {"BLOCK": plan.block, "BLOCKS": plan.blocks, "EVEN": plan.block * plan.blocks == problem.cols}
        constants |= {"TILES": plan.slices, "ALIGN": align}
        constants |= {name: quantizing.constants[name] for name in same}
        tensors = {
            "x": problem.x, "weight": problem.weight, "y": problem.y if self.has_y else None, "rstd": torch.float32,
            "q": fp8.dtype, "scale": torch.float32, "columns": fp8.dtype, "column_scale": torch.float32,
        }  # fmt: skip
        (x_row, _), _, (y_row, _) = self.layout.strides
        scalars = (
            x_row // align, y_row // align, *quantizing.strides, problem.rows, problem.cols // align, norm.eps,
            norm.offset, *quantizing.numbers, problem.rows // LONG_BY, *self._column_scales.strides, plan.stages,
        )  # fmt: skip
        return Step(staged_forward, tuple(tensors), tuple(tensors.values()), constants, scalars, plan)

    def _quantizing(self, kind: str) -> Quantizing:
        fp8 = self.fp8
        constants = {
            "KIND": kind, "GROUP": fp8.block or 1, "ROUND": self.problem.y if fp8.round_first else None,
            "BOUNDED": fp8.upper_bound is not None, "FLOORED": (fp8.floor or 0.0) >= FLOORED_FROM,
            "ARITHMETIC": fp8.arithmetic, "POWER_OF_TWO": fp8.power_of_two, "E8M0": fp8.scaling == "mx",
            "SWIZZLED": fp8.layout == "swizzled",
        }  # fmt: skip
        stored = {"q": fp8.dtype, "scale": torch.uint8 if fp8.scaling == "mx" else torch.float32}
        present: dict[str, torch.dtype] = {} if kind == "amax" else stored
        if kind == "given":
            present |= {"given": torch.float32}
            if fp8.scale is not None:  # which is handed on as it is
                del present["scale"]
        if fp8.scaling in ("delayed", "tensor"):
            present |= {"amax": torch.int32}
        numbers = (fp8.floor or 0.0, fp8.upper_bound or 0.0, fp8.largest, float(torch.ones(()) / fp8.largest))
        dtypes = tuple(present.get(name) for name in QUANTIZED_TENSORS)
        return Quantizing(constants, dtypes, self._scales.strides, numbers)

    def _of_nothing(self, x: Any, weight: Any, bias: Any, residual: Any, stats: bool, fp8: Fp8) -> Any:
        y, total = reference.normalize(
            self.norm, x, weight, bias, residual, torch.float32, self.problem.sum
        )  # fmt: skip
        mean = self.place.empty(self._like_statistic) if stats and self.norm.centred else None
        rstd = self.place.empty(self._like_statistic) if stats else None
        return definition.quantize(y, fp8, self.problem.y, residual=total), mean, rstd


def rows_by(rows: int) -> int:
    return max(each for each in ROWS_BY if rows % each == 0)


def transpose_step(rows: int, cols: int) -> Step:
    """Bytes alone. Memory of which nothing is known but its address."""
    tile = in_force.thresholds().transpose_tile
    plan = Plan("columnwise", TILE, tile.cols, tile.warps, -(-rows // TILE) * -(-cols // tile.cols))
    align = cols & -cols if cols % 16 else 16
    by = rows_by(rows)
    constants = {"COLS": tile.cols, "RAGGED": cols % tile.cols != 0, "ROWS_BY": by, "ALIGN": align}
    scalars = (rows, cols // align, rows if by == 1 else rows // LONG_BY)
    return Step(transpose_bytes, ("x", "columns"), (torch.uint8, torch.uint8), constants, scalars, plan)


class Scales:
    """How the scales of rows lie, and how a tensor for them is made."""

    def __init__(self, fp8: Fp8, leading: tuple[int, ...], rows: int, cols: int) -> None:
        """`leading` are the dimensions of the rows, as a user sees them."""
        self.fp8 = fp8
        self.dtype = torch.uint8 if fp8.scaling == "mx" else torch.float32
        groups = -(-cols // fp8.block) if fp8.block is not None else 1
        self.rows = rows
        self.shape: tuple[int, ...] = (*leading, groups)
        self.strides = (groups, 1)
        if fp8.scaling in definition.ONE_SCALE:
            self.shape, self.strides = (), (0, 0)
        elif fp8.layout == "tma":
            self.shape, self.strides = (groups, round_up(rows, TMA_ROWS)), (1, round_up(rows, TMA_ROWS))
        elif fp8.layout == "swizzled":
            self.shape = (round_up(rows, TILE_ROWS), round_up(groups, TILE_GROUPS))
            self.strides = (self.shape[1], 0)
        self._padded = fp8.layout == "swizzled" and self.shape != (rows, groups)

    def make(self, device: torch.device) -> Tensor:
        """Padding of the swizzled layout is read by GEMMs, and is 0."""
        make = torch.zeros if self._padded else torch.empty
        return make(self.shape, dtype=self.dtype, device=device)

    def seen(self, scale: Tensor) -> Tensor:
        """As a user sees them."""
        if self.fp8.layout == "tma":
            return scale.t()[: self.rows]
        return scale.view(torch.float8_e8m0fnu) if self.fp8.scaling == "mx" else scale
