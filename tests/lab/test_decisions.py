"""A decision cannot outlive its evidence unnoticed: its rows are looked up and judged again."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from onepass.lab.cli import app
from onepass.lab.data.row import Incorrect, Unsupported
from onepass.lab.data.run import Run
from onepass.lab.decisions import SECTIONS, check, read
from simulated import CASE, WRONG, measured, rounds_of, run_of

ROOT = Path(__file__).resolve().parents[2]
NAME = "0001-train-with-onepass.md"
BACKWARD = replace(CASE, direction="backward", dtype="bfloat16")
FORWARD = replace(BACKWARD, direction="forward")


def row_of(case, backend, time, seed):
    return measured(backend, rounds_of(time, np.random.default_rng(seed)), case=case)


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """The example of docs/lab.md, and a run that bears it out."""
    text = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```markdown\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / NAME).write_text(example, encoding="utf-8")
    times = {"eager": 60, "eager@control": 60, "quack": 50, "onepass": 40}
    backward = [row_of(BACKWARD, backend, time, seed) for seed, (backend, time) in enumerate(times.items())]
    forward = [row_of(FORWARD, backend, 40, 7) for backend in ("eager", "eager@control", "onepass")]
    run = run_of(tmp_path / "runs", "tuesday", [*backward, *forward], cases=(BACKWARD, FORWARD))
    header = json.dumps(run.header | {"baseline": "eager"})
    (run.path / "run.json").write_text(header, encoding="utf-8")
    return tmp_path


def faults(evidence: Path, edit: str = "", into: str = "", name: str = NAME) -> str:
    """What the check says of the record, after an edit of it."""
    path = evidence / "decisions" / NAME
    text = path.read_text(encoding="utf-8")
    assert edit in text
    path.unlink()
    (path.parent / name).write_text(text.replace(edit, into, 1) if edit else text, encoding="utf-8")
    records = check(evidence / "decisions", [evidence / "runs"])
    return "\n".join(fault for record in records for fault in record.faults)


def test_the_decisions_of_this_repository_hold():
    arguments = [str(ROOT / "evidence" / "decisions"), "--runs", str(ROOT / "evidence" / "runs")]
    done = CliRunner().invoke(app, ["decisions", "check", *arguments])
    assert done.exit_code == 0, done.output


def test_the_example_in_the_documentation_holds(evidence):
    record = read(evidence / "decisions" / NAME)
    assert (record.status, record.title, len(record.evidence)) == ("accepted", "Train with onepass's RMSNorm", 2)
    assert faults(evidence) == ""


def test_a_decision_falls_when_a_row_gets_another_call(evidence):
    Run.open(evidence / "runs" / "tuesday").append(row_of(BACKWARD, "onepass", 55, 9))
    found = faults(evidence)
    assert found.startswith(
        f"tuesday#{BACKWARD.id}/onepass against quack is slower, not supported as claimed: takes 1.1"
    )
    assert found.count("\n") == 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            Incorrect(BACKWARD.id, "onepass", WRONG, "after timing"),
            "is incorrect, not supported as claimed: onepass is",
        ),
        (
            Unsupported(BACKWARD.id, "onepass", "not installed"),
            "is unsupported, not supported as claimed: not installed",
        ),
        (
            Unsupported(BACKWARD.id, "quack", "not installed"),
            "is unsupported, not supported as claimed: nothing to com",
        ),
    ],
    ids=["incorrect", "unsupported", "nothing to compare with"],
)
def test_a_row_without_times_supports_nothing(evidence, row, words):
    Run.open(evidence / "runs" / "tuesday").append(row)
    assert words in faults(evidence)


def test_a_decision_may_rest_on_a_row_that_is_slower(evidence):
    assert "is supported, not slower as claimed" in faults(evidence, "call: supported", "call: slower")
    path = evidence / "decisions" / NAME
    path.write_text(path.read_text().replace("onepass\n    against: quack", "eager\n    against: onepass"))
    assert faults(evidence) == ""


@pytest.mark.parametrize(
    ("edit", "into", "words"),
    [
        ("tuesday#", "wednesday#", "there is no run wednesday in"),
        ("-4096x4096-", "-4096x8192-", "is missing"),
        ("bfloat16/onepass\n    against", "bfloat16/triton\n    against", "is missing"),
        ("against: quack", "against: liger", "liger was not measured on this case"),
        ("against: quack", "against: onepass", "it is what others are compared with"),
        ("tuesday#", "tuesday ", "run-id#case/backend"),
        ("call: same", "call: faster", "call must be one of supported, same"),
        ("against: quack", "agianst: quack", "has row, agianst, call"),
        ("    call: same\n", "", "it must have row, call"),
        ("status: accepted", "status: agreed", "status must be proposed, accepted"),
        ("status: accepted\n", "", "status must be proposed, accepted"),
        ("date: 2026-11-17", "date: soon", "date must be a day such as 2026-11-15, not soon"),
        ("date: 2026-11-17", "date: 2026-13-17", "front matter cannot be read"),
        ("evidence:", "proof:", "names no rows"),
        ("evidence:", "evidence: [", "front matter cannot be read: line"),
        ("---\nstatus", "status", "does not begin with front matter"),
        ("# Train", "Train", "no title"),
        *((section, "Something else", f"section {section} is missing") for section in SECTIONS),
    ],
    ids=lambda value: value.strip()[:30],
)
def test_what_is_wrong_with_a_record_is_said_in_a_sentence(evidence, edit, into, words):
    found = faults(evidence, edit, into)
    assert words in found and "\n" not in found


@pytest.mark.parametrize("name", ["1-train.md", "0001_train.md", "0001-Train.md", "train.md"])
def test_a_name_that_has_no_number_or_title_is_refused(evidence, name):
    assert "NNNN-title" in faults(evidence, name=name)


def test_a_number_is_given_once_and_a_readme_needs_none(evidence):
    shutil.copy(evidence / "decisions" / NAME, evidence / "decisions" / "0001-again.md")
    (evidence / "decisions" / "README.md").write_text("What is here.")
    found = [record.faults for record in check(evidence / "decisions", [evidence / "runs"])]
    assert found == [[f"its number is also that of {NAME}"], ["its number is also that of 0001-again.md"]]


@pytest.mark.parametrize("status", ["rejected", "deprecated", "superseded by 0002"])
def test_a_decision_that_no_longer_stands_needs_its_rows_but_not_their_calls(evidence, status):
    path = evidence / "decisions" / NAME
    successor = path.read_text(encoding="utf-8").replace("call: supported", "call: same")
    (path.parent / "0002-stay-with-quack.md").write_text(successor, encoding="utf-8")
    Run.open(evidence / "runs" / "tuesday").append(row_of(BACKWARD, "quack", 40, 9))
    assert "is same, not supported as claimed" in faults(evidence)
    assert faults(evidence, "status: accepted", f"status: {status}") == ""
    assert "is missing" in faults(evidence, "-4096x4096-", "-4096x8192-")


def test_a_successor_has_to_be_there(evidence):
    assert "superseded by 0002, which is not there" in faults(
        evidence, "status: accepted", "status: superseded by 0002"
    )


def test_a_record_may_rest_on_a_run_that_was_put_away_compressed(evidence):
    rows = evidence / "runs" / "tuesday" / "rows.jsonl"
    (rows.parent / "rows.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes()))
    rows.unlink()
    assert faults(evidence) == ""


def test_the_command_says_a_line_a_record_and_fails_for_what_does_not_hold(evidence, monkeypatch):
    monkeypatch.chdir(evidence)

    def command(*arguments: str):
        return CliRunner().invoke(app, ["decisions", "check", *arguments])

    done = command("decisions")  # runs is where the command looks by itself
    assert (done.exit_code, done.output) == (0, f"{NAME}: accepted, 2 rows as claimed\n")
    done = command("decisions", "--runs", "nowhere", "--runs", "elsewhere", "--json")
    [record] = json.loads(done.output)["records"]
    assert done.exit_code == 1 and len(record["faults"]) == 2
    assert "there is no run tuesday in nowhere or elsewhere" in record["faults"][0]
    done = command()
    assert done.exit_code == 2 and done.output.count("\n") == 1 and "evidence/decisions" in done.output
    (evidence / "empty").mkdir()
    assert command("empty").exit_code == 0 and "no decision records" in command("empty").output


def test_what_reads_records_is_named_where_it_is_not_installed(evidence, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    done = CliRunner().invoke(app, ["decisions", "check", str(evidence / "decisions")])
    assert done.exit_code == 2 and done.output.count("\n") == 1 and "pip install pyyaml" in done.output
