"""Backends: the same tensors and the same task for all, and a sentence for what one cannot do."""

import itertools
import sys
import types

import pytest
import torch

from onepass.fp8.presets import SCALINGS
from onepass.lab import backends as lab
from onepass.lab.backends import BACKENDS, NAMES, Backend, NotSupported, available, backend, backends
from onepass.lab.data.case import DIRECTIONS, FP8_OPS, NORMS, Case
from onepass.lab.gate import check
from onepass.lab.inputs import make_inputs, wanted

PEERS = {"liger": "liger-kernel", "quack": "quack-kernels"}


def case_of(op="rms_norm", direction="forward", dtype="float32", **more):
    return Case(op, direction, more.pop("rows", 24), more.pop("cols", 96), dtype, **more)


def checked(found, case, seed=0):
    inputs = make_inputs(case, "cpu", seed)
    outputs = found.prepare(case, inputs)()
    return check(case, inputs, outputs)


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Writes my_kernels.py in a fresh working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "my_kernels", raising=False)

    def write(text):
        (tmp_path / "my_kernels.py").write_text("import torch\nimport torch.nn.functional as F\n" + text)
        return "my_kernels"

    yield write
    sys.modules.pop("my_kernels", None)


#: All but PyTorch's own LayerNorm gradients in bf16, which its CPU kernel sums in bf16: test_gate.py has them refused.
EVERYTHING = [
    each
    for each in itertools.product(["eager", "onepass"], NORMS, DIRECTIONS, ["float32", "bfloat16"])
    if each != ("eager", "layer_norm", "backward", "bfloat16")
]


@pytest.mark.parametrize(("name", "op", "direction", "dtype"), EVERYTHING)
def test_eager_and_onepass_do_every_operation_in_both_passes(name, op, direction, dtype):
    found = checked(backend(name), case_of(op, direction, dtype))
    assert found.passed, found
    assert {name.split()[0] for name in found.errors} == set(wanted(case_of(op, direction, dtype)))


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("op", FP8_OPS)
@pytest.mark.parametrize("name", ["eager", "onepass"])
def test_eager_and_onepass_do_every_fp8_output(name, op, scaling, columnwise):
    case = case_of(op, dtype="bfloat16", scaling=scaling, columnwise=columnwise, rows=130, cols=200)
    found = checked(backend(name), case)
    assert found.passed, found
    assert {name.split()[0] for name in found.errors} - {"amax"} == set(wanted(case))


@pytest.mark.parametrize(
    ("scaling", "given"), [("static", {"scale": 0.05}), ("delayed", {"multiplier": 20, "amax": 0})]
)
def test_what_a_scaling_takes_is_given_once_a_case(scaling, given):
    inputs = make_inputs(case_of("rms_norm_fp8", scaling=scaling), "cpu", 0)
    for name, value in given.items():
        assert getattr(inputs.quantize, name).item() == pytest.approx(value)
    seen = []
    Backend("mine", lambda case: lambda *arguments: seen.append(arguments[-1])).prepare(case_of("rms_norm_fp8"), inputs)
    assert seen[0] is inputs.quantize


@pytest.mark.parametrize("scaling", ["delayed", "block"])
def test_compile_is_of_the_same_function_and_kept_through_fresh_data(scaling):
    lab._compiled.cache_clear()
    case = case_of("add_rms_norm_fp8", dtype="bfloat16", scaling=scaling, columnwise=True)
    assert checked(backend("compile"), case).passed
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert checked(backend("compile"), case, seed=1).passed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("op", FP8_OPS)
def test_peers_say_that_they_have_no_fp8_outputs(name, op):
    with pytest.raises(NotSupported, match=f"^{name.title()}'s norms have no FP8 outputs"):
        BACKENDS[name].norm(case_of(op))


