"""A run over a cluster is the run that it would have been here, and a lost worker loses no case.

Ray is real, and of this machine alone.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.command import SOURCES, TINY, benchmark_norms
from onepass.lab import cluster
from onepass.lab.cli import _device, app
from onepass.lab.data.case import Case
from onepass.lab.data.row import Checked, Measured
from onepass.lab.data.run import Run, RunError
from onepass.lab.judge.boundary import boundary
from onepass.lab.judge.judge import judge_run
from onepass.lab.measure.sampling import Rules
from onepass.lab.runner import Local, execute
from simulated import measured, rounds_of

#: A person's backends. Each call leaves a line that says which process it was and on how many rows.
NORMS = """
import os, pathlib
import torch.nn.functional as F

def norm(x, weight, eps):
    with open("calls", "a") as file:
        file.write(f"{os.getpid()} {len(x)}\\n")
    return F.rms_norm(x, weight.shape, weight, eps)

def dies_once(x, weight, eps):
    if not os.path.exists("died"):
        pathlib.Path("died").touch()
        os._exit(1)
    return norm(x, weight, eps)

def dies_on_16(x, weight, eps):
    if len(x) == 16 and os.path.exists("broken"):
        os._exit(1)
    return norm(x, weight, eps)

def raises_on_16(x, weight, eps):
    if f"{os.getpid()} 16" in pathlib.Path("calls").read_text():
        raise ArithmeticError("not a second time")
    return norm(x, weight, eps)
"""


@pytest.fixture(scope="session", autouse=True)
def ray_apart() -> Iterator[None]:
    """No cluster but one of the tests' own, in a folder whose name is short enough for the sockets in it.

    Ray reads how it proves itself when it is imported, and never again: so before any test of these, and once.
    """
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    token = Path(folder, "token")  # else Ray would leave one in the home directory
    token.write_text(secrets.token_hex(16))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("PYTHONPATH", SOURCES)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def connected() -> Iterator[cluster.Cluster]:
    with cluster.cluster() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a person's backends in it."""
    (tmp_path / "my_norms.py").write_text(NORMS)
    (tmp_path / "calls").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("my_norms", None)


def begun(folder: Path, run_id: str, backend: str, *rows: int, device: str = "cpu") -> Run:
    header = {
        "device": device,
        "executor": "ray",
        "backends": ["eager", backend],
        "baseline": "eager",
        "cases": [Case("rms_norm", "forward", each, 64, "float32").to_json() for each in rows],
        "method": asdict(Rules(seconds=0.1, warm_up_seconds=0.01)),
    }
    return Run.begin(folder / "runs", run_id, header)


def kinds(run: Run) -> dict[tuple[str, str], str]:
    rows, damaged = run.rows()
    assert damaged == []
    return {key: type(row).__name__ for key, row in rows.items()}


def processes(folder: Path, rows: int) -> set[str]:
    """Those that called a person's backend on so many rows."""
    calls = [line.split() for line in (folder / "calls").read_text().splitlines()]
    return {process for process, seen in calls if seen == str(rows)}


def test_the_command_measures_over_a_cluster_and_tries_a_lost_worker_again(folder):
    backends = ("--backend", "eager", "--backend", "onepass", "--backend", "my_norms:dies_once")
    done = benchmark_norms(folder, *TINY, *backends, "--executor", "ray", "--run-id", "first", "--json")
    assert (folder / "died").exists(), "a worker was lost"
    assert {verdict["backend"] for verdict in json.loads(done.stdout)["verdicts"]} >= {"onepass", "my_norms:dies_once"}
    assert "[1/1] rms_norm-forward-8x64-float32" in done.stderr

    run = Run.open(folder / "runs" / "first")
    assert run.header["executor"] == "ray"
    rows, _ = run.rows()
    case = run.cases[0].id
    for backend in ("eager", "eager@control", "onepass", "my_norms:dies_once"):
        assert isinstance(rows[case, backend], Measured)
    assert isinstance(rows[case, "onepass-kernels"], Checked), "checked in the interpreter, not timed"
    assert {row.host for row in rows.values()} == {socket.gethostname()}
    assert [found["host"] for found in run.environments] == [socket.gethostname()]


def test_cases_each_have_a_process_and_leave_what_they_leave_without_a_cluster(folder, connected):
    sizes = (8, 16)
    execute(here := begun(folder, "here", "my_norms:norm", *sizes), Local())
    (folder / "calls").write_text("")
    execute(there := begun(folder, "there", "my_norms:norm", *sizes), connected)
    assert kinds(there) == kinds(here) and set(kinds(there).values()) == {"Measured"}
    ran = [processes(folder, size) for size in sizes]
    assert [len(each) for each in ran] == [1, 1] and len(set.union(*ran)) == 2
    assert {row.place for row in there.rows()[0].values()} == {(socket.gethostname(), "cpu", "")}

    # A rerun samples again what it is asked to, and pools it.
    once = {key: len(row.timings["call"].rounds) for key, row in there.rows()[0].items()}
    again = there.cases[0].id
    execute(there, connected, again={again})
    for (case, backend), row in there.rows()[0].items():
        assert (len(row.timings["call"].rounds) > once[case, backend]) == (case == again)
    assert len(processes(folder, 8)) == 2 and len(processes(folder, 16)) == 1
    assert len(there.environments) == 1, "a place that is known is not written down again"


