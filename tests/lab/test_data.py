"""The lab's nouns cannot hold what a measurement does not carry, and a run on disk loses nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from onepass.lab.data.case import Case
from onepass.lab.data.citation import Citation
from onepass.lab.data.row import Checked, Conditions, Correctness, Incorrect, Measured, Unsupported, from_json, to_json
from onepass.lab.data.run import Run, RunError
from onepass.lab.data.timing import Timing
from onepass.lab.runner import Local, execute

CASE = Case("rms_norm", "forward", 4096, 4096, "float16")
RIGHT = Correctness({"y": 1e-4}, {"y": 1e-3})
WRONG = Correctness({"y": 1.0}, {"y": 1e-3})
TIMING = Timing("gpu", 20.0, 21.0, 0.01, 0, [[20.0, 20.1], [19.9, 20.0]])


SEEN = Conditions((1755, 1980), (3201, 3201), (41, 44))


def measured(before: Correctness = RIGHT, after: Correctness = RIGHT, **fields: object) -> Measured:
    held_back = fields.pop("throttled", ())
    timings = {"gpu": TIMING}
    return Measured(CASE.id, "onepass", before, after, timings, 1, 3355.0, 3.3, 3600.0, "precise", held_back, **fields)


ROWS = [
    measured(throttled=("power cap",), conditions=SEEN, began="2026-11-15T10:00:00+00:00"),
    Checked(CASE.id, "onepass", RIGHT),
    Incorrect(CASE.id, "liger", WRONG, "before timing"),
    Unsupported(CASE.id, "quack", "not installed"),
]


@pytest.mark.parametrize("wrong", [{"before": WRONG}, {"after": WRONG}])
def test_an_incorrect_row_cannot_carry_a_speed(wrong):
    with pytest.raises(ValueError, match="not correct"):
        measured(**wrong)
    assert not {"timings", "gbps"} & set(Incorrect.__dataclass_fields__)
    with pytest.raises(ValueError, match="not correct"):
        Checked(CASE.id, "onepass", WRONG)


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 2e-3])
def test_nan_never_passes_for_correct(error):
    assert not Correctness({"y": error}, {"y": 1e-3}).passed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_a_row_survives_the_disk(row):
    assert from_json(json.loads(json.dumps(to_json(row)))) == row


def test_a_row_of_another_schema_is_no_row():
    with pytest.raises(ValueError, match="schema"):
        from_json(to_json(ROWS[0]) | {"schema": 2})
    fields = to_json(ROWS[0])
    del fields["gbps"]
    with pytest.raises(ValueError, match="gbps"):
        from_json(fields)
    with pytest.raises(ValueError, match="cannot be read"):
        from_json(to_json(ROWS[0]) | {"throttled": True})


def test_cases_that_differ_have_names_that_differ():
    variants = [
        CASE,
        Case("layer_norm", "forward", 4096, 4096, "float16"),
        Case("rms_norm", "backward", 4096, 4096, "float16"),
        Case("rms_norm", "forward", 4096, 4096, "float16", weight_dtype="float32"),
        Case("rms_norm", "forward", 4096, 128, "float16", layout="qkv", heads=32),
        Case("rms_norm", "forward", 4096, 4096, "float16", eps=1e-5),
        Case("rms_norm_fp8", "forward", 4096, 4096, "float16"),
        Case("rms_norm_fp8", "forward", 4096, 4096, "float16", columnwise=True),
        Case("rms_norm_fp8", "forward", 4096, 4096, "float16", scaling="block"),
    ]
    assert len({case.id for case in variants}) == len(variants)
    assert Case("rms_norm", "forward", 4096, 4096, "float16", weight_dtype="float16").id == CASE.id
    for case in variants:
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert Case.from_id(case.id) == case


@pytest.mark.parametrize("name", ["rms_norm", "rms_norm-forward-64-float32", "rms_norm-forward-4x4-float32-"])
def test_a_name_that_no_case_has_is_refused_with_one_that_is(name):
    with pytest.raises(ValueError, match=f"a case must be like rms_norm-forward-4096x4096-bfloat16, not {name}$"):
        Case.from_id(name)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"op": "batch_norm"}, "op"),
        ({"rows": 0}, "rows"),
        ({"dtype": "int8"}, "dtype"),
        ({"heads": 3}, "heads"),
        ({"scaling": "token"}, "scaling must be left out for rms_norm"),
        ({"columnwise": True}, "columnwise must be left out for rms_norm"),
        ({"op": "rms_norm_fp8", "scaling": "row"}, "scaling must be one of static, delayed, .*mx, not row"),
        ({"op": "rms_norm_fp8", "columnwise": "yes"}, "columnwise must be one of False, True, not yes"),
        (
            {"op": "rms_norm_fp8", "direction": "backward"},
            "direction must be forward for rms_norm_fp8: its backward is that of rms_norm$",
        ),
    ],
)
def test_a_case_that_means_nothing_is_refused_by_name(change, word):
    fields = {"op": "rms_norm", "direction": "forward", "rows": 64, "cols": 64, "dtype": "float32"} | change
    with pytest.raises(ValueError, match=word):
        Case(**fields)


def test_bytes_are_each_input_once_and_each_output_once():
    x, weight = 4096 * 4096 * 2, 4096 * 2
    assert CASE.bytes == 2 * x + weight
    assert Case("layer_norm", "backward", 4096, 4096, "float16").bytes == 3 * x + 4 * weight
    assert Case("add_rms_norm", "backward", 4096, 4096, "float16").bytes == 4 * x + 2 * weight


def fp8(scaling: str | None = None, op: str = "rms_norm_fp8", **more: object) -> Case:
    return Case(op, "forward", 32768, 4000, "bfloat16", scaling=scaling, **more)


def test_an_fp8_output_is_named_by_its_scaling_which_is_by_token_unless_it_is_said():
    assert fp8() == fp8("token") and fp8().id == "rms_norm_fp8-forward-32768x4000-bfloat16-token"
    assert fp8("block", columnwise=True).id == "rms_norm_fp8-forward-32768x4000-bfloat16-block-both"
    assert fp8("mx", "add_rms_norm_fp8").norm == "add_rms_norm" and CASE.norm == "rms_norm"


def test_bytes_of_an_fp8_output_are_those_of_q_its_transpose_and_the_scales():
    values, weight = 32768 * 4000, 4000 * 2
    assert fp8("static").bytes == fp8("delayed").bytes == fp8("tensor").bytes == 3 * values + weight + 4
    assert fp8("token").bytes == 3 * values + weight + 32768 * 4
    assert fp8("block").bytes == 3 * values + weight + 32768 * 32 * 4
    assert fp8("mx").bytes == 3 * values + weight + 32768 * 125
    assert fp8("token", columnwise=True).bytes == fp8("token").bytes + values, "which share their scales"
    assert fp8("block", columnwise=True).bytes == fp8("block").bytes + values + 4000 * 256 * 4
    assert fp8("mx", columnwise=True).bytes == fp8("mx").bytes + values + 4000 * 1024
    assert fp8("token", "add_rms_norm_fp8").bytes == fp8("token").bytes + 2 * 2 * values
    assert fp8("token", "layer_norm_fp8").bytes == fp8("token").bytes + weight


def test_flops_of_an_fp8_output_are_the_norms_and_a_few_more():
    plain = Case("layer_norm", "forward", 32768, 4000, "bfloat16").flops
    once, both = (fp8("token", "layer_norm_fp8", columnwise=each).flops for each in (False, True))
    assert plain < once < both < 2 * plain


def test_a_case_that_was_written_down_before_fp8_is_read_as_it_was():
    fields = {name: value for name, value in CASE.to_json().items() if name not in ("scaling", "columnwise")}
    assert Case.from_json(fields) == CASE


def test_the_runs_in_evidence_keep_the_names_and_bytes_of_their_cases(request):
    headers = [json.loads(path.read_text()) for path in request.config.rootpath.glob("evidence/runs/*/run.json")]
    written = [fields for header in headers for fields in header["cases"]]
    assert written
    for fields in written:
        made = Case.from_json(fields).to_json()
        assert {name: made[name] for name in fields} == fields
        assert Case.from_id(made["id"]) == Case.from_json(fields)


def header() -> dict:
    return {"cases": [CASE.to_json()], "backends": ["eager", "onepass"]}


def test_a_run_reads_back_what_was_appended(tmp_path):
    run = Run.begin(tmp_path, "first", header())
    for row in ROWS:
        run.append(row)
    again = Run.open(tmp_path / "first")
    rows, damaged = again.rows()
    assert again.cases == [CASE] and damaged == []
    assert rows[CASE.id, "liger"] == ROWS[2]
    assert rows[CASE.id, "onepass"] == ROWS[1], "the last line of a case and backend counts"


def test_a_line_cut_off_by_a_kill_is_named_and_skipped(tmp_path):
    run = Run.begin(tmp_path, "killed", header())
    run.append(ROWS[0])
    with (run.path / "rows.jsonl").open("a") as file:
        file.write(json.dumps(to_json(ROWS[3]))[:40])
    run.append(ROWS[2])
    rows, damaged = run.rows()
    assert set(rows) == {(CASE.id, "onepass"), (CASE.id, "liger")}
    assert len(damaged) == 1 and "line 2" in damaged[0]


def pack(path: Path) -> Path:
    """What gzip does to a file."""
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def test_a_run_that_was_put_away_compressed_is_read_as_it_stands(tmp_path):
    run = Run.begin(tmp_path, "kept", header())
    run.append(ROWS[0])
    run.append(ROWS[2])
    rows = run.rows()
    packed = pack(run.path / "rows.jsonl")
    assert run.rows() == rows and len(rows[0]) == 2
    with pytest.raises(RunError, match="gunzip"):
        run.append(ROWS[3])
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RunError, match=r"rows\.jsonl\.gz cannot be read"):
        run.rows()
    packed.write_bytes(b"no gzip")
    with pytest.raises(RunError, match=r"rows\.jsonl\.gz cannot be read"):
        run.rows()


def test_nothing_is_measured_for_a_run_that_takes_no_rows(tmp_path):
    run = Run.begin(tmp_path, "kept", header())
    run.append(ROWS[0])
    pack(run.path / "rows.jsonl")

    class Never(Local):
        def measure(self, run, cases):
            raise AssertionError("measured in vain")

    with pytest.raises(RunError, match="gunzip"):
        execute(run, Never(), again={case.id for case in run.cases})


def test_the_environments_of_a_run_are_each_written_once_compressed_or_not(tmp_path):
    run = Run.begin(tmp_path, "kept", header() | {"environment": {"host": "here"}})
    assert run.environments == [{"host": "here"}]
    a, b = {"host": "a"}, {"host": "b"}
    for place in (a, b, a):
        run.append_environment(place)
    with (run.path / "hosts.jsonl").open("a") as file:
        file.write('{"host": "cut o')
    assert run.environments == [a, b]
    pack(run.path / "hosts.jsonl")
    run.append_environment(b)
    assert run.environments == [a, b]
    with pytest.raises(RunError, match="gunzip"):
        run.append_environment({"host": "c"})


def test_a_run_has_its_name_from_wherever_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(Run.begin(tmp_path, "mine", header()).path)
    assert Run.open(Path(".")).id == "mine"


def test_a_citation_is_read_as_it_is_written():
    for backend in ("onepass", "eager@control", "my_module:my_norm"):
        citation = Citation("tuesday", CASE.id, backend)
        assert str(citation) == f"tuesday#{CASE.id}/{backend}" and Citation.parse(str(citation)) == citation
    for wrong in ("tuesday", f"tuesday#{CASE.id}", f"{CASE.id}/onepass", f"a/b#{CASE.id}/onepass", "a #b/c", "#b/c"):
        with pytest.raises(ValueError, match="run-id#case/backend"):
            Citation.parse(wrong)


def test_an_existing_run_is_not_written_over(tmp_path):
    Run.begin(tmp_path, "mine", header()).append(ROWS[0])
    with pytest.raises(RunError, match="--resume"):
        Run.begin(tmp_path, "mine", header())
    assert len(Run.open(tmp_path / "mine").rows()[0]) == 1


def test_what_is_no_run_is_said_in_a_sentence(tmp_path):
    with pytest.raises(RunError, match=r"no run\.json"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        Run.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        Run.begin(tmp_path / "file", "x", header())
