"""Profiling: ncu's answers become profiles, and its silence a reason; a small program stands in for ncu and its GPU."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from lab.example_run import make_run, make_verdicts
from onepass.lab.data.case import Case
from onepass.lab.data.profile import Profiled, Unprofiled, from_json, to_json
from onepass.lab.data.row import Measured
from onepass.lab.data.run import Run
from onepass.lab.profiling import CannotProfile, profile, profile_run, read_kernels
from onepass.lab.report import write_report

CASE = Case("rms_norm", "backward", 4096, 4096, "bfloat16")
#: As ncu 2025.3 writes it with --csv --page raw --print-units base.
ANSWER = """==PROF== Connected to process 977
==PROF== Profiling "tile_backward" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 977
"ID","Kernel Name","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","launch__grid_size","launch__registers_per_thread","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","byte","byte","%","ns","","register/thread","%"
"0","tile_backward","(264, 1, 1)","67,117,056","30,000,000","80.5","30,000","264","128","25.0"
"1","sum_partials","(64, 1, 1)","4,000,000","8,192","40.5","10,000","64","32","50.0"
"""  # noqa: E501


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program named ncu on the PATH that writes the given log, and a GPU where there is none."""

    def put(log: str, code: int = 0) -> None:
        (tmp_path / "answer").write_text(log)
        program = tmp_path / "ncu"
        program.write_text(
            f"#!/bin/sh\necho called >> {tmp_path}/calls\n"
            'while [ "$1" != --log-file ]; do shift; done\n'
            f'cp {tmp_path}/answer "$2"\nexit {code}\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IEXEC)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    return put


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def test_ncus_table_becomes_kernels():
    main, partials = read_kernels(ANSWER.splitlines())
    assert (main.name, main.us, main.registers, main.programs) == ("tile_backward", 30.0, 128, 264)
    assert main.read_bytes == 67_117_056 and partials.written_bytes == 8192


def test_a_profile_says_how_the_bytes_compare_with_those_that_must_move(ncu):
    ncu(ANSWER)
    found = profile(CASE, "onepass")
    assert isinstance(found, Profiled)
    moved = 67_117_056 + 30_000_000 + 4_000_000 + 8192
    assert found.traffic == pytest.approx(moved / (3 * 4096 * 4096 * 2 + 2 * 4096 * 2))
    assert found.dram_percent == pytest.approx((80.5 * 30 + 40.5 * 10) / 40), "by the time that each kernel took"
    assert from_json(to_json(found)) == found


def test_another_gpus_counters_explain_nothing(ncu):
    ncu(ANSWER)
    assert isinstance(profile(CASE, "onepass", "NVIDIA H200"), Profiled)
    found = profile(CASE, "onepass", "NVIDIA B200")
    assert isinstance(found, Unprofiled)
    assert found.why == "it was measured on NVIDIA B200, and the GPU here is NVIDIA H200"


def test_a_call_that_cannot_be_profiled_says_why(ncu):
    ncu("==ERROR== The application returned an error code (1).\n", code=1)
    found = profile(CASE, "quack")
    assert isinstance(found, Unprofiled) and "returned an error code" in found.why
    assert from_json(to_json(found)) == found


def test_without_ncu_or_permission_nothing_can_be_profiled(ncu, tmp_path, monkeypatch):
    ncu("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n", 1)
    with pytest.raises(CannotProfile, match="no permission to read the GPU's counters"):
        profile(CASE, "onepass")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotProfile, match="ncu is not on the PATH"):
        profile(CASE, "onepass")


def test_a_run_is_profiled_row_by_row_and_goes_on_where_it_was_left(ncu, tmp_path):
    ncu(ANSWER)
    run = make_run(tmp_path / "runs", cases=2)
    measured = [key for key, row in run.rows()[0].items() if isinstance(row, Measured) and "@" not in key[1]]
    some = measured[0]
    profile_run(run, cases=[some[0]], backends=[some[1]])
    assert list(run.profiles()[0]) == [some]
    profile_run(run)
    assert set(run.profiles()[0]) == set(measured), "rows without a time, and controls, are not profiled"
    assert calls(tmp_path) == len(measured), "none twice"


def test_the_rest_of_a_run_is_not_tried_where_there_is_no_permission(ncu, tmp_path):
    ncu("==ERROR== ERR_NVGPUCTRPERM\n", code=1)
    run = make_run(tmp_path / "runs", cases=2)
    profile_run(run)
    found, _ = run.profiles()
    assert len(found) > 2 and all(
        isinstance(each, Unprofiled) and "no permission" in each.why for each in found.values()
    )
    assert calls(tmp_path) == 1


def test_the_page_shows_counters_and_why_there_are_none(tmp_path):
    run = make_run(tmp_path, cases=1)
    assert "hardware counters" not in write_report(run, make_verdicts(run), [], tmp_path / "a.html").read_text()
    case = run.cases[0].id
    run.append_profile(Profiled(case, "onepass", 1_000_000, read_kernels(ANSWER.splitlines())))
    run.append_profile(Unprofiled(case, "eager", "ncu is not on the PATH"))
    page = write_report(run, make_verdicts(run), [], tmp_path / "b.html").read_text()
    assert "hardware counters" in page and "101.13×" in page and "ncu is not on the PATH" in page


def test_a_damaged_profile_is_named_and_skipped(tmp_path):
    run = make_run(tmp_path, cases=1)
    run.append_profile(Unprofiled("a", "b", "c"))
    with (run.path / "profiles.jsonl").open("a") as file:
        file.write('{"schema": 1, "kind": "profiled"}\n[1]\n')
    found, damaged = Run.open(run.path).profiles()
    assert list(found) == [("a", "b")]
    assert len(damaged) == 2 and "line 2" in damaged[0] and "line 3" in damaged[1]
