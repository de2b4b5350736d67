"""Rows that do not begin on 16 bytes, in turns: every row and column once, and nothing of a neighbour."""

from dataclasses import replace

import pytest
import torch

from cases import BF16, F16, F32, OPS, Case, explained, inputs_of
from onepass.plan import in_force
from onepass.plan.tiles import Tile
from oracle import assert_results, computed

#: In blocks of eight columns some lie inside every row; one of 64 has a row's beginning and its end.
TILES = {"blocks": Tile(400, 1, 1, 2, block=8), "rows": Tile(400, 4, 1, 1, 2, block=32), "one": Tile(400, 2, 1, 1)}
#: A slice of rows that programs share: some lie inside every row.
SLICE = Tile(16, 1, 1, 20, 2)
SHARED = ("turns_shared", "turns_shared_few", "centred_turns_shared", "centred_single_turns_shared")


def in_turns(how="blocks"):
    always = {"few_rows": 0, "turns_from_bytes": 0, "summed_turns_from_bytes": 0}
    if how == "shared":
        slices = dict.fromkeys(SHARED, ((64, SLICE),))
        return in_force.override(backward_row_bytes=0, **always, **slices)
    tiles = (replace(TILES[how], block=TILES[how].block or 64),)
    return in_force.override(turns_tiles=tiles, centred_turns_tiles=tiles, **always)


def plan_of(case, inputs, schedule="turns"):
    plan = explained(case, inputs).backward
    assert plan.schedule == schedule, str(plan)
    return plan


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("tile", "rows", "cols", "dtype", "turns"),
    [("blocks", 11, 37, BF16, 8), ("rows", 37, 35, BF16, 8), ("rows", 5, 37, F16, 8), ("one", 16, 37, F16, 8),
     ("one", 11, 42, BF16, 4), ("blocks", 9, 21, F32, 4), ("rows", 13, 3, F16, 8)],
)  # fmt: skip
def test_gradients_are_those_of_the_definition(op, tile, rows, cols, dtype, turns):
    case = Case(op, x=dtype, weight=dtype, bias=dtype if op == "layer_norm" else None, residual=dtype)
    inputs = inputs_of(case, rows, cols)
    with in_turns(tile):
        assert plan_of(case, inputs).programs % turns == 0
        assert_results(case, inputs)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "groups"), [(19, 37, BF16, 8), (8, 61, F16, 8), (11, 42, BF16, 8), (7, 21, F32, 4)]
)
def test_rows_that_are_shared_are_taken_in_turns_too(op, rows, cols, dtype, groups):
    """With rows beyond a multiple of the turns, and without; a row in two slices, three, four and five."""
    case = Case(op, x=dtype, weight=dtype, bias=dtype if op == "layer_norm" else None, residual=dtype)
    inputs = inputs_of(case, rows, cols)
    with in_turns("shared"):
        plan = plan_of(case, inputs, "split_turns")
        assert plan.programs == groups * plan.slices
        assert_results(case, inputs)


def test_fewer_rows_than_turns_are_shared_as_they_are():
    case = Case(x=BF16, weight=BF16)
    inputs = inputs_of(case, 7, 37)
    with in_turns("shared"):
        plan_of(case, inputs, "split")
        assert_results(case, inputs)


@pytest.mark.parametrize(("how", "schedule"), [("one", "turns"), ("shared", "split_turns")])
def test_a_broken_row_stays_alone(how, schedule):
    """Its elements lie in the vectors with which its neighbours begin and end."""
    case = Case("layer_norm", x=BF16, weight=BF16, residual=BF16)
    inputs = inputs_of(case, 19, 37)
    others = torch.arange(19) != 9
    with in_turns(how):
        plan_of(case, inputs, schedule)
        healthy = computed(case, inputs)
        broken = replace(inputs, x=inputs.x.clone(), dy=inputs.dy.clone(), dsum=inputs.dsum.clone())
        for tensor in (broken.x, broken.dy, broken.dsum):
            tensor[9] = float("nan")
        results = computed(case, broken)
    assert results.dx[9].isnan().all() and torch.equal(results.dx[others], healthy.dx[others])


@pytest.mark.parametrize("require", ["x", "weight", "x bias"])
def test_what_is_not_wanted_is_not_computed(require):
    case = Case("layer_norm", x=BF16, weight=BF16, bias=BF16)
    inputs = inputs_of(case, 11, 37)
    with in_turns("one"):
        plan_of(case, inputs)
        assert_results(case, inputs, require)


def test_dx_may_be_written_over_dy():
    case = Case(x=BF16, weight=BF16)
    inputs = inputs_of(case, 11, 37)
    over = replace(case, options={"inplace_backward": True})
    with in_turns("rows"):
        plan_of(over, inputs)
        expected = computed(case, inputs)
        results = computed(over, replace(inputs, dy=inputs.dy.clone()))
    assert torch.equal(results.dx, expected.dx) and torch.equal(results.dweight, expected.dweight)


def test_rows_of_other_addresses_or_strides_take_another_way():
    case = Case(x=BF16, weight=BF16)
    shifted = torch.randn(19 * 37 + 1).to(BF16)[1:].view(19, 37)
    spread = torch.randn(19, 40).to(BF16)[:, :37]
    with in_turns():
        assert explained(case, inputs_of(case, 19, 37, x=spread)).backward.schedule == "tile"
        for x in (shifted, spread):
            assert_results(case, inputs_of(case, *x.shape, x=x))


def test_a_row_that_begins_elsewhere_is_loaded_in_the_pieces_that_it_has(launches):
    """Rows of 84 bytes that begin on 4: vectors they have not, but pairs."""
    case = Case(x=BF16, weight=BF16)
    x = torch.randn(11 * 42 + 2).to(BF16)[2:].view(11, 42)
    with in_turns():
        assert_results(case, inputs_of(case, 11, 42, x=x))
    [backward] = [launch for launch in launches if "backward" in launch.kernel]
    assert (backward.kernel, backward.constants["ALIGN"]) == ("tile_backward", 2)
