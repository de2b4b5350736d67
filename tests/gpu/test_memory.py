"""A call allocates its results, its statistics and small partial sums, and leaves alone what it was given."""

import pytest
import torch
from torch import Tensor

from gpu.allocation import MIB, ROUNDING, measured
from gpu.cases import BF16, CASES, PLAIN, RESIDUAL, Case, Tensors, on_schedule, ours, tensors_of, with_rows
from gpu.exact import same_bits

#: Partials of dW and dB, beside the gradients themselves.
PARTIALS_SHARE, PARTIALS_FLOOR = 0.02, 8 * MIB
#: The split schedule's mailbox: a word of 8 bytes at the most for a slice of 1,024 two-byte elements.
MAILBOX_SHARE = 8 / 2048
#: And one for a slice of a partial row, of 1,024 elements of four bytes or eight.
FLAGS_SHARE = 8 / 4096

BIG = [
    with_rows(PLAIN["block rows"], 262144),
    with_rows(PLAIN["one row"], 16384),
    with_rows(PLAIN["split"], 1024),
    with_rows(RESIDUAL["one row"], 16384),
    with_rows(RESIDUAL["split"], 1024),
    Case("16,384 columns", "rms_norm", "tile", (8192, 16384), BF16),
    Case("8,192 columns", "layer_norm", "tile", (16384, 8192), BF16, bias=True),
    Case("12,288 columns", "layer_norm", "tile", (8192, 12288), BF16, bias=True),
    Case("16,384 columns, two sums", "layer_norm", "tile", (8192, 16384), BF16, bias=True),
    Case("65,536 columns, two sums", "layer_norm", "tile", (4096, 65536), BF16, bias=True),
]


def size(*tensors: Tensor | None) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def leaves_of(tensors: Tensors) -> list[Tensor | None]:
    return [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors[:4]]


@pytest.mark.parametrize("case", BIG, ids=str)
def test_a_step_allocates_its_results_and_little_else(case: Case) -> None:
    tensors = tensors_of(case)
    leaves = leaves_of(tensors)
    wanted = [leaf for leaf in leaves if leaf is not None]
    with on_schedule(case, tensors):
        (y, total), forward = measured(lambda: ours(case)(*leaves))
        outputs, upstream = ([y], [tensors.dy]) if total is None else ([y, total], [tensors.dy, tensors.dsum])
        gradients, backward = measured(lambda: torch.autograd.grad(outputs, wanted, upstream))
    statistics = 4 * case.shape[0] * (2 if case.op == "layer_norm" else 1)
    assert forward <= size(y, total) + statistics + ROUNDING
    # dx is also the gradient of a residual of its dtype: one tensor, counted once.
    assert gradients[0].shape == case.shape
    results = {gradient.data_ptr(): gradient for gradient in gradients}.values()
    partials = max(PARTIALS_SHARE * size(tensors.x), PARTIALS_FLOOR)
    assert backward <= size(*results) + partials * (1 + FLAGS_SHARE) + MAILBOX_SHARE * size(tensors.x)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_that_was_passed_in_is_written_to(case: Case) -> None:
    tensors = tensors_of(case)
    before = [None if tensor is None else tensor.clone() for tensor in tensors]
    leaves = leaves_of(tensors)
    with on_schedule(case, tensors):
        y, total = ours(case)(*leaves)
        outputs, upstream = ([y], [tensors.dy]) if total is None else ([y, total], [tensors.dy, tensors.dsum])
        torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf is not None], upstream)
    for name, tensor, kept in zip(Tensors._fields, tensors, before, strict=True):
        assert tensor is None or same_bits(tensor.detach(), kept), name
