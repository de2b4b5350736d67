"""What passes from tensors to kernels: addresses, strides, switches. Shared by the forward and the backward call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from onepass.kernels import Kernel
from onepass.pages import filled
from onepass.plan import launch
from onepass.plan.launch import Bind, gather, kernel
from onepass.plan.layout import Layout, aligned_bytes
from onepass.plan.plans import Plan
from onepass.plan.workers import compile_at_once
from onepass.spec import Norm, Problem


@dataclass(frozen=True)
class Step:
    """One launch of a call: the kernel, what it is compiled for, the tensors it takes, and the numbers behind them."""

    kernel: Kernel
    names: tuple[str, ...]
    dtypes: tuple[torch.dtype | None, ...]  # of those tensors; None: the call has no such tensor
    constants: Mapping[str, Any]
    scalars: tuple[Any, ...]
    plan: Plan

    @property
    def cooperative(self) -> bool:
        """Whether all its programs must run at the same time."""
        return self.plan.together

    @property
    def exchanges(self) -> bool:
        """Whether its programs exchange sums through a mailbox."""
        return "mailbox" in self.names

    @property
    def cluster(self) -> int:
        """Programs that share a row, and run at the same time because they are a cluster."""
        return self.plan.slices if self.plan.schedule in ("tile", "few") else 1

    def compiled(self, device: torch.device) -> Bind:
        """Or found."""
        plan = self.plan
        return kernel(
            self.kernel, self.dtypes, self.constants, warps=plan.warps, device=device, registers=plan.registers,
            cooperative=self.cooperative, cluster=self.cluster, exchanges=self.exchanges,
        )  # fmt: skip


def make_kernels(steps: Sequence[Step], device: torch.device) -> None:
    """Compiles the kernels of all steps, or finds them: those that have to be compiled at the same time."""
    with gather() as kernels:
        for step in steps:
            step.compiled(device)
    compile_at_once(kernels)
    for step in steps:
        step.compiled(device)


class Place:
    """Where a call runs: a GPU, or Triton's interpreter.

    `lasting`: memory may be kept from one call to the next. Not by what a graph of torch.compile calls: it may be run
    on memory of its own, for CUDA graphs, in which nothing else may be left behind.

    What it asks of PyTorch here is asked at every call, so it goes by the short ways: `torch.cuda.current_device()` and
    `torch.cuda.current_stream()` take microseconds.
    """

    def __init__(self, device: torch.device, lasting: bool = True) -> None:
        self.device = device
        self.lasting = lasting
        self.index = device.index if device.type == "cuda" else None

    def is_elsewhere(self) -> bool:
        """Whether another GPU than this one is current."""
        return self.index is not None and torch._C._cuda_getDevice() != self.index

    def stream(self) -> int:
        return 0 if self.index is None else torch._C._cuda_getCurrentRawStream(self.index)

    def handles(self, tensors: Sequence[Tensor | None], align: int) -> tuple[list[Any], bool]:
        """What kernels are given for those tensors that are there, and whether all are aligned to `align` elements.

        On a GPU that is their addresses; in the interpreter, the tensors themselves.
        """
        addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None]
        bits = 0
        for address in addresses:
            bits |= address
        # 16 bytes are enough for any `align`, and what nearly all tensors have; else each is looked at by itself.
        aligned = bits & 15 == 0 or all(
            tensor is None or tensor.data_ptr() % aligned_bytes(tensor.dtype, align) == 0 for tensor in tensors
        )
        if self.index is None:
            return [tensor for tensor in tensors if tensor is not None], aligned
        return addresses, aligned

    def own_handles(self, tensors: Sequence[Tensor | None]) -> list[Any]:
        """The same for tensors that were made for the call, which are aligned."""
        if self.index is None:
            return [tensor for tensor in tensors if tensor is not None]
        return [tensor.data_ptr() for tensor in tensors if tensor is not None]

    def empty(self, like: Tensor) -> Tensor:
        """A dense tensor here, of that shape and dtype."""
        if self.index is None:
            return torch.empty(like.shape, dtype=like.dtype, device=self.device)
        made: Tensor = launch.empty_strided(*launch.kind_of(like))
        return made

    def filled(self, like: Tensor, bits: int, stream: int) -> Tensor:
        """The same, of words whose bits are 0, or 1 where `bits` is -1, for a call on `stream`, which is current."""
        return filled(like, self.device, bits, stream, self.lasting)

    def element(self, dtype: torch.dtype) -> Tensor:
        """One that nobody reads or writes."""
        return _element(dtype, self.device) if self.lasting else torch.empty((), dtype=dtype, device=self.device)


def outline(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What `empty` and `filled` make a tensor from. It has no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


@cache
def _element(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((), dtype=dtype, device=device)


def switches(norm: Norm, problem: Problem) -> dict[str, Any]:
    """The constexprs that come straight from the Norm and the Problem."""
    return {
        "CENTRED": norm.centred,
        "SHIFTED": norm.offset != 0.0,
        "LANED": problem.lanes > 1,
        "X_HAT": norm.x_hat_dtype(problem.x, problem.weight),
        "NARROW": norm.narrow_dtype(problem.x),
    }


def word_dtype(norm: Norm) -> torch.dtype:
    """A word of the mailbox: one fp32 sum, or the two of a centred norm."""
    return torch.int64 if norm.centred else torch.int32


def stat_strides(layout: Layout, dense: int, cols: int) -> tuple[int, int]:
    """Strides of mean and rstd, one value a row in the tensors' own order: those of a dense tensor, in rows."""
    row, lane = layout.strides[dense]
    return row // cols, lane // cols


def divided(align: int, strides: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Strides as kernels take them: row and lane of each tensor, in units of `align` elements."""
    return tuple(step // align for pair in strides for step in pair)
