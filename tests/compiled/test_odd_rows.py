"""Rows that begin anywhere and pass through shared memory, from the PTX that the compiler makes for an H200.

Triton's interpreter does not know Gluon, in which these kernels are written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiled.by_machine_code import gradients, normalized
from compiled.conftest import H200
from onepass import backward, forward
from onepass.plan import in_force
from onepass.plan.plans import Choice
from onepass.plan.tiles import Tile
from onepass.spec import Norm

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
RMS, LAYER = Norm(False, 1e-6), Norm(True, 1e-6)


@pytest.fixture
def lone(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Plans a GPU of one SM, whose programs have several rows each where they stay."""
    for module in (forward, backward):
        monkeypatch.setattr(module, "device_of", lambda device: replace(H200, sms=1))
    return compiled


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("schedule", "norm", "rows", "cols", "dtype", "residual"),
    [
        ("threads", RMS, 200, 37, BF16, False),
        ("threads", LAYER, 131, 21, F16, True),
        ("threads", LAYER, 65, 33, F32, False),
        ("flat", RMS, 29, 161, BF16, True),
        ("flat", LAYER, 200, 141, BF16, False),
        ("odd", RMS, 27, 1291, BF16, False),
        ("odd", LAYER, 5, 2109, F16, True),
    ],
)
def test_rows_are_the_norm(lone, schedule, norm, rows, cols, dtype, residual, late):
    with in_force.override(odd_elements=0, flat_elements=0, threads_rows=(1, 1, 1, 1)):
        plan = normalized(lone, norm, rows, cols, dtype, residual, late)
    assert plan.schedule == schedule


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "dtype", "residual", "late"),
    [
        (RMS, 1500, 9, BF16, False, True),
        (LAYER, 700, 36, BF16, False, False),
        (RMS, 900, 21, F32, True, True),
    ],
)
def test_gradients_of_a_thread_a_row_are_those_of_the_definition(lone, norm, rows, cols, dtype, residual, late):
    """Of more rows than all programs have at a time, so that the first slot is asked for again."""
    tile = Tile(48, 64, 2, 2, 2)
    with in_force.override(threads_backward_rows=(1, 1, 1)), in_force.force("backward", Choice("threads", tile)):
        plan = gradients(lone, norm, rows, cols, dtype, True, residual, late)
    assert plan.schedule == "threads" and rows > 2 * 64 * plan.programs


def test_a_barrier_that_is_missing_shows(lone):
    with (
        in_force.override(threads_backward_rows=(1, 1, 1)),
        in_force.force("backward", Choice("threads", Tile(48, 64, 2, 2, 2))),
        pytest.raises(AssertionError, match="while another warp has"),
    ):
        gradients(lone, RMS, 700, 9, BF16, without="bar.sync")
