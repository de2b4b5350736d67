"""Profiling with Nsight Compute: one case and backend at a time, each in a process of its own.

`python -m onepass.lab.profiling CASE BACKEND` is that process: it prepares the call as for timing, and marks one run of
it for ncu, which replays its kernels, with a cold cache and the clocks left alone, until it has every counter.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from onepass.lab.data.case import Case
from onepass.lab.data.profile import Kernel, Profile, Profiled, Unprofiled
from onepass.lab.data.row import CONTROL_SUFFIX, Measured
from onepass.lab.data.run import Run

_METRICS = {
    "us": "gpu__time_duration.sum",  # ncu's base unit is the nanosecond
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "registers": "launch__registers_per_thread",
    "programs": "launch__grid_size",
}
#: What ncu says where the driver lets administrators alone read counters.
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
#: A tuned torch.compile takes more than a minute to be ready.
_SECONDS = 300


class CannotProfile(Exception):  # noqa: N818 (it is an answer, and becomes a record that says so)
    """Nothing can be profiled here; the message says why, for a person."""


def profile_run(
    run: Run,
    cases: Sequence[str] = (),
    backends: Sequence[str] = (),
    progress: Callable[[str, str], None] = lambda case, backend: None,
) -> None:
    """Profile the run's measured rows that have no profile yet, all or those named; each is written down at once."""
    done, _ = run.profiles()
    cannot: str | None = None
    for (case_id, backend), row in run.rows()[0].items():
        if not isinstance(row, Measured) or backend.endswith(CONTROL_SUFFIX):
            continue
        if (cases and case_id not in cases) or (backends and backend not in backends):
            continue
        if isinstance(done.get((case_id, backend)), Profiled):
            continue
        progress(case_id, backend)
        case = next(case for case in run.cases if case.id == case_id)
        if cannot is None:
            try:
                run.append_profile(profile(case, backend, row.device))
                continue
            except CannotProfile as reason:
                cannot = str(reason)
        run.append_profile(Unprofiled(case_id, backend, cannot))


def profile(case: Case, backend: str, measured_on: str = "") -> Profile:
    """What ncu says of one call. Raises CannotProfile for a reason that would hold for any other call too.

    `measured_on` is the GPU whose times the counters are to explain; those of another model would explain nothing.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CannotProfile("ncu is not on the PATH: it comes with CUDA, or with Nsight Compute alone")
    import torch

    if not torch.cuda.is_available():
        raise CannotProfile("there is no CUDA GPU here")
    here = torch.cuda.get_device_name(0)
    if measured_on not in ("", here):
        return Unprofiled(case.id, backend, f"it was measured on {measured_on}, and the GPU here is {here}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log), "--clock-control", "none",
            "--profile-from-start", "off", "--metrics", ",".join(_METRICS.values()),
            sys.executable, "-m", "onepass.lab.profiling", json.dumps(case.to_json()), backend,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return Unprofiled(case.id, backend, f"it took more than {_SECONDS} seconds")
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    if any(_NO_PERMISSION in line for line in [*lines, done.stdout, done.stderr]):
        raise CannotProfile(f"no permission to read the GPU's counters ({_NO_PERMISSION}): run as an administrator")
    kernels = read_kernels(lines)
    if done.returncode != 0 or not kernels:
        complaints = [line for line in lines if line.startswith("==ERROR==")] or done.stderr.strip().splitlines()[-1:]
        return Unprofiled(case.id, backend, " ".join(complaints) or "ncu saw no kernel")
    return Profiled(case.id, backend, case.bytes, kernels)


def read_kernels(lines: Iterable[str]) -> list[Kernel]:
    """The kernels in ncu's table: a line of names, one of units, and one a launch; ncu's own remarks begin with ==."""
    table = list(csv.DictReader(line for line in lines if line.startswith('"')))
    kernels = []
    for fields in table[1:]:
        try:
            values = {name: float(fields[metric].replace(",", "")) for name, metric in _METRICS.items()}
        except (KeyError, ValueError):  # "n/a", where a counter is not to be had
            continue
        values["us"] /= 1e3
        registers, programs = int(values.pop("registers")), int(values.pop("programs"))
        kernels.append(Kernel(fields["Kernel Name"], registers=registers, programs=programs, **values))
    return kernels


def _run_once(case: Case, name: str) -> None:
    import torch

    from onepass.lab.backends import backend
    from onepass.lab.inputs import make_inputs

    call = backend(name).prepare(case, make_inputs(case, "cuda", seed=0))
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    _run_once(Case.from_json(json.loads(sys.argv[1])), sys.argv[2])
