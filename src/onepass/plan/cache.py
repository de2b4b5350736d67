"""Where things are kept from one process to the next, and how a file gets there whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """`ONEPASS_CACHE`, or onepass in the user's cache directory."""
    given = os.environ.get("ONEPASS_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onepass"


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing, whoever else writes or reads there. Where nothing can be written, nothing is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        pass
