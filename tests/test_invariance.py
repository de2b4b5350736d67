"""A row's bits depend on that row alone, and the same call gives the same bits every time."""

from dataclasses import replace

import pytest
import torch

from cases import BF16, F32, OPS, SCHEDULES, SHAPES, Case, assert_planned, call, explained, inputs_of, planned, random
from onepass.plan import in_force
from onepass.plan.tiles import Tile
from oracle import computed


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_row_bits_do_not_depend_on_other_rows(schedule, op):
    case = Case(op, x=BF16, bias=F32, residual=BF16)
    rows, cols = SHAPES[schedule]
    many = inputs_of(case, 2 * rows, cols)
    with planned(schedule):
        assert_planned(schedule, explained(case, many))
        y, total = call(case, many)
        for first, last in ((0, 1), (rows - 1, rows + 2)):
            part = inputs_of(case, x=many.x[first:last])
            part.weight, part.bias, part.residual = many.weight, many.bias, many.residual[first:last]
            y_part, total_part = call(case, part)
            assert torch.equal(y_part, y[first:last])
            assert torch.equal(total_part, total[first:last])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", [48, 64, 150])
def test_row_bits_are_the_same_on_both_sides_of_the_block_row_count(cols, op):
    case = Case(op, bias=F32)
    inputs = inputs_of(case, 11, cols)
    seen = []
    for schedule in ("few block rows", "many block rows"):
        with planned(schedule):
            seen.append((explained(case, inputs).forward.rows, call(case, inputs)[0]))
    (few, y_few), (many, y_many) = seen
    assert few <= many
    assert torch.equal(y_few, y_many)


@pytest.mark.parametrize("residual", [None, BF16])
@pytest.mark.parametrize("op", OPS)
def test_row_bits_are_the_same_whether_the_weight_is_asked_for_before_the_row_or_after(op, residual):
    case = Case(op, x=BF16, bias=F32, residual=residual)
    inputs = inputs_of(case, 5, 150)
    seen = []
    for elements in (0, 1 << 40):
        with in_force.override(affine_first_columns=(1, 1), affine_first_elements=elements):
            assert explained(case, inputs).forward.affine_first == (elements == 0)
            seen.append(call(case, inputs))
    for first, after in zip(*seen, strict=True):
        assert (first is None and after is None) or torch.equal(first, after)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("cols", [128, 150])
@pytest.mark.parametrize("residual", [None, BF16])
@pytest.mark.parametrize("op", OPS)
def test_few_rows_have_the_bits_of_many_though_their_kernel_is_another(op, residual, cols, strided, launches):
    case = Case(op, x=BF16, bias=F32, residual=residual)
    inputs = inputs_of(case, 5, cols)
    if strided:
        inputs.x = torch.cat([inputs.x, inputs.x], dim=1)[:, :cols]
    seen = []
    for elements in (0, 1 << 40):
        with in_force.override(prompt_elements=(elements, elements)):
            assert explained(case, inputs).forward.prompt == (elements > 0)
            seen.append(call(case, inputs))
    assert [launch.constants["DENSE"] for launch in launches] == [False, not strided]
    for many, few in zip(*seen, strict=True):
        assert (many is None and few is None) or torch.equal(many, few)


@pytest.mark.parametrize("residual", [None, BF16])
@pytest.mark.parametrize("cols", [128, 150])
@pytest.mark.parametrize("op", OPS)
def test_rows_that_are_held_have_the_bits_of_those_that_are_walked(op, cols, residual):
    case = Case(op, x=BF16, bias=F32, residual=residual)
    walk = (Tile(16384, 1, 1, block=32),)
    many = inputs_of(case, 5, cols)
    few = inputs_of(case, x=many.x[1:3])
    few.weight, few.bias = many.weight, many.bias
    few.residual = None if residual is None else many.residual[1:3]
    with planned("stream"), in_force.override(streams=walk, centred_streams=walk):
        held, walked = explained(case, few).forward, explained(case, many).forward
        assert (held.schedule, held.as_walked, walked.schedule) == ("tile", True, "stream")
        assert held.block == walked.block == 32 and held.blocks > 3
        for part, whole in zip(call(case, few), call(case, many), strict=True):
            assert whole is None or torch.equal(part, whole[1:3])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_strided_row_has_the_bits_of_a_dense_one(schedule, op):
    case = Case(op, x=BF16, weight=BF16)
    tokens, cols = SHAPES[schedule]
    strided = inputs_of(case, x=random(tokens, 3, 2, cols, dtype=BF16)[:, 0])
    dense = inputs_of(case, x=strided.x.contiguous())
    dense.weight = strided.weight
    with planned(schedule):
        assert_planned(schedule, explained(case, strided))
        assert torch.equal(call(case, strided)[0], call(case, dense)[0])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_call_gives_the_same_bits(schedule, op):
    case = Case(op, x=BF16, weight=BF16, bias=F32, residual=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        first, second = vars(computed(case, inputs)), vars(computed(case, inputs))
    for name, result in first.items():
        assert torch.equal(result, second[name]), name


@pytest.mark.parametrize("op", OPS)
def test_gradient_wishes_do_not_change_the_forward(op):
    """Training and inference give the same numbers."""
    case = Case(op, x=BF16, weight=BF16)
    inputs = inputs_of(case, 3, 48)
    assert torch.equal(call(case, inputs)[0], call(case, inputs.leaves())[0])


@pytest.mark.parametrize("op", OPS)
def test_a_later_row_may_come_first(op, launches):
    """Rows of 200 bytes: every other one begins 8 bytes past 16. The kernel is the same, and so are its sums."""
    case = Case(op, x=BF16, weight=F32)
    inputs = inputs_of(case, 15, 100)
    tail = replace(inputs, x=inputs.x[5:], dy=inputs.dy[5:])
    assert (inputs.x.data_ptr() % 16, tail.x.data_ptr() % 16) == (0, 8)
    with planned("row"):
        whole, part = computed(case, inputs), computed(case, tail)
    assert len({tuple(launch.constants.items()) for launch in launches if "forward" in launch.kernel}) == 1
    assert len({tuple(launch.constants.items()) for launch in launches if launch.kernel == "tile_backward"}) == 1
    assert torch.equal(part.y, whole.y[5:]) and torch.equal(part.dx, whole.dx[5:])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_new_row_count_compiles_no_new_kernel(schedule, launches):
    """What a kernel is compiled for: dtypes and constants. Row counts may choose between two variants at the most."""
    case = Case("layer_norm", bias=F32)
    cols = SHAPES[schedule][1]
    with planned(schedule):
        for rows in (1, 2, 4, 7):
            computed(case, inputs_of(case, rows, cols))
    forward = {tuple(launch.constants.items()) for launch in launches if "forward" in launch.kernel}
    sums = {tuple(launch.constants.items()) for launch in launches if launch.kernel == "sum_partials"}
    backward = {(launch.kernel, *launch.constants.items()) for launch in launches if "backward" in launch.kernel}
    assert len(forward) <= 2
    assert len(sums) == (0 if schedule == "few" else 1)
    assert len(backward) <= (2 if schedule == "stream" else 1)  # stream has two kernels
