"""The statistics promise no more than they hold, over many simulated runs whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onepass.lab.judge.stats import (
    FEWEST_ROUNDS,
    Interval,
    independent_interval,
    is_plateau,
    is_precise,
    ratio_interval,
    smallest_effect,
)
from simulated import rounds_of

RUNS = 200
#: Three standard errors of a share of 5 % over RUNS runs: what chance alone may add to the false calls.
MARGIN = 3 * math.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.parametrize("rounds", [FEWEST_ROUNDS, 10, 20])
@pytest.mark.parametrize("interval_of", [ratio_interval, independent_interval])
def test_intervals_miss_the_truth_no_more_often_than_they_say(interval_of, rounds):
    rng = np.random.default_rng(rounds)
    found = [interval_of(rounds_of(30, rng, rounds=rounds), rounds_of(20, rng, rounds=rounds)) for _ in range(RUNS)]
    missed = sum(not interval.low <= 1.5 <= interval.high for interval in found)
    assert missed / RUNS <= 0.05 + MARGIN


def test_one_bad_round_does_not_move_the_ratio():
    rng = np.random.default_rng(0)
    slower, faster = rounds_of(20, rng), rounds_of(20, rng)
    slower[3] = [sample * 2 for sample in slower[3]]
    interval = ratio_interval(slower, faster)
    assert interval.ratio == pytest.approx(1, abs=0.005)
    assert interval.low <= 1 <= interval.high


def test_drift_that_both_backends_lived_through_cancels():
    rng, drift = np.random.default_rng(1), np.linspace(1, 1.3, 10)
    slower, faster = rounds_of(20.4, rng, drift=drift), rounds_of(20, rng, drift=drift)
    paired = ratio_interval(slower, faster)
    assert paired.low > 1 and paired.half_width < 0.01
    assert independent_interval(slower, faster).half_width > 0.05  # it is the pairing that does it


@pytest.mark.parametrize("rounds", range(FEWEST_ROUNDS))
def test_too_few_rounds_leave_the_ratio_unbounded(rounds):
    taken = rounds_of(20, np.random.default_rng(2), rounds=FEWEST_ROUNDS)[:rounds]
    interval = ratio_interval(taken, taken)
    assert (interval.low, interval.high) == (0, math.inf)
    assert not is_precise(interval) and smallest_effect(interval) == math.inf


def test_a_time_of_zero_leaves_the_ratio_unbounded():
    interval = ratio_interval([[1.0]] * 5, [[0.0]] * 5)
    assert math.isnan(interval.ratio) and not is_precise(interval)


def test_rounds_without_a_partner_are_left_out():
    rng = np.random.default_rng(3)
    slower, faster = rounds_of(20, rng, rounds=8), rounds_of(20, rng, rounds=8)
    assert ratio_interval([*slower, [1e9] * 30], faster) == ratio_interval(slower, faster)


def test_the_same_samples_give_the_same_interval():
    rng = np.random.default_rng(4)
    slower, faster = rounds_of(20, rng), rounds_of(20, rng)
    assert ratio_interval(slower, faster) == ratio_interval(slower, faster)


def test_the_smallest_effect_is_as_far_as_the_control_reaches():
    assert smallest_effect(Interval(1.0, 0.98, 1.01)) == pytest.approx(0.02)
    assert smallest_effect(Interval(1.03, 1.02, 1.04)) == pytest.approx(0.04)  # a bias counts as well


def test_precision_is_relative_to_the_ratio():
    assert is_precise(Interval(10.0, 9.96, 10.04)) and not is_precise(Interval(1.0, 0.96, 1.04))


def test_a_plateau_is_no_gain_over_rounds_and_never_a_first_impression():
    narrowing = [1 / rounds for rounds in range(5, 30)]
    assert not any(is_plateau(narrowing[:count]) for count in range(len(narrowing)))
    assert is_plateau([0.02] * 10) and not is_plateau([0.02] * 9)
    assert not is_plateau([math.inf] * 20)
