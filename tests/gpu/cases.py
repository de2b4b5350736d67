"""The problems that the tests of gradients, determinism, graphs and memory share, so that each is compiled once.

A case names the schedule it is meant for; `on_schedule` makes the planner take it and asserts that it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import onepass
from gpu.exact import AS_OTHERS, random_rows, random_weight
from onepass.explain import Explanation
from onepass.plan import in_force
from onepass.plan.device import device_of
from onepass.plan.plans import Plan

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
GLUON = device_of(torch.device("cuda", 0)).gluon
CLUSTERS = torch.cuda.get_device_capability() >= (9, 0)


@dataclass(frozen=True)
class Case:
    name: str
    op: str
    schedule: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bias: bool = False
    residual: torch.dtype | None = None
    per_head: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Tensors(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    dy: Tensor
    dsum: Tensor | None


#: y and the sum, or None, from x, weight, bias and residual.
Run = Callable[..., tuple[Tensor, Tensor | None]]

# Row counts divide neither a tile nor the number of programs. 4,099 rows of 128 columns take the full block-row tile;
# 71 rows of 131,072 are more than the groups of programs that share them in a backward, so that every group walks.
_SIZES = {"block rows": ("tile", (4099, 128)), "one row": ("tile", (517, 2880)), "few rows": ("tile", (67, 2880)),
          "split": ("split", (71, 131072)), "stream": ("stream", (133, 2880))}  # fmt: skip

PLAIN = {name: Case(f"{name} rms bf16", "rms_norm", *size, BF16) for name, size in _SIZES.items()}
RESIDUAL = {
    name: Case(f"{name} layer bf16 residual", "layer_norm", *size, BF16, bias=True, residual=BF16)
    for name, size in _SIZES.items()
}

CASES = [
    *PLAIN.values(),
    *RESIDUAL.values(),
    *(Case(f"{name} rms fp32 residual", "rms_norm", *_SIZES[name], FP32, residual=FP32) for name in _SIZES),
    *(Case(f"{name} layer fp32", "layer_norm", *_SIZES[name], FP32, bias=True) for name in ("one row", "split")),
    # In loads of single elements.
    Case("split rms odd", "rms_norm", "split", (71, 131073), BF16),
    Case("split layer odd", "layer_norm", "split", (71, 131073), BF16, bias=True),
    Case("split rms odd fp32", "rms_norm", "split", (71, 70001), FP32),
    Case("split rms odd fp32 residual", "rms_norm", "split", (71, 40001), FP32, residual=FP32),
    Case("split layer odd fp32", "layer_norm", "split", (71, 70001), FP32, bias=True),
    # In loads of two, and of four.
    Case("split rms half odd", "rms_norm", "split", (71, 131074), BF16),
    Case("split layer half odd", "layer_norm", "split", (71, 131074), BF16, bias=True),
    Case("split layer in fours", "layer_norm", "split", (71, 131076), BF16, bias=True),
    # A ring, whose last slice is not full.
    Case("ring", "rms_norm", "tile", (751, 10000), BF16),
    Case("ring from the middle of sectors", "rms_norm", "tile", (751, 10008), BF16),
    Case("ring fp32", "rms_norm", "tile", (517, 9004), FP32),
    Case("ring offset llama", "rms_norm", "tile", (751, 10008), FP16, options={"offset": 1.0, "cast": "llama"}),
    Case("wide ring from the middle of lines", "rms_norm", "tile", (517, 40968), BF16),
    Case("ring with a bias", "rms_norm", "tile", (751, 10000), BF16, bias=True),
    # LayerNorm's, of more rows, where two groups of programs share a partial row; the last slices are not full.
    Case("ring layer", "layer_norm", "tile", (2551, 9984), BF16, bias=True),
    Case("ring layer from the middle of lines", "layer_norm", "tile", (2551, 10_000), BF16, bias=True),
    Case("ring layer without bias", "layer_norm", "tile", (2551, 9984), BF16),
    Case("ring layer offset llama", "layer_norm", "tile", (2551, 9984), FP16, options={"offset": 1.0, "cast": "llama"}),
    Case("wide ring layer from the middle of lines", "layer_norm", "split", (353, 70008), BF16, bias=True),
    # And rings of rows at odd addresses; of 10,239 columns some end with a slice, others leave the last one empty.
    Case("ring in turns", "rms_norm", "tile", (517, 9001), BF16),
    Case("ring in turns, of which some end with a slice", "rms_norm", "tile", (523, 10239), BF16),
    Case("ring in turns, in pieces of 4 bytes", "rms_norm", "tile", (517, 10242), FP16, options={"cast": "llama"}),
    Case("ring in turns, in pieces of 8 bytes", "rms_norm", "tile", (517, 9004), BF16),
    Case("ring in turns with a bias", "rms_norm", "tile", (517, 9001), BF16, bias=True),
    Case("ring in turns, of few groups", "rms_norm", "split", (71, 140_001), BF16),
    Case("ring layer in turns", "layer_norm", "tile", (751, 9001), BF16, bias=True),
    Case("ring layer in turns, of groups that share", "layer_norm", "tile", (2551, 9003), BF16, bias=True),
    Case("ring layer in turns without bias", "layer_norm", "tile", (751, 10_239), BF16),
    Case(
        "ring layer in turns, in pieces of 4 bytes",
        "layer_norm",
        "tile",
        (751, 10_242),
        FP16,
        bias=True,
        options={"offset": 1.0, "cast": "llama"},
    ),
    Case("ring layer in turns, in pieces of 8 bytes", "layer_norm", "tile", (751, 9004), BF16, bias=True),
    Case("wide ring layer in turns", "layer_norm", "split", (71, 140_002), BF16, bias=True),
    # Too few for that, and too many to be read twice; and as many as are.
    Case("24,576 columns", "rms_norm", "tile", (131, 24_576), BF16),
    Case("49,160 columns", "rms_norm", "tile", (101, 49_160), BF16, bias=True),
    Case("10,240 columns, not many", "rms_norm", "tile", (517, 10_240), BF16),
    Case("54,283 columns", "rms_norm", "split", (57, 54_283), FP16),
    Case("17,001 columns", "rms_norm", "tile", (131, 17_001), BF16),
    Case("40,506 columns", "rms_norm", "tile", (97, 40_506), BF16),
    Case("54,283 columns layer", "layer_norm", "split", (131, 54_283), BF16, bias=True),
    Case("54,283 columns layer, few", "layer_norm", "split", (41, 54_283), BF16, bias=True),
    Case("54,283 columns residual", "rms_norm", "split", (65, 54_283), BF16, residual=BF16),
    Case("49,152 columns layer", "layer_norm", "tile", (101, 49_152), BF16, bias=True),
    # Tiles for these widths alone, and for rows that begin on 8 bytes.
    *(
        Case(f"{cols:,} columns layer", "layer_norm", "tile", (rows, cols), BF16, bias=True)
        for rows, cols in (
            (517, 256),
            (2557, 768),
            (517, 4096),
            (2017, 108),
            (1003, 204),
            (1003, 364),
            (517, 700),
            (517, 2500),
            (517, 3900),
            (517, 5604),
            (2017, 40),
            (1003, 132),
            (517, 324),
            (517, 6404),
            (517, 6512),
        )
    ),
    *(
        Case(f"{cols:,} columns layer fp32", "layer_norm", "tile", (rows, cols), FP32, bias=True)
        for rows, cols in ((2017, 98), (1003, 162), (517, 1970), (517, 2702), (513, 4402), (257, 15_230))
    ),
    *(Case(f"{cols:,} columns fp32", "rms_norm", "tile", (517, cols), FP32) for cols in (1202, 3458)),
    *(
        Case(f"{cols:,} columns residual fp32", "rms_norm", "tile", (rows, cols), FP32, residual=FP32)
        for rows, cols in ((517, 1402), (517, 2402), (901, 4102), (899, 4103))
    ),
    *(
        Case(f"{cols:,} columns", "rms_norm", "tile", (517, cols), BF16)
        for cols in (522, 702, 1202, 2082, 3074, 3124, 3136, 6404)
    ),
    Case("1,047 columns, many", "rms_norm", "tile", (3001, 1047), BF16),
    Case("1,201 columns layer, many", "layer_norm", "tile", (3001, 1201), BF16, bias=True),
    Case("779 columns residual, many", "rms_norm", "tile", (4001, 779), BF16, residual=BF16),
    Case("4,611 columns residual, many", "rms_norm", "tile", (1613, 4611), BF16, residual=BF16),
    Case("6,404 columns residual", "rms_norm", "tile", (517, 6404), BF16, residual=BF16),
    *(Case(f"{cols:,} columns", "rms_norm", "tile", (517, cols), FP16) for cols in (4096, 2204, 3900, 5604)),
    Case("4,092 columns residual", "rms_norm", "tile", (517, 4092), BF16, residual=BF16),
    # Rows in blocks, several of them short; and as many blocks as a program may hold.
    *(Case(f"384 columns {op}", op, "tile", (4099, 384), BF16) for op in ("rms_norm", "layer_norm")),
    *(Case(f"768 columns {op}", op, "tile", (517, 768), BF16) for op in ("rms_norm", "layer_norm")),
    *(Case(f"5,120 columns {op}", op, "tile", (517, 5120), BF16) for op in ("rms_norm", "layer_norm")),
    Case("6,144 columns", "rms_norm", "tile", (517, 6144), BF16),
    Case("16,384 columns", "rms_norm", "tile", (517, 16384), BF16),
    Case("few rows of 16,384 columns", "rms_norm", "tile", (67, 16384), BF16),
    Case("few rows of 8,192 columns", "layer_norm", "tile", (67, 8192), BF16, bias=True),
    Case("three rows", "layer_norm", "tile", (3, 2880), BF16, bias=True),
    # In loads of single elements, weight and bias late.
    Case("7,001 columns", "layer_norm", "tile", (517, 7001), BF16, bias=True),
    # Few wide rows, which clusters share; 20,488 columns do not fill their blocks.
    *(
        Case(f"shared {op}", op, "tile", (13, 20488), BF16, bias=op == "layer_norm")
        for op in ("rms_norm", "layer_norm")
    ),
    Case("shared rms residual", "rms_norm", "tile", (13, 12288), BF16, residual=BF16),
    Case("shared rms residual, however many", "rms_norm", "tile", (71, 60008), BF16, residual=BF16),
    Case("shared layer residual", "layer_norm", "tile", (13, 20488), BF16, bias=True, residual=BF16),
    Case("shared rms fp32", "rms_norm", "tile", (13, 20484), FP32),
    # And at odd addresses.
    *(
        Case(f"shared {cols:,} columns {op}", op, "tile", (13, cols), FP16, bias=op == "layer_norm")
        for op in ("rms_norm", "layer_norm")
        for cols in (20001, 20002)
    ),
    Case("shared 17,387 fp32 columns", "rms_norm", "tile", (13, 17387), FP32),
    Case("shared 20,001 columns residual", "rms_norm", "tile", (13, 20001), BF16, residual=BF16),
    # Both moments in one walk: a last block that is not full, pivots of four columns, few rows that clusters share.
    Case("40,968 columns", "layer_norm", "tile", (517, 40968), BF16, bias=True),
    # Of which each second row begins in the middle of 32 bytes.
    Case("many rows of 472 columns", "rms_norm", "tile", (16411, 472), BF16),
    Case("many rows of 648 columns", "layer_norm", "tile", (16411, 648), BF16, bias=True),
    Case("many rows of 472 columns residual", "rms_norm", "tile", (16411, 472), BF16, residual=BF16),
    Case("40,964 columns", "layer_norm", "tile", (517, 40964), FP16, bias=True),
    Case("shared 40,968 columns", "layer_norm", "tile", (13, 40968), BF16, bias=True),
    # Rows at odd addresses, one element at a time.
    *(
        Case(f"{cols:,} columns {op}", op, "tile", (517, cols), BF16)
        for op in ("rms_norm", "layer_norm")
        for cols in (41, 61, 175, 301, 701, 2881)
    ),
    *(Case(f"{cols:,} fp32 columns", "rms_norm", "tile", (517, cols), FP32) for cols in (27, 61, 301, 423, 4099)),
    *(Case(f"{cols} fp32 columns", "layer_norm", "tile", (4099, cols), FP32, bias=True) for cols in (9, 37)),
    Case("21 columns", "rms_norm", "tile", (4099, 21), BF16),
    Case("53 columns", "layer_norm", "tile", (4099, 53), FP16, bias=True),
    Case("53 columns residual", "rms_norm", "tile", (4099, 53), BF16, residual=BF16),
    # A thread each, where they are more than a program for each SM; some programs have one row more than others.
    Case("many of 37 columns", "rms_norm", "tile", (20_011, 37), BF16),
    Case("many of 20 columns", "rms_norm", "tile", (300_007, 20), FP16, options={"cast": "llama"}),
    Case("many of 17 columns", "layer_norm", "tile", (20_011, 17), BF16, bias=True),
    Case("many of 26 columns residual", "rms_norm", "tile", (20_011, 26), BF16, residual=BF16),
    Case("many of 26 columns bias", "rms_norm", "tile", (20_011, 26), BF16, bias=True),
    Case("many of 17 columns residual", "layer_norm", "tile", (20_011, 17), BF16, bias=True, residual=BF16),
    Case("many of 11 fp32 columns", "layer_norm", "tile", (20_011, 11), FP32, bias=True),
    # Short ones in pieces of 4 and of 8 bytes.
    *(
        Case(f"{cols} columns {op}", op, "tile", (4099, cols), BF16)
        for op in ("rms_norm", "layer_norm")
        for cols in (22, 36)
    ),
    *(Case(f"{cols} fp32 columns", "layer_norm", "tile", (4099, cols), FP32, bias=True) for cols in (38, 54, 70)),
    *(Case(f"{cols} columns", "rms_norm", "tile", (4099, cols), BF16) for cols in (24, 80)),
    # The widest of few rows.
    *(Case(f"few rows of 70,008 columns {op}", op, "split", (29, 70008), BF16) for op in ("rms_norm", "layer_norm")),
    Case("few rows of 70,001 columns residual", "rms_norm", "split", (29, 70001), BF16, residual=BF16),
    Case("two rows of 40,504 columns", "layer_norm", "tile", (2, 40504), BF16, bias=True),
    Case("five rows of 262,144 columns", "rms_norm", "split", (5, 262144), BF16),
    Case("three rows of 113,431 columns", "layer_norm", "split", (3, 113431), FP16, bias=True),
    Case("three rows of 200,001 columns", "rms_norm", "split", (3, 200001), BF16),
    Case("five rows of 86,272 fp32 columns residual", "rms_norm", "split", (5, 86272), FP32, residual=FP32),
    Case("three rows of 300,000 columns", "layer_norm", "split", (3, 300_000), BF16, bias=True),
    Case("one row of 300,001 columns", "rms_norm", "split", (1, 300_001), BF16),
    Case("one row of 800,008 columns", "layer_norm", "split", (1, 800_008), BF16, bias=True),
    Case("two rows of 100,001 columns", "layer_norm", "split", (2, 100_001), BF16, bias=True),
    Case("two rows of 70,004 columns", "rms_norm", "split", (2, 70_004), FP16, residual=FP16),
    Case("700 rows of 26,000 columns", "rms_norm", "tile", (700, 26_000), BF16, residual=BF16),
    Case("600 rows of 60,004 columns", "layer_norm", "tile", (600, 60_004), BF16, bias=True),
    Case("600 rows of 60,002 columns", "rms_norm", "tile", (600, 60_002), BF16),
    Case("five rows of 70,004 columns fp32 residual", "rms_norm", "split", (5, 70_004), BF16, residual=FP32),
    Case(
        "13 rows of 118,029 columns residual offset llama",
        "rms_norm",
        "split",
        (13, 118_029),
        FP16,
        residual=FP16,
        options={"offset": 1.0, "cast": "llama"},
    ),
    # More of them than one program has a part of each of, by clusters.
    Case("37 rows of 70,008 columns", "layer_norm", "split", (37, 70_008), BF16),
    Case("34 rows of 99,001 columns", "layer_norm", "split", (34, 99_001), BF16, bias=True),
    # Fewer programs for some hundred rows, and rows in turns of fp32.
    Case("768 columns, some hundred rows", "layer_norm", "tile", (1003, 768), BF16, bias=True),
    Case("2,048 columns, some hundred rows", "rms_norm", "tile", (635, 2048), BF16),
    Case("1,664 columns, some hundred rows residual", "rms_norm", "tile", (635, 1664), BF16, residual=BF16),
    # Few, with limits of registers in both directions.
    Case("200 rows of 6,144 columns", "layer_norm", "tile", (200, 6144), BF16, bias=True),
    Case("200 rows of 4,096 columns layer residual", "layer_norm", "tile", (200, 4096), BF16, bias=True, residual=BF16),
    Case("200 fp32 rows of 8,192 columns layer residual", "layer_norm", "tile", (200, 8192), FP32, residual=FP32),
    Case("300 rows of 5,120 columns residual", "rms_norm", "tile", (300, 5120), BF16, residual=BF16),
    Case("200 rows of 7,168 columns residual", "rms_norm", "tile", (200, 7168), BF16, residual=BF16),
    Case("200 rows of 16,384 columns residual", "rms_norm", "tile", (200, 16384), BF16, residual=BF16),
    Case("600 fp32 rows of 18,432 columns", "layer_norm", "tile", (600, 18432), FP32, bias=True),
    *(Case(f"many of {cols} fp32 columns", "rms_norm", "tile", (4099, cols), FP32) for cols in (433, 801)),
    Case("many of 601 fp32 columns residual", "rms_norm", "tile", (4099, 601), FP32, residual=FP32),
    Case("325 columns residual", "rms_norm", "tile", (517, 325), BF16, residual=BF16),
    Case("675 columns residual", "rms_norm", "tile", (517, 675), BF16, residual=BF16),
    Case("960 columns residual", "rms_norm", "tile", (517, 960), BF16, residual=BF16),
    Case("1,159 fp32 columns residual", "rms_norm", "tile", (517, 1159), FP32, residual=FP32),
    Case("many of 2,359 columns", "layer_norm", "tile", (1303, 2359), BF16, bias=True),
    Case("4,224 columns residual", "rms_norm", "tile", (517, 4224), BF16, residual=BF16),
    Case("9,000 columns residual", "rms_norm", "tile", (517, 9000), BF16, residual=BF16),
    Case("61 columns residual", "rms_norm", "tile", (5003, 61), BF16, residual=BF16),
    # And rows at odd addresses that programs share in the backward.
    Case("20,001 columns", "rms_norm", "tile", (517, 20001), BF16),
    Case("9,001 columns residual", "rms_norm", "tile", (517, 9001), BF16, residual=BF16),
    Case("9,001 columns layer residual", "layer_norm", "tile", (517, 9001), BF16, bias=True, residual=BF16),
    # In pieces of 4 bytes, two elements a thread in the forward.
    Case("2,050 columns", "layer_norm", "tile", (517, 2050), BF16, bias=True),
    Case("12,002 columns", "layer_norm", "tile", (517, 12002), BF16, bias=True),
    Case("15,001 fp32 columns offset", "rms_norm", "tile", (517, 15001), FP32, options={"offset": 1.0}),
    Case("few rows of heads", "rms_norm", "tile", (19, 8, 128), BF16),
    # The residual stream in fp32 beside bf16: dx and dresidual are two tensors then.
    Case("one row rms bf16 fp32 residual", "rms_norm", "tile", (517, 2880), BF16, residual=FP32),
    Case("block rows offset", "rms_norm", "tile", (4099, 128), BF16, options={"offset": 1.0}),
    Case("block rows llama", "rms_norm", "tile", (4099, 128), BF16, options={"cast": "llama"}),
    Case("block rows per head", "rms_norm", "tile", (4099, 8, 128), BF16, per_head=True),
]


def tensors_of(case: Case, seed: int = 0) -> Tensors:
    affine = case.shape[-2:] if case.per_head else case.shape[-1:]
    weight = random_weight(*affine, dtype=case.dtype, seed=seed + 1)
    return Tensors(
        random_rows(*case.shape, dtype=case.dtype, seed=seed),
        weight - case.options.get("offset", 0.0),
        random_rows(*affine, dtype=case.dtype, seed=seed + 2) if case.bias else None,
        None if case.residual is None else random_rows(*case.shape, dtype=case.residual, seed=seed + 3),
        random_rows(*case.shape, dtype=case.dtype, seed=seed + 4),
        None if case.residual is None else random_rows(*case.shape, dtype=case.residual, seed=seed + 5),
    )


def explained(case: Case, tensors: Tensors) -> Explanation:
    x, weight, bias, residual = tensors[:4]
    return onepass.explain(x, weight, bias, op=case.op, residual=residual, **case.options)


def forward_schedule(op: str, dtype: torch.dtype, cols: int) -> str:
    """What the forward of many plain rows is meant to take: fp32 is twice as wide, but for RMSNorm's tile."""
    wide = dtype.itemsize // 2
    if cols > 65536 // wide:
        return "split"
    return "stream" if op == "rms_norm" and wide == 2 and 16384 < cols <= 24576 else "tile"


