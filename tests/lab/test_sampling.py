"""Sampling treats every backend alike: in turns, in random order, for as long as it takes and no longer."""

from __future__ import annotations

import pytest

from onepass.lab.data.row import Conditions
from onepass.lab.measure.clock import WallClock
from onepass.lab.measure.sampling import Rounds, Rules, sample, warm_up
from onepass.lab.measure.throttle import Look

RULES = Rules(warm_up_seconds=0.0, rounds=3, most_rounds=10, samples=4, seconds=100.0)


class CountingClock:
    """Hands out the number of the sample instead of a time, and remembers whose turn it was."""

    kind = "call"

    def __init__(self) -> None:
        self.turns: list[object] = []

    def samples(self, call, count):
        self.turns.append(call)
        return [float(len(self.turns))] * count


def never(rounds: Rounds) -> None:
    return None


def calls(*names: str) -> dict:
    return {name: (lambda name=name: name) for name in names}


def test_every_backend_has_its_turn_in_every_round():
    clock, asked = CountingClock(), calls("eager", "onepass", "eager@control")
    result = sample(asked, [clock], RULES, never)
    assert len(clock.turns) == 3 * RULES.most_rounds
    for start in range(0, len(clock.turns), 3):
        assert set(clock.turns[start : start + 3]) == set(asked.values())
    for name in asked:
        assert len(result.rounds[name]["call"]) == RULES.most_rounds
        assert all(len(taken) == RULES.samples for taken in result.rounds[name]["call"])


def test_no_backend_is_always_first():
    clock, asked = CountingClock(), calls("eager", "onepass")
    sample(asked, [clock], Rules(warm_up_seconds=0.0, rounds=3, most_rounds=40, samples=1), never)
    firsts = [clock.turns[start] for start in range(0, len(clock.turns), 2)]
    assert 5 < firsts.count(asked["eager"]) < 35


def test_sampling_stops_for_the_reason_it_was_given_but_not_before_the_fewest_rounds():
    result = sample(calls("eager"), [CountingClock()], RULES, lambda rounds: "precise")
    assert result.stopped == "precise"
    assert len(result.rounds["eager"]["call"]) == RULES.rounds


def test_a_case_that_takes_too_long_ends_at_its_time_limit():
    seconds = iter(range(0, 100_000, 40))
    result = sample(calls("eager"), [CountingClock()], RULES, never, now=lambda: float(next(seconds)))
    assert result.stopped == "time limit"
    assert len(result.rounds["eager"]["call"]) < RULES.most_rounds


def test_what_held_the_gpu_back_once_is_remembered():
    def seen(clock, temperature, *reasons):
        return Look(Conditions((clock, clock), (3201, 3201), (temperature, temperature)), reasons)

    looks = iter([seen(1980, 41), seen(1755, 44, "power cap"), None, *[seen(1965, 43)] * 100])
    result = sample(calls("eager"), [CountingClock()], RULES, never, look=lambda: next(looks))
    assert result.held_back_by == ("power cap",)
    assert result.conditions == Conditions((1755, 1980), (3201, 3201), (41, 44))
    assert sample(calls("eager"), [CountingClock()], RULES, never).conditions is None, "nothing looked, nothing is said"


def test_warm_up_lasts_by_time_and_calls_at_least_once():
    seconds, seen = iter([0.0, 0.1, 0.19, 0.3]), []
    warm_up(lambda: seen.append(1), 0.2, now=lambda: next(seconds))
    assert len(seen) == 3
    warm_up(lambda: seen.append(1), 0.0, now=lambda: 5.0)
    assert len(seen) == 4


def test_the_wall_clock_sees_a_slow_call():
    import time

    taken = WallClock().samples(lambda: time.sleep(0.002), 5)
    assert len(taken) == 5
    assert min(taken) == pytest.approx(2000, rel=0.9)
    assert min(taken) >= 2000
