"""Python started afresh, for what is decided when a module is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import onepass

SOURCES = Path(onepass.__file__).resolve().parent.parent


def run_on_plain_cpu(code: str) -> str:
    """What `code` prints where nothing interprets kernels, so that CPU tensors take the reference."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SOURCES)
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
