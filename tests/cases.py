"""What tests call onepass with: variants of the options, inputs, and thresholds that lead to each schedule."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import onepass
from onepass.explain import Explanation
from onepass.plan import in_force
from onepass.plan.thresholds import Thresholds
from onepass.plan.tiles import Tile

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
OPS = ("rms_norm", "layer_norm")

#: What a program has of a row that it shares, by name.
FORWARD_SLICES = (
    "forward_slice", "centred_forward_slice", "summed_slice", "odd_forward_slice", "half_odd_forward_slice",
    "odd_fp32_slice", "odd_centred_fp32_slice",
)  # fmt: skip

#: Odd addresses have tiles of their own, by columns; and an fp32 sum one for wide rows.
_NO_ODD_TILES: dict[str, object] = {
    "odd_forward_tiles": (),
    "odd_centred_forward_tiles": (),
    "odd_backward_tiles": (),
    "odd_centred_backward_tiles": (),
    "half_odd_backward_tiles": (),
    "half_odd_short_tile": Tile(0, 1, 1),
    "odd_centred_wide_short_tile": Tile(0, 1, 1),
    "eights_backward_tiles": (),
    "eights_of_16_bits_between": ((), (), ()),
    "eights_of_fp32_between": ((), (), ()),
    "half_odd_wide_from": 1 << 30,
    "backward_between_sectors": ((), (), ()),
    "backward_short": (),
    "summed_backward_short": (),
    "centred_backward_short": (),
    "centred_fp32_backward_short": (),
    "turns_from_bytes": 1 << 30,
    "turns_short": (),
    "summed_turns_from_bytes": 1 << 30,
    "odd_summed_between": (),
    "odd_fp32_between": (),
    "odd_summed_fp32_between": (),
    "odd_centred_fp32_between": (),
    "single_between": (),
    "single_centred_between": (),
    "paired_between": ((), (), ()),
    "paired_plain_between": (),
    "half_plain_between": (),
    "centred_eights_between": (),
    "centred_fp32_eights_between": (),
    "centred_eights_in_turns_from": (1 << 30, 1 << 30),
    "summed_turns_shared_from": (1 << 30, 1 << 30),
    "plain_fp32_between": (),
    "summed_fp32_between": (),
    "wide_forward_tile": Tile(0, 1, 1),
}

_NO_TILES = {
    "forward_tiles": (),
    "centred_forward_tiles": (),
    "wide_centred_tiles": (),
    "late_centred_between": (),
    "centred_fp32_between": (),
    "plain_tiles": (),
    "plain_between": (),
    "short_between": (),
    "short_centred_between": (),
    "summed_between": (),
    "wide_odd_tile": Tile(0, 1, 1),
    "summed_cluster_tiles": (),
    "summed_fp32_cluster_tiles": (),
    "backward_tiles": (),
    "centred_backward_tiles": (),
    "backward_few": (),
    "centred_backward_few": (),
    "summed_backward_few": (),
    "centred_backward_between": (),
    "streams": (),
    "centred_streams": (),
}

_BLOCK_ROWS = {
    "forward_tiles": (Tile(512, 4, 1),),
    "centred_forward_tiles": (Tile(512, 4, 1, block=32),),
    "backward_tiles": (Tile(64, 4, 4, 1), Tile(512, 2, 4, 1, block=32)),
    "centred_backward_tiles": (Tile(64, 4, 4, 1), Tile(512, 2, 4, 1, block=32)),
}

_FULL_FROM = ("block_row_min_rows", "shorter_min_rows", "shortest_min_rows")

#: Thresholds under which small shapes take a schedule. The interpreter's device has two SMs.
SCHEDULES: dict[str, dict[str, object]] = {
    "few": {"few_rows": 8, "few_row": Tile(16384, 1, 1, block=32), "few_columns": ((8, Tile(32, 2, 1)),)},
    "row": {
        "forward_tiles": (Tile(16384, 1, 4),),
        "centred_forward_tiles": (Tile(16384, 1, 4),),
        "backward_tiles": (Tile(16384, 1, 4, 1),),
        "centred_backward_tiles": (Tile(16384, 1, 4, 1),),
    },
    "row in blocks": {
        "forward_tiles": (Tile(16384, 1, 1, block=32, late=0, ahead=0),),
        "centred_forward_tiles": (Tile(16384, 1, 1, block=32, late=0),),
        "backward_tiles": (Tile(16384, 1, 1, 1, block=32),),
        "centred_backward_tiles": (Tile(16384, 1, 1, 1, block=32),),
    },
    "few block rows": {**_BLOCK_ROWS, **dict.fromkeys(_FULL_FROM, 1000)},
    "many block rows": {**_BLOCK_ROWS, **dict.fromkeys(_FULL_FROM, 3)},
    "split": {
        **_NO_TILES,
        **dict.fromkeys(FORWARD_SLICES, Tile(64, 1, 1, 8, block=32, late=3)),
        # Of 16 bits, so it is as many columns of fp32.
        **dict.fromkeys(
            ("summed_slice", "odd_fp32_slice", "odd_centred_fp32_slice"), Tile(128, 1, 1, 8, block=32, late=3)
        ),
        "backward_slice": Tile(64, 1, 1, 2),
        "centred_backward_slice": Tile(64, 1, 1, 2),
    },
    "stream": {
        **_NO_TILES,
        **dict.fromkeys(FORWARD_SLICES, Tile(64, 1, 1, 0)),
        "backward_slice": Tile(64, 1, 1, 0),
        "centred_backward_slice": Tile(64, 1, 1, 0),
        "stream_block": 64,
        "stream_affine": Tile(32, 2, 4, 6),
    },
}
#: A shape that is telling in each schedule: rows do not divide the tile or the programs, columns do not fill a block.
SHAPES = {
    "few": (3, 100),
    "row": (3, 100),
    "row in blocks": (3, 100),
    "few block rows": (5, 48),
    "many block rows": (11, 48),
    "split": (3, 100),
    "stream": (3, 100),
}


def planned(schedule: str) -> AbstractContextManager[Thresholds]:
    changes = {"few_rows": 0} | _NO_ODD_TILES | SCHEDULES[schedule]
    if "backward_tiles" in changes:  # with a residual and without
        changes["summed_backward_tiles"] = changes["backward_tiles"]
    return in_force.override(**changes)


def assert_planned(schedule: str, plan: Explanation) -> None:
    """The planner took the path that a test means to test, in both directions."""
    assert plan.forward is not None and plan.backward is not None, f"not computed by kernels: {plan}"
    kind = schedule if schedule in ("split", "stream") else "tile"
    affine = (plan.problem.weight, plan.problem.bias) != (None, None) and not plan.problem.per_lane
    backward = "few" if schedule == "few" and affine else kind  # of the backward alone, for dx and dW at once
    assert (plan.forward.schedule, plan.backward.schedule) == (kind, backward), str(plan)
    if schedule.startswith("row"):
        assert plan.forward.rows == plan.backward.rows == 1, str(plan)
        several = schedule == "row in blocks"
        assert (plan.forward.blocks > 1, plan.backward.blocks > 1) == (several, several), str(plan)
        assert (plan.forward.ahead is not None) == (several and not plan.problem.quantized)
    if schedule.endswith("block rows"):
        assert plan.forward.rows > 1 and plan.backward.rows > 1, str(plan)
        many = plan.problem.rows >= in_force.thresholds().block_row_min_rows
        assert many == (schedule == "many block rows"), str(plan)
    if schedule == "split":
        assert plan.forward.slices > 1 and plan.backward.slices > 1, str(plan)


@dataclass(frozen=True)
class Case:
    """A call without its tensors: the operation, the dtype of each tensor (None: absent), and the options."""

    op: str = "rms_norm"
    x: torch.dtype = F32
    weight: torch.dtype | None = F32
    bias: torch.dtype | None = None
    residual: torch.dtype | None = None
    per_head: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def of(self, op: str) -> Case:
        return replace(self, op=op)

    @property
    def has_sum(self) -> bool:
        return self.residual is not None or "residual_dtype" in self.options


@dataclass
class Inputs:
    """The tensors of a call, and the gradients that come back to it; `dsum` only where there is a sum."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    dy: Tensor | None = None
    dsum: Tensor | None = None

    def leaves(self, require: str = "x weight bias residual") -> Inputs:
        """Fresh leaves, of which those named in `require` ask for a gradient. Strides stay as they are."""

        def leaf(name: str) -> Tensor | None:
            tensor = getattr(self, name)
            return None if tensor is None else tensor.detach().requires_grad_(name in require.split())

        return replace(self, x=leaf("x"), weight=leaf("weight"), bias=leaf("bias"), residual=leaf("residual"))


