"""Samples of a rerun join those before it, and never in a way that pairs rounds which did not take turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onepass.lab.data.pool import pooled
from onepass.lab.data.row import Conditions, Incorrect, Unsupported
from onepass.lab.data.timing import summarize
from onepass.lab.judge.judge import judge_run
from simulated import CASE, WRONG, measured, rounds_of, run_of


def sampling(began, *, time=20.0, seed=0, noise=0.005, rounds=6, **fields):
    """Rows of eager and onepass that took turns, onepass twice as fast."""
    rng = np.random.default_rng(seed)
    return [
        measured(backend, rounds_of(its, rng, rounds=rounds, noise=noise), began=began, host="a", **fields)
        for backend, its in (("eager", 2 * time), ("onepass", time))
    ]


def rounds(found, backend="onepass"):
    return found[CASE.id, backend].timings["gpu"].rounds


FIRST, SECOND = sampling("10:00"), sampling("11:00", time=22.0, seed=1)


def test_a_rerun_joins_the_rounds_before_it_and_everything_is_counted_anew():
    found = pooled([*FIRST, *SECOND])
    for place, backend in enumerate(("eager", "onepass")):
        assert rounds(found, backend) == FIRST[place].timings["gpu"].rounds + SECOND[place].timings["gpu"].rounds
    row = found[CASE.id, "onepass"]
    assert row.timings["gpu"] == summarize("gpu", rounds(found))
    assert row.gbps == pytest.approx(CASE.bytes / row.timings["gpu"].p50 / 1e3)
    assert row.tflops == pytest.approx(CASE.flops / row.timings["gpu"].p50 / 1e6)


def test_conditions_and_the_ceiling_are_those_of_all_samplings():
    cool, warm = Conditions((1900, 1980), (3201, 3201), (40, 45)), Conditions((1850, 1960), (3201, 3201), (50, 55))
    found = pooled([*sampling("10:00", conditions=cool, ceiling=3900.0), *sampling("11:00", conditions=warm)])
    row = found[CASE.id, "onepass"]
    assert row.conditions == Conditions((1850, 1980), (3201, 3201), (40, 55)) and row.ceiling_gbps == 4000.0


def test_a_throttled_sampling_counts_only_where_there_is_no_other():
    hot, hotter = sampling("10:00", throttled=("power cap",)), sampling("11:00", throttled=("power brake",))
    found = pooled([*hot, *SECOND])
    assert rounds(found) == SECOND[1].timings["gpu"].rounds and found[CASE.id, "onepass"].throttled == ()
    assert rounds(pooled([*FIRST, *hotter])) == FIRST[1].timings["gpu"].rounds
    found = pooled([*hot, *hotter])
    assert found[CASE.id, "onepass"].throttled == ("power brake", "power cap") and len(rounds(found)) == 12


def test_a_sampling_that_a_kill_cut_off_pairs_with_nothing():
    found = pooled([FIRST[0], *SECOND])
    assert rounds(found, "eager") == SECOND[0].timings["gpu"].rounds, "its partner never came to its turn"
    found = pooled([*FIRST, SECOND[0]])
    assert rounds(found, "eager") == FIRST[0].timings["gpu"].rounds


@pytest.mark.parametrize("elsewhere", [{"host": "b"}, {"device": "NVIDIA A100"}, {"gpu_uuid": "GPU-2"}], ids=str)
def test_rounds_of_another_gpu_do_not_join(elsewhere):
    moved = [replace(row, **elsewhere) for row in SECOND]
    assert rounds(pooled([*FIRST, *moved])) == SECOND[1].timings["gpu"].rounds
    assert pooled([*FIRST, moved[0]]) == pooled(FIRST), "nor does one that a kill cut off there replace half of a pair"
    hot = [replace(row, throttled=("power cap",)) for row in moved]
    assert pooled([*FIRST, *hot]) == pooled(FIRST)
    third = sampling("12:00", seed=2)
    assert pooled([*FIRST, *moved, *third]) == pooled([*FIRST, *third])


@pytest.mark.parametrize(
    "other", [Incorrect(CASE.id, "onepass", WRONG, "after timing"), Unsupported(CASE.id, "onepass", "")]
)
def test_what_is_wrong_or_gone_is_not_hidden_by_earlier_times(other):
    found = pooled([*FIRST, SECOND[0], other])
    assert found[CASE.id, "onepass"] == other and len(rounds(found, "eager")) == 12
    found = pooled([*FIRST, other, *SECOND])
    assert rounds(found) == SECOND[1].timings["gpu"].rounds == rounds(pooled([other, *SECOND]))
    assert len(rounds(found, "eager")) == len(rounds(found)), "nor are rounds paired across it"


def test_rows_that_do_not_say_when_they_were_sampled_replace_each_other():
    again = sampling("", seed=3)
    assert pooled([*sampling(""), *again])[CASE.id, "onepass"] == again[1]


def test_a_comparison_that_was_too_noisy_is_settled_by_a_rerun(tmp_path):
    few = sampling("10:00", rounds=3)
    assert judge_run(run_of(tmp_path, "before", few), "eager")[0].call == "rerun noise"
    verdict = judge_run(run_of(tmp_path, "after", [*few, *SECOND]), "eager")[0]
    assert verdict.call == "supported" and verdict.speedup == pytest.approx(2, rel=0.02)
