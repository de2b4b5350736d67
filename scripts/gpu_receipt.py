"""The receipt of the last GPU run: which sources it was for, and whether it can be believed.

CI has no GPU. So scripts/gpu-check runs tests/gpu where there is one and leaves a receipt with a hash of the
sources it ran, and tests/test_gpu_receipt.py refuses a receipt that is not for the sources at hand. Both take
the hash and the rules from here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Receipt = dict[str, Any]

RECEIPT = Path("evidence/gpu-check.json")
# The run that speed is held to.
BASELINE = Path("evidence/runs/h200-2026-11-15-b")
REMEDY = "Run scripts/gpu-check on a machine with a CUDA GPU, or scripts/gpu-check --pending WHY to owe it."

# What decides the behaviour on a GPU: the code, the launch tables, and the tests that were run. The lab only
# measures, through the public names, so a change there leaves a receipt valid.
DECIDING = ("src/onepass/**/*.py", "src/onepass/**/*.c", "src/onepass/**/*.json*", "tests/gpu/**/*.py")
MEASURING = Path("src/onepass/lab")


def source_files(root: Path) -> list[Path]:
    """The files that decide GPU behaviour, relative to root, in an order that is the same everywhere."""
    found = {path.relative_to(root) for pattern in DECIDING for path in root.glob(pattern)}
    return sorted((path for path in found if MEASURING not in path.parents), key=Path.as_posix)


def source_hash(root: Path) -> str:
    """SHA-256 over names and contents; the lengths keep one file's end from passing for another's start."""
    digest = hashlib.sha256()
    for path in source_files(root):
        content = (root / path).read_bytes()
        digest.update(f"{path.as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def read_receipt(path: Path) -> Receipt | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_receipt(path: Path, receipt: Receipt) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")


def pending_receipt(root: Path, why: str, previous: Receipt | None) -> Receipt:
    """Owes a GPU run for the sources at hand. The last run that passed stays on record beside it."""
    last = None
    if previous is not None:
        last = previous if previous["status"] == "passed" else previous.get("last")
    return {"status": "pending", "sources": source_hash(root), "why": why, "last": last}


def count_outcomes(junit: Path) -> dict[str, int]:
    """Tests passed, failed and skipped in pytest's JUnit file; all zero where a crash left none."""
    outcomes: dict[tuple[str | None, str | None], str] = {}
    for case in ElementTree.parse(junit).iter("testcase") if junit.exists() else ():
        test = case.get("classname"), case.get("name")
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[test] = "failed"
        elif case.find("skipped") is not None:
            outcomes.setdefault(test, "skipped")
        else:
            # A test that fails and whose teardown fails too is listed twice, and stays failed.
            outcomes.setdefault(test, "passed")
    counts = Counter(outcomes.values())
    return {outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")}


def objection(receipt: Receipt | None, root: Path) -> str | None:
    """Why the receipt does not hold for the sources under root, in words, or None where it does."""
    if receipt is None:
        return f"There is no {RECEIPT}. {REMEDY}"
    status = receipt.get("status")
    if status not in ("passed", "failed", "pending"):
        return f"The GPU receipt's status is {status!r}; it may be passed, failed or pending. {REMEDY}"
    if status == "failed":
        return f"The last run of the GPU tests failed. Mend what it found. {REMEDY}"
    if receipt.get("sources") != source_hash(root):
        return f"The sources have changed since the GPU receipt was written. {REMEDY}"
    if status == "pending":
        return None if receipt.get("why") else f"The GPU receipt is pending and does not say why. {REMEDY}"
    tests = receipt.get("tests", {})
    if tests.get("failed", 0) > 0:
        return f"The GPU receipt says passed and counts {tests['failed']} failed tests. {REMEDY}"
    if tests.get("passed", 0) == 0:
        return f"The GPU receipt says passed, but no test passed. {REMEDY}"
    if slower := receipt.get("speed", {}).get("regressions"):
        return (
            f"The GPU receipt names what became slower: {'; '.join(slower)}. Mend it, or make another run the baseline."
        )
    return None
