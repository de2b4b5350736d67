"""Clocks: how long a call takes, in three senses, each a list of samples in microseconds.

    gpu    the sum of the kernels' own durations, from the profiler, with a cold L2
    call   from the first kernel's start to the last one's end, by events, behind a blocking kernel, with a cold L2
    host   what it costs the CPU to issue the call

On a CPU there is one sense, the wall time of the call, which goes by the name of `call`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Protocol

Call = Callable[[], object]

#: Written before each call so that nothing of its inputs is left in the L2: eight times an H200's.
FLUSH_BYTES = 512 << 20
#: The flush writes bytes, and nothing that is measured does, so its kernel's name tells one call from the next.
FLUSH_KERNEL = "FillFunctor<unsigned char>"
#: How long the blocking kernel holds the GPU while the host issues the call: cycles, about 0.2 ms.
BLOCKING_CYCLES = 400_000


class Clock(Protocol):
    kind: str

    def samples(self, call: Call, count: int) -> list[float]: ...

    def finish(self) -> None:
        """Wait for calls that were issued and still run."""


class WallClock:
    """The time of a call on a CPU."""

    kind = "call"

    def finish(self) -> None:
        pass

    def samples(self, call: Call, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) / 1e3)
        return taken


class _GpuClock:
    def finish(self) -> None:
        import torch

        torch.cuda.synchronize()


class _ColdClock(_GpuClock):
    """A clock before whose calls nothing of their inputs is left in the L2."""

    def __init__(self) -> None:
        import torch

        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._driver = ctypes.CDLL("libcuda.so.1")

    def cool(self) -> None:
        """Empties the L2 of what is to be read, also of lines that a kernel marked `evict_last`.

        Such lines, and torch.compile's kernels make them, outlive any flush: 8 MiB read so take 3.3 us when they are
        read again, where they take 4.6 from memory. The driver makes them ordinary lines again, and then they go.
        """
        import torch

        torch.cuda.synchronize()
        self._driver.cuCtxResetPersistingL2Cache()
        self.flush.zero_()


class KernelClock(_ColdClock):
    kind = "gpu"

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0  # of the last call that was timed

    def samples(self, call: Call, count: int) -> list[float]:
        import torch
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(count):
                self.cool()
                call()
            torch.cuda.synchronize()
        calls: list[list[float]] = []
        for event in sorted(profiler.events(), key=lambda event: event.time_range.start):
            if FLUSH_KERNEL in event.name:
                calls.append([])
            elif calls and event.device_type == torch.autograd.DeviceType.CUDA:
                calls[-1].append(event.time_range.elapsed_us())
        if len(calls) != count:
            raise RuntimeError(f"the profiler saw {len(calls)} of {count} calls")
        self.kernels = len(calls[-1])
        return [sum(durations) for durations in calls]


class EventClock(_ColdClock):
    kind = "call"

    def samples(self, call: Call, count: int) -> list[float]:
        import torch

        pairs = []
        for _ in range(count):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.cool()
            torch.cuda._sleep(BLOCKING_CYCLES)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            pairs.append(start.elapsed_time(end) * 1e3)
        return pairs


class HostClock(_GpuClock):
    kind = "host"

    def samples(self, call: Call, count: int) -> list[float]:
        import torch

        taken = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) / 1e3)
        torch.cuda.synchronize()
        return taken


def clocks_for(device: str) -> list[Clock]:
    return [KernelClock(), EventClock(), HostClock()] if device == "cuda" else [WallClock()]
