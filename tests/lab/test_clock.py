"""Before every call that is timed on a GPU, nothing of its inputs is left in the L2."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from onepass.lab.measure.clock import EventClock, KernelClock


@pytest.mark.parametrize("clock_type", [KernelClock, EventClock])
def test_lines_marked_to_stay_are_made_ordinary_before_the_flush(clock_type, monkeypatch):
    """The other way round they would outlive it; and a kernel that still runs could mark lines after the reset."""
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronize"))
    clock = clock_type.__new__(clock_type)  # without the memory and the driver of a GPU
    clock.flush = SimpleNamespace(zero_=lambda: done.append("flush"))
    clock._driver = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: done.append("reset"))
    clock.cool()
    assert done == ["synchronize", "reset", "flush"]
