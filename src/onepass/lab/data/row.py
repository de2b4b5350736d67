"""A row: what one backend did with one case. An incorrect row cannot carry a speed: its type has no place for one.

Measured     correct before and after the timing, with times and a call
Checked      correct, and not timed: kernels that ran in Triton's interpreter
Incorrect    computed something else; no times
Unsupported  does not do this case, or is not installed; says why
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

#: Behind the name of the baseline where it is measured a second time: what differs between the two, a run cannot tell.
CONTROL_SUFFIX = "@control"

#: The version of the rows' schema, in every row. Readers skip rows of a newer one.
SCHEMA = 1


@dataclass(frozen=True)
class Correctness:
    """Errors against an fp64 reference, as ‖got - ref‖ / ‖ref‖ of each output, with the limit each was held to."""

    errors: dict[str, float]
    limits: dict[str, float]

    @property
    def passed(self) -> bool:
        return all(self.errors[name] <= self.limits[name] for name in self.limits)  # NaN never passes


@dataclass(frozen=True)
class Timing:
    """Samples of one kind of time, in microseconds; `rounds` are lists of samples, in the order they were taken.

    Kinds: "gpu", the sum of kernel durations from the profiler; "call", events around the call behind a blocking kernel
    (on a CPU: wall time of the call); "host", the CPU's cost of issuing the call.
    """

    kind: str
    p50: float
    p95: float
    noise: float  # interquartile range / median
    outliers: int  # labelled, never dropped
    rounds: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a row was made. A comparison is of one place; `gpu_uuid` tells a host's GPUs of one model apart."""

    host: str = ""
    device: str = ""  # the GPU's model, or cpu
    gpu_uuid: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.host, self.device, self.gpu_uuid


@dataclass(frozen=True)
class Measured(Placed):
    case: str
    backend: str
    before: Correctness
    after: Correctness
    timings: dict[str, Timing]  # by kind
    kernels: int | None  # launched by a call; None on a CPU
    gbps: float  # the case's bytes over the deciding time
    tflops: float
    ceiling_gbps: float  # a plain copy of the same size, in the same run
    stopped: str  # why sampling ended: "precise", "plateau" or "time limit"
    throttled: bool

    def __post_init__(self) -> None:
        if not (self.before.passed and self.after.passed):
            raise ValueError(f"{self.backend} on {self.case} is not correct, so it cannot be Measured")


@dataclass(frozen=True)
class Checked(Placed):
    case: str
    backend: str
    before: Correctness
    note: str = "checked, not timed"

    def __post_init__(self) -> None:
        if not self.before.passed:
            raise ValueError(f"{self.backend} on {self.case} is not correct, so it cannot be Checked")


@dataclass(frozen=True)
class Incorrect(Placed):
    case: str
    backend: str
    correctness: Correctness
    when: str  # "before timing" or "after timing"


@dataclass(frozen=True)
class Unsupported(Placed):
    case: str
    backend: str
    why: str


Row = Measured | Checked | Incorrect | Unsupported
KINDS: dict[str, Any] = {kind.__name__.lower(): kind for kind in (Measured, Checked, Incorrect, Unsupported)}


def to_json(row: Row) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": type(row).__name__.lower()} | asdict(row)


def from_json(fields: dict[str, Any]) -> Row:
    """The row of a line. Raises ValueError for what is no row of this schema."""
    if fields.get("schema") != SCHEMA or fields.get("kind") not in KINDS:
        raise ValueError(f"not a row of schema {SCHEMA}")
    kind = KINDS[fields["kind"]]
    values = {name: fields[name] for name in kind.__dataclass_fields__ if name in fields}
    for name in ("before", "after", "correctness"):
        if name in values:
            values[name] = Correctness(**values[name])
    if "timings" in values:
        values["timings"] = {name: Timing(**timing) for name, timing in values["timings"].items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"a {fields['kind']} row lacks fields: {error}") from None
