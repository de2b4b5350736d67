"""The judge: starts from "cannot say" and goes further only on evidence, with a reason in words for each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onepass.lab.data.row import CONTROL_SUFFIX, Checked, Incorrect, Measured, Row, Unsupported
from onepass.lab.data.run import Run
from onepass.lab.data.timing import DECIDING
from onepass.lab.data.verdict import Verdict
from onepass.lab.judge.stats import FEWEST_ROUNDS, Interval, ratio_interval, smallest_effect


@dataclass(frozen=True)
class Presets:
    """Every threshold of the judge, with its reason."""

    #: What the method demands of a row. Below, there is no interval to speak of.
    rounds: int = FEWEST_ROUNDS
    samples: int = 30
    #: Interquartile range over median. Beyond it the samples are not of one state of the machine: kernels with a cold
    #: L2 on a quiet GPU stay below 5 %, calls on a shared CPU reach 10 %.
    noise: float = 0.15
    #: Half-width of the ratio's interval, as a share of the ratio. Ten times what sampling aims at: a run that missed
    #: its aim by that much was disturbed.
    half_width: float = 0.05
    #: No difference below this counts, however quiet the control: rounds are sampled to 0.5 %, and no further.
    floor: float = 0.005
    #: What counts where a run has no control: a few times what controls on a GPU commonly show.
    floor_without_control: float = 0.03
    #: Above the copy's rate by more than this share *and* this time is suspect. Backward reads two bytes for each that
    #: it writes, which DRAM does some percent faster than a copy; and a copy of a few microseconds is mostly its start.
    above_ceiling: float = 0.15
    above_ceiling_us: float = 1.0
    #: A speed-up (or its inverse) beyond this is a mistake until explained. The largest honest one so far is 19, over a
    #: kernel whose rows spilled out of registers (evidence/peers-h200.json: LayerNorm, 8,192 x 16,384).
    unreasonable: float = 50.0
    #: Between two runs of the same code: other placement in memory, another process, another hour.
    between_runs: float = 0.02
    #: Between two machines of the same kind, each measured by its own baseline: other silicon, another memory layout.
    between_machines: float = 0.04


PRESETS = {
    "default": Presets(),
    "strict": Presets(
        rounds=10,
        noise=0.05,
        half_width=0.01,
        floor=0.01,
        floor_without_control=0.1,
        above_ceiling=0.05,
        unreasonable=20.0,
        between_runs=0.03,
        between_machines=0.06,
    ),
}


def judge(row: Row, against: Row, control: Interval | None, presets: Presets = PRESETS["default"]) -> Verdict:
    """What `row` shows against `against` on their case. The first reason decides; the others lead up to it."""
    if row.case != against.case:
        raise ValueError(f"row and against must be of one case, not {row.case} and {against.case}")

    def verdict(call: str, *reasons: str, interval: Interval | None = None) -> Verdict:
        bounds = [None if number is None or not math.isfinite(number) else number for number in interval or [None] * 3]
        return Verdict(row.case, row.backend, against.backend, call, reasons, *bounds)

    if isinstance(row, Incorrect):
        return verdict("incorrect", f"{row.backend} is wrong {row.when}: {_errors(row)}")
    if not isinstance(row, Measured):
        return verdict("unsupported", row.why if isinstance(row, Unsupported) else f"{row.backend} was {row.note}")
    if not isinstance(against, Measured):
        return verdict("unsupported", f"nothing to compare with: {_no_times(against)}")
    if row.place != against.place:
        return verdict(
            "unsupported",
            f"nothing to compare with: {against.backend} ran on {_place(against)}, {row.backend} on {_place(row)}",
        )
    kind = deciding_kind(row, against)
    if kind is None:
        return verdict("unsupported", f"{row.backend} and {against.backend} have no kind of time in common")
    interval = ratio_interval(against.timings[kind].rounds, row.timings[kind].rounds)
    held_back = [measured for measured in (row, against) if measured.throttled]
    if held_back:
        names = " and ".join(measured.backend for measured in held_back)
        reasons = dict.fromkeys(reason for measured in held_back for reason in measured.throttled)
        said = f"the GPU was held back while {names} ran: {', '.join(reasons)}"
        return verdict("throttled", said, interval=interval)

    steps = ["correct before and after the timing", f"compared by {kind} time"]
    doubt = _too_fast(row, against, kind, interval, presets)
    if doubt:
        return verdict("suspect", doubt, *steps, interval=interval)
    doubt = _too_noisy(row, against, kind, interval, presets)
    if doubt:
        return verdict("rerun noise", doubt, *steps, interval=interval)
    steps.append(f"the ratio is known to ±{interval.half_width:.1%} over {len(row.timings[kind].rounds)} rounds")
    if aside := len(row.timings[kind].set_aside):
        steps.append(
            f"{_count(aside, 'round')} in which the GPU was held back {'is' if aside == 1 else 'are'} left out"
        )

    effect, source = _effect(control, presets)
    if interval.low <= 1 <= interval.high or abs(interval.ratio - 1) <= effect:
        if not effect <= presets.half_width:
            return verdict("rerun noise", f"{source}, which hides differences of this size", *steps, interval=interval)
        reach = max(effect, smallest_effect(interval))  # what may still be there, unseen
        return verdict("same", f"if there is a difference, it is below {reach:.1%}", *steps, source, interval=interval)
    steps.append(source)
    if interval.ratio > 1:
        return verdict(
            "supported", f"{interval.ratio:.2f} times as fast as {against.backend}", *steps, interval=interval
        )
    return verdict(
        "slower", f"takes {1 / interval.ratio:.2f} times as long as {against.backend}", *steps, interval=interval
    )


def judge_run(run: Run, against: str, presets: Presets = PRESETS["default"]) -> list[Verdict]:
    """A verdict on every row but those of `against` and of controls."""
    rows, _ = run.rows()
    controls = controls_of(rows)
    verdicts = (judge_row(rows, controls, case, backend, against, presets) for case, backend in rows)
    return [verdict for verdict in verdicts if verdict is not None]


def judge_row(
    rows: Mapping[tuple[str, str], Row],
    controls: Mapping[str, Interval],
    case: str,
    backend: str,
    against: str,
    presets: Presets = PRESETS["default"],
) -> Verdict | None:
    """On one row; None for one of `against`, or a control. A case that has no control takes the worst of the run's."""
    if backend == against or backend.endswith(CONTROL_SUFFIX):
        return None
    base = rows.get((case, against), Unsupported(case, against, f"{against} was not measured on this case"))
    control = controls[case] if case in controls else max(controls.values(), key=smallest_effect, default=None)
    return judge(rows[case, backend], base, control, presets)


