"""Kernels compiled ahead, by processes of their own, lie on disk under the key by which a call looks for them."""

from __future__ import annotations

import os

import pytest
import torch

from onepass.kernels import sum_partials
from onepass.plan import binaries, launch, workers
from onepass.plan.launch import gather, kernel

HOPPER = (9, 0)
F32 = torch.float32


@pytest.fixture(autouse=True)
def three_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    monkeypatch.setattr(launch, "_compiled", {})  # what other tests compiled would not be noted
    monkeypatch.setattr(workers, "MOST", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64))
    workers._workers.cache_clear()
    yield
    idle = workers._workers()
    for _ in range(3):
        worker = idle.get()
        worker.stdin.close()
        assert worker.wait(20) == 0, "it ends with its orders"
    workers._workers.cache_clear()


def wanted(rows, block):
    """A sum of partials in tiles of that size, noted but not compiled."""
    constants = {"LANED": False, "ROWS": rows, "LOADS": 1, "BLOCK": block, "ALIGN": 16}
    with gather() as noted:
        bind = kernel(
            sum_partials, (F32, None, F32, None), constants, warps=4, device=torch.device("cuda", 0)
        )  # fmt: skip
        bind(1, ())(0)  # nothing is launched
    return noted[0]


def test_what_was_noted_is_compiled_and_kept_once(tmp_path):
    kernels = [wanted(rows, block) for rows in (16, 32) for block in (8, 16, 32, 64)]
    # One that no compiler takes, and one that is there twice.
    workers.compile_all([*kernels, wanted(3, 8), kernels[0]], HOPPER)
    for noted in kernels:
        found = binaries.find(binaries.key_of(*noted, HOPPER))
        assert found is not None and found.cubin.startswith(b"\x7fELF")
    assert len(list((tmp_path / "kernels").iterdir())) == len(kernels)
