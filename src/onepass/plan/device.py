"""What the planner needs to know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from onepass.plan.binaries import triton_version
from onepass.plan.launcher import launches_clusters


@dataclass(frozen=True)
class Device:
    name: str
    sms: int
    registers: int  # of one SM
    shared: int  # bytes of shared memory of one SM
    cooperative: bool  # the driver can promise that a whole grid runs at the same time
    clusters: bool = False  # and the hardware that some programs do, with each other's shared memory at hand
    gluon: bool = False  # this Triton compiles kernels that say where things lie (those in Gluon)


#: Versions of Triton with which the kernels in Gluon were tested.
GLUON_VERSIONS = ("3.6.",)

#: What the planner is told where kernels run in Triton's interpreter: small, so that small shapes fill it.
INTERPRETER = Device("interpreter", sms=2, registers=65536, shared=233472, cooperative=True)


@cache
def device_of(device: torch.device) -> Device:
    if device.type != "cuda":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    return Device(
        name=properties.name,
        sms=properties.multi_processor_count,
        registers=getattr(properties, "regs_per_multiprocessor", 65536),
        shared=properties.shared_memory_per_multiprocessor,
        cooperative=torch.version.hip is None,
        clusters=launches_clusters(device),
        gluon=torch.version.hip is None and _has_gluon(),
    )


def _has_gluon() -> bool:
    """By its version: Gluon is an experiment of Triton's, which another one may have changed."""
    return triton_version().startswith(GLUON_VERSIONS)
