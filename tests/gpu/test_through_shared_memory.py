"""Many rows at odd addresses pass through shared memory, wide ones one at a time (kernels/odd.py), the widest in slices
(kernels/odd_split.py), short ones some at once (kernels/flat.py) and the shortest a thread each (kernels/threads.py),
with the bits that few have from tile.py, or from split.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import onepass
import onepass.ops
from gpu.cases import GLUON
from gpu.exact import DEVICE, assert_same_bits, random_rows, random_weight
from onepass.plan import in_force, row_counts

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Kernel:
    schedule: str
    many: dict[str, object]  # thresholds by which any number of rows is many, and few
    few: dict[str, object]
    cols: tuple[int, ...]
    rows: tuple[int, ...]
    as_few: str = "tile"

    def __str__(self) -> str:
        return self.schedule


#: LayerNorm's of 12,001 columns have weight and bias in the same registers. One row, two that are the first and the
#: last, fewer than programs, and more than run at once.
ODD = Kernel("odd", {"odd_elements": 0}, {"odd_elements": 1 << 60}, (1301, 12001), (1, 2, 7, 1201))
#: Blocks of 32 columns and of 64, whose number is a power of two and is not. One row, two, all but one of those that a
#: program has at once, as many, one more, and more than programs that stay.
FLAT = Kernel(
    "flat", {"flat_elements": 0}, {"flat_elements": 1 << 60}, (171, 389, 145, 251, 511), (1, 2, 7, 8, 9, 20011)
)
#: In words of two columns that rows share, and that begin with each row; one warp and two a program. One row, two, all
#: but one of a program's, as many, one more, and more than run at once.
THREADS = Kernel(
    "threads", {"threads_rows": (0,) * 4}, {"threads_rows": (1 << 60,) * 4, "flat_elements": 1 << 60},
    (33, 57, 3, 10, 36, 98), (1, 2, 31, 63, 64, 65, 20011),
)  # fmt: skip
#: A last slice of half its columns, and of one. One row, two that are the first and the last, fewer than groups of
#: programs, and as many as make each take one, three and four rows, or none of the last.
ODD_SPLIT = Kernel(
    "odd_split", {"odd_shared_few": 0}, {"odd_shared_few": 1 << 40}, (26623, 28673), (1, 2, 7, 301, 401), "split"
)  # fmt: skip
#: Slices of six blocks, and of these five and a half, or more than half a warp has words for, or than a warp.
WIDER = {"odd_shared_wide_from": (0, 0, 0)}
WIDE_ODD_SPLIT = Kernel(
    "odd_split", {"odd_shared_few": 0} | WIDER, {"odd_shared_few": 1 << 40} | WIDER, (33791, 110593, 202753),
    (1, 2, 301), "split",
)  # fmt: skip
KERNELS = (ODD, ODD_SPLIT, WIDE_ODD_SPLIT, FLAT, THREADS)
APART = (ODD, ODD_SPLIT, WIDE_ODD_SPLIT)  # whose rows may lie apart, and in lanes

VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("rms_norm", {"cast": "llama"}),
    ("rms_norm", {"cast": "none"}),
    ("rms_norm", {"offset": 1.0}),
    ("rms_norm", {"round_residual": True}),
    ("layer_norm", {"offset": 1.0}),
    ("layer_norm", {"out_dtype": FP16}),
    ("layer_norm", {"round_residual": True}),
)
DTYPES = ((FP16, FP16, FP16), (BF16, FP32, FP32), (FP16, FP16, None), (BF16, None, None))

pytestmark = pytest.mark.skipif(not GLUON, reason="this Triton has another Gluon")
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=str)
ops = pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])


@pytest.fixture(autouse=True)
def _for_no_other_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for what is called alone."""
    monkeypatch.setattr(row_counts, "row_counts_apart", lambda *_: ())


def both(
    kernel: Kernel, op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, **options: object
) -> list[tuple[Tensor, ...]]:
    """y, and with a residual the sum, as many rows have them, and as few do."""
    results = []
    for thresholds, schedule in ((kernel.many, kernel.schedule), (kernel.few, kernel.as_few)):
        with in_force.override(**thresholds):
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


def places(kernel: Kernel, rows: int, cols: int) -> Iterator[tuple[Tensor, Tensor]]:
    """x and a residual: dense, from an aligned address on and from others; and rows apart and in lanes, if they may."""
    for begin, other in ((0, 0), (1, 3), (6, 1)):
        x = random_rows(rows + begin, cols, dtype=BF16)[begin:]
        yield x, random_rows(rows + other, cols, dtype=BF16, seed=3)[other:]
    if kernel in APART:
        yield random_rows(rows, cols + 5, dtype=BF16)[:, 3 : 3 + cols], random_rows(rows, cols, dtype=BF16, seed=3)
        if cols == kernel.cols[0]:
            lanes = random_rows(rows, 5, cols + 1, dtype=BF16)[:, 1:4, :cols]
            yield lanes, random_rows(*lanes.shape, dtype=BF16, seed=3)


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize(("kernel", "cols"), [(kernel, cols) for kernel in KERNELS for cols in kernel.cols], ids=str)
@ops
def test_wherever_rows_begin_their_bits_are_those_of_a_tile(op: str, kernel: Kernel, cols: int, residual: bool) -> None:
    weight = random_weight(cols, dtype=BF16)
    bias = random_rows(cols, dtype=BF16, seed=2) if op == "layer_norm" else None
    for rows in kernel.rows:
        for x, other in places(kernel, rows, cols):
            assert_alike(*both(kernel, op, x, weight, bias, **({"residual": other} if residual else {})))


