"""FP8 outputs on a real GPU, bit by bit against the definition: presets, special values, graphs, compiled steps."""

from dataclasses import replace

import pytest
import torch

import onepass
from gpu.exact import DEVICE, assert_same_bits, random_rows, random_weight
from gpu.fp8_kinds import BF16, KINDS, asked, assert_quantized_as_defined, assert_same_but_for_a_nans_bits
from onepass import Fp8
from onepass.fp8 import definition


@pytest.mark.parametrize("shape", [(5000, 64), (3, 520), (200, 4096)], ids=str)
def test_a_tensors_scale_is_of_what_is_quantized(shape: tuple[int, int]) -> None:
    """Two launches must agree on every row's statistics, to the last bit of fp32."""
    x, weight = random_rows(*shape, dtype=torch.float32), random_weight(shape[1], dtype=torch.float32)
    assert_quantized_as_defined(onepass.rms_norm(x, weight, quantize=asked("tensor")), asked("tensor"))


@pytest.mark.parametrize("kind", KINDS)
def test_quantization_alone_sees_special_values(kind: str) -> None:
    x = random_rows(131, 400, dtype=BF16)
    x[3, 5:9] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-30])
    x[7], x[9, 17], x[11], x[20, :] = 0.0, 3e38, 1e-40, -0.0
    for columnwise in (False, True):
        fp8 = replace(KINDS[kind](), columnwise=columnwise)
        expected = definition.quantize(x, replace(KINDS[kind](), columnwise=columnwise))
        assert_same_but_for_a_nans_bits(onepass.quantize(x, fp8), expected)


@pytest.mark.parametrize("exponent", [0, 1, 93, 94, 127, 200, 254])
@pytest.mark.parametrize(
    "fp8",
    [
        Fp8("token"),
        Fp8("token", floor=0.0),
        Fp8("token", "e5m2", arithmetic="inverse"),
        Fp8("token", arithmetic="inverse", floor=0.0, power_of_two=True),
        Fp8("mx"),
    ],
    ids=["multiplier", "no floor", "inverse", "power of two", "mx"],
)
def test_every_mantissa_has_the_scale_of_a_true_division(fp8: Fp8, exponent: int) -> None:
    """The kernels divide by approximations that are mended, which is to leave no trace in any bit."""
    mantissas = torch.arange(1 << 23, dtype=torch.int32, device=DEVICE)
    x = (mantissas | exponent << 23).view(torch.float32)[:, None]
    q, expected = onepass.quantize(x, fp8), definition.quantize(x, fp8)
    for got, wanted in ((q.scale, expected.scale), (q.data, expected.data)):
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("shape", [(5000, 192), (140, 20488)], ids=str)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("kind", ["token", "block", "mx", "tensor"])
def test_a_rows_bits_do_not_depend_on_its_company(kind: str, columnwise: bool, shape: tuple[int, int]) -> None:
    """Not for a tensor's scale, which does; its output beside it. Wide rows are shared by clusters, held, or walked."""
    x, weight = random_rows(*shape, dtype=BF16), random_weight(shape[1], dtype=BF16)
    fp8 = Fp8(kind, columnwise=columnwise, also_unquantized=True)
    every = onepass.rms_norm(x, weight, quantize=fp8)
    for count in (1, 7, 64, 100, 300, 4096):
        if count > len(x):
            break
        part = onepass.rms_norm(x[:count], weight, quantize=fp8)
        assert part.unquantized is not None and every.unquantized is not None
        assert_same_bits(part.unquantized, every.unquantized[:count])
        if kind != "tensor":
            assert torch.equal(part.data.view(torch.uint8), every.data[:count].view(torch.uint8))
    again = onepass.rms_norm(x, weight, quantize=fp8)
    assert torch.equal(again.data.view(torch.uint8), every.data.view(torch.uint8))


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("kind", ["token", "block", "tensor"])
def test_a_graph_replays_it(kind: str, columnwise: bool) -> None:
    x, weight = random_rows(256, 4096, dtype=BF16), random_weight(4096, dtype=BF16)
    fp8 = Fp8(kind, columnwise=columnwise)
    onepass.rms_norm(x, weight, quantize=fp8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = onepass.rms_norm(x, weight, quantize=fp8)
    for seed in (5, 6, 7):  # nothing of a replay may be left for the next
        x.copy_(random_rows(256, 4096, dtype=BF16, seed=seed))
        graph.replay()
        expected = onepass.rms_norm(x, weight, quantize=fp8)
        assert torch.equal(q.scale, expected.scale)
        assert torch.equal(q.data.view(torch.uint8), expected.data.view(torch.uint8))
        if columnwise:
            assert q.data_t is not None and expected.data_t is not None
            assert torch.equal(q.data_t.view(torch.uint8), expected.data_t.view(torch.uint8))


@pytest.mark.parametrize("kind", ["delayed", "token", "block"])
def test_a_compiled_step_gives_the_same(kind: str) -> None:
    torch._dynamo.reset()
    x, weight = random_rows(64, 2048, dtype=BF16), random_weight(2048, dtype=BF16).requires_grad_()
    fp8, again = (replace(KINDS[kind](), columnwise=True) for _ in range(2))
    q = torch.compile(lambda x: onepass.rms_norm(x, weight, quantize=fp8), fullgraph=True)(x)
    expected = onepass.rms_norm(x, weight, quantize=again)
    assert torch.equal(q.data.view(torch.uint8), expected.data.view(torch.uint8))
    gradient = random_rows(64, 2048, dtype=torch.float32, seed=3)
    (got,) = torch.autograd.grad(q.dequantize(), weight, gradient)
    (wanted,) = torch.autograd.grad(expected.dequantize(), weight, gradient)
    assert_same_bits(got, wanted)


def test_it_feeds_scaled_mm() -> None:
    x, weight = random_rows(64, 512, dtype=BF16), random_weight(512, dtype=BF16)
    matrix = random_rows(256, 512, dtype=BF16, seed=7)
    for kind in ("tensor", "token", "block"):
        layout = {"layout": "tma"} if kind == "block" else {}
        q = onepass.rms_norm(x, weight, quantize=Fp8(kind, also_unquantized=True, **layout))
        other = onepass.quantize(matrix, Fp8(kind, **layout))
        scale_b = other.scale if kind == "tensor" else other.scale.t()
        product = torch._scaled_mm(q.data, other.data.t(), q.scale, scale_b, out_dtype=BF16)
        expected = q.dequantize() @ other.dequantize().t()
        torch.testing.assert_close(product.float(), expected, rtol=2**-6, atol=0.05)
