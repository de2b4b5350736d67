"""Suites: the shapes that the lab promises, each once, and files that say what is wrong with them."""

import json
from dataclasses import replace

import pytest

from onepass.fp8.presets import SCALINGS
from onepass.lab.data.case import DIRECTIONS, DTYPES, NORMS, Case
from onepass.lab.suite import parse, random_cases, suite, suites


def shapes(name, **fields):
    return {
        (case.rows, case.cols) for case in suite(name).cases if all(getattr(case, k) == v for k, v in fields.items())
    }


def test_every_suite_is_there():
    names = {
        "seed",
        "shape-sweep",
        "genai",
        "liger-1238",
        "models",
        "qk",
        "wide",
        "odd",
        "behind",
        "contested",
        "cpu",
        "decode",
        "measured",
        "landscape",
        "neighbours",
        "watch",
        "fp8",
    }
    assert set(suites()) == names


@pytest.mark.parametrize("name", suites())
def test_cases_are_unique_and_the_suite_says_what_it_is_for(name):
    found = suite(name)
    assert found.name == name and found.about.endswith((".", "?"))
    assert len({case.id for case in found.cases}) == len(found.cases) > 0
    assert all(Case.from_json(case.to_json()) == case for case in found.cases)


def test_seed_is_the_seeds_lab():
    assert [case.id for case in suite("seed").cases] == [
        "rms_norm-forward-512x1024-float16",
        "rms_norm-forward-2048x4096-float16",
        "rms_norm-forward-4096x4096-float16",
        "rms_norm-forward-4096x8192-float16",
        "layer_norm-forward-4096x4096-float32",
    ]
    assert suite("shape-sweep").cases == suite("seed").cases[:4]


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_genai_has_pytorchs_shapes_in_both_passes(op, direction):
    expected = {(32768, 2**power) for power in range(8, 17)} | {(16384, 131072), (8192, 262144)}
    expected |= {(rows, cols) for rows in (576000, 1152000) for cols in (384, 512)}
    assert shapes("genai", op=op, direction=direction, dtype="bfloat16") == expected


def test_liger_1238_is_the_pull_requests_grid():
    expected = {(rows, cols) for rows in (4096, 8192, 16384, 32768) for cols in (64, 128, 256, 512, 768)}
    assert shapes("liger-1238", op="rms_norm", direction="backward") == expected


def test_models_have_decode_prefill_and_training_rows():
    assert {rows for rows, _ in shapes("models", op="rms_norm", direction="forward")} == {1, 16, 64, 2048, 8192}
    assert {rows for rows, _ in shapes("models", direction="backward")} == {8192}
    assert {2880, 4096, 5120, 5376, 7168, 8192} <= {cols for _, cols in shapes("models")}


def test_qk_is_strided_and_odd_is_odd():
    assert all(case.layout == "qkv" and case.heads > 1 for case in suite("qk").cases)
    assert {cols for _, cols in shapes("qk")} == {64, 128, 256}
    assert all(case.cols % 8 for case in suite("odd").cases)
    assert all(case.cols >= 32768 for case in suite("wide").cases)


def test_cpu_is_small_and_covers_every_operation_dtype_and_pass():
    cases = suite("cpu").cases
    assert max(case.bytes for case in cases) < 16 << 20 and len(cases) <= 8
    kinds = {(case.op, case.direction) for case in cases}
    ops = ("rms_norm", "layer_norm", "add_rms_norm")
    assert kinds == {(op, direction) for op in ops for direction in ("forward", "backward")}
    assert {case.dtype for case in cases} == {"float32", "bfloat16"}


def test_measured_has_the_shapes_at_which_the_peers_were_measured(request):
    record = json.loads((request.config.rootpath / "evidence" / "peers-h200.json").read_text())
    expected = {Case(row["op"], row["pass"], row["rows"], row["cols"], "bfloat16") for row in record["rows"]}
    assert set(suite("measured").cases) == expected


def test_fp8_has_every_scaling_with_the_transpose_where_it_is_trained_with_and_decoding():
    large = {(32768, 4096), (8192, 8192)}
    for scaling in SCALINGS:
        for op in ("rms_norm_fp8", "add_rms_norm_fp8"):
            assert large <= shapes("fp8", op=op, scaling=scaling, columnwise=False)
        both = large if scaling in ("static", "token", "block", "mx") else set()
        assert shapes("fp8", op="rms_norm_fp8", scaling=scaling, columnwise=True) == both
    decode = {(rows, cols) for rows in (1, 16, 64, 256) for cols in (4096, 8192)}
    assert shapes("fp8", op="add_rms_norm_fp8", scaling="token") == large | decode
    assert len(suite("fp8").cases) == 2 * 2 * 6 + 2 * 4 + 8
    assert {case.dtype for case in suite("fp8").cases} == {"bfloat16"}


