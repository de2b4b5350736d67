"""A run as the lab would leave it, with every kind of row, for tests of the report and to look at.

python tests/lab/example_run.py DIRECTORY    writes DIRECTORY/example and its report
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from onepass.lab.data.case import Case
from onepass.lab.data.row import Checked, Correctness, Incorrect, Measured, Row, Unsupported
from onepass.lab.data.run import Run
from onepass.lab.data.timing import Timing
from onepass.lab.data.verdict import Verdict

BACKENDS = ["eager", "compile", "compile-max-autotune", "liger", "quack", "onepass"]
CPU_BACKENDS = ["eager", "compile", "onepass", "onepass-triton"]
SHAPES = [(512, 1024), (2048, 4096), (4096, 4096), (4096, 8192), (32768, 768), (8192, 65536)]
GROUPS = [(op, direction) for op in ("rms_norm", "layer_norm") for direction in ("forward", "backward")]
BOUNDARY = [
    "Shows how these six backends compare on one H200 with one driver, on dense tensors in fp16.",
    "Does not show how they compare within a model, on another GPU, or while other work runs beside them.",
    "Rows called rerun noise carry no claim until they are measured again.",
]
#: Share of the copy ceiling that each backend reaches on large tensors, forward and backward, and its host cost in µs.
_PACE = {
    "eager": (0.31, 0.28, 9.0),
    "compile": (0.86, 0.62, 24.0),
    "compile-max-autotune": (0.88, 0.66, 24.5),
    "liger": (0.84, 0.55, 19.0),
    "quack": (0.94, 0.81, 15.0),
    "onepass": (0.95, 0.88, 8.5),
}
_CEILING_GBPS = {"cuda": 4200.0, "cpu": 38.0}


def make_run(
    root: Path,
    run_id: str = "example",
    *,
    device: str = "cuda",
    backends: list[str] | None = None,
    cases: int = 24,
    chosen: Sequence[Case] | None = None,
) -> Run:
    backends = backends if backends is not None else (BACKENDS if device == "cuda" else CPU_BACKENDS)
    if chosen is None:
        chosen = [Case(op, direction, *shape, "float16") for op, direction in GROUPS for shape in SHAPES][:cases]
    run = Run.begin(root, run_id, _header(run_id, device, backends, chosen))
    luck = random.Random(7)
    for case in chosen:
        for backend in backends:
            run.append(_row(case, backend, device, luck))
        if "eager" in backends:
            run.append(_row(case, "eager@control", device, luck))
    return run


def make_verdicts(run: Run, against: str = "eager") -> list[Verdict]:
    """Simpler than the judge's: enough to have every call in the report."""
    found, _ = run.rows()
    verdicts = []
    for (case, backend), row in found.items():
        base = found.get((case, against))
        if isinstance(row, Unsupported):
            verdicts.append(Verdict(case, backend, against, "unsupported", (row.why,)))
        elif isinstance(row, Incorrect):
            verdicts.append(Verdict(case, backend, against, "incorrect", ("y is off by more than its limit",)))
        elif isinstance(row, Measured) and isinstance(base, Measured) and not backend.startswith(against):
            verdicts.append(_verdict(row, base))
    return verdicts


def _verdict(row: Measured, base: Measured) -> Verdict:
    kind = "gpu" if "gpu" in row.timings else "call"
    mine, theirs = row.timings[kind], base.timings[kind]
    ratio = theirs.p50 / mine.p50
    width = 0.2 * (mine.noise + theirs.noise)
    low, high = ratio * (1 - width), ratio * (1 + width)
    if row.throttled:
        call, why = "throttled", "the GPU held back its clocks: power cap"
    elif row.gbps > row.ceiling_gbps:
        call, why = "suspect", f"{row.gbps / row.ceiling_gbps:.0%} of what a plain copy reaches"
    elif mine.noise > 0.1:
        call, why = "rerun noise", f"noise {mine.noise:.1%}, above 10 %"
    elif low > 1.01:
        call, why = "supported", f"at least {low:.2f} times as fast, with 95 % confidence"
    elif high < 0.99:
        call, why = "slower", f"at most {high:.2f} times as fast, with 95 % confidence"
    else:
        call, why = "same", "the interval holds 1"
    return Verdict(row.case, row.backend, base.backend, call, (why,), ratio, low, high)


