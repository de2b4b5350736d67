"""The report's charts, as Vega-Lite specifications that the page draws in the reader's own colours."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from onepass.lab.data.row import Measured
from onepass.lab.report.summary import OURS, ratio_text
from onepass.lab.report.view import Entry, View, shape_name

#: Colours by theme. Diverging runs from slower over 1 to faster; the first of `category` is onepass's. Both tell apart
#: for readers who do not tell red from green.
THEMES: dict[str, dict[str, Any]] = {
    "light": {
        "ink": "#1b2127",
        "muted": "#5b6670",
        "line": "#dfe3e7",
        "diverging": ["#a4480b", "#e59a55", "#f3f3f0", "#6fb3c8", "#0a5f7d"],
        "category": ["#0a6c8c", "#6b7680", "#d1730f", "#9a4f96", "#4b8b3b", "#b8862b", "#c2405a", "#5560c4", "#7a5c43"],
    },
    "dark": {
        "ink": "#e7eaed",
        "muted": "#9fa9b2",
        "line": "#30373e",
        "diverging": ["#cf6a1e", "#7d4a25", "#2b3035", "#23586b", "#1a86a8"],
        "category": ["#45b8dc", "#98a3ad", "#f0963c", "#c98ac5", "#84c36f", "#dcb45a", "#ee7d92", "#949df0", "#b99a80"],
    },
}

#: The heat map's colours never spread over less or more than this, so that neither noise nor one extreme paints it.
NARROWEST, WIDEST = 1.25, 8.0
#: From this part of the colour range on, a printed value needs white.
STRONG = 0.55

#: The height of a heat map's row, and of a backend's strip of samples, in pixels.
CELL, STRIP = 28, 40

#: How a cell without evidence is marked: the id of the pattern that page.html draws, by call.
PATTERNS = {
    "unsupported": "hatch",
    "incorrect": "cross",
    "checked": "blank",
    "rerun noise": "dots",
    "throttled": "dots",
    "suspect": "dots",
    "not compared": "dots",
}


def all_charts(view: View) -> dict[str, dict[str, Any]]:
    """Every chart by the id of the element it is drawn in."""
    charts = {"latency": latency(view), "latency-kept": latency_kept(view)}
    for place, group in enumerate(view.groups):
        charts[f"speedup-{place}"] = speedup(view, group)
        charts[f"memory-{place}"] = memory(view, group)
    return charts


def colours(backends: list[str], theme: dict[str, Any]) -> list[str]:
    """A colour a backend, in their order; onepass has the same in every report."""
    first, *others = theme["category"]
    rest = [name for name in backends if name != OURS]
    return [first if name == OURS else others[rest.index(name) % len(others)] for name in backends]


def config(backends: list[str], theme: dict[str, Any]) -> dict[str, Any]:
    """Vega-Lite's config for a theme: all the colours that a specification leaves open."""
    words = {"labelColor": theme["muted"], "titleColor": theme["muted"]}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": "transparent"},
        "axis": words | {"gridColor": theme["line"], "domainColor": theme["line"], "tickColor": theme["line"]}
        | {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
        "text": {"color": theme["ink"]},
        "rule": {"color": theme["muted"]},
        "range": {"diverging": theme["diverging"], "category": colours(backends, theme)},
    }  # fmt: skip


def span(view: View) -> float:
    """The speed-up at the end of the heat maps' colours, the same for all of them."""
    largest = max((abs(math.log(e.speedup)) for e in view.entries if e.is_evidence and e.speedup), default=0.0)
    return min(max(math.exp(largest), NARROWEST), WIDEST)


def speedup(view: View, group: tuple[str, str]) -> dict[str, Any]:
    """Shapes × backends against the baseline; a cell without evidence carries a pattern, not a colour."""
    entries = [entry for entry in view.compared if entry.group == group and entry.call != "baseline"]
    backends = [name for name in view.backends if name != view.baseline]
    shapes = [shape_name(case) for case in view.cases if (case.op, case.direction) == group]
    end = math.log(span(view))
    base = alt.Chart(alt.NamedData("cells")).encode(
        x=alt.X("backend:N", title=None, scale=alt.Scale(domain=backends, padding=0.03)).axis(
            labelAngle=-35, labelLimit=130, ticks=False, domain=False, labelPadding=6
        ),
        y=alt.Y("shape:N", title=None, scale=alt.Scale(domain=shapes, padding=0.07)).axis(
            labelLimit=230, ticks=False, domain=False, labelPadding=6
        ),
        tooltip=[alt.Tooltip(f"{name}:N") for name in ("shape", "backend", "call", "speed-up", "reasons")],
    )
    # rgb as in the page's legend; Vega's own way from orange to blue leads over green.
    diverging = alt.Scale(domain=[-end, end], domainMid=0, clamp=True, interpolate="rgb")
    coloured = (
        base.transform_filter("datum.pattern == null")
        .mark_rect(cornerRadius=3)
        .encode(color=alt.Color("log:Q", legend=None, scale=diverging))
    )
    marked = [
        base.transform_filter(f"datum.pattern == '{pattern}'").mark_rect(fill=f"url(#{pattern})", cornerRadius=3)
        for pattern in dict.fromkeys(PATTERNS.values())
    ]
    strong = f"datum.pattern == null && abs(datum.log) > {STRONG * end}"
    values = base.mark_text(fontSize=11).encode(
        text="text:N", color=alt.when(strong).then(alt.value("#ffffff"))  # else the theme's ink
    )  # fmt: skip
    chart = alt.layer(coloured, *marked, values).properties(width="container", height=CELL * len(shapes))
    cells = [_cell(entry) for entry in entries if entry.case]
    return _spec(chart, f"Speed-up over {view.baseline}, {' '.join(group)}", cells=cells)


