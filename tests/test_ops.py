"""The torch.library ops: opcheck, torch.compile, torch.export, and functorch, which goes around them."""

import io
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

import onepass
from cases import (
    BF16,
    F16,
    F32,
    OPS,
    SCHEDULES,
    SHAPES,
    Case,
    assert_planned,
    call,
    explained,
    inputs_of,
    planned,
    random,
)
from onepass import inductor, ops, reference  # noqa: F401  (the first registers the ops)
from oracle import computed
from tolerance import assert_close

OP = torch.ops.onepass.norm.default


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sample(centred=False, weight=F32, bias=None, residual=None, x=F32, shape=(3, 48), heads=None, frozen=(), **options):
    """Arguments of the op: (x, weight, bias, residual, centred, eps, offset, cast, round_residual, dtypes, stats)."""
    affine = shape[-1:] if heads is None else (heads, shape[-1])

    def tensor(name, size, dtype):
        return None if dtype is None else random(*size, dtype=dtype).requires_grad_(name not in frozen)

    tensors = (
        tensor("x", shape, x), tensor("weight", affine, weight), tensor("bias", affine, bias),
        tensor("residual", shape, residual),
    )  # fmt: skip
    asked = {"eps": 1e-5, "offset": 0.0, "cast": "output", "round_residual": False, "out_dtype": None} | options
    return *tensors, centred, *asked.values(), None, True


