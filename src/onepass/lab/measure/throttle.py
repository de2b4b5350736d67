"""What held the GPU back while it was measured, by NVML; nothing where NVML does not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onepass.lab.data.row import Conditions

#: Reasons that make a sample no evidence. An idle GPU and clocks set by an application are not among them.
_HOLDING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Look:
    """The GPU at one moment, and what holds it back."""

    conditions: Conditions
    held_back_by: tuple[str, ...]


class Watch:
    """Looks at one GPU, by its UUID: NVML's first need not be the first that this process sees.

    `look()` is None where there is nothing to look with.
    """

    def __init__(self, gpu_uuid: str) -> None:
        self._nvml: Any = None
        self.why = ""
        try:
            import pynvml
        except ImportError:
            self.why = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            self._nvml = pynvml
        except pynvml.NVMLError as error:
            self.why = f"NVML does not answer: {error}"

    def look(self) -> Look | None:
        if self._nvml is None:
            return None
        try:
            return self._looked()
        except self._nvml.NVMLError as error:  # not every GPU answers every question
            self._nvml, self.why = None, f"NVML does not answer: {error}"
            return None

    def _looked(self) -> Look:
        nvml, gpu = self._nvml, self._handle
        sm_clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
        memory_clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)
        temperature = nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return Look(
            Conditions((sm_clock, sm_clock), (memory_clock, memory_clock), (temperature, temperature)),
            tuple(name for bit, name in _HOLDING.items() if reasons & bit),
        )
