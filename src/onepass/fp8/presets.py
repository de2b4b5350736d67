"""The options that a kind has by default, and those that reproduce another library's convention.

A preset fills in the options that a call leaves open: an option that is given wins. Each was read from public code:

- "transformer_engine": delayed scaling in its norm kernels; current scaling and 1×128 block scaling by
  `compute_scale_from_amax`; MXFP8 by `quantize_mxfp8_kernel`, with scales swizzled for the GEMM.
- "vllm": `static_scaled_fp8_quant`, `dynamic_scaled_fp8_quant`, `dynamic_per_token_scaled_fp8_quant` and
  `per_token_group_quant_fp8`.
- "deepgemm": `per_token_cast_to_fp8`, with UE8M0 unless `power_of_two=False`; scales transposed and aligned for TMA.

docs/fp8.md names the files, what is not reproduced, and what is not certain.
"""

from __future__ import annotations

from typing import Any

#: The kinds of scaling, with what shares one scale.
SCALINGS = {
    "static": "the tensor, by a scale that is given",
    "delayed": "the tensor, by a multiplier that is given; its amax is merged into a tensor that is given",
    "tensor": "the tensor",
    "token": "a row",
    "block": "128 or 64 columns of a row",
    "mx": "32 columns of a row, by a power of two in a byte",
}

#: Kinds that take their scale from the values, and so have a floor, an upper bound and a choice of powers of two.
DYNAMIC = ("tensor", "token", "block")

#: No real row of a normalized tensor is this small, so the floor coarsens nothing; it keeps 448 / amax finite.
FLOOR = 1e-10

#: What every kind has unless a call or a preset says otherwise.
#: - floor 0 for one tensor: an all-zero tensor then has the scale 1, which a GEMM may multiply with any other.
#: - arithmetic "multiplier": one division a group, and none an element.
#: - round_first: the bits are then those of quantizing the norm's own output in a second step.
#:   Not for `delayed`: its amax is that of the fp32 result, and q is made from the same values.
DEFAULTS: dict[str, dict[str, Any]] = {
    "static": {"arithmetic": "inverse", "floor": 0.0, "power_of_two": False, "round_first": True},
    "delayed": {"arithmetic": "multiplier", "floor": 0.0, "power_of_two": False, "round_first": False},
    "tensor": {"arithmetic": "multiplier", "floor": 0.0, "power_of_two": False, "round_first": True},
    "token": {"arithmetic": "multiplier", "floor": FLOOR, "power_of_two": False, "round_first": True},
    "block": {"arithmetic": "multiplier", "floor": FLOOR, "power_of_two": False, "round_first": True},
    "mx": {"arithmetic": "inverse", "floor": 0.0, "power_of_two": True, "round_first": True},
}

#: What a preset changes in the row above, for each kind that the library has.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer_engine": {
        "delayed": {},
        "tensor": {},
        "block": {"power_of_two": True, "floor": 0.0, "layout": "tma"},
        "mx": {"arithmetic": "reciprocal", "layout": "swizzled", "columnwise_order": "rows"},
    },
    "vllm": {
        "static": {},
        "tensor": {"arithmetic": "inverse"},
        "token": {"arithmetic": "scale", "floor": 1 / 512},
        "block": {"arithmetic": "scale", "floor": 1e-10},
    },
    "deepgemm": {
        "block": {"arithmetic": "reciprocal", "power_of_two": True, "floor": 1e-4, "layout": "tma"},
    },
}

#: The formats that each library writes.
PRESET_FORMATS = {
    "transformer_engine": ("e4m3", "e5m2"),
    "vllm": ("e4m3",),
    "deepgemm": ("e4m3",),
}

#: vLLM lifts a scale to 1e-10 before it is rounded up to a power of two: the floor that does this to amax.
VLLM_POWER_OF_TWO_FLOOR = 448e-10


def defaults(scaling: str, like: str | None, power_of_two: bool | None) -> dict[str, Any]:
    """Every option that may be left open, for this kind in this convention."""
    options = {"layout": "row", "columnwise_order": "transposed"} | DEFAULTS[scaling]
    if like is not None:
        options |= PRESETS[like][scaling]
    if like == "vllm" and scaling == "block" and power_of_two:
        options["floor"] = VLLM_POWER_OF_TWO_FLOOR
    return options
