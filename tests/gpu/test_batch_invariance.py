"""A row's bits depend on the row alone: not on how many rows come with it, nor where it lies, nor on the run."""

import itertools
from dataclasses import replace

import pytest
import torch

import onepass
from gpu.cases import (
    CLUSTERS,
    GLUON,
    PLAIN,
    RESIDUAL,
    Case,
    differentiated,
    forward_schedule,
    on_schedule,
    ours,
    schedule_of_many,
    tensors_of,
)
from gpu.exact import assert_same_bits, random_rows, random_weight, same_bits
from onepass.plan import in_force
from onepass.plan.device import device_of
from onepass.plan.plans import Choice
from onepass.plan.tiles import Tile

BF16, FP32 = torch.bfloat16, torch.float32

#: Below 4,096 rows short rows take a smaller tile, and from 512 on some of these together; the shorter below 8,192.
ROW_COUNTS = (1, 7, 16, 64, 129, 300, 700, 2500, 4096)
MANY_SHORTER = 8192
BLOCK_ROWS = (64, 128, 136, 216, 256, 384, 512)
ONE_ROW = (520, 768, 1000, 1100, 1152, 2048, 4096, 4099)  # or several; 520 and 1,100 leave much of a last block empty
#: Up to 64 rows those that are walked are shared by clusters, and up to 132 held, if they are not too wide for it.
#: LayerNorm's from 8,193 columns on, and 7,001, ask for weight and bias early or late.
WIDE = (5120, 7001, 8192, 10240, 16384, 20488, 27048, 32768, 54976)
SPLIT = (131072,)
#: Rows that are shared by clusters though they are not so wide, for the loads of single elements that a thread would
#: have; LayerNorm's by sixteen warps.
MANY_LOADS = {("rms_norm", BF16, 7001), ("rms_norm", FP32, 7001), ("layer_norm", FP32, 7001)}
ODD = (61, 100, 127, 301)  # rows that need not begin at 16 bytes; none does in bf16
FEW_AND_MANY = (32, 64, 128, 192, 216, 256, 512, 640, 1000, 1024, 2048, 4096, 8192, 16384, 32768)
KINDS = ("rms_norm", "layer_norm", "residual", "fp32", "tiny")
RUNS = 20


@pytest.mark.parametrize("cols", [*ODD, *BLOCK_ROWS, *ONE_ROW, *WIDE, *SPLIT])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_row_bits_do_not_depend_on_other_rows(op: str, dtype: torch.dtype, cols: int) -> None:
    counts = [count for count in ROW_COUNTS if cols not in SPLIT or count <= 300]
    counts += [MANY_SHORTER] if cols <= 128 else []
    norm = getattr(onepass, op)
    x, weight = random_rows(counts[-1] + 8, cols, dtype=dtype), random_weight(cols, dtype=dtype)
    every = norm(x, weight)
    assert bool(every.isfinite().all())

    tiles, held, shared, affine_first = set(), False, False, set()
    for count in counts:
        plan = onepass.explain(x[:count], weight, op=op).forward
        assert plan is not None
        assert schedule_of_many(plan) == forward_schedule(op, dtype, cols), str(plan)
        tiles.add((plan.schedule, plan.rows, plan.warps * plan.chains))  # few rows may have a warp for each chain
        affine_first.add(plan.affine_first)
        held |= plan.as_walked and plan.slices == 1
        shared |= plan.schedule == "tile" and plan.slices > 1
        for start in (0, 5, len(x) - count):
            assert_same_bits(norm(x[start : start + count], weight), every[start : start + count])
    several = max(rows for _, rows, _ in tiles) > 1
    assert several or cols > 256
    schedule, width = forward_schedule(op, dtype, cols), cols * dtype.itemsize
    assert held == (schedule == "stream" and width < 96 << 10), "a thread's registers take it"
    loads = (op, dtype, cols) in MANY_LOADS
    assert shared == (CLUSTERS and schedule != "split" and (width >= 32 << 10 or loads))
    always = schedule == "tile" and width > 128 << 10  # too wide for one program
    if several and cols * dtype.itemsize % 16 == 0:
        few = min(rows for _, rows, _ in tiles)
        assert len(tiles) >= (3 if few > 1 else 2), "the smallest, some of these together, and the full one"
    else:
        alone = several and len({rows for _, rows, _ in tiles}) == 2  # few odd rows, each with a warp of its own
        # Many odd rows pass through shared memory, where the compiler knows how.
        through = GLUON and dtype == BF16 and cols in (4099, 7001)
        assert ("odd" in {kind for kind, _, _ in tiles}) == through
        assert len(tiles) == 1 + alone + held + (shared and not always) + through, tiles
        assert alone or not (cols == 127 and op == "rms_norm")
    early = cols == 5120 and width <= 16 << 10
    assert len(affine_first) == 2 or not early, "many ask for the weight before the row"
    assert_same_bits(norm(x.flip(0), weight).flip(0), every)


