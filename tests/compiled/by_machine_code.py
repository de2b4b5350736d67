"""A norm and its gradients by what the compiler makes for an H200, run by NumPy, and held against the definition."""

from __future__ import annotations

from typing import Any

import torch

from cases import Case, Inputs
from compiled.ptx import Machine
from onepass import reference
from onepass.backward import Backward, Needs
from onepass.forward import FORWARD_TENSORS, Forward
from onepass.plan.plans import Plan
from onepass.spec import Norm, Problem
from oracle import magnitudes
from tolerance import assert_close

NOTHING = float("nan")


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).add(0.5).to(dtype)


def normalized(
    made: list[Any], norm: Norm, rows: int, cols: int, dtype: torch.dtype, residual: bool = False, late: bool = True
) -> Plan:
    """Runs a forward. `made`: kernels as they are compiled."""
    generator = torch.Generator().manual_seed(cols)
    total, bias = dtype if residual else None, dtype if norm.centred else None
    problem = Problem(rows, 1, cols, dtype, dtype, dtype, bias, total, total)
    like = torch.empty(rows, cols, dtype=dtype, device="meta")
    call = Forward(norm, problem, like, like if residual else None)
    plan = call.plan()
    step = call.step(plan, call.align(True), True)
    step.compiled(call.place.device)
    inputs = {"x": drawn(generator, dtype, rows, cols), "weight": drawn(generator, dtype, cols)}
    inputs |= {"bias": drawn(generator, dtype, cols)} if bias else {}
    inputs |= {"residual": drawn(generator, dtype, rows, cols)} if residual else {}
    outputs = {"y": torch.full((rows, cols), NOTHING, dtype=dtype), "rstd": torch.full((rows,), NOTHING)}
    outputs |= {"mean": torch.full((rows,), NOTHING)} if norm.centred else {}
    outputs |= {"sum": torch.full((rows, cols), NOTHING, dtype=dtype)} if residual else {}
    given = [each for name in FORWARD_TENSORS if (each := (inputs | outputs).get(name)) is not None]
    Machine(made[-1].asm["ptx"], plan.warps, late=late).run(plan.programs, [*given, *step.scalars])

    exact, total_exact = reference.normalize(
        norm, inputs["x"], inputs["weight"], inputs.get("bias"), inputs.get("residual"), dtype, total,
        wide=torch.float64,
    )  # fmt: skip
    terms = 4 * inputs["weight"].double().abs() + inputs.get("bias", torch.zeros(1)).double().abs()
    assert_close("y", outputs["y"], exact, terms, [dtype] if residual else [])
    h = inputs["x"].double()
    if residual:
        assert total_exact is not None
        assert_close("sum", outputs["sum"], total_exact, 8.0)
        h = h + inputs["residual"].double()
    mean = h.mean(1) if norm.centred else torch.zeros(rows)
    rstd = torch.rsqrt((h - mean[:, None]).square().mean(1) + norm.eps)
    assert_close("rstd", outputs["rstd"], rstd.float(), 2 * rstd)
    if norm.centred:
        assert_close("mean", outputs["mean"], mean.float(), h.abs().mean(1))
    return plan


def gradients(
    made: list[Any],
    norm: Norm,
    rows: int,
    cols: int,
    dtype: torch.dtype,
    bias: bool = False,
    residual: bool = False,
    late: bool = True,
    without: str = "nothing",
) -> Plan:
    """Runs all that a backward launches; `without`: but for some instructions."""
    bias |= norm.centred
    total = dtype if residual else None
    problem = Problem(rows, 1, cols, dtype, dtype, dtype, dtype if bias else None, total, total)
    dense = (cols, 1)
    strides = (dense, dense if residual else None, dense)
    call = Backward(norm, problem, (rows, cols), torch.device("meta"), strides, Needs(True, False, True, bias))
    plan = call.plan()
    steps, partial_rows, words = call.steps(plan, call.align(True))

    generator = torch.Generator().manual_seed(rows)
    dy, h, dsum = (drawn(generator, dtype, rows, cols) for _ in range(3))
    weight = drawn(generator, dtype, cols)
    leaves = {"dx": h.double().requires_grad_(), "dweight": weight.double().requires_grad_()}
    leaves["dbias"] = torch.zeros(cols, dtype=torch.float64, requires_grad=True)
    y, _ = reference.normalize(norm, leaves["dx"], leaves["dweight"], leaves["dbias"], None, torch.float64, None,
                               wide=torch.float64)  # fmt: skip
    y.backward(dy.double())
    exact = {name: leaf.grad for name, leaf in leaves.items() if name != "dbias" or bias}
    if residual:
        exact["dx"] = exact["dx"] + dsum.double()

    mean = h.double().mean(1) if norm.centred else torch.zeros(rows, dtype=torch.float64)
    rstd = torch.rsqrt((h.double() - mean[:, None]).square().mean(1) + norm.eps)
    given = {
        "dy": dy, "dsum": dsum, "h": h, "weight": weight, "mean": mean.float(), "rstd": rstd.float(),
        "dx": torch.full((rows, cols), NOTHING, dtype=dtype),
        "dweights": torch.full((partial_rows, cols), NOTHING), "dbiases": torch.full((partial_rows, cols), NOTHING),
        "dweight": torch.full((cols,), NOTHING, dtype=dtype), "dbias": torch.full((cols,), NOTHING, dtype=dtype),
        "mailbox": torch.zeros(words, dtype=torch.int64 if norm.centred else torch.int32),
    }  # fmt: skip
    for step in steps:
        step.compiled(call.place.device)
        present = [given[name] for name, each in zip(step.names, step.dtypes, strict=True) if each is not None]
        machine = Machine(made[-1].asm["ptx"].replace(without, "//"), step.plan.warps, late=late)
        machine.run(step.plan.programs, [*present, *step.scalars], together="mailbox" in step.names)
    size = magnitudes(Case("layer_norm" if norm.centred else "rms_norm"),
                      Inputs(h, weight, None, None, dy, dsum if residual else None))  # fmt: skip
    for name, value in exact.items():
        assert_close(name, given[name], value.to(dtype), getattr(size, name))
    return plan
