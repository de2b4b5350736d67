"""benchmark-norms as a person uses it: in a process of its own, on a CPU, at a tiny shape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = str(Path(__file__).parents[2] / "src")
TINY = ("--device", "cpu", "--rows", "8", "--cols", "64", "--dtype", "float32", "--pass", "forward", "--seconds", "0.2")


def benchmark_norms(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", "from onepass.lab.cli import main; main()", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