@pytest.mark.parametrize(("kind", "cols"), [*itertools.product(KINDS, FEW_AND_MANY), ("residual", 45056)])
def test_few_rows_have_the_bits_of_many_though_their_kernel_is_another(kind: str, cols: int) -> None:
    """tiny: of numbers whose sums are subnormal, where a product that is not rounded would show."""
    dtype = FP32 if kind in ("fp32", "tiny") else BF16
    few = 132 * 20480 // cols // 2
    x, weight = random_rows(8 * few, cols, dtype=dtype), random_weight(cols, dtype=dtype)
    if kind == "tiny":
        x *= 1e-42
    given: dict[str, torch.Tensor] = {"weight": weight}
    op = "layer_norm" if kind in ("layer_norm", "tiny") else "rms_norm"
    if op == "layer_norm" and kind != "tiny":
        given["bias"] = random_weight(cols, dtype=dtype, seed=5)
    residual = random_rows(8 * few, cols, dtype=dtype, seed=3) if kind == "residual" else None

    def norm(rows: slice, source: torch.Tensor = x) -> tuple[torch.Tensor, ...]:
        if residual is not None:
            given["residual"] = residual[rows]
        result = getattr(onepass, op)(source[rows], **given)
        return result if isinstance(result, tuple) else (result,)

    plans = [onepass.explain(x[:rows], weight, op=op, residual=None if residual is None else residual[:rows]).forward
             for rows in (len(x), few, 1)]  # fmt: skip
    many, *fewer = (plan for plan in plans if plan is not None)
    assert not many.prompt and len(fewer) == 2
    clusters = kind == "residual" and cols >= 8192
    assert all(plan.prompt or (clusters and plan.slices > 1) for plan in fewer)
    for plan in fewer:
        assert plan.sum_first == (kind == "residual" and cols > (10_240 if plan.slices > 1 else 2048))
    assert many.sum_first == (kind == "residual" and cols > 16384)
    every = norm(slice(None))
    strided = torch.cat([x[: few + 5], x[: few + 5]], dim=1)[:, :cols]
    for source, begin, end in ((x, 0, 1), (x, 5, 5 + few), (x, 17, 17 + few // 3), (strided, 5, 5 + few)):
        for some, all_rows in zip(norm(slice(begin, end), source), every, strict=True):
            assert_same_bits(some, all_rows[begin:end])


@pytest.mark.parametrize("cols", [3080, 3584, 5384, 7680, 8450])
def test_very_many_rows_ask_for_weight_and_bias_late(cols: int) -> None:
    """Of LayerNorm; and these, too, have the bits that each has by itself."""
    x = random_rows(10_000, cols, dtype=BF16)
    weight, bias = (random_weight(cols, dtype=BF16) for _ in range(2))
    every = onepass.layer_norm(x, weight, bias)
    plans = [onepass.explain(x[:count], weight, bias, op="layer_norm").forward for count in (10_000, 2000)]
    many, few = (None if plan is None else (plan.ahead, plan.affine_first) for plan in plans)
    assert many == (1, False) and few == ((1, False) if cols == 8450 else (None, True))
    for begin, end in ((0, 1), (17, 2017), (9000, 10_000)):
        assert_same_bits(onepass.layer_norm(x[begin:end], weight, bias), every[begin:end])


@pytest.mark.parametrize("cols", [128, 184, 232, 264, 312, 512, 520, 768, 1091, 8192, 12_552, 14_208, 16_384])
@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm", "residual"])
def test_rows_of_fp32_have_their_bits_together_and_late(kind: str, cols: int) -> None:
    """Short ones in programs of one row or of several, others with the weight before the row, and wide ones late."""
    rows = 5000 if cols < 2048 else 400
    x, weight = random_rows(rows, cols, dtype=FP32), random_weight(cols, dtype=FP32)
    bias = random_weight(cols, dtype=FP32, seed=5) if kind == "layer_norm" else None
    residual = random_rows(rows, cols, dtype=FP32, seed=3) if kind == "residual" else None
    op = "layer_norm" if kind == "layer_norm" else "rms_norm"

    def results(begin: int, end: int) -> tuple[tuple[object, ...], tuple[torch.Tensor, ...]]:
        added = None if residual is None else residual[begin:end]
        plan = onepass.explain(x[begin:end], weight, bias, op=op, residual=added).forward
        assert plan is not None
        got = getattr(onepass, op)(x[begin:end], weight, bias, residual=added)
        how = (plan.rows, plan.prompt, plan.affine_first, plan.ahead, plan.slices)
        return how, got if isinstance(got, tuple) else (got,)

    plan, every = results(0, rows)
    plans = {plan}
    for begin, end in (
        (0, 1),
        (7, 60),
        (9, 141),
        (9, 142),
        (30, 330),
        *(((5, 1305), (17, 2517)) if cols < 2048 else ()),
    ):
        plan, few = results(begin, end)
        plans.add(plan)
        for some, of_all in zip(few, every, strict=True):
            assert_same_bits(some, of_all[begin:end])
    assert len(plans) > 1


#: Rows that do not begin on 16 bytes. Many pass through shared memory, are walked, or are held by one program.
ANYWHERE = {
    ("rms_norm", torch.float16): (6201, 8002, 12004, 17387, 20002, 20004, 35002, 60002, 60004),
    ("rms_norm", FP32): (6001, 17387, 20002, 30001),
    ("layer_norm", torch.float16): (8001, 10954, 15132, 20001, 20002, 35002, 60004),
    ("layer_norm", FP32): (8001, 17387),
    ("residual", torch.float16): (8001, 8002, 20001, 20002),
    ("residual", FP32): (4099,),
}


@pytest.mark.skipif(not CLUSTERS, reason="this GPU has no clusters")
@pytest.mark.parametrize(("kind", "dtype", "cols"), [(*key, cols) for key, each in ANYWHERE.items() for cols in each])
def test_few_rows_that_begin_anywhere_have_their_bits_from_a_cluster_too(
    kind: str, dtype: torch.dtype, cols: int
) -> None:
    x, weight = random_rows(400, cols, dtype=dtype), random_weight(cols, dtype=dtype)
    bias = random_weight(cols, dtype=dtype, seed=5) if kind == "layer_norm" else None
    residual = random_rows(400, cols, dtype=dtype, seed=3) if kind == "residual" else None
    op = "layer_norm" if kind == "layer_norm" else "rms_norm"

    def results(begin: int, end: int) -> tuple[int, tuple[torch.Tensor, ...]]:
        added = None if residual is None else residual[begin:end]
        plan = onepass.explain(x[begin:end], weight, bias, op=op, residual=added).forward
        assert plan is not None
        got = getattr(onepass, op)(x[begin:end], weight, bias, residual=added)
        return plan.slices, got if isinstance(got, tuple) else (got,)

    slices, every = results(0, 400)
    assert slices == 1
    for begin, end in ((0, 1), (7, 20), (9, 41), (17, 81), (0, 200)):
        slices, few = results(begin, end)
        assert slices == 8 or end - begin > 32
        for some, of_all in zip(few, every, strict=True):
            assert_same_bits(some, of_all[begin:end])


@pytest.mark.parametrize("cols", [17_408, 24_576, 26_000, 32_768])
def test_sums_with_a_residual_have_their_bits_walked_and_held(cols: int) -> None:
    x, residual = (random_rows(700, cols, dtype=BF16, seed=seed) for seed in (1, 3))
    weight = random_weight(cols, dtype=BF16)
    every = onepass.rms_norm(x, weight, residual=residual)
    plans = {}
    for begin, end in ((0, 1), (3, 40), (9, 139), (17, 217), (0, 400), (0, 700)):
        plan = onepass.explain(x[begin:end], weight, residual=residual[begin:end]).forward
        assert plan is not None
        plans[end - begin] = (plan.schedule, plan.slices)
        some = onepass.rms_norm(x[begin:end], weight, residual=residual[begin:end])
        for got, expected in zip(some, every, strict=True):
            assert_same_bits(got, expected[begin:end])
    if device_of(x.device).sms == 132:
        assert [plans[rows] for rows in (130, 400, 700)] == [("tile", 1)] * 3
        assert plans[200] == (("stream" if cols <= 24_576 else "tile"), 1)


@pytest.mark.parametrize("rows", [1, 71, 301])
@pytest.mark.parametrize("cols", [131072, 83712, 131073])
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_sums_that_a_program_makes_for_its_peers_have_their_bits(op: str, residual: bool, cols: int, rows: int) -> None:
    """It does so if they are not there in time: here it looks once, before most of them can be."""
    x, weight, bias = random_rows(rows, cols, dtype=BF16), random_weight(cols, dtype=BF16), None
    if op == "layer_norm":
        bias = random_weight(cols, dtype=BF16, seed=5)
    added = random_rows(rows, cols, dtype=BF16, seed=3) if residual else None

    def results(**thresholds: int) -> tuple[torch.Tensor, ...]:
        """By programs that come and go, where odd rows would have such that stay."""
        with in_force.override(odd_shared_few=1 << 40, **thresholds):
            plan = onepass.explain(x, weight, bias, op=op, residual=added).forward
            assert plan is not None and plan.schedule == "split", str(plan)
            got = getattr(onepass, op)(x, weight, bias, residual=added)
        return got if isinstance(got, tuple) else (got,)

    for got, right in zip(results(patience=0), results(), strict=True):
        assert_same_bits(got, right)


@pytest.mark.parametrize("case", [*PLAIN.values(), *RESIDUAL.values()], ids=str)
def test_every_run_gives_the_same_bits(case: Case) -> None:
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        first = differentiated(ours(case), tensors)
        for _ in range(RUNS - 1):
            again = differentiated(ours(case), tensors)
            changed = [name for name, result in first.items() if not same_bits(again[name], result)]
            assert not changed


@pytest.mark.parametrize("chains", [2, 4])
@pytest.mark.parametrize(
    ("cols", "dtype", "tile"),
    [
        (960, BF16, Tile(1920, 1, 1, block=256)),
        (1000, BF16, Tile(2000, 8, 4, block=256)),
        (3904, BF16, Tile(7808, 1, 4, block=1024)),
        (5888, BF16, Tile(11_776, 1, 4, block=512)),
        (14_400, BF16, Tile(28_800, 1, 8, block=2048, narrows=False)),
        (4000, FP32, Tile(8000, 1, 4, block=512)),
    ],
)
@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm", "residual"])
def test_few_rows_have_a_warp_for_each_chain_and_the_bits_of_many(
    kind: str, cols: int, dtype: torch.dtype, tile: Tile, chains: int
) -> None:
    rows = 5000 if cols < 2048 else 1000
    x, weight = random_rows(rows, cols, dtype=dtype), random_weight(cols, dtype=dtype)
    bias = random_weight(cols, dtype=dtype, seed=5) if kind == "layer_norm" else None
    residual = random_rows(rows, cols, dtype=dtype, seed=3) if kind == "residual" else None
    op = "layer_norm" if kind == "layer_norm" else "rms_norm"
    with in_force.force("forward", Choice("tile", replace(tile, chains=chains))):
        in_turn = []
        for begin, end in ((0, rows), (0, 1), (5, 37), (17, 147), (100, 900)):
            added = None if residual is None else residual[begin:end]
            plan = onepass.explain(x[begin:end], weight, bias, op=op, residual=added).forward
            assert plan is not None
            in_turn.append(plan.chains)
            got = getattr(onepass, op)(x[begin:end], weight, bias, residual=added)
            got = got if isinstance(got, tuple) else (got,)
            if end == rows:
                every = got
            for some, all_rows in zip(got, every, strict=True):
                assert_same_bits(some, all_rows[begin:end])
        many, few, *_ = in_turn
        assert many > 1 == few == in_turn[2], "few have a warp for each chain"