def test_a_grid_has_a_list_of_scalings_and_one_columnwise_for_all():
    grid = GRID | {"ops": ["rms_norm_fp8"], "scalings": ["block", "mx"], "columnwise": True}
    cases = parse("x", json.dumps({"about": "a", "grids": [grid]})).cases
    plain = Case(**CASE | {"op": "rms_norm_fp8"})
    assert cases == tuple(replace(plain, scaling=scaling, columnwise=True) for scaling in ("block", "mx"))
    case = CASE | {"op": "rms_norm_fp8", "scaling": "mx"}
    assert parse("x", json.dumps({"about": "a", "cases": [case]})).cases == (replace(plain, scaling="mx"),)


def test_an_unknown_suite_is_answered_with_the_names():
    names = r"behind, contested, cpu, decode, fp8, genai, .*wide"
    with pytest.raises(ValueError, match=f"^suite must be one of {names}, not tuesday$"):
        suite("tuesday")


GRID = {"ops": ["rms_norm"], "directions": ["forward"], "rows": [4], "cols": [8], "dtypes": ["float32"]}
CASE = {"op": "rms_norm", "direction": "forward", "rows": 4, "cols": 8, "dtype": "float32"}


def test_a_grid_is_every_combination_and_takes_what_it_lacks_from_the_defaults():
    text = {"about": "a", "defaults": GRID, "grids": [{"rows": [4, 5], "cols": {"8": "a model", "9": "another"}}]}
    assert {(case.rows, case.cols) for case in parse("x", json.dumps(text)).cases} == {(4, 8), (4, 9), (5, 8), (5, 9)}


def test_tokens_times_heads_are_rows():
    grid = {key: value for key, value in GRID.items() if key != "rows"} | {
        "tokens": [3],
        "heads": [2],
        "layout": "qkv",
    }
    (case,) = parse("x", json.dumps({"about": "a", "grids": [grid]})).cases
    assert case == replace(Case(**CASE), rows=6, heads=2, layout="qkv")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cases": [CASE]}, "about must say"),
        ({"about": "a"}, "grids and cases are both empty"),
        ({"about": "a", "grid": []}, "the file has no field grid"),
        ({"about": "a", "grids": [GRID | {"cols": 8}]}, r"grids\[0\]: cols must be a list that is not empty, not 8"),
        ({"about": "a", "grids": [GRID | {"columns": [8]}]}, r"grids\[0\]: a grid has no field columns"),
        ({"about": "a", "grids": [GRID | {"tokens": [8]}]}, r"grids\[0\]: rows or tokens"),
        ({"about": "a", "grids": [GRID | {"rows": ["4"]}]}, r"grids\[0\]: rows must be a whole number"),
        ({"about": "a", "grids": [7]}, r"grids\[0\]: "),
        ({"about": "a", "grids": {}}, "grids must be a list"),
        ({"about": "a", "cases": [CASE | {"dtype": "int8"}]}, r"cases\[0\]: dtype must be one of"),
        ({"about": "a", "cases": [{"op": "rms_norm"}]}, r"cases\[0\]: .*direction"),
        ({"about": "a", "grids": [GRID | {"scalings": "mx"}]}, r"grids\[0\]: scalings must be a list"),
        ({"about": "a", "grids": [GRID | {"scalings": ["mx"]}]}, r"grids\[0\]: scaling must be left out for rms_norm"),
        ({"about": "a", "cases": [CASE, CASE]}, "rms_norm-forward-4x8-float32 stands in it twice"),
    ],
)
def test_a_malformed_file_is_named_with_the_field(fields, message):
    with pytest.raises(ValueError, match=rf"^suites/x\.json: {message}"):
        parse("x", json.dumps(fields))


def test_a_file_that_is_no_json_is_named():
    with pytest.raises(ValueError, match=r"^suites/x\.json: "):
        parse("x", "{")


def test_random_cases_are_many_different_ones_and_the_same_by_the_same_seed():
    cases = random_cases(200, seed=7)
    assert len(set(cases)) == 200 and cases == random_cases(200, seed=7) and cases != random_cases(200, seed=8)
    assert cases[:50] == random_cases(50, seed=7)
    assert {case.op for case in cases} == set(NORMS) and {case.direction for case in cases} == set(DIRECTIONS)
    assert {case.dtype for case in cases} == set(DTYPES)
    odd = sum(case.cols % 2 for case in cases)
    assert 30 <= odd <= 70, "a quarter"
    assert min(case.rows for case in cases) == 1 and max(case.rows for case in cases) > 4096
    assert max(case.cols for case in cases) > 65536 and max(case.bytes for case in cases) <= 4.1 * 2**28
