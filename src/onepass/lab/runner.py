"""Runs cases: every backend on the same tensors, gated, timed in turns, gated again, and written down row by row."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from onepass.lab.backends import Backend, NotSupported, backend
from onepass.lab.data.case import Case
from onepass.lab.data.row import CONTROL_SUFFIX, Correctness, Incorrect, Measured, Row, Unsupported
from onepass.lab.data.run import Run
from onepass.lab.data.timing import summarize
from onepass.lab.environment import environment
from onepass.lab.gate import check
from onepass.lab.inputs import make_inputs
from onepass.lab.interpreted import KERNELS, check_kernels
from onepass.lab.judge.stats import is_plateau, is_precise, ratio_interval
from onepass.lab.measure.clock import Call, Clock, KernelClock, clocks_for
from onepass.lab.measure.copying import SHORTEST, copy_gbps
from onepass.lab.measure.sampling import Rounds, Rules, Sampled, sample
from onepass.lab.measure.throttle import Look, Watch


@dataclass
class Lab:
    """A device with its clocks, and what has been found out about it in this run."""

    device: str
    rules: Rules
    environment: dict[str, Any]
    clocks: list[Clock] = field(default_factory=list)
    watch: Watch | None = None
    ceilings: dict[int, float] = field(default_factory=dict)  # GB/s of a plain copy, by bytes moved

    def __post_init__(self) -> None:
        self.clocks = clocks_for(self.device)
        self.watch = Watch(self.environment["gpu_uuid"]) if self.device == "cuda" else None

    @classmethod
    def of(cls, header: dict[str, Any]) -> Lab:
        """The lab that a run asks for, in this process."""
        device = header["device"]
        return cls(device, Rules(**header["method"]), environment(device))

    def look(self) -> Look | None:
        return None if self.watch is None else self.watch.look()

    def ceiling(self, moved: int) -> float:
        """The rate of a plain copy that moves as many bytes."""
        if moved not in self.ceilings:
            count = max(10, self.rules.samples // 3)
            self.ceilings[moved] = copy_gbps(moved, self.clocks[0], count, self.device)
        return self.ceilings[moved]


def rows_of(lab: Lab, case: Case, header: dict[str, Any]) -> Iterator[Row]:
    """What a run asks of one case; every row says where it was made."""
    here = lab.environment
    for row in measure_case(lab, case, header["backends"], header["baseline"]):
        yield replace(row, host=here["host"], device=here.get("gpu", lab.device), gpu_uuid=here.get("gpu_uuid", ""))


def measure_case(lab: Lab, case: Case, names: list[str], baseline: str) -> Iterator[Row]:
    """A row for every backend, and one for the baseline's control."""
    inputs = make_inputs(case, lab.device, seed=lab.rules.seed)
    calls: dict[str, Call] = {}
    before: dict[str, Correctness] = {}
    for name in names:
        found = backend(name)
        prepared = _prepared(found, case, inputs)
        if isinstance(prepared, str):
            yield Unsupported(case.id, name, prepared)
            continue
        correctness = check(case, inputs, prepared())
        if not correctness.passed:
            yield Incorrect(case.id, name, correctness, "before timing")
            continue
        calls[name], before[name] = prepared, correctness
    if not calls:
        return
    if baseline in calls:
        calls[baseline + CONTROL_SUFFIX], before[baseline + CONTROL_SUFFIX] = calls[baseline], before[baseline]
    sampled = sample(calls, lab.clocks, lab.rules, _enough(baseline, lab.clocks[0].kind), lab.look)
    kernels = {name: _kernels(lab, call) for name, call in calls.items()}
    calls.clear()  # and with them the graphs and tensors that they hold
    del inputs

    # Fresh data: a backend that remembered its results, or that was right by luck, is found out.
    fresh = make_inputs(case, lab.device, seed=lab.rules.seed + 1)
    for name in before:
        prepared = _prepared(backend(name.removesuffix(CONTROL_SUFFIX)), case, fresh)
        if isinstance(prepared, str):
            yield Unsupported(case.id, name, prepared)
            continue
        after = check(case, fresh, prepared())
        if not after.passed:
            yield Incorrect(case.id, name, after, "after timing")
            continue
        yield _measured(lab, case, name, before[name], after, sampled, kernels[name])


