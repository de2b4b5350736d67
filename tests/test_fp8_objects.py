"""Fp8 and Quantized: what they are equal to, where they may go, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils import _pytree as pytree

from fp8_by_hand import assert_same_bits, numbers, one, sample
from onepass.fp8 import Fp8, Quantized
from onepass.fp8.definition import quantize, transpose_fp8

INF, NAN = math.inf, math.nan


def test_equal_options_are_one_key_and_tensors_count_by_identity():
    first, second = one(1.0), one(1.0)
    assert Fp8("token") == Fp8() and hash(Fp8("token")) == hash(Fp8()) and Fp8() != Fp8("block")
    a, b = Fp8("static", scale=first), Fp8("static", scale=second)
    assert a != b and a == Fp8("static", scale=first) and a.key == b.key and hash(a) == hash(b)
    assert Fp8("block", like="vllm").key == Fp8("block", arithmetic="scale").key
    assert replace(Fp8("block", like="deepgemm"), columnwise=True).floor == 1e-4
    for kind in ("static", "delayed", "mx", "tensor"):
        given = {"static": {"scale": first}, "delayed": {"multiplier": first, "amax": second}}.get(kind, {})
        assert replace(Fp8(kind, **given), also_unquantized=True).also_unquantized
    with pytest.raises(AttributeError):
        a.scaling = "token"


def test_a_result_goes_through_a_pytree():
    q = quantize(sample(4, 300), Fp8("block", layout="tma", columnwise=True), residual=torch.ones(4, 300))
    leaves, spec = pytree.tree_flatten(q)
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Quantized) and again.data is q.data and again.residual is q.residual
    assert (again.block, again.layout, again.amax) == (128, "tma", None)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    names = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(q)]
    assert ".data" in names and ".residual" in names
    moved = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), q)
    assert moved.data.device.type == "meta" and moved.scale.shape == q.scale.shape


@pytest.mark.parametrize("kind", ["token", "block", "mx", "tensor"])
def test_a_result_goes_through_compile_in_one_graph(kind):
    fp8 = Fp8(kind, columnwise=True)
    compiled = torch.compile(lambda y: quantize(y, fp8), backend="eager", fullgraph=True)
    y = sample(5, 200)
    q, expected = compiled(y), quantize(y, fp8)
    assert isinstance(q, Quantized)
    assert torch.equal(q.dequantize(), expected.dequantize()) and torch.equal(q.scale.float(), expected.scale.float())


def test_transposing_moves_bytes_and_shares_the_scale():
    y = sample(2, 3, 40)
    q = transpose_fp8(quantize(y, Fp8("tensor")))
    assert_same_bits(q.data_t, numbers(q.data).reshape(6, 40).T)
    assert torch.equal(q.dequantize_columnwise(), q.dequantize().reshape(6, 40).t())
    assert transpose_fp8(quantize(torch.empty(0, 8), Fp8("tensor"))).data_t.shape == (8, 0)
    q = transpose_fp8(quantize(y, Fp8("token")))
    assert q.scale_t.shape == (1, 6) and torch.equal(q.dequantize_columnwise(), q.dequantize().reshape(6, 40).t())


def test_the_unquantized_output_keeps_its_gradient():
    y = sample(3, 40).requires_grad_()
    q = quantize(y, Fp8("token", also_unquantized=True))
    q.unquantized.sum().backward()
    assert not q.data.requires_grad and y.grad is not None


# --- refusals -----------------------------------------------------------------------------------------------------

#: Arguments, the one that the sentence must begin with, and words that it must have.
REFUSED = {
    "unknown kind": ({"scaling": "row"}, "scaling", ["'row'", "'token'", "'mx'"]),
    "no kind": ({"scaling": None}, "scaling", ["None", "'static'"]),
    "unknown format": ({"format": "e3m4"}, "format", ["'e3m4'", "'e4m3'", "'e5m2'"]),
    "a dtype for a format": ({"format": torch.float8_e4m3fn}, "format", ["torch.float8_e4m3fn", "'e4m3'"]),
    "static without its scale": ({"scaling": "static"}, "scale", ["static", "multiplier", "none"]),
    "static with both": ({"scaling": "static", "scale": one(1), "multiplier": one(1)}, "scale", ["multiplier too"]),
    "delayed without multiplier": ({"scaling": "delayed", "amax": one(0)}, "multiplier", ["delayed", "None"]),
    "delayed without amax": ({"scaling": "delayed", "multiplier": one(1)}, "amax", ["delayed", "None"]),
    "delayed with a scale": ({"scaling": "delayed", "scale": one(1)}, "scale", ["delayed", "None"]),
    "a scale for token": ({"scale": one(1)}, "scale", ["'token'", "None"]),
    "a scale in fp64": ({"scaling": "static", "scale": one(1).double()}, "scale", ["float64", "float32"]),
    "two scales": ({"scaling": "static", "scale": torch.ones(2)}, "scale", ["one element", "(2,)"]),
    "block of 100": ({"scaling": "block", "block": 100}, "block", ["128 or 64", "100", "'block'"]),
    "mx of 64": ({"scaling": "mx", "block": 64}, "block", ["32", "64", "'mx'"]),
    "block for token": ({"block": 128}, "block", ["None", "128", "'token'"]),
    "columnwise of 1": ({"columnwise": 1}, "columnwise", ["True or False", "1"]),
    "power_of_two of 2": ({"power_of_two": 2}, "power_of_two", ["True or False", "2"]),
    "mx without powers of two": ({"scaling": "mx", "power_of_two": False}, "power_of_two", ["'mx'", "False"]),
    "a floor for mx": ({"scaling": "mx", "floor": 1e-4}, "floor", ["'mx'", "0.0001"]),
    "a bound for static": ({"scaling": "static", "scale": one(1), "upper_bound": 1.0}, "upper_bound", ["'static'"]),
    "negative floor": ({"floor": -1.0}, "floor", ["-1.0", "negative"]),
    "infinite floor": ({"floor": INF}, "floor", ["inf", "finite"]),
    "NaN bound": ({"upper_bound": NAN}, "upper_bound", ["nan", "finite"]),
    "a bound in a string": ({"upper_bound": "1"}, "upper_bound", ["'1'", "number"]),
    "a bound below the floor": ({"upper_bound": 1e-11}, "upper_bound", ["1e-10", "1e-11"]),
    "unknown arithmetic": ({"arithmetic": "fast"}, "arithmetic", ["'fast'", "'scale'", "'multiplier'"]),
    "inverse of a multiplier": (
        {"scaling": "static", "multiplier": one(1), "arithmetic": "inverse"}, "arithmetic", ["'inverse'", "multiplier"]
    ),
    "tma for token": ({"layout": "tma"}, "layout", ["'row'", "'tma'", "'token'"]),
    "swizzled blocks": ({"scaling": "block", "layout": "swizzled"}, "layout", ["'row', 'tma'", "'swizzled'"]),
    "tma for mx": ({"scaling": "mx", "layout": "tma"}, "layout", ["'row', 'swizzled'", "'tma'"]),
    "blocks in rows": ({"scaling": "block", "columnwise_order": "rows"}, "columnwise_order", ["'rows'", "'block'"]),
    "unknown preset": ({"like": "torchao"}, "like", ["'torchao'", "None", "'vllm'", "'deepgemm'"]),
    "DeepGEMM by token": ({"like": "deepgemm"}, "scaling", ["'token'", "'block'", "'deepgemm'"]),
    "vLLM in e5m2": ({"like": "vllm", "format": "e5m2"}, "format", ["'e5m2'", "'e4m3'", "'vllm'"]),
}  # fmt: skip


def assert_sentence(message, argument, words):
    assert message.startswith(f"{argument} must"), message
    assert "\n" not in message and ". " not in message and not message.endswith("."), message
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_in_one_sentence(mistake):
    arguments, argument, words = REFUSED[mistake]
    with pytest.raises(ValueError) as caught:
        Fp8(**arguments)
    assert_sentence(str(caught.value), argument, words)


def test_a_call_that_cannot_be_meant_is_refused_and_nothing_is_written():
    amax = one(0.0)
    elsewhere = Fp8("delayed", multiplier=torch.ones(1, device="meta"), amax=amax)
    y = sample(3, 40)
    for error, call, argument, words in (
        (ValueError, lambda: quantize(y, elsewhere), "multiplier", ["meta", "cpu"]),
        (ValueError, lambda: quantize(y.double(), Fp8()), "x", ["float64", "float32"]),
        (ValueError, lambda: quantize(torch.tensor(1.0), Fp8()), "x", ["dimension"]),
        (TypeError, lambda: quantize([1.0], Fp8()), "x", ["list", "tensor"]),
        (TypeError, lambda: quantize(y, "token"), "quantize", ["str", "Fp8"]),
        (TypeError, lambda: Fp8("static", scale=1.0), "scale", ["float", "tensor"]),
        (ValueError, lambda: transpose_fp8(quantize(y, Fp8("block"))), "q", ["128 columns", "columnwise=True"]),
        (ValueError, lambda: quantize(y, Fp8()).dequantize_columnwise(), "data_t", ["None", "columnwise=True"]),
    ):
        with pytest.raises(error) as caught:
            call()
        assert_sentence(str(caught.value), argument, words)
    assert amax == 0
