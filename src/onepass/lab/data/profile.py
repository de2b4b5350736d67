"""A profile: what the hardware's counters say of one backend's call on one case, or why there are none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onepass.lab.data.row import SCHEMA


@dataclass(frozen=True)
class Kernel:
    """One launch, as Nsight Compute saw it: with a cold cache, and by itself."""

    name: str
    us: float
    dram_percent: float  # of the memory's peak rate, reads and writes together
    occupancy_percent: float  # warps that were active, of those that a multiprocessor has room for
    read_bytes: float  # from DRAM
    written_bytes: float  # to DRAM
    registers: int  # a thread
    programs: int  # blocks of the grid


@dataclass(frozen=True)
class Profiled:
    case: str
    backend: str
    needed_bytes: int  # what must move: each input read once, each output written once
    kernels: list[Kernel]

    @property
    def us(self) -> float:
        return sum(kernel.us for kernel in self.kernels)

    @property
    def traffic(self) -> float:
        """DRAM bytes, over the bytes that must move. Below one, where writes were still in the cache at the end."""
        return sum(kernel.read_bytes + kernel.written_bytes for kernel in self.kernels) / self.needed_bytes

    @property
    def dram_percent(self) -> float:
        return self._over_time("dram_percent")

    @property
    def occupancy_percent(self) -> float:
        return self._over_time("occupancy_percent")

    def _over_time(self, name: str) -> float:
        """A mean over the kernels, by the time each took."""
        return sum(getattr(kernel, name) * kernel.us for kernel in self.kernels) / self.us


@dataclass(frozen=True)
class Unprofiled:
    case: str
    backend: str
    why: str


Profile = Profiled | Unprofiled
_KINDS: dict[str, Any] = {kind.__name__.lower(): kind for kind in (Profiled, Unprofiled)}


def to_json(profile: Profile) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": type(profile).__name__.lower()} | asdict(profile)


def from_json(fields: dict[str, Any]) -> Profile:
    """The profile of a line. Raises ValueError for what is no profile of this schema."""
    kind = _KINDS.get(fields.get("kind", ""))
    if fields.get("schema") != SCHEMA or kind is None:
        raise ValueError(f"not a profile of schema {SCHEMA}")
    try:
        values = {name: fields[name] for name in kind.__dataclass_fields__}
        if "kernels" in values:
            values["kernels"] = [Kernel(**kernel) for kernel in values["kernels"]]
        return kind(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a {fields['kind']} line lacks fields: {error}") from None
