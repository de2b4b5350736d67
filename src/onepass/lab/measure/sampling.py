"""The order in which samples are taken: backends interleaved in random order, round by round, until it is enough."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Mapping, Sequence
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


@dataclass
class Sampled:
    rounds: Rounds
    stopped: str = ""
    looks: list[Look] = field(default_factory=list)  # at the GPU, after every backend's turn
    began: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())

    @property
    def held_back_by(self) -> tuple[str, ...]:
        return tuple(sorted({reason for look in self.looks for reason in look.held_back_by}))

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
) -> Sampled:
    """Times of every call. `enough` says why to stop, or None; `look` sees how the GPU is at the moment."""
    for call in calls.values():
        warm_up(call, rules.warm_up_seconds, now)
    sampled = Sampled({name: {clock.kind: [] for clock in clocks} for name in calls})
    order = random.Random(rules.seed)
    start = now()
    for number in range(1, rules.most_rounds + 1):
        for name in order.sample(sorted(calls), len(calls)):
            for clock in clocks:
                sampled.rounds[name][clock.kind].append(clock.samples(calls[name], rules.samples))
            if (seen := look()) is not None:
                sampled.looks.append(seen)
        reason = enough(sampled.rounds) if number >= rules.rounds else None
        if reason is None and number >= rules.rounds and now() - start > rules.seconds:
            reason = "time limit"
        if reason is not None:
            sampled.stopped = reason
            return sampled
    sampled.stopped = "time limit"
    return sampled


def warm_up(call: Call, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
    """By time, not by count: a clock that is still climbing does so for as long whatever the call."""
    end = now() + seconds
    call()
    while now() < end:
        call()
