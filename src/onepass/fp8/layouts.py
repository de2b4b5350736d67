"""How a matrix of scales lies in memory: row by row, transposed for TMA, or in the tiles that MX GEMMs read."""

from __future__ import annotations

import torch
from torch import Tensor

#: TMA wants rows of 16 bytes: four fp32 scales.
TMA_ROWS = 4

#: An MX GEMM reads scales in tiles of 128 rows and 4 groups; a tile is four slabs of 32 rows, interleaved.
TILE_ROWS, TILE_GROUPS, SLAB_ROWS = 128, 4, 32


def round_up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple


def lay_out(scale: Tensor, layout: str) -> Tensor:
    """Scales (rows, groups) as the layout has them. "row" and "tma" keep the shape, "swizzled" pads it."""
    if layout == "tma":
        return _transposed_for_tma(scale)
    if layout == "swizzled":
        return _swizzled(scale)
    return scale.contiguous()


def row_major(scale: Tensor, layout: str, rows: int, groups: int) -> Tensor:
    """The way back: scales (rows, groups), whatever the layout was."""
    return _unswizzled(scale)[:rows, :groups] if layout == "swizzled" else scale.reshape(rows, groups)


def _transposed_for_tma(scale: Tensor) -> Tensor:
    """(rows, groups) with strides (1, rows rounded up to 4). What lies between is padding: no index reaches it."""
    rows, groups = scale.shape
    padded = scale.new_zeros(groups, round_up(rows, TMA_ROWS))
    padded[:, :rows] = scale.t()
    return padded.t()[:rows]


def _swizzled(scale: Tensor) -> Tensor:
    """Row r, group g of a tile lies at byte 16·(r mod 32) + 4·(r div 32) + g; tiles follow row by row.

    The shape is the padded one, which a GEMM does not look at. Padding is 0, which is the scale 2⁻¹²⁷.
    """
    rows, groups = scale.shape
    high, wide = round_up(rows, TILE_ROWS), round_up(groups, TILE_GROUPS)
    padded = torch.zeros(high, wide, dtype=torch.uint8, device=scale.device)
    padded[:rows, :groups] = scale.view(torch.uint8)
    slabs = TILE_ROWS // SLAB_ROWS
    tiles = padded.view(high // TILE_ROWS, slabs, SLAB_ROWS, wide // TILE_GROUPS, TILE_GROUPS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(high, wide).view(scale.dtype)


def _unswizzled(scale: Tensor) -> Tensor:
    high, wide = scale.shape
    slabs = TILE_ROWS // SLAB_ROWS
    tiles = scale.view(torch.uint8).view(high // TILE_ROWS, wide // TILE_GROUPS, SLAB_ROWS, slabs, TILE_GROUPS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(high, wide).view(scale.dtype)
