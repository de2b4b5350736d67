"""The reference says what SEMANTICS says, agrees with PyTorch, and is what a CPU computes."""

import pytest
import torch
import torch.nn.functional as F

from cases import BF16, F16, F32, Case, Inputs, random
from onepass import reference
from onepass.spec import Norm
from oracle import magnitudes
from processes import run_on_plain_cpu
from tolerance import assert_close

RMS, LAYER = Norm(False, 1e-6), Norm(True, 1e-5)


def normalized(norm, *tensors, **options):
    return reference.normalize(norm, *tensors, **options)[0]


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("cols", [1, 3, 127, 1000])
def test_rms_norm_is_that_of_pytorch(dtype, cols):
    x, weight = random(5, cols, dtype=dtype), random(cols, dtype=dtype)
    assert_close("y", normalized(RMS, x, weight), F.rms_norm(x, (cols,), weight, eps=1e-6))
    assert_close("y", normalized(RMS, x), F.rms_norm(x, (cols,), eps=1e-6))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("cols", [1, 3, 127, 1000])
def test_layer_norm_is_that_of_pytorch(dtype, cols):
    x, weight, bias = random(5, cols, dtype=dtype), random(cols, dtype=dtype), random(cols, dtype=dtype)
    case = Case("layer_norm", dtype, dtype, dtype)
    size = magnitudes(case, Inputs(x, weight, bias, None)).y
    assert_close("y", normalized(LAYER, x, weight, bias), F.layer_norm(x, (cols,), weight, bias), size)
    size = magnitudes(case, Inputs(x, None, None, None)).y
    assert_close("y", normalized(LAYER, x), F.layer_norm(x, (cols,)), size)


# The formulas of SEMANTICS.md, written out. r = rsqrt(mean(x²) + eps), all statistics in fp32.


def rstd_of(x32):
    return torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)


def output(x, w):
    return (x.float() * rstd_of(x.float()) * w.float()).to(x.dtype)


def llama(x, w):
    return w * (x.float() * rstd_of(x.float())).to(x.dtype)


def gemma(x, w):
    return (x.float() * rstd_of(x.float()) * (1 + w.float())).to(x.dtype)


def weightless(x, w):
    return (x.float() * rstd_of(x.float())).to(x.dtype)


def t5(x, w):
    x_hat = x.float() * rstd_of(x.float())
    if w.dtype in (F16, BF16):
        x_hat = x_hat.to(w.dtype)
    return w * x_hat


def none(x, w):
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-6) * w


FORMULAS = {
    "output": (output, RMS),
    "llama": (llama, Norm(False, 1e-6, cast="llama")),
    "gemma": (gemma, Norm(False, 1e-6, offset=1.0)),
    "weightless": (weightless, RMS),
    "t5": (t5, Norm(False, 1e-6, cast="t5")),
}


@pytest.mark.parametrize("weight_dtype", [F32, BF16, F16])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("formula", FORMULAS)
def test_each_rounding_order_has_the_bits_of_its_formula(formula, dtype, weight_dtype):
    written_out, norm = FORMULAS[formula]
    x, weight = random(7, 200, dtype=dtype), random(200, dtype=weight_dtype)
    expected = written_out(x, weight)
    y = normalized(norm, x, None if formula == "weightless" else weight)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_none_rounds_after_every_operation(dtype):
    x, weight = random(7, 64, dtype=dtype), random(64, dtype=dtype)
    y = normalized(Norm(False, 1e-6, cast="none"), x, weight)
    # PyTorch sums the squares of a narrow row in fp32 in an order of its own, which may move the mean by one unit.
    assert_close("y", y, none(x, weight), inner=[dtype])
    assert not torch.equal(y, output(x, weight))


def test_layer_norm_variants_have_the_bits_of_their_formula():
    x, weight, bias = random(5, 64, dtype=BF16), random(64, dtype=BF16), random(64)
    h = x.float() - x.float().mean(-1, keepdim=True)
    x_hat = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
    nemotron = (x_hat * (weight.float() + 1) + bias).to(BF16)
    assert torch.equal(normalized(Norm(True, 1e-5, offset=1.0), x, weight, bias), nemotron)
    per_head = random(5, 64, dtype=BF16)
    assert torch.equal(normalized(LAYER, x, per_head), (x_hat * per_head.float()).to(BF16))


