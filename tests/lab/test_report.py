"""The report as a file: whole, self-contained, and safe to open whatever the run's names hold."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from lab.example_run import BACKENDS, BOUNDARY, make_run, make_verdicts
from onepass.lab.data.citation import Citation
from onepass.lab.data.row import Measured, Unsupported, to_json
from onepass.lab.data.run import Run, RunError
from onepass.lab.data.verdict import Verdict
from onepass.lab.report import page, write_report
from onepass.lab.report.summary import summarise
from onepass.lab.report.view import shape_name, view
from onepass.lab.suite import suite

HOSTILE = "</script><script>window.broken=1</script><img src=x onerror='window.broken=1'>\"&amp;"
_VOID = {"meta", "input", "br", "img", "link", "rect", "line", "circle", "path", "hr"}


class Page(HTMLParser):
    """What an HTML parser sees: the elements with their attributes, scripts' sources, and tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: dict[str, str] = {}
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            name = self.elements[-1][1].get("id", f"script {len(self.scripts)}")
            self.scripts[name] = self.scripts.get(name, "") + data
        elif data.strip():
            self.words.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def report(run: Run) -> Page:
    path = write_report(run, make_verdicts(run), BOUNDARY, run.path / "report.html")
    return Page(path.read_text(encoding="utf-8"))


def test_a_row_of_the_run_is_a_row_of_the_table_and_of_the_download(run: Run, report: Page) -> None:
    found, _ = run.rows()
    shown = {(line["data-case"], line["data-backend"]) for line in report.all("tr") if "data-case" in line}
    carried = [json.loads(line) for line in report.scripts["rows-data"].splitlines()]
    assert shown == set(found) and len(found) == 24 * 7  # six backends and the control
    assert json.dumps(carried) == json.dumps([to_json(found[row["case"], row["backend"]]) for row in carried])
    assert len(carried) == len(found)


def test_every_row_has_a_place_in_the_page_and_a_citation_that_finds_it_again(run: Run, report: Page) -> None:
    found, _ = run.rows()
    anchors = [line["id"] for line in report.all("tr") if "data-case" in line]
    links = [link for link in report.all("a") if "data-cite" in link]
    cited = [Citation.parse(link["data-cite"]) for link in links]
    assert {(each.case, each.backend) for each in cited} == set(found)
    assert {each.run for each in cited} == {run.id}
    assert [unquote(link["href"]) for link in links] == [f"#{anchor}" for anchor in anchors]
    assert anchors == [each.anchor for each in cited] and len(set(anchors)) == len(anchors)


