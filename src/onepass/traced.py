"""While torch.compile traces a graph, the ops of ops.py become the leaner ones of graph_ops.py.

An exported program keeps them as they are: it is not for one GPU alone, and is to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode


def replace_in_graphs(name: str, by: Callable[..., tuple[Tensor, ...]]) -> None:
    """While a graph is traced, `by` takes the place of the op."""

    def rule(mode: Any, op: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        foreign = [kind for kind in types if kind not in (Tensor, FunctionalTensor)]
        if foreign or _exporting():
            return mode.__torch_dispatch__(op, types, args, kwargs)
        with mode:
            return by(*args, **kwargs)

    torch.library.register_torch_dispatch(name, FunctionalTensorMode, rule)


def _exporting() -> bool:
    from torch.export._trace import custom_triton_ops_decomposition_disabled

    return custom_triton_ops_decomposition_disabled()
