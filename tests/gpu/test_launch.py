"""What launches here: our launcher, and not the fallback that would hide its failure; and kernels from disk."""

from pathlib import Path

import pytest
import torch

from gpu.cases import PLAIN, differentiated, ours, tensors_of
from gpu.exact import assert_same_bits
from onepass.plan import launch, planner
from onepass.plan.launcher import launcher


def test_the_c_launcher_is_there() -> None:
    assert launcher() is not None


def test_a_kernel_from_disk_is_the_one_that_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    compiled = []
    compile_kernel = launch._compile
    monkeypatch.setattr(launch, "_compile", lambda *how: compiled.append(1) or compile_kernel(*how))
    tensors = tensors_of(PLAIN["few rows"])
    results = []
    for _ in range(2):  # as two processes would
        monkeypatch.setattr(launch, "_compiled", {})
        with planner.override():  # thresholds of its own, though the same ones: no call is ready yet
            results.append(differentiated(ours(PLAIN["few rows"]), tensors))
    kernels = len(list((tmp_path / "kernels").iterdir()))
    assert len(compiled) == kernels > 1
    for name, result in results[0].items():
        assert_same_bits(results[1][name], result)
    torch.cuda.synchronize()
