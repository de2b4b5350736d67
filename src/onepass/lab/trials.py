"""Problems as they are planned, or with another choice: what would be compiled for them, and how long they take."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch

from onepass import backward, forward
from onepass.lab.data.case import NORMS, Case
from onepass.lab.inputs import Inputs, make_inputs
from onepass.lab.machine_code import longest_loop, usual
from onepass.plan import forward_plans, in_force, launch, row_counts, workers
from onepass.plan.device import Device, device_of
from onepass.plan.plans import Choice, Plan
from onepass.plan.tiles import Tile
from onepass.spec import Norm, Problem

#: What is planned and compiled for where there is no GPU.
H200 = Device("NVIDIA H200", sms=132, registers=65536, shared=233472, cooperative=True, clusters=True, gluon=True)
CAPABILITY = (9, 0)
#: What its largest copies reach, in bytes a microsecond, and its cycles in one.
MEMORY, CYCLES = 4.289e6, 1755
#: Schedules whose instructions can be told from the length of the code.
COUNTED = ("tile", "turns", "split", "ring", "ring_turns", "threads", "flat", "odd")
#: Choices are timed in turns, each so often, with so many calls; the first turn also warms up.
TURNS, CALLS = 3, 7


class Trial(NamedTuple):
    case: Case
    choice: Choice | None = None  # None: as planned
    exactly: bool = False  # the tile's rows and warps, however few rows the case has

    def __str__(self) -> str:
        if self.choice is None:
            return "as planned"
        tile, plain = self.choice.tile, Tile(0, 1, 4)
        given = (
            f"{name}={int(value)}" for name, value in vars(tile).items() if value not in (getattr(plain, name), None)
        )
        return f"{self.choice.schedule} {' '.join(given)}"

    @contextmanager
    def planned(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.choice is not None:
                stack.enter_context(in_force.force(self.case.direction, self.choice))
            if self.exactly:
                as_given = mock.patch.object(forward_plans, "_batch_invariant", lambda problem, tile, *_: tile)
                stack.enter_context(as_given)
            yield


@dataclass(frozen=True)
class Timed:
    trial: Trial
    plan: str
    us: float | None  # the median; None: it could not be launched
    why: str = ""  # it could not


def dense_case(name: str) -> Case:
    """The case of that id. Raises ValueError where its inputs are none that a trial can make."""
    case = Case.from_id(name)
    plain = Case(case.op, case.direction, case.rows, case.cols, case.dtype, case.weight_dtype, eps=case.eps)
    if case != plain or case.op not in NORMS:
        raise ValueError(f"a case must be of a dense norm, without FP8, not {name}")
    return case


@contextmanager
def planned_for(device: Device) -> Iterator[None]:
    """Problems may be planned without their tensors, and only for the rows they have."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(row_counts, "row_counts_apart", lambda *_: ()))
        for module in (forward, backward):
            stack.enter_context(mock.patch.object(module, "device_of", lambda _: device))
        yield


def this_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def device_here(elsewhere: bool) -> Device:
    """This machine's GPU, or the one that is compiled for `elsewhere`."""
    return H200 if elsewhere else device_of(this_gpu())


def call_of(case: Case, device: torch.device) -> tuple[Any, tuple[bool, ...]]:
    """A Forward or a Backward, and what its kernels are prepared for."""
    norm, problem = _problem_of(case)
    x = torch.empty(case.rows, case.cols, dtype=problem.x, device=device)
    residual = x if problem.residual is not None else None
    if case.direction == "forward":
        return forward.Forward(norm, problem, x, residual), (True, False)
    strides = (x.stride(), None if residual is None else x.stride(), x.stride())
    needs = backward.Needs(True, False, True, norm.centred)
    return backward.Backward(norm, problem, x.shape, device, strides, needs), (True,)


def _problem_of(case: Case) -> tuple[Norm, Problem]:
    dtype, weight = getattr(torch, case.dtype), getattr(torch, case.weight_dtype or case.dtype)
    centred, total = case.op == "layer_norm", dtype if case.op == "add_rms_norm" else None
    bias = weight if centred else None
    return Norm(centred, case.eps), Problem(case.rows, 1, case.cols, dtype, dtype, weight, bias, total, total)


def kernels_of(trial: Trial, device: torch.device) -> list[tuple[Any, ...]]:
    """What would have to be compiled for it."""
    with trial.planned(), launch.gather() as kernels:
        call, how = call_of(trial.case, device)
        call._prepare(*how)
    return kernels


