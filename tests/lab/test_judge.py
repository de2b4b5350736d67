"""The judge says no more than the rows carry: every call on its evidence, and none on noise."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from onepass.lab.data.row import Checked, Incorrect, Unsupported
from onepass.lab.data.verdict import CALLS
from onepass.lab.judge.judge import PRESETS, judge, judge_run
from onepass.lab.judge.stats import Interval
from simulated import CASE, RIGHT, WRONG, measured, rounds_of, run_of

QUIET = Interval(1.0, 0.998, 1.002)


def row_of(backend, time, seed, **fields):
    how = {name: fields.pop(name) for name in ("rounds", "samples", "noise", "round_noise") if name in fields}
    return measured(backend, rounds_of(time, np.random.default_rng(seed), **how), **fields)


BASE = row_of("eager", 40, 1)
FAST = row_of("onepass", 20, 2)
JUDGED = {
    "supported": FAST,
    "same": row_of("onepass", 40, 2),
    "slower": row_of("onepass", 50, 2),
    "rerun noise": row_of("onepass", 20, 2, noise=0.3),
    "throttled": row_of("onepass", 20, 2, throttled=("power cap",)),
    "incorrect": Incorrect(CASE.id, "onepass", WRONG, "after timing"),
    "suspect": row_of("onepass", 10, 2),
    "unsupported": Unsupported(CASE.id, "onepass", "not installed: pip install it"),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_can_be_reached_and_says_why(call):
    verdict = judge(JUDGED[call], BASE, QUIET)
    assert (verdict.call, verdict.backend, verdict.against) == (call, "onepass", "eager")
    assert all(verdict.reasons)


def test_what_held_the_gpu_back_is_named_whichever_side_it_was_on():
    hot = row_of("eager", 40, 1, throttled=("power brake", "power cap"))
    said = "the GPU was held back while onepass and eager ran: power cap, power brake"
    assert judge(JUDGED["throttled"], hot, QUIET).reasons == (said,)
    assert judge(FAST, hot, QUIET).reasons == ("the GPU was held back while eager ran: power brake, power cap",)


@pytest.mark.parametrize("base", [BASE, *JUDGED.values()], ids=lambda row: type(row).__name__)
def test_an_incorrect_row_is_never_anything_else_and_has_no_speed(base):
    verdict = judge(JUDGED["incorrect"], base, QUIET)
    assert verdict.call == "incorrect" and verdict.speedup is None
    assert "y is off by 0.5 (limit 0.001)" in verdict.reasons[0]


@pytest.mark.parametrize("base", [JUDGED["incorrect"], JUDGED["unsupported"], Checked(CASE.id, "eager", RIGHT)])
def test_without_a_base_there_is_nothing_to_compare_with(base):
    verdict = judge(FAST, base, QUIET)
    assert verdict.call == "unsupported" and "nothing to compare with" in verdict.reasons[0]


def test_what_was_checked_and_not_timed_gets_no_speed():
    verdict = judge(Checked(CASE.id, "onepass", RIGHT), BASE, QUIET)
    assert (verdict.call, verdict.speedup) == ("unsupported", None) and "not timed" in verdict.reasons[0]


@pytest.mark.parametrize("shortage", [{"rounds": 1}, {"rounds": 4}, {"samples": 29}], ids=str)
def test_less_sampling_than_the_method_asks_for_supports_nothing(shortage):
    verdict = judge(row_of("onepass", 20, 2, **shortage), BASE, QUIET)
    assert verdict.call == "rerun noise" and "the method asks for" in verdict.reasons[0]


def test_rounds_that_disagree_support_nothing():
    verdict = judge(row_of("onepass", 38, 2, round_noise=0.15, noise=0.001), BASE, QUIET)
    assert verdict.call == "rerun noise"


def test_a_true_difference_of_two_percent_is_found():
    found = [judge(row_of("onepass", 40, 2 * seed), row_of("eager", 40.8, 2 * seed + 1), QUIET) for seed in range(50)]
    assert sum(verdict.call == "supported" for verdict in found) >= 45
    assert not any(verdict.call == "slower" for verdict in found)


def test_noise_alone_is_never_called_a_difference():
    runs, noise = 200, {"noise": 0.02, "round_noise": 0.01}
    found = [
        judge(row_of("a", 40, 2 * seed, **noise), row_of("b", 40, 2 * seed + 1, **noise), QUIET) for seed in range(runs)
    ]
    false = sum(verdict.call in ("supported", "slower") for verdict in found)
    assert false / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_difference_that_the_control_shows_too_is_none():
    faster = row_of("onepass", 39.2, 2)
    assert judge(faster, BASE, QUIET).call == "supported"
    assert judge(faster, BASE, Interval(1.02, 1.0, 1.04)).call == "same"
    assert (
        judge(faster, BASE, Interval(1.05, 1.0, 1.1)).call == "rerun noise"
    )  # nor does it show that they are the same
    assert judge(faster, BASE, None).call == "same"  # without a control, more is asked for
    assert judge(FAST, BASE, None).call == "supported"


def test_the_same_claims_no_more_than_the_interval_does():
    verdict = judge(row_of("onepass", 40, 2, round_noise=0.02), row_of("eager", 40, 1, round_noise=0.02), QUIET)
    reach = max(verdict.high - 1, 1 - verdict.low)
    assert verdict.call == "same" and reach > 0.01 and f"below {reach:.1%}" in verdict.reasons[0]


def test_a_row_faster_than_a_copy_is_not_believed_whichever_side_it_is_on():
    assert "GB/s" in judge(JUDGED["suspect"], BASE, QUIET).reasons[0]
    assert judge(BASE, JUDGED["suspect"], QUIET).call == "suspect"


def test_a_copy_of_a_few_microseconds_is_no_ceiling():
    ceiling = CASE.bytes / 2.5 / 1e3  # it took 2.5 µs
    small, base = row_of("onepass", 2.0, 2, ceiling=ceiling), row_of("eager", 4.0, 1, ceiling=ceiling)
    assert judge(small, base, QUIET).call == "supported"


def test_an_unreasonable_speed_up_is_not_believed():
    verdict = judge(row_of("onepass", 20, 2), row_of("eager", 20 * 60, 1), QUIET)
    assert verdict.call == "suspect" and "beyond reason" in verdict.reasons[0]


def test_gpu_time_decides_where_both_have_it():
    rounds = rounds_of(20, np.random.default_rng(0))
    both, called = measured("onepass", rounds, kinds=("gpu", "call")), measured("eager", rounds, kinds=("call",))
    assert "compared by gpu time" in judge(both, BASE, QUIET).reasons
    assert "compared by call time" in judge(both, called, QUIET).reasons
    assert judge(both, measured("eager", rounds, kinds=("host",)), QUIET).call == "unsupported"


def test_rows_of_different_gpus_are_not_compared():
    there = row_of("eager", 40, 1, host="b", device="NVIDIA A100")
    assert judge(row_of("onepass", 20, 2, host="a", device="NVIDIA H200"), there, QUIET).call == "unsupported"
    first, second = ({"host": "a", "device": "NVIDIA H200", "gpu_uuid": uuid} for uuid in ("GPU-1", "GPU-2"))
    mixed = judge(row_of("onepass", 20, 2, **first), row_of("eager", 40, 1, **second), QUIET)
    assert mixed.call == "unsupported" and "GPU-1" in mixed.reasons[0] and "GPU-2" in mixed.reasons[0]
    assert judge(row_of("onepass", 20, 2, **first), row_of("eager", 40, 1, **first), QUIET).call == "supported"


def test_strict_asks_for_more():
    row, base = row_of("onepass", 20, 2, rounds=6), row_of("eager", 40, 1, rounds=6)
    assert judge(row, base, QUIET).call == "supported"
    assert judge(row, base, QUIET, PRESETS["strict"]).call == "rerun noise"


def test_a_run_is_judged_by_its_own_control_and_the_verdicts_are_plain_json(tmp_path):
    control = row_of("eager@control", 40, 3)
    run = run_of(tmp_path, "one", [BASE, control, row_of("onepass", 20, 2, rounds=1), row_of("liger", 20, 4)])
    verdicts = judge_run(run, "eager")
    assert {verdict.backend: verdict.call for verdict in verdicts} == {"onepass": "rerun noise", "liger": "supported"}
    assert any("A/A control" in reason for reason in verdicts[1].reasons)
    json.dumps([asdict(verdict) for verdict in verdicts], allow_nan=False)


def test_a_disturbed_control_takes_the_support_away(tmp_path):
    run = run_of(tmp_path, "one", [BASE, row_of("eager@control", 41, 3), row_of("onepass", 39.4, 2)])
    assert judge_run(run, "eager")[0].call == "same"
