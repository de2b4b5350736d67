"""A record names the processor that was measured on, whatever the kernel and the tools at hand say of it."""

from __future__ import annotations

import platform
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from onepass.lab import environment

X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Processor\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def lscpu(command: list[str], **how: Any) -> Any:
    assert command == ["lscpu"]
    return SimpleNamespace(stdout="Architecture:    aarch64\nModel name:      Neoverse-N1\nModel:           1\n")


def no_lscpu(command: list[str], **how: Any) -> Any:
    raise FileNotFoundError("lscpu")


@pytest.mark.parametrize(
    ("cpuinfo", "tool", "name"),
    [
        (X86, no_lscpu, "Intel(R) Xeon(R) Processor"),
        (ARM, lscpu, "Neoverse-N1"),
        (ARM, no_lscpu, "aarch64"),
        (None, no_lscpu, "aarch64"),
    ],
)
def test_a_processor_has_a_name_everywhere(monkeypatch, tmp_path, cpuinfo, tool, name):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(environment, "Path", lambda path: tmp_path / "cpuinfo")
    monkeypatch.setattr(subprocess, "run", tool)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert environment._cpu() == name