@pytest.mark.parametrize(("op", "options"), VARIANTS, ids=str)
@kernels
def test_every_variant_has_the_bits_of_a_tile(kernel: Kernel, op: str, options: dict[str, object]) -> None:
    cols = kernel.cols[0]
    x, weight = random_rows(301, cols, dtype=BF16), random_weight(cols, dtype=BF16)
    if "round_residual" in options:
        apart = random_rows(301, cols + 3, dtype=BF16, seed=3)[:, 2:-1]
        options = options | {"residual": apart if kernel in APART else apart.contiguous()}
    assert_alike(*both(kernel, op, x, weight, None, **options))


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@kernels
def test_other_dtypes_have_the_bits_of_a_tile(kernel: Kernel, dtypes: tuple[torch.dtype, ...]) -> None:
    cols = kernel.cols[1 if kernel is FLAT or (kernel is ODD and dtypes == DTYPES[0]) else 0]
    x = random_rows(301, cols, dtype=dtypes[0])
    weight = None if dtypes[1] is None else random_weight(cols, dtype=dtypes[1])
    bias = None if dtypes[2] is None else random_rows(cols, dtype=dtypes[2], seed=2)
    assert_alike(*both(kernel, "layer_norm", x, weight, bias))


@pytest.mark.parametrize(
    ("kernel", "cols"),
    [(ODD, 1301), (ODD_SPLIT, 28673), (FLAT, 171), (FLAT, 389), (THREADS, 33), (THREADS, 130)],
    ids=str,
)
@ops
def test_mean_and_rstd_are_those_of_a_tile_too(op: str, kernel: Kernel, cols: int) -> None:
    x, weight = random_rows(1201, cols, dtype=BF16), random_weight(cols, dtype=BF16)
    statistics = []
    for thresholds in (kernel.many, kernel.few):
        with in_force.override(**thresholds):
            norm = torch.ops.onepass.norm(
                x, weight, None, None, op == "layer_norm", 1e-5, 0.0, "output", False, None, None, True
            )
        statistics.append([tensor for tensor in norm[2:] if tensor is not None and tensor.numel()])
    assert len(statistics[0]) == (2 if op == "layer_norm" else 1)
    for many, few in zip(*statistics, strict=True):
        assert many.shape == (1201,)
        assert_same_bits(many, few)


@kernels
def test_a_row_that_is_not_finite_stays_alone(kernel: Kernel) -> None:
    cols = kernel.cols[0]
    x, weight = random_rows(901, cols, dtype=BF16), random_weight(cols, dtype=BF16)
    (expected,) = both(kernel, "rms_norm", x, weight, None)[0]
    x[17, cols - 1], x[300, 0], x[899, cols // 2] = torch.nan, torch.inf, -torch.inf
    (many,), (few,) = both(kernel, "rms_norm", x, weight, None)
    assert_same_bits(many, few)
    touched = [17, 300, 899]
    assert bool((~many[touched].isfinite()).any(1).all())
    others = [row for row in range(len(x)) if row not in touched]
    assert_same_bits(many[others], expected[others])


@pytest.mark.parametrize(("cols", "schedule"), [(171, "flat"), (93, "threads")])
def test_short_rows_that_lie_apart_are_a_tile(cols: int, schedule: str) -> None:
    x, weight = random_rows(50_000, cols + 5, dtype=BF16)[:, 2:-3], random_weight(cols, dtype=BF16)
    plan = onepass.explain(x, weight).forward
    assert plan is not None and plan.schedule == "tile"
    dense = onepass.explain(x.contiguous(), weight).forward
    assert dense is not None and dense.schedule == schedule
    assert_same_bits(onepass.rms_norm(x, weight), onepass.rms_norm(x.contiguous(), weight))


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("cols", [36, 33])
def test_words_begin_with_other_elements_in_x_than_in_y(cols: int, residual: bool) -> None:
    """From the second element of an allocation on, so that rows of an even number of columns share words too."""
    weight = random_weight(cols, dtype=BF16)
    x = random_rows(1003 * cols + 1, dtype=BF16)[1:].view(1003, cols)
    options = {"residual": random_rows(1003, cols, dtype=BF16, seed=3)} if residual else {}
    assert_alike(*both(THREADS, "rms_norm", x, weight, None, **options))


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("cols", [9, 34])
@ops
def test_a_thread_has_a_row_of_fp32_too(op: str, cols: int, residual: bool) -> None:
    weight = random_weight(cols, dtype=FP32)
    bias = random_rows(cols, dtype=FP32, seed=2) if op == "layer_norm" else None
    for rows, begin in ((1, 0), (65, 1), (5003, 3)):
        x = random_rows(rows + begin, cols, dtype=FP32)[begin:]
        options = {"residual": random_rows(rows, cols, dtype=FP32, seed=3)} if residual else {}
        assert_alike(*both(THREADS, op, x, weight, bias, **options))
