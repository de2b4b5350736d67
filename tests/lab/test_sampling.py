"""Sampling treats every backend alike: in turns, in random order, for as long as it takes and no longer."""

from __future__ import annotations

import pytest

from onepass.lab.data.case import Case
from onepass.lab.data.row import Conditions, Correctness
from onepass.lab.measure.clock import WallClock
from onepass.lab.measure.sampling import REST_SECONDS, Rounds, Rules, Sampled, sample, warm_up
from onepass.lab.measure.throttle import Look
from onepass.lab.runner import Lab, _measured

RULES = Rules(warm_up_seconds=0.0, rounds=3, most_rounds=10, samples=4, seconds=100.0)


class CountingClock:
    """Hands out the number of the sample instead of a time, and remembers whose turn it was."""

    kind = "call"

    def __init__(self) -> None:
        self.turns: list[object] = []

    def samples(self, call, count):
        self.turns.append(call)
        return [float(len(self.turns))] * count

    def finish(self):
        pass


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


def seen(clock: int, temperature: int, *reasons: str) -> Look:
    return Look(Conditions((clock, clock), (3201, 3201), (temperature, temperature)), reasons)


def sampled_under(looks: list[Look | None], enough=never) -> tuple[Sampled, list[float]]:
    rests: list[float] = []
    coming = iter([*looks, *[seen(1965, 43)] * 100])
    asked = calls("eager", "onepass")
    return sample(asked, [CountingClock()], RULES, enough, look=lambda: next(coming), rest=rests.append), rests


def test_a_round_in_which_the_gpu_was_held_back_is_set_aside_for_all_backends():
    result, rests = sampled_under([seen(1980, 41), seen(1980, 41), seen(1980, 42), seen(1755, 44, "power cap")])
    for name in ("eager", "onepass"):
        assert len(result.rounds[name]["call"]) == RULES.most_rounds - 1
        assert len(result.set_aside[name]["call"]) == 1, "rounds are pairs: one without its other would be none"
    assert result.held_back_by == {"power cap"}
    assert result.conditions == Conditions((1755, 1980), (3201, 3201), (41, 44))
    assert rests == [REST_SECONDS], "the GPU gets time to recover"


def test_rounds_set_aside_do_not_count_towards_the_fewest():
    result, _ = sampled_under([seen(1980, 41, "power cap")] * 4, enough=lambda rounds: "precise")
    assert len(result.rounds["eager"]["call"]) == RULES.rounds
    assert len(result.set_aside["eager"]["call"]) == 2


def test_a_gpu_that_nobody_looks_at_is_not_said_to_be_held_back():
    result = sample(calls("eager"), [CountingClock()], RULES, never)
    assert result.conditions is None and not result.held_back_by and not result.set_aside["eager"]["call"]


@pytest.mark.parametrize(("calm", "aside", "throttled"), [(5, 2, ()), (4, 3, ("power cap",)), (5, 0, ())])
def test_a_row_is_throttled_only_if_too_few_rounds_went_without(calm, aside, throttled):
    rounds = {"onepass": {"call": [[10.0, 10.0]] * calm}}
    left = {"onepass": {"call": [[90.0, 90.0]] * aside}}
    taken = Sampled(rounds, left, "precise", held_back_by={"power cap"} if aside else set())
    lab = Lab("cpu", Rules(rounds=5), {"host": "here"})
    case = Case("rms_norm", "forward", 8, 64, "float32")
    right = Correctness({"y": 0.0}, {"y": 1.0})
    row = _measured(lab, case, "onepass", right, right, taken, None)
    timing = row.timings["call"]
    assert row.throttled == throttled
    assert (len(timing.rounds), len(timing.set_aside)) == ((calm + aside, 0) if throttled else (calm, aside))
    assert throttled or timing.p50 == 10.0, "what is set aside is in no figure"


def test_warm_up_lasts_by_time_and_calls_at_least_once():
    seconds, seen = iter([0.0, 0.1, 0.19, 0.3]), []
    warm_up(lambda: seen.append("call"), 0.2, lambda: seen.append("finish"), now=lambda: next(seconds))
    assert seen == ["call", "finish"] * 3, "none is left in a queue"
    warm_up(lambda: seen.append("call"), 0.0, lambda: seen.append("finish"), now=lambda: 5.0)
    assert len(seen) == 8


def test_the_wall_clock_sees_a_slow_call():
    import time

    taken = WallClock().samples(lambda: time.sleep(0.002), 5)
    assert len(taken) == 5
    assert min(taken) == pytest.approx(2000, rel=0.9)
    assert min(taken) >= 2000
