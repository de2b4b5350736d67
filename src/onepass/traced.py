"""Under torch.compile: inductor launches the kernels itself, into buffers that it plans.

An op of the dispatcher takes half of a compiled call of a small tensor. So while a graph is traced, the ops of ops.py
are taken apart into their kernels, as `torch.library.triton_op` does it. Where that cannot be, leaner ops take their
place (graph_ops.py): where a size is symbolic, because the number of rows decides the plan; where programs exchange
sums, must all run at the same time, form clusters, or are in Gluon, which inductor does not know how to launch; where
it cannot tell what a kernel writes, as with blocks that are held packed; where rows would lie over other threads than
in a call that is not compiled, and so have other bits; and where a tensor would be copied or is empty. An exported
program keeps the ops as they are: it is not for one GPU alone, and is to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from onepass.backward import Backward
from onepass.forward import Forward
from onepass.handover import Step
from onepass.plan.compiler import in_language
from onepass.route import INTERPRETED

Maybe = Tensor | None

#: What the kernels may write to.
WRITTEN = {
    "forward": {"p_y", "p_sum", "p_mean", "p_rstd"},
    "backward": {"p_dx", "p_dresidual", "p_dweight", "p_dbias", "p_dweights", "p_dbiases"},
}


def take_apart(name: str, into: Callable[..., tuple[Tensor, ...]]) -> None:
    """While a graph is traced, `into` takes the place of the op."""

    def rule(mode: Any, op: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        foreign = [kind for kind in types if kind not in (Tensor, FunctionalTensor)]
        if foreign or _exporting():
            return mode.__torch_dispatch__(op, types, args, kwargs)
        with mode:
            return into(*args, **kwargs)

    torch.library.register_torch_dispatch(name, FunctionalTensorMode, rule)


def forward(
    build: Callable[[], Forward], x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe, stats: bool
) -> dict[str, Tensor] | None:
    """y, sum, mean and rstd by name, as far as the call has them and wants them; None where it stays an op."""
    if INTERPRETED or not _is_static((x, weight, bias, residual)):
        return None
    with _disable_current_modes():  # what is worked out is no part of the graph
        call = build()
        problem = call.problem
        aligned = _aligned((x, weight, bias, residual))
        align = call.align(aligned)
        step = call.step(call.plan(aligned), align, stats)
        if call.empty or call.copies or not _launchable([step], x.device, "forward"):
            return None
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    made = {"y": (x.shape, problem.y)}
    if problem.sum is not None:
        made["sum"] = (x.shape, problem.sum)
    if stats:
        made |= dict.fromkeys((["mean"] if call.norm.centred else []) + ["rstd"], (x.shape[:-1], torch.float32))
    outputs = {name: torch.empty(shape, dtype=dtype, device=x.device) for name, (shape, dtype) in made.items()}
    _launch([step], tensors | outputs)
    return outputs


def backward(
    build: Callable[[], Backward], dy: Tensor, dsum: Maybe, h: Tensor, weight: Maybe, mean: Maybe, rstd: Tensor
) -> dict[str, Tensor] | None:
    """dx, dresidual, dweight and dbias by name, as far as they are needed; None where it stays an op."""
    if INTERPRETED or not _is_static((dy, dsum, h, weight, mean, rstd)):
        return None
    with _disable_current_modes():
        call = build()
        problem, needs = call.problem, call.needs
        aligned = _aligned((dy, dsum, h, weight))
        align = call.align(aligned)
        steps, partial_rows, mailbox = call.steps(call.plan(aligned), align)
        if call.empty or call.copies or mailbox or not _launchable(steps, h.device, "backward"):
            return None
    tensors = {"dy": dy, "dsum": dsum, "h": h, "weight": weight, "mean": mean, "rstd": rstd}
    affine = h.shape[-2:] if problem.per_lane else h.shape[-1:]
    kinds = (
        ("dx", needs.dx, h.shape, problem.x), ("dresidual", needs.dresidual, h.shape, problem.residual),
        ("dweight", needs.dweight, affine, problem.weight), ("dbias", needs.dbias, affine, problem.bias),
    )  # fmt: skip
    outputs = {
        name: torch.empty(shape, dtype=dtype, device=h.device)
        for name, needed, shape, dtype in kinds
        if needed and dtype is not None
    }
    partials = {
        name + suffix: torch.empty((partial_rows, problem.cols), dtype=torch.float32, device=h.device)
        for name, suffix in (("dweight", "s"), ("dbias", "es"))
        if name in outputs and partial_rows
    }
    _launch(steps, tensors | outputs | partials)
    return outputs


def _launch(steps: Iterable[Step], tensors: Mapping[str, Maybe]) -> None:
    for step in steps:
        pointers = [
            None if dtype is None else tensors[name] for name, dtype in zip(step.names, step.dtypes, strict=True)
        ]
        constants = in_language(step.constants)
        kernel: Any = torch.library.wrap_triton(step.kernel.function)
        kernel[(step.plan.programs,)](*pointers, *step.scalars, **constants, num_warps=step.plan.warps)


def _launchable(steps: Sequence[Step], device: torch.device, direction: str) -> bool:
    apart = all(not step.cooperative and not step.exchanges and step.cluster == 1 for step in steps)
    plain = apart and all(step.plan.registers is None and _lies_as_ever(step) for step in steps)
    plain = plain and not any(step.kernel.gluon for step in steps)
    return plain and all(_writes(step, device) <= WRITTEN[direction] for step in steps)


def _lies_as_ever(step: Step) -> bool:
    """Whether a row lies over the same threads as in our own launches, whose pointers are multiples of ALIGN elements.

    Inductor says of each that it is a multiple of 16 bytes. Of rows that begin elsewhere weight and bias still do, and
    the widest piece of anything that a thread may have decides how all of it lies.
    """
    widest = 16 // min(dtype.itemsize for dtype in step.dtypes if dtype is not None)
    pieces = min(widest, step.plan.block // (32 * step.plan.warps))
    return pieces <= int(step.constants["ALIGN"])


_known_writes: dict[Any, set[str]] = {}


def _writes(step: Step, device: torch.device) -> set[str]:
    """The pointers that PyTorch takes to be written to: all of them, where it does not understand the kernel."""
    key = step.kernel, step.dtypes, tuple(step.constants.items())
    if key not in _known_writes:
        with FakeTensorMode():
            names = [name for name, dtype in zip(step.names, step.dtypes, strict=True) if dtype is not None]
            tensors = [torch.empty(16, dtype=dtype, device=device) for dtype in step.dtypes if dtype is not None]
            function = dispatch_functionalize(
                lambda *given: _launch([step], dict(zip(names, given, strict=True))), FunctionalTensorMode()
            )
            nodes = make_fx(function)(*tensors).graph.nodes
        _known_writes[key] = {name for node in nodes for name in node.kwargs.get("tensors_to_clone", ())}
    return _known_writes[key]


def _is_static(args: Iterable[Any]) -> bool:
    return all(
        type(size) is int for tensor in args if isinstance(tensor, Tensor) for size in (*tensor.shape, *tensor.stride())
    )


def _aligned(tensors: Iterable[Maybe]) -> bool:
    """Inductor sees to it that what a graph is given begins at 16 bytes; a view within it may not."""
    return all(tensor is None or tensor.storage_offset() * tensor.itemsize % 16 == 0 for tensor in tensors)


def _exporting() -> bool:
    from torch.export._trace import custom_triton_ops_decomposition_disabled

    return custom_triton_ops_decomposition_disabled()
