"""What torch.compile sees of a call: kernels that inductor launches, or a lean op. Traced with fake CUDA tensors."""

import itertools
import re
from collections import Counter
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from triton.backends.compiler import GPUTarget

from onepass import graph_ops, ops
from onepass.forward import Forward
from onepass.handover import Step
from onepass.kernels import few, reduce, stream, tile, turns
from onepass.plan import compiler
from onepass.plan.device import Device
from onepass.spec import Norm, Problem
from onepass.traced import _lies_as_ever

BF16 = torch.bfloat16


class SomeDriver:
    """What Triton asks about a GPU, to read which arguments a kernel writes to."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def some_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from onepass import backward, forward, handover

    h200 = Device("NVIDIA H200", 132, 65536, 233472, True)
    for module in (forward, backward):
        monkeypatch.setattr(module, "device_of", lambda device: h200)
    monkeypatch.setattr(handover, "_element", lambda dtype, device: torch.empty((), dtype=dtype, device="meta"))
    monkeypatch.setattr(triton.runtime.driver, "_active", SomeDriver())


def fake(*shape: Any, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda:0")


def traced(function: Any, *tensors: Tensor) -> torch.fx.GraphModule:
    return make_fx(dispatch_functionalize(function, FunctionalTensorMode()))(*tensors)


def parts_of(graph: torch.fx.GraphModule) -> Counter[str]:
    """How often each kernel is launched and each of our ops called."""
    found: Counter[str] = Counter()
    for node in graph.graph.nodes:
        if node.target is triton_kernel_wrapper_functional:
            found[kernel_side_table.get_kernel(node.kwargs["kernel_idx"]).fn.__name__] += 1
        elif str(node.target).startswith("onepass."):
            found[str(node.target).split(".")[1]] += 1
    return found


def written(graph: torch.fx.GraphModule) -> set[str]:
    """What inductor takes to be written by some kernel, and would copy if it were an input."""
    nodes = [node for node in graph.graph.nodes if node.target is triton_kernel_wrapper_functional]
    return {name for node in nodes for name in node.kwargs["tensors_to_clone"]}


def test_inductor_can_write_kernels_down():
    """Up to PyTorch 2.12 it puts their sources, and those of all they call, into a string without escaping anything."""
    forwards = (tile.tile_forward, stream.stream_forward)
    backwards = (tile.tile_backward, turns.turns_backward, few.few_backward, reduce.sum_partials)
    for kernel in forwards + backwards:
        source = user_defined_triton_kernel_transitive_closure_source_code(kernel)
        assert kernel.__name__ in source
        assert "\\" not in source and "'''" not in source


def norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, **options: Any) -> Any:
    from onepass.checks import Options

    return ops.normalize(Options(False, 1e-6, **options), x, weight, None, residual)


def backward(dy: Tensor, h: Tensor, weight: Tensor, rstd: Tensor) -> Any:
    none = rstd.new_empty(0)
    needs = [True, False, True, False]
    return torch.ops.onepass.norm_backward(
        dy, None, h, weight, none, rstd, False, 1e-6, 0.0, "output", BF16, None, None, False, needs
    )


def test_a_forward_is_its_kernel_and_writes_to_its_outputs_alone() -> None:
    with FakeTensorMode():
        graph = traced(lambda x, w: norm(x, w), fake(4, 2048), fake(2048))
    assert parts_of(graph) == {"tile_forward": 1}
    assert written(graph) == {"p_y"}


def test_what_a_backward_needs_is_written_on_request() -> None:
    def op(x: Tensor, weight: Tensor) -> Any:
        return torch.ops.onepass.norm(x, weight, None, None, False, 1e-6, 0.0, "output", False, None, None, True)

    with FakeTensorMode():
        graph = traced(op, fake(4, 2048), fake(2048))
    assert written(graph) == {"p_y", "p_rstd"}


def test_a_sum_and_another_rounding_are_the_kernels_too() -> None:
    with FakeTensorMode():
        graph = traced(lambda x, w, r: norm(x, w, r, cast="llama"), fake(4, 2048), fake(2048), fake(4, 2048))
    assert parts_of(graph) == {"tile_forward": 1}
    assert written(graph) == {"p_y", "p_sum"}


@pytest.mark.parametrize(
    ("rows", "cols", "kernels"),
    [
        (4, 2048, {"few_backward": 1}),
        (3000, 2048, {"tile_backward": 1, "sum_partials": 1}),
        (3000, 2049, {"turns_backward": 1, "sum_partials": 1}),
    ],
)
def test_a_backward_is_its_kernels(rows: int, cols: int, kernels: dict[str, int]) -> None:
    with FakeTensorMode():
        graph = traced(backward, fake(rows, cols), fake(rows, cols), fake(cols), fake(rows, dtype=torch.float32))
    assert parts_of(graph) == kernels
    assert written(graph) <= {"p_dx", "p_dweight", "p_dweights"}


@pytest.mark.parametrize(
    ("rows", "cols", "why"),
    [
        (64, 262144, "all programs must run at the same time"),
        (64, 16384, "blocks are held packed"),
        (64, 423, "a thread would have other columns of a row"),
        (0, 2048, "there is nothing to launch for"),
    ],
)
def test_what_inductor_cannot_launch_is_a_lean_op(rows: int, cols: int, why: str) -> None:
    with FakeTensorMode():
        graph = traced(lambda x, w: norm(x, w), fake(rows, cols), fake(cols))
    assert parts_of(graph) == {"launch_norm": 1}, why


@pytest.mark.parametrize(("rows", "cols"), [(64, 262144), (3000, 16384)])
def test_a_backward_that_inductor_cannot_launch_is_a_lean_op(rows: int, cols: int) -> None:
    with FakeTensorMode():
        given = fake(rows, cols), fake(rows, cols), fake(cols), fake(rows, dtype=torch.float32)
        graph = traced(backward, *given)
        shapes = [tuple(made.shape) for made in graph(*given)]
    assert parts_of(graph) == {"launch_norm_backward": 1}
    assert shapes == [(rows, cols), (0,), (cols,), (0,)], "as the op that it stands for"


def test_a_lean_op_hands_out_what_there_is() -> None:
    options = {"eps": 1e-6, "offset": 0.0, "cast": "output", "round_residual": False, "out": None, "residual": None}
    with FakeTensorMode():
        x, weight, bias = fake(3, 48), fake(48), fake(48)
        for centred, residual, stats in itertools.product((False, True), (None, fake(3, 48)), (False, True)):
            text = graph_ops._written([centred, *options.values(), stats])
            made = torch.ops.onepass.launch_norm(x, weight, bias if centred else None, residual, text)
            assert len(made) == 1 + (residual is not None) + stats * (1 + centred)
            assert graph_ops._read(text) == (centred, *options.values(), stats)
    given = (True, 1e-5, 0.5, "llama", BF16, None, torch.float32, False, [True, False])
    assert graph_ops._read(graph_ops._written(given)) == given


def layouts(step: Step) -> set[tuple[str, str]]:
    """How the blocks lie that a kernel loads, by their shape."""
    made = compiler.compile_kernel(
        step.kernel, step.dtypes, step.constants, {"num_warps": step.plan.warps}, GPUTarget("cuda", 90, 32)
    )
    code = made.asm["ttgir"]
    named = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)", code, re.MULTILINE))
    loads = "\n".join(line for line in code.splitlines() if "tt.load" in line)
    return {(shape, named[name]) for shape, name in re.findall(r"tensor<([0-9x]+)x!tt\.ptr<\w+>, (#\w+)>", loads)}


@pytest.mark.parametrize(
    ("centred", "dtype", "cols", "alike"),
    [(False, BF16, 101, True), (True, BF16, 4100, True), (False, BF16, 423, False), (True, torch.float32, 5001, False)],
)
def test_where_inductor_launches_a_row_lies_over_the_same_threads(
    centred: bool, dtype: torch.dtype, cols: int, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor says of all pointers that they are multiples of 16 bytes."""
    x = torch.empty(5000, cols, dtype=dtype, device="meta")
    problem = Problem(5000, 1, cols, dtype, dtype, dtype, dtype if centred else None)
    call = Forward(Norm(centred, 1e-6), problem, x, None)
    step = call.step(call.plan(True), call.align(True), True)
    assert _lies_as_ever(step) == alike
    ours = layouts(step)
    monkeypatch.setattr(compiler, "aligned_bytes", lambda dtype, align: 16)
    assert (layouts(step) == ours) == alike


def test_a_symbolic_row_count_is_a_lean_op() -> None:
    sizes = ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        symbol = sizes.create_symbol(40, ConstantSource("rows"), DimDynamic.DYNAMIC)
        rows = sizes.create_symintnode(symbol, hint=40)
        graph = traced(lambda x, w: norm(x, w), fake(rows, 2048), fake(2048))
    assert parts_of(graph) == {"launch_norm": 1}
