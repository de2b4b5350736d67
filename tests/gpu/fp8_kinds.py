"""FP8 scalings with their options, and what the definition says of a result."""

from dataclasses import replace

import torch
from torch import Tensor

import onepass
from gpu.exact import DEVICE, random_rows, random_weight
from onepass import Fp8
from onepass.fp8 import definition

BF16 = torch.bfloat16


def number(value: float) -> Tensor:
    return torch.tensor(value, device=DEVICE)


KINDS = {
    "scale": lambda: Fp8("static", scale=number(0.02)),
    "divided": lambda: Fp8("static", "e5m2", scale=number(0.02), arithmetic="scale"),
    "multiplier": lambda: Fp8("static", multiplier=number(37.0)),
    "delayed": lambda: Fp8("delayed", multiplier=number(37.0), amax=number(0.5)),
    "tensor": lambda: Fp8("tensor"),
    "tensor, vllm": lambda: Fp8("tensor", like="vllm"),
    "token": lambda: Fp8("token"),
    "token e5m2": lambda: Fp8("token", "e5m2", power_of_two=True),
    "token, vllm": lambda: Fp8("token", like="vllm"),
    "block": lambda: Fp8("block"),
    "block 64": lambda: Fp8("block", "e5m2", block=64, arithmetic="inverse", upper_bound=2.0),
    "block, te": lambda: Fp8("block", like="transformer_engine"),
    "block, deepgemm": lambda: Fp8("block", like="deepgemm"),
    "block, vllm": lambda: Fp8("block", like="vllm"),
    "mx": lambda: Fp8("mx"),
    "mx, te": lambda: Fp8("mx", "e5m2", like="transformer_engine"),
}


def assert_quantized_as_defined(q: onepass.Quantized, fp8: Fp8) -> None:
    assert q.unquantized is not None
    expected = definition.quantize(q.unquantized, fp8)
    for name in ("data", "scale", "data_t", "scale_t", "amax"):
        got, wanted = getattr(q, name), getattr(expected, name)
        assert (got is None) == (wanted is None), name
        if got is not None:
            assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
            one, other = (tensor.contiguous().reshape(-1).clone() for tensor in (got, wanted))
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def asked(kind: str, columnwise: bool = False) -> Fp8:
    # Rounded first, so that the output beside it says what was quantized.
    return replace(KINDS[kind](), columnwise=columnwise, also_unquantized=True, round_first=True)


def assert_same_but_for_a_nans_bits(q: onepass.Quantized, expected: onepass.Quantized) -> None:
    for name in ("data", "scale", "data_t", "scale_t"):
        got, wanted = getattr(q, name), getattr(expected, name)
        if got is not None:
            values = [tensor.float() for tensor in (got, wanted)]
            assert torch.equal(*(value.nan_to_num(nan=12345.0) for value in values)), name
            assert torch.equal(*(value.signbit() & ~value.isnan() for value in values)), name


def assert_both_ways_as_defined(kind: str, shape: tuple[int, int]) -> None:
    x, weight = random_rows(*shape, dtype=BF16), random_weight(shape[1], dtype=BF16)
    q = onepass.rms_norm(x, weight, quantize=asked(kind, columnwise=True))
    assert_quantized_as_defined(q, asked(kind, columnwise=True))
    alone = onepass.rms_norm(x, weight, quantize=asked(kind))
    for name in ("data", "scale", "unquantized"):  # rows as they are without the transpose
        got, expected = (getattr(one, name).contiguous().reshape(-1).view(torch.uint8) for one in (q, alone))
        assert torch.equal(got, expected), name
