"""Many short rows at odd addresses pass through shared memory, some at once (kernels/flat.py), with the bits that few
have from tile.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import onepass
import onepass.ops
from gpu.cases import GLUON
from gpu.exact import DEVICE, assert_same_bits, random_rows, random_weight
from onepass.plan import in_force, row_counts

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.skipif(not GLUON, reason="this Triton has another Gluon")

#: Blocks of 32 columns and of 64, whose number is a power of two and is not.
COLS = (93, 127, 251, 301, 511)
#: One row, two, all but one of those that a program has at once, as many, one more, and more than programs that stay.
ROWS = (1, 2, 7, 8, 9, 20011)

VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("rms_norm", {"cast": "llama"}),
    ("rms_norm", {"cast": "none"}),
    ("rms_norm", {"offset": 1.0}),
    ("rms_norm", {"round_residual": True}),
    ("layer_norm", {"offset": 1.0}),
    ("layer_norm", {"out_dtype": FP16}),
    ("layer_norm", {"round_residual": True}),
)


@pytest.fixture(autouse=True)
def _for_no_other_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for what is called alone."""
    monkeypatch.setattr(row_counts, "row_counts_apart", lambda *_: ())


def both(op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, **options: object) -> list[tuple[Tensor, ...]]:
    """y, and with a residual the sum, as many rows have them, and as few do."""
    results = []
    for elements, schedule in ((0, "flat"), (1 << 60, "tile")):
        with in_force.override(flat_elements=elements):
            plan = onepass.explain(x, weight, bias, op=op, **options).forward
            assert plan is not None and plan.schedule == schedule, str(plan)
            poison = torch.full(x.shape, torch.nan, dtype=x.dtype, device=DEVICE)
            del poison  # y is made where it was
            result = getattr(onepass, op)(x, weight, bias, **options)
            results.append(result if isinstance(result, tuple) else (result,))
    return results


def assert_alike(many: tuple[Tensor, ...], few: tuple[Tensor, ...]) -> None:
    for got, expected in zip(many, few, strict=True):
        assert bool(expected.isfinite().all())
        assert_same_bits(got, expected)


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_wherever_rows_begin_their_bits_are_those_of_a_tile(op: str, cols: int, residual: bool) -> None:
    weight = random_weight(cols, dtype=BF16)
    bias = random_rows(cols, dtype=BF16, seed=2) if op == "layer_norm" else None
    for rows in ROWS:
        for begin, other in ((0, 0), (1, 3), (6, 1)):
            x = random_rows(rows + begin, cols, dtype=BF16)[begin:]
            added = {"residual": random_rows(rows + other, cols, dtype=BF16, seed=3)[other:]} if residual else {}
            assert_alike(*both(op, x, weight, bias, **added))


@pytest.mark.parametrize(("op", "options"), VARIANTS, ids=str)
def test_every_variant_has_the_bits_of_a_tile(op: str, options: dict[str, object]) -> None:
    x, weight = random_rows(301, 93, dtype=BF16), random_weight(93, dtype=BF16)
    if "round_residual" in options:
        options = options | {"residual": random_rows(301, 93, dtype=BF16, seed=3)}
    assert_alike(*both(op, x, weight, None, **options))


@pytest.mark.parametrize(
    "dtypes", [(FP16, FP16, FP16), (BF16, FP32, FP32), (FP16, FP16, None), (BF16, None, None)], ids=str
)
def test_other_dtypes_have_the_bits_of_a_tile(dtypes: tuple[torch.dtype, ...]) -> None:
    x = random_rows(301, 389, dtype=dtypes[0])
    weight = None if dtypes[1] is None else random_weight(389, dtype=dtypes[1])
    bias = None if dtypes[2] is None else random_rows(389, dtype=dtypes[2], seed=2)
    assert_alike(*both("layer_norm", x, weight, bias))


@pytest.mark.parametrize("cols", [93, 389])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_mean_and_rstd_are_those_of_a_tile_too(op: str, cols: int) -> None:
    x, weight = random_rows(1201, cols, dtype=BF16), random_weight(cols, dtype=BF16)
    statistics = []
    for elements in (0, 1 << 60):
        with in_force.override(flat_elements=elements):
            norm = torch.ops.onepass.norm(
                x, weight, None, None, op == "layer_norm", 1e-5, 0.0, "output", False, None, None, True
            )
        statistics.append([tensor for tensor in norm[2:] if tensor is not None and tensor.numel()])
    assert len(statistics[0]) == (2 if op == "layer_norm" else 1)
    for many, few in zip(*statistics, strict=True):
        assert many.shape == (1201,)
        assert_same_bits(many, few)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    x, weight = random_rows(901, 93, dtype=BF16), random_weight(93, dtype=BF16)
    (expected,) = both("rms_norm", x, weight, None)[0]
    x[17, 92], x[300, 0], x[899, 70] = torch.nan, torch.inf, -torch.inf
    (many,), (few,) = both("rms_norm", x, weight, None)
    assert_same_bits(many, few)
    touched = [17, 300, 899]
    assert bool((~many[touched].isfinite()).any(1).all())
    others = [row for row in range(len(x)) if row not in touched]
    assert_same_bits(many[others], expected[others])


def test_rows_that_lie_apart_are_a_tile() -> None:
    x, weight = random_rows(50_000, 98, dtype=BF16)[:, 2:95], random_weight(93, dtype=BF16)
    plan = onepass.explain(x, weight).forward
    assert plan is not None and plan.schedule == "tile"
    dense = onepass.explain(x.contiguous(), weight).forward
    assert dense is not None and dense.schedule == "flat"
    assert_same_bits(onepass.rms_norm(x, weight), onepass.rms_norm(x.contiguous(), weight))
