"""A row: what one backend did with one case. An incorrect row cannot carry a speed: its type has no place for one.

Measured     correct before and after the timing, with times and a call
Checked      correct, and not timed: kernels that ran in Triton's interpreter
Incorrect    computed something else; no times
Unsupported  does not do this case, or is not installed; says why
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from onepass.lab.data.timing import Timing

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
class Conditions:
    """The GPU while it was sampled: clocks in MHz and temperature in °C, each as the lowest and the highest seen."""

    sm_clock: tuple[int, int]
    memory_clock: tuple[int, int]
    temperature: tuple[int, int]

    @classmethod
    def over(cls, seen: Iterable[Conditions | None]) -> Conditions | None:
        """All that was seen, as one; None where nothing was."""
        known = [each for each in seen if each is not None]
        if not known:
            return None
        ranges = [[getattr(each, name) for each in known] for name in cls.__dataclass_fields__]
        return cls(*((min(low for low, _ in seen), max(high for _, high in seen)) for seen in ranges))


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
    throttled: tuple[str, ...]  # what held the GPU back, where too few rounds went without
    conditions: Conditions | None = None  # None on a CPU, and where NVML does not answer
    began: str = ""  # when the sampling began; rows that share it took turns in its rounds

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
    try:
        return kind(**{name: _value(name, value) for name, value in values.items()})
    except TypeError as error:
        raise ValueError(f"a {fields['kind']} row cannot be read: {error}") from None


def _value(name: str, value: Any) -> Any:
    """What JSON has no type of its own for."""
    if name in ("before", "after", "correctness"):
        return Correctness(**value)
    if name == "timings":
        return {kind: Timing(**timing) for kind, timing in value.items()}
    if name == "throttled":
        return tuple(value)
    if name == "conditions" and value is not None:
        return Conditions(**{each: tuple(seen) for each, seen in value.items()})
    return value
