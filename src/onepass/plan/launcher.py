"""The C launcher (launcher.c): built by Triton's means, once for a machine, and kept beside the kernels."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from onepass.plan.cache import cache_directory, write_whole

#: How scalars lie in the eight bytes that each one gets, by their type in Triton's signature.
_FORMATS = {"i64": "q", "i32": "i4x", "fp32": "f4x"}


@cache
def launcher() -> Any:
    """The module, or None where it cannot be had: Triton's own launcher serves as well, it is just slower."""
    source = Path(__file__).with_name("launcher.c").read_text()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")  # says for which Python, and which machine
    key = hashlib.sha256(f"{source}{suffix}".encode()).hexdigest()
    path = cache_directory() / "launchers" / f"{key}{suffix}"
    try:
        return _module_at(path)
    except ImportError:  # not there, or not to be read
        pass
    try:
        from triton.backends.nvidia.driver import include_dirs
        from triton.runtime.build import compile_module_from_src

        module = compile_module_from_src(source, "onepass_launcher", include_dirs=include_dirs)
        write_whole(path, Path(module.__file__).read_bytes())
        return module
    # No compiler, no headers, no driver, another Triton. Elsewhere this goes unseen, so a GPU test asks for the module.
    except (ImportError, AttributeError, TypeError, OSError, RuntimeError, subprocess.SubprocessError):
        return None


def _module_at(path: Path) -> Any:
    spec = spec_from_file_location("onepass_launcher", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def launches_clusters(device: torch.device) -> bool:
    """Whether programs can be grouped into clusters, which takes our launcher."""
    module = launcher() if torch.version.hip is None else None
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return module is not None and bool(module.has_clusters(ordinal))


def packed(types: Sequence[str], scalars: Sequence[Any]) -> bytes:
    return struct.pack("<" + "".join(_FORMATS[kind] for kind in types), *scalars)
