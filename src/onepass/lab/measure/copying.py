"""The rate of a plain copy: what memory does at a size, where nothing is computed."""

from __future__ import annotations

import statistics

from onepass.lab.measure.clock import Call, Clock

#: A call that launches nothing takes no time by the kernels' clock; rates are then those of a nanosecond.
SHORTEST = 1e-3


def copy_gbps(moved: int, clock: Clock, count: int, device: str) -> float:
    """Of a copy that moves as many bytes, read and written.

    By PyTorch's own copy, which is the driver's, or by an element-wise kernel, whichever is faster: below a few
    megabytes the driver's takes twice as long.
    """
    import torch

    source = torch.randint(0, 2**31 - 1, (max(1, moved // 8),), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    copies: list[Call] = [lambda: target.copy_(source), lambda: torch.bitwise_not(source, out=target)]
    for copy in copies:
        copy()
    fastest = min(statistics.median(clock.samples(copy, count)) for copy in copies)
    return moved / max(fastest, SHORTEST) / 1e3
