"""A run says what it does not show, so that nobody cites it for more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onepass.lab.data.row import Checked, Conditions, Incorrect, Unsupported
from onepass.lab.judge.boundary import boundary
from onepass.lab.judge.judge import judge_run
from simulated import CASE, CPU, RIGHT, WRONG, measured, rounds_of, run_of

WIDE = replace(CASE, op="layer_norm", dtype="float32", cols=8192)


def row_of(backend, time, seed, case=CASE, kinds=("gpu",), fields=None, **how):
    return measured(
        backend, rounds_of(time, np.random.default_rng(seed), **how), kinds=kinds, case=case, **(fields or {})
    )


def said_by(tmp_path, rows, **fields):
    run = run_of(tmp_path, "run", rows, **fields)
    return "\n".join(boundary(run, judge_run(run, "eager")))


def test_a_gpu_run_names_its_gpu_dtypes_shapes_and_what_it_leaves_open(tmp_path):
    rows = [row_of("eager", 40, 1), row_of("eager@control", 40, 2), row_of("eager", 100, 3, WIDE)]
    said = said_by(tmp_path, rows, cases=(CASE, WIDE))
    for part in (
        "NVIDIA H200",
        "cold L2",
        "float16 and float32",
        "4,096 rows",
        "4,096 to 8,192 columns",
        "2 cases",
        "end-to-end",
        "another GPU model",
        "The smallest difference that it can tell is",
    ):
        assert part in said


def test_a_gpu_that_nobody_watched_is_said(tmp_path):
    watched = {"conditions": Conditions((1755, 1980), (3201, 3201), (41, 44))}
    rows = [row_of("eager", 40, 1, fields=watched), row_of("onepass", 20, 2)]
    assert "NVML did not answer while 1 row ran" in said_by(tmp_path / "gpu", rows)
    assert "NVML" not in said_by(tmp_path / "both", [replace(row, **watched) for row in rows])
    assert "NVML" not in said_by(tmp_path / "cpu", rows, environment=CPU)


def test_a_cpu_run_claims_nothing_about_gpus(tmp_path):
    rows = [row_of("eager", 40, 1, kinds=("call",)), Checked(CASE.id, "onepass-triton", RIGHT)]
    said = said_by(tmp_path, rows, environment=CPU)
    assert "nothing about any GPU" in said and "cold L2" not in said and "Xeon" in said
    assert "onepass-triton was checked, not timed, on 1 case" in said
    assert "no A/A control" in said


def test_rows_that_carry_nothing_are_named(tmp_path):
    rows = [
        row_of("eager", 40, 1),
        row_of("noisy", 20, 2, noise=0.4),
        row_of("hot", 20, 3, fields={"throttled": ("power cap",)}),
        row_of("magic", 5, 4),
        Incorrect(CASE.id, "wrong", WRONG, "before timing"),
        Unsupported(CASE.id, "absent", "not installed"),
    ]
    said = said_by(tmp_path, rows)
    assert f"too noisy to say anything: noisy on {CASE.id}" in said
    assert f"throttled: hot on {CASE.id}" in said and f"believed: magic on {CASE.id}" in said
    assert "wrong results from wrong on 1 case" in said and "absent on 1 case" in said


def test_many_noisy_rows_are_counted_rather_than_all_named(tmp_path):
    rows = [row_of("eager", 40, 1), *(row_of(f"noisy{number}", 20, number, noise=0.4) for number in range(9))]
    assert "9 comparisons are too noisy to say anything" in (said := said_by(tmp_path, rows)) and "and 4 more" in said


def test_a_run_without_times_claims_no_speed(tmp_path):
    said = said_by(tmp_path, [Checked(CASE.id, "onepass", RIGHT)])
    assert "shows nothing about speed" in said and "Times are of" not in said


def test_cases_that_were_asked_for_and_not_timed_are_counted(tmp_path):
    assert "1 of the 2 cases asked for have no times" in said_by(tmp_path, [row_of("eager", 40, 1)], cases=(CASE, WIDE))


def test_a_run_with_fp8_outputs_names_their_scalings_and_another_does_not(tmp_path):
    cases = [replace(CASE, op="rms_norm_fp8", scaling=scaling) for scaling in ("token", "mx")]
    rows = [row_of("eager", 40, seed, case) for seed, case in enumerate(cases)]
    assert "rms_norm_fp8 forward, in float16, with FP8 scales by token and mx," in said_by(
        tmp_path / "fp8", rows, cases=cases
    )
    assert "FP8" not in said_by(tmp_path / "plain", [row_of("eager", 40, 1)])
