"""layout_of: leading dimensions and strides as rows and lanes, and where that needs a copy."""

import pytest

from onepass.plan.layout import MAX_ALIGN, Layout, layout_of


def dense(*shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def test_a_dense_tensor_is_one_lane_of_rows():
    assert layout_of((2, 3, 5, 8), [dense(2, 3, 5, 8)]) == Layout(30, 1, ((8, 0),))


def test_one_vector_is_one_row():
    layout = layout_of((8,), [(1,)])
    assert (layout.rows, layout.lanes) == (1, 1)


def test_heads_of_a_fused_tensor_are_lanes():
    """A query slice of (tokens, 3, heads, dim)."""
    assert layout_of((100, 4, 8), [(96, 8, 1), dense(100, 4, 8)]) == Layout(100, 4, ((96, 8), (32, 8)))


def test_the_shorter_level_is_the_lanes_wherever_it_stands():
    assert layout_of((2, 100, 8), [(1600, 8, 1)]) == Layout(100, 2, ((8, 1600),))


def test_batch_and_tokens_of_a_fused_tensor_are_one_level():
    assert layout_of((2, 50, 4, 8), [(4800, 96, 8, 1)]) == Layout(100, 4, ((96, 8),))


def test_one_tensor_with_strides_is_enough_to_need_two_levels():
    layout = layout_of((10, 4, 8), [dense(10, 4, 8), (64, 8, 1), dense(10, 4, 8)])
    assert layout == Layout(10, 4, ((32, 8), (64, 8), (32, 8)))


def test_dimensions_of_one_are_no_level():
    assert layout_of((3, 1, 4, 1, 8), [(32, 7, 8, 99, 1)]) == Layout(12, 1, ((8, 0),))


def test_expanded_rows_have_a_stride_of_zero():
    assert layout_of((5, 8), [(0, 1)]) == Layout(5, 1, ((0, 0),))
    assert layout_of((5, 3, 8), [(0, 0, 1)]) == Layout(15, 1, ((0, 0),))


def test_three_levels_need_a_copy():
    assert layout_of((3, 4, 5, 8), [(1000, 100, 9, 1)]) is None


def test_per_lane_keeps_the_heads_apart_even_where_they_are_dense():
    assert layout_of((100, 4, 8), [dense(100, 4, 8)], per_lane=True) == Layout(100, 4, ((32, 8),))
    assert layout_of((2, 50, 1, 8), [dense(2, 50, 1, 8)], per_lane=True) == Layout(100, 1, ((8, 8),))


def test_per_lane_of_one_token_has_one_row():
    layout = layout_of((4, 8), [dense(4, 8)], per_lane=True)
    assert (layout.rows, layout.lanes) == (1, 4)
    assert layout.strides[0][1] == 8


def test_per_lane_leaves_one_level_for_everything_else():
    assert layout_of((2, 50, 4, 8), [(9999, 96, 8, 1)], per_lane=True) is None


@pytest.mark.parametrize(
    ("cols", "strides", "align"),
    [
        (4096, ((4096, 0),), MAX_ALIGN),
        (1000, ((1000, 0),), 8),
        (1000, ((1000, 0), (1004, 0)), 4),
        (127, ((128, 0),), 1),
        (128, ((129, 0),), 1),
        (128, ((0, 0),), MAX_ALIGN),
        (64, ((192, 66),), 2),
    ],
)
def test_alignment_divides_columns_and_every_stride(cols, strides, align):
    assert Layout(5, 1, strides).align(cols) == align