def _cell(entry: Entry) -> dict[str, Any]:
    assert entry.case is not None
    ratio = entry.speedup
    if entry.is_evidence:
        text = ratio_text(ratio or 1.0).rstrip("×")
    elif ratio is not None:
        text = f"({ratio_text(ratio).rstrip('×')})"
    else:
        text = "✓" if entry.call == "checked" else ""
    low, high = (entry.verdict.low, entry.verdict.high) if entry.verdict else (None, None)
    interval = f", 95 % within {low:.3f} – {high:.3f}" if low is not None and high is not None else ""
    return {
        "shape": shape_name(entry.case),
        "backend": entry.row.backend,
        "call": entry.call,
        "log": math.log(ratio) if entry.is_evidence and ratio else 0.0,
        "pattern": None if entry.is_evidence else PATTERNS.get(entry.call, "dots"),
        "text": text,
        "speed-up": f"{ratio_text(ratio)}{interval}" if ratio else "none",
        "reasons": "; ".join(entry.reasons),
    }


def memory(view: View, group: tuple[str, str]) -> dict[str, Any]:
    """Share of the copy ceiling against the bytes that must move, a line for each backend, dtype and scaling."""
    top = max([1.05, *(share for entry in view.compared if (share := entry.ceiling_share) is not None)])
    points = alt.Chart(alt.NamedData("points")).encode(
        x=alt.X("bytes:Q", title="bytes that must move", scale=alt.Scale(type="log", nice=False, padding=12)).axis(
            format=".3~s", grid=False, labelExpr="datum.label ? datum.label + 'B' : ''", tickCount=5, labelOverlap=True
        ),
        y=alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, top])).axis(format="~%", tickCount=5),
        color=alt.Color("backend:N", legend=None, scale=alt.Scale(domain=view.backends)),
        detail=["dtype:N", "scaling:N"],
        tooltip=[
            alt.Tooltip("shape:N"),
            alt.Tooltip("backend:N"),
            alt.Tooltip("share:Q", title="share of the ceiling", format=".1%"),
            alt.Tooltip("gbps:Q", title="GB/s", format=",.0f"),
            alt.Tooltip("call:N"),
        ],
    )
    ceiling = alt.Chart(alt.NamedData("ceiling")).encode(y="share:Q")
    chart = alt.layer(
        ceiling.mark_rule(strokeDash=[5, 4], strokeWidth=1.5),
        ceiling.mark_text(align="right", baseline="bottom", dy=-3, fontSize=10.5).encode(
            x=alt.value("width"), text=alt.value("a plain copy")
        ),
        points.mark_line(strokeWidth=1.5, opacity=0.55),
        points.mark_point(filled=True, size=46, opacity=0.95),
    ).properties(width="container", height=230)
    values = [_point(entry) for entry in view.compared if entry.group == group and entry.ceiling_share is not None]
    title = f"Share of the memory limit, {' '.join(group)}"
    return _spec(chart, title, points=values, ceiling=[{"share": 1.0}])


def _point(entry: Entry) -> dict[str, Any]:
    assert entry.case is not None and isinstance(entry.row, Measured)
    return {
        "bytes": entry.case.bytes,
        "scaling": f"{entry.case.scaling} {'both ways' if entry.case.columnwise else 'by rows'}",
        "share": entry.ceiling_share,
        "gbps": entry.row.gbps,
        "backend": entry.row.backend,
        "shape": shape_name(entry.case),
        "dtype": entry.case.dtype,
        "call": entry.call,
    }


def latency(view: View) -> dict[str, Any]:
    """Every sample of one case, and a box over them; charts.js fills it with the case that the reader chooses."""
    samples = _strips(view, "samples").encode(x=_micros("time:Q"))
    chart = alt.layer(
        samples.mark_circle(size=12, opacity=0.4).encode(
            yOffset=alt.YOffset("jitter:Q", scale=alt.Scale(domain=[-1.6, 1.6]))
        ),
        samples.mark_boxplot(
            size=15, extent=1.5, outliers=False, box={"fillOpacity": 0.28}, median={"strokeWidth": 2.5}
        ),
    )
    return _spec(
        chart.properties(width="container", height=STRIP * len(view.backends)), "Times of one case", samples=[]
    )


def latency_kept(view: View) -> dict[str, Any]:
    """p50 to p95 of one case, for runs whose samples were not kept."""
    kept = _strips(view, "kept").encode(x=_micros("p50:Q"))
    chart = alt.layer(kept.mark_bar(height=9, opacity=0.45).encode(x2="p95:Q"), kept.mark_tick(thickness=3, height=20))
    return _spec(
        chart.properties(width="container", height=STRIP * len(view.backends)), "p50 to p95 of one case", kept=[]
    )


def _strips(view: View, name: str) -> alt.Chart:
    axis = alt.Axis(labelLimit=150, ticks=False, domain=False, grid=False)
    return alt.Chart(alt.NamedData(name)).encode(
        y=alt.Y("backend:N", title=None, sort=view.backends, axis=axis),
        color=alt.Color("backend:N", legend=None, scale=alt.Scale(domain=view.backends)),
    )


def _micros(field: str) -> alt.X:
    return alt.X(field, title="µs", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))


def _spec(chart: alt.LayerChart | alt.FacetChart, description: str, **datasets: list[dict[str, Any]]) -> dict[str, Any]:
    spec = chart.properties(description=description, padding=2).to_dict()
    # The schema's address and altair's own sizes: neither is the page's.
    del spec["$schema"], spec["config"]
    return spec | {"datasets": datasets}
