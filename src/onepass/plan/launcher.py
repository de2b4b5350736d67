"""The C launcher (launcher.c), built once for a machine and kept in Triton's cache, beside its kernels."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onepass.plan.binaries import Binary

#: How scalars lie in the eight bytes that each one gets, by their type in Triton's signature.
_FORMATS = {"i64": "q", "i32": "i4x", "fp32": "f4x"}


@cache
def launcher() -> Any:
    """The module, or None where it cannot be had: Triton's own launcher serves as well, it is just slower."""
    try:
        from triton.backends.nvidia.driver import include_dirs
        from triton.runtime.build import compile_module_from_src

        source = Path(__file__).with_name("launcher.c").read_text()
        return compile_module_from_src(source, "onepass_launcher", include_dirs=include_dirs)
    # No compiler, no headers, no driver, another Triton. Elsewhere this goes unseen, so a GPU test asks for the module.
    except (ImportError, AttributeError, TypeError, OSError, RuntimeError, subprocess.SubprocessError):
        return None


def loaded(binary: Binary) -> int | None:
    """The driver's handle of a kernel, without the launcher that Triton would build for it."""
    try:
        from triton.runtime import driver

        device = driver.active.get_current_device()
        load = driver.active.utils.load_binary
        return int(load(binary.name, binary.cubin, binary.shared, device)[1])
    except (AttributeError, TypeError, ValueError):  # another Triton
        return None


def _can_load() -> bool:
    """Whether this Triton loads binaries as `loaded` asks it to: what its own launcher launches has no clusters."""
    try:
        from triton.runtime import driver

        return callable(driver.active.utils.load_binary)
    except (AttributeError, RuntimeError):
        return False


@cache
def launches_clusters(device: torch.device) -> bool:
    """Whether programs can be grouped into clusters, which takes our launcher."""
    module = launcher() if torch.version.hip is None and _can_load() else None
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return module is not None and bool(module.has_clusters(ordinal))


def packed(types: Sequence[str], scalars: Sequence[Any]) -> bytes:
    return struct.pack("<" + "".join(_FORMATS[kind] for kind in types), *scalars)
