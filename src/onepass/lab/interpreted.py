"""Checks onepass's kernels in Triton's interpreter, where there is no GPU to run them: checked, not timed.

A kernel is bound to the interpreter when it is imported, so this is a process of its own: cases as JSON lines on its
standard input, rows as JSON lines on its standard output.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from onepass.lab.data.case import Case
from onepass.lab.data.row import Checked, Incorrect, Row, from_json, to_json

#: The name under which the kernels stand beside the backends: `onepass` itself is plain PyTorch on a CPU.
KERNELS = "onepass-kernels"
#: The interpreter takes milliseconds for what a GPU does in nanoseconds: so a few rows of each case, all its columns.
ROWS = 4


def check_kernels(cases: list[Case]) -> Iterator[Row]:
    """A row for every case, as soon as it is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(json.dumps(case.to_json()) + "\n" for case in cases))
    process.stdin.close()
    for line in process.stdout:
        yield from_json(json.loads(line))
    if process.wait():
        raise RuntimeError("the kernels' check in Triton's interpreter failed; its own message stands above")


def _checked(case: Case) -> Row:
    import onepass
    from onepass.lab.backends import backend
    from onepass.lab.gate import check
    from onepass.lab.inputs import make_inputs

    few = replace(case, rows=case.heads * max(1, min(case.rows, ROWS) // case.heads))
    inputs = make_inputs(few, "cpu", seed=0)
    correctness = check(few, inputs, backend("onepass").prepare(few, inputs)())
    if not correctness.passed:
        return Incorrect(case.id, KERNELS, correctness, f"in Triton's interpreter, on {few.rows} rows")
    name = "layer_norm" if case.norm == "layer_norm" else "rms_norm"
    plan = onepass.explain(inputs.x, inputs.weight, op=name)
    if plan.forward is None:
        raise RuntimeError("TRITON_INTERPRET=1 is not in the environment, so these were not the kernels")
    # Explained is the norm without FP8, whose schedule need not be that of the kernel that quantizes too.
    schedule = f" ({plan.forward.schedule})" if case.scaling is None else ""
    note = f"checked on {few.rows} rows in Triton's interpreter{schedule}, not timed"
    return Checked(case.id, KERNELS, correctness, note)


def main() -> None:
    for line in sys.stdin:
        row = replace(_checked(Case.from_json(json.loads(line))), host=socket.gethostname(), device="cpu")
        print(json.dumps(to_json(row)), flush=True)


if __name__ == "__main__":
    main()
