"""A norm with an FP8 output against the definition, in Triton's interpreter: every kind, in every schedule."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import onepass
from cases import FORWARD_SLICES, planned
from onepass import Fp8, inductor, reference
from onepass.fp8 import definition
from onepass.plan import in_force
from onepass.plan.tiles import Tile
from onepass.spec import Norm

#: (rows, columns) for each schedule.
SIZES = {
    "row": (3, 300),
    "row in blocks": (3, 600),
    "few block rows": (5, 48),
    "many block rows": (7, 200),
    "stream": (3, 700),
    "split": (3, 700),
}

KINDS = {
    "scale": lambda: Fp8("static", scale=torch.tensor(0.02)),
    "divided": lambda: Fp8("static", scale=torch.tensor(0.02), arithmetic="scale"),
    "multiplier": lambda: Fp8("static", multiplier=torch.tensor(37.0)),
    "delayed": lambda: Fp8("delayed", multiplier=torch.tensor(37.0), amax=torch.tensor(0.5)),
    "tensor": lambda: Fp8("tensor"),
    "token": lambda: Fp8("token"),
    "block": lambda: Fp8("block"),
    "block 64, e5m2": lambda: Fp8("block", "e5m2", block=64, layout="tma"),
    "mx": lambda: Fp8("mx"),
    "swizzled": lambda: Fp8("mx", layout="swizzled"),
    "vllm": lambda: Fp8("token", like="vllm"),
    "deepgemm": lambda: Fp8("block", like="deepgemm"),
}
#: Those that differ by more than how a scale is computed, which tests/test_fp8_parts.py looks at.
APART = ("delayed", "tensor", "token", "block", "block 64, e5m2", "mx")
ALIKE = tuple(kind for kind in KINDS if kind not in APART)


@contextmanager
def on(schedule: str) -> Iterator[None]:
    """Slices are wider than the widest group."""
    wide = dict.fromkeys(FORWARD_SLICES, Tile(256, 1, 1, 8, late=1))
    with planned(schedule), in_force.override(**wide if schedule == "split" else {}):
        yield


def exact(rows: int, cols: int) -> torch.Tensor:
    """Whole numbers whose mean is zero: sums are exact in any order, so that every bit is defined."""
    x = torch.randint(-4, 5, (rows, cols)).float()
    x[:, 0] -= x.sum(1)
    x[rows // 2] = 0.0
    return x


def same_bits(got: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if got is None or expected is None:
        return got is expected
    flat = [tensor.contiguous().as_strided((tensor.numel(),), (1,)) for tensor in (got, expected)]
    bits = [tensor.view(torch.uint8) for tensor in flat]
    steps = zip(got.shape, got.stride(), expected.stride(), strict=True)
    alike = got.shape == expected.shape and all(size == 1 or one == other for size, one, other in steps)
    return alike and torch.equal(*bits)


def assert_defined(q: onepass.Quantized, fp8: Fp8, like: torch.dtype) -> None:
    """What was quantized is what the definition makes of the output that came beside it."""
    assert q.unquantized is not None
    expected = definition.quantize(q.unquantized, fp8, like, residual=q.residual)
    for name in ("data", "scale", "data_t", "scale_t", "amax"):
        assert same_bits(getattr(q, name), getattr(expected, name)), name
    assert (q.block, q.layout) == (expected.block, expected.layout)


@pytest.mark.parametrize(
    ("kind", "schedule", "op"),
    [
        *product(APART, SIZES, ["rms_norm"]),
        *product(ALIKE, ["row"], ["rms_norm"]),
        *product(["delayed", "token", "block"], SIZES, ["layer_norm"]),
    ],
)
def test_every_kind_in_every_schedule_has_the_bits_of_the_definition(kind, schedule, op, launches):
    x, fp8 = exact(*SIZES[schedule]), replace(KINDS[kind](), also_unquantized=True)
    weight = torch.randn(x.shape[1])
    with on(schedule):
        q = getattr(onepass, op)(x, weight, eps=1e-6, quantize=fp8)
    shared = schedule == "split" and fp8.scaling != "token"  # which would have to wait once more
    kernel = "split" if shared else "stream" if schedule in ("stream", "split") else "tile"
    assert [launch.kernel for launch in launches] == [f"{kernel}_forward"] * (2 if kind == "tensor" else 1)
    assert_defined(q, replace(KINDS[kind](), also_unquantized=True), x.dtype)
    y, _ = reference.normalize(Norm(op == "layer_norm", 1e-6), x, weight)
    if op == "rms_norm" or kernel == "tile":
        assert same_bits(q.unquantized, y)
    else:  # moments of parts are joined, which divides
        torch.testing.assert_close(q.unquantized, y)


@pytest.mark.parametrize(("schedule", "kind"), [*product(("row", "stream", "split"), ("tensor", "token", "block"))])
def test_a_residual_and_the_unquantized_output_come_beside_it(schedule, kind):
    x, fp8 = exact(*SIZES[schedule]), Fp8(kind, also_unquantized=True)
    residual, weight = exact(*SIZES[schedule]), torch.randn(x.shape[1])
    with on(schedule):
        q = onepass.rms_norm(x, weight, eps=1e-6, residual=residual, quantize=fp8)
    assert_defined(q, fp8, x.dtype)
    y, total = reference.normalize(Norm(False, 1e-6), x, weight, None, residual)
    assert same_bits(q.unquantized, y) and same_bits(q.residual, total)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_unquantized_output_it_is_the_same(kind):
    x, weight = exact(5, 300), torch.randn(300)
    alone, beside = (
        onepass.rms_norm(x, weight, quantize=replace(KINDS[kind](), also_unquantized=also)) for also in (False, True)
    )
    assert alone.unquantized is None
    assert same_bits(alone.data, beside.data) and same_bits(alone.scale, beside.scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("round_first", [False, True])
def test_narrow_inputs_are_rounded_first_or_not(dtype, round_first):
    """Within a unit in the last place of FP8: the interpreter truncates to bf16."""
    x, weight = exact(5, 300).to(dtype), torch.randn(300).to(dtype)
    fp8 = Fp8("token", round_first=round_first, also_unquantized=True)
    q = onepass.rms_norm(x, weight, quantize=fp8)
    y, _ = reference.normalize(Norm(False, 1e-6), x, weight, out_dtype=torch.float32)
    expected = definition.quantize(y, fp8, dtype)
    assert q.unquantized.dtype == dtype
    torch.testing.assert_close(q.dequantize(), expected.dequantize(), rtol=0.13, atol=1e-3)


def test_strided_rows_and_heads_are_read_as_they_are():
    x = exact(8, 6 * 64).view(4, 2, 6, 64)[:, :, 1:4]
    weight = torch.randn(3, 64)
    fp8 = Fp8("block", block=64, also_unquantized=True)
    q = onepass.rms_norm(x, weight, quantize=fp8)
    assert q.data.shape == x.shape and q.scale.shape == (4, 2, 3, 1)
    assert_defined(q, fp8, x.dtype)
    y, _ = reference.normalize(Norm(False, 1e-6), x, weight)
    assert same_bits(q.unquantized, y)


@pytest.mark.parametrize("kind", ["static", "delayed", "tensor", "token", "block", "mx"])
def test_no_rows_give_an_empty_result(kind):
    fp8 = {
        "static": Fp8("static", scale=torch.tensor(2.0)),
        "delayed": Fp8("delayed", multiplier=torch.tensor(2.0), amax=torch.tensor(0.5)),
    }.get(kind) or Fp8(kind)
    q = onepass.layer_norm(torch.empty(0, 64), quantize=fp8)
    assert q.data.shape == (0, 64) and q.data.dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("kind", ["token", "block", "tensor"])
def test_gradients_go_straight_through(kind, also):
    x, residual, weight = (tensor.requires_grad_() for tensor in (exact(5, 100), exact(5, 100), torch.randn(100)))
    gradient, into_sum = torch.randn(5, 100), torch.randn(5, 100)
    q = onepass.rms_norm(x, weight, residual=residual, quantize=Fp8(kind, also_unquantized=also))
    through = torch.autograd.grad((q.dequantize(), q.residual), (x, weight, residual), (gradient, into_sum))
    y, total = onepass.rms_norm(x, weight, residual=residual)
    plain = torch.autograd.grad((y, total), (x, weight, residual), (gradient, into_sum))
    for got, expected in zip(through, plain, strict=True):
        assert torch.equal(got, expected)
    assert (q.unquantized is None) != also and not q.data.requires_grad


BOTH_WAYS = {name: kind for name, kind in KINDS.items() if name != "vllm"} | {
    "mx in rows": lambda: Fp8("mx", layout="swizzled", columnwise_order="rows"),
}


@pytest.mark.parametrize(
    ("kind", "op", "size"),
    [
        *product(BOTH_WAYS, ["rms_norm"], [(129, 140)]),
        *product(["delayed", "tensor", "token", "block", "mx"], ["rms_norm"], [(1, 40), (4, 600)]),
        *product(["tensor", "block", "mx"], ["layer_norm"], [(132, 130)]),
    ],
)
def test_the_transpose_has_the_bits_of_the_definition(kind, size, op, launches):
    x, weight = exact(*size), torch.randn(size[1])
    fp8 = replace(BOTH_WAYS[kind](), columnwise=True, also_unquantized=True)
    q = getattr(onepass, op)(x, weight, eps=1e-6, quantize=fp8)
    assert [launch.kernel for launch in launches] == ["tile_forward"] * (kind == "tensor") + ["columnwise_forward"]
    assert_defined(q, replace(BOTH_WAYS[kind](), columnwise=True, also_unquantized=True), x.dtype)
    y, _ = reference.normalize(Norm(op == "layer_norm", 1e-6), x, weight)
    torch.testing.assert_close(q.unquantized, y)
    if op == "rms_norm":
        assert same_bits(q.unquantized, y)


@pytest.mark.parametrize(
    ("kind", "size"),
    [*product(["scale", "delayed", "tensor", "token", "block", "swizzled"], [(9, 300)]), ("token", (130, 64))],
)
def test_the_transpose_leaves_rows_as_they_are(kind, size):
    x, weight, residual = torch.randn(size), torch.randn(size[1]), torch.randn(size)
    alone, both = (
        onepass.rms_norm(
            x, weight, residual=residual, quantize=replace(KINDS[kind](), columnwise=each, also_unquantized=True)
        )
        for each in (False, True)
    )
    for name in ("data", "scale", "unquantized", "residual"):
        assert same_bits(getattr(both, name).float(), getattr(alone, name).float()), name


def test_the_transpose_of_heads_and_of_strided_rows():
    x = exact(8, 6 * 64).view(4, 2, 6, 64)[:, :, 1:4]
    fp8 = Fp8("block", block=64, columnwise=True, also_unquantized=True)
    for weight in (torch.randn(64), torch.randn(3, 64)):
        q = onepass.rms_norm(x, weight, residual=x, quantize=fp8)
        assert q.data_t.shape == (64, 24)
        assert_defined(q, fp8, x.dtype)
        y, total = reference.normalize(Norm(False, 1e-6), x, weight, None, x)
        assert same_bits(q.unquantized, y) and same_bits(q.residual, total)


def test_inductor_calls_the_function_and_not_the_dispatcher():
    torch._dynamo.reset()
    x, weight, fp8 = exact(6, 150), torch.randn(150), KINDS["block"]()
    compiled = torch.compile(lambda x: onepass.rms_norm(x, weight, quantize=fp8).data, fullgraph=True)
    data, (code,) = run_and_get_code(compiled, x)
    assert f"norm_fp8.default.{inductor.FUNCTION}(" in code
    assert same_bits(data, onepass.rms_norm(x, weight, quantize=fp8).data)


@pytest.mark.parametrize(
    ("kind", "columnwise"),
    [*product(["scale", *APART], [False]), *product(["delayed", "token", "block", "swizzled"], [True])],
)
def test_a_compiled_call_gives_the_same(kind, columnwise):
    torch._dynamo.reset()
    x, weight, residual = exact(6, 150), torch.randn(150, requires_grad=True), exact(6, 150)
    fp8, again = (replace(KINDS[kind](), columnwise=columnwise) for _ in range(2))
    compiled = torch.compile(
        lambda x, r: onepass.rms_norm(x, weight, residual=r, quantize=fp8), backend="aot_eager", fullgraph=True
    )
    q, expected = compiled(x, residual), onepass.rms_norm(x, weight, residual=residual, quantize=again)
    for name in ("data", "scale", "data_t", "scale_t", "amax", "residual"):
        assert same_bits(getattr(q, name), getattr(expected, name)), name
    gradient = torch.randn(6, 150)
    (got,) = torch.autograd.grad(q.dequantize(), weight, gradient)
    (wanted,) = torch.autograd.grad(expected.dequantize(), weight, gradient)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("layer", [onepass.RMSNorm, onepass.LayerNorm])
def test_a_module_quantizes(layer):
    norm = layer(64, quantize=Fp8("block", block=64))
    assert "quantize='block'" in repr(norm)
    q = norm(torch.randn(3, 64), residual=torch.randn(3, 64))
    assert q.data.shape == (3, 64) and q.scale.shape == (3, 1) and q.residual.shape == (3, 64)
    q.dequantize().sum().backward()
    assert norm.weight.grad is not None


def test_what_cannot_be_is_said_in_a_sentence():
    x = torch.randn(3, 64)
    for error, call, words in (
        (TypeError, lambda: onepass.rms_norm(x, quantize="token"), ["quantize", "Fp8", "str"]),
        (ValueError, lambda: onepass.RMSNorm((3, 64), quantize=Fp8())(x), ["normalized_shape", "(3, 64)"]),
        (
            ValueError,
            lambda: onepass.rms_norm(x, quantize=Fp8("static", scale=torch.ones((), device="meta"))),
            ["scale", "cpu", "meta"],
        ),
    ):
        with pytest.raises(error) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("kind", "shape", "columnwise"),
    [
        *product(KINDS, [(5, 300)], [False, True]),
        *product(APART, [(2, 3, 64)], [False, True]),
        *product(APART, [(130, 140)], [True]),
        *product(APART, [(2, 17000)], [False]),
    ],
)
def test_quantization_alone_has_the_bits_of_the_definition(kind, shape, columnwise):
    x = torch.randn(shape)
    x.view(-1)[::97] *= 1e3
    fp8, again = (replace(KINDS[kind](), columnwise=columnwise) for _ in range(2))
    q, expected = onepass.quantize(x, fp8), definition.quantize(x, again)
    for name in ("data", "scale", "data_t", "scale_t", "amax"):
        assert same_bits(getattr(q, name), getattr(expected, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_quantization_alone_compiles_and_hands_gradients_on(kind):
    torch._dynamo.reset()
    x, (fp8, again) = torch.randn(6, 200, requires_grad=True), (KINDS[kind]() for _ in range(2))
    q = torch.compile(lambda x: onepass.quantize(x, fp8), backend="aot_eager", fullgraph=True)(x)
    expected = definition.quantize(x, again)
    assert same_bits(q.data, expected.data) and same_bits(q.scale, expected.scale)
    gradient = torch.randn(6, 200)
    assert torch.equal(torch.autograd.grad(q.dequantize(), x, gradient)[0], gradient)


@pytest.mark.parametrize("shape", [(1, 40), (128, 128), (129, 300), (2, 65, 33), (0, 8)])
def test_bytes_are_transposed(shape):
    q = definition.quantize(torch.randn(shape), Fp8("token"))
    turned, expected = onepass.transpose_fp8(q), definition.transpose_fp8(q)
    assert same_bits(turned.data_t, expected.data_t) and same_bits(turned.scale_t, expected.scale_t)