def test_a_case_that_is_lost_for_good_is_named_and_keeps_no_other_from_finishing(folder, connected, monkeypatch):
    monkeypatch.setattr(cluster, "ATTEMPTS", 2)
    run = begun(folder, "lost", "my_norms:dies_on_16", 16, 8)
    (folder / "broken").touch()
    with pytest.raises(RunError, match=r"^rms_norm-forward-16x64-float32: .* lost 2 times; .* --resume"):
        execute(run, connected)
    assert {case for case, _ in run.rows()[0]} == {"rms_norm-forward-8x64-float32"}

    finished = processes(folder, 8)
    (folder / "broken").unlink()
    execute(run, connected)
    assert len(kinds(run)) == 6 and run.unfinished() == []
    assert processes(folder, 8) == finished, "what was finished is not measured again"


def test_what_a_measurement_raises_comes_out_as_it_would_without_a_cluster(folder, connected):
    for name, executor in (("here", Local()), ("there", connected)):
        (folder / "calls").write_text("")
        run = begun(folder, name, "my_norms:raises_on_16", 8, 16)
        with pytest.raises(ArithmeticError, match=r"^not a second time$"):
            execute(run, executor)
        assert {case for case, _ in run.rows()[0]} == {"rms_norm-forward-8x64-float32"}


def test_a_gpu_that_the_cluster_lacks_is_said(connected):
    if connected.has_gpu():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match="no CUDA GPU in the Ray cluster"):
        _device("cuda", connected)
    assert _device(None, connected) == "cpu"


def refusal(*arguments: str) -> str:
    """What the command says, and leaves nothing."""
    before = set(Path().rglob("*"))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and done.stdout == "" and set(Path().rglob("*")) == before, done.output
    return done.stderr


def test_what_a_cluster_lacks_is_one_sentence(folder, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    said = refusal("--executor", "ray")
    assert said.count("\n") == 1 and "127.0.0.1:1" in said and "refused" in said
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal("--executor", "ray") == (
        "benchmark-norms: --executor ray needs Ray: pip install 'onepass[cluster]'\n"
    )


def test_a_run_goes_on_with_the_executor_that_it_began_with_unless_told_otherwise(folder, monkeypatch):
    run = begun(folder, "first", "my_norms:norm", 8)
    resume, rerun = ("--run-id", "first", "--resume"), ("--run-id", "first", "--rerun")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "--executor ray needs Ray" in refusal(*resume) and "--executor ray needs Ray" in refusal(*rerun)
    assert "--with-profiling needs --executor local" in refusal(*resume, "--with-profiling")
    assert CliRunner().invoke(app, [*resume, "--executor", "local"]).exit_code == 0
    assert run.unfinished() == []


class TwoHosts:
    """Cases in turns on two hosts, which differ in one package."""

    name, where = "two", "on two hosts"

    def has_gpu(self):
        return True

    def measure(self, run, cases):
        for number, case in enumerate(cases):
            host = "ab"[number % 2]
            placed = {"host": host, "device": "NVIDIA H200", "gpu_uuid": f"GPU-{host}"}
            rng = np.random.default_rng(number)
            rows = [measured(name, rounds_of(20, rng), case=case, **placed) for name in run.backends]
            packages = {"torch": "2.11.0", "triton": f"3.{'ab'.index(host)}"}
            yield case, {"host": host, "gpu": "NVIDIA H200", "gpu_uuid": f"GPU-{host}", "packages": packages}, rows


def test_hosts_are_recorded_with_the_rows_and_never_mixed(tmp_path):
    run = begun(tmp_path, "two", "onepass", 8, 16, 24, device="cuda")
    execute(run, TwoHosts())
    rows, _ = run.rows()
    assert [found["host"] for found in run.environments] == ["a", "b"], "each once"
    assert run.environment["packages"] == {"torch": "2.11.0", "triton": ["3.0", "3.1"]}
    assert run.environment_of(rows[run.cases[1].id, "eager"])["packages"]["triton"] == "3.1"
    assert not any(verdict.call == "unsupported" for verdict in judge_run(run, "eager"))
    said = " ".join(boundary(run, judge_run(run, "eager")))
    assert "Times are of NVIDIA H200," in said and "spread over 2 GPUs of 2 hosts (a and b)" in said

    run.append(measured("onepass", rounds_of(20, np.random.default_rng(0)), case=run.cases[0], host="b"))
    [mixed] = [verdict for verdict in judge_run(run, "eager") if verdict.call == "unsupported"]
    assert "nothing to compare with" in mixed.reasons[0] and mixed.case == run.cases[0].id
