"""The kernels of a first call are compiled at the same time, by threads, and whatever goes wrong there is made good."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.compiler.errors import CompilationError

from compiled.test_fp8_machine_code import quantized_forward
from compiled.test_machine_code import RMS, forward_of
from onepass.backward import Backward, Needs
from onepass.fp8 import Fp8
from onepass.handover import Step, make_kernels
from onepass.kernels import sum_partials
from onepass.plan import compiler, launch
from onepass.plan.device import Device
from onepass.plan.plans import Plan

BF16, F32 = torch.bfloat16, torch.float32
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def first_call(h200: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on disk, there are cores, and what is compiled for an H200 is not loaded."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    module = SimpleNamespace(load=lambda *binary: binary, prepare=lambda *arguments: arguments)
    monkeypatch.setattr(launch, "launcher", lambda: module)


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each compilation, Triton's cache not counted."""
    threads: list[threading.Thread] = []

    def note(*, cache_hit: bool, **others: Any) -> None:
        if not cache_hit:
            threads.append(threading.current_thread())

    monkeypatch.setattr(triton.knobs.compilation, "listener", note)
    return threads


def backward() -> None:
    forward, strides = forward_of(RMS, 4096, 4096, BF16), ((4096, 1), None, (4096, 1))
    needs = Needs(True, False, True, False)
    Backward(RMS, forward.problem, forward.shape, forward.place.device, strides, needs)._prepare(True)


def quantized() -> None:
    quantized_forward((4096, 4096), BF16, Fp8("tensor"))._prepare(True, True)


def step(rows: int) -> Step:
    """A sum of partials, which no compiler takes unless `rows` is a power of two."""
    constants = {"LANED": False, "ROWS": rows, "LOADS": 1, "BLOCK": 8, "ALIGN": 16}
    dtypes = (F32, None, F32, None)
    return Step(
        sum_partials, ("dweights", "", "dweight", ""), dtypes, constants, (1, 1, 1), Plan("tile", rows, 8, 4, 1)
    )


def kept(tmp_path: Path) -> int:
    return len(list((tmp_path / "cache" / "kernels").iterdir()))


@pytest.mark.parametrize("call", [backward, quantized])
def test_a_first_call_compiles_its_kernels_at_the_same_time(call, compilers, tmp_path, monkeypatch):
    together = threading.Barrier(2)  # which nobody passes alone
    compile_one, numbers = compiler.compile_kernel, count()

    def compile_beside(*arguments: Any) -> Any:
        if next(numbers) < 2:
            together.wait(60)
        return compile_one(*arguments)

    monkeypatch.setattr(compiler, "compile_kernel", compile_beside)
    call()
    assert len(compilers) == kept(tmp_path) >= 2 and threading.current_thread() not in compilers
    launch._compiled.clear()  # as in the next process
    call()
    assert next(numbers) == kept(tmp_path), "the next one finds them all"


def test_one_kernel_takes_no_thread(compilers):
    make_kernels([step(16), step(16)], CUDA)
    make_kernels([step(16), step(32)], CUDA)
    assert compilers == [threading.current_thread()] * 2


def test_what_does_not_compile_is_heard_of_as_ever(compilers, tmp_path):
    with pytest.raises(CompilationError) as alone:
        step(3).compiled(CUDA)
    with pytest.raises(CompilationError) as beside:
        make_kernels([step(16), step(3), step(32)], CUDA)
    assert str(beside.value) == str(alone.value)
    assert kept(tmp_path) == 2, "the others are there"


def test_where_nothing_can_be_written_nothing_is_compiled_twice(compilers, tmp_path):
    (tmp_path / "cache").write_text("a file where the directory would be")
    make_kernels([step(16), step(32)], CUDA)
    assert len(compilers) == 2


def test_without_threads_it_is_done_without(compilers, monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    make_kernels([step(16), step(32)], CUDA)
    assert compilers == [threading.current_thread()] * 2


def test_of_several_first_calls_one_compiles(compilers):
    def call() -> None:
        make_kernels([step(16), step(32), step(64)], CUDA)

    calls = [threading.Thread(target=call) for _ in range(4)]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    assert len(compilers) == 3


def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "launcher", lambda: None)


def another_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.0")


@pytest.mark.parametrize("where", [no_launcher, another_vendor])
def test_what_triton_launches_is_left_to_it(where: Callable[..., None], compilers, monkeypatch):
    where(monkeypatch)
    with launch.gather() as kernels:
        make_kernels([step(16), step(32)], CUDA)
    assert len(kernels) == 2 and launch.missing(kernels) == []


def test_what_is_only_noted_is_not_compiled(compilers):
    with launch.gather() as kernels:
        backward()
    assert len(launch.missing(kernels)) == 5 and not compilers