def plan_of(trial: Trial) -> Plan:
    with trial.planned():
        plan: Plan = call_of(trial.case, torch.device("meta"))[0].plan()
    return plan


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Without those that come to what one before them does, as tiles for many rows may where there are few."""
    found: dict[Plan, Trial] = {}
    for trial in trials:
        found.setdefault(plan_of(trial), trial)
    return list(found.values())


def compiled_elsewhere(kernel: tuple[Any, ...]) -> Any:
    """As `kernels_of` has it, to be read."""
    from triton.backends.compiler import GPUTarget

    from onepass.plan.compiler import compile_kernel

    function, dtypes, constants, options = kernel
    target = GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)
    return compile_kernel(function, dtypes, constants, options, target)


def schedulers_us(compiled: Any, plan: Plan, rows: int) -> float | None:
    """How long an H200's take for the instructions of so many rows: each SM has four, which begin one of a warp in each
    cycle. A program that comes and goes runs through its code once; one that stays, through its longest loop for each
    of its tiles. None for schedules of which that is not so: a loop has several walks, or a row several kernels.
    """
    if plan.schedule not in COUNTED:
        return None
    loop = longest_loop(compiled)
    each = loop * plan.slices * -(-rows // plan.rows) if loop else usual(compiled) * plan.programs
    return each * plan.warps / (4 * H200.sms * CYCLES)


def progress(number: int, of: int, what: str) -> None:
    """On a line of its own where somebody looks on, and now and then where lines are kept."""
    if sys.stdout.isatty():
        print(f"\r{number} of {of} {what}", end="\n" if number == of else "", flush=True)
    elif number % 100 == 0 or number == of:
        print(f"{number} of {of} {what}", flush=True)


def compile_elsewhere(trials: Sequence[Trial], tool: str) -> int:
    """Into ONEPASS_CACHE, without a GPU; the exit status of a tool that does. What does not compile is named."""
    kernels = [kernel for trial in trials for kernel in kernels_of(trial, torch.device("meta"))]
    distinct_kernels = list({repr(kernel): kernel for kernel in kernels}.values())

    def compiled(kernel: tuple[Any, ...]) -> str | None:
        try:
            launch.compile_to_disk(*(*kernel, CAPABILITY))
        except Exception as error:  # named at the end, behind all that compile
            return f"{kernel[0].name}: {type(error).__name__}: {str(error).splitlines()[-1]}"
        return None

    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for number, complaint in enumerate(threads.map(compiled, distinct_kernels), start=1):
            failed += [complaint] if complaint else []
            progress(number, len(distinct_kernels), "kernels")
    print(f"{len(distinct_kernels) - len(failed)} of {len(distinct_kernels)} kernels compiled")
    for complaint in failed:
        print(f"{tool}: {complaint}", file=sys.stderr)
    return int(bool(failed))


def time_all(trials: Sequence[Trial]) -> Iterator[list[Timed]]:
    """By the lab's clock of the kernels' own time, all trials of a case in turns."""
    from onepass.lab.measure.clock import KernelClock

    clock, device = KernelClock(), this_gpu()
    kernels = [kernel for trial in trials for kernel in kernels_of(trial, device)]
    workers.compile_all(kernels, torch.cuda.get_device_capability())
    for case, tried in itertools.groupby(trials, key=lambda trial: trial.case):
        inputs = make_inputs(case, "cuda", seed=0)
        calls: list[tuple[Trial, Callable[[], object], str, list[float]]] = []
        timed = []
        for trial in tried:
            try:
                with trial.planned():
                    call, plan = _call_on(case, inputs)
                    call()
                    torch.cuda.synchronize()
                calls.append((trial, call, plan, []))
            except Exception as error:  # a choice that cannot be launched is an answer too
                timed.append(Timed(trial, "", None, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        for _ in range(TURNS):
            for _, call, _, samples in calls:
                samples += clock.samples(call, CALLS)
        yield timed + [Timed(trial, plan, statistics.median(samples)) for trial, _, plan, samples in calls]


def _call_on(case: Case, inputs: Inputs) -> tuple[Callable[[], object], str]:
    """The call to be timed, as it would be planned now, and its plan."""
    call, _ = call_of(case, this_gpu())
    x, weight, bias, residual = inputs.x, inputs.weight, inputs.bias, inputs.residual
    if case.direction == "forward":
        return lambda: call(x, weight, bias, residual, False), str(call.plan())
    h = x if residual is None else x + residual
    mean = h.float().mean(1) if bias is not None else None
    centred = h.float() if mean is None else h.float() - mean[:, None]
    rstd = torch.rsqrt(centred.square().mean(1) + case.eps)
    return lambda: call(inputs.dy, inputs.dsum, h, weight, mean, rstd), str(call.plan())
