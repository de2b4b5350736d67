"""What launches here: our launcher, and not the fallback that would hide its failure; and kernels from disk."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

import onepass
from gpu.cases import CLUSTERS, PLAIN, differentiated, ours, tensors_of
from gpu.exact import DEVICE, assert_same_bits
from onepass.checks import Options
from onepass.eager import call_of
from onepass.plan import compiler, in_force, launch
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
    compile_kernel = compiler.compile_kernel
    monkeypatch.setattr(compiler, "compile_kernel", lambda *how: compiled.append(1) or compile_kernel(*how))
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


CALL = """
import sys, torch, onepass
x, weight = torch.randn(300, 512, device="cuda", requires_grad=True), torch.ones(512, device="cuda", requires_grad=True)
y = onepass.rms_norm(x, weight)
y.sum().backward()
assert (y - x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()).abs().max() < 1e-5
print("triton" in sys.modules)
"""


def test_a_process_that_finds_its_kernels_does_without_triton(tmp_path: Path) -> None:
    environment = os.environ | {"ONEPASS_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for compiles in (True, False):
        ran = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True)
        assert ran.stdout.strip() == str(compiles), ran.stderr


@pytest.mark.parametrize("name", ["few rows", "tile"])
def test_a_call_is_one_function_for_tensors_as_nearly_all_are(name: str) -> None:
    """And not for those that begin elsewhere, whose results are the same."""
    cols, rows = 512, 40 if name == "few rows" else 40_000
    x, room = torch.randn(rows, cols, device=DEVICE), torch.empty(rows * cols + 4, device=DEVICE)
    weight = torch.randn(cols, device=DEVICE)
    dy = torch.randn(rows, cols, device=DEVICE)
    options = Options(False, 1e-6)
    results = []
    for begin in (0, 4, 2):
        h = room[begin : begin + rows * cols].view(rows, cols).copy_(x)
        call = call_of(options, h, weight, None, None)
        y, _, _, rstd = call(h, weight, None, None, True)
        assert rstd is not None
        whole = call._whole[True]
        assert whole is not None
        backward = call.backwards.wanting((True, True, False, False), dy, None, h)
        gradients = backward(dy, None, h, weight, None, rstd)
        assert backward._whole is not None
        takes = whole(h, None, weight, None) is not None, backward._whole(dy, None, h, weight, None, rstd) is not None
        assert takes == (begin % 4 == 0, begin % 4 == 0)
        results.append((y, *gradients))
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-3)


def test_a_thread_that_has_done_nothing_yet_can_call() -> None:
    x, weight = torch.randn(300, 512, device=DEVICE), torch.randn(512, device=DEVICE)
    onepass.rms_norm(x, weight)
    made: list[torch.Tensor] = []
    thread = Thread(target=lambda: made.append(onepass.rms_norm(x, weight)))
    thread.start()
    thread.join()
    assert_same_bits(made[0], onepass.rms_norm(x, weight))
