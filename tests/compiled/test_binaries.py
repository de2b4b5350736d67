"""Compiled kernels on disk: found again by the next process, and only for what they were compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onepass.kernels import sum_partials
from onepass.plan import binaries, compiler, launch

F32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was compiled, for an H200 that is not here; nothing is loaded."""
    made: list[Any] = []
    compile_for = compiler.compile_kernel

    def compile_only(*arguments: Any) -> Any:
        made.append(compile_for(*arguments))
        return made[-1]

    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(launch, "_compiled", {})  # nothing of this is for other tests
    monkeypatch.setattr(compiler, "compile_kernel", compile_only)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "launcher", lambda: SimpleNamespace(load=loaded, prepare=lambda *arguments: arguments))
    return made


def loaded(*binary: Any) -> Any:
    return binary


def bound(dtype: torch.dtype = F32, block: int = 32, warps: int = 4) -> Any:
    """A kernel as a new process would get it, and what its launch was prepared with."""
    launch._compiled.clear()
    bind = launch.kernel(
        sum_partials, (F32, None, dtype, None),
        {"LANED": False, "ROWS": 16, "LOADS": 1, "BLOCK": block, "ALIGN": 16}, warps=warps,
        device=torch.device("cuda", 0),
    )  # fmt: skip
    return bind(7, (100, 1, 8))


def test_the_next_process_compiles_nothing(compiled, tmp_path):
    first, second = bound(), bound()
    assert len(compiled) == 1 and first == second
    binary, programs, threads, shared, cooperative, cluster, pointers, scalars = first
    assert binary == ("sum_partials", compiled[0].asm["cubin"], shared, 0)
    assert (programs, threads, shared) == (7, 128, compiled[0].metadata.shared)
    assert (cooperative, cluster, pointers) == (False, 1, 2)
    assert len(scalars) == 3 * 8
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1, "no file of the writing is left"


def test_what_is_compiled_differently_is_another_kernel(compiled, monkeypatch):
    bound()
    for number, change in enumerate([{"dtype": BF16}, {"block": 16}, {"warps": 8}], start=2):
        bound(**change)
        assert len(compiled) == number, change
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    bound()
    assert len(compiled) == 5
    monkeypatch.setattr(binaries, "_kernels", lambda: "other files")
    bound()
    assert len(compiled) == 6
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    bound()
    assert len(compiled) == 7
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    bound()
    assert len(compiled) == 7, "where Triton keeps things changes nothing"


ORDER = """
from onepass.kernels import few_backward, split_backward, split_forward, tile_backward, tile_forward
from onepass.plan.binaries import key_of
kernels = [tile_forward, tile_backward, split_backward, few_backward]
{first}.function.cache_key  # Triton hashes what it compiles
print(*[key_of(kernel, (), {{}}, {{}}, (9, 0)) for kernel in kernels])
"""


def test_a_kernels_key_does_not_depend_on_what_was_compiled_before():
    keys = set()
    for first in ("tile_backward", "split_forward"):
        script = ORDER.format(first=first)
        paths = {"PYTHONPATH": str(Path(launch.__file__).parents[2])}
        ran = subprocess.run([sys.executable, "-c", script], env=os.environ | paths, capture_output=True, text=True)
        keys.add(ran.stdout)
    [line] = keys
    assert len(set(line.split())) == 4


@pytest.mark.parametrize("content", [b"", b"no json\ncubin", b'{"name": 1, "shared": 2}\n'])
def test_a_file_that_cannot_be_read_is_made_again(compiled, tmp_path, content):
    first = bound()
    [path] = (tmp_path / "cache" / "kernels").iterdir()
    path.write_bytes(content)
    assert bound() == first and len(compiled) == 2
    assert bound() == first and len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_done_without(compiled, tmp_path):
    (tmp_path / "cache").write_text("a file where the directory would be")
    assert bound() == bound() and len(compiled) == 2
