"""The search: what a problem's candidates take on this GPU, and which one is kept.

Off by default, and then nothing is ever searched at run time. `onepass.tune` searches when it is called;
`autotune=True` on a call, or ONEPASS_AUTOTUNE=1 in the environment, searches once for each new problem. Winners are
kept on disk (plan/table.py). A choice holds for a problem with any number of rows, so the forward stays
batch-invariant.
"""

from __future__ import annotations

import datetime
import os
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from onepass.backward import Backward, Needs
from onepass.checks import Options, checked
from onepass.forward import Forward
from onepass.plan import in_force, launch, table, tuned, workers
from onepass.plan.candidates import backward_candidates, forward_candidates
from onepass.plan.device import device_of
from onepass.plan.layout import contiguous_strides
from onepass.plan.plans import Choice
from onepass.plan.table import Entry
from onepass.spec import Norm, Problem

#: Written before each timed call, so that its inputs come from memory: more than any L2 has.
FLUSH_BYTES = 256 << 20
#: Holds the GPU while the host issues a call, about 0.1 ms.
BLOCKING_CYCLES = 200_000
#: Calls of each candidate, and of the best few once more.
FIRST_CALLS, FINAL_CALLS, FINALISTS = 5, 21, 5
#: By how much a candidate has to beat the model's choice: below is noise, and the model's is the better known.
WORTHWHILE = 0.01


def may_search(options: Options, x: Tensor) -> bool:
    """Whether a new problem is to be searched for: it was asked for, there is a GPU, and no graph is being captured."""
    asked = options.autotune
    if asked is None:
        asked = os.environ.get("ONEPASS_AUTOTUNE", "0") not in ("", "0")
    return asked and x.is_cuda and x.numel() > 0 and not torch.cuda.is_current_stream_capturing()


def search(
    options: Options,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    directions: tuple[str, ...] = ("forward", "backward"),
    progress: Callable[[str, int, int], None] = lambda direction, done, of: None,
    again: bool = False,
) -> list[Entry]:
    """Search for what is not in the table yet, or `again` for all; what was found is in force from now on, and kept."""
    norm, problem = checked(options, x, weight, bias, residual)
    device = device_of(x.device)
    found = []
    for direction in directions:
        runs = _forwards if direction == "forward" else _backwards
        planned, align, begin = runs(norm, problem, x, weight, bias, residual)
        if begin is None:
            continue
        signature = tuned.signature(direction, planned, norm.centred, align)
        if table.find(device.name, signature) is not None and not again:
            continue
        candidates = forward_candidates if direction == "forward" else backward_candidates
        choices = candidates(planned, device, norm.centred, align)
        times = _race(begin(), direction, choices, x.device, progress)
        best = min(times, key=lambda choice: times[choice])
        if times[best] > (1 - WORTHWHILE) * times[choices[0]]:
            best = choices[0]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = Entry(
            signature, best.schedule, best.tile, round(times[best], 2), round(times[choices[0]], 2),
            planned.rows * planned.lanes, now,
        )  # fmt: skip
        table.keep(device.name, entry)
        found.append(entry)
    if found:
        in_force.renew()
    return found


#: Makes a call that can be timed, anew for each choice.
Prepare = Callable[[], Callable[[], object]]
#: What is planned, for which alignment, and what makes the inputs of all calls; None where there is nothing to choose.
Runs = tuple[Problem, int, Callable[[], Prepare] | None]


def _forwards(norm: Norm, problem: Problem, x: Tensor, *others: Tensor | None) -> Runs:
    weight, bias, residual = others

    def prepare() -> Callable[[], object]:
        call = Forward(norm, problem, x, residual)
        return lambda: call(x, weight, bias, residual, True)

    call = Forward(norm, problem, x, residual)
    return call.problem, call.align(True), lambda: prepare


def _backwards(norm: Norm, problem: Problem, x: Tensor, *others: Tensor | None) -> Runs:
    weight, bias, residual = others
    call = Forward(norm, problem, x, residual)
    dense, summed = contiguous_strides(x.shape), call.problem.sum is not None
    strides = (dense, dense if summed else None, dense if summed else x.stride())
    needs = Needs(True, False, weight is not None, bias is not None)

    def build() -> Backward:
        return Backward(norm, call.problem, x.shape, x.device, strides, needs)

    def begin() -> Prepare:
        y, total, mean, rstd = call(x, weight, bias, residual, True)
        assert rstd is not None
        h = x if total is None else total
        dy, dsum = torch.randn_like(y), None if total is None else torch.randn_like(total)

        def prepare() -> Callable[[], object]:
            backward = build()
            return lambda: backward(dy, dsum, h, weight, mean, rstd)

        return prepare

    planned = build()
    # Rows so few that each is read twice are planned by their number, and a choice is for any number.
    few = planned.plan().schedule in ("few", "few_split")
    return planned.problem, planned.align(True), None if few else begin


def _race(
    prepare: Prepare,
    direction: str,
    choices: list[Choice],
    device: torch.device,
    progress: Callable[[str, int, int], None],
) -> dict[Choice, float]:
    """Microseconds of each choice that can run; the first one is the model's, and always can."""
    with launch.gather() as kernels:
        for choice in choices:
            with in_force.force(direction, choice):
                prepare()()
    if device.type == "cuda":
        workers.compile_all(kernels, torch.cuda.get_device_capability(device))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    times: dict[Choice, float] = {}
    for number, choice in enumerate(choices):
        progress(direction, number, len(choices))
        with in_force.force(direction, choice):
            try:
                run = prepare()
                run()
                times[choice] = _microseconds(run, flush, FIRST_CALLS)
            except RuntimeError:  # more registers or shared memory than there are: not a candidate after all
                if number == 0:
                    raise
    finalists = sorted(times, key=lambda choice: times[choice])[:FINALISTS]
    for choice in dict.fromkeys([choices[0], *finalists]):
        with in_force.force(direction, choice):
            run = prepare()
            times[choice] = _microseconds(run, flush, FINAL_CALLS)
    # What did not come into the final cannot win it.
    return {choice: time for choice, time in times.items() if choice == choices[0] or choice in finalists}


def _microseconds(run: Callable[[], object], flush: Tensor, count: int) -> float:
    taken = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        torch.cuda._sleep(BLOCKING_CYCLES)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return statistics.median(taken)
