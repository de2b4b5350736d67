"""What torch.compile sees of a call: one lean op, whatever its plan. Traced with fake CUDA tensors."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from onepass import graph_ops, ops

BF16 = torch.bfloat16


def fake(*shape: Any, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda:0")


def traced(function: Any, *tensors: Tensor) -> torch.fx.GraphModule:
    return make_fx(dispatch_functionalize(function, FunctionalTensorMode()))(*tensors)


def ops_of(graph: torch.fx.GraphModule) -> Counter[str]:
    """How often each of our ops is called."""
    ours = [str(node.target) for node in graph.graph.nodes if str(node.target).startswith("onepass.")]
    return Counter(name.split(".")[1] for name in ours)


def norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, **options: Any) -> Any:
    from onepass.checks import Options

    return ops.normalize(Options(False, 1e-6, **options), x, weight, None, residual)


def backward(dy: Tensor, h: Tensor, weight: Tensor, rstd: Tensor) -> Any:
    none = rstd.new_empty(0)
    needs = [True, False, True, False]
    return torch.ops.onepass.norm_backward(
        dy, None, h, weight, none, rstd, False, 1e-6, 0.0, "output", BF16, None, None, False, needs
    )


@pytest.mark.parametrize(("rows", "cols"), [(4, 2048), (64, 262144), (64, 423), (0, 2048)])
def test_a_forward_is_a_lean_op(rows: int, cols: int) -> None:
    with FakeTensorMode():
        graph = traced(lambda x, w: norm(x, w), fake(rows, cols), fake(cols))
    assert ops_of(graph) == {"run_norm": 1}


@pytest.mark.parametrize(("rows", "cols"), [(4, 2048), (64, 262144), (3000, 2049)])
def test_a_backward_is_a_lean_op(rows: int, cols: int) -> None:
    with FakeTensorMode():
        given = fake(rows, cols), fake(rows, cols), fake(cols), fake(rows, dtype=torch.float32)
        graph = traced(backward, *given)
        shapes = [tuple(made.shape) for made in graph(*given)]
    assert ops_of(graph) == {"run_norm_backward": 1}
    assert shapes == [(rows, cols), (0,), (cols,), (0,)], "as the op that it stands for"


def test_a_sum_comes_out_of_it_too() -> None:
    with FakeTensorMode():
        given = fake(4, 2048), fake(2048), fake(4, 2048, dtype=torch.float32)
        graph = traced(lambda x, w, r: norm(x, w, r, cast="llama"), *given)
        dtypes = [made.dtype for made in graph(*given)]
    assert ops_of(graph) == {"run_norm": 1}
    assert dtypes == [BF16, torch.float32]


def test_a_lean_op_hands_out_what_there_is() -> None:
    options = {"eps": 1e-6, "offset": 0.0, "cast": "output", "round_residual": False, "out": None, "residual": None}
    with FakeTensorMode():
        x, weight, bias = fake(3, 48), fake(48), fake(48)
        for centred, residual, stats in itertools.product((False, True), (None, fake(3, 48)), (False, True)):
            text = graph_ops._written([centred, *options.values(), stats, ["cuda:0"]])
            made = torch.ops.onepass.run_norm(x, weight, bias if centred else None, residual, text)
            assert len(made) == 1 + (residual is not None) + stats * (1 + centred)
            assert graph_ops._read(text) == (centred, *options.values(), stats, ["cuda:0"])
    given = (True, 1e-5, 0.5, "llama", BF16, None, torch.float32, False, [True, False])
    assert graph_ops._read(graph_ops._written(given)) == given


def test_what_a_graph_keeps_tells_dtypes_and_devices_apart() -> None:
    """Calls are known by this text, and by shapes and strides."""
    texts = set()
    with FakeTensorMode():
        for dtype, weight_dtype, gpu in itertools.product((BF16, torch.float32), (BF16, torch.float16), (0, 1)):
            x = torch.empty(4, 64, dtype=dtype, device=f"cuda:{gpu}")
            graph = traced(norm, x, torch.empty(64, dtype=weight_dtype, device=f"cuda:{gpu}"))
            texts |= {node.args[-1] for node in graph.graph.nodes if "run_norm" in str(node.target)}
    assert len(texts) == 8


def test_a_symbolic_row_count_stays_one() -> None:
    sizes = ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        symbol = sizes.create_symbol(40, ConstantSource("rows"), DimDynamic.DYNAMIC)
        rows = sizes.create_symintnode(symbol, hint=40)
        graph = traced(lambda x, w: norm(x, w), fake(rows, 2048), fake(2048))
    assert ops_of(graph) == {"run_norm": 1}
    assert not sizes.guards, "of any number of rows"
