"""The order in which samples are taken: backends interleaved in random order, round by round, until it is enough."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onepass.lab.data.row import Conditions
from onepass.lab.measure.clock import Call, Clock
from onepass.lab.measure.throttle import Look

#: Rounds by backend and kind of time.
Rounds = dict[str, dict[str, list[list[float]]]]


@dataclass(frozen=True)
class Rules:
    """The method's numbers. They stand in every run's header."""

    warm_up_seconds: float = 0.2
    rounds: int = 5  # at the least
    most_rounds: int = 40
    samples: int = 30  # a round
    seconds: float = 20.0  # for one case, all backends together
    seed: int = 0


#: After a round in which the GPU was held back it gets this long to recover: a power cap is an average over time.
REST_SECONDS = 0.25


@dataclass
class Sampled:
    rounds: Rounds
    set_aside: Rounds  # rounds in which the GPU was held back: on record, and no evidence
    stopped: str = ""
    looks: list[Look] = field(default_factory=list)  # at the GPU, after every backend's turn
    held_back_by: set[str] = field(default_factory=set)
    began: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())

    @property
    def conditions(self) -> Conditions | None:
        return Conditions.over(look.conditions for look in self.looks)


def sample(
    calls: Mapping[str, Call],
    clocks: Sequence[Clock],
    rules: Rules,
    enough: Callable[[Rounds], str | None],
    look: Callable[[], Look | None] = lambda: None,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Sampled:
    """Times of every call. `enough` says why to stop, or None; `look` sees how the GPU is at the moment.

    A round in which the GPU was held back at any look is set aside. It is not replaced for ever: at the time limit
    there may be too few others, and then the sampling is what it is.
    """
    for call in calls.values():
        warm_up(call, rules.warm_up_seconds, clocks[0].finish, now)
    sampled = Sampled(_empty(calls, clocks), _empty(calls, clocks))
    order = random.Random(rules.seed)
    start = now()
    calm = 0
    for number in range(1, rules.most_rounds + 1):
        taken: dict[str, dict[str, list[float]]] = {}
        looks = []
        for name in order.sample(sorted(calls), len(calls)):
            taken[name] = {clock.kind: clock.samples(calls[name], rules.samples) for clock in clocks}
            if (seen := look()) is not None:
                looks.append(seen)
        reasons = {reason for seen in looks for reason in seen.held_back_by}
        for name, kinds in taken.items():
            for kind, samples in kinds.items():
                (sampled.set_aside if reasons else sampled.rounds)[name][kind].append(samples)
        sampled.looks += looks
        sampled.held_back_by |= reasons
        calm += not reasons
        stopped = enough(sampled.rounds) if calm >= rules.rounds and not reasons else None
        if stopped is None and number >= rules.rounds and now() - start > rules.seconds:
            stopped = "time limit"
        if stopped is not None:
            sampled.stopped = stopped
            return sampled
        if reasons:
            rest(REST_SECONDS)
    sampled.stopped = "time limit"
    return sampled


def _empty(calls: Iterable[str], clocks: Sequence[Clock]) -> Rounds:
    return {name: {clock.kind: [] for clock in clocks} for name in calls}


def warm_up(call: Call, seconds: float, finish: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
    """By time, not by count: a clock that is still climbing does so for as long whatever the call.

    Each call is waited for: else some would be left in the GPU's queue when the time is up.
    """
    end = now() + seconds
    call()
    finish()
    while now() < end:
        call()
        finish()
