"""Gradients of rows that programs share, from the PTX that the compiler makes for an H200, with programs that wait.

Triton's interpreter does not know Gluon, in which these kernels are written. The GPU that is planned for has few SMs:
some rows are then enough for every program to have several.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiled.by_machine_code import gradients
from compiled.conftest import H200
from onepass import backward
from onepass.plan import in_force
from onepass.plan.plans import Choice
from onepass.plan.tiles import Tile
from onepass.spec import Norm

BF16, F32 = torch.bfloat16, torch.float32
RMS, LAYER = Norm(False, 1e-6), Norm(True, 1e-6)
#: A program for each 1,024 columns of 16 bits, one warp of it, and of fp32 half as many.
ALONE = Tile(1024, 1, 1, 16, 3)
#: As few of them as LayerNorm's registers leave room for.
LESS = Tile(1024, 1, 1, 12, 3)


@pytest.fixture
def small(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plans a GPU of so many SMs, and each row count as if it were many rows."""

    def of(sms: int, **changes: object) -> Any:
        monkeypatch.setattr(backward, "device_of", lambda device: replace(H200, sms=sms))
        return in_force.override(ring_from=1, many_elements=1, centred_ring_rows=(1, 1), **changes)

    return of


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "dtype", "sms", "tile", "bias", "late"),
    [
        (RMS, 13, 2104, BF16, 1, ALONE, False, True),
        (RMS, 13, 2104, BF16, 1, ALONE, True, False),
        (RMS, 11, 1028, F32, 1, ALONE, False, True),
        (RMS, 9, 4104, BF16, 1, Tile(2048, 1, 2, 8, 3), True, True),
        (LAYER, 13, 2112, BF16, 1, ALONE, True, True),
        (LAYER, 9, 4160, BF16, 2, Tile(2048, 1, 2, 4, 4), True, False),
    ],
)
def test_rows_in_a_ring_have_the_gradients_of_the_definition(
    compiled, small, norm, rows, cols, dtype, sms, tile, bias, late
):
    with small(sms), in_force.force("backward", Choice("ring", tile)):
        plan = gradients(compiled, norm, rows, cols, dtype, bias, late=late)
    groups = plan.programs // plan.slices
    assert plan.schedule == "ring" and plan.slices > 1 and rows > 2 * groups > 2


def test_groups_that_share_a_row_of_partial_sums_add_to_it_in_turn(compiled, small):
    row = 2 * 4 * 2112  # of dW and dB
    with small(1, partials_bytes=3 * row, partials_of_x=1 << 30), in_force.force("backward", Choice("ring", ALONE)):
        plan = gradients(compiled, LAYER, 13, 2112, BF16)
    assert plan.programs // plan.slices == 5 and plan.partials == 3


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "dtype", "sms", "tile", "turns", "late"),
    [
        (RMS, 19, 2107, BF16, 2, ALONE, 8, True),
        (RMS, 19, 2102, BF16, 1, ALONE, 4, False),
        (RMS, 13, 1027, F32, 2, ALONE, 8, True),
        (RMS, 17, 4099, BF16, 8, Tile(2048, 1, 2, 4, 3), 8, True),
        (LAYER, 19, 2107, BF16, 2, LESS, 8, True),
        (LAYER, 19, 2102, BF16, 1, LESS, 4, False),
        (LAYER, 37, 4099, BF16, 8, Tile(2048, 1, 2, 4, 3), 8, True),
    ],
)
def test_rows_in_a_ring_may_begin_anywhere(compiled, small, norm, rows, cols, dtype, sms, tile, turns, late):
    with small(sms, ring_turns_elements=()), in_force.force("backward", Choice("ring_turns", tile)):
        plan = gradients(compiled, norm, rows, cols, dtype, True, late=late)
    assert plan.schedule == "ring_turns" and plan.turns == turns and plan.slices > 1


def test_groups_that_share_a_row_of_partial_sums_have_rows_that_lie_alike(compiled, small):
    row = 2 * 4 * 2107
    with (
        small(6, partials_bytes=17 * row, partials_of_x=1 << 30),
        in_force.force("backward", Choice("ring_turns", LESS)),
    ):
        plan = gradients(compiled, LAYER, 70, 2107, BF16)
    assert plan.programs // plan.slices > plan.partials and plan.partials % plan.turns == 0


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "dtype", "residual"),
    [(RMS, 3, 1030, BF16, False), (LAYER, 4, 777, BF16, False), (RMS, 2, 900, F32, True), (LAYER, 7, 2048, BF16, True)],
)
def test_few_wide_rows_are_read_once_by_programs_that_have_some_columns_of_all(
    compiled, small, norm, rows, cols, dtype, residual
):
    with small(8, few_split_from=1):
        plan = gradients(compiled, norm, rows, cols, dtype, residual=residual)
    assert plan.schedule == "few_split" and plan.programs > 2


def test_a_wait_for_copies_that_is_missing_shows(compiled, small):
    """Else the tests above could not fail by it."""
    with small(1), in_force.force("backward", Choice("ring", ALONE)), pytest.raises(AssertionError, match="dx"):
        gradients(compiled, RMS, 13, 2104, BF16, without="cp.async.wait_group")


def test_a_word_that_nobody_publishes_is_waited_for_for_ever(compiled, small):
    with small(1), in_force.force("backward", Choice("ring", ALONE)), pytest.raises(AssertionError, match="for ever"):
        gradients(compiled, RMS, 13, 2104, BF16, without="atom.global.gpu.relaxed.exch")
