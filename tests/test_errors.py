"""A call that cannot be meant is refused: one sentence with the argument, what it was and what it may be."""

import pytest
import torch

import onepass
from cases import BF16, F32, random
from onepass import checks


def good():
    return {"x": random(3, 4, 48), "weight": random(48), "bias": random(48), "residual": random(3, 4, 48)}


def sliced(tensor):
    """The same values with a last dimension that is not dense."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


#: What is changed in a good call, the argument that the sentence must begin with, and words that it must have.
REFUSED = {
    "weight of another width": ({"weight": random(47)}, "weight", ["(47,)", "(48,)", "(4, 48)", "(3, 4, 48)"]),
    "weight for other heads": ({"weight": random(3, 48), "bias": None}, "weight", ["(3, 48)", "(4, 48)"]),
    "weight with x's whole shape": ({"weight": random(3, 4, 48)}, "weight", ["(3, 4, 48)", "(48,)"]),
    "bias of another width": ({"bias": random(1)}, "bias", ["(1,)", "(48,)"]),
    "bias for heads, weight not": ({"bias": random(4, 48)}, "bias", ["(4, 48)", "(48,)", "weight"]),
    "residual of another shape": ({"residual": random(3, 48)}, "residual", ["(3, 48)", "(3, 4, 48)"]),
    "residual that would broadcast": ({"residual": random(1, 4, 48)}, "residual", ["(1, 4, 48)", "(3, 4, 48)"]),
    "integer x": ({"x": torch.ones(3, 4, 48, dtype=torch.int64)}, "x", ["torch.int64", "torch.float32"]),
    "boolean weight": ({"weight": torch.ones(48, dtype=torch.bool)}, "weight", ["torch.bool", "torch.bfloat16"]),
    "fp64 x": ({"x": random(3, 4, 48).double()}, "x", ["torch.float64", "torch.float32"]),
    "fp64 weight": ({"weight": random(48).double()}, "weight", ["torch.float64", "torch.float32"]),
    "fp64 residual": ({"residual": random(3, 4, 48).double()}, "residual", ["torch.float64", "torch.float32"]),
    "complex x": ({"x": torch.ones(3, 4, 48, dtype=torch.complex64)}, "x", ["torch.complex64", "torch.float16"]),
    "complex bias": ({"bias": torch.ones(48, dtype=torch.complex64)}, "bias", ["torch.complex64", "torch.float16"]),
    "weight elsewhere": ({"weight": torch.empty(48, device="meta")}, "weight", ["meta", "cpu"]),
    "bias elsewhere": ({"bias": torch.empty(48, device="meta")}, "bias", ["meta", "cpu"]),
    "residual elsewhere": ({"residual": torch.empty(3, 4, 48, device="meta")}, "residual", ["meta", "cpu"]),
    "x elsewhere": ({"x": torch.empty(3, 4, 48, device="meta")}, "weight", ["meta", "cpu"]),
    "x with gaps": ({"x": sliced(random(3, 4, 48))}, "x", ["stride of 2", "dense", "x.contiguous()"]),
    "transposed x": ({"x": random(48, 4, 3).permute(2, 1, 0)}, "x", ["stride of 12", "x.contiguous()"]),
    "expanded x": ({"x": random(3, 4, 1).expand(3, 4, 48)}, "x", ["stride of 0", "x.contiguous()"]),
    "residual with gaps": ({"residual": sliced(random(3, 4, 48))}, "residual", ["2", "residual.contiguous()"]),
    "weight with gaps": ({"weight": sliced(random(48))}, "weight", ["2", "weight.contiguous()"]),
    "strided heads": (
        {"weight": random(4, 50)[:, :48], "bias": None}, "weight", ["(50, 1)", "weight.contiguous()"]
    ),
    "x without dimensions": ({"x": torch.tensor(1.0), "residual": None}, "x", ["dimension"]),
    "weight without dimensions": ({"weight": torch.tensor(1.0)}, "weight", ["dimension"]),
    "unknown cast": ({"cast": "half"}, "cast", ["'half'", "'output'", "'llama'", "'t5'", "'gemma'", "'none'"]),
    "a dtype for a cast": ({"cast": torch.bfloat16}, "cast", ["torch.bfloat16", "'output'"]),
    "no cast": ({"cast": None}, "cast", ["None", "'output'"]),
    "a list of casts": ({"cast": ["llama"]}, "cast", ["['llama']", "'output'"]),
    "t5 with a bias": ({"cast": "t5"}, "bias", ["t5", "None"]),
    "eps of zero": ({"eps": 0.0}, "eps", ["0.0", "positive"]),
    "negative eps": ({"eps": -1e-6}, "eps", ["-1e-06", "positive"]),
    "infinite eps": ({"eps": float("inf")}, "eps", ["inf", "finite"]),
    "NaN eps": ({"eps": float("nan")}, "eps", ["nan", "positive"]),
    "no eps": ({"eps": None}, "eps", ["None", "number"]),
    "eps in a string": ({"eps": "1e-6"}, "eps", ["'1e-6'", "number"]),
    "infinite offset": ({"offset": float("inf")}, "offset", ["inf", "finite"]),
    "no offset": ({"offset": None}, "offset", ["None", "number"]),
    "fp64 output": ({"out_dtype": torch.float64}, "out_dtype", ["torch.float64", "None", "torch.float32"]),
    "integer output": ({"out_dtype": torch.int8}, "out_dtype", ["torch.int8", "torch.float16"]),
    "fp64 sum": ({"residual_dtype": torch.float64}, "residual_dtype", ["torch.float64", "None", "torch.bfloat16"]),
    "dx that does not fit over dy": (
        {"inplace_backward": True, "out_dtype": BF16}, "inplace_backward", ["torch.bfloat16", "torch.float32", "False"]
    ),
    "autotune": ({"autotune": "fast"}, "autotune", ["fast", "None"]),
}  # fmt: skip
#: The same for what is not even a tensor.
NOT_TENSORS = {
    "a list for x": ({"x": [1.0, 2.0]}, "x", ["list", "tensor"]),
    "no x": ({"x": None}, "x", ["NoneType", "tensor"]),
    "a number for weight": ({"weight": 1.0}, "weight", ["float", "tensor"]),
    "a list for bias": ({"bias": [1.0] * 48}, "bias", ["list", "tensor"]),
    "a string for residual": ({"residual": "x"}, "residual", ["str", "tensor"]),
}


def assert_sentence(message, argument, words):
    assert message.startswith(f"{argument} must"), message
    assert "\n" not in message and ". " not in message and not message.endswith("."), message
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def refused(function, changes, error):
    arguments = good() | changes
    tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    before = [(tensor.clone(), tensor._version) for tensor in tensors]
    with pytest.raises(error) as caught:
        function(arguments.pop("x"), arguments.pop("weight"), arguments.pop("bias"), **arguments)
    for tensor, (copy, version) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy) and tensor._version == version
    return str(caught.value)


@pytest.mark.parametrize("function", [onepass.rms_norm, onepass.layer_norm, onepass.explain])
@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_in_one_sentence_and_nothing_runs(launches, mistake, function):
    changes, argument, words = REFUSED[mistake]
    assert_sentence(refused(function, changes, ValueError), argument, words)
    assert launches == []


@pytest.mark.parametrize("function", [onepass.rms_norm, onepass.layer_norm, onepass.explain])
@pytest.mark.parametrize("mistake", NOT_TENSORS)
def test_what_is_no_tensor_is_named_in_one_sentence(launches, mistake, function):
    changes, argument, words = NOT_TENSORS[mistake]
    assert_sentence(refused(function, changes, TypeError), argument, words)
    assert launches == []


@pytest.mark.parametrize("mistake", ["weight of another width", "fp64 x", "unknown cast", "eps of zero"])
def test_a_mistake_is_refused_again_after_a_good_call(launches, mistake):
    """Calls that were checked once are kept; a refusal must not be, nor may a good one open the door."""
    tensors = good()
    onepass.rms_norm(tensors["x"], tensors["weight"], tensors["bias"], residual=tensors["residual"])
    done = len(launches)
    for _ in range(2):
        refused(onepass.rms_norm, REFUSED[mistake][0], ValueError)
    assert len(launches) == done


@pytest.mark.parametrize("mistake", ["weight of another width", "residual of another shape", "t5 with a bias"])
def test_a_mistake_is_refused_under_compile(launches, mistake):
    """The compiler wraps the error, and may put symbols for sizes; the sentence must still be in it."""
    changes, argument, _ = REFUSED[mistake]
    message = refused(torch.compile(onepass.rms_norm, backend="eager"), changes, Exception)
    assert f"{argument} must" in message
    assert launches == []


def test_layer_norm_has_no_cast_none():
    message = refused(onepass.layer_norm, {"cast": "none"}, ValueError)
    assert_sentence(message, "cast", ["none", "layer_norm", "rms_norm"])


def test_a_vector_has_no_heads():
    message = refused(
        onepass.rms_norm, {"x": random(48), "weight": random(1, 48), "bias": None, "residual": None}, ValueError
    )
    assert_sentence(message, "weight", ["(1, 48)", "(48,)"])


def test_more_rows_than_the_kernels_can_count_are_refused(monkeypatch):
    monkeypatch.setattr(checks, "MAX_ROWS", 11)
    message = refused(onepass.rms_norm, {}, ValueError)
    assert_sentence(message, "x", ["11", "12", "rows"])


def test_explain_names_the_operations_it_knows():
    with pytest.raises(ValueError, match=r"^op must be one of 'rms_norm', 'layer_norm', not 'batch_norm'$"):
        onepass.explain(random(3, 48), op="batch_norm")


@pytest.mark.parametrize("layer", [onepass.RMSNorm, onepass.LayerNorm])
def test_modules_name_the_dimensions_they_normalize(launches, layer):
    with pytest.raises(ValueError) as caught:
        layer((4, 48))(random(4, 47))
    assert_sentence(str(caught.value), "x", ["(4, 48)", "(4, 47)"])
    with pytest.raises(ValueError) as caught:
        layer(48)(random(3, 48), residual=random(2, 48))
    assert_sentence(str(caught.value), "residual", ["(2, 48)", "(3, 48)"])
    assert launches == []


def test_a_dense_column_may_have_any_stride():
    """A last dimension of one element has a stride that means nothing."""
    x = random(5, 3)[:, :1]
    assert x.stride() == (3, 1)
    assert onepass.rms_norm(x.as_strided((5, 1), (3, 7)), torch.ones(1, dtype=F32)).shape == (5, 1)
