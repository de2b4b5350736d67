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
from onepass.handover import word_dtype
from onepass.plan import planner
from onepass.plan.device import device_of
from onepass.plan.launch import Launch
from onepass.spec import Norm, Problem

#: Whose amax a scale is, as the kernels call it; the tensor's takes two launches.
KINDS = {"static": "given", "delayed": "given", "token": "row", "block": "group", "mx": "group"}


class QuantizedForward(Forward):
    """One normalization and quantization, ready to run on tensors of the shapes, strides and dtypes it was built for.

    It is built for the options of an Fp8 (`Fp8.key`); its tensors come with each call.
    """

    def __init__(self, norm: Norm, problem: Problem, x: Tensor, residual: Tensor | None, fp8: Fp8) -> None:
        group = None if fp8.scaling == "token" else fp8.block or 1
        super().__init__(norm, replace(problem, group=group), x, residual)
        self.fp8 = fp8
        self.has_y = fp8.also_unquantized
        place, rows = self.place, self.problem.rows * self.problem.lanes
        self._like_q = place.like(x.shape, fp8.dtype)
        self._scales = Scales(fp8, tuple(x.shape), rows)
        self._like_straight = place.like(x.shape, problem.y)

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
        total = None if self._like_sum is None else torch.empty_like(self._like_sum)
        mean = torch.empty_like(self._like_statistic) if stats and self.norm.centred else None
        rstd = torch.empty_like(self._like_statistic) if stats else None
        q = torch.empty_like(self._like_q)
        scale = self._scales.make(place.device)
        given = fp8.multiplier if fp8.scale is None else fp8.scale
        amax = fp8.amax
        if fp8.scaling == "tensor":
            amax = torch.zeros((), dtype=torch.float32, device=place.device)
        # Maxima are taken on bits.
        bits = None if amax is None else amax.view(torch.int32)
        _, aligned = place.handles((x, residual, weight, bias, y, total, mean, rstd, q), self._align)
        ready = self._ready.get((aligned, stats))
        if ready is None:
            ready = self._ready[aligned, stats] = self._prepare(aligned, stats)
        tensors = {
            "x": x, "residual": residual, "weight": weight, "bias": bias, "y": y, "sum": total, "mean": mean,
            "rstd": rstd, "q": q, "scale": scale, "given": given, "amax": bits,
        }  # fmt: skip
        for launch, names, like_mailbox in ready:
            chosen = [tensors[name] for name in names]
            if like_mailbox is not None:
                chosen.append(torch.zeros_like(like_mailbox))
            launch(place.stream(), *place.own_handles(chosen))
        handed_on = fp8.scale.detach().reshape(()) if fp8.scale is not None else self._scales.seen(scale)
        result = Quantized(
            q, handed_on, amax=amax, unquantized=y, residual=total, block=fp8.block, layout=fp8.layout or "row"
        )
        return result, mean, rstd

    def straight(self) -> Tensor:
        """For gradients to come through: as the output would be, but of one element that is nowhere read."""
        return self._like_straight

    def _prepare(self, aligned: bool, stats: bool) -> list[tuple[Launch, list[str], Tensor | None]]:  # type: ignore[override]
        """Launches, each with the tensors it takes and what its mailbox is made from, if it has one."""
        align, place = self.align(aligned), self.place
        launches = []
        for kind, keeps in (("amax", True), ("tensor", False)) if self.fp8.scaling == "tensor" else ((None, True),):
            quantizing = self._quantizing(kind or KINDS[self.fp8.scaling])
            for rows in (*planner.row_counts_apart(), self.problem.rows):
                problem = replace(self.problem, rows=rows)
                plan = planner.forward_plan(problem, device_of(place.device), self.norm.centred, align)
                step = self.step(plan, align, stats, quantizing, keeps)
                bind = step.kernel(place.device)
            names = [name for name, dtype in zip(step.names, step.dtypes, strict=True) if dtype and name != "mailbox"]
            words = self.problem.rows * self.problem.lanes * plan.slices
            like_mailbox = place.like((words,), word_dtype(self.norm)) if step.cooperative else None
            launches.append((bind(plan.programs, step.scalars), names, like_mailbox))
        return launches

    def _quantizing(self, kind: str) -> Quantizing:
        fp8 = self.fp8
        constants = {
            "KIND": kind, "GROUP": fp8.block or 1, "ROUND": self.problem.y if fp8.round_first else None,
            "BOUNDED": fp8.upper_bound is not None, "ARITHMETIC": fp8.arithmetic, "POWER_OF_TWO": fp8.power_of_two,
            "E8M0": fp8.scaling == "mx", "SWIZZLED": fp8.layout == "swizzled",
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
        mean = torch.empty_like(self._like_statistic) if stats and self.norm.centred else None
        rstd = torch.empty_like(self._like_statistic) if stats else None
        return definition.quantize(y, fp8, self.problem.y, residual=total), mean, rstd


class Scales:
    """How the scales of rows lie, and how a tensor for them is made."""

    def __init__(self, fp8: Fp8, shape: tuple[int, ...], rows: int) -> None:
        self.fp8 = fp8
        self.dtype = torch.uint8 if fp8.scaling == "mx" else torch.float32
        groups = -(-shape[-1] // fp8.block) if fp8.block is not None else 1
        self.rows, self.groups = rows, groups
        self.shape: tuple[int, ...] = (*shape[:-1], groups)
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
