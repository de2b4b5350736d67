"""How much memory a piece of work takes on the way to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

MIB = 2**20
#: The allocator hands out blocks that are up to this much larger than what was asked for, over a call's few requests.
ROUNDING = 2 * MIB


def measured(work: Callable[[], Result]) -> tuple[Result, int]:
    """The result, and the most bytes that were allocated at once beyond those allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before