def schedule_of_many(plan: Plan) -> str:
    """Few rows that are held as a walk would add them up belong to those that are walked, and odd ones to a tile."""
    return "stream" if plan.as_walked else AS_OTHERS.get(plan.schedule, plan.schedule)


def backward_schedule(case: Case) -> str:
    """The forward's, but where rows are few, those that programs share if a cluster can take them, and odd rows."""
    cols, size = case.shape[-1], case.dtype.itemsize
    rows, width = math.prod(case.shape[:-1]), cols * size
    t = in_force.thresholds()
    most = t.few_rows if cols >= rows * t.few_columns_a_row else min(t.few_rows, t.few_rows_of_any_width)
    if (cols & -cols) * size == 2 and case.op == "rms_norm" and rows * cols <= t.few_odd_elements:
        most = max(most, t.few_odd_rows)
    few = case.schedule == "tile" and rows <= most and not case.per_head
    kind = 1 if case.op == "layer_norm" else 0 if case.residual is None else 2
    each_wide = rows <= width // 2 // t.few_columns_each
    small = rows * width // 2 <= _most_in_clusters(case, kind, each_wide)
    wide, shared = t.few_shared_rows[0]
    if CLUSTERS and width // 2 >= wide and rows <= shared:
        few &= small
    elif width // 2 > wide and rows > t.few_wide_rows:
        few = False
    few |= case.schedule == "split" and CLUSTERS and small and each_wide and width // 2 <= t.few_wide_slice.cols
    tiles = t.few_split_odd_summed_tiles if kind == 2 and (cols & -cols) * size == 2 else t.few_split_tiles
    held = any(rows <= tile.rows and width // 2 <= tile.cols for tile in tiles)
    if case.schedule in ("tile", "split") and GLUON and held and cols >= t.few_split_from and not case.per_head:
        return "few_split"
    if few:
        return "few"
    dense = not case.per_head and case.residual in (None, case.dtype)
    if _has_a_thread_a_row(case, rows, width) and dense:
        return "threads"
    ring = _has_ring(case, rows, width) or _has_centred_ring(case, rows, width)
    if case.schedule != "stream" and dense and width % 16 == 8 and cols <= _most_alone(case, size):
        if kind == 1 and case.residual is None and cols >= t.centred_eights_in_turns_from[size == 4]:
            return "turns"
        if size == 4 and _is_shared_sooner(case, rows, cols):
            return "split_turns"
    if ((cols & -cols) * size <= 4 or (ring and dense and width % 16)) and case.schedule != "stream":
        return _schedule_of_odd(case, rows, cols, width)
    shared = case.schedule == "tile" and cols > _most_alone(case, size)
    ring = ring and width % 16 == 0 and case.schedule != "stream"
    return "ring" if ring else "split" if shared else case.schedule


def _has_a_thread_a_row(case: Case, rows: int, width: int) -> bool:
    t = in_force.thresholds()
    two_sums = case.op == "layer_norm" or case.bias
    tiles = t.threads_backward_tiles[1 if two_sums else 0 if case.residual is None else 2]
    shortest, wider, in_eights = t.threads_backward_rows
    least = in_eights if width % 8 == 0 else shortest if width // 2 <= t.threads_backward_shortest else wider
    many = rows >= least * torch.cuda.get_device_properties(0).multi_processor_count
    return GLUON and many and width % 16 > 0 and width // 2 <= tiles[-1].cols and case.schedule != "stream"


def _most_in_clusters(case: Case, kind: int, each_wide: bool) -> int:
    """Elements of 16 bits; of single ones more, if programs for dW have as many columns as they have for few rows."""
    t, piece = in_force.thresholds(), min(16, (case.shape[-1] & -case.shape[-1]) * case.dtype.itemsize)
    most = next(kinds for widest, kinds in t.few_shared_elements if piece <= widest)[kind]
    return max(most, t.few_wide_odd_elements[kind]) if piece == 2 and each_wide else most


def _most_alone(case: Case, size: int) -> int:
    """Columns that one program takes of a row."""
    t = in_force.thresholds()
    if case.op == "layer_norm":
        return t.centred_backward_most
    return 16384 * 2 // size if case.residual is None else t.summed_backward_most


def _has_ring(case: Case, rows: int, width: int) -> bool:
    """RMSNorm's, but of rows that programs share not where these are few; in turns narrow ones are soon many."""
    t, plain = in_force.thresholds(), GLUON and case.op == "rms_norm" and case.residual is None
    narrow = [least for most, least in t.ring_turns_elements if width % 16 and width // 2 <= most]
    many = rows * (width // 2) >= (narrow[0] if narrow else t.many_elements)
    return plain and width // 2 >= t.ring_from and many


def _has_centred_ring(case: Case, rows: int, width: int) -> bool:
    """LayerNorm's, of 16 bits, if each group of programs, one for each slice, has rows enough."""
    t, in_turns = in_force.thresholds(), width % 16 > 0
    narrow = width // 2 <= t.rings[0].cols * t.many_slices
    tile = t.rings[0] if narrow else t.rings[-1]
    if in_turns:
        tile = t.centred_turns_rings[width // 2 > 2 * t.centred_turns_rings[0].cols * t.many_slices]
    programs = torch.cuda.get_device_properties(0).multi_processor_count * (tile.programs_per_sm or 1)
    groups = programs // -(-width // 2 // tile.cols)
    plain = GLUON and case.op == "layer_norm" and case.residual is None and case.dtype != FP32 and not case.per_head
    begins = width % 32 == 0 or in_turns or not narrow
    partials = max(t.partials_bytes, rows * width // t.partials_of_x) // (4 * width // 2 * (2 if case.bias else 1))
    room = partials >= 16 // math.gcd(width, 16)  # for one of each turn
    many = rows >= t.centred_ring_rows[in_turns] * groups
    return plain and begins and room and many and width // 2 >= t.ring_from


def _is_shared_sooner(case: Case, rows: int, cols: int) -> bool:
    """RMSNorm's with a residual, where they are many."""
    t, size = in_force.thresholds(), case.dtype.itemsize
    summed = case.op == "rms_norm" and case.residual is not None
    return summed and cols >= t.summed_turns_shared_from[size == 4] and rows * cols * size // 2 >= t.many_elements


def _schedule_of_odd(case: Case, rows: int, cols: int, width: int) -> str:
    """In turns, if they are not too short for that; and shared, if they are wide."""
    t, size = in_force.thresholds(), case.dtype.itemsize
    least = t.turns_from_bytes if case.residual is None else t.summed_turns_from_bytes
    short = cols % 2 and any(size == each and first <= cols <= last for each, first, last in t.turns_short)
    if width < least and not short:
        return "tile"
    if _has_ring(case, rows, width) or _has_centred_ring(case, rows, width):
        return "ring_turns"
    if cols <= _most_alone(case, size):
        return "split_turns" if _is_shared_sooner(case, rows, cols) else "turns"
    centred = t.centred_single_turns_shared if cols % 2 and size == 2 else t.centred_turns_shared
    shared = centred if case.op == "layer_norm" else t.turns_shared
    return "split_turns" if cols <= shared[-1][0] else "split"


def streaming() -> Any:
    """Thresholds under which every row is too wide for a tile, and for as many programs as can cooperate."""
    now = in_force.thresholds()
    changes: dict[str, Any] = {"few_rows": 0, "held_per_sm": 0, "ring_from": 1 << 30, "odd_shared_from": 1 << 30}
    changes["held_sums"] = ()
    empty = ("turns_shared", "turns_shared_few", "centred_turns_shared", "centred_single_turns_shared")
    empty += ("backward_few", "centred_backward_few", "summed_backward_few")
    changes |= dict.fromkeys(empty, ())
    by_kind = ("threads_backward_tiles", "paired_between", "turns_of_16_bits_between", "backward_between_sectors")
    by_kind += ("eights_of_16_bits_between", "eights_of_fp32_between")
    for name in (entry.name for entry in fields(now)):
        value = getattr(now, name)
        if name in by_kind:
            changes[name] = ((), (), ())
        elif name.endswith("_tiles"):
            changes[name] = (replace(value[0], cols=1),)
        elif name.endswith("_between"):
            changes[name] = ()
        elif name.endswith(("_tile", "_cluster")) or ("_slice" in name and name != "many_slices"):
            changes[name] = replace(value, cols=1, programs_per_sm=0)
    return in_force.override(**changes)


@contextmanager
def on_schedule(case: Case, tensors: Tensors) -> Iterator[Explanation]:
    """Backward too must run inside: it is planned when it is first called."""
    with streaming() if case.schedule == "stream" else nullcontext():
        plan = explained(case, tensors)
        assert plan.forward is not None and plan.backward is not None, str(plan)
        held = AS_OTHERS.get(plan.forward.schedule, plan.forward.schedule)
        assert (held, plan.backward.schedule) == (case.schedule, backward_schedule(case)), str(plan)
        assert not plan.copies
        yield plan


def ours(case: Case) -> Run:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
        result = getattr(onepass, case.op)(x, weight, bias, residual=residual, **case.options)
        return result if isinstance(result, tuple) else (result, None)

    return run


def differentiated(run: Run, tensors: Tensors) -> dict[str, Tensor]:
    """y, the sum, and the gradient of each input there is, by name."""
    names = ("x", "weight", "bias", "residual")
    given = zip(names, tensors[:4], strict=True)
    leaves = {name: None if tensor is None else tensor.detach().clone().requires_grad_() for name, tensor in given}
    y, total = run(*leaves.values())
    outputs, upstream = ([y], [tensors.dy]) if total is None else ([y, total], [tensors.dy, tensors.dsum])
    wanted = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    gradients = torch.autograd.grad(outputs, list(wanted.values()), upstream)
    results = {"y": y.detach()} | ({} if total is None else {"sum": total.detach()})
    return results | {f"d{name}": gradient for name, gradient in zip(wanted, gradients, strict=True)}


def widened(tensors: Tensors) -> Tensors:
    return tensors._replace(
        **{name: tensor.double() for name, tensor in tensors._asdict().items() if tensor is not None}
    )


def with_rows(case: Case, rows: int) -> Case:
    return replace(case, shape=(rows, *case.shape[1:]))
