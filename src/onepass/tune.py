"""onepass.tune: search for the fastest plan of a problem on this GPU, and keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from onepass.checks import Options, checked
from onepass.explain import EPS
from onepass.route import DIRECT, route_of

if TYPE_CHECKING:
    from onepass.plan.table import Entry

DIRECTIONS = ("forward", "backward")


def tune(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    op: str = "rms_norm",
    residual: Tensor | None = None,
    directions: tuple[str, ...] = DIRECTIONS,
    again: bool = False,
    progress: Callable[[str, int, int], None] = lambda direction, done, of: None,
    **options: Any,
) -> list[Entry]:
    """Time what this problem's kernels could be on this GPU, and keep the fastest for every later call, on disk too.

    A problem is the columns, the dtypes and the options; the number of rows is what it is timed with. It compiles every
    candidate, which takes a while. What is known already is left alone, unless `again`, and so are backwards of few
    rows, which are planned by their number. Returns what was found.

    Args:
        x, weight, bias, residual, options: as for `rms_norm` and `layer_norm`.
        op: "rms_norm" or "layer_norm".
        directions: "forward", "backward" or both.
        progress: called with the direction, the number of candidates tried, and how many there are.

    Example:
        >>> import torch, onepass
        >>> onepass.tune(torch.randn(4, 64))
        Traceback (most recent call last):
        ValueError: x must be a plain tensor on a CUDA GPU to tune for, not on cpu
    """
    if op not in EPS:
        raise ValueError(f"op must be one of {', '.join(map(repr, EPS))}, not {op!r}")
    for direction in directions:
        if direction not in DIRECTIONS:
            raise ValueError(f"directions must be of {', '.join(map(repr, DIRECTIONS))}, not {direction!r}")
    asked = Options(**({"centred": op == "layer_norm", "eps": EPS[op]} | options))
    checked(asked, x, weight, bias, residual)
    if route_of(x, weight, bias, residual) is not DIRECT or not x.is_cuda:
        raise ValueError(f"x must be a plain tensor on a CUDA GPU to tune for, not on {x.device}")
    if x.numel() == 0:
        raise ValueError("x must have rows to tune with, not none")
    from onepass.search import search

    return search(asked, x, weight, bias, residual, directions, progress, again)
