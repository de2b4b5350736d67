"""The backward rule, and the autograd.Function around raw launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onepass.backward import Backwards, Gradients, Needs, Wanted, handed_out, needs_of
from onepass.forward import Forward

SECOND_DERIVATIVE = (
    "onepass has no second derivative on a GPU: compute it on the CPU, where calls are plain PyTorch, or use "
    "torch.nn.functional for this layer"
)

Maybe = Tensor | None


def gradients_of(
    launch: Callable[[Needs], Gradients],
    dy: Maybe,
    dsum: Maybe,
    x: torch.dtype,
    residual: torch.dtype | None,
    wanted: Wanted,
) -> Gradients:
    """Gradients of x, weight, bias and residual; `wanted` says which, `launch` computes what needs a kernel."""
    if dy is None:  # only the sum was used: its gradient passes straight through
        dx = dsum.to(x) if wanted[0] and dsum is not None else None
        dresidual = dsum.to(residual) if wanted[3] and dsum is not None and residual is not None else None
        return dx, None, None, dresidual
    return handed_out(wanted, launch(needs_of(wanted, x, residual)))


class NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Forward, x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe) -> Any:
        y, total, mean, rstd = call(x, weight, bias, residual, True)
        ctx.backwards = call.backwards
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if total is None else total, weight, mean, rstd)
        return y if total is None else (y, total)

    @staticmethod
    def backward(ctx: Any, dy: Maybe, dsum: Maybe = None) -> Any:
        return None, *_backward(ctx, ctx.needs_input_grad[1:], dy, dsum)


class QuantizedNormFunction(torch.autograd.Function):
    """The same for an FP8 output, which gradients do not see: they come through what it was made from."""

    @staticmethod
    def forward(
        ctx: Any, call: Any, fp8: Any, made: list[Any], x: Tensor, weight: Maybe, bias: Maybe, residual: Maybe
    ) -> Any:
        """Appends the result, as it is before autograd looks at it, to `made`."""
        result, mean, rstd = call(x, weight, bias, residual, True, fp8)
        made.append(result)
        y, total = result.unquantized, result.residual
        ctx.backwards = call.backwards
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if total is None else total, weight, mean, rstd)
        y = call.straight().detach() if y is None else y
        return y if total is None else (y, total)

    @staticmethod
    def backward(ctx: Any, dy: Maybe, dsum: Maybe = None) -> Any:
        return None, None, None, *_backward(ctx, ctx.needs_input_grad[3:], dy, dsum)


def _backward(ctx: Any, wanted: Wanted, dy: Maybe, dsum: Maybe) -> Any:
    h, weight, mean, rstd = ctx.saved_tensors
    backwards: Backwards = ctx.backwards
    if dy is not None and not torch.is_grad_enabled():
        # What gradients_of does below, by the shortest way: the engine runs this in a thread where nothing is warm.
        backward = backwards.wanting(wanted, dy, dsum, h)
        return handed_out(wanted, backward(dy, dsum, h, weight, mean, rstd))

    def launch(needs: Needs) -> Gradients:
        assert dy is not None
        return backwards(dy, dsum, h, needs)(dy, dsum, h, weight, mean, rstd)

    problem = backwards.problem
    with torch.no_grad():
        results = gradients_of(launch, dy, dsum, problem.x, problem.residual, wanted)
    if not torch.is_grad_enabled():
        return results
    sources = [tensor for tensor in (dy, dsum, h, weight) if tensor is not None]  # create_graph=True
    return _Refusal.apply(len(sources), *sources, *results)


#: `NormFunction.apply` without what it does for functorch's sake, for callers who know that no transform is active.
apply_directly = super(torch.autograd.Function, NormFunction).apply


class _Refusal(torch.autograd.Function):
    """Hands gradients on, and answers whoever differentiates them again."""

    @staticmethod
    def forward(ctx: Any, sources: int, *tensors: Maybe) -> Any:
        return tuple(None if tensor is None else tensor.view_as(tensor) for tensor in tensors[sources:])

    @staticmethod
    def backward(ctx: Any, *gradients: Maybe) -> Any:
        raise RuntimeError(SECOND_DERIVATIVE)