def _prepared(found: Backend, case: Case, inputs: Any) -> Call | str:
    """The backend's call, or a sentence why it has none."""
    why = found.probe()
    if why is not None:
        return why
    try:
        return found.prepare(case, inputs)
    except NotSupported as refusal:
        return str(refusal)


def _enough(baseline: str, kind: str) -> Callable[[Rounds], str | None]:
    """The stopping rule: precise when every backend's ratio to the baseline is, or when more rounds stopped helping."""
    widths: list[float] = []

    def reason(rounds: Rounds) -> str | None:
        others = [name for name in rounds if name != baseline]
        if baseline not in rounds or not others:
            return None
        intervals = [ratio_interval(rounds[baseline][kind], rounds[name][kind]) for name in others]
        widths.append(max((interval.high - interval.low) / 2 / interval.ratio for interval in intervals))
        if all(is_precise(interval) for interval in intervals):
            return "precise"
        return "plateau" if is_plateau(widths) else None

    return reason


def _kernels(lab: Lab, call: Call) -> int | None:
    clock = lab.clocks[0]
    if not isinstance(clock, KernelClock):
        return None
    clock.samples(call, 1)
    return clock.kernels


def _measured(
    lab: Lab, case: Case, name: str, before: Correctness, after: Correctness, sampled: Sampled, kernels: int | None
) -> Measured:
    calm, aside = sampled.rounds[name], sampled.set_aside[name]
    # Too few rounds without throttling: then all of them count, and the row says that it is no evidence.
    throttled = any(aside.values()) and min(map(len, calm.values())) < lab.rules.rounds
    timings = {
        kind: summarize(kind, calm[kind] + aside[kind]) if throttled else summarize(kind, calm[kind], aside[kind])
        for kind in calm
    }
    deciding = max(timings[lab.clocks[0].kind].p50, SHORTEST)
    return Measured(
        case=case.id,
        backend=name,
        before=before,
        after=after,
        timings=timings,
        kernels=kernels,
        gbps=case.bytes / deciding / 1e3,
        tflops=case.flops / deciding / 1e6,
        ceiling_gbps=lab.ceiling(case.bytes),
        stopped=sampled.stopped,
        throttled=tuple(sorted(sampled.held_back_by)) if throttled else (),
        conditions=sampled.conditions,
        began=sampled.began,
    )


class Executor(Protocol):
    """Where cases are measured. All backends of a case run in one process, so no comparison mixes two devices."""

    name: str
    where: str  # in words

    def has_gpu(self) -> bool: ...

    def measure(self, run: Run, cases: list[Case]) -> Iterator[tuple[Case, dict[str, Any], Iterable[Row]]]:
        """Each case with the environment that it is measured in and its rows, in whatever order they come."""


class Local:
    """In this process, one case after another."""

    name = "local"
    where = "here"

    def has_gpu(self) -> bool:
        import torch

        return torch.cuda.is_available()

    def measure(self, run: Run, cases: list[Case]) -> Iterator[tuple[Case, dict[str, Any], Iterable[Row]]]:
        lab = Lab.of(run.header)
        for case in cases:
            yield case, lab.environment, rows_of(lab, case, run.header)


def execute(
    run: Run,
    executor: Executor,
    progress: Callable[[Case], AbstractContextManager[object]] = nullcontext,
    again: Container[str] = (),
) -> None:
    """Measure what the run asks for and does not have yet; every row is on disk as soon as it is there.

    Cases whose ids are in `again` are sampled once more whatever there is of them: `Run.rows` pools the samplings.
    `progress` is entered when a case begins, or when its rows have come, and left when they are on disk.
    """
    unfinished = run.unfinished(again)
    if unfinished:
        run.must_take_rows()
    for case, place, rows in executor.measure(run, unfinished):
        run.append_environment(place)
        with progress(case):
            for row in rows:
                run.append(row)
    if run.header["device"] == "cpu" and "onepass" in run.backends:
        done, _ = run.rows()
        unchecked = [case for case in run.cases if (case.id, KERNELS) not in done]
        for row in check_kernels(unchecked) if unchecked else ():
            run.append(row)
