"""Widths that nobody listed are drawn of every alignment, and one that falls short of those beside it is named."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.lab.data.case import Case
from onepass.lab.survey import Kind, Width, drawn, falling_short, piece_of
from onepass.lab.trials import Timed, Trial
from scripted import load_script

ROOT = Path(__file__).resolve().parents[2]
BF16 = Kind("layer_norm", "backward", "bfloat16")


def widths_of(*cols: int, share: float = 0.9) -> list[Width]:
    """Each of 64 MiB, at that share of a copy of 4,000 GB/s."""
    cases = [Case("layer_norm", "backward", (1 << 25) // width, width, "bfloat16") for width in cols]
    return [Width(case, case.bytes / 4e6 / share, "tile: planned", 4000.0) for case in cases]


@pytest.mark.parametrize(("dtype", "pieces"), [("bfloat16", (16, 8, 4, 2)), ("float32", (16, 8, 4))])
def test_every_alignment_has_widths_from_end_to_end(dtype, pieces):
    cases = drawn(replace(BF16, dtype=dtype), 8, (64, 16384), 64 << 20, seed=3)
    assert cases == drawn(replace(BF16, dtype=dtype), 8, (64, 16384), 64 << 20, seed=3)
    assert cases != drawn(replace(BF16, dtype=dtype), 8, (64, 16384), 64 << 20, seed=4)
    for piece in pieces:
        widths = [case.cols for case in cases if piece_of(case) == piece]
        assert len(widths) == 8 and widths == sorted(widths)
        # One in each eighth of the way from 64 to 16,384, which is a factor of two, give or take a step of alignment.
        for part, width in enumerate(widths):
            assert abs(math.log2(width / 64) - part - 0.5) <= 0.5 + math.log2(1 + 16 / width)
    for case in cases:
        x = case.rows * case.cols * (4 if dtype == "float32" else 2)
        assert 0 <= (64 << 20) - x < case.cols * 4


def test_a_width_is_held_against_the_friendly_ones_nearest_to_it():
    # Short rows are slower for everybody, which is no fault of an odd one among them.
    short, wide = widths_of(64, 72, 80, 75, share=0.5), widths_of(4096, 4104, 4160, 4099, share=0.95)
    assert falling_short([*short, *wide]) == {}
    [slow] = widths_of(4100, share=0.7)
    [slower] = widths_of(3899, share=0.6)
    found = falling_short([*short, *wide, slow, slower])
    assert list(found) == [slower, slow] and found[slow] == pytest.approx(0.7 / 0.95)


def test_a_friendly_width_may_fall_short_too_and_takes_nobody_along():
    [slow] = widths_of(3904, share=0.6)
    others = widths_of(3584, 3840, 4096, 4352, 3899, share=0.95)
    assert list(falling_short([slow, *others])) == [slow]


def test_where_nothing_friendly_was_timed_nothing_falls_short():
    assert falling_short(widths_of(4099) + widths_of(4097, share=0.1)) == {}
    other_kind = [
        replace(width, case=replace(width.case, op="rms_norm")) for width in widths_of(4096, 4104, share=0.95)
    ]
    assert falling_short(widths_of(4099, share=0.1) + other_kind) == {}


def test_what_was_kept_is_told_again_and_drawn(tmp_path, capsys, monkeypatch):
    kept, image = tmp_path / "widths.jsonl", tmp_path / "widths.svg"
    widths = widths_of(4096, 4104, 4160) + widths_of(4099, share=0.5)
    kept.write_text("".join(f"{width.to_json()}\n" for width in widths))
    monkeypatch.setattr(sys, "argv", ["survey", "--read", str(kept), "--draw", str(image)])
    assert load_script("survey").main() == 0
    told = capsys.readouterr().out
    assert f"   56%  {widths[-1].us:10,.2f} us  {widths[-1].case.id}  (tile: planned)" in told
    assert "layer_norm-backward-bfloat16 16 B       3      90%        3" in told
    assert "layer_norm-backward-bfloat16  2 B       1      50%        0" in told
    drawing = image.read_text()
    assert drawing.startswith("<svg") and drawing.count("begins on: 16 bytes") == 3


def test_what_is_slower_than_in_an_older_survey_is_named_and_what_another_plan_did(tmp_path, capsys, monkeypatch):
    older, newer = tmp_path / "older.jsonl", tmp_path / "newer.jsonl"
    before = widths_of(4096, 4099, 4160, 4224, 512)
    same, faster, slower, scattered = before[:4]
    after = [
        same,
        replace(faster, us=faster.us / 2, plan="turns: planned"),
        replace(slower, us=slower.us * 1.25),
        replace(scattered, us=scattered.us * 1.02),
        *widths_of(8192),
    ]
    for kept, widths in ((older, before), (newer, after)):
        kept.write_text("".join(f"{width.to_json()}\n" for width in widths))
    monkeypatch.setattr(sys, "argv", ["survey", "--read", str(newer), "--against", str(older)])
    assert load_script("survey").main() == 0
    told = capsys.readouterr().out
    assert "4 widths are in both; 1 have another plan, -50.0% in time\n" in told
    named = told[told.index("in both") :].splitlines()[1:]
    time = f"  +25%  {after[2].us:10,.2f} us for {slower.us:,.2f}  {slower.case.id}  (tile: planned; as before)"
    assert named == [time]


def test_what_is_timed_is_kept_and_what_cannot_be_launched_is_said(tmp_path, capsys, monkeypatch):
    script = load_script("survey")
    fast, broken = (Case("layer_norm", "backward", 64, cols, "bfloat16") for cols in (4096, 4099))
    found = [[Timed(Trial(fast), "tile: planned", 12.5)], [Timed(Trial(broken), "", None, "it is too wide")]]
    monkeypatch.setattr(script, "time_all", lambda trials: iter(found))
    monkeypatch.setattr(script, "KernelClock", lambda: None)
    monkeypatch.setattr(script, "device_here", lambda elsewhere: script.H200)
    asked = []
    monkeypatch.setattr(script, "copy_gbps", lambda moved, *_: asked.append(moved) or 4000.0)
    kept = tmp_path / "widths.jsonl"
    widths = script.timed([fast, broken], 64 * 4096 * 2, kept)
    assert widths == [Width(fast, 12.5, "tile: planned", 4000.0)] == [Width.from_json(kept.read_text())]
    assert asked == [3 * 64 * 4096 * 2]
    assert f"{broken.id} could not be launched: it is too wide" in capsys.readouterr().err


def test_all_widths_are_compiled_where_there_is_no_gpu(tmp_path):
    kind = ["rms_norm-forward-bfloat16", "--widths", "1", "--cols", "64", "96", "--mib", "1"]
    command = [sys.executable, str(ROOT / "scripts" / "survey"), *kind, "--compile"]
    environment = os.environ | {"ONEPASS_CACHE": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    compiled = len(list((tmp_path / "kernels").iterdir()))
    assert compiled >= 4 and f"{compiled} of {compiled} kernels compiled" in done.stdout


def test_widths_with_many_instructions_are_named(monkeypatch, capsys):
    script = load_script("survey")
    monkeypatch.setattr(script, "BUSY", 0.0)
    kind = ["rms_norm-backward-bfloat16", "--widths", "1", "--cols", "64", "96", "--mib", "1"]
    monkeypatch.setattr(sys, "argv", ["survey", *kind, "--count"])
    assert script.main() == 0
    told = capsys.readouterr().out
    assert "4 of 4 widths" in told and "rms_norm-backward-bfloat16    2 B       1" in told
    shares = [int(share) for share in re.findall(r"^ +(\d+)%  rms_norm-backward-\d+x\d+-bfloat16", told, re.MULTILINE)]
    assert len(shares) == 4 and shares == sorted(shares, reverse=True) and all(10 < share < 400 for share in shares)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rms_norm-sideways-bfloat16"], "a kind must be like layer_norm-backward-bfloat16, not rms_norm-sideways"),
        (["rms_norm_fp8-forward-bfloat16"], "not rms_norm_fp8-forward-bfloat16"),
        (["--cols", "512", "64"], "--cols from fewer to more"),
        (["--widths", "0"], "--widths and --mib must be above zero"),
        (["--out", "no such folder/widths.jsonl"], "there is no folder for no such folder/widths.jsonl"),
        (["--read", "no such file"], "No such file or directory: 'no such file'"),
        (["--against", "no older file"], "No such file or directory: 'no older file'"),
        (
            ["--compile", "--against", "older.jsonl"],
            "--out, --against and --draw are for widths that are timed or read",
        ),
    ],
)
def test_what_it_cannot_read_is_said_in_a_sentence(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["survey", *arguments])
    assert load_script("survey").main() == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


@pytest.mark.parametrize("text", ['{"case": "rms_norm-forward-4x64-bfloat16"}\n', "[]\n", ""])
def test_a_file_that_is_no_survey_is_named(tmp_path, monkeypatch, capsys, text):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(text)
    monkeypatch.setattr(sys, "argv", ["survey", "--read", str(wrong)])
    assert load_script("survey").main() == 2
    complaint = capsys.readouterr().err
    assert str(wrong) in complaint and complaint.count("\n") == 1
