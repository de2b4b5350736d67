"""The kernels at hand are the ones a GPU last ran, or the README says that a run is owed."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gpu_receipt import (
    BASELINE,
    RECEIPT,
    Receipt,
    count_outcomes,
    objection,
    pending_receipt,
    read_receipt,
    source_files,
    source_hash,
    write_receipt,
)

ROOT = Path(__file__).resolve().parent.parent
README_MARK = "<!-- gpu-check -->"


def readme_status(readme: str) -> str:
    """The text after the mark: the rest of its line, or the next line where nothing follows on that one."""
    assert README_MARK in readme, f"README.md has no line with {README_MARK}, which its GPU status follows."
    following = readme.split(README_MARK, maxsplit=1)[1].split("\n")
    status = next((line.strip() for line in following[:2] if line.strip()), "")
    assert status, f"README.md says nothing on the line of {README_MARK}, nor on the next."
    return status


def says_pending(status: str) -> bool:
    return re.search(r"\bpending\b", status, re.IGNORECASE) is not None


def test_a_gpu_ran_these_sources():
    receipt = read_receipt(ROOT / RECEIPT)
    wrong = objection(receipt, ROOT)
    if wrong:
        pytest.fail(wrong, pytrace=False)
    if receipt["status"] == "pending":
        warnings.warn(f"The GPU check of these sources is pending: {receipt['why']}", stacklevel=1)


def test_readme_says_whether_the_gpu_check_is_pending():
    receipt = read_receipt(ROOT / RECEIPT)
    assert receipt is not None, objection(receipt, ROOT)
    status = readme_status((ROOT / "README.md").read_text(encoding="utf-8"))
    pending = receipt["status"] == "pending"
    assert says_pending(status) == pending, (
        f"The GPU receipt is {receipt['status']}, so README.md's status after {README_MARK} "
        f"must {'say' if pending else 'not say'} pending; it says: {status}"
    )


# The rules themselves, in a small tree of their own.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in {
        "src/onepass/__init__.py": "",
        "src/onepass/kernels/tile.py": "WARPS = 4\n",
        "src/onepass/plan/tables/h200.jsonl": "{}\n",
        "src/onepass/lab/report.py": "",
        "src/onepass/README.md": "",
        "tests/gpu/test_tile.py": "def test_tile():\n    pass\n",
        "tests/test_anywhere.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "scripts").mkdir()
    for name in ("gpu-check", "gpu_receipt.py", "gpu_part.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    return tmp_path


def passed_receipt(tree: Path) -> Receipt:
    tests = {"passed": 3, "failed": 0, "skipped": 1}
    return {
        "status": "passed",
        "sources": source_hash(tree),
        "tests": tests,
        "gpu": "G",
        "date": "2026-01-01",
    }


def test_receipt_covers_code_tables_and_gpu_tests(tree):
    assert [path.as_posix() for path in source_files(tree)] == [
        "src/onepass/__init__.py",
        "src/onepass/kernels/tile.py",
        "src/onepass/plan/tables/h200.jsonl",
        "tests/gpu/test_tile.py",
    ]


@pytest.mark.parametrize(
    "name",
    ["src/onepass/kernels/tile.py", "src/onepass/plan/tables/h200.jsonl", "tests/gpu/test_tile.py"],
)
def test_a_changed_source_voids_the_receipt(tree, name):
    receipt = passed_receipt(tree)
    assert objection(receipt, tree) is None
    (tree / name).write_text("# changed\n")
    assert "changed" in objection(receipt, tree)


def test_a_renamed_source_voids_the_receipt(tree):
    receipt = passed_receipt(tree)
    (tree / "src/onepass/kernels/tile.py").rename(tree / "src/onepass/kernels/stream.py")
    assert "changed" in objection(receipt, tree)


@pytest.mark.parametrize("name", ["src/onepass/lab/report.py", "tests/test_anywhere.py"])
def test_what_no_gpu_test_runs_leaves_the_receipt_valid(tree, name):
    receipt = passed_receipt(tree)
    (tree / name).write_text("# changed\n")
    assert objection(receipt, tree) is None


def test_no_receipt_is_refused_with_the_remedy(tree):
    assert "scripts/gpu-check" in objection(read_receipt(tree / RECEIPT), tree)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": "failed"},
        {"status": "skipped"},
        {"tests": {"passed": 0, "failed": 0, "skipped": 9}},
        {"tests": {"passed": 9, "failed": 1, "skipped": 0}},
        {"status": "pending"},  # without a reason
        {"speed": {"baseline": "then", "compared": 1, "regressions": ["rms_norm, 9 % slower"]}},
    ],
)
def test_a_receipt_that_proves_nothing_is_refused(tree, fault):
    assert objection({**passed_receipt(tree), **fault}, tree) is not None


def test_pending_keeps_the_last_run_that_passed(tree):
    passed = passed_receipt(tree)
    once = pending_receipt(tree, "no GPU at hand", passed)
    write_receipt(tree / RECEIPT, once)
    assert read_receipt(tree / RECEIPT) == once
    assert objection(once, tree) is None

    twice = pending_receipt(tree, "still none", once)
    assert twice["last"] == passed
    assert pending_receipt(tree, "after a failure", {**passed, "status": "failed"})["last"] is None


def test_pending_is_owed_for_the_sources_at_hand_only(tree):
    receipt = pending_receipt(tree, "no GPU at hand", None)
    (tree / "src/onepass/kernels/tile.py").write_text("WARPS = 8\n")
    assert objection(receipt, tree) is not None


def test_a_failure_counts_once_and_is_not_outweighed(tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(
        """<testsuites><testsuite>
        <testcase classname="t" name="fine"/>
        <testcase classname="t" name="wrong"><failure/></testcase>
        <testcase classname="t" name="wrong"><error/></testcase>
        <testcase classname="t" name="spilt"/>
        <testcase classname="t" name="spilt"><error/></testcase>
        <testcase classname="t" name="left"><skipped/></testcase>
        </testsuite></testsuites>"""
    )
    assert count_outcomes(junit) == {"passed": 1, "failed": 2, "skipped": 1}
    assert count_outcomes(tmp_path / "none.xml") == {"passed": 0, "failed": 0, "skipped": 0}


def test_readme_status_is_the_text_after_the_mark():
    assert readme_status(f"# onepass\n{README_MARK} GPU check: pending\nmore") == "GPU check: pending"
    assert readme_status(f"# onepass\n{README_MARK}\nPassed on a GPU.\nnot pending") == "Passed on a GPU."
    with pytest.raises(AssertionError, match="says nothing"):
        readme_status(f"{README_MARK}\n\npending, but too far down")


# The script, with a torch that claims what the machine may not have.


def gpu_check(tree: Path, *arguments: str, gpu: bool = True) -> subprocess.CompletedProcess[str]:
    (tree / "src/torch.py").write_text(
        f"""
