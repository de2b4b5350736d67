"""The report in a real browser: it draws, filters and sorts by keyboard, fits the screen, and asks for nothing.

Needs Chromium: apt-get update && apt-get install -y chromium. Without it these tests fail, as nothing else shows this.
Pictures are left where ONEPASS_PICTURES says, for looking at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chromium import Chromium
from lab.example_run import BOUNDARY, make_run, make_verdicts
from onepass.lab.data.run import Run
from onepass.lab.report import write_report

SHOWN = "[...document.querySelectorAll('#rows tbody tr')].filter(line => !line.hidden)"
MARKED = "document.querySelector('#rows tr[aria-current]')"
#: Whether the middle of an element is what one sees there: not scrolled away, nor under the table's heading.
IN_SIGHT = (
    "line => { const box = line.cells[0].getBoundingClientRect();"
    " return line.contains(document.elementFromPoint(box.x + 5, box.y + box.height / 2)); }"
)
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror='window.broken=1'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _report(make_run(tmp_path_factory.mktemp("runs")))


def _report(run: Run) -> Path:
    return write_report(run, make_verdicts(run), BOUNDARY, run.path / "report.html", smallest_effect=0.006)


def _choose(browser: Chromium, choice: str, value: str) -> None:
    element = f"document.getElementById('{choice}')"
    browser.run(f"{element}.value = '{value}', {element}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    browser.run(f"{element}.dispatchEvent(new Event('change', {{bubbles: true}}))")


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_drawn_in_the_readers_theme_and_nothing_hangs_over(
    browser: Chromium, report: Path, tmp_path: Path, width: int, theme: str
) -> None:
    browser.open(report, width=width, theme=theme)
    assert browser.asked == [report.resolve().as_uri()]
    assert browser.said == []
    drawn = browser.run("[...document.querySelectorAll('.chart')].map(chart => chart.dataset.drawn)")
    assert drawn == [theme] * 9  # four heat maps, four of the memory limit, the times
    assert browser.run("document.querySelectorAll('.chart svg').length") == 8
    assert browser.run("document.documentElement.scrollWidth") <= width
    edges = "[...document.querySelectorAll('.chart :is(svg, canvas)')].map(c => c.getBoundingClientRect().right)"
    assert max(browser.run(edges)) <= width
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (theme == "light")
    pictures = Path(os.environ.get("ONEPASS_PICTURES", tmp_path))
    assert browser.picture(pictures / f"report-{width}-{theme}.png").stat().st_size > 20_000


def test_a_cell_prints_its_speedup_or_carries_a_pattern(browser: Chromium, report: Path) -> None:
    browser.open(report)
    fills = browser.run(
        "[...document.querySelectorAll('[id^=speedup] svg .mark-rect path')].map(cell => cell.getAttribute('fill'))"
    )
    assert len(fills) == 24 * 5
    calls = Counter(verdict.call for verdict in make_verdicts(Run.open(report.parent)))
    assert fills.count("url(#hatch)") == calls["unsupported"] > 0
    assert fills.count("url(#cross)") == calls["incorrect"] > 0
    assert fills.count("url(#dots)") == calls["rerun noise"] + calls["throttled"] + calls["suspect"] > 0
    printed = "[...document.querySelectorAll('[id^=speedup] svg .role-mark.mark-text text')].map(t => t.textContent)"
    values = [value for value in browser.run(printed) if value]
    assert len(values) == 24 * 5 - calls["unsupported"] - calls["incorrect"]


def test_a_change_of_theme_redraws_the_charts(browser: Chromium, report: Path) -> None:
    browser.open(report)
    browser.theme("dark")
    browser.wait_for("document.body.dataset.charts === 'dark'")
    assert browser.run("document.getElementById('memory-0').dataset.drawn") == "dark"


def test_filters_show_what_they_say(browser: Chromium, report: Path) -> None:
    browser.open(report)
    assert browser.run(f"{SHOWN}.length") == 168
    _choose(browser, "filter-op", "rms_norm")
    _choose(browser, "filter-direction", "backward")
    _choose(browser, "filter-backend", "onepass")
    assert browser.run(f"{SHOWN}.map(line => line.dataset.case + line.dataset.backend)") == [
        f"rms_norm-backward-{shape}-float16onepass"
        for shape in ("512x1024", "2048x4096", "4096x4096", "4096x8192", "32768x768", "8192x65536")
    ]
    assert browser.run("document.getElementById('shown').textContent") == "6 of 168 rows"
    browser.run("document.querySelector('#filters button[type=reset]').click()")
    browser.wait_for(f"{SHOWN}.length === 168")
    _choose(browser, "filter-call", "incorrect")
    assert browser.run(f"{SHOWN}.map(line => line.dataset.backend)") == ["compile-max-autotune"]
    browser.run("document.getElementById('filter-text').focus()")
    browser.type("no such row")
    assert browser.run("document.getElementById('nothing').hidden") is False


def test_the_table_sorts_by_keyboard(browser: Chromium, report: Path) -> None:
    browser.open(report)
    browser.run("document.getElementById('filter-call').focus()")
    column = "document.activeElement.closest('th')?.cellIndex"
    presses = 0
    while browser.run(column) != 3:  # the speed-up
        browser.press("Tab", 9)
        presses += 1
        assert presses < 12, "the speed-up's heading is not reached by Tab"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    values = f"{SHOWN}.map(line => line.cells[3].dataset.sort)"
    for order, reverse in (("descending", True), ("ascending", False)):
        browser.press("Enter", 13, "\r")
        assert browser.run("document.activeElement.closest('th').getAttribute('aria-sort')") == order
        sorted_values = browser.run(values)
        numbers = [float(value) for value in sorted_values if value]
        assert numbers == sorted(numbers, reverse=reverse) and len(numbers) == 133
        assert sorted_values[len(numbers) :] == [""] * 35  # rows without a speed, last either way
    assert browser.run("document.querySelectorAll('#rows [aria-sort]').length") == 1


@pytest.mark.parametrize("width", [1400, 390])
def test_an_address_with_a_rows_name_shows_that_row_whatever_is_filtered(
    browser: Chromium, report: Path, tmp_path: Path, width: int
) -> None:
    name = "layer_norm-backward-4096x4096-float16/onepass"
    shown = f"{MARKED}?.id === '{name}' && ({IN_SIGHT})({MARKED})"
    browser.open(report, fragment=name, width=width)
    browser.wait_for(shown)
    pictures = Path(os.environ.get("ONEPASS_PICTURES", tmp_path))
    browser.picture(pictures / f"cited-{width}.png")
    other = "rms_norm-forward-512x1024-float16/eager@control"
    _choose(browser, "filter-backend", "quack")
    browser.run(f"location.hash = '{other}'")
    browser.wait_for(f"{MARKED}?.id === '{other}' && ({IN_SIGHT})({MARKED})")
    assert (
        browser.run(f"{SHOWN}.length") == 168 and browser.run("document.getElementById('filter-backend').value") == ""
    )
    assert browser.run("document.getElementById('cited').textContent") == f"This row is example#{other}"
    browser.run("document.querySelector('[data-column=\"3\"]').click()")
    assert browser.run(f"{MARKED}?.id") == other, "sorting moves the row and not the mark"
    browser.run("location.hash = 'boundary'")
    browser.wait_for(f"!{MARKED}")
    assert browser.said == [] and browser.run("document.documentElement.scrollWidth") <= width


def test_a_citation_is_copied_by_keyboard(browser: Chromium, report: Path) -> None:
    browser.open(report)
    _choose(browser, "filter-text", "layer_norm-backward-4096x8192")
    browser.run(f"{SHOWN}[0].querySelector('.cite').focus()")
    browser.press("Tab", 9)  # its reasons, or the next row
    while browser.run("document.activeElement.dataset.cite") is None:
        browser.press("Tab", 9)
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    citation = browser.run("document.activeElement.dataset.cite")
    assert citation == "example#layer_norm-backward-4096x8192-float16/compile"
    before = browser.run("document.querySelector('.tall').scrollTop")
    browser.press("Enter", 13, "\r")
    browser.wait_for("document.getElementById('cited').textContent")
    assert browser.run("document.getElementById('cited').textContent") == f"Copied {citation}"
    browser.allow("clipboardReadWrite")  # to read it; copying on a person's press needs no leave
    assert browser.run("navigator.clipboard.readText()") == citation
    assert browser.run(f"{MARKED}.id") == browser.run("location.hash.slice(1)") == citation.partition("#")[2]
    assert browser.run("document.querySelector('.tall').scrollTop") == before, "the reader keeps the place"
    assert browser.run(f"{SHOWN}.length") == 7 and browser.said == []


def test_without_a_clipboard_the_citation_is_there_to_be_copied(browser: Chromium, report: Path) -> None:
    browser.open(report)
    browser.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    browser.run(f"{SHOWN}[0].querySelector('.cite').click()")
    browser.wait_for("document.getElementById('cited').textContent.startsWith('This row is example#rms_norm')")
    assert browser.said == []


def test_the_times_are_those_of_the_chosen_case(browser: Chromium, report: Path) -> None:
    browser.open(report)
    note = "document.getElementById('latency-note').textContent"
    assert browser.run(note).startswith("900 samples")
    _choose(browser, "latency-case", "layer_norm-backward-8192x65536-float16")
    assert browser.run(note).startswith("600 samples")  # neither Liger nor Quack does this one
    _choose(browser, "latency-kind", "host")
    assert browser.run(note).startswith("600 samples")
    assert browser.said == []


def test_the_download_is_the_rows(browser: Chromium, report: Path, tmp_path: Path) -> None:
    browser.open(report)
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.run("document.querySelector('[data-download=rows-data]').click()")
    path = tmp_path / "example-rows.jsonl"
    for _ in range(100):
        browser.run("new Promise(later => setTimeout(later, 50))")
        if path.exists():
            break
    original = (report.parent / "rows.jsonl").read_text().splitlines()
    assert sorted(path.read_text().strip().splitlines()) == sorted(original)


def test_a_hostile_name_runs_nothing(browser: Chromium, tmp_path: Path) -> None:
    report = _report(make_run(tmp_path, backends=["eager", HOSTILE, "onepass"], cases=2))
    browser.open(report)
    place = browser.run(
        "(() => { const box = document.querySelectorAll('#speedup-0 svg .mark-rect path')[0].getBoundingClientRect();"
        " scrollTo(0, box.top - 300); const now = document.querySelectorAll('#speedup-0 svg .mark-rect path')[0]"
        ".getBoundingClientRect(); return [now.x + now.width / 2, now.y + now.height / 2]; })()"
    )
    browser.move_to(*place)
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible')")
    assert HOSTILE in browser.run("document.querySelector('#vg-tooltip-element').textContent")
    assert browser.run("window.broken") is None
    assert browser.asked == [report.resolve().as_uri()]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_runs_without_gpu_times_or_rows_draw_without_complaint(browser: Chromium, tmp_path: Path, device: str) -> None:
    run = make_run(tmp_path, device=device, cases=6 if device == "cpu" else 0)
    browser.open(_report(run), width=390)
    assert browser.said == []
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_the_browser_would_notice_a_request(browser: Chromium, report: Path, tmp_path: Path) -> None:
    """Without this, a silent instrument would pass for a silent page; and the page's own policy must stop it."""
    text = report.read_text(encoding="utf-8").replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>')
    (tmp_path / "asks.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "asks.html")
    assert any("Content Security Policy" in complaint for complaint in browser.said)
    open_text = text.replace("default-src 'none'; ", "").replace("img-src data: blob:; ", "")
    (tmp_path / "asks.html").write_text(open_text, encoding="utf-8")
    browser.open(tmp_path / "asks.html")
    assert "http://127.0.0.1:9/x.png" in browser.asked