def _row(case: Case, backend: str, device: str, luck: random.Random) -> Row:
    passed = Correctness({"y": 3.1e-4}, {"y": 9.8e-4})
    if backend == "onepass-triton":
        return Checked(case.id, backend, passed, "checked in Triton's interpreter, not timed")
    if backend == "quack" and case.op == "layer_norm" and case.direction == "backward":
        return Unsupported(case.id, backend, "no backward of LayerNorm")
    if backend == "liger" and case.cols > 32768:
        return Unsupported(case.id, backend, "rows of more than 65,536 bytes")
    if backend == "compile-max-autotune" and case.id == "rms_norm-backward-8192x65536-float16":
        return Incorrect(case.id, backend, Correctness({"y": math.nan}, {"y": 9.8e-4}), "after timing")
    return _measured(case, backend, device, luck, passed)


def _measured(case: Case, backend: str, device: str, luck: random.Random, passed: Correctness) -> Measured:
    forward, backward, host = _PACE.get(backend.removesuffix("@control"), _PACE["compile"])
    share = forward if case.direction == "forward" else backward
    if backend.startswith("eager") and case.op == "layer_norm":
        share *= 2.6  # torch's own LayerNorm is one kernel
    ceiling = _CEILING_GBPS[device] * case.bytes / (case.bytes + 9e6)
    micros = case.bytes / (share * ceiling * 1e3) + (1.5 if device == "cuda" else 0.0)
    micros *= luck.uniform(0.96, 1.04)
    if backend == "quack" and case.rows == 32768:
        micros /= 1.35  # faster than the copy: suspect
    noisy = 0.16 if case.rows == 512 and luck.random() < 0.6 else 0.012
    kinds = {"gpu": (micros, noisy), "call": (micros + 3.1, noisy), "host": (host, 0.06)}
    timings = {
        kind: _timing(kind, middle, noise, luck)
        for kind, (middle, noise) in kinds.items()
        if device == "cuda" or kind == "call"
    }
    launched = (1 if case.direction == "forward" else 2) * (6 if backend.startswith("eager") else 1)
    gbps = case.bytes / timings["gpu" if device == "cuda" else "call"].p50 / 1e3
    return Measured(
        case=case.id,
        backend=backend,
        before=passed,
        after=passed,
        timings=timings,
        kernels=launched if device == "cuda" else None,
        gbps=gbps,
        tflops=case.flops * gbps / case.bytes / 1e3,
        ceiling_gbps=ceiling,
        stopped="plateau" if noisy > 0.1 else "precise",
        throttled=("power cap",) if (backend, case.id) == ("liger", "layer_norm-forward-4096x8192-float16") else (),
        host="node-1",
        device="NVIDIA H200" if device == "cuda" else "cpu",
    )


def _timing(kind: str, middle: float, noise: float, luck: random.Random) -> Timing:
    rounds = [
        [
            round(middle * luck.lognormvariate(0, noise / 1.35) * (1.5 if luck.random() < 0.01 else 1), 3)
            for _ in range(30)
        ]
        for _ in range(5)
    ]
    samples = sorted(chain.from_iterable(rounds))
    low, median, high = statistics.quantiles(samples, n=4)
    outliers = sum(sample > high + 1.5 * (high - low) for sample in samples)
    return Timing(kind, median, samples[int(0.95 * len(samples))], (high - low) / median, outliers, rounds)


def _header(run_id: str, device: str, backends: list[str], cases: Sequence[Case]) -> dict[str, Any]:
    gpu = {"gpu": "NVIDIA H200", "driver": "570.86.15", "cuda": "12.8", "clocks": {"sm_mhz": 1980, "memory_mhz": 3201}}
    return {
        "schema": 1,
        "id": run_id,
        "created": "2026-05-21T14:03:11+00:00",
        "command": f"benchmark-norms --backend all --device {device} --suite seed --pass both --run-id {run_id}",
        "backends": backends,
        "baseline": "eager",
        "cases": [case.to_json() for case in cases],
        "device": device,
        "environment": (gpu if device == "cuda" else {})
        | {"cpu": "AMD EPYC 9654 96-Core Processor", "torch": "2.10.0", "triton": "3.6.0", "liger": "0.6.4"}
        | {"quack": "0.2.4", "python": "3.12.4", "commit": "b28fbea", "tree_clean": True},
        "method": {"warm_up_ms": 200, "rounds": 5, "samples_a_round": 30, "l2": "cold", "interval": "bootstrap, 95 %"},
    }


if __name__ == "__main__":
    from onepass.lab.report import write_report

    example = make_run(Path(sys.argv[1]), device=sys.argv[2] if len(sys.argv) > 2 else "cuda")
    print(write_report(example, make_verdicts(example), BOUNDARY, example.path / "report.html", smallest_effect=0.006))