__version__ = "0"
class cuda:
    is_available = staticmethod(lambda: {gpu})
    get_device_name = staticmethod(lambda: "A GPU")
class version:
    cuda = "0"
"""
    )
    command = [sys.executable, str(tree / "scripts/gpu-check"), *arguments]
    # A selection in the environment must not reach the run that the receipt stands for.
    disturbed = {**os.environ, "PYTEST_ADDOPTS": "-k no_such_test", "TRITON_INTERPRET": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=disturbed)


def test_script_writes_a_receipt_that_verifies(tree):
    interpreter_is_off = "import os\ndef test_tile():\n    assert 'TRITON_INTERPRET' not in os.environ\n"
    (tree / "tests/gpu/test_tile.py").write_text(interpreter_is_off)
    ran = gpu_check(tree, "--no-speed", "--", "-v")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    receipt = read_receipt(tree / RECEIPT)
    assert receipt["status"] == "passed"
    assert receipt["files"] == 4
    assert receipt["tests"] == {"passed": 1, "failed": 0, "skipped": 0}
    assert gpu_check(tree, "--verify").returncode == 0

    (tree / "src/onepass/kernels/tile.py").write_text("WARPS = 8\n")
    assert gpu_check(tree, "--verify").returncode == 1


def test_script_tests_every_file(tree):
    for name in ("test_large", "test_launch", "test_more", "test_other"):
        (tree / f"tests/gpu/{name}.py").write_text("def test_this():\n    pass\n")
    (tree / "tests/gpu/test_missing.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    ran = gpu_check(tree, "--no-speed")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert read_receipt(tree / RECEIPT)["tests"] == {"passed": 5, "failed": 0, "skipped": 1}
    for name in ("test_launch", "test_missing", "test_other"):
        (tree / f"tests/gpu/{name}.py").unlink()
    (tree / "tests/gpu/test_more.py").write_text("def test_this():\n    assert False\n")
    ran = gpu_check(tree, "--no-speed")
    assert ran.returncode == 1 and "test_more.py::test_this" in ran.stdout
    assert read_receipt(tree / RECEIPT)["tests"] == {"passed": 2, "failed": 1, "skipped": 0}


def test_script_tests_the_longest_files_in_parts_and_every_test_once(tree):
    counted = tree / "counted"
    tests = "".join(
        f"def test_{i}():\n    with open({str(counted)!r}, 'a') as file:\n        file.write('{i} ')\n"
        for i in range(10)
    )
    (tree / "tests/gpu/test_gradients.py").write_text(tests)
    ran = gpu_check(tree, "--no-speed")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sorted(counted.read_text().split()) == sorted(map(str, range(10)))
    assert read_receipt(tree / RECEIPT)["tests"] == {"passed": 11, "failed": 0, "skipped": 0}
    assert ran.stdout.count("deselected") == 4, "beside each other"


def test_script_records_a_failure_and_fails(tree):
    (tree / "tests/gpu/test_tile.py").write_text("def test_tile():\n    assert False\n")
    elsewhere = tree / "elsewhere" / "receipt.json"
    assert gpu_check(tree, "--no-speed", "--out", str(elsewhere)).returncode == 1
    assert json.loads(elsewhere.read_text())["status"] == "failed"
    assert not (tree / RECEIPT).exists()


#: In place of the lab's command: measures whatever, and says of each comparison what it is told to.
LAB = """
import json, pathlib, sys
again = pathlib.Path({again!r})
def main():
    if "compare" in sys.argv:
        assert "--relative" in sys.argv and sys.argv[sys.argv.index("compare") + 1].endswith({baseline!r}), sys.argv
        changes = {changes!r}[again.exists()]
        print(json.dumps({{"changes": changes}}))
        sys.exit(int(any(change["change"] == "regression" for change in changes)))
    if "--suite" not in sys.argv:
        assert sys.argv[sys.argv.index("--case") + 1] == "case 1" and sys.argv.count("--case") == 1, sys.argv
        again.touch()
    else:
        assert sys.argv[sys.argv.index("--suite") + 1] == "watch"
    {measuring}
