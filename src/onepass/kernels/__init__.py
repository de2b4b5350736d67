"""The kernels by name. A module of theirs is imported where one of its kernels is compiled, and brings Triton; a
process that finds on disk what it needs does without both.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Kernel:
    module: str
    name: str
    gluon: bool = False  # written in Gluon, which not every Triton has

    @property
    def function(self) -> Any:
        """As Triton has it."""
        return getattr(import_module(f"{__name__}.{self.module}"), self.name)


tile_forward = Kernel("tile", "tile_forward")
tile_backward = Kernel("tile", "tile_backward")
stream_forward = Kernel("stream", "stream_forward")
stream_backward = Kernel("stream", "stream_backward")
stream_backward_affine = Kernel("stream", "stream_backward_affine")
split_forward = Kernel("split", "split_forward")
split_backward = Kernel("split", "split_backward")
split_turns_backward = Kernel("split_turns", "split_turns_backward")
turns_backward = Kernel("turns", "turns_backward")
few_backward = Kernel("few", "few_backward")
few_split_backward = Kernel("few_split", "few_split_backward", gluon=True)
ring_backward = Kernel("ring", "ring_backward", gluon=True)
odd_forward = Kernel("odd", "odd_forward", gluon=True)
odd_split_forward = Kernel("odd_split", "odd_split_forward", gluon=True)
flat_forward = Kernel("flat", "flat_forward", gluon=True)
threads_forward = Kernel("threads", "threads_forward", gluon=True)
threads_backward = Kernel("threads", "threads_backward", gluon=True)
sum_partials = Kernel("reduce", "sum_partials")
columnwise_forward = Kernel("columnwise", "columnwise_forward")
staged_forward = Kernel("staged", "staged_forward", gluon=True)
transpose_bytes = Kernel("columnwise", "transpose_bytes")
