"""Inductor calls our ops (graph_ops.py; FP8's, ops.py) as the Python functions that they are, not by the dispatcher.

The dispatcher takes nearly as long for such an op as our whole launch does. So where inductor writes a graph down as
Python, the call that it writes down is that of the function, which hangs on the op: a graph that PyTorch kept on disk
finds it there, as soon as the op is defined. Graphs in C++ have the op. What is private to inductor here is looked at
with care: where it is not as we know it, the op stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

#: The attribute of an op that has the function.
FUNCTION = "function_itself"

_functions: dict[Any, Callable[..., Any]] = {}


def calls_directly(op: Any, function: Callable[..., Any]) -> None:
    """`function` is what the op does, on every device that it has."""
    setattr(op, FUNCTION, function)
    _functions[op] = function


def register_lowerings() -> None:
    """To be called by the ops' fakes: when a graph is traced, inductor is there, if it is what the graph is for."""
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None:
        return
    for op in list(_functions):
        del _functions[op]
        if hasattr(lowering, "register_lowering") and hasattr(lowering, "fallback_handler"):
            lowering.register_lowering(op, type_promotion_kind=None)(_lowering(op, lowering.fallback_handler(op)))


def _lowering(op: Any, fall_back: Callable[..., Any]) -> Callable[..., Any]:
    def lower(*args: Any, **kwargs: Any) -> Any:
        outputs = fall_back(*args, **kwargs)
        node = _node_of(outputs)
        if getattr(node, "op_overload", None) is op and not _in_cpp():
            node.python_kernel_name = f"{node.python_kernel_name}.{FUNCTION}"
        return outputs

    return lower


def _in_cpp() -> bool:
    from torch._inductor.virtualized import V

    return bool(V.graph.cpp_wrapper) or bool(getattr(V.graph, "fx_wrapper", False))


def _node_of(outputs: Iterable[Any]) -> Any:
    """The node that all outputs come from."""
    first = next(iter(outputs), None)
    while first is not None and not hasattr(first, "inputs"):
        first = getattr(first, "data", None)
    inputs = getattr(first, "inputs", None)
    return inputs[0] if inputs else None
