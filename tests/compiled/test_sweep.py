"""`scripts/sweep` compiles what it would time, on a machine without a GPU, and says in a sentence what it cannot do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def sweep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "sweep"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_each_choice_is_compiled_beside_what_is_planned(tmp_path):
    cases = ["rms_norm-forward-9x64-bfloat16", "layer_norm-backward-600x64-float32"]
    done = sweep("--compile", *cases, "--choice", "tile warps=2 block=32", ONEPASS_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    # A forward and a backward with its sum of partials, which is the same however the backward is done; twice each.
    assert len(list((tmp_path / "kernels").iterdir())) == 5
    assert "5 of 5 kernels compiled" in done.stdout


def test_what_the_compiler_made_is_read():
    done = sweep("--read", "rms_norm-forward-9x64-bfloat16")
    assert done.returncode == 0, done.stderr
    title, kernel, rows = done.stdout.splitlines()
    assert title.startswith("rms_norm-forward-9x64-bfloat16  as planned  (tile: ")
    found = re.fullmatch(
        r" +tile_forward: (\d+) registers, (\d+) instructions, (\d+) before the first load, .*", kernel
    )
    assert found and all(0 < int(number) < 2000 for number in found.groups()), kernel
    each = re.fullmatch(r" +(\d+) instructions of a warp for each row: 0.0 us of the schedulers", rows)
    # Nine rows in tiles of several, which fill a warp or more, run through no more than all of the code.
    assert each and 0 < int(each[1]) <= int(found[2]), rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["somewhat"], "rms_norm-forward-4096x4096-bfloat16, not somewhat"),
        (["rms_norm-forward-4x64-int8"], "dtype must be one of float32, bfloat16, float16, not int8"),
        (
            ["rms_norm-forward-4x64-float16-wfloat32"],
            "with a weight of its dtype and without FP8",
        ),
        (["rms_norm-forward-4x64-float16", "--choice", "tile warps=two"], "like warps=8; not tile warps=two"),
        (["rms_norm-forward-4x64-float16", "--choice", "heap warps=2"], "one of tile, turns, split, split_turns,"),
    ],
)
def test_what_it_cannot_read_is_said_in_a_sentence(arguments, said, monkeypatch, capsys):
    spec = spec_from_loader("sweep", SourceFileLoader("sweep", str(ROOT / "scripts" / "sweep")))
    assert spec is not None and spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
    assert script.main() == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1
