"""Backends are prepared ahead of a run in processes of their own; nothing that happens there stops a run."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import ModuleType

import pytest

from lab.command import benchmark_norms
from onepass.lab.data.case import Case
from onepass.lab.preparing import _in_turn, orders, prepare, take_turns

SMALL, LARGE = (Case("rms_norm", "forward", rows, 64, "float32") for rows in (2, 32))

#: Each leaves a file that says for what, and in which process, it was prepared.
BACKENDS = """
import os
from pathlib import Path
import torch

def norm(x, weight, eps):
    print("this is no answer")
    Path(__file__).with_name(f"{x.shape[0]}.{os.getpid()}").touch()
    return torch.nn.functional.rms_norm(x, (64,), weight, eps)

def refuses(x, weight, eps):
    raise NotImplementedError("not this one")

def dies(x, weight, eps):
    os._exit(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(BACKENDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_largest_come_first_and_eager_has_nothing_to_prepare():
    assert orders([SMALL, LARGE], ["eager", "compile"]) == [(LARGE, "compile"), (SMALL, "compile")]


def test_each_order_is_done_once_whatever_a_backend_does(folder):
    """What one refuses is done as well; and where a process dies, the other goes on."""
    told = []
    wanted = [(LARGE, "mine:dies"), *orders([SMALL, LARGE], ["mine:refuses", "mine:norm"])]
    prepare(wanted, "cpu", 2, lambda case, name: told.append((case, name)))
    assert sorted(told, key=str) == sorted(wanted[1:], key=str)
    made = [path.name.split(".")[0] for path in folder.glob("*.*") if path.suffix != ".py"]
    assert sorted(made) == ["2", "32"]


def test_those_that_time_do_so_one_at_a_time_and_may_call_each_other(tmp_path):
    spans = []

    def timed():
        began = time.monotonic()
        time.sleep(0.05)
        spans.append((began, time.monotonic()))

    inner = _in_turn(timed, str(tmp_path / "lock"))
    threads = [threading.Thread(target=_in_turn(inner, str(tmp_path / "lock"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    spans.sort()
    assert len(spans) == 3
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(spans))


def test_torch_compile_takes_turns(tmp_path, monkeypatch):
    """By whatever times kernels in this PyTorch."""
    from torch._inductor.runtime import benchmarking

    kinds = [kind for kind in vars(benchmarking).values() if isinstance(kind, type) and "benchmark_gpu" in vars(kind)]
    assert kinds, "it times kernels somewhere else by now"
    copy = ModuleType("benchmarking")
    copy.Benchmarker = type("Benchmarker", (), {"benchmark_gpu": lambda self, call: call()})
    monkeypatch.setattr(sys.modules["torch._inductor.runtime"], "benchmarking", copy)
    take_turns(str(tmp_path / "lock"))
    assert copy.Benchmarker().benchmark_gpu(lambda: 7) == 7
    assert (tmp_path / "lock").exists()


def test_a_run_is_prepared_first(folder):
    ask = ["--rows", "4", "--cols", "64", "--dtype", "float32", "--pass", "forward", "--device", "cpu"]
    ask += ["--backend", "eager", "--backend", "mine:norm", "--seconds", "0.1"]
    done = benchmark_norms(folder, *ask, "--jobs", "2")
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert lines == ["[1/1] prepared rms_norm-forward-4x64-float32, mine:norm", "[1/1] rms_norm-forward-4x64-float32"]
