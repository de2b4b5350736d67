"""What was tuned for a problem, or is being tried for it: it goes before what the thresholds would choose."""

from __future__ import annotations

from onepass.plan import in_force, table
from onepass.plan.device import Device
from onepass.plan.plans import Choice
from onepass.plan.turns import takes_turns
from onepass.spec import Problem


def signature(direction: str, problem: Problem, centred: bool, align: int) -> str:
    """What a tuned choice holds for: all that a kernel is compiled for, but rows and lanes."""
    # A backward is the same whether x was normalized or its copy, which the op that compiled calls take cannot tell.
    copied = direction == "backward" and problem.residual is None and problem.h == problem.x
    total = None if copied else problem.sum
    dtypes = (problem.x, problem.y, problem.weight, problem.bias, problem.residual, total)
    names = " ".join("-" if dtype is None else str(dtype).removeprefix("torch.") for dtype in dtypes)
    heads = " heads" if problem.per_lane else ""
    heads += " turns" if direction == "backward" and takes_turns(problem, align) else ""
    heads += f" fp8 by {problem.group}" if problem.quantized and direction == "forward" else ""
    return f"{'layer_norm' if centred else 'rms_norm'} {direction} {problem.cols} {names} align{align}{heads}"


def tuned_choice(direction: str, problem: Problem, device: Device, centred: bool, align: int) -> Choice | None:
    """What is forced for now, or stands in the table."""
    if direction in in_force.forced():
        return in_force.forced()[direction]
    if in_force.is_overridden():
        return None
    entry = table.find(device.name, signature(direction, problem, centred, align))
    return None if entry is None else Choice(entry.schedule, entry.tile)
