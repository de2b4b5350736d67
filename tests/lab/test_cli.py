"""The lab's command, as a person uses it: in a process of its own, on a CPU, at tiny shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.command import TINY, benchmark_norms
from onepass.lab.cli import app
from onepass.lab.data.row import Checked, Measured, Unsupported, to_json
from onepass.lab.data.run import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run: eager, onepass, and a peer that needs a GPU."""
    folder = tmp_path_factory.mktemp("lab")
    backends = ("--backend", "eager", "--backend", "onepass", "--backend", "liger")
    done = benchmark_norms(folder, *TINY, *backends, "--run-id", "first")
    assert "report: runs/first/report.html" in done.stdout
    assert "[1/1] rms_norm-forward-8x64-float32" in done.stderr, "progress in plain lines where there is no terminal"
    return folder


def test_a_run_leaves_a_row_for_every_backend_and_its_report(finished):
    rows, damaged = Run.open(finished / "runs" / "first").rows()
    case = "rms_norm-forward-8x64-float32"
    assert damaged == []
    assert isinstance(rows[case, "eager"], Measured) and isinstance(rows[case, "onepass"], Measured)
    assert isinstance(rows[case, "eager@control"], Measured), "every run carries its own A/A control"
    assert isinstance(rows[case, "liger"], Unsupported) and rows[case, "liger"].why
    assert isinstance(rows[case, "onepass-kernels"], Checked), "checked in the interpreter, not timed"
    assert len(rows[case, "onepass"].timings["call"].rounds) >= 5
    assert (finished / "runs" / "first" / "report.html").stat().st_size > 10_000


def test_the_record_names_the_machine_the_method_and_the_command(finished):
    header = json.loads((finished / "runs" / "first" / "run.json").read_text())
    assert header["method"]["samples"] >= 30 and header["method"]["rounds"] >= 5
    assert header["environment"]["packages"]["torch"] and header["environment"]["cpu"]
    assert header["command"][:2] == ["benchmark-norms", "--device"]
    assert header["executor"] == "local"
    environments = [json.loads(line) for line in (finished / "runs" / "first" / "hosts.jsonl").read_text().splitlines()]
    assert environments == [header["environment"]], "it was measured where the command was given"


def test_a_finished_run_is_refused_without_resume_and_keeps_its_rows(finished):
    before = (finished / "runs" / "first" / "rows.jsonl").read_bytes()
    done = benchmark_norms(finished, *TINY, "--run-id", "first", code=2)
    assert done.stderr.count("\n") == 1 and "--resume" in done.stderr
    assert (finished / "runs" / "first" / "rows.jsonl").read_bytes() == before


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(finished):
    path = finished / "runs" / "first" / "rows.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in whole if '"backend": "onepass"' not in line) + whole[0][:30])
    done = benchmark_norms(finished, "--run-id", "first", "--resume", "--json")
    rows, damaged = Run.open(finished / "runs" / "first").rows()
    assert isinstance(rows["rms_norm-forward-8x64-float32", "onepass"], Measured)
    assert len(damaged) == 1, "the line that was cut off is named, not fatal"
    verdicts = json.loads(done.stdout)["verdicts"]
    assert {verdict["backend"] for verdict in verdicts} >= {"onepass", "liger"}


def test_a_rerun_replaces_what_was_throttled_and_pools_what_was_noisy(finished):
    path, case = finished / "runs" / "first" / "rows.jsonl", "rms_norm-forward-8x64-float32"
    readable, _ = Run.open(path.parent).rows()
    lines = [to_json(row) for row in readable.values()]

    def rounds_after_a_rerun() -> int:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = benchmark_norms(finished, "--run-id", "first", "--rerun")
        assert f"[1/1] {case}" in done.stderr, "progress counts what is sampled again"
        rows, damaged = Run.open(path.parent).rows()
        assert damaged == [] and all(not row.throttled for row in rows.values() if isinstance(row, Measured))
        assert rows[case, "onepass"].conditions is None, "a CPU has no NVML"
        again = len(rows[case, "onepass"].timings["call"].rounds)
        assert len(rows[case, "eager"].timings["call"].rounds) == again
        return again

    timed = [line for line in lines if line["kind"] == "measured"]
    for line in timed:
        line["throttled"] = ["power cap"]
    assert 5 <= rounds_after_a_rerun() < 45
    for line in timed:
        line["throttled"] = []
        line["timings"]["call"]["rounds"] = [[1.0, 9.0] * 15] * 100  # more than a sampling ever takes
        line["timings"]["call"]["noise"] = 1.6
    assert 105 <= rounds_after_a_rerun() < 145


