"""A verdict: what a comparison of two backends on one case carries, with its reasons."""

from __future__ import annotations

from dataclasses import dataclass

#: supported: faster, beyond noise. same: no difference that the run could tell. slower: slower, beyond noise.
#: rerun noise: too noisy to say. throttled: the GPU held back. suspect: faster than the copy ceiling, or unreasonably
#: fast. incorrect, unsupported: there are no times to compare.
CALLS = ("supported", "same", "slower", "rerun noise", "throttled", "incorrect", "suspect", "unsupported")
#: Those that another sampling may settle.
RERUN = ("rerun noise", "throttled")


@dataclass(frozen=True)
class Verdict:
    case: str
    backend: str
    against: str  # the backend it is compared with
    call: str
    reasons: tuple[str, ...]  # in words
    speedup: float | None = None  # time of `against` / time of `backend`: the median over rounds of the medians' ratio
    low: float | None = None  # 95 % confidence interval of that ratio
    high: float | None = None

    def __post_init__(self) -> None:
        if self.call not in CALLS:
            raise ValueError(f"call must be one of {', '.join(CALLS)}, not {self.call}")
