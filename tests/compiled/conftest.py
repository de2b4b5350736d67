"""An H200 to compile for, without one."""

from __future__ import annotations

from typing import Any

import pytest
from triton.backends.compiler import GPUTarget

from onepass import backward, forward
from onepass.fp8 import forward as quantized
from onepass.plan import compiler, launch
from onepass.plan.device import Device

H200 = Device("H200", sms=132, registers=65536, shared=233472, cooperative=True, clusters=True, gluon=True)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> Device:
    """What is planned is planned for it."""
    for module in (forward, backward, quantized):
        monkeypatch.setattr(module, "device_of", lambda device: H200)
    return H200


@pytest.fixture
def compiled(h200: Device, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Kernels are compiled for an H200 and not loaded; the list has what was compiled."""
    made: list[Any] = []
    compile_for = compiler.compile_kernel

    def compile_only(*arguments: Any) -> Any:
        made.append(compile_for(*arguments, GPUTarget("cuda", 90, 32)))
        return made[-1]

    monkeypatch.setattr(compiler, "compile_kernel", compile_only)
    monkeypatch.setattr(launch, "_native", lambda *arguments: compiler.compile_kernel(*arguments[:4]))
    monkeypatch.setattr(launch, "_compiled", {})
    return made
