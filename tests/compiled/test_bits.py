"""A row's bits, from the PTX that the compiler makes for an H200: the same from every kernel that a width may have.

What runs is the forward of tile.py, for few rows and for many, by one program or by a cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiled.ptx import Machine
from onepass import reference
from onepass.backward import Backward, Needs
from onepass.forward import FORWARD_TENSORS, Forward
from onepass.plan import in_force
from onepass.plan.plans import Choice, Plan
from onepass.plan.tiles import Tile
from onepass.spec import Norm, Problem
from tolerance import assert_close

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NORMS = {"rms_norm": Norm(False, 1e-6), "layer_norm": Norm(True, 1e-6), "residual": Norm(False, 1e-6)}
#: For how many rows a kernel is planned; two are run.
COUNTS = (2, 200, 20_000)

kinds = pytest.mark.parametrize("kind", NORMS)


def drawn(kind: str, cols: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(cols)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 3 + 1).to(dtype)

    tensors = {"x": random(2, cols), "weight": random(cols)}
    tensors |= {"bias": random(cols)} if kind == "layer_norm" else {}
    return tensors | ({"residual": random(2, cols)} if kind == "residual" else {})


def run(
    made: list[Any], kind: str, tensors: dict[str, torch.Tensor], rows: int, without: str = "nothing"
) -> tuple[Plan, dict[str, torch.Tensor]]:
    """What the kernel for so many rows makes of these two; `without` some of its instructions."""
    x, norm = tensors["x"], NORMS[kind]
    dtypes = {name: each.dtype for name, each in tensors.items()}
    total = dtypes.get("residual")
    cols = x.shape[1]
    problem = Problem(rows, 1, cols, x.dtype, x.dtype, dtypes["weight"], dtypes.get("bias"), total, total)
    like = torch.empty(rows, cols, dtype=x.dtype, device="meta")
    call = Forward(norm, problem, like, None if total is None else like)
    plan = call.plan()
    step = call.step(plan, call.align(True), True)
    step.compiled(call.place.device)
    outputs = {"y": torch.full_like(x, torch.nan), "rstd": torch.full((2,), torch.nan)}
    outputs |= {"mean": torch.full((2,), torch.nan)} if norm.centred else {}
    outputs |= {} if total is None else {"sum": torch.full_like(x, torch.nan)}
    given = [(tensors | outputs).get(name) for name in FORWARD_TENSORS]
    behind = [name for name in step.kernel.function.arg_names[len(step.dtypes) :] if not name.isupper()]
    scalars = [2 if name == "rows" else value for name, value in zip(behind, step.scalars, strict=True)]
    machine = Machine(made[-1].asm["ptx"].replace(without, "//"), plan.warps, plan.slices)
    machine.run(-(-2 // plan.rows) * plan.slices, [*(each for each in given if each is not None), *scalars])
    return plan, outputs


def bits(outputs: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: each.view({2: torch.int16, 4: torch.int32}[each.itemsize]).flatten().tolist()
            for name, each in outputs.items()}  # fmt: skip


def assert_is_the_norm(kind: str, tensors: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    dtype = tensors["x"].dtype
    total = dtype if kind == "residual" else None
    exact, _ = reference.normalize(
        NORMS[kind], tensors["x"], tensors["weight"], tensors.get("bias"), tensors.get("residual"), dtype, total,
        wide=torch.float64,
    )  # fmt: skip
    # Of three standard deviations about 1, x̂ is the difference of numbers not much larger than itself.
    terms = 4 * tensors["weight"].double().abs() + (tensors["bias"].double().abs() if "bias" in tensors else 0)
    assert_close("y", outputs["y"], exact, terms, [] if total is None else [dtype])


@kinds
@pytest.mark.parametrize(
    ("cols", "dtype"),
    [(640, BF16), (5888, F16), (8192, BF16), (3000, F32)],
)
def test_every_kernel_of_a_width_gives_a_row_the_same_bits(compiled, kind, cols, dtype):
    tensors = drawn(kind, cols, dtype)
    plans, found = zip(*(run(compiled, kind, tensors, rows) for rows in COUNTS), strict=True)
    assert len({replace(plan, programs=0) for plan in plans}) > 1
    for outputs in found:
        assert bits(outputs) == bits(found[0])
    assert_is_the_norm(kind, tensors, found[0])


@kinds
@pytest.mark.parametrize(
    ("chains", "cols", "dtype", "tile"),
    [
        (4, 960, BF16, Tile(1920, 1, 1, block=256)),
        (2, 1000, BF16, Tile(2000, 8, 4, block=256)),
        (2, 5888, F16, Tile(11_776, 1, 4, block=512)),
        (4, 14_400, BF16, Tile(28_800, 1, 8, block=2048, narrows=False)),
    ],
)
def test_few_rows_have_a_warp_for_each_chain_and_the_bits_of_many(compiled, kind, chains, cols, dtype, tile):
    tensors = drawn(kind, cols, dtype)
    with in_force.force("forward", Choice("tile", replace(tile, chains=chains))):
        plans, found = zip(*(run(compiled, kind, tensors, rows) for rows in COUNTS[::2]), strict=True)
    few, many = plans[0], plans[-1]
    assert few.chains == 1 and many.chains == chains
    assert few.warps * few.slices == chains * (many.warps if many.rows == 1 else 1)
    for outputs in found:
        assert bits(outputs) == bits(found[0])
    assert_is_the_norm(kind, tensors, found[0])


def test_bits_tell_sums_of_another_order_apart(compiled):
    """Else the tests above could not fail."""
    found = []
    for chains in (1, 2, 4):
        found.append([])
        for cols in (3600, 4000):
            with in_force.force("forward", Choice("tile", Tile(2 * cols, 1, 4, block=512, chains=chains))):
                outputs = run(compiled, "layer_norm", drawn("layer_norm", cols, F32), 2)[1]
            found[-1].append(bits({name: outputs[name] for name in ("mean", "rstd")}))
    assert found[0] != found[1] and found[1] != found[2] and found[2] != found[0]


def test_a_barrier_that_is_missing_shows(compiled):
    with pytest.raises(AssertionError, match="while another warp has"):
        run(compiled, "layer_norm", drawn("layer_norm", 8192, BF16), 200, without="bar.sync")


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "dtype", "together"),
    [
        ("rms_norm", 5, 3072, BF16, 1),
        ("layer_norm", 5, 4096, BF16, 1),
        ("layer_norm", 5, 2000, F32, 1),
        ("rms_norm", 3000, 5120, BF16, 1),
        ("layer_norm", 3000, 4088, BF16, 2),
        ("layer_norm", 3000, 4096, BF16, 1),
        ("layer_norm", 3000, 8192, BF16, 1),
        ("layer_norm", 9000, 896, BF16, 2),
        ("layer_norm", 9000, 768, BF16, 1),
    ],
)
def test_gradients_of_the_machine_code_are_those_of_the_definition(compiled, kind, rows, cols, dtype, together):
    """With what is planned for so many rows, of which five are there: one row or two in a program, one sum or two."""
    norm, there = NORMS[kind], 5
    torch.manual_seed(rows)
    tensors = {name: torch.randn(there, cols).to(dtype) for name in ("dy", "x")} | {
        "weight": torch.randn(cols).to(dtype)
    }
    bias = dtype if norm.centred else None
    problem = Problem(rows, 1, cols, dtype, dtype, dtype, bias)
    needs = Needs(True, False, True, norm.centred)
    dense = (cols, 1)
    call = Backward(norm, problem, (rows, cols), torch.device("meta"), (dense, None, dense), needs)
    plan = call.plan()
    steps, partial_rows, _ = call.steps(plan, call.align(True))
    step = steps[0]
    assert step.constants["WARPS"] == plan.warps > 1 and plan.rows == together
    step.compiled(call.place.device)
    leaves = {name: tensors[name].double().requires_grad_() for name in ("x", "weight")}
    zeros = torch.zeros(cols, dtype=torch.float64, requires_grad=True)
    y, _ = reference.normalize(norm, leaves["x"], leaves["weight"], zeros if bias else None, None, torch.float64, None,
                               wide=torch.float64)  # fmt: skip
    y.backward(tensors["dy"].double())
    x = tensors["x"].double()
    mean = x.mean(1) if norm.centred else torch.zeros(there, dtype=torch.float64)
    rstd = torch.rsqrt((x - mean[:, None]).square().mean(1) + norm.eps)
    sums = (partial_rows, cols) if partial_rows else (cols,)
    given = {
        "dy": tensors["dy"], "h": tensors["x"], "weight": tensors["weight"], "mean": mean.float(), "rstd": rstd.float(),
        "dx": torch.full((there, cols), torch.nan, dtype=dtype),
        "dweights": torch.full(sums, torch.nan), "dbiases": torch.full(sums, torch.nan),
        "dweight": torch.full(sums, torch.nan, dtype=dtype), "dbias": torch.full(sums, torch.nan, dtype=dtype),
    }  # fmt: skip
    behind = [name for name in step.kernel.function.arg_names[len(step.dtypes) :] if not name.isupper()]
    scalars = [there if name == "rows" else value for name, value in zip(behind, step.scalars, strict=True)]
    present = [given[name] for name, each in zip(step.names, step.dtypes, strict=True) if each is not None]
    programs = step.plan.programs - (rows - there) if plan.schedule == "few" else there  # those that have a row
    Machine(compiled[0].asm["ptx"], plan.warps).run(programs, [*present, *scalars])
    terms = 64.0  # is more than the sum of any of them
    assert_close("dx", given["dx"], leaves["x"].grad.to(dtype), terms)
    partial = {"weight": "dweights", "bias": "dbiases"}
    for name, exact in (("weight", leaves["weight"].grad), ("bias", zeros.grad)):
        if exact is not None:
            got = given[partial[name]][:programs].sum(0) if partial_rows else given[f"d{name}"]
            assert_close(name, got, exact.to(got.dtype), terms)
