"""A timing: samples of one kind of time, and what they come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Kinds of time by which backends are compared, the best first. The host's time is reported, and decides nothing.
DECIDING = ("gpu", "call")
#: Tukey's rule: a sample is an outlier beyond this many interquartile ranges from the quartiles.
TUKEY_FENCE = 1.5
#: Digits kept of a microsecond: down to a nanosecond, the clocks' own step. What stands behind it is arithmetic's, and
#: would make a run half as large again, twice as large when compressed.
DIGITS = 3


@dataclass(frozen=True)
class Timing:
    """Samples of one kind of time, in microseconds; `rounds` are lists of samples, in the order they were taken.

    `set_aside` are rounds in which the GPU was held back: on record, and in none of the figures.

    Kinds: "gpu", the sum of kernel durations from the profiler; "call", events around the call behind a blocking kernel
    (on a CPU: wall time of the call); "host", the CPU's cost of issuing the call.
    """

    kind: str
    p50: float
    p95: float
    noise: float  # interquartile range / median
    outliers: int  # labelled, never dropped
    rounds: list[list[float]] = field(default_factory=list)
    set_aside: list[list[float]] = field(default_factory=list)


def summarize(kind: str, rounds: list[list[float]], set_aside: Sequence[list[float]] = ()) -> Timing:
    """Median, 95th percentile and noise of all samples but those set aside; outliers are counted and stay in.

    >>> summarize("gpu", [[10.0, 11.0, 10.0], [10.0, 11.0, 90.0]]).outliers
    1
    """
    kept, aside = (
        [[round(float(sample), DIGITS) for sample in samples] for samples in some] for some in (rounds, set_aside)
    )
    samples = [sample for samples in kept for sample in samples]
    if not samples:
        raise ValueError(f"rounds must hold at least one sample of {kind} time")
    twentieths = statistics.quantiles(samples if len(samples) > 1 else samples * 2, n=20, method="inclusive")
    low, p50, high, p95 = (twentieths[place - 1] for place in (5, 10, 15, 19))
    fence = TUKEY_FENCE * (high - low)
    outliers = sum(not low - fence <= sample <= high + fence for sample in samples)
    return Timing(kind, p50, p95, (high - low) / p50 if p50 > 0 else 0.0, outliers, kept, aside)