def random(*shape: int, dtype: torch.dtype = F32, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return (torch.randn(shape) * scale + shift).to(dtype)


def inputs_of(case: Case, *shape: int, x: Tensor | None = None) -> Inputs:
    """Random tensors for a case; `x` may be handed in, strided as it may be."""
    x = random(*shape, dtype=case.x, shift=0.5) if x is None else x
    affine = x.shape[-2:] if case.per_head else x.shape[-1:]
    made = Inputs(
        x,
        None if case.weight is None else random(*affine, dtype=case.weight, scale=0.5, shift=1.0),
        None if case.bias is None else random(*affine, dtype=case.bias),
        None if case.residual is None else random(*x.shape, dtype=case.residual),
    )
    y, total = call(case, made, shapes_only=True)
    made.dy = random(*x.shape, dtype=y.dtype)
    made.dsum = None if total is None else random(*x.shape, dtype=total.dtype)
    return made


def call(case: Case, inputs: Inputs, shapes_only: bool = False) -> tuple[Tensor, Tensor | None]:
    """y and the sum (None where there is none); on the meta device, where nothing is computed, if `shapes_only`."""
    tensors = [inputs.x, inputs.weight, inputs.bias, inputs.residual]
    if shapes_only:
        tensors = [None if tensor is None else tensor.to("meta") for tensor in tensors]
    x, weight, bias, residual = tensors
    result = getattr(onepass, case.op)(x, weight, bias, residual=residual, **case.options)
    return result if case.has_sum else (result, None)


def explained(case: Case, inputs: Inputs) -> Explanation:
    return onepass.explain(
        inputs.x, inputs.weight, inputs.bias, op=case.op, residual=inputs.residual, **case.options
    )  # fmt: skip


#: Every option at least once, and the dtypes mixed in pairs rather than in all combinations.
VARIANTS: dict[str, Case] = {
    "plain": Case(weight=None),
    "weight": Case(),
    "weight and bias": Case(bias=F32),
    "bias alone": Case(weight=None, bias=F32),
    "offset": Case(bias=F16, options={"offset": 1.0}),
    "residual": Case(bias=F32, residual=F32, options={"eps": 1e-3}),
    "bf16": Case(x=BF16, weight=BF16, bias=BF16),
    "bf16 with fp32 weight": Case(x=BF16),
    "bf16 with fp32 residual": Case(x=BF16, weight=BF16, residual=F32),
    "bf16 with bf16 residual": Case(x=BF16, weight=BF16, residual=BF16),
    "fp32 with bf16 residual": Case(weight=BF16, residual=BF16),
    "fp16": Case(x=F16, weight=F16, bias=F16, residual=F16),
    "round_residual": Case(x=BF16, weight=BF16, residual=BF16, options={"round_residual": True}),
    "llama": Case(x=BF16, weight=BF16, options={"cast": "llama"}),
    "llama with fp32 weight": Case(x=F16, bias=F32, residual=F32, options={"cast": "llama"}),
    "t5": Case(x=BF16, options={"cast": "t5"}),
    "t5 with fp16 weight": Case(weight=F16, residual=F32, options={"cast": "t5"}),
    "gemma": Case(x=BF16, weight=BF16, options={"cast": "gemma", "offset": 1.0}),
    "none": Case(x=F16, weight=F16, bias=F16, residual=F16, options={"cast": "none", "offset": 1.0}),
    "out_dtype": Case(x=BF16, weight=BF16, options={"out_dtype": F32}),
    "residual_dtype": Case(x=BF16, weight=F32, residual=BF16, options={"residual_dtype": F32}),
    "residual_dtype without residual": Case(
        bias=F32, options={"residual_dtype": BF16, "round_residual": True, "out_dtype": F16}
    ),
}  # fmt: skip
