"""A comparison of runs fails a build for what became slower or wrong, and for nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from onepass.lab.data.row import Incorrect, Unsupported
from onepass.lab.data.run import RunError
from onepass.lab.judge.compare import compare
from simulated import CASE, GPU, WRONG, measured, rounds_of, run_of


def row_of(time, seed, *, case=CASE, backend="onepass", device="", **how):
    return measured(backend, rounds_of(time, np.random.default_rng(seed), **how), case=case, device=device)


def changes_of(tmp_path, was, now, **environments):
    a = run_of(tmp_path, "a", was, environment=environments.get("a", GPU))
    b = run_of(tmp_path, "b", now, environment=environments.get("b", GPU))
    return compare(a, b)


def test_a_regression_is_found_and_fails(tmp_path):
    found = changes_of(tmp_path, [row_of(20, 1)], [row_of(21, 2)])
    assert found.regressed and found.changes[0].ratio == pytest.approx(1.05, rel=0.01)
    assert "regression: onepass on rms_norm" in str(found)
    json.dumps(asdict(found), allow_nan=False)


def test_an_improvement_does_not_fail(tmp_path):
    found = changes_of(tmp_path, [row_of(21, 1)], [row_of(20, 2)])
    assert [change.change for change in found.changes] == ["improvement"] and not found.regressed


def test_noise_alone_fails_no_build_however_many_rows_there_are():
    """200 comparisons of 5 rows each, of the same with the same. Few may fail: 5 %, and three standard errors."""
    cases = [replace(CASE, rows=rows) for rows in range(1, 6)]
    pairs, failed = 200, 0
    rng = np.random.default_rng(0)

    class Rows:
        """A run in memory: what compare reads of one."""

        id, header, environment = "run", {"environment": GPU}, GPU

        def environment_of(self, row):
            return GPU

        def rows(self):
            found = [measured("onepass", rounds_of(20, rng, rounds=6, round_noise=0.03), case=case) for case in cases]
            return {(row.case, row.backend): row for row in found}, []

    for _ in range(pairs):
        failed += compare(Rows(), Rows()).regressed
    assert failed / pairs <= 0.05 + 3 * (0.05 * 0.95 / pairs) ** 0.5


def test_a_difference_that_two_runs_of_the_same_may_have_is_noise(tmp_path):
    found = changes_of(tmp_path, [row_of(20, 1)], [row_of(20.3, 2)])
    assert [change.change for change in found.changes] == ["noise"]


def test_a_control_that_disagrees_with_itself_widens_what_is_noise(tmp_path):
    def rows(time, seed):
        return [row_of(time, seed), row_of(40, 8, backend="eager"), row_of(44, 9, backend="eager@control")]

    found = changes_of(tmp_path, rows(20, 1), rows(21, 2))
    assert not found.regressed and not any("@control" in change.backend for change in found.changes)


def test_throttled_or_short_or_scattered_rows_are_noise(tmp_path):
    slow = row_of(30, 2)
    held_back = replace(slow, throttled=("power cap",))
    for number, now in enumerate([held_back, row_of(30, 2, rounds=1), row_of(30, 2, noise=0.4)]):
        found = changes_of(tmp_path / str(number), [row_of(20, 1)], [now])
        assert [change.change for change in found.changes] == ["noise"], found


@pytest.mark.parametrize("other", [GPU | {"gpu": "NVIDIA A100"}, GPU | {"host": "b"}, {"cpu": "Xeon", "host": "a"}])
def test_different_machines_are_not_compared(tmp_path, other):
    found = changes_of(tmp_path, [row_of(20, 1)], [row_of(40, 2)], b=other)
    assert [change.change for change in found.changes] == ["not comparable"] and not found.regressed


def test_rows_that_name_their_own_machine_are_not_mixed(tmp_path):
    found = changes_of(tmp_path, [row_of(20, 1)], [replace(row_of(40, 2), host="b")])
    assert "host a and b" in found.changes[0].reason and not found.regressed


def test_two_gpus_of_one_model_and_host_are_not_mixed_where_both_are_known(tmp_path):
    def changes(name, was, now):
        a, b = (GPU if uuid is None else GPU | {"gpu_uuid": uuid} for uuid in (was, now))
        rows = [replace(row_of(time, 1), host="a", gpu_uuid=uuid or "") for time, uuid in ((20, was), (40, now))]
        return changes_of(tmp_path / name, rows[:1], rows[1:], a=a, b=b)

    found = changes("two", "GPU-1", "GPU-2")
    assert "gpu_uuid GPU-1 and GPU-2" in found.changes[0].reason and not found.regressed
    assert changes("one", "GPU-1", "GPU-1").regressed
    assert changes("an older run", None, "GPU-1").regressed, "it did not say which, and was compared before"


def test_what_became_wrong_is_a_regression(tmp_path):
    found = changes_of(tmp_path, [row_of(20, 1)], [Incorrect(CASE.id, "onepass", WRONG, "before timing")])
    assert found.regressed and "no longer correct" in found.changes[0].reason


def test_what_one_run_lacks_is_named_and_does_not_fail(tmp_path):
    other = replace(CASE, rows=8)
    gone = Unsupported(CASE.id, "onepass", "not installed")
    found = changes_of(tmp_path, [row_of(20, 1)], [gone, row_of(20, 1, case=other)])
    assert [change.change for change in found.changes] == ["missing", "missing"] and not found.regressed
    assert {change.reason for change in found.changes} == {"B is unsupported", "A has no such row"}


def test_what_else_changed_is_said(tmp_path):
    found = changes_of(tmp_path, [row_of(20, 1)], [row_of(21, 2)], b=GPU | {"packages": {"torch": "2.12.0"}})
    assert found.regressed and "torch differs: 2.11.0 → 2.12.0" in found.notes


def relative_of(tmp_path, was, now, **how):
    """Runs of two machines of one kind: `was` and `now` are the times of onepass and of eager."""
    runs = []
    for name, times, seed in (("a", was, 1), ("b", now, 3)):
        rows = [
            row_of(times[0], seed, device="NVIDIA H200"),
            row_of(times[1], seed + 1, backend="eager", device="NVIDIA H200"),
        ]
        runs.append(run_of(tmp_path, name, rows, environment=GPU | {"host": name, "gpu_uuid": name}))
    return compare(*runs, relative=True, **how)


def test_runs_of_two_machines_are_compared_by_their_baselines(tmp_path):
    """The second machine is a tenth slower, and so is everything on it."""
    found = relative_of(tmp_path / "slower machine", (20, 40), (22, 44))
    assert [(change.backend, change.change) for change in found.changes] == [("onepass", "noise")]
    found = relative_of(tmp_path / "slower code", (20, 40), (24, 44))
    assert found.regressed and found.changes[0].ratio == pytest.approx(24 / 22, rel=0.01)
    assert "of the baseline: 9.0% slower" in found.changes[0].reason
    found = relative_of(tmp_path / "faster code", (20, 40), (18, 40))
    assert [change.change for change in found.changes] == ["improvement"]
    found = relative_of(tmp_path / "faster baseline", (20, 40), (20.2, 38))
    assert [change.change for change in found.changes] == ["noise"]
    assert "by the clock, the rest is the baseline's" in found.changes[0].reason
    assert not relative_of(tmp_path / "not asked", (20, 40), (24, 44), only=["quack"]).changes


def test_what_a_relative_comparison_cannot_take(tmp_path):
    h200, b200 = (
        [row_of(20, 1, device=f"NVIDIA {name}"), row_of(40, 2, backend="eager", device=f"NVIDIA {name}")]
        for name in ("H200", "B200")
    )
    a = run_of(tmp_path, "a", h200)
    found = compare(a, run_of(tmp_path, "b", b200), relative=True)
    assert [change.change for change in found.changes] == ["not comparable"] and "B200" in found.changes[0].reason
    found = compare(a, run_of(tmp_path, "c", h200[:1]), relative=True)
    assert [change.change for change in found.changes] == ["missing"] and not found.regressed
    wrong = Incorrect(CASE.id, "onepass", WRONG, "before timing", device="NVIDIA H200")
    assert compare(a, run_of(tmp_path, "d", [wrong, h200[1]]), relative=True).regressed
    other = run_of(tmp_path, "e", h200)
    other.header["baseline"] = "compile"
    with pytest.raises(RunError, match="different baselines, eager and compile"):
        compare(a, other, relative=True)


def test_noise_alone_fails_no_relative_comparison():
    """As above, of rows and yardsticks that scatter by as much as presets call a machine's own."""
    pairs, failed = 200, 0
    rng = np.random.default_rng(0)

    class Rows:
        id, environment = "run", GPU
        header = {"environment": GPU, "baseline": "eager"}  # noqa: RUF012

        def rows(self):
            names = ("onepass", "eager")
            found = [measured(name, rounds_of(20, rng, rounds=6, round_noise=0.03)) for name in names]
            return {(row.case, row.backend): row for row in found}, []

    for _ in range(pairs):
        failed += compare(Rows(), Rows(), relative=True).regressed
    assert failed / pairs <= 0.05 + 3 * (0.05 * 0.95 / pairs) ** 0.5
