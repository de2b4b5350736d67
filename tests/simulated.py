"""Rows and runs as a lab would have measured them: times drawn at random, with a noise and a seed that are known."""

from __future__ import annotations

import numpy as np

from onepass.lab.data.case import Case
from onepass.lab.data.row import Correctness, Measured
from onepass.lab.data.run import Run
from onepass.lab.data.timing import summarize

CASE = Case("rms_norm", "forward", 4096, 4096, "float16")
RIGHT = Correctness({"y": 1e-4}, {"y": 1e-3})
WRONG = Correctness({"y": 0.5}, {"y": 1e-3})
GPU = {"gpu": "NVIDIA H200", "host": "a", "packages": {"torch": "2.11.0"}}
CPU = {"cpu": "Xeon", "host": "a"}


def rounds_of(time, rng, *, rounds=10, samples=30, noise=0.005, round_noise=0.002, drift=None):
    """Rounds of samples around `time`: noise within rounds, noise that a whole round shares, and a given drift."""
    level = time * rng.normal(1, round_noise, (rounds, 1)) * (1 if drift is None else np.reshape(drift, (rounds, 1)))
    return (level * rng.normal(1, noise, (rounds, samples))).tolist()


def measured(backend, rounds, *, kinds=("gpu",), case=CASE, ceiling=4000.0, **fields):
    timings = {kind: summarize(kind, rounds) for kind in kinds}
    deciding = timings[kinds[0]].p50
    return Measured(
        case=case.id,
        backend=backend,
        before=RIGHT,
        after=RIGHT,
        timings=timings,
        kernels=1,
        gbps=case.bytes / deciding / 1e3,
        tflops=case.flops / deciding / 1e6,
        ceiling_gbps=ceiling,
        **({"stopped": "precise", "throttled": ()} | fields),
    )


def run_of(root, run_id, rows, *, environment=GPU, cases=(CASE,)):
    device = "cuda" if "gpu" in environment else "cpu"
    header = {"cases": [case.to_json() for case in cases], "backends": sorted({row.backend for row in rows})}
    run = Run.begin(root, run_id, header | {"device": device, "environment": environment, "baseline": "eager"})
    for row in rows:
        run.append(row)
    return run