@pytest.mark.parametrize("name", ["eager", "onepass"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_query_slice_is_normalized_as_it_lies(name, direction):
    case = case_of(direction=direction, layout="qkv", heads=4)
    inputs = make_inputs(case, "cpu", 0)
    assert inputs.x.shape == (6, 4, 96) and inputs.x.stride() == (3 * 4 * 96, 96, 1)
    assert checked(backend(name), case).passed


@pytest.mark.parametrize("name", ["eager", "onepass"])
def test_a_weight_may_have_its_own_dtype(name):
    case = case_of(direction="backward", dtype="bfloat16", weight_dtype="float32")
    inputs = make_inputs(case, "cpu", 0)
    assert inputs.weight.dtype == torch.float32
    outputs = backend(name).prepare(case, inputs)()
    assert [output.dtype for output in outputs] == [torch.bfloat16, torch.float32]
    assert check(case, inputs, outputs).passed


def test_compile_keeps_what_it_compiled_through_fresh_data_and_the_other_way(monkeypatch):
    """Else a case would be compiled again in the middle of its timing."""
    compiled = []
    monkeypatch.setattr(torch, "compile", _counting(torch.compile, compiled))
    lab._compiled.cache_clear()
    case = case_of(direction="backward", dtype="bfloat16")
    assert checked(backend("compile"), case).passed
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert checked(backend("compile"), case, seed=1).passed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    lab._compiled(case, True)
    assert [made["options"] for made in compiled] == [None, lab.SEARCHED]
    assert all(made["dynamic"] is False for made in compiled)
    first, second = (made["function"].__code__ for made in compiled)
    assert first is not second and first is not lab._rms_norm.__code__


def _counting(original, seen):
    def compile_(function, **options):
        seen.append(options | {"function": function})
        return original(function, **options)

    return compile_


def test_the_backward_can_be_called_again_and_gives_the_same():
    case = case_of("add_rms_norm", "backward")
    inputs = make_inputs(case, "cpu", 0)
    call = backend("onepass").prepare(case, inputs)
    for first, second in zip(call(), call(), strict=True):
        assert torch.equal(first, second)
    assert inputs.x.grad is None and not inputs.x.requires_grad and not inputs.overwritten()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_not_installed_says_how_to_get_it(name, monkeypatch):
    lab._missing.cache_clear()
    monkeypatch.setitem(sys.modules, {"liger": "liger_kernel", "quack": "quack"}[name], None)
    monkeypatch.setattr(lab.importlib, "import_module", _absent)
    sentence = f"not installed: pip install {PEERS[name]}"
    assert available()[name] == sentence
    with pytest.raises(NotSupported, match=sentence):
        backend(name).prepare(case_of(), make_inputs(case_of(), "cpu", 0))
    lab._missing.cache_clear()


def _absent(module):
    raise ModuleNotFoundError(f"No module named {module}", name=module.partition(".")[0])


def test_a_peer_that_is_installed_in_part_says_what_it_lacks(monkeypatch):
    def half(module):
        raise ModuleNotFoundError("No module named 'cutlass'", name="cutlass")

    lab._missing.cache_clear()
    monkeypatch.setattr(lab.importlib, "import_module", half)
    assert available()["quack"] == "installed, but it needs cutlass: pip install quack-kernels"
    lab._missing.cache_clear()


@pytest.mark.parametrize("name", PEERS)
def test_peers_refuse_a_cpu(name):
    found = Backend(name, BACKENDS[name].norm, lambda: None, BACKENDS[name].gpu_only)
    with pytest.raises(NotSupported, match="runs on a CUDA GPU only, and this is cpu"):
        found.prepare(case_of(), make_inputs(case_of(), "cpu", 0))


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (case_of("layer_norm", "backward"), "no backward through autograd"),
        (case_of("layer_norm", dtype="bfloat16"), "takes float32 weights, not bfloat16"),
        (case_of("layer_norm", layout="qkv", heads=4), "two-dimensional"),
    ],
)
def test_quacks_layer_norm_says_what_it_cannot_do(case, why):
    with pytest.raises(NotSupported, match=why):
        BACKENDS["quack"].norm(case)


