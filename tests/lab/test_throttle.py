"""What held the GPU back is asked of NVML, and a GPU that does not answer stops no run."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from onepass.lab.data.row import Conditions
from onepass.lab.measure.throttle import Watch


class NVMLError(Exception):
    pass


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML as nvidia-ml-py shows it, with two GPUs that idle in between; the second is held back by its power cap."""
    reasons = {"GPU-1": 0x1, "GPU-2": 0x1 | 0x4}
    clocks = {"sm": 1755, "memory": 3201}
    module = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM="sm",
        NVML_CLOCK_MEM="memory",
        NVML_TEMPERATURE_GPU="gpu",
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda gpu, clock: clocks[clock],
        nvmlDeviceGetTemperature=lambda gpu, sensor: 44,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: reasons[gpu],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_a_look_has_the_clocks_the_temperature_and_the_reasons_that_count(nvml):
    look = Watch("GPU-2").look()
    assert look.conditions == Conditions((1755, 1755), (3201, 3201), (44, 44))
    assert look.held_back_by == ("power cap",), "an idle GPU is not held back"
    assert Watch("GPU-1").look().held_back_by == (), "nor is one whose neighbour is"


@pytest.mark.parametrize("question", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetClockInfo"])
def test_a_gpu_that_does_not_answer_stops_no_run(nvml, question):
    setattr(nvml, question, refuse)
    watch = Watch("GPU-2")
    assert watch.look() is None and watch.look() is None
    assert "Not Supported" in watch.why
