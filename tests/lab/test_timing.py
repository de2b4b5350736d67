"""A timing sums up its samples and keeps them all, as finely as the clocks told them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onepass.lab.data.timing import summarize
from simulated import rounds_of


def test_outliers_are_counted_and_stay_in():
    timing = summarize("gpu", [[10.0] * 20 + [11.0] * 10, [10.0] * 20 + [11.0] * 9 + [500.0]])
    assert timing.outliers == 1
    assert timing.rounds[1][-1] == 500.0
    assert timing.p50 == 10.0 and timing.p95 == 11.0 and timing.noise == pytest.approx(0.1)


def test_a_time_without_samples_is_refused():
    with pytest.raises(ValueError, match="at least one sample of gpu"):
        summarize("gpu", [[], []])


def test_a_single_sample_is_its_own_summary():
    assert (summarize("gpu", [[7.0]]).p50, summarize("gpu", [[7.0]]).p95) == (7.0, 7.0)


def test_quantiles_are_those_that_everyone_else_computes():
    timing = summarize("gpu", rounds_of(20, np.random.default_rng(0)))
    assert (timing.p50, timing.p95) == pytest.approx(tuple(np.quantile(timing.rounds, [0.5, 0.95])))


def test_samples_are_kept_to_the_nanosecond_and_no_finer():
    """The digits behind it are an accident of arithmetic, and most of what a run weighs."""
    rounds = rounds_of(20, np.random.default_rng(0))
    timing = summarize("gpu", rounds)
    assert timing.rounds == pytest.approx(np.array(rounds), abs=0.0005)
    assert len(json.dumps(timing.rounds)) < 9 * sum(map(len, rounds)) < len(json.dumps(rounds)) / 2
    assert summarize("gpu", timing.rounds) == timing, "so nothing is lost on the way over the disk"
