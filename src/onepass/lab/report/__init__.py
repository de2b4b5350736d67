"""The report of a run: one HTML file that asks nothing of the network, made from the run's directory anywhere.

from onepass.lab.report import write_report
write_report(run, judge_run(run, "eager"), boundary(run, verdicts), run.path / "report.html")
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from onepass.lab.data.run import Run, RunError
from onepass.lab.data.verdict import Verdict


def write_report(
    run: Run, verdicts: list[Verdict], boundary: list[str], out: Path, *, smallest_effect: float | None = None
) -> Path:
    """Write the report to `out` (a directory gets report.html) and return its path; readers never see half a file.

    `smallest_effect` is what the run's A/A controls gave, the median over cases, 0.01 for 1 %; without it, the report
    says how wide the confidence intervals were instead.
    """
    try:
        from onepass.lab.report.page import render
    except ModuleNotFoundError as error:
        raise RunError(
            f"the report needs {error.name}: pip install altair vl-convert-python, or copy {run.path} to a machine "
            "that has them"
        ) from None

    path = out / "report.html" if out.is_dir() else out
    text = render(run, verdicts, boundary, smallest_effect)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return path


def _replace(path: Path, text: str) -> None:
    """The whole file at once, with the permissions that a plain open would have given."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
