"""What launches here: our launcher, and not the fallback that would hide its failure; and kernels from disk."""

from pathlib import Path

import pytest
import torch

import onepass
from gpu.cases import CLUSTERS, PLAIN, differentiated, ours, tensors_of
from gpu.exact import DEVICE, assert_same_bits
from onepass.plan import in_force, launch
from onepass.plan.launcher import launcher


def test_the_c_launcher_is_there() -> None:
    assert launcher() is not None


@pytest.mark.skipif(not CLUSTERS, reason="this GPU has no clusters")
def test_few_wide_rows_are_shared_by_clusters() -> None:
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for shape in ((3, 32768), (32768,)))
    plan = onepass.explain(x, weight)
    assert plan.forward is not None and plan.forward.slices == 8
    assert plan.backward is not None and (plan.backward.schedule, plan.backward.slices) == ("few", 8)


def test_a_kernel_from_disk_is_the_one_that_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    compiled = []
    compile_kernel = launch._compile
    monkeypatch.setattr(launch, "_compile", lambda *how: compiled.append(1) or compile_kernel(*how))
    tensors = tensors_of(PLAIN["few rows"])
    results = []
    for _ in range(2):  # as two processes would
        monkeypatch.setattr(launch, "_compiled", {})
        with in_force.override():  # thresholds of its own, though the same ones: no call is ready yet
            results.append(differentiated(ours(PLAIN["few rows"]), tensors))
    kernels = len(list((tmp_path / "kernels").iterdir()))
    assert len(compiled) == kernels > 1
    for name, result in results[0].items():
        assert_same_bits(results[1][name], result)
    torch.cuda.synchronize()
