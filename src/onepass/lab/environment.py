"""What a process measures on: hardware, driver, versions, commit."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

#: Packages whose version may change a figure.
PACKAGES = ("torch", "triton", "onepass", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl", "numpy", "scipy")


def environment(device: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "sources": _sources(),
        **_commit(),
    }
    if device == "cpu":
        found["threads"] = torch.get_num_threads()
    else:
        properties = torch.cuda.get_device_properties(0)
        uuid = f"GPU-{properties.uuid}"  # as NVML and nvidia-smi write it
        found |= {
            "gpu": properties.name,
            "gpu_uuid": uuid,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "sms": properties.multi_processor_count,
            "l2_mib": round(properties.L2_cache_size / 2**20, 1),
            "cuda": torch.version.cuda,
            **_smi(uuid, "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"),
        }
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """Its name by the kernel, or by lscpu, which knows those of ARM by their numbers; else what it can run."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if "model name" not in listed:
            listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", listed, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else platform.processor() or platform.machine()


def _sources() -> str:
    """A digest of onepass as it is installed, which holds also where there is no checkout, or an unclean one."""
    package = files("onepass")
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(str(package)).rglob("*") if path.suffix in (".py", ".c")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _commit() -> dict[str, Any]:
    """The commit that was measured, and whether the tree was clean; nothing where this is no checkout."""
    commit = _output("git", "rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "clean": _output("git", "status", "--porcelain") == ""}


def _smi(uuid: str, *fields: str) -> dict[str, str]:
    """What nvidia-smi says of a GPU; nothing where it does not answer."""
    answer = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", f"--id={uuid}")
    values = [] if answer is None else [value.strip() for value in answer.split(",")]
    return dict(zip((field.replace(".", "_") for field in fields), values, strict=False))


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
