"""The norms of real models: the class from transformers, and ours with its weight and its options."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onepass
from gpu.exact import (
    DEVICE,
    EPS32,
    FREEDOM,
    assert_equal_but_for_row_sums,
    assert_same_bits,
    exact_rows,
    random_rows,
    random_weight,
)

pytest.importorskip("transformers")

BF16, FP32 = torch.bfloat16, torch.float32
EPS = 1e-6

LLAMA: dict[str, Any] = {"cast": "llama"}
GEMMA: dict[str, Any] = {"offset": 1.0}
OUTPUT: dict[str, Any] = {"cast": "output"}
T5: dict[str, Any] = {"cast": "t5"}

#: model, class, weight's dtype, our options, sizes. A power of two among the sizes of each: there transformers' `mean`,
#: which multiplies by 1 / N, is exact.
MODELS = [
    ("llama", "LlamaRMSNorm", BF16, LLAMA, (4096, 5120)),
    ("qwen3", "Qwen3RMSNorm", BF16, LLAMA, (4096, 5120)),
    ("gemma", "GemmaRMSNorm", BF16, GEMMA, (4096, 2880)),
    ("gemma2", "Gemma2RMSNorm", BF16, GEMMA, (4096, 2880)),
    ("gemma3", "Gemma3RMSNorm", BF16, GEMMA, (4096, 2880)),
    ("gpt_oss", "GptOssRMSNorm", BF16, OUTPUT, (4096, 2880)),
    ("olmo2", "Olmo2RMSNorm", BF16, OUTPUT, (4096, 2880)),
    ("t5", "T5LayerNorm", BF16, T5, (4096, 5120)),
    ("t5", "T5LayerNorm", FP32, T5, (4096,)),
]


def build(model: str, name: str, weight: Tensor) -> nn.Module:
    found = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    if not found.__module__.startswith("transformers."):
        pytest.skip(f"{name} is {found.__module__}'s here, which takes the place of transformers' own")
    layer = found(weight.shape[-1], eps=EPS).to(device=DEVICE, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def compare(layer: nn.Module, x: Tensor, weight: Tensor, options: dict[str, Any], exact: bool) -> None:
    plan = onepass.explain(x, weight, eps=EPS, **options)
    assert plan.forward is not None and plan.forward.schedule == "tile", str(plan)
    y = onepass.rms_norm(x, weight, eps=EPS, **options)
    with torch.no_grad():
        theirs = layer(x)
    assert y.dtype == theirs.dtype
    if exact:
        assert_same_bits(y, theirs)
    elif y.dtype == FP32:  # T5 with an fp32 weight
        torch.testing.assert_close(y, theirs, rtol=FREEDOM * EPS32, atol=0)
    else:
        assert_equal_but_for_row_sums(y, theirs)


@pytest.mark.parametrize(("model", "name", "weight_dtype", "options", "sizes"), MODELS)
def test_a_models_norm_can_be_swapped_for_ours(
    model: str, name: str, weight_dtype: torch.dtype, options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    for cols in sizes:
        weight = random_weight(cols, dtype=weight_dtype) - options.get("offset", 0.0)
        layer = build(model, name, weight)
        if cols & (cols - 1) == 0:
            compare(layer, exact_rows(301, cols, BF16), weight, options, exact=True)
        compare(layer, random_rows(7, 43, cols, dtype=BF16), weight, options, exact=False)


@pytest.mark.parametrize(("model", "name"), [("qwen3", "Qwen3RMSNorm"), ("gemma3", "Gemma3RMSNorm")])
def test_query_and_key_norm_can_be_swapped_for_ours(model: str, name: str) -> None:
    """(tokens, heads, head_dim), the query part of a fused qkv tensor included."""
    options = LLAMA if model == "qwen3" else GEMMA
    weight = random_weight(128, dtype=BF16) - options.get("offset", 0.0)
    layer = build(model, name, weight)
    exact = exact_rows(5003 * 6, 128, BF16).view(5003, 6, 128)
    compare(layer, exact, weight, options, exact=True)
    compare(layer, exact[:, :4], weight, options, exact=True)
    compare(layer, random_rows(5003, 6, 128, dtype=BF16)[:, :4], weight, options, exact=False)
