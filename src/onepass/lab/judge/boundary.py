"""The evidence boundary: in plain words, what a run shows and what it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from onepass.lab.data.case import Case
from onepass.lab.data.row import Checked, Measured, Row
from onepass.lab.data.run import Run
from onepass.lab.data.verdict import Verdict
from onepass.lab.judge.judge import PRESETS, controls_of
from onepass.lab.judge.stats import smallest_effect

#: Calls that say nothing about speed, and what they have in common in words.
_WEAK = {"rerun noise": "too noisy to say anything", "throttled": "throttled", "suspect": "too fast to be believed"}
#: How many rows a sentence names before it only counts.
_NAMED = 5


def boundary(run: Run, verdicts: Sequence[Verdict]) -> list[str]:
    """Sentences: where it was measured, on what, how finely, and what must not be concluded from it."""
    rows, _ = run.rows()
    measured = [row for row in rows.values() if isinstance(row, Measured)]
    return [
        *_where(run, measured),
        *_what(run.cases, {row.case for row in measured}),
        *_how_finely(rows),
        *_unwatched(run, measured),
        *_weak(verdicts),
        *_untimed(rows.values(), verdicts),
        "It does not show end-to-end speed: a model also does other work, in which a faster norm may disappear.",
    ]


def gpus_of(run: Run, measured: Iterable[Measured]) -> list[str]:
    """The GPU models of a run: its environment's, and those that rows name for themselves. None for a CPU's run."""
    named = _values(run, "gpu")
    return list(dict.fromkeys([*named, *(row.device for row in measured if row.device not in ("", "cpu", "cuda"))]))


def _values(run: Run, name: str) -> list[str]:
    """What the run's environments say of one thing: none, one, or several that differ."""
    found = run.environment.get(name)
    return [found] if isinstance(found, str) else list(found or [])


def _where(run: Run, measured: list[Measured]) -> list[str]:
    gpus = gpus_of(run, measured)
    if not measured:
        return ["Nothing was timed: this run shows nothing about speed."]
    if not gpus:
        cpus = " or ".join(_values(run, "cpu")) or "an unnamed CPU"
        return [
            f"Times are of a CPU ({cpus}), with caches as the call before left them.",
            *_spread(run, measured),
            "It shows nothing about any GPU: CPU times do not carry over.",
        ]
    return [
        f"Times are of {_listed(gpus)}, with a cold L2: every input comes from memory, as after other work.",
        *_spread(run, measured),
        "It does not show times with a warm L2, nor those of another GPU model.",
    ]


def _spread(run: Run, measured: list[Measured]) -> list[str]:
    """What it means that cases were measured in several places, or beside one another."""
    sentences = []
    hosts = list(dict.fromkeys(row.host for row in measured))
    places = len({row.place for row in measured})
    if places > 1:
        gpus = f"{_counted(places, 'GPU')} of " if any(row.gpu_uuid for row in measured) else ""
        sentences.append(
            f"Its cases are spread over {gpus}{_counted(len(hosts), 'host')} ({_listed(hosts)}): a comparison stays "
            "within one of them, but the times of two cases may be of different ones."
        )
    if run.header.get("executor") == "ray" and any(row.device == "cpu" for row in measured):
        sentences.append("Cases ran beside one another on a host, and shared its caches and memory.")
    return sentences


def _what(cases: list[Case], timed: set[str]) -> list[str]:
    shown = [case for case in cases if case.id in timed]
    if not shown:
        return []
    scalings = list(dict.fromkeys(case.scaling for case in shown if case.scaling))
    parts = [
        _listed(list(dict.fromkeys(f"{case.op} {case.direction}" for case in shown))),
        f"in {_listed(list(dict.fromkeys(case.dtype for case in shown)))}",
        *([f"with FP8 scales by {_listed(scalings)}"] if scalings else []),
        f"with {_span(case.rows for case in shown)} rows",
        f"of {_span(case.cols for case in shown)} columns",
    ]
    sentences = [
        f"It covers {', '.join(parts)}: {_counted(len(shown), 'case')}, and no shape or dtype beyond or in between."
    ]
    if len(shown) < len(cases):
        sentences.append(f"{len(cases) - len(shown)} of the {len(cases)} cases asked for have no times.")
    return sentences


def _how_finely(rows: dict[tuple[str, str], Row]) -> list[str]:
    floor = PRESETS["default"].floor
    effects = [max(floor, smallest_effect(control)) for control in controls_of(rows).values()]
    if not effects:
        if not any(isinstance(row, Measured) for row in rows.values()):
            return []
        return ["It has no A/A control, so it cannot say how small a difference it could tell."]
    blind = sum(effect == float("inf") for effect in effects)
    told = sorted(effect for effect in effects if effect != float("inf"))
    sentences = []
    if told:
        span = f"{told[0]:.1%}" if told[0] == told[-1] else f"{told[0]:.1%} to {told[-1]:.1%}, depending on the case"
        sentences.append(f"The smallest difference that it can tell is {span}, by an A/A control.")
    if blind:
        sentences.append(f"In {_counted(blind, 'case')} the A/A control has too few rounds to tell any difference.")
    return sentences


def _unwatched(run: Run, measured: list[Measured]) -> list[str]:
    unseen = [row for row in measured if row.conditions is None] if gpus_of(run, measured) else []
    if not unseen:
        return []
    return [f"NVML did not answer while {_counted(len(unseen), 'row')} ran, so a GPU that was held back went unseen."]


def _weak(verdicts: Sequence[Verdict]) -> list[str]:
    sentences = []
    for call, words in _WEAK.items():
        found = [f"{verdict.backend} on {verdict.case}" for verdict in verdicts if verdict.call == call]
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            names = "; ".join(found[:_NAMED])
            sentences.append(f"{_counted(len(found), 'comparison')} {_be(len(found))} {words}: {names}{more}.")
    return sentences


def _untimed(rows: Iterable[Row], verdicts: Sequence[Verdict]) -> list[str]:
    sentences = []
    for backend, count in Counter(row.backend for row in rows if isinstance(row, Checked)).items():
        sentences.append(
            f"{backend} was checked, not timed, on {_counted(count, 'case')}: that shows its results are right, "
            "and nothing about its speed."
        )
    for call, words in (("incorrect", "wrong results"), ("unsupported", "no times to compare")):
        counts = Counter(verdict.backend for verdict in verdicts if verdict.call == call)
        if counts:
            each = _listed([f"{backend} on {_counted(count, 'case')}" for backend, count in counts.items()])
            sentences.append(f"There are {words} from {each}.")
    return sentences


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _span(numbers: Iterable[int]) -> str:
    low, *_, high = [*(found := sorted(set(numbers))), found[-1]]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
