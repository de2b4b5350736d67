"""torch.compile, torch.export and the ops' own promises; and that a new row count compiles nothing anywhere."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import onepass
import onepass.ops
from gpu.cases import CASES, PLAIN, RESIDUAL, Case, differentiated, on_schedule, ours, tensors_of, with_rows
from gpu.exact import DEVICE, assert_same_bits, random_rows, random_weight
from onepass.inductor import FUNCTION
from onepass.plan.launch import compiled_count

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def forgetful_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


#: In turns, the backward, held and shared; and rows of which a launcher that knew less would lay out otherwise.
ODD, SHARED, LAID = (
    next(case for case in CASES if case.name == name)
    for name in ("2,881 columns rms_norm", "20,001 columns", "423 fp32 columns")
)


def plain(x: Tensor, weight: Tensor, bias: None, residual: None) -> tuple[Tensor, None]:
    return onepass.rms_norm(x, weight), None


def with_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    y, total = onepass.layer_norm(x, weight, bias, residual=residual)
    return y, total


@pytest.mark.parametrize(
    ("function", "case"),
    [(plain, PLAIN["one row"]), (plain, PLAIN["split"]), (plain, ODD), (plain, SHARED),
     (plain, LAID), (with_residual, RESIDUAL["block rows"])],
    ids=str,
)  # fmt: skip
def test_a_compiled_step_is_one_graph_with_eagers_bits(function, case: Case) -> None:
    tensors = tensors_of(case)
    with on_schedule(case, tensors):
        expected = differentiated(ours(case), tensors)
        got = differentiated(torch.compile(function, fullgraph=True), tensors)
    assert graphs() == 1
    assert got.keys() == expected.keys()
    for name, result in expected.items():
        assert_same_bits(got[name], result)


@pytest.mark.parametrize("name", ["one row", "split"])
def test_a_compiled_step_is_captured_and_replayed(name: str) -> None:
    """On memory of its own, in which a call may leave nothing behind but its outputs."""
    compiled = torch.compile(plain, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        tensors = tensors_of(PLAIN[name], seed)
        torch.compiler.cudagraph_mark_step_begin()
        got = {name: result.clone() for name, result in differentiated(compiled, tensors).items()}
        for name_of, result in differentiated(ours(PLAIN[name]), tensors).items():
            assert_same_bits(got[name_of], result)


def test_a_compiled_fp8_call_is_captured_and_replayed() -> None:
    weight, fp8 = random_weight(4096, dtype=BF16), onepass.Fp8("tensor")
    compiled = torch.compile(lambda x: onepass.rms_norm(x, weight, quantize=fp8).data, mode="reduce-overhead")
    with torch.no_grad():
        for seed in range(4):
            x = random_rows(67, 4096, dtype=BF16, seed=seed)
            got = compiled(x).clone().view(torch.uint8)
            assert torch.equal(got, onepass.rms_norm(x, weight, quantize=fp8).data.view(torch.uint8))


def test_inductor_calls_the_function_and_not_the_dispatcher() -> None:
    x, weight = random_rows(5, 128, dtype=BF16), random_weight(128, dtype=BF16)
    _, sources = run_and_get_code(torch.compile(onepass.rms_norm, fullgraph=True), x, weight)
    assert f"run_norm.default.{FUNCTION}(" in "".join(sources)


def test_one_dynamic_graph_serves_every_row_count() -> None:
    compiled = torch.compile(with_residual, fullgraph=True, dynamic=True)
    for rows in (5, 7, 300, 4099, 5001):
        case = with_rows(RESIDUAL["block rows"], rows)
        tensors = tensors_of(case)
        with on_schedule(case, tensors):
            got, expected = differentiated(compiled, tensors), differentiated(ours(case), tensors)
        for name, result in expected.items():
            assert_same_bits(got[name], result)
    assert graphs() == 1


def test_a_marked_dimension_is_never_specialized() -> None:
    """`mark_dynamic` refuses a trace that pins the row count down."""
    case = PLAIN["block rows"]
    compiled = torch.compile(plain, fullgraph=True)
    weight = random_weight(128, dtype=BF16)
    for rows in (6, 300, 5001):
        x = random_rows(rows, 128, dtype=BF16)
        with on_schedule(with_rows(case, rows), tensors_of(with_rows(case, rows))):
            torch._dynamo.mark_dynamic(x, 0)
            assert_same_bits(compiled(x, weight, None, None)[0], onepass.rms_norm(x, weight))
    assert graphs() == 1


def test_ops_keep_what_they_promise_torch_library() -> None:
    x, residual = random_rows(9, 128, dtype=BF16), random_rows(9, 128, dtype=BF16, seed=1)
    weight, bias = random_weight(128, dtype=BF16), random_rows(128, dtype=BF16, seed=2)
    dy, dsum = random_rows(9, 128, dtype=BF16, seed=3), random_rows(9, 128, dtype=BF16, seed=4)
    plan = onepass.explain(x, weight, bias, op="layer_norm", residual=residual)
    assert plan.forward is not None and plan.forward.schedule == "tile"
    options = (1e-5, 0.0, "output", False, None, None)

    y, total, mean, rstd = torch.ops.onepass.norm(x, weight, bias, residual, True, *options, True)
    assert bool(y.isfinite().all())
    backward = (dy, dsum, total, weight, mean, rstd, True, 1e-5, 0.0, "output", BF16, BF16, BF16, False)
    torch.library.opcheck(torch.ops.onepass.norm_backward.default, (*backward, [True, False, True, True]))

    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias, residual)]
    torch.library.opcheck(torch.ops.onepass.norm.default, (*leaves, True, *options, True))
    torch.library.opcheck(torch.ops.onepass.norm.default, (leaves[0], leaves[1], None, None, False, *options, True))


def test_an_exported_layer_gives_the_layers_bits() -> None:
    layer = onepass.RMSNorm(2880, eps=1e-6, device=DEVICE, dtype=BF16)
    with torch.no_grad():
        layer.weight.copy_(random_weight(2880, dtype=BF16))
    x = random_rows(33, 2880, dtype=BF16)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert any(node.target is torch.ops.onepass.norm.default for node in program.graph.nodes)
    for rows in (33, 517):
        x = random_rows(rows, 2880, dtype=BF16, seed=rows)
        plan = onepass.explain(x, layer.weight).forward
        assert plan is not None and plan.schedule == "tile"
        with torch.no_grad():
            assert_same_bits(program.module()(x), layer(x))


@pytest.mark.parametrize("name", ["block rows", "one row", "split"])
def test_a_new_row_count_compiles_no_kernel(name: str) -> None:
    """Forty row counts, forward alone and with backward: the first compiles what all of them need, also the two tiles
    of short rows, below and above the row count from which these take the full one, and both backwards."""
    case = PLAIN[name]
    most = {"block rows": 6000, "one row": 700, "split": 80}[name]
    counts = [2, most, 1, *range(3, most, most // 37)]
    assert len(counts) >= 40
    after_one = 0
    for number, rows in enumerate(counts):
        tensors = tensors_of(with_rows(case, rows))
        with on_schedule(with_rows(case, rows), tensors):
            onepass.rms_norm(tensors.x, tensors.weight)
            differentiated(ours(case), tensors)
        if number == 0:
            after_one = compiled_count()
        assert compiled_count() == after_one, f"{rows} rows compiled a kernel"
