"""What is computed (`Norm`) and on what (`Problem`): frozen, hashable, free of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Accepted spellings of `cast`, and the rounding order each one names. `gemma` is Liger's word for `output`.
CASTS = {"output": "output", "gemma": "output", "llama": "llama", "t5": "t5", "none": "none"}

#: The dtypes that every tensor of a call may have, each on its own.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Norm:
    """The mathematics of a normalization; docs/semantics.md says it in formulas, reference.py in PyTorch."""

    centred: bool
    eps: float
    offset: float = 0.0
    cast: str = "output"
    round_residual: bool = False
    identity: bool = False  # nothing is normalized: for quantization alone

    def x_hat_dtype(self, x: torch.dtype, weight: torch.dtype | None) -> torch.dtype | None:
        """The dtype to which x̂ is rounded before the weight meets it; None: it stays in fp32."""
        if self.cast in ("llama", "none"):
            return x
        if self.cast == "t5" and weight in (torch.float16, torch.bfloat16):
            return weight
        return None

    def narrow_dtype(self, x: torch.dtype) -> torch.dtype | None:
        """The dtype to which every intermediate is rounded; None: all of them are fp32."""
        return x if self.cast == "none" else None

    def output_dtype(self, x: torch.dtype, weight: torch.dtype | None) -> torch.dtype:
        """What the model's own class returns: `llama` multiplies in PyTorch's promoted dtype, `t5` in the weight's."""
        if weight is not None and self.cast == "llama":
            return torch.promote_types(x, weight)
        if weight is not None and self.cast == "t5":
            return weight
        return x


@dataclass(frozen=True)
class Problem:
    """Sizes and dtypes of one call. Rows come in `lanes`: (rows, lanes, cols) with a stride of its own for each.

    Lanes are heads where the weight is per head (`per_lane`), else the second level of a strided tensor; a plain
    tensor has one lane. The dtype of what a call does not have is None.
    """

    rows: int
    lanes: int
    cols: int
    x: torch.dtype
    y: torch.dtype
    weight: torch.dtype | None = None
    bias: torch.dtype | None = None
    residual: torch.dtype | None = None
    sum: torch.dtype | None = None
    per_lane: bool = False
    quantized: str | None = None  # the scaling of an FP8 output
    group: int = 1  # columns that share an FP8 scale, which no block may cut
    dense: bool = False  # each row begins where the last one ends, in every tensor
    walked: bool = False  # programs are not to share a row, however wide it is
    turns: int = 1  # after so many rows one begins as far from 16 bytes again, where a backward may make use of it
    sector_turns: int = 1  # and as far from 32, what the L2 hands out

    @property
    def h(self) -> torch.dtype:
        """The dtype of what is normalized, as the backward finds it in memory."""
        return self.x if self.sum is None else self.sum