def controls_of(rows: Mapping[tuple[str, str], Row]) -> dict[str, Interval]:
    """By case: how a backend compares with itself. Where a case has several controls, the widest counts."""
    found: dict[str, Interval] = {}
    for (case, backend), again in rows.items():
        once = rows.get((case, backend.removesuffix(CONTROL_SUFFIX)))
        if not (backend.endswith(CONTROL_SUFFIX) and isinstance(once, Measured) and isinstance(again, Measured)):
            continue
        kind = deciding_kind(once, again)
        if kind is None or once.place != again.place:
            continue
        interval = ratio_interval(once.timings[kind].rounds, again.timings[kind].rounds)
        found[case] = max(found.get(case, interval), interval, key=smallest_effect)
    return found


def deciding_kind(row: Measured, other: Measured) -> str | None:
    return next((kind for kind in DECIDING if kind in row.timings and kind in other.timings), None)


def _too_fast(row: Measured, against: Measured, kind: str, interval: Interval, presets: Presets) -> str | None:
    """A base that is too fast is as bad as a row that is: either makes the ratio worthless."""
    for measured in (row, against):
        time = measured.timings[kind].p50
        if time <= 0:
            return f"{measured.backend} took no time at all"
        if measured.ceiling_gbps <= 0:
            continue
        share = measured.gbps / measured.ceiling_gbps
        if share > 1 + presets.above_ceiling and time * (share - 1) > presets.above_ceiling_us:
            return (
                f"{measured.backend} moves {measured.gbps:,.0f} GB/s, {share:.2f} times what a plain copy of that size "
                f"reaches ({measured.ceiling_gbps:,.0f})"
            )
    if max(interval.ratio, 1 / interval.ratio) > presets.unreasonable:
        return f"a ratio of {interval.ratio:,.3g} is beyond reason (more than {presets.unreasonable:g})"
    return None


def _too_noisy(row: Measured, against: Measured, kind: str, interval: Interval, presets: Presets) -> str | None:
    for measured in (row, against):
        name, timing = measured.backend, measured.timings[kind]
        if len(timing.rounds) < presets.rounds:
            return f"{name} has {_count(len(timing.rounds), 'round')}, and the method asks for {presets.rounds}"
        fewest = min(len(samples) for samples in timing.rounds)
        if fewest < presets.samples:
            return f"{name} has a round of {_count(fewest, 'sample')}, and the method asks for {presets.samples}"
        if not timing.noise <= presets.noise:
            return f"{name}'s samples scatter by {timing.noise:.0%} of their median (limit {presets.noise:.0%})"
    if not interval.half_width <= presets.half_width:
        return f"the ratio is known to ±{interval.half_width:.1%} only (limit {presets.half_width:.1%})"
    return None


def _effect(control: Interval | None, presets: Presets) -> tuple[float, str]:
    """The smallest difference that counts, and where it comes from."""
    if control is None:
        return presets.floor_without_control, (
            f"without an A/A control, only differences beyond {presets.floor_without_control:.1%} count"
        )
    effect = smallest_effect(control)
    if math.isinf(effect):
        return effect, "the A/A control has too few rounds to tell anything"
    if effect <= presets.floor:
        return presets.floor, f"the A/A control is within {effect:.1%}; differences beyond {presets.floor:.1%} count"
    return effect, f"the A/A control differs from itself by up to {effect:.1%}"


def _errors(row: Incorrect) -> str:
    limits, errors = row.correctness.limits, row.correctness.errors
    wrong = [name for name in limits if not errors.get(name, math.nan) <= limits[name]]
    return ", ".join(f"{name} is off by {errors.get(name, math.nan):.2g} (limit {limits[name]:.2g})" for name in wrong)


def _no_times(row: Checked | Incorrect | Unsupported) -> str:
    if isinstance(row, Incorrect):
        return f"{row.backend} is wrong {row.when}"
    return f"{row.backend} was {row.note}" if isinstance(row, Checked) else f"{row.backend}: {row.why}"


def _place(row: Measured) -> str:
    device = f"{row.device} ({row.gpu_uuid})" if row.gpu_uuid else row.device
    return " of ".join(part for part in (device, row.host) if part) or "an unnamed device"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