def test_the_same_run_compared_with_itself_has_no_regression(finished):
    run = str(finished / "runs" / "first")
    benchmark_norms(finished, "compare", run, run)


def test_an_fp8_output_is_measured_like_any_other_in_the_pass_that_it_has(tmp_path):
    tiny = [each for each in TINY if each not in ("--pass", "forward")]
    asked = ("--op", "add_rms_norm_fp8", "--scaling", "block", "--columnwise", "--backend", "onepass")
    case = "add_rms_norm_fp8-forward-8x64-float32-block-both"  # which it also has by its name
    benchmark_norms(tmp_path, *tiny, *asked, "--case", case, "--run-id", "fp8")
    run = Run.open(tmp_path / "runs" / "fp8")
    assert [each.id for each in run.cases] == [case]
    rows, damaged = run.rows()
    assert damaged == [] and isinstance(rows[case, "eager"], Measured) and isinstance(rows[case, "onepass"], Measured)
    kernels = rows[case, "onepass-kernels"]
    assert isinstance(kernels, Checked) and kernels.note == "checked on 4 rows in Triton's interpreter, not timed"
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "8 × 64 fp32, block both ways" in page and "with FP8 scales by block" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "cudnn"), ("backend", "cudnn", "onepass")),
        (("--suite", "everything"), ("suite", "everything", "models")),
        (("--rows", "8"), ("--rows", "--cols")),
        (("--rows", "8", "--cols", "0"), ("cols", "0")),
        (("--rows", "8", "--cols", "8", "--dtype", "int8"), ("dtype", "int8", "bfloat16")),
        (("--rows", "8", "--cols", "8", "--scaling", "mx"), ("scaling", "rms_norm", "rms_norm_fp8")),
        (("--rows", "8", "--cols", "8", "--op", "rms_norm_fp8", "--scaling", "row"), ("scaling", "row", "token")),
        (("--rows", "8", "--cols", "8", "--op", "rms_norm_fp8", "--pass", "backward"), ("backward", "rms_norm")),
        (("--device", "tpu"), ("--device", "tpu", "cuda")),
        (("--case", "somewhat"), ("case", "rms_norm-forward-4096x4096-bfloat16", "somewhat")),
        (("--case", "rms_norm-forward-4x4-int8"), ("dtype", "int8", "bfloat16")),
        (("--random", "-1"), ("--random", "-1")),
        (("--seed", "3"), ("--seed", "--random")),
        (("--executor", "slurm"), ("--executor", "slurm", "local", "ray")),
        (("--executor", "ray", "--with-profiling"), ("--with-profiling", "--executor local", "ncu")),
        (("--jobs", "0"), ("--jobs", "0")),
        (("--executor", "ray", "--jobs", "2"), ("--jobs", "--executor local", "disk")),
        (("--resume",), ("--resume", "--run-id")),
        (("--rerun",), ("--rerun", "--run-id")),
        (("--resume", "--run-id", "nobody"), ("nobody", "run.json")),
        (("compare", "here", "there"), ("here", "run.json")),
        (("report", "here"), ("here", "run.json")),
        (("decisions", "check", "here"), ("here", "decision records")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_gets_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)  # in this process: none of these measures anything
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_said(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = benchmark_norms(tmp_path, "--device", "cuda", code=2)
    assert "no CUDA GPU" in done.stderr


def test_list_shows_suites_and_backends(tmp_path):
    shown = benchmark_norms(tmp_path, "list").stdout
    assert "models" in shown and "onepass" in shown and "not installed" in shown


def test_help_shows_examples(tmp_path):
    assert "compare runs/monday runs/tuesday" in " ".join(benchmark_norms(tmp_path, "--help").stdout.split())