def test_nothing_in_the_page_asks_the_network(run: Run, report: Page) -> None:
    for tag, attributes in report.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        for name in ("src", "srcset", "href", "action", "xlink:href", "style"):
            assert not re.search(r"//|url\((?!#)", attributes.get(name, "")), (tag, attributes)
    own = [source for source in report.scripts.values() if "vegaEmbed=" not in source]
    assert len(own) == len(report.scripts) - 1
    assert not [source for source in own if re.search(r"https?://|\bfetch\(|\bimport\b|XMLHttpRequest", source)]
    policy = next(meta["content"] for meta in report.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in policy and "http" not in policy
    assert not re.search(r"@import|url\((?!#)", page._file("style.css"))


def test_names_from_a_run_stay_names(tmp_path: Path) -> None:
    hostile = make_run(tmp_path, "hostile", backends=["eager", HOSTILE, "onepass"], cases=2)
    hostile.header["environment"][HOSTILE] = HOSTILE
    hostile.header.update(command=HOSTILE, created=HOSTILE, device=HOSTILE)
    hostile.append(Unsupported(hostile.cases[0].id, "onepass", HOSTILE))
    plain = make_run(tmp_path, "plain", backends=["eager", "peer", "onepass"], cases=2)
    plain.append(Unsupported(plain.cases[0].id, "onepass", "why"))
    pages = []
    for made in (hostile, plain):
        path = write_report(made, make_verdicts(made), [HOSTILE], tmp_path / made.id / "report.html")
        pages.append(Page(path.read_text(encoding="utf-8")))
    assert len(pages[0].all("script")) == len(pages[1].all("script"))
    assert not pages[0].all("img")
    assert not [name for _, attributes in pages[0].elements for name in attributes if name.startswith("on")]
    assert HOSTILE in pages[0].words
    assert HOSTILE in {json.loads(line)["backend"] for line in pages[0].scripts["rows-data"].splitlines()}


def test_a_report_is_replaced_whole_or_not_at_all(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("the report before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot write .*report.html: No space left on device"):
            write_report(run, [], [], path)
    assert path.read_text() == "the report before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert write_report(run, [], [], tmp_path) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_run_on_a_cpu_has_a_report(tmp_path: Path) -> None:
    cpu = make_run(tmp_path, device="cpu", cases=6)
    path = write_report(cpu, make_verdicts(cpu), ["CPU only."], tmp_path / "report.html")
    words = Page(path.read_text(encoding="utf-8")).words
    assert "checked in Triton's interpreter, not timed" in words
    assert any("AMD EPYC" in word for word in words)


def test_a_run_without_rows_or_cases_has_a_report(tmp_path: Path) -> None:
    header = {"schema": 1, "backends": [], "cases": []}
    for run_id, extra in (("nothing", {}), ("begun", {"backends": BACKENDS, "device": "cuda", "environment": {}})):
        begun = Run.begin(tmp_path, run_id, header | extra)
        path = write_report(begun, [], [], begun.path / "report.html")
        assert "has no rows yet" in " ".join(Page(path.read_text(encoding="utf-8")).words)


def test_a_damaged_line_is_named_in_the_report(tmp_path: Path) -> None:
    damaged = make_run(tmp_path, cases=1)
    with (damaged.path / "rows.jsonl").open("a") as file:
        file.write('{"schema": 1, "kind": "meas')
    path = write_report(damaged, [], [], tmp_path / "report.html")
    assert "line 8, was skipped" in path.read_text(encoding="utf-8")


def test_only_evidence_enters_a_mean(tmp_path: Path) -> None:
    made = make_run(tmp_path, backends=["eager", "onepass"], cases=4)
    calls = [("supported", 2.0), ("slower", 0.5), ("rerun noise", 9.0), ("suspect", 50.0)]
    verdicts = [
        Verdict(case.id, "onepass", "eager", call, (), ratio, ratio, ratio)
        for case, (call, ratio) in zip(made.cases, calls, strict=True)
    ]
    summary = summarise(view(made, verdicts), 0.004)
    assert summary.means[0][1][0].ratio == pytest.approx(1.0) and summary.means[0][1][0].cases == 2
    assert "level in" in summary.sentences[1] and "0.40%" in summary.effect
    assert "(2 of 4, 0.50× at the least)" in summary.sentences[1].replace("\N{NO-BREAK SPACE}", " ")
    assert dict(summary.counts) == {"supported": 1, "slower": 1, "rerun noise": 1, "suspect": 1} | {
        "baseline": 4,
        "control": 4,
    }


def test_a_mean_that_is_ahead_does_not_pass_for_being_ahead_everywhere(tmp_path: Path) -> None:
    made = make_run(tmp_path, backends=["eager", "onepass"], cases=3)

    def said(*ratios: float) -> str:
        verdicts = [
            Verdict(case.id, "onepass", "eager", "supported" if ratio > 1 else "slower", (), ratio, ratio, ratio)
            for case, ratio in zip(made.cases, ratios, strict=False)
        ]
        return summarise(view(made, verdicts), 0.004).sentences[1].replace("\N{NO-BREAK SPACE}", " ")

    assert "is ahead in" in said(2.0, 2.0, 0.88) and "(3 of 3, 0.88× at the least)" in said(2.0, 2.0, 0.88)
    assert "(3 of 3)" in said(2.0, 2.0, 1.5), "what is behind nowhere has no least to be told"
    assert "(1 of 3)" in said(0.5), "nor has what is of one case"


def test_a_control_is_a_row_and_no_backend(run: Run) -> None:
    seen = view(run, make_verdicts(run))
    assert seen.backends == BACKENDS
    assert [entry.call for entry in seen.entries if entry.row.backend == "eager@control"] == ["control"] * 24
    assert "did not finish" not in summarise(seen, None).sentences[0]


def test_a_row_that_lost_its_times_shows_no_speed(tmp_path: Path) -> None:
    """A verdict from before the last append must not lend its speed-up to a row that is no longer Measured."""
    made = make_run(tmp_path, backends=["eager", "onepass"], cases=1)
    verdicts = make_verdicts(made)
    made.append(Unsupported(made.cases[0].id, "onepass", "gone"))
    entry = view(made, verdicts).entries[1]
    assert not isinstance(entry.row, Measured) and entry.speedup is None and entry.call == "unsupported"


def test_cases_of_a_group_have_shapes_that_read_differently() -> None:
    """They are the axes of the charts: two of one name would lie on each other."""
    cases = suite("fp8").cases
    assert len({(case.op, shape_name(case)) for case in cases}) == len(cases)
    names = {shape_name(case) for case in cases}
    assert {"32,768 × 4,096 bf16, block", "32,768 × 4,096 bf16, block both ways"} <= names


def test_fp8_rows_are_rows_of_the_page_like_any_other(tmp_path: Path) -> None:
    cases = suite("fp8").cases[::5]
    run = make_run(tmp_path, chosen=cases)
    page = Page(write_report(run, make_verdicts(run), BOUNDARY, tmp_path / "fp8.html").read_text(encoding="utf-8"))
    shown = {line["data-case"] for line in page.all("tr") if "data-case" in line}
    assert shown == {case.id for case in cases}
    assert set(view(run, []).groups) == {(case.op, "forward") for case in cases}
