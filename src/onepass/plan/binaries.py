"""Compiled kernels, kept on disk under a key of our own.

Triton keeps them as well, but to find one it first hashes its own installation, which takes 0.4 s of a process's first
call, after 0.15 for its import. Here a key has Triton's version instead, from the metadata of its package, and Triton's
settings from the environment. Triton's hash of a kernel's source also depends on which kernels were hashed before it;
ours is of the files in which the kernels are written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onepass import kernels
from onepass.kernels import Kernel
from onepass.plan.cache import cache_directory, write_whole

#: Of Triton's variables, one that says where and not what.
_WITHOUT_EFFECT = ("TRITON_CACHE_DIR",)


@dataclass(frozen=True)
class Binary:
    """What the driver needs to load a kernel."""

    name: str
    shared: int
    scalars: tuple[str, ...]  # types of its arguments behind the pointers
    cubin: bytes


def key_of(
    kernel: Kernel, dtypes: tuple[Any, ...], constants: Mapping[str, Any], options: Mapping[str, Any], arch: Any
) -> str:
    """All that decides what the compiler makes: the source, and how it is compiled."""
    settings = sorted(
        item for item in os.environ.items() if item[0].startswith("TRITON_") and item[0] not in _WITHOUT_EFFECT
    )
    how = sorted(constants.items()), sorted(options.items()), arch, triton_version(), settings
    parts = (_kernels(), kernel.module, kernel.name, dtypes, *how)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def triton_version() -> str:
    """Without its import, where its package goes by its own name."""
    try:
        return version("triton")
    except PackageNotFoundError:
        import triton

        return str(triton.__version__)


@cache
def _kernels() -> str:
    """What the kernels are made of: every file beside them, because they share parts."""
    folder = Path(kernels.__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


def find(key: str) -> Binary | None:
    try:
        head, cubin = (cache_directory() / "kernels" / key).read_bytes().split(b"\n", 1)
        fields = json.loads(head)
        return Binary(fields["name"], fields["shared"], tuple(fields["scalars"]), cubin)
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or none that can be read
        return None


def keep(key: str, binary: Binary) -> None:
    head = json.dumps({"name": binary.name, "shared": binary.shared, "scalars": binary.scalars}).encode()
    write_whole(cache_directory() / "kernels" / key, head + b"\n" + binary.cubin)
