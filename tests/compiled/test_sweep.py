"""`scripts/sweep` compiles what it would time, on a machine without a GPU, and says in a sentence what it cannot do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onepass.lab.machine_code import longest_loop, usual
from onepass.lab.trials import (
    H200,
    Trial,
    compiled_elsewhere,
    dense_case,
    distinct,
    kernels_of,
    plan_of,
    planned_for,
    schedulers_us,
)
from scripted import load_script

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


def test_each_line_of_a_file_is_a_sweep_of_its_own(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text(
        'rms_norm-forward-9x64-bfloat16 --choice "tile warps=2 block=32"\n\n# and a backward\n'
        "rms_norm-backward-600x64-bfloat16\n"
    )
    done = sweep("--compile", "--lines", str(lines), ONEPASS_CACHE=str(tmp_path))
    assert done.returncode == 0 and "4 of 4 kernels compiled" in done.stdout, done.stderr


def test_what_the_compiler_made_is_read():
    done = sweep("--read", "rms_norm-forward-9x64-bfloat16")
    assert done.returncode == 0, done.stderr
    title, kernel, rows = done.stdout.splitlines()
    assert title.startswith("rms_norm-forward-9x64-bfloat16  as planned  (tile: ")
    found = re.fullmatch(
        r" +tile_forward: (\d+) registers, (\d+) instructions, (\d+) before the first load, .*", kernel
    )
    assert found and all(0 < int(number) < 2000 for number in found.groups()), kernel
    each = re.fullmatch(r" +(\d+) instructions of a warp for each row: 0.0 us of the schedulers, 0.0 of memory", rows)
    # Nine rows in tiles of several, which fill a warp or more, run through no more than all of the code.
    assert each and 0 < int(each[1]) <= int(found[2]), rows


@pytest.mark.parametrize(("direction", "stays"), [("forward", False), ("backward", True)])
def test_schedulers_take_twice_as_long_for_twice_the_rows(direction, stays):
    """Whether programs come and go, and so are twice as many, or stay, and walk twice as far."""
    taken = []
    for rows in (16384, 32768):
        trial = Trial(dense_case(f"layer_norm-{direction}-{rows}x512-bfloat16"))
        with planned_for(H200):
            plan, kernel = plan_of(trial), kernels_of(trial, torch.device("meta"))[0]
        compiled = compiled_elsewhere(kernel)
        assert (longest_loop(compiled) > 0) == stays and longest_loop(compiled) < usual(compiled)
        taken.append(schedulers_us(compiled, plan, rows))
    assert 0 < 2 * taken[0] == pytest.approx(taken[1])


def test_what_has_several_walks_in_a_loop_is_not_counted():
    with planned_for(H200):
        plan = plan_of(Trial(dense_case("layer_norm-backward-3268x10267-float32")))
    assert plan.schedule == "split_turns" and schedulers_us(None, plan, 3268) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["somewhat"], "rms_norm-forward-4096x4096-bfloat16, not somewhat"),
        (["rms_norm-forward-4x64-int8"], "dtype must be one of float32, bfloat16, float16, not int8"),
        (["rms_norm-forward-4x64-float16-qkv2"], "must be of a dense norm, without FP8"),
        (["rms_norm-forward-4x64-float16", "--choice", "tile warps=two"], "like warps=8; not tile warps=two"),
        (["rms_norm-forward-4x64-float16", "--choice", "heap warps=2"], "one of tile, turns, split, split_turns,"),
        (["--lines", "no such file"], "No such file or directory: 'no such file'"),
        ([], "there must be a CASE"),
    ],
)
def test_what_it_cannot_read_is_said_in_a_sentence(arguments, said, monkeypatch, capsys):
    script = load_script("sweep")
    monkeypatch.setattr(sys, "argv", ["sweep", *arguments])
    assert script.main() == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_a_choice_that_it_names_is_one_that_it_takes():
    """What a search tried is written down, and tried again."""
    script = load_script("sweep")
    for name in ("rms_norm-forward-4469x512-float32", "layer_norm-backward-3000x4096-bfloat16"):
        case = dense_case(name)
        with planned_for(H200):
            first, *others = distinct([Trial(case), *(Trial(case, choice) for choice in script.searched(case, H200))])
            assert str(first) == "as planned" and len(others) > 10
            assert all(script.choice_of(str(trial), case) == trial.choice for trial in others)
            assert plan_of(first) not in map(plan_of, others)


def test_rows_and_warps_are_exactly_as_given_where_that_is_asked_for():
    case = dense_case("rms_norm-forward-300x64-bfloat16")
    choice = load_script("sweep").choice_of("tile rows=64 warps=8 block=32", case)
    with planned_for(H200):
        for exactly in (False, True):
            plan = plan_of(Trial(case, choice, exactly))
            assert ((plan.rows, plan.warps) == (64, 8)) == exactly, "few rows have smaller programs"


def test_cases_are_those_in_which_a_run_has_a_peer_ahead():
    from onepass.lab.data.run import Run

    script = load_script("sweep")
    run = Run.open(ROOT / "evidence" / "runs" / "h200-2026-11-18-ag")
    found = [case.id for case in script.behind(run)]
    assert found[0] == "rms_norm-forward-4469x512-float32"
    assert "layer_norm-forward-2978x312-float32" in found and "rms_norm-forward-775x14208-float32" not in found


@pytest.mark.parametrize("case", ["rms_norm-forward-16x5888-float16", "layer_norm-backward-600x4096-bfloat16"])
def test_what_is_planned_may_be_tried_with_other_fields(case):
    script = load_script("sweep")
    planned, other = (script.choice_of(f"planned warps={warps}", dense_case(case)) for warps in (2, 16))
    assert (planned.tile.warps, other.tile.warps) == (2, 16)
    assert script.chosen(dense_case(case)) in (
        replace(choice, tile=replace(choice.tile, warps=warps)) for choice in (planned, other) for warps in (1, 2, 4, 8)
    )