@pytest.mark.parametrize("op", NORMS)
def test_liger_is_asked_for_one_rounding_and_not_to_write_over_dy(op, monkeypatch):
    asked = []
    names = ("RMSNorm", "LayerNorm", "FusedAddRMSNorm")
    functions = {
        f"Liger{name}Function": types.SimpleNamespace(apply=lambda *a, name=name: asked.append((name, a)))
        for name in names
    }
    monkeypatch.setattr(lab.importlib, "import_module", lambda module: types.SimpleNamespace(**functions))
    BACKENDS["liger"].norm(case_of(op))("x", "weight", "bias", "residual", 1e-6)
    expected = {
        "rms_norm": ("RMSNorm", ("x", "weight", 1e-6, 0.0, "gemma", False)),
        "layer_norm": ("LayerNorm", ("x", "weight", "bias", 1e-6)),
        "add_rms_norm": ("FusedAddRMSNorm", ("x", "residual", "weight", 1e-6, 0.0, "gemma", False)),
    }
    assert asked == [expected[op]]


def test_all_is_the_five_peers_and_onepass_each_once():
    assert NAMES == ("eager", "compile", "compile-max", "liger", "quack", "onepass")
    assert [found.name for found in backends(["onepass", "all"])] == ["onepass", *NAMES[:-1]]
    assert tuple(available()) == NAMES


def test_an_unknown_backend_is_answered_with_the_names():
    with pytest.raises(ValueError, match=r"^backend must be all, eager, .*onepass or my_module:function, not apex$"):
        backend("apex")


def test_a_persons_own_kernel_is_judged_like_the_others(module):
    module("""
def norm(x, weight, bias=None, residual=None, eps=1e-6):
    if bias is not None:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    if residual is None:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x + residual, weight.shape, weight, eps), x + residual
""")
    found = backend("my_kernels:norm")
    assert found.name == "my_kernels:norm" and found.probe() is None
    for op in NORMS:
        for direction in DIRECTIONS:
            assert checked(found, case_of(op, direction)).passed


def test_a_persons_own_fp8_kernel_gets_how_to_quantize_and_returns_a_quantized(module):
    module("""
import onepass

def norm(x, weight, bias=None, residual=None, eps=1e-6, *, quantize):
    assert type(quantize) is onepass.Fp8
    function = onepass.rms_norm if bias is None else onepass.layer_norm
    return function(x, weight, bias, residual=residual, eps=eps, quantize=quantize)

def tuple_(x, weight, eps, quantize):
    q = norm(x, weight, eps=eps, quantize=quantize)
    return q.data, q.scale
""")
    for op in FP8_OPS:
        assert checked(backend("my_kernels:norm"), case_of(op, scaling="block", columnwise=True)).passed
    assert not checked(backend("my_kernels:tuple_"), case_of("rms_norm_fp8")).passed


def test_a_persons_kernel_that_takes_no_residual_still_does_the_rest(module):
    module("def norm(x, weight, eps): return F.rms_norm(x, weight.shape, weight, eps)")
    assert checked(backend("my_kernels:norm"), case_of()).passed
    with pytest.raises(NotSupported, match=r"raised TypeError: .*residual"):
        checked(backend("my_kernels:norm"), case_of("add_rms_norm"))


def test_a_persons_kernel_without_a_backward_is_unsupported_there(module):
    module("def norm(x, weight, eps): return F.rms_norm(x.detach(), weight.shape, weight.detach(), eps)")
    with pytest.raises(NotSupported, match="has no backward through autograd"):
        checked(backend("my_kernels:norm"), case_of(direction="backward"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:norm", "backend no_such_module:norm: no_such_module cannot be imported: No module"),
        ("my_kernels:other", "backend my_kernels:other: my_kernels has no function 'other'"),
        ("my_kernels:", "backend my_kernels:: my_kernels has no function ''"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(module, name, message):
    module("norm = None")
    with pytest.raises(ValueError, match=message):
        backend(name)