SAMPLES = {
    "rms_norm": lambda: sample(),
    "weightless": lambda: sample(weight=None),
    "layer_norm": lambda: sample(centred=True, bias=F32),
    "residual": lambda: sample(residual=F32, bias=F32),
    "fp32 residual of bf16": lambda: sample(x=BF16, weight=BF16, residual=F32, round_residual=True),
    "per head": lambda: sample(shape=(2, 3, 48), heads=3, bias=F16),
    "llama to fp32": lambda: sample(x=BF16, cast="llama"),
    "out_dtype": lambda: sample(centred=True, out_dtype=F16),
    "frozen weight": lambda: sample(frozen=("weight",)),
    "frozen x": lambda: sample(frozen=("x",)),
    "no rows": lambda: sample(shape=(0, 48), bias=F32),
    "one row": lambda: sample(shape=(48,)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_op_keeps_its_promises(name):
    """Schema, autograd registration, fakes, and AOT dispatch with static and with dynamic shapes."""
    torch.library.opcheck(OP, SAMPLES[name](), rtol=1e-4, atol=1e-4)


def test_the_op_keeps_its_promises_on_strided_rows():
    x = random(4, 3, 2, 48)[:, 0].requires_grad_()
    torch.library.opcheck(OP, (x, *sample()[1:]), rtol=1e-4, atol=1e-4)


COMPILED = {
    "rms_norm": Case(),
    "layer_norm": Case("layer_norm", bias=F32),
    "residual": Case(x=BF16, weight=BF16, residual=F32, options={"cast": "llama"}),
    "layer_norm with residual": Case("layer_norm", x=BF16, bias=F32, residual=BF16, options={"round_residual": True}),
    "per head": Case(bias=F32, per_head=True),
    "residual_dtype": Case(x=BF16, options={"residual_dtype": F32}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_is_eager_bit_for_bit(name, monkeypatch):
    case = COMPILED[name]
    inputs = inputs_of(case, 3, 2, 48)
    eager = vars(computed(case, inputs))
    function = torch.compile(getattr(onepass, case.op), fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(onepass, case.op, function)
    compiled = vars(computed(case, inputs))
    for result, value in eager.items():
        assert (value is None and compiled[result] is None) or torch.equal(compiled[result], value), result


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_runs_compiled(schedule, monkeypatch):
    case = Case("layer_norm", bias=F32, residual=F32)
    inputs = inputs_of(case, *SHAPES[schedule])
    with planned(schedule):
        assert_planned(schedule, explained(case, inputs))
        eager = vars(computed(case, inputs))
        monkeypatch.setattr(onepass, case.op, torch.compile(onepass.layer_norm, fullgraph=True, backend="aot_eager"))
        compiled = vars(computed(case, inputs))
    for result, value in eager.items():
        assert torch.equal(compiled[result], value), result


@pytest.mark.parametrize("op", OPS)
def test_a_new_row_count_does_not_compile_again(op):
    counter = CompileCounterWithBackend("aot_eager")
    layer = {"rms_norm": onepass.RMSNorm, "layer_norm": onepass.LayerNorm}[op](48)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    frames = set()
    for rows in (2, 3, 7, 12):
        x = random(rows, 48).requires_grad_()
        expected = torch.autograd.grad(layer(x).sum(), x)[0]
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(y, layer(x)) and torch.equal(x.grad, expected)
        frames.add(counter.frame_count)
    assert len(frames) == 1  # the first row count may restart its compilation, with the offset as a constant


def test_a_new_row_count_of_a_residual_block_does_not_compile_again():
    counter = CompileCounterWithBackend("aot_eager")

    def block(x, weight, residual):
        y, total = onepass.rms_norm(x * 2, weight, residual=residual)
        return y * total

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    weight = random(48)
    frames = set()
    for batch, rows in ((2, 5), (3, 4), (7, 3)):
        x, residual = random(batch, rows, 48), random(batch, rows, 48)
        assert torch.equal(compiled(x, weight, residual), block(x, weight, residual))
        frames.add(counter.frame_count)
    assert len(frames) == 1


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_dynamic_graph_has_one_symbol_for_the_rows_and_none_for_columns_or_offset(offset):
    taken = []

    def backend(graph, inputs):
        taken[:] = inputs
        return graph

    class Layer(onepass.RMSNorm):
        def forward(self, x):
            return onepass.rms_norm(x, self.weight, eps=1e-6, offset=self.offset)

    layer, x = Layer(48, offset=offset), random(5, 48)
    with torch.no_grad():
        y = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)(x)
        assert torch.equal(y, layer(x))
    assert sorted(tuple(value.shape) for value in taken if isinstance(value, torch.Tensor)) == [(5, 48), (48,)]
    assert len(taken) == 3


def test_a_second_derivative_of_a_compiled_call_is_refused():
    x = random(3, 48).requires_grad_()
    y, *_ = OP(x, *sample()[1:])
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="onepass has no second derivative"):
        dx.sum().backward()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = onepass.RMSNorm(48, offset=1.0), onepass.LayerNorm(48)

    def forward(self, x, residual):
        y, total = self.first(x, residual=residual)
        return self.second(y), total


@pytest.mark.parametrize("rows", [None, torch.export.Dim.DYNAMIC, torch.export.Dim("rows")], ids=str)
def test_an_exported_module_is_saved_and_loaded(rows):
    block = Block()
    shapes = None if rows is None else ({0: rows}, {0: rows})
    program = torch.export.export(block, (random(3, 48), random(3, 48)), dynamic_shapes=shapes)
    assert [node.target for node in program.graph.nodes].count(OP) == 2
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for count in (3,) if rows is None else (3, 8):
        x, residual = random(count, 48), random(count, 48)
        for ours, expected in zip(loaded(x, residual), block(x, residual), strict=True):
            assert torch.equal(ours, expected)


def test_fake_tensors_have_the_shapes_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = Case("layer_norm", x=BF16, bias=F32, residual=F32, options={"out_dtype": F16})
    real = call(case, inputs_of(case, 3, 2, 48))
    with FakeTensorMode():
        x, weight, bias = torch.empty(3, 2, 48, dtype=BF16), torch.empty(48), torch.empty(48)
        fake = onepass.layer_norm(x, weight, bias, residual=torch.empty(3, 2, 48), out_dtype=F16)
    for one, other in zip(fake, real, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def test_tensor_subclasses_go_through_the_op():
    class Tagged(torch.Tensor):
        seen: list = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = random(3, 48)
    y = onepass.rms_norm(x.as_subclass(Tagged))
    assert any("onepass" in str(function) for function in Tagged.seen)
    assert torch.equal(y.as_subclass(torch.Tensor), onepass.rms_norm(x))


@pytest.fixture
def reference_calls(monkeypatch):
    seen = []
    plain = reference.normalize
    monkeypatch.setattr(reference, "normalize", lambda *a, **k: seen.append(1) or plain(*a, **k))
    return seen


@pytest.mark.parametrize("op", OPS)
def test_functorch_takes_the_reference(op, reference_calls, launches):
    function, x, weight = getattr(onepass, op), random(5, 3, 48), random(48)
    mapped = torch.func.vmap(function, in_dims=(0, None))(x, weight)
    gradient = torch.func.grad(lambda x: function(x, weight).square().sum())(x)
    hessian = torch.func.hessian(lambda w: function(x, w).square().sum())(weight)
    assert len(reference_calls) == 3 and launches == []
    assert_close("vmap", mapped, function(x, weight), magnitude=10.0)
    leaf = x.clone().requires_grad_()
    function(leaf, weight).square().sum().backward()
    assert_close("grad", gradient, leaf.grad, magnitude=100.0)
    assert hessian.shape == (48, 48)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_compiled_inference_is_eager_bit_for_bit(mode):
    x, weight = random(3, 48, dtype=BF16), random(48)
    with mode():
        compiled = torch.compile(onepass.rms_norm, fullgraph=True, backend="aot_eager")(x, weight)
        assert torch.equal(compiled, onepass.rms_norm(x, weight))


def block(x, weight, residual):
    y, total = onepass.rms_norm(x * 2, weight, residual=residual)
    return y * total


def stepped(function, x, weight, residual):
    y = function(x, weight, residual)
    return y, *torch.autograd.grad(y.sum(), (x, weight))


def test_inductor_calls_the_function_and_not_the_dispatcher():
    x, weight, residual = random(5, 48).requires_grad_(), random(48).requires_grad_(), random(5, 48)
    compiled = torch.compile(block, fullgraph=True)
    got, sources = run_and_get_code(lambda: stepped(compiled, x, weight, residual))
    code = "\n".join(sources)
    for op in ("run_norm", "run_norm_backward"):
        assert f"{op}.default.{inductor.FUNCTION}(" in code and f"{op}.default(" not in code, op
    for result, expected in zip(got, stepped(block, x, weight, residual), strict=True):
        assert torch.equal(result, expected)


def test_a_graph_in_cpp_has_the_op():
    x, weight, residual = random(5, 48), random(48), random(5, 48)
    with torch._inductor.config.patch(cpp_wrapper=True):
        y, sources = run_and_get_code(torch.compile(block, fullgraph=True), x, weight, residual)
    assert inductor.FUNCTION not in "".join(sources) and "run_norm" in "".join(sources)
    assert torch.equal(y, block(x, weight, residual))