"""


@pytest.mark.parametrize(
    ("gpu", "changes", "again", "measuring", "speed"),
    [
        ("A GPU", ["noise", "improvement"], [], "pass", {"compared": 2, "regressions": []}),
        ("A GPU", ["noise", "regression"], ["regression"], "pass", {"compared": 2, "regressions": ["case 1, as said"]}),
        ("A GPU", ["noise", "regression"], ["noise"], "pass", {"compared": 2, "regressions": []}),
        ("A GPU", [], [], "sys.exit('no scipy')", {"skipped": "the lab could not measure, no scipy"}),
        ("Another", [], [], "pass", {"skipped": "the baseline was measured on Another, and this is A GPU"}),
    ],
)
def test_script_notices_a_loss_of_speed_and_times_it_again(tree, gpu, changes, again, measuring, speed):
    (tree / BASELINE).mkdir(parents=True)
    (tree / BASELINE / "run.json").write_text(json.dumps({"environment": {"gpu": gpu}}))
    told = [
        [{"case": f"case {number}", "change": change, "reason": "as said"} for number, change in enumerate(each, start)]
        for start, each in enumerate((changes, again))
    ]
    slower = "regression" in again
    marker = str(tree / "timed-again")
    fake = LAB.format(baseline=BASELINE.name, changes=told, again=marker, measuring=measuring)
    (tree / "src/onepass/lab/__init__.py").write_text("")
    (tree / "src/onepass/lab/cli.py").write_text(fake)
    ran = gpu_check(tree)
    assert ran.returncode == int(slower), ran.stdout + ran.stderr
    assert read_receipt(tree / RECEIPT)["speed"] == {"baseline": BASELINE.name} | speed
    verified = gpu_check(tree, "--verify")
    assert verified.returncode == int(slower)
    if "skipped" in speed:
        assert f"Speed was not compared: {speed['skipped']}." in ran.stdout
        assert "speed was not compared" in verified.stdout
    assert gpu_check(tree, "--no-speed").returncode == 0
    without = read_receipt(tree / RECEIPT)
    assert "speed" not in without
    Path(marker).unlink(missing_ok=True)
    ran = gpu_check(tree, "--only-speed")
    assert ran.returncode == int(slower or "skipped" in speed), ran.stdout + ran.stderr
    found = read_receipt(tree / RECEIPT)
    if "skipped" in speed:
        assert found == without and f"Speed was not compared: {speed['skipped']}." in ran.stdout
    else:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        assert found == without | {"speed": {"baseline": BASELINE.name, "date": today} | speed}


def test_script_adds_no_speed_to_what_has_not_passed(tree):
    nothing = gpu_check(tree, "--only-speed")
    assert nothing.returncode == 1 and "scripts/gpu-check" in nothing.stdout and not (tree / RECEIPT).exists()
    assert gpu_check(tree, "--pending", "no GPU").returncode == 0
    owed = (tree / RECEIPT).read_text()
    pending = gpu_check(tree, "--only-speed")
    assert pending.returncode == 1 and "pending" in pending.stdout and (tree / RECEIPT).read_text() == owed


def test_script_misses_the_baseline_before_the_tests_run(tree):
    ran = gpu_check(tree)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert str(BASELINE) in ran.stderr and ran.stderr.count("\n") == 1
    assert not (tree / RECEIPT).exists()


def test_a_baseline_that_cannot_be_read_is_named_without_this_machines_folders(tree):
    (tree / BASELINE).mkdir(parents=True)
    (tree / BASELINE / "run.json").mkdir()  # so that the error's own text would have the whole path
    assert gpu_check(tree).returncode == 0
    speed = read_receipt(tree / RECEIPT)["speed"]
    assert "cannot be read" in speed["skipped"] and str(tree) not in speed["skipped"]


@pytest.mark.parametrize("selection", [["-k", "tile"], ["tests/gpu/test_tile.py"]])
def test_script_writes_no_receipt_for_a_part_of_the_tests(tree, selection):
    ran = gpu_check(tree, "--", *selection)
    assert ran.returncode == 0
    assert "No receipt" in ran.stdout
    assert not (tree / RECEIPT).exists()


def test_script_without_a_gpu_says_so(tree):
    ran = gpu_check(tree, gpu=False)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert not (tree / RECEIPT).exists()


def test_script_owes_a_run_and_gives_the_reason(tree):
    assert gpu_check(tree, "--pending", "no GPU at hand").returncode == 0
    verified = gpu_check(tree, "--verify")
    assert verified.returncode == 0
    assert "no GPU at hand" in verified.stdout
    assert gpu_check(tree, "--pending", " ").returncode == 2
