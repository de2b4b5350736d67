"""What a call should give: the reference in fp64 and autograd through it, with the sizes that errors scale with."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from cases import Case, Inputs, call
from onepass import reference
from onepass.checks import Options, checked
from onepass.spec import Norm, Problem
from tolerance import assert_close


@dataclass
class Results:
    y: Tensor | None = None
    total: Tensor | None = None
    dx: Tensor | None = None
    dweight: Tensor | None = None
    dbias: Tensor | None = None
    dresidual: Tensor | None = None


def meant(case: Case, inputs: Inputs) -> tuple[Norm, Problem]:
    """What a case asks for, as the package itself reads it."""
    centred = case.op == "layer_norm"
    options = Options(**({"centred": centred, "eps": 1e-5 if centred else 1e-6} | case.options))
    return checked(options, inputs.x, inputs.weight, inputs.bias, inputs.residual)


def _differentiated(inputs: Inputs, y: Tensor, total: Tensor | None) -> Results:
    outputs = [(y, inputs.dy), (total, inputs.dsum)]
    used = [(output, gradient) for output, gradient in outputs if output is not None and gradient is not None]
    torch.autograd.backward([output for output, _ in used], [gradient for _, gradient in used])
    leaves = (inputs.x, inputs.weight, inputs.bias, inputs.residual)
    gradients = [None if leaf is None else leaf.grad for leaf in leaves]
    return Results(y.detach(), None if total is None else total.detach(), *gradients)


def computed(case: Case, inputs: Inputs, require: str = "x weight bias residual") -> Results:
    """What onepass gives, forward and backward. A gradient of `inputs` that is None is one that nobody sent."""
    leaves = inputs.leaves(require)
    return _differentiated(leaves, *call(case, leaves))


def expected(case: Case, inputs: Inputs, require: str = "x weight bias residual") -> Results:
    norm, problem = meant(case, inputs)
    leaves = inputs.leaves(require)
    y, total = reference.normalize(
        norm, leaves.x, leaves.weight, leaves.bias, leaves.residual,
        problem.y, case.options.get("residual_dtype"), wide=torch.float64,
    )  # fmt: skip
    return _differentiated(leaves, y, total)


def magnitudes(case: Case, inputs: Inputs) -> Results:
    """For each result, the size of the terms it is summed from, in fp64."""
    norm, _ = meant(case, inputs)
    h = inputs.x.double() + (0 if inputs.residual is None else inputs.residual.double())
    deviation = h - h.mean(-1, keepdim=True) if norm.centred else h
    rstd = torch.rsqrt((deviation * deviation).mean(-1, keepdim=True) + norm.eps)
    x_hat = (deviation * rstd).abs()
    # x̂ is the difference of h and its mean: its error scales with the largest h of the row.
    error = h.abs().amax(-1, keepdim=True) * rstd
    weight = torch.ones(()) if inputs.weight is None else (inputs.weight.double() + norm.offset).abs()
    y = error * weight + (0 if inputs.bias is None else inputs.bias.double().abs())
    dsum = 0 if inputs.dsum is None else inputs.dsum.double().abs()
    if inputs.dy is None:
        return Results(y, h.abs(), dsum + torch.zeros_like(h), None, None, dsum + torch.zeros_like(h))
    dy = inputs.dy.double().abs()
    g = dy * weight
    dot = x_hat * (g * error).mean(-1, keepdim=True) + error * (g * x_hat).mean(-1, keepdim=True)
    dx = rstd * (g + dot + g.mean(-1, keepdim=True)) + dsum
    rows = tuple(range(dy.dim() - (2 if case.per_head else 1)))
    dweight, dbias = ((dy * error).sum(rows), dy.sum(rows)) if rows else (dy * error, dy)
    return Results(y, h.abs(), dx, dweight, dbias, dx)


def inner_roundings(case: Case, inputs: Inputs) -> list[torch.dtype]:
    """The narrow dtypes that values are rounded to on the way, each as often as it happens."""
    norm, problem = meant(case, inputs)
    narrow = norm.narrow_dtype(problem.x)
    if narrow is not None:
        # sum, square, mean, + eps, rsqrt, x̂, weight + offset, times weight, plus bias
        return [narrow] * 9
    found = [norm.x_hat_dtype(problem.x, problem.weight), problem.sum]
    return [dtype for dtype in found if dtype is not None and dtype != torch.float32]


def assert_results(case: Case, inputs: Inputs, require: str = "x weight bias residual") -> Results:
    """Run a case forward and backward, and hold every result to the reference."""
    actual, exact = computed(case, inputs, require), expected(case, inputs, require)
    size, inner = magnitudes(case, inputs), inner_roundings(case, inputs)
    for result in fields(Results):
        name = result.name
        assert_close(name, getattr(actual, name), getattr(exact, name), getattr(size, name), inner)
    return actual
