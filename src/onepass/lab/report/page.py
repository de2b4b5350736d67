"""The page: the template filled with a run. Data reaches it escaped: text by Jinja, JSON by `for_script`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from datetime import datetime
from importlib.resources import files
from typing import Any

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from onepass.lab.data.row import to_json
from onepass.lab.data.run import Run
from onepass.lab.data.verdict import Verdict
from onepass.lab.report import charts
from onepass.lab.report.summary import ratio_text, summarise
from onepass.lab.report.table import TIMES, columns, lines
from onepass.lab.report.view import ALL_CALLS, View, shape_name, view


def render(run: Run, verdicts: list[Verdict], boundary: list[str], smallest_effect: float | None = None) -> str:
    seen = view(run, verdicts)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["ratio"] = ratio_text
    calls = {entry.call for entry in seen.entries}
    return environment.from_string(_file("page.html")).render(
        id=run.header.get("id") or run.id,
        created=_date(run.header.get("created")),
        device=_device(run),
        view=seen,
        summary=summarise(seen, smallest_effect),
        groups=[" ".join(group) for group in seen.groups],
        themes=charts.THEMES,
        colours={name: charts.colours(seen.backends, theme) for name, theme in charts.THEMES.items()},
        span=charts.span(seen),
        columns=columns(seen),
        times=TIMES,
        lines=lines(seen),
        calls=[call for call in ALL_CALLS if call in calls],
        timed=_timed(seen),
        boundary=boundary,
        facts=_facts(run.environment),
        method=_facts(run.header.get("method") or {}),
        command=_command(run.header.get("command")),
        style=Markup(_file("style.css")),
        vega=Markup(_vega().replace("</script", "<\\/script")),
        scripts=[Markup(_file("table.js")), Markup(_file("charts.js"))],
        specs=for_script(charts.all_charts(seen)),
        configs=for_script({name: charts.config(seen.backends, theme) for name, theme in charts.THEMES.items()}),
        rows=Markup("\n".join(_line_for_script(to_json(entry.row)) for entry in seen.entries)),
        header=for_script(run.header),
    )


def for_script(value: Any) -> Markup:
    """JSON that may stand inside <script>: no character of it can end the element or begin a comment."""
    return Markup(_line_for_script(value))


def _line_for_script(value: Any) -> str:
    # These characters occur only within JSON's strings, where an escape means the same.
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as vl-convert carries them. Its stub asks for a snippet that it does not need."""
    bundle: Callable[..., str] = vl_convert.javascript_bundle
    return bundle()


def _date(created: Any) -> str:
    try:
        return f"{datetime.fromisoformat(str(created).replace('Z', '+00:00')):%d %B %Y, %H:%M %Z}".strip()
    except ValueError:
        return str(created or "no date")


def _device(run: Run) -> str:
    kind = str(run.header.get("device") or "unknown device")
    return _fact(run.environment.get("gpu" if kind == "cuda" else "cpu") or kind)


def _timed(seen: View) -> list[tuple[str, str]]:
    """The cases that have times to draw: id and name."""
    measured = {entry.row.case for entry in seen.entries if entry.deciding}
    return [(case.id, f"{case.op} {case.direction}, {shape_name(case)}") for case in seen.cases if case.id in measured]


def _facts(nested: dict[str, Any], under: str = "") -> list[tuple[str, str]]:
    """A nested dict as name and value, in words."""
    facts: list[tuple[str, str]] = []
    for name, value in nested.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{under}{name} ")
        else:
            facts.append((f"{under}{name}".replace("_", " "), _fact(value)))
    return facts


def _fact(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not known"}[value]
    return ", ".join(map(_fact, value)) if isinstance(value, (list, tuple)) else str(value)


def _command(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command or "not recorded")