def test_a_residual_is_rounded_after_or_before_it_is_normalized():
    x, residual, weight = random(5, 64, dtype=BF16), random(5, 64, dtype=BF16), random(64, dtype=BF16)
    wide = x.float() + residual.float()
    y, total = reference.normalize(RMS, x, weight, None, residual)
    assert torch.equal(total, wide.to(BF16))
    assert torch.equal(y, (wide * rstd_of(wide) * weight.float()).to(BF16))
    y, total = reference.normalize(Norm(False, 1e-6, round_residual=True), x, weight, None, residual)
    rounded = wide.to(BF16).float()
    assert torch.equal(total, wide.to(BF16))
    assert torch.equal(y, (rounded * rstd_of(rounded) * weight.float()).to(BF16))


def test_the_sum_has_the_residuals_dtype_or_the_one_asked_for():
    x, residual = random(5, 64, dtype=BF16), random(5, 64)
    assert reference.normalize(RMS, x, None, None, residual)[1].dtype == F32
    assert reference.normalize(RMS, x, None, None, residual, residual_dtype=F16)[1].dtype == F16
    y, total = reference.normalize(RMS, x, residual_dtype=F32)
    assert torch.equal(total, x.float()) and y.dtype == BF16
    assert reference.normalize(RMS, x)[1] is None


def test_wide_computes_in_fp64():
    x, weight = random(5, 64, dtype=F32), random(64)
    exact = normalized(RMS, x, weight, out_dtype=torch.float64, wide=torch.float64)
    written_out = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert torch.allclose(exact, written_out, rtol=1e-14, atol=0)
    assert not torch.equal(exact, normalized(RMS, x, weight).double())


@pytest.mark.parametrize("norm", [RMS, LAYER])
def test_the_reference_is_differentiable_twice(norm):
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 8), (8,), (8,), (3, 8))]

    def both(x, weight, bias, residual):
        return reference.normalize(norm, x, weight, bias, residual, wide=torch.float64)

    assert torch.autograd.gradcheck(both, tensors)
    assert torch.autograd.gradgradcheck(both, tensors)


def test_cpu_tensors_take_the_reference():
    printed = run_on_plain_cpu("""
        import torch, onepass
        from onepass import reference
        calls = []
        plain = reference.normalize
        reference.normalize = lambda *a, **k: calls.append(1) or plain(*a, **k)
        x, w = torch.randn(3, 64), torch.randn(64)
        assert torch.equal(onepass.rms_norm(x, w), plain(onepass.explain(x, w).norm, x, w)[0])
        y, s = onepass.layer_norm(x, w, w, residual=x)
        assert onepass.RMSNorm(64)(x).shape == x.shape
        assert torch.equal(s, x + x)
        print(len(calls), onepass.explain(x, w).forward)
    """)
    assert printed.split() == ["3", "None"]


def test_a_second_derivative_on_the_cpu_is_that_of_pytorch():
    run_on_plain_cpu("""
        import torch, onepass, torch.nn.functional as F
        x = torch.randn(3, 16, requires_grad=True)
        w = torch.randn(16, requires_grad=True)
        def second(f):
            g, = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
            return torch.autograd.grad(g.square().sum(), (x, w))
        ours = second(lambda x: onepass.rms_norm(x, w, eps=1e-6))
        torchs = second(lambda x: F.rms_norm(x, (16,), w, eps=1e-6))
        for a, b in zip(ours, torchs):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    """)


def test_a_cpu_only_use_imports_no_kernels_and_no_triton():
    printed = run_on_plain_cpu("""
        import sys, torch
        before = set(sys.modules)
        import onepass
        x, w = torch.randn(3, 64, requires_grad=True), torch.randn(64, requires_grad=True)
        onepass.rms_norm(x, w).sum().backward()
        onepass.LayerNorm(64)(x)
        onepass.explain(x, w)
        print(*sorted(set(sys.modules) - before))
    """)
    imported = printed.split()
    assert "onepass.reference" in imported
    wrong = [
        name
        for name in imported
        if name.split(".")[0] == "triton" or name.startswith(("onepass.kernels", "onepass.plan"))
    ]
    assert wrong == []


def test_importing_needs_torch_and_nothing_else():
    run_on_plain_cpu("""
        import sys, warnings
        warnings.simplefilter("ignore")
        for name in ("numpy", "scipy", "rich", "typer", "triton", "pynvml", "hypothesis", "pytest"):
            sys.modules[name] = None  # an import of it fails
        import torch, onepass
        y, s = onepass.rms_norm(torch.randn(3, 64), torch.ones(64), residual=torch.randn(3, 64))
        assert y.shape == s.shape == (3, 64)
    """)
