"""Tests that need a CUDA GPU: marked `gpu` where there is one, not collected where there is none."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.plan.launch import empty_strided as ORDINARY

# In the interpreter these tests would pass or fail for reasons that have nothing to do with a GPU.
interpreted = os.environ.get("TRITON_INTERPRET", "0") != "0"

# Left out rather than skipped: a skip for each of hundreds of cases would bury the skips that mean something.
collect_ignore_glob = [] if torch.cuda.is_available() and not interpreted else ["*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The hook sees every test of the session, not only those of this folder.
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


class PoisoningTorch:
    """torch, but fresh memory is full of NaN, so that whatever a kernel forgets to write shows.

    Bytes have all their bits set, which is NaN in E4M3, E5M2 and E8M0.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*size: Any, **options: Any) -> torch.Tensor:
        return poisoned(torch.empty(*size, **options))


def empty_strided(*arguments: Any) -> torch.Tensor:
    return poisoned(ORDINARY(*arguments))


def poisoned(fresh: torch.Tensor) -> torch.Tensor:
    return fresh.view(torch.uint8).fill_(255).view(fresh.dtype) if fresh.itemsize == 1 else fresh.fill_(float("nan"))


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every buffer that onepass allocates for a kernel to fill; the fill is in place and costs no memory."""
    monkeypatch.setattr("onepass.fp8.forward.torch", PoisoningTorch())
    monkeypatch.setattr("onepass.plan.launch.empty_strided", empty_strided)
